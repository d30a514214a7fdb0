"""The integers before noise are what their definition says, and those of the rows that count.

The oracle computes them in plain Python, row by row.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from query_oracles import integers, joined, missing, policy_of, truth

from tacit.ledger import Column, Policy
from tacit.queries.engines import DuckDBEngine
from tacit.queries.measures import Bins, Grid, Measure, Pair, Present, Regular, Rows, Squares, Total, Units
from tacit.queries.plan import Compiled, RawTable, collect, compile_query
from tacit.queries.query import (
    OPERATORS,
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    Not,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100, step=0.5),
    "cost": Column(kind="number", lower=-7, upper=3),
    "stay": Column(kind="integer", lower=10, upper=21),
    "kids": Column(kind="integer", lower=-1, upper=4, values=(0, 1, 2)),
    "ward": Column(kind="category", values=("a", "b", "ö'x")),
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
predicates = joined(leaves, 4)
queries = st.builds(
    Query,
    st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=3, unique=True).map(tuple),
    where=st.none() | predicates,
    by=st.sampled_from([(), ("ward",), ("well", "kids"), ("city",), ("ward", "city")]),
)


def policy(adjacency: str = "add-remove", **fields: Any) -> Policy:
    return policy_of(COLUMNS, adjacency, public=4, **{"unit_column": "pid"} | fields)


def compiled_of(query: Query, rules: Policy) -> Compiled:
    return compile_query(query, rules, epsilon=1.0, delta=0.01 if "city" in query.by else None)


# --- the oracle ------------------------------------------------------------------------------------------


def cell(grid: Grid, x: float) -> int:
    clipped = min(max(x, grid.lower), grid.upper)
    return math.floor(clipped / grid.step + 0.5)


def integer_of(measure: Measure, k: int | None) -> int:
    match measure:
        case Rows():
            return 1
        case Present():
            return int(k is not None)
        case Total(_, _, centre):
            return 0 if k is None else k - centre
        case Squares(_, _, centre):
            square = 0 if k is None else (k - centre) ** 2
            return math.floor(square / 2**measure.shift + 0.5) if measure.shift else square
    raise AssertionError(measure)


def bin_of(measure: Bins | Regular, x: float) -> int:
    if isinstance(measure, Regular):
        grid = measure.grid
        candidates = range(cell(grid, grid.lower), cell(grid, grid.upper) + 1, measure.stride)
        return max(range(len(candidates)), key=lambda i: (-abs(candidates[i] - cell(grid, x)), i))
    return sum(x > edge or (x == edge and not closed)
               for edge, closed in zip(measure.edges, measure.closed, strict=True))  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """A row as a statement sees it: its unit, the keys of its group, the integers of its values, its bin."""

    unit: int
    group: tuple[Any, ...]
    values: tuple[int | None, ...]
    bin: int | None

    @property
    def order(self) -> list[tuple[bool, Any]]:
        """By keys, bin and values; texts by their bytes, what is missing last."""
        parts = [*self.group, *([] if self.bin is None else [self.bin]), *self.values]
        plain = [part.encode() if isinstance(part, str) else part for part in parts]
        return [(part is None, 0 if part is None else part) for part in plain]


def that_count(rows: list[Kept], rules: Policy, grouped: bool) -> list[Kept]:
    """The rows of one unit that count: those of its first groups, and of these as many as may be."""
    number = rules.groups_per_unit or rules.rows_per_unit
    if grouped and number < rules.rows_per_unit:
        groups = {
            row.group: (md5("group", str(row.unit), *map(text_of, row.group)), row.order) for row in rows
        }
        first = sorted(groups, key=lambda group: groups[group])[:number]
        rows = [row for row in rows if row.group in first]
    digits = md5("rows", str(rows[0].unit).strip("-.0"))[:6]
    start = sum(int(digit, 16) * 16**place for place, digit in enumerate(digits))
    turns = [(place * rules.rows_per_unit + start) // len(rows) for place in range(len(rows) + 1)]
    ordered = sorted(rows, key=lambda row: row.order)
    few = len(rows) <= rules.rows_per_unit
    return [
        row for row, before, after in zip(ordered, turns, turns[1:], strict=False) if few or after > before
    ]


def md5(*parts: str) -> str:
    return hashlib.md5("|".join(parts).encode(), usedforsecurity=False).hexdigest()


def text_of(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def by_hand(compiled: Compiled, table: list[dict[str, Any]]) -> RawTable:
    """The integers of the rows that count, statement by statement."""
    query, rules = compiled.query, compiled.policy
    rows = [row for row in table if query.where is None or truth(query.where, row)]
    for column in query.by:
        keys = (True, False) if column == "well" else rules.columns[column].values
        rows = [row for row in rows if row[column] is not None and (keys is None or row[column] in keys)]
    if rules.unit_column is not None:
        rows = [row for row in rows if row["pid"] is not None]
    raw: RawTable = {}
    for statement in compiled.statements:
        seen = [kept for row in rows for kept in as_seen(statement.measures, query, row)]
        if rules.unit_column is not None:
            units: dict[int, list[Kept]] = {}
            for kept in seen:
                units.setdefault(kept.unit, []).append(kept)
            seen = [kept for own in units.values() for kept in that_count(own, rules, bool(query.by))]
        for measure in statement.measures:
            raw[measure] = summed(measure, statement.measures, seen)
        for release in compiled.releases:
            if isinstance(release.measure, Pair) and release.measure.parts[0] in statement.measures:
                raw[release.measure] = paired(release.measure, statement.measures, seen)
    return raw


def paired(pair: Pair, measures: Sequence[Measure], seen: list[Kept]) -> dict[Any, list[int]]:
    """A sum and a number of values, as distances from both bounds or as their sum and difference."""
    place = columns_of(measures).index(pair.total.column)
    low, high = pair.total.grid.low, pair.total.grid.high
    cells: dict[Any, list[int]] = {}
    for row in seen:
        k, both = row.values[place], cells.setdefault(row.group, [0, 0])
        if k is not None:
            moves = (2 * k - low - high, high - low) if pair.turned else (k - low, k - high)
            cells[row.group] = [have + move for have, move in zip(both, moves, strict=True)]
    return cells


def columns_of(measures: Sequence[Measure]) -> list[str]:
    return list(dict.fromkeys(m.column for m in measures if isinstance(m, Present | Total | Squares)))


def as_seen(measures: Sequence[Measure], query: Query, row: dict[str, Any]) -> list[Kept]:
    grids = {m.column: m.grid for m in measures if isinstance(m, Total | Squares)}
    values = [
        None if missing(row[column]) else cell(grids[column], row[column]) if column in grids else 1
        for column in columns_of(measures)
    ]
    (first, *_) = measures
    group = tuple(row[column] for column in query.by)
    if not isinstance(first, Bins | Regular):
        return [Kept(row["pid"], group, tuple(values), None)]
    x = row[first.column]
    return [] if missing(x) else [Kept(row["pid"], group, (), bin_of(first, x))]


def summed(measure: Measure, measures: Sequence[Measure], seen: list[Kept]) -> dict[Any, list[int]]:
    cells: dict[Any, list[int]] = {}
    if isinstance(measure, Units):
        pairs = {(row.group, row.unit) for row in seen}
        return {group: [sum(pair[0] == group for pair in pairs)] for group, _ in pairs}
    for row in seen:
        if isinstance(measure, Bins | Regular):
            assert row.bin is not None
            width = len(measure.edges) + 1 if isinstance(measure, Bins) else 3000
            cells.setdefault(row.group, [0] * width)[row.bin] += 1
        else:
            k = None
            if isinstance(measure, Present | Total | Squares):
                k = row.values[columns_of(measures).index(measure.column)]
            cells.setdefault(row.group, [0])[0] += integer_of(measure, k)
    return cells


def nonzero(raw: RawTable) -> dict[Any, int]:
    return {
        (measure, key, place): count
        for measure, cells in raw.items()
        for key, counts in cells.items()
        for place, count in enumerate(counts)
        if count
    }


limits = st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.untraced
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queries, tables, limits, st.sampled_from(["add-remove", "replace-one"]))
def test_integers_are_what_their_definition_says(
    query: Query, table: list[dict[str, Any]], limit: tuple[int, int] | None, adjacency: str
) -> None:
    """All rows count, or a limited number of a unit's rows in a limited number of groups."""
    fields = {"rows_per_unit": limit[0], "groups_per_unit": min(limit)} if limit else {"unit_column": None}
    compiled = compiled_of(query, policy(adjacency, **fields))
    assert nonzero(integers(compiled, table, SCHEMA)) == nonzero(by_hand(compiled, table))


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


SPECIAL = [
    {**dict.fromkeys(COLUMNS), "pid": 1, "age": x, "cost": x, "ward": ward, "well": ward and ward == "a"}
    for x in EDGES
    for ward in (None, "a", "b")
]


def test_every_aggregate_meets_every_special_value() -> None:
    compiled = compiled_of(Query(EVERYTHING), policy(unit_column=None))
    assert nonzero(integers(compiled, SPECIAL, SCHEMA)) == nonzero(by_hand(compiled, SPECIAL))


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("place", range(len(LEAVES)))
def test_every_comparison_meets_every_special_value(place: int, negated: bool) -> None:
    where = Not(LEAVES[place]) if negated else LEAVES[place]
    compiled = compiled_of(Query((Count(), Sum("cost")), where=where), policy(unit_column=None))
    assert nonzero(integers(compiled, SPECIAL, SCHEMA)) == nonzero(by_hand(compiled, SPECIAL))


# --- which rows of a unit count ---------------------------------------------------------------------------


def test_rows_of_one_unit_do_not_push_out_those_of_another() -> None:
    """The rule reads only the rows of one unit: the choice does not depend on other units."""
    compiled = compiled_of(Query((Sum("cost"),), by=("ward",)), policy(rows_per_unit=2, groups_per_unit=1))
    table = [{**dict.fromkeys(COLUMNS), "pid": pid, "cost": -pid / 2.0, "ward": ward}
             for pid in range(1, 5) for ward in "aabb"]  # fmt: skip
    whole: Counter[Any] = Counter()
    for pid in range(1, 5):
        whole.update(nonzero(integers(compiled, [row for row in table if row["pid"] == pid], SCHEMA)))
    assert nonzero(integers(compiled, table, SCHEMA)) == dict(whole)
    assert integers(compiled, table, SCHEMA) == integers(compiled, table[::-1], SCHEMA)


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
        counts = nonzero(integers(compiled_of(Query((Count(),), by=("ward",)), rules), alone, SCHEMA))
        found[rows_kept, groups] = (sum(counts.values()), len(counts))
    rows_in_groups = {key: value for key, value in found.items() if key != (3, 3)}
    assert rows_in_groups == {(6, 1): (2, 1), (6, 2): (4, 2), (1, 1): (1, 1), (20, 20): (6, 3)}
    assert found[3, 3][0] == 3


def test_every_row_of_a_unit_has_the_same_chance() -> None:
    """Three rows in ward a and one in ward b: over many units a is kept three times as often."""
    compiled = compiled_of(Query((Count(),), by=("ward",)), policy(rows_per_unit=1))
    table = [{**dict.fromkeys(COLUMNS), "pid": pid, "ward": ward} for pid in range(2000) for ward in "aaab"]
    counts = nonzero(integers(compiled, table, SCHEMA))
    kept = {key[0]: count for (_, key, _), count in counts.items()}
    assert kept["a"] + kept["b"] == 2000
    assert abs(kept["a"] - 1500) < 5 * math.sqrt(2000 * 0.75 * 0.25)


NOBODY = {"null": None, "nan": math.nan}


@pytest.mark.parametrize("name", NOBODY)
def test_a_row_without_a_unit_is_dropped(name: str) -> None:
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


def test_a_sum_beyond_the_largest_table_is_cut() -> None:
    compiled = compiled_of(Query((Sum("age"), Count())), policy(unit_column=None, largest_table=2))
    row = {**dict.fromkeys(COLUMNS), "age": 100.0}
    raw = integers(compiled, [row | {"pid": 1}] * 5, SCHEMA)
    assert sorted(raw.values(), key=str) == [{(): [2]}, {(): [400]}]
