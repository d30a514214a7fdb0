"""Private queries over tables: counts, sums, means, quantiles, groups, in Python and in SQL.

* ``query``, ``predicates``: what a user can ask, as frozen data; ``sql``: a subset of SQL, read into it.
* ``checking``: whether a query fits the policy.
* ``plan``: the integers to measure, the noise for each, and the event that is charged.
* ``measures``: what is measured, and its sensitivity to one unit; ``pricing``: the scale of its noise.
* ``statements``: the SQL that an engine runs, from ``expressions`` over one row.
* ``engines``: what an engine does; ``duckdb``, with ``arrow``, and ``dialects`` (PostgreSQL, Spark) do it.
* ``noise``: who draws it and adds it, and its intervals.
* ``estimate``: from noisy integers to values with intervals; ``answer``: what an answer contains and prints.
* ``table_check``: the curator's check of a table, which must precede all questions.
* ``private_table``: a private table answers questions and charges the ledger.
"""

from tacit.queries.answer import Answer, Row
from tacit.queries.estimate import Estimate
from tacit.queries.predicates import And, Compare, In, IsNull, Not, Or, Predicate
from tacit.queries.private_table import PrivateTable, Quote
from tacit.queries.query import (
    Aggregate,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
    query_from_json,
    query_to_json,
)
from tacit.queries.table_check import Finding, TableCheck, check_table, register_table

__all__ = [
    "Aggregate",
    "And",
    "Answer",
    "Compare",
    "Count",
    "CountUnits",
    "Estimate",
    "Finding",
    "Histogram",
    "In",
    "IsNull",
    "Mean",
    "Not",
    "Or",
    "Predicate",
    "PrivateTable",
    "Quantile",
    "Query",
    "Quote",
    "Row",
    "StandardDeviation",
    "Sum",
    "TableCheck",
    "Variance",
    "check_table",
    "query_from_json",
    "query_to_json",
    "register_table",
]
