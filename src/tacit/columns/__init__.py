"""Public facts about the columns of a table, and the meaning of its cells. Without torch.

* ``column``: the description of a column.
* ``dialect``: the form of a CSV file; ``tables``: reads CSV, Parquet, JSON Lines and data frames.
* ``reading``: the meaning of a cell; ``moments``: the meaning of a date.
* ``features``: the features of a column; ``encoder``: those of a row.

For a new file, ``sniffing``, ``kinds`` and ``names`` propose the form of the table. ``sections`` reads the
facts that a person states, writes them as TOML, and finds those that are still to be filled in.
"""

from typing import TYPE_CHECKING

from tacit.columns.column import Column
from tacit.columns.dialect import Dialect
from tacit.columns.encoder import Encoder
from tacit.moved import moved as _moved

__all__ = ["Column", "Dialect", "Encoder"]
if not TYPE_CHECKING:  # else type checkers would take any name for one of the module
    __getattr__ = _moved(__name__, {"parse_columns": "tacit.columns.column.parse_columns"})
