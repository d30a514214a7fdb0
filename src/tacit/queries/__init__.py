"""Private queries over tables: counts, sums, means, quantiles, survival curves and groups, in Python and SQL.

A ``query`` (or its ``sql``) becomes a ``plan``: integer sums with their noise (``measures``), and the SQL
that an engine runs (``statements``, ``engines``). A ``private_table``, registered by the curator after a
``table_check``, charges the ledger, adds the noise and returns values with intervals.
"""

from tacit.queries.private_table import Answer, PrivateTable
from tacit.queries.query import (
    And,
    Cdf,
    Compare,
    Count,
    CountUnits,
    CumulativeHazard,
    Histogram,
    In,
    IsNull,
    Mean,
    Not,
    Or,
    Quantile,
    Quantiles,
    Query,
    RestrictedMean,
    StandardDeviation,
    Sum,
    Survival,
    Variance,
)
from tacit.queries.table_check import check_table, register_table

__all__ = [
    "And",
    "Answer",
    "Cdf",
    "Compare",
    "Count",
    "CountUnits",
    "CumulativeHazard",
    "Histogram",
    "In",
    "IsNull",
    "Mean",
    "Not",
    "Or",
    "PrivateTable",
    "Quantile",
    "Quantiles",
    "Query",
    "RestrictedMean",
    "StandardDeviation",
    "Sum",
    "Survival",
    "Variance",
    "check_table",
    "register_table",
]
