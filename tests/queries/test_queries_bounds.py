"""Bounds on the effect of one unit on a measure, and measures that are refused."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_oracles import policy_of

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Column, Ledger, Policy
from tacit.queries.measures import Grid
from tacit.queries.plan import Compiled, compile_query
from tacit.queries.private_table import PrivateTable
from tacit.queries.query import (
    Aggregate,
    Compare,
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
from tacit.queries.table_check import register_table

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100, step=0.5),
    "kids": Column(kind="integer", lower=-1, upper=4, values=(0, 1, 2)),
    "ward": Column(kind="category", values=("a", "b")),
}


def policy(adjacency: str = "add-remove", **fields: Any) -> Policy:
    return policy_of(COLUMNS, adjacency, public=4, **{"unit_column": "pid"} | fields)


def compiled_of(query: Query, rules: Policy) -> Compiled:
    return compile_query(query, rules, epsilon=1.0)


def bound_of(query: Query, rules: Policy) -> Any:
    return compiled_of(query, rules).releases[0].bound


def test_sensitivities_of_single_aggregates() -> None:
    one, three = policy(), policy(rows_per_unit=3, groups_per_unit=2)
    assert bound_of(Query((Count(),)), one).whole == 1
    assert bound_of(Query((Count(),)), three).whole == 3
    assert bound_of(Query((Count(),), by=("ward",)), three).whole == 3, "rows count once, in whatever group"
    assert bound_of(Query((CountUnits(),)), three).whole == 1
    assert bound_of(Query((CountUnits(),), by=("ward",)), three).whole == 2
    assert bound_of(Query((CountUnits(),), by=("ward",)), three).squared == 2, "the root of the groups in L2"
    assert bound_of(Query((Sum("age"),)), one).whole == 200
    assert bound_of(Query((Sum("kids"),)), three).whole == 12
    assert bound_of(Query((Mean("age"),)), one).whole == 200, "from both ends together"
    assert bound_of(Query((Histogram("age", (0, 1)),)), three).whole == 3


def test_under_replace_one_a_lone_number_is_as_sharp_as_it_can_be() -> None:
    rules = policy("replace-one", unit_column=None, public_records=100)
    where = Compare("age", ">", 50)
    count = bound_of(Query((Count(),), where=where), rules)
    assert (count.whole, count.factor) == (1, 2), "2 x count moves by 2 = twice 1"
    even = bound_of(Query((Sum("age"),)), rules)
    assert (even.whole, even.factor) == (100, 1), "the sum moves by 200 = twice 100"
    assert bound_of(Query((Count(),), by=("ward",)), rules).factor == 1, "from one group to another: 2"
    price = compile_query(Query((Count(),), where=where), rules, epsilon=0.5)
    assert price.releases[0].scale == 4, (
        "2 x 1 / 0.5, on the doubled count: as much noise as under add-remove"
    )


@pytest.mark.parametrize(("lower", "upper"), [(10, 21), (-21, -10)])
def test_a_missing_value_counts_as_0_also_where_0_is_out_of_bounds(lower: float, upper: float) -> None:
    stay = {"stay": Column(kind="integer", lower=lower, upper=upper)}
    rules = policy("replace-one", unit_column=None, public_records=100, columns=stay)
    limit = bound_of(Query((Sum("stay"),)), rules)
    assert (limit.whole, limit.factor) == (21, 2), "from 21 to nothing, not from 21 to 10"
    assert bound_of(Query((Sum("stay"),)), policy(columns=stay)).whole == 21


def test_the_number_of_all_records_is_public_under_replace_one() -> None:
    rows_are_units = policy("replace-one", unit_column=None, public_records=100)
    assert compiled_of(Query((Count(),)), rows_are_units).releases[0].law == "public"
    assert compiled_of(Query((CountUnits(),)), policy("replace-one")).releases[0].law == "public"
    assert compiled_of(Query((Count(),)), policy("replace-one")).releases[0].law == "laplace", (
        "rows of a unit"
    )
    assert compiled_of(Query((Count("age"),)), rows_are_units).releases[0].law == "laplace", "who has no age"
    assert compiled_of(Query((Count(),), by=("ward",)), rows_are_units).releases[0].law == "laplace"
    assert compiled_of(Query((Count(),)), policy(unit_column=None)).releases[0].law == "laplace", "add-remove"


def test_bounds_come_from_the_policy_or_not_at_all() -> None:
    bare = policy(columns={"age": Column(kind="number")})
    for item in (Sum("age"), Mean("age"), Variance("age"), Quantile("age", 0.5)):
        with pytest.raises(InvalidInput, match="bounds"):
            compiled_of(Query((item,)), bare)
    assert compiled_of(Query((Quantile("age", 0.5, candidates=(1, 2)), Count("age"))), bare).releases


# --- what cannot be counted -------------------------------------------------------------------------------

WIDE = {"x": Column(kind="number", lower=0, upper=1, step=2.0**-45)}


def test_what_could_overflow_is_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="64 bits"):
        compiled_of(Query((Sum("x"),)), policy(columns=WIDE))
    compiled_of(Query((Sum("x"),)), policy(columns=WIDE, largest_table=1000))
    with pytest.raises(InvalidInput, match="squares"):
        compiled_of(Query((Variance("x"),)), policy(columns=WIDE, largest_table=1000))


GRIDS = {
    "too fine for doubles": Column(kind="number", lower=1e9, upper=1e9 + 1, step=1e-9),
    "a single cell": Column(kind="number", lower=10, upper=10.2, step=1.0),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="step"):
        compiled_of(Query((Sum("x"),)), policy(columns={"x": GRIDS[name]}))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(1e-3, 10), st.floats(allow_nan=False))
def test_a_cell_never_leaves_its_grid(lower: float, width: float, step: float, value: float) -> None:
    try:
        grid = Grid(lower, lower + width, step)
    except InvalidInput:
        return
    assert grid.low <= grid.cell(value) <= grid.high


# --- bounds beyond which doubles overflow -----------------------------------------------------------------

AGGREGATES = (Sum("x"), Mean("x"), Variance("x"), StandardDeviation("x"), Quantile("x", 0.5))


@pytest.mark.parametrize("bounds", [(0, 1e200), (1e300, 2e300), (0, 5e-324), (0, 1e-310), (0, 1e-160)])
@pytest.mark.parametrize("item", AGGREGATES, ids=lambda item: type(item).__name__)
def test_bounds_that_doubles_cannot_sum_are_refused_before_a_charge(
    item: Aggregate, bounds: tuple[float, float]
) -> None:
    rules = policy_of({"x": Column(kind="number", lower=bounds[0], upper=bounds[1])})
    with pytest.raises(InvalidInput, match="are out of range"):
        compiled_of(Query((item,)), rules)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("bounds", [(-1e100, 1e100), (0, 1e-92)])
@pytest.mark.parametrize("item", AGGREGATES, ids=lambda item: type(item).__name__)
def test_the_widest_and_narrowest_bounds_have_answers(item: Aggregate, bounds: tuple[float, float]) -> None:
    """The smallest epsilon has the largest noise, so this is the largest number that is computed."""
    frame = pd.DataFrame({"x": [*bounds, sum(bounds) / 2]})
    ledger = Ledger.create("sqlite://")
    rules = policy_of({"x": Column(kind="number", lower=bounds[0], upper=bounds[1])}, unit="row")
    ledger.open_dataset("d", rules)
    register_table(frame, ledger=ledger, dataset="d")
    table = PrivateTable(frame, ledger=ledger, dataset="d")
    answer = table.ask(Query((item,)), epsilon=1e-9)
    assert math.isfinite(answer.value())
