"""SQL as a way to write a :class:`~tacit.queries.query.Query`: a closed subset, read and never executed.

The text of a statement reaches no engine.  It is cut into words, each of which must be one that a supported
statement may hold (``words``); the words are parsed by sqlglot; and the tree is read into a query
(``statement``, ``aggregates``, ``conditions``).  Reading is exhaustive in two ways that share nothing: a node
with an argument that its reader does not ask for is refused by name; and when all is read, so is a tree with
a node, or a text with a word, that no reader has seen (``reader``).  What the engine runs is built anew from
the query.
"""

from tacit.queries.sql.reader import describe_columns
from tacit.queries.sql.statement import parse

__all__ = ["describe_columns", "parse"]
