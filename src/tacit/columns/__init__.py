"""Public facts about the columns of a table, and the meaning of its cells; this package needs no torch.

* ``column``: the description of a column.
* ``dialect``: the format of a CSV file.
* ``tables``: the readers of CSV, Parquet, JSON Lines and data frames.
* ``reading``: the meaning of a cell; ``moments``: the meaning of a date.
* ``features``: the features of a column; ``encoder``: the features of a row.

For a new file, ``sniffing``, ``kinds`` and ``names`` propose the format of the file and the kinds of its
columns. ``sections`` reads the facts that a person states, writes them as TOML, and finds those that are
still to be filled in.
"""

from tacit.columns.column import Column
from tacit.columns.dialect import Dialect
from tacit.columns.encoder import Encoder

__all__ = ["Column", "Dialect", "Encoder"]
