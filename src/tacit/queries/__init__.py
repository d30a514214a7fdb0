"""Private queries over tables: counts, sums, means, quantiles, survival, groups, in Python and in SQL.

A ``query``, perhaps read from ``sql``, becomes a ``plan``: integers to sum and amounts of noise
(``measures``), and the SQL that an engine runs (``statements``, ``engines``). A ``private_table`` charges
the ledger, after the curator's ``table_check``, adds the plan's noise, and makes values with intervals.
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
