"""Private queries over tables: counts, sums, means, quantiles, groups, in Python and in SQL.

* ``query``, ``predicates``: the questions that a user can ask, and the check against the policy.
* ``sql``: the reader of a closed subset of SQL, which returns a query.
* ``plan``: the integers to measure, the noise for each, and the event that is charged.
* ``measures``: the sums, and their sensitivity to one unit.
* ``pricing``: the scale of the noise, and intervals for it.
* ``statements``: the SQL that an engine runs, built from the trees over one row in ``expressions``.
* ``engines``: the interface of engines; ``duckdb``, with ``arrow``, and ``dialects`` (PostgreSQL, Spark)
  implement it.
* ``noise``: the samplers that draw and add noise.
* ``estimate``: values with intervals from noisy integers; ``answer``: the content of an answer, and its text.
* ``table_check``: the curator's check of a table, which must precede all questions.
* ``private_table``: a private table answers questions and charges the ledger.
"""

from tacit.queries.answer import Answer
from tacit.queries.predicates import And, Compare, In, IsNull, Not, Or
from tacit.queries.private_table import PrivateTable
from tacit.queries.query import (
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.table_check import check_table, register_table

__all__ = [
    "And",
    "Answer",
    "Compare",
    "Count",
    "CountUnits",
    "Histogram",
    "In",
    "IsNull",
    "Mean",
    "Not",
    "Or",
    "PrivateTable",
    "Quantile",
    "Query",
    "StandardDeviation",
    "Sum",
    "Variance",
    "check_table",
    "register_table",
]
