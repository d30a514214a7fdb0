"""How is SQL read? As a text form of a :class:`~tacit.queries.query.Query`: a closed subset, never executed.

The text of a statement reaches no engine.  ``words`` cuts it into words, each of which must be allowed in a
supported statement; sqlglot parses the words; ``statement`` and ``conditions`` read the tree into a query.
Two independent checks make sure that nothing is ignored: a reader refuses by name every argument of a node
that it does not use; and in the end ``reader`` refuses a tree with a node, or a text with a word, that no
reader has read.  The statement that an engine runs is built anew from the query.
"""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.queries.sql.statement import parse

__all__ = ["parse"]
if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(__name__, {"describe_columns": "tacit.queries.sql.reader.describe_columns"})
