"""What a run leaves for people to read: the statement and the pictures."""

from tacit.report.statement import Statement, group_epsilon, make_statement

__all__ = ["Statement", "group_epsilon", "make_statement"]
