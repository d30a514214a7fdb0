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
from tacit.queries.answers import Answer, Row
from tacit.queries.canonical import query_from_json, query_to_json
from tacit.queries.door import PrivateTable, Quote
from tacit.queries.estimating import Estimate
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
