"""Which measures is an aggregate computed from?"""

from __future__ import annotations

from typing import TypeAlias

from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.measures import Bins, Grid, Measure, Present, Rows, Squares, Total, Units
from tacit.queries.quantiles import bins_of
from tacit.queries.query import (
    Aggregate,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    StandardDeviation,
    Sum,
    Variance,
)

Need: TypeAlias = tuple[Measure, Quantile | None]
"""A measure, and the quantile that uses it for its choice."""


def needs_of(item: Aggregate, policy: Policy) -> list[Need]:
    """The measures that an aggregate is computed from."""
    match item:
        case Count(None):
            return [(Rows(), None)]
        case Count(str(column)):
            return [(Present(column), None)]
        case CountUnits():
            return [(count_of_units(policy), None)]
        case Sum(column):
            return [(centred(column, policy, centre=0), None)]
        case Mean(column):
            return [(centred(column, policy), None), (Present(column), None)]
        case Variance(column) | StandardDeviation(column):
            total = centred(column, policy)
            squares = Squares(column, total.grid, total.centre)
            return [(squares, None), (total, None), (Present(column), None)]
        case Histogram(column, edges):
            return [(bins_between(column, edges), None)]
        case Quantile():
            return [(bins_of(item, policy), item)]
    raise InvalidInput(f"unknown aggregate {item!r}.")


def count_of_units(policy: Policy) -> Measure:
    """The number of units: that of rows, where a row is a unit."""
    return Rows() if policy.unit_column is None else Units()


def centred(column: str, policy: Policy, *, centre: int | None = None) -> Total:
    """The sum of the distances from ``centre``, by default the middle of the bounds, where the sensitivity to
    one value is smallest."""
    grid = Grid.of(column, policy.columns[column])
    return Total(column, grid, (grid.low + grid.high) // 2 if centre is None else centre)


def bins_between(column: str, edges: tuple[float, ...]) -> Bins:
    """The bins of a histogram: bin 0 and the last one are outside; the last edge is inside."""
    return Bins(column, tuple(map(float, edges)), (False,) * (len(edges) - 1) + (True,))
