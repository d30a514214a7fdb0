"""SQL as a text form of a :class:`~tacit.queries.query.Query`: a closed subset, never executed.

The text of a statement reaches no engine. ``words`` cuts it into words, each of which must be allowed in a
supported statement. sqlglot parses the words. ``statement`` and ``conditions`` read the tree into a query.
Two independent checks make sure that nothing is ignored. Each function that reads a node refuses all
arguments that it does not use. At the end, ``reader`` refuses a tree with an unread node, or a text with an
unread word. The engine's statement is built from the query, not from the text.
"""

from tacit.queries.sql.statement import parse

__all__ = ["parse"]
