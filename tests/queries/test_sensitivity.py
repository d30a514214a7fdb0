"""The integers before noise: what they are, and how far one unit moves them.

The oracle computes the integers of rows in plain Python from the definitions.  Bounding is checked by what it
promises: whatever a unit's rows are, taking them away or exchanging them moves the integers that DuckDB
returns by at most the stated sensitivity.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency
from tacit.ledger import Column, Policy, PureBudget
from tacit.queries.algebra import (
    OPERATORS,
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
from tacit.queries.compiling import Compiled, compile_query
from tacit.queries.engines.duckdb import DuckDBEngine
from tacit.queries.measures import Bins, Grid, Measure, Present, Regular, Rows, Squares, Total, Units
from tacit.queries.releasing import RawTable, collect

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100, step=0.5),
    "cost": Column(kind="number", lower=-7, upper=3),
    "stay": Column(kind="integer", lower=10, upper=21),
    "kids": Column(kind="integer", lower=-1, upper=4, keys=(0, 1, 2)),
    "ward": Column(kind="category", keys=("a", "b", "ö'x")),
    "city": Column(kind="category"),
    "well": Column(kind="boolean"),
}
SCHEMA = pa.schema(
    [
        ("pid", pa.int64()),
        ("age", pa.float64()),
        ("cost", pa.float64()),
        ("stay", pa.int64()),
        ("kids", pa.int64()),
        ("ward", pa.string()),
        ("city", pa.string()),
        ("well", pa.bool_()),
    ]
)
EVERYTHING = (
    Count(),
    Count("age"),
    CountUnits(),
    Sum("cost"),
    Sum("stay"),
    Mean("age"),
    Variance("cost"),
    StandardDeviation("kids"),
    Histogram("age", (0.0, 10.0, 50.0, 100.0)),
    Quantile("age", 0.25),
    Quantile("cost", 0.5, candidates=(-7, -1.5, 0, 3)),
    Quantile("kids", 1.0),
)

numbers = st.sampled_from(
    [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 0.25, 10.0, 50.0, 99.9, 1e300, -3.3]
)
rows = st.fixed_dictionaries(
    {
        "pid": st.none() | st.integers(1, 4),
        "age": numbers,
        "cost": numbers,
        "stay": st.none() | st.integers(0, 30),
        "kids": st.none() | st.integers(-3, 6),
        "ward": st.sampled_from([None, "a", "b", "ö'x", "unknown"]),
        "city": st.sampled_from([None, "x", "y", "NaN", ""]),
        "well": st.sampled_from([None, True, False]),
    }
)
tables = st.lists(rows, max_size=14)
leaves = st.one_of(
    st.builds(Compare, st.sampled_from(["age", "cost", "kids"]), st.sampled_from(OPERATORS),
              st.sampled_from([0, 0.25, 10, -3.3, 4])),
    st.builds(Compare, st.sampled_from(["ward", "city"]), st.sampled_from(["=", "!="]),
              st.sampled_from(["a", "ö'x", "", "'; DROP TABLE tacit_rows; --"])),
    st.builds(Compare, st.just("well"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(IsNull, st.sampled_from(list(COLUMNS))),
    st.builds(In, st.just("age"), st.just((0, 10.0, 99.9))),
    st.builds(In, st.just("ward"), st.just(("a", "unknown"))),
)  # fmt: skip
predicates: st.SearchStrategy[Predicate] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(And, st.tuples(inner, inner)),
        st.builds(Or, st.tuples(inner, inner)),
        st.builds(Not, inner),
    ),
    max_leaves=4,
)
queries = st.builds(
    Query,
    st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=3, unique=True).map(tuple),
    where=st.none() | predicates,
    by=st.sampled_from([(), ("ward",), ("well", "kids"), ("city",), ("ward", "city")]),
)


def policy(adjacency: str = "add-remove", **fields: Any) -> Policy:
    public = {"public_records": 4} if adjacency == "replace-one" else {}
    given_fields = {"columns": COLUMNS, "unit_column": "pid"} | public | fields
    return Policy(unit="patient", adjacency=adjacency, budget=PureBudget(1e6), **given_fields)


def compiled_of(query: Query, rules: Policy) -> Compiled:
    return compile_query(query, rules, epsilon=1.0, delta=0.01 if "city" in query.by else None)


def integers(compiled: Compiled, table: list[dict[str, Any]]) -> RawTable:
    engine = DuckDBEngine(pa.Table.from_pylist(table, schema=SCHEMA), compiled.policy)
    raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
    engine.close()
    return raw


# --- the oracle ------------------------------------------------------------------------------------------


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def truth(predicate: Predicate, row: dict[str, Any]) -> bool:
    match predicate:
        case And(parts):
            return all(truth(part, row) for part in parts)
        case Or(parts):
            return any(truth(part, row) for part in parts)
        case Not(part):
            return not truth(part, row)
        case IsNull(column):
            return missing(row[column])
        case In(column, wanted):
            return not missing(row[column]) and row[column] in wanted
        case Compare(column, op, value):
            x = row[column]
            if missing(x):
                return False
            return bool(
                {"=": x == value, "!=": x != value}[op]
                if op in ("=", "!=")
                else {"<": x < value, "<=": x <= value, ">": x > value, ">=": x >= value}[op]
            )
    raise AssertionError(predicate)


def cell(grid: Grid, x: float) -> int:
    clipped = min(max(x, grid.lower), grid.upper)
    return math.floor(clipped / grid.step + 0.5)


def integer_of(measure: Measure, row: dict[str, Any]) -> int:
    match measure:
        case Rows():
            return 1
        case Present(column):
            return int(not missing(row[column]))
        case Total(column, grid, centre):
            return 0 if missing(row[column]) else cell(grid, row[column]) - centre
        case Squares(column, grid, centre):
            if missing(row[column]):
                return 0
            square = (cell(grid, row[column]) - centre) ** 2
            return math.floor(square / 2**measure.shift + 0.5) if measure.shift else square
    raise AssertionError(measure)


def bin_of(measure: Bins | Regular, x: float) -> int:
    if isinstance(measure, Regular):
        grid = measure.grid
        quotient, rest = divmod(cell(grid, x) - cell(grid, grid.lower), measure.stride)
        return 2 * quotient + (2 if rest else 1)
    return sum(x > edge or (x == edge and not closed)
               for edge, closed in zip(measure.edges, measure.closed, strict=True))  # fmt: skip


def by_hand(compiled: Compiled, table: list[dict[str, Any]]) -> RawTable:
    """The integers where every row counts: one row is one unit."""
    query, rules = compiled.query, compiled.policy
    kept = [row for row in table if query.where is None or truth(query.where, row)]
    for column in query.by:
        keys = (True, False) if column == "well" else rules.columns[column].keys
        kept = [row for row in kept if row[column] is not None and (keys is None or row[column] in keys)]
    raw: RawTable = {}
    for statement in compiled.statements:
        for measure in statement.measures:
            cells: dict[Any, list[int]] = {}
            for row in kept:
                key = tuple(row[column] for column in query.by)
                if isinstance(measure, Bins | Regular):
                    if not missing(row[measure.column]):
                        width = len(measure.edges) + 1 if isinstance(measure, Bins) else 3000
                        cells.setdefault(key, [0] * width)[bin_of(measure, row[measure.column])] += 1
                else:
                    cells.setdefault(key, [0])[0] += integer_of(measure, row)
            raw[measure] = cells
    return raw


def nonzero(raw: RawTable) -> dict[Any, int]:
    return {
        (measure, key, place): count
        for measure, cells in raw.items()
        for key, counts in cells.items()
        for place, count in enumerate(counts)
        if count
    }


quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(queries, tables)
def test_integers_are_what_their_definition_says(query: Query, table: list[dict[str, Any]]) -> None:
    rules = policy(unit_column=None)
    compiled = compiled_of(query, rules)
    assert nonzero(integers(compiled, table)) == nonzero(by_hand(compiled, table))


EDGES = [
    None,
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.24,
    0.25,
    10.0,
    49.9,
    50.0,
    100.0,
    1e300,
    -7.0,
    -1.5,
    3.0,
]
LEAVES = [
    *(Compare("age", op, 10) for op in OPERATORS),
    *(Compare("ward", op, "a") for op in ("=", "!=")),
    *(Compare("well", op, True) for op in ("=", "!=")),
    In("age", (10, 50)),
    In("ward", ("a", "b")),
    IsNull("age"),
    IsNull("ward"),
]


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("place", range(len(LEAVES)))
def test_every_comparison_meets_every_special_value(place: int, negated: bool) -> None:
    table = [
        {**dict.fromkeys(COLUMNS), "pid": 1, "age": x, "cost": x, "ward": ward, "well": ward and ward == "a"}
        for x in EDGES
        for ward in (None, "a", "b")
    ]
    where = Not(LEAVES[place]) if negated else LEAVES[place]
    compiled = compiled_of(Query(EVERYTHING, where=where), policy(unit_column=None))
    assert nonzero(integers(compiled, table)) == nonzero(by_hand(compiled, table))


# --- one unit more or less -------------------------------------------------------------------------------


def moves(compiled: Compiled, one: RawTable, other: RawTable) -> None:
    """The difference of two tables of integers is within what every release states, doubled as it says."""
    factor = 2 if compiled.policy.relation is Adjacency.REPLACE_ONE else 1
    for release in compiled.releases:
        if release.law == "public":
            continue
        first, second = (nonzero({release.measure: raw[release.measure]}) for raw in (one, other))
        gaps = [abs(first.get(key, 0) - second.get(key, 0)) for key in first.keys() | second.keys()]
        gaps = [release.bound.factor * gap for gap in gaps if gap]
        limit = release.bound
        assert sum(gaps) <= factor * limit.whole
        assert max(gaps, default=0) <= factor * limit.each
        assert len(gaps) <= factor * limit.places or isinstance(release.measure, Bins | Regular)
        assert sum(gap**2 for gap in gaps) <= factor**2 * limit.squared
        if release.choice is not None:
            moved = 0
            keys = one[release.measure].keys() | other[release.measure].keys()
            for key in keys:
                width = [0] * (2 * len(release.choice.values) + 1)
                losses = [release.choice.losses(raw[release.measure].get(key, width)) for raw in (one, other)]
                moved += max(abs(a - b) for a, b in zip(*losses, strict=True))
            assert moved <= release.choice.sensitivity


limits = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(
    lambda t: {"rows_per_unit": t[0], "groups_per_unit": min(t)}
)


@quick
@given(queries, tables, limits, st.integers(1, 4))
def test_taking_a_unit_away_moves_integers_by_the_sensitivity(
    query: Query, table: list[dict[str, Any]], limit: dict[str, Any], unit: int
) -> None:
    compiled = compiled_of(query, policy(**limit))
    without = [row for row in table if row["pid"] != unit]
    moves(compiled, integers(compiled, table), integers(compiled, without))


@quick
@given(queries, tables, limits, st.integers(1, 4), st.lists(rows, max_size=4))
def test_exchanging_a_unit_moves_integers_by_twice_the_sensitivity(
    query: Query, table: list[dict[str, Any]], limit: dict[str, Any], unit: int, others: list[dict[str, Any]]
) -> None:
    compiled = compiled_of(query, policy("replace-one", **limit))
    exchanged = [row for row in table if row["pid"] != unit] + [row | {"pid": unit} for row in others]
    moves(compiled, integers(compiled, table), integers(compiled, exchanged))


@quick
@given(queries, tables, rows, rows)
@example(Query(EVERYTHING), [], {**dict.fromkeys(COLUMNS), "pid": 1}, {"pid": 1, "age": 1e300, "cost": -1e300,
         "kids": 9, "stay": 30, "ward": "a", "city": "x", "well": True})  # fmt: skip
def test_exchanging_a_row_where_a_row_is_a_unit(
    query: Query, table: list[dict[str, Any]], one: dict[str, Any], other: dict[str, Any]
) -> None:
    rules = policy("replace-one", unit_column=None, public_records=100)
    compiled = compiled_of(query, rules)
    moves(compiled, integers(compiled, [*table, one]), integers(compiled, [*table, other]))


def test_the_check_sees_a_sensitivity_that_is_too_small() -> None:
    compiled = compiled_of(Query((Sum("cost"),)), policy(rows_per_unit=1))
    row = {**dict.fromkeys(COLUMNS), "pid": 1, "cost": -7.0}
    two = compiled_of(Query((Sum("cost"),)), policy(rows_per_unit=2))
    with pytest.raises(AssertionError):
        moves(compiled, integers(two, [row, row]), integers(two, []))


def test_rows_of_one_unit_do_not_push_out_those_of_another() -> None:
    """The rule sees a unit's own rows only: what is kept of one does not hang on the others."""
    compiled = compiled_of(Query((Sum("cost"),), by=("ward",)), policy(rows_per_unit=2, groups_per_unit=1))
    table = [{**dict.fromkeys(COLUMNS), "pid": pid, "cost": -pid / 2.0, "ward": ward}
             for pid in range(1, 5) for ward in "aabb"]  # fmt: skip
    whole: Counter[Any] = Counter()
    for pid in range(1, 5):
        whole.update(nonzero(integers(compiled, [row for row in table if row["pid"] == pid])))
    assert nonzero(integers(compiled, table)) == dict(whole)
    assert integers(compiled, table) == integers(compiled, table[::-1])


def test_a_unit_is_counted_in_so_many_groups_and_rows() -> None:
    table = [
        {**dict.fromkeys(COLUMNS), "pid": pid, "ward": ward}
        for pid in (1, 2)
        for ward in ("a", "b", "ö'x") * 2
    ]
    found = {}
    for rows_kept, groups in ((6, 1), (6, 2), (3, 3), (1, 1), (20, 20)):
        rules = policy(rows_per_unit=rows_kept, groups_per_unit=groups)
        alone = [row for row in table if row["pid"] == 1]
        counts = nonzero(integers(compiled_of(Query((Count(),), by=("ward",)), rules), alone))
        found[rows_kept, groups] = (sum(counts.values()), len(counts))
    rows_in_groups = {key: value for key, value in found.items() if key != (3, 3)}
    assert rows_in_groups == {(6, 1): (2, 1), (6, 2): (4, 2), (1, 1): (1, 1), (20, 20): (6, 3)}
    assert found[3, 3][0] == 3


def test_every_row_of_a_unit_has_the_same_chance() -> None:
    """Three rows in ward a and one in ward b: over many units a is kept three times as often."""
    compiled = compiled_of(Query((Count(),), by=("ward",)), policy(rows_per_unit=1))
    table = [{**dict.fromkeys(COLUMNS), "pid": pid, "ward": ward} for pid in range(2000) for ward in "aaab"]
    counts = nonzero(integers(compiled, table))
    kept = {key[0]: count for (_, key, _), count in counts.items()}
    assert kept["a"] + kept["b"] == 2000
    assert abs(kept["a"] - 1500) < 5 * math.sqrt(2000 * 0.75 * 0.25)


NOBODY = {"null": None, "nan": math.nan}


@pytest.mark.parametrize("name", NOBODY)
def test_a_row_of_nobody_is_dropped(name: str) -> None:
    rules = policy(columns={}, rows_per_unit=5)
    compiled = compiled_of(Query((Count(), CountUnits())), rules)
    frame = pd.DataFrame({"pid": pd.Series([1.0, 1.0, NOBODY[name], NOBODY[name]], dtype=object)}).astype(
        float
    )
    table = pa.table({"pid": pa.array(frame["pid"], from_pandas=False)}) if name == "nan" else frame
    engine = DuckDBEngine(table, rules)
    raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
    assert raw[Rows()] == {(): [2]}
    assert raw[Units()] == {(): [1]}


# --- what the bounds are ---------------------------------------------------------------------------------


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
    assert bound_of(Query((Mean("age"),)), one).whole == 100, "from the middle: half"
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


WIDE = {"x": Column(kind="number", lower=0, upper=1, step=2.0**-45)}


def test_what_could_overflow_is_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="64 bits"):
        compiled_of(Query((Sum("x"),)), policy(columns=WIDE))
    compiled_of(Query((Sum("x"),)), policy(columns=WIDE, largest_table=1000))
    with pytest.raises(InvalidInput, match="squares"):
        compiled_of(Query((Variance("x"),)), policy(columns=WIDE, largest_table=1000))


def test_a_sum_beyond_the_largest_table_is_cut() -> None:
    compiled = compiled_of(Query((Sum("age"), Count())), policy(unit_column=None, largest_table=2))
    row = {**dict.fromkeys(COLUMNS), "age": 100.0}
    raw = integers(compiled, [row | {"pid": 1}] * 5)
    assert sorted(raw.values(), key=str) == [{(): [2]}, {(): [400]}]


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
