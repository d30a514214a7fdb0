"""What is publicly known of a table's columns, and what do its cells mean? Without torch.

``column.py`` describes a column.  ``dialect.py`` says how a
CSV file is written, ``tables.py`` reads it, Parquet and data frames.  ``reading.py`` says what a cell means,
``moments.py`` what a date means.  ``features.py`` makes features of a column, ``encoder.py`` of a row.

For a new file: ``sniffing.py`` and ``kinds.py`` propose how a table is written; ``sections.py`` reads what a
person states, writes both down, and finds what is still to be filled in.
"""

from typing import TYPE_CHECKING

from tacit.columns.column import Column
from tacit.columns.dialect import Dialect
from tacit.columns.encoder import Encoder
from tacit.moved import moved as _moved

__all__ = ["Column", "Dialect", "Encoder"]
if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(__name__, {"parse_columns": "tacit.columns.column.parse_columns"})
