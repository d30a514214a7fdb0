"""Private queries over tables: counts, sums, means, quantiles, groups, in Python and in SQL.

* ``private_table``: a private table answers questions and charges the ledger.
* ``query``: what a user can ask, as frozen data, with ``predicates`` and checked ``fields``.
* ``canonical``: the form of a query in JSON.
* ``sql``: a closed subset of SQL, read into a ``Query``.
* ``checking``: whether a query fits the policy.
* ``plan``: the integers to measure, the noise for each, and the event that is charged.
* ``needs``: the measures that an aggregate is computed from.
* ``measures``: what is measured, and its sensitivity to one unit.
* ``quantiles``: quantiles by the exponential mechanism.
* ``thresholds``: groups whose names are not public.
* ``pricing``: from a share of the budget to the scale of the noise.
* ``statements``: the SQL that an engine runs, from ``expressions`` over one row.
* ``contribution_bounding``: which rows of a unit count.
* ``engines``, ``dialects``: DuckDB, PostgreSQL, Spark.
* ``release``: adds the noise; ``noise``: draws it, and gives its intervals.
* ``estimate``: from noisy integers to values with intervals.
* ``answer``: what an answer contains and prints.
* ``table_check``: the curator's check of a table, which must precede all questions.
"""

from tacit.queries.answer import Answer, Row
from tacit.queries.canonical import query_from_json, query_to_json
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
