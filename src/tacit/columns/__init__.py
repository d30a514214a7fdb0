"""What is publicly known of a table's columns, and what do its cells mean? Without torch.

``column.py`` describes a column, ``schema.py`` reads descriptions from files.  ``dialect.py`` says how a
CSV file is written, ``cells.py`` reads it; ``tables.py`` reads Parquet and data frames.  ``reading.py`` says
what a cell means, ``moments.py`` and ``parts.py`` what a date means.  ``features.py`` makes features of a
column, ``encoder.py`` of a row.

For a new file: ``sniffing.py`` and ``kinds.py`` propose how a table is written, ``stated.py`` reads what a
person states, ``sections.py`` writes both down, ``blanks.py`` finds what is still to be filled in.
"""

from tacit.columns.column import Column
from tacit.columns.dialect import Dialect
from tacit.columns.encoder import Encoder
from tacit.columns.schema import parse_columns

__all__ = ["Column", "Dialect", "Encoder", "parse_columns"]
