"""Public facts about the columns of a table, and the meaning of its cells; no torch, no pandas.

``column`` declares columns and the format of a file, ``tables`` reads files and data frames, and ``encoder``
turns rows into numbers. For a new file, ``sniffing`` proposes the declarations, and ``sections`` writes them
as TOML.
"""

from tacit.columns.column import Column, Dialect
from tacit.columns.encoder import Encoder

__all__ = ["Column", "Dialect", "Encoder"]
