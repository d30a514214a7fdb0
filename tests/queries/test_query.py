"""Queries as data: what is refused, one canonical form per question, and the way to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_oracles import COMPARISONS, joined, truth

from tacit.errors import InvalidInput
from tacit.queries.query import (
    AGGREGATES,
    OPERATORS,
    PREDICATES,
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
    query_to_json,
)

values = st.one_of(
    st.integers(-(1 << 53), 1 << 53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8),
)
columns = st.sampled_from(["age", "ward", "ä ö"])
leaves = st.one_of(
    st.builds(Compare, columns, st.sampled_from(OPERATORS), values),
    st.builds(IsNull, columns),
    st.builds(In, columns, st.lists(values, min_size=1, max_size=4).map(tuple)),
)
predicates = joined(leaves, 8)
numbers = st.lists(st.integers(-100, 100) | st.floats(-9, 9), min_size=2, max_size=5, unique_by=float)
aggregates: st.SearchStrategy[Aggregate] = st.one_of(
    st.builds(Count, st.none() | columns),
    st.builds(CountUnits),
    st.builds(Sum, columns),
    st.builds(Mean, columns),
    st.builds(Variance, columns, st.booleans()),
    st.builds(StandardDeviation, columns, st.booleans()),
    st.builds(
        Quantile, columns, st.floats(0, 1), st.none() | numbers.map(lambda v: tuple(sorted(v, key=float)))
    ),
    st.builds(Histogram, columns, numbers.map(lambda v: tuple(sorted(v, key=float)))),
)
queries = st.builds(
    Query,
    st.lists(aggregates, min_size=1, max_size=4).map(tuple),
    where=st.none() | predicates,
    by=st.lists(st.sampled_from(["sex", "year"]), unique=True).map(tuple),
)


@given(queries)
def test_the_canonical_form_is_plain_data(query: Query) -> None:
    data = json.loads(query_to_json(query))
    assert [item["aggregate"] for item in data["aggregates"]] == [type(i).__name__ for i in query.aggregates]
    assert tuple(data["by"]) == query.by


def meaning(data: dict[str, Any], row: dict[str, Any]) -> bool:
    """The meaning of the canonical form; missing values compare false."""
    parts = [
        meaning(part, row) if isinstance(part, dict) else truth(part, row)
        for part in (*data.get("parts", ()), *([data["part"]] if "part" in data else []))
    ]
    match data["predicate"]:
        case "And":
            return all(parts)
        case "Or":
            return any(parts)
        case "Not":
            return not parts[0]
        case "IsNull":
            return row[data["column"]] is None
        case "In":
            return row[data["column"]] is not None and row[data["column"]] in data["values"]
    value = row[data["column"]]
    return value is not None and COMPARISONS[data["op"]](value, data["value"])


small = joined(
    st.one_of(
        st.builds(Compare, st.sampled_from("ab"), st.sampled_from(OPERATORS), st.integers(0, 2)),
        st.builds(IsNull, st.sampled_from("ab")),
        st.builds(In, st.sampled_from("ab"), st.lists(st.integers(0, 2), min_size=1).map(tuple)),
    ),
    6,
)
rows = [{"a": a, "b": b} for a in (None, 0, 1, 2) for b in (None, 0, 1, 2)]


@given(small)
def test_the_canonical_form_means_the_same(predicate: Predicate) -> None:
    form = json.loads(query_to_json(Query((Count(),), where=predicate)))["where"]
    assert [meaning(form, row) for row in rows] == [truth(predicate, row) for row in rows]


A, B, C = Compare("a", "=", 1), Compare("b", "<", 2), IsNull("c")
SAME: dict[str, tuple[Predicate, Predicate]] = {
    "order": (And((A, B)), And((B, A))),
    "nesting": (Or((A, Or((B, C)))), Or((Or((C, A)), B))),
    "repetition": (And((A, A, B)), And((A, B))),
    "one part": (And((A,)), A),
    "double not": (Not(Not(A)), A),
    "hidden double not": (Not(And((Not(A),))), A),
    "one of one": (In("a", (1,)), A),
    "order of values": (In("a", (2, 1, 1.0)), In("a", (1, 2))),
    "65.0": (Compare("a", ">", 65.0), Compare("a", ">", 65)),
    "-0.0": (Compare("a", ">", -0.0), Compare("a", ">", 0)),
}


@pytest.mark.parametrize("name", SAME)
def test_one_question_has_one_form(name: str) -> None:
    one, other = (query_to_json(Query((Count(),), where=part)) for part in SAME[name])
    assert one == other


DIFFERENT: dict[str, tuple[Predicate, Predicate]] = {
    "and, or": (And((A, B)), Or((A, B))),
    "not of > is not <=": (Not(Compare("a", ">", 1)), Compare("a", "<=", 1)),
    "text and number": (Compare("a", "=", "1"), A),
    "true is not 1": (Compare("a", "=", True), A),
    "column": (Compare("b", "=", 1), A),
    "nesting of the other kind": (And((A, Or((B, C)))), And((Or((A, B)), C))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_questions_have_different_forms(name: str) -> None:
    one, other = (query_to_json(Query((Count(),), where=part)) for part in DIFFERENT[name])
    assert one != other


def test_names_are_no_part_of_the_question() -> None:
    named = Query((Count(), Sum("a")), table="visits", names=("n", "total"))
    assert query_to_json(named) == query_to_json(Query((Count(), Sum("a"))))
    assert query_to_json(Query((Count("a"),))) != query_to_json(Query((Count(),)))


def deep(levels: int) -> Predicate:
    predicate: Predicate = A
    for _ in range(levels):
        predicate = Not(predicate)
    return predicate


WRONG: dict[str, Callable[[], object]] = {
    "no aggregate": lambda: Query(()),
    "aggregate alone": lambda: Query(Count()),  # type: ignore[arg-type]
    "a text": lambda: Query(("count",)),  # type: ignore[arg-type]
    "predicate as text": lambda: Query((Count(),), where="a > 1"),  # type: ignore[arg-type]
    "by as text": lambda: Query((Count(),), by="ward"),  # type: ignore[arg-type]
    "by twice": lambda: Query((Count(),), by=("ward", "ward")),
    "name twice": lambda: Query((Count(), Sum("a")), names=("x", "x")),
    "name of a group": lambda: Query((Count(),), by=("ward",), names=("ward",)),
    "too few names": lambda: Query((Count(), Sum("a")), names=("x",)),
    "names as text": lambda: Query((Count(),), names="x"),  # type: ignore[arg-type]
    "empty column": lambda: Sum(""),
    "column number": lambda: Sum(1),  # type: ignore[arg-type]
    "operator": lambda: Compare("a", "like", "x"),
    "nan": lambda: Compare("a", "=", math.nan),
    "infinity": lambda: Compare("a", "<", math.inf),
    "none": lambda: Compare("a", "=", None),  # type: ignore[arg-type]
    "inexact integer": lambda: Compare("a", "=", (1 << 53) + 1),
    "nul": lambda: Compare("a", "=", "x\x00"),
    "surrogate": lambda: Compare("a", "=", "\ud800"),
    "in nothing": lambda: In("a", ()),
    "in a text": lambda: In("a", "xyz"),  # type: ignore[arg-type]
    "in too much": lambda: In("a", tuple(range(10_001))),
    "and of nothing": lambda: And(()),
    "and of text": lambda: And(("a",)),  # type: ignore[arg-type]
    "not of text": lambda: Not("a"),  # type: ignore[arg-type]
    "q above 1": lambda: Quantile("a", 1.5),
    "q nan": lambda: Quantile("a", math.nan),
    "candidates fall": lambda: Quantile("a", 0.5, candidates=(2, 1)),
    "no candidates": lambda: Quantile("a", 0.5, candidates=()),
    "candidate twice": lambda: Quantile("a", 0.5, candidates=(1, 1.0)),
    "candidate infinite": lambda: Quantile("a", 0.5, candidates=(1, math.inf)),
    "candidate text": lambda: Quantile("a", 0.5, candidates=("a",)),  # type: ignore[arg-type]
    "one edge": lambda: Histogram("a", (1,)),
    "edges are true": lambda: Histogram("a", (False, True)),
    "sample": lambda: Variance("a", sample=1),  # type: ignore[arg-type]
    "deep": lambda: Query((Count(),), where=deep(64)),
    "very deep": lambda: Query((Count(),), where=deep(50_000)),
    "wide": lambda: Query((Count(),), where=Or((A,) * 10_001)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        WRONG[name]()


def test_default_names_differ() -> None:
    query = Query(
        (Count(), Count(), Quantile("a", 0.5), Quantile("a", 0.9), Quantile("a", 1.0), CountUnits())
    )
    assert query.output_names == ("count", "count_2", "median_a", "quantile_0.9_a", "max_a", "units")


def test_leaves_are_all_comparisons() -> None:
    assert list(Query((Count(),), where=Or((And((A, B)), Not(C)))).leaves()) == [A, B, C]
    assert list(Query((Mean("a"), StandardDeviation("a"))).leaves()) == []


def test_the_tables_of_kinds_are_complete() -> None:
    assert set(PREDICATES.values()) == set(Predicate.__subclasses__())
    assert set(AGGREGATES.values()) == set(Aggregate.__subclasses__())
    assert json.loads(query_to_json(Query((CountUnits(),))))["aggregates"] == [{"aggregate": "CountUnits"}]
