"""Private queries over tables: counts, sums, means, quantiles, groups, in Python and in SQL."""

from tacit.queries.algebra import (
    Aggregate,
    And,
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    Not,
    Or,
    Predicate,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.canonical import query_from_json, query_to_json

__all__ = [
    "Aggregate",
    "And",
    "Compare",
    "Count",
    "CountUnits",
    "Histogram",
    "In",
    "IsNull",
    "Mean",
    "Not",
    "Or",
    "Predicate",
    "Quantile",
    "Query",
    "StandardDeviation",
    "Sum",
    "Variance",
    "query_from_json",
    "query_to_json",
]
