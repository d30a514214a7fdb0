"""Public facts about the columns of a table, and the meaning of its cells; no torch, no pandas.

``column`` describes columns and the format of a file, ``tables`` reads files and data frames and says what a
cell means, and ``encoder`` turns rows into numbers. For a new file, ``sniffing`` proposes the facts, and
``sections`` writes them as TOML.
"""

from tacit.columns.column import Column, Dialect
from tacit.columns.encoder import Encoder

__all__ = ["Column", "Dialect", "Encoder"]
