"""Sensitivity by brute force: random questions, policies and tables, and every neighbour of each table.

Nothing of how a bound is derived is used here.  A question is compiled, DuckDB counts it on a table and on
its neighbours, and the integers must not move by more than the noise was made for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from query_oracles import integers, joined, texts_of

from tacit.events import Adjacency
from tacit.ledger import Column, Policy, RenyiBudget
from tacit.queries import (
    Cdf,
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    Quantile,
    Quantiles,
    Query,
    StandardDeviation,
    Sum,
    Survival,
    Variance,
    measures,
    plan,
    statements,
)
from tacit.queries.measures import Bins, Regular
from tacit.queries.plan import Compiled, RawTable, Release, compile_query
from tacit.queries.query import OPERATORS, Aggregate, Predicate

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("patient", pa.string()),
        ("ward", pa.string()),
        ("floor", pa.int64()),
        ("city", pa.string()),
        ("stay", pa.int64()),
        ("urgent", pa.bool_()),
        ("age", pa.float64()),
        ("cost", pa.float64()),
    ]
)
WARDS, FLOORS = ("a", "b", "ö'x"), (1, 2)
TOO_FAR = "one unit moves the integers further than the noise is made for"
COSTS = (-math.inf, -11.0, -10.0, -9.96, -0.3, 0.0, 0.24, 0.25, 7.1, 30.0, 31.0, math.inf, math.nan, None)
AGES = (-5.0, 0.0, 17.0, 17.5, 40.0, 66.0, 90.0, 1e9, math.nan, None)


# --- what is drawn ----------------------------------------------------------------------------------------


def rows_of(patient: str | None) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {
            "patient": st.just(patient),
            "ward": st.sampled_from([*WARDS, "a", "undeclared", None]),
            "floor": st.sampled_from([*FLOORS, 1, 9, -3, None]),
            "city": st.sampled_from(["x", "NaN", "", None]),
            "stay": st.sampled_from([0, 10, 15, 21, 30, None]),
            "urgent": st.sampled_from([True, False, None]),
            "age": st.sampled_from(AGES),
            "cost": st.sampled_from(COSTS),
        }
    )


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Up to three units with up to five rows each, and rows of nobody."""
    rows: list[Row] = []
    for patient in ("p1", "p2", "p3")[: draw(st.integers(1, 3))]:
        rows += draw(st.lists(rows_of(patient), min_size=1, max_size=5))
    rows += draw(st.lists(rows_of(None), max_size=1))
    return draw(st.permutations(rows))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    per_unit = draw(st.integers(1, 3))
    per_group = draw(st.none() | st.integers(1, per_unit))
    adjacency = draw(st.sampled_from(["add-remove", "replace-one", "zero-out"]))
    by_person = draw(st.booleans())
    declared = draw(st.booleans())
    return Policy(
        unit="patient",
        adjacency=adjacency,
        budget=RenyiBudget(10.0, 1e-3, orders=(4.0,), threshold_delta=5e-4),
        unit_column="patient" if by_person else None,
        rows_per_unit=per_unit if by_person else 1,
        groups_per_unit=per_group if by_person else None,
        largest_table=100,
        public_records=4 if adjacency == "replace-one" else None,
        columns={
            "ward": Column(kind="category", values=WARDS if declared else None),
            "floor": Column(kind="integer", values=FLOORS, lower=-1, upper=4),
            "urgent": Column(kind="boolean"),
            "city": Column(kind="category"),
            "stay": Column(kind="integer", lower=10, upper=21),
            "age": Column(kind="number", lower=0, upper=90, step=draw(st.sampled_from([1.0, 0.5, None]))),
            "cost": Column(kind="number", lower=-10, upper=30, step=draw(st.sampled_from([0.5, 0.3, None]))),
        },
    )


AGGREGATES: tuple[Aggregate, ...] = (
    Count(),
    Count("cost"),
    Count("ward"),
    CountUnits(),
    Sum("cost"),
    Sum("age"),
    Sum("stay"),
    Mean("cost"),
    Mean("age"),
    Variance("cost"),
    StandardDeviation("age", sample=False),
    StandardDeviation("floor"),
    Histogram("age", (0, 18, 40, 65)),
    Quantile("age", 0.5),
    Quantile("floor", 1.0),
    Quantile("cost", 0.25, candidates=(-10, 0, 0.25, 7, 30)),
    Quantile("age", 1.0, candidates=(0, 30, 60, 90)),
    Quantile("age", 0.0, candidates=(0, 30, 60, 90)),
    Quantiles("age"),
    Cdf("cost"),
    Survival("age", "urgent", (0, 17, 40, 90)),
)
LEAVES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(
        Compare,
        st.sampled_from(["age", "cost", "floor"]),
        st.sampled_from(OPERATORS),
        st.sampled_from([0, 0.25, 17, -3.3, 4]),
    ),
    st.builds(
        Compare,
        st.sampled_from(["ward", "city"]),
        st.sampled_from(["=", "!="]),
        st.sampled_from(["a", "ö'x", "", "'; DROP TABLE tacit_rows; --"]),
    ),
    st.builds(Compare, st.just("urgent"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(IsNull, st.sampled_from(["ward", "floor", "urgent", "city", "stay", "age", "cost"])),
    st.sampled_from([In("floor", (1, 9)), In("age", (0, 17.5, 66)), In("ward", ("a", "undeclared"))]),
)
PREDICATES = joined(LEAVES, 4)
OTHER_KEYS = ("city", "floor", "urgent")
QUERIES = st.builds(
    Query,
    st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True).map(tuple),
    st.none() | PREDICATES,
    st.sampled_from(
        [
            (),
            (),
            ("ward",),
            ("urgent", "floor"),
            ("city",),
            ("ward", "city"),
            ("ward", "floor"),
            ("urgent", "ward"),
        ]
    ),
)


def compiled_of(query: Query, policy: Policy, mechanism: str) -> Compiled:
    undeclared = any(name in query.by and policy.columns[name].values is None for name in ("ward", "city"))
    if mechanism == "gaussian":
        return compile_query(query, policy, rho=0.5, delta=1e-6 if undeclared else None, mechanism=mechanism)
    return compile_query(query, policy, epsilon=1.0, delta=1e-6 if undeclared else None)


# --- neighbours -------------------------------------------------------------------------------------------


def neighbours(rows: list[Row], policy: Policy, replacement: list[Row]) -> Iterator[list[Row]]:
    """Every table in which one unit is gone, or has been exchanged for another one with these rows."""
    if policy.unit_column is None:
        units = [[row] for row in rows]
        replacement = replacement[:1]
    else:
        names = {row["patient"] for row in rows} - {None}
        units = [[row for row in rows if row["patient"] == name] for name in sorted(names)]
    for unit in units:
        others = [row for row in rows if not any(row is mine for mine in unit)]
        yield [*others, *replacement] if policy.relation is Adjacency.REPLACE_ONE else others


Texts = list[str]


def counted(compiled: Compiled, texts: Texts, rows: list[Row]) -> RawTable:
    return integers(compiled, rows, SCHEMA, texts)


def moved(release: Release, one: RawTable, other: RawTable) -> dict[Any, list[int]]:
    """Return the differences of a release's integers, group by group."""
    a, b = one[release.measure], other[release.measure]
    nothing = [0] * release.measure.bins
    return {
        key: [x - y for x, y in zip(a.get(key, nothing), b.get(key, nothing), strict=True)]
        for key in a.keys() | b.keys()
    }


def shares(release: Release, compiled: Compiled, one: RawTable, other: RawTable) -> tuple[float, ...]:
    """Return the difference of neighbours as shares of the event's sensitivity, which accounting doubles
    under replace-one: of the losses of a choice, or of the L1 and the squared L2 norm."""
    twice = 2 if compiled.policy.relation is Adjacency.REPLACE_ONE else 1
    if release.choice is not None:
        nothing = [0] * release.measure.bins
        worst = 0
        for key in one[release.measure].keys() | other[release.measure].keys():
            a, b = (release.choice.losses(table[release.measure].get(key, nothing)) for table in (one, other))
            worst += max(abs(x - y) for x, y in zip(a, b, strict=True))
        return (worst / release.choice.sensitivity,)
    steps = [release.bound.factor * x for each in moved(release, one, other).values() for x in each]
    bound = release.bound
    if not isinstance(release.measure, Bins | Regular):
        assert max(map(abs, steps), default=0) <= twice * bound.each, TOO_FAR
        assert sum(x != 0 for x in steps) <= twice * bound.places, TOO_FAR
    return (
        sum(map(abs, steps)) / (twice * bound.whole),
        sum(x * x for x in steps) / (twice**2 * bound.squared),
    )


def check(
    query: Query, policy: Policy, mechanism: str, rows: list[Row], replacement: list[Row]
) -> dict[Release, float]:
    """The largest share of every release, over all neighbours; none is above 1."""
    compiled = compiled_of(query, policy, mechanism)
    texts = texts_of(compiled)
    here = counted(compiled, texts, rows)
    largest: dict[Release, float] = dict.fromkeys(compiled.releases, 0.0)
    for other in neighbours(rows, policy, replacement):
        there = counted(compiled, texts, other)
        for release in compiled.releases:
            if release.law != "public":
                largest[release] = max(largest[release], *shares(release, compiled, here, there))
        if compiled.threshold is not None:
            check_threshold(compiled, here, there)
    assert max(largest.values()) <= 1.0, TOO_FAR
    return largest


def check_threshold(compiled: Compiled, here: RawTable, there: RawTable) -> None:
    """Groups that one neighbour has and the other has not: few, and small, in either direction."""
    assert compiled.threshold is not None
    gate, policy = compiled.threshold.gate, compiled.policy
    groups = policy.groups_per_unit or policy.rows_per_unit
    for one, other in ((here, there), (there, here)):
        new = one[gate].keys() - other[gate].keys()
        assert len(new) <= groups
        bound = compiled.release(gate).bound
        assert all(one[gate][key][0] <= bound.each for key in new)


# a table takes long to shrink, and is small as it is
@pytest.mark.untraced
@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    QUERIES,
    policies(),
    st.sampled_from(["laplace", "gaussian"]),
    tables(),
    st.lists(rows_of("new"), max_size=5),
)
def test_neighbours_move_the_integers_by_at_most_what_is_charged(
    query: Query, policy: Policy, mechanism: str, rows: list[Row], replacement: list[Row]
) -> None:
    if policy.rows_per_unit > 1:  # a survival curve counts one row of each unit
        kept = tuple(item for item in query.aggregates if not isinstance(item, Survival))
        query = replace(query, aggregates=kept or (Count(),))
    check(query, policy, mechanism, rows, replacement)


# --- bounds that are reached, and bugs that are found -----------------------------------------------------

ROW: Row = {
    "patient": "p1",
    "ward": "a",
    "floor": 1,
    "urgent": True,
    "city": "x",
    "stay": 30,
    "age": 90.0,
    "cost": 30.0,
}
LOW: Row = ROW | {"patient": "new", "ward": "b", "stay": 0, "age": 0.0, "cost": -10.0}
OTHER: Row = ROW | {"patient": "p2", "ward": "b", "age": 40.0, "cost": 3.0}
PER_ROW = Policy(
    unit="row",
    adjacency="add-remove",
    budget=RenyiBudget(10.0, 1e-3, orders=(4.0,), threshold_delta=5e-4),
    largest_table=100,
    columns={
        "ward": Column(kind="category", values=WARDS),
        "floor": Column(kind="integer", values=FLOORS, lower=-1, upper=4),
        "urgent": Column(kind="boolean"),
        "city": Column(kind="category"),
        "stay": Column(kind="integer", lower=10, upper=21),
        "age": Column(kind="number", lower=0, upper=90, step=0.5),
        "cost": Column(kind="number", lower=-10, upper=30, step=0.5),
    },
)
PER_PERSON = replace(PER_ROW, unit_column="patient", rows_per_unit=2)
EXCHANGED = replace(PER_ROW, adjacency="replace-one", public_records=2)
PERSON_EXCHANGED = replace(PER_PERSON, adjacency="replace-one", public_records=2)
FIVE_ROWS = [ROW] * 5 + [OTHER]
MIXED = [ROW | {"ward": ward} for ward in WARDS] + [OTHER]


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    ("query", "policy", "rows", "replacement"),
    [
        (Query((Count(),)), PER_ROW, [ROW], []),
        (Query((Sum("cost"),)), PER_ROW, [ROW], []),
        (Query((Sum("cost"),)), PER_ROW, [ROW | {"cost": math.inf}], []),
        (Query((Count(), Sum("cost"))), PER_PERSON, FIVE_ROWS, []),
        (Query((Mean("age"),), by=("ward",)), PER_PERSON, FIVE_ROWS, []),
        (Query((Variance("age"),)), PER_PERSON, FIVE_ROWS, []),
        (Query((CountUnits(),), by=("ward",)), PER_PERSON, MIXED, []),
        (Query((Histogram("age", (0, 50, 90)),)), PER_PERSON, FIVE_ROWS, []),
        (Query((Quantile("age", 0.5),)), PER_PERSON, FIVE_ROWS, []),
        (Query((Mean("age"),)), PER_ROW, [ROW], []),
        (Query((Mean("age"),)), PERSON_EXCHANGED, FIVE_ROWS, [LOW] * 4),
        (Query((Mean("cost"),)), EXCHANGED, [ROW, OTHER], [LOW]),
        (Query((Mean("cost"),)), EXCHANGED, [ROW | {"cost": None}, OTHER], [LOW]),
        (Query((Mean("cost"),), by=("ward",)), EXCHANGED, [ROW, OTHER], [LOW]),
        (Query((Count("cost"),)), EXCHANGED, [ROW | {"cost": None}, OTHER], [LOW]),
        (Query((Sum("cost"),)), EXCHANGED, [ROW, OTHER], [LOW]),
        (Query((Sum("age"),)), EXCHANGED, [ROW, OTHER], [LOW]),
        (Query((Sum("cost"),)), PERSON_EXCHANGED, FIVE_ROWS, [LOW] * 4),
        (Query((Count(),), by=("ward",)), PERSON_EXCHANGED, FIVE_ROWS, [LOW] * 4),
        (Query((Quantile("age", 0.25, candidates=(0, 40, 80)),)), PERSON_EXCHANGED, FIVE_ROWS, [LOW] * 4),
    ],
    ids=lambda value: None,
)
def test_no_bound_is_larger_than_it_must_be(
    query: Query, policy: Policy, mechanism: str, rows: list[Row], replacement: list[Row]
) -> None:
    """A table and a neighbour that differ by all that is charged."""
    largest = check(query, policy, mechanism, rows, replacement)
    assert all(share == 1.0 for share in largest.values())


def test_a_row_without_values_is_exchanged_for_one_beyond_all_bounds() -> None:
    nothing: Row = dict.fromkeys(ROW) | {"patient": "p1"}
    for rows, replacement in (([nothing], [ROW | {"age": 1e300, "cost": -1e300}]), ([ROW], [nothing])):
        assert check(Query(AGGREGATES), EXCHANGED, "laplace", rows, replacement)


def test_a_bound_that_is_stated_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measures.bound
    halved = lambda measure, policy, **facts: replace(real(measure, policy, **facts), whole=300)  # noqa: E731
    query = Query((Sum("age"),))
    assert max(check(query, PER_PERSON, "laplace", FIVE_ROWS, []).values()) == 1.0
    monkeypatch.setattr(plan, "bound", halved)
    with pytest.raises(AssertionError, match=TOO_FAR):
        check(query, PER_PERSON, "laplace", FIVE_ROWS, [])


@pytest.mark.parametrize("item", [Count(), CountUnits()])
def test_rows_that_are_not_bounded_are_found(item: Aggregate, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are kept, or none is left out."""
    monkeypatch.setattr(statements, "counted_rows", lambda columns, *_: statements.all_rows(columns))
    monkeypatch.setattr(
        statements,
        "uncounted_rows",
        lambda columns, *_: statements.all_rows(columns).where("FALSE", copy=False),
    )
    with pytest.raises(AssertionError, match=TOO_FAR):
        check(Query((item,), by=("ward",)), PER_PERSON, "laplace", [*FIVE_ROWS, *MIXED], [])


@pytest.mark.parametrize("item", [Sum("age"), CountUnits()])
def test_rows_chosen_by_a_look_at_other_units_are_found(
    item: Aggregate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows of the table, not of each unit: when a unit goes, another one's rows move up."""
    rows = [
        ROW | {"patient": f"p{i}", "ward": ward} for i in range(4) for ward in WARDS for _ in range(i + 1)
    ]
    query = Query((item,), by=("ward",))
    assert check(query, PER_PERSON, "laplace", rows, [])
    real = statements._window

    def of_all(function: Any, order: list[Any]) -> Any:
        window = real(function, order)
        window.set("partition_by", [])
        return window

    monkeypatch.setattr(statements, "_window", of_all)
    with pytest.raises(AssertionError, match=TOO_FAR):
        check(query, PER_PERSON, "laplace", rows, [])


@pytest.mark.parametrize("limit", [(2, None), (3, 2)])
def test_one_row_too_many_of_a_unit_is_found(
    limit: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that keeps one row more than it says."""
    policy = replace(PER_PERSON, rows_per_unit=limit[0], groups_per_unit=limit[1])
    query, rows = Query((Count(),), by=("ward",)), MIXED * 3
    assert check(query, policy, "laplace", rows, [])
    for name in ("counted_rows", "uncounted_rows"):
        real = getattr(statements, name)
        monkeypatch.setattr(
            statements,
            name,
            lambda columns, rules, *more, real=real: real(
                columns, replace(rules, rows_per_unit=rules.rows_per_unit + 1), *more
            ),
        )
    with pytest.raises(AssertionError, match=TOO_FAR):
        check(query, policy, "laplace", rows, [])


def test_half_of_the_noise_under_replace_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width of an odd number of steps, halved downwards."""
    real = measures.bound

    def halved(measure: Any, policy: Policy, *, groups: bool, filtered: bool) -> Any:
        found = real(measure, policy, groups=groups, filtered=filtered)
        return replace(found, whole=found.whole // 2, factor=1) if found.factor == 2 else found

    odd = replace(
        EXCHANGED, columns={**EXCHANGED.columns, "cost": Column(kind="number", lower=0, upper=3, step=1.0)}
    )
    rows, replacement = [ROW | {"cost": 3.0}, OTHER], [LOW | {"cost": 0.0}]
    assert check(Query((Sum("cost"),)), odd, "laplace", rows, replacement)
    monkeypatch.setattr(plan, "bound", halved)
    with pytest.raises(AssertionError, match=TOO_FAR):
        check(Query((Sum("cost"),)), odd, "laplace", rows, replacement)


def test_planted_bug_a_turned_pair_in_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that goes from one group to another moves two turned pairs, each by all that is charged."""
    query = Query((Mean("cost"),), by=("ward",))
    assert check(query, EXCHANGED, "laplace", [ROW, OTHER], [LOW])
    real = measures.pairs_of

    def turned(*facts: Any) -> Any:
        return {measure: replace(pair, turned=True) for measure, pair in real(*facts).items()}

    monkeypatch.setattr(plan, "pairs_of", turned)
    assert check(Query((Mean("cost"),)), EXCHANGED, "laplace", [ROW, OTHER], [LOW])
    for policy, rows, replacement in ((EXCHANGED, [ROW, OTHER], [LOW]), (PER_ROW, [ROW, OTHER], [])):
        with pytest.raises(AssertionError, match=TOO_FAR):
            check(query, policy, "laplace", rows, replacement)


# --- vectors: what an event with one number says of them --------------------------------------------------


def losses(sigma: float, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The privacy loss of one discrete Gaussian at a shift, and its probabilities."""
    k = np.arange(-40.0, 41.0)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    return (shift**2 - 2 * k * shift) / (2 * sigma**2), mass / mass.sum()


def composed(
    a: tuple[NDArray[np.float64], NDArray[np.float64]], b: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    loss, mass = np.add.outer(a[0], b[0]).round(9).ravel(), np.multiply.outer(a[1], b[1]).ravel()
    values, index = np.unique(loss[mass > 1e-30], return_inverse=True)
    return values, np.bincount(index, mass[mass > 1e-30]).astype(np.float64)


def delta(pair: tuple[NDArray[np.float64], NDArray[np.float64]], epsilon: float) -> float:
    loss, mass = pair
    return float((mass * -np.expm1(np.minimum(epsilon - loss, 0.0))).sum())


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.0, 2.5])
def test_a_unit_spread_over_groups_is_not_a_shift_of_the_same_length(sigma: float) -> None:
    """Gaussian noise on a group-by costs the sum of its divergences, not one shift: a shift of the same L2
    norm leaks less than the vector. One of the same L1 norm leaks more, as far as is known."""
    levels = [0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0]
    for shifts in ((1, 1), (1, 2), (1, 1, 1), (2, 2), (1, 3), (1, 1, 2)):
        one = losses(sigma, sum(shifts))
        vector = reduce(composed, [losses(sigma, shift) for shift in shifts])
        assert all(delta(vector, level) <= delta(one, level) + 1e-12 for level in levels)
    same_length = reduce(composed, [losses(sigma, 1)] * 4)
    assert any(delta(same_length, level) > delta(losses(sigma, 2), level) * 1.001 for level in levels)
