"""Whatever stands in a policy or a budget, at any place: it is read, or refused as what it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Anchor, Budget, Policy
from tacit.ledger.policy import budget_from_data, parse_policy

BUDGETS: dict[str, dict[str, Any]] = {
    "pure": {"mode": "pure", "epsilon": 1.0},
    "approximate": {"mode": "approximate", "epsilon": 1.0, "delta": 1e-6},
    "zcdp": {"mode": "zcdp", "epsilon": 1.0, "delta": 1e-6, "threshold_delta": 1e-7},
    "renyi": {
        "mode": "renyi",
        "epsilon": 3.0,
        "delta": 1e-6,
        "orders": [8.0, 16.0],
        "threshold_delta": 1e-7,
    },
}
COLUMNS: dict[str, Any] = {
    "age": {"kind": "number", "lower": 0.0, "upper": 120.0, "step": 0.5},
    "ward": {"kind": "category", "values": ["a", "b"], "missing": "indicator"},
    "dose": {"kind": "integer", "decimal": ",", "thousands": ".", "unit": "mg", "below": "<", "missing": 5.0},
    "ill": {"kind": "boolean", "true": ["ja"], "false": ["nein"]},
    "born": {"kind": "date", "lower": "1900-01-01", "upper": "2030-01-01", "format": "%d.%m.%Y"},
    "seen": {"kind": "datetime", "parts": ["hour"], "missing": "2020-01-01 12:00:00"},
}
DIALECT = {"separator": ";", "decimal": ",", "thousands": ".", "encoding": "latin-1", "quote": "'"}
POLICY: dict[str, Any] = {
    "unit": "patient",
    "adjacency": "replace-one",
    "unit_column": "id",
    "rows_per_unit": 4,
    "groups_per_unit": 2,
    "largest_table": 1000,
    "public_records": 100,
    "blocks": ["2024", "2025"],
    "parent": "all",
    "parent_block": "old",
    "note": "by the board",
}
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -0.0, 1, 1.0, 1e-18, 5e-324, 1e308, -1, 2**63, 10**400, 1e-12, 1e6]),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["FILL IN", "pure"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(data: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value in it, itself first."""
    yield here
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in inner:
        yield from places(value, (*here, name))


def with_value(data: Any, place: tuple[Any, ...], value: object) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(data)
    around = changed
    for name in place[:-1]:
        around = around[name]
    around[place[-1]] = value
    return changed


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """``whole`` with one or two values exchanged for something else, or with something added."""
    data = whole
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(list(places(data))))
        if place and isinstance(place[-1], str) and draw(st.integers(0, 9)) == 0:
            place = (*place[:-1], draw(st.text(max_size=8)))
        data = with_value(data, place, draw(JSON))
    return data


@settings(max_examples=100, deadline=None)
@example({"mode": []})
@example({"mode": {}})
@example({**BUDGETS["renyi"], "orders": 5})
@example({**BUDGETS["renyi"], "orders": {"8": 1}})
@example({**BUDGETS["renyi"], "orders": "89"})
@example({**BUDGETS["pure"], "epsilon": 10**400})
@given(data=st.sampled_from(sorted(BUDGETS)).flatmap(lambda mode: changed(BUDGETS[mode])))
def test_a_budget_is_read_or_refused(data: Any) -> None:
    try:
        found = budget_from_data(data)
    except InvalidInput:
        return
    assert isinstance(found, Budget)
    assert budget_from_data(json.loads(json.dumps(found.to_data()))) == found


@settings(max_examples=100, deadline=None)
@example({**POLICY, "columns": COLUMNS, "budget": BUDGETS["pure"], "blocks": "ab"})
@example({**POLICY, "columns": {"age": {"kind": []}}, "budget": BUDGETS["pure"]})
@given(
    data=st.sampled_from(sorted(BUDGETS)).flatmap(
        lambda mode: changed({**POLICY, "columns": COLUMNS, "dialect": DIALECT, "budget": BUDGETS[mode]})
    )
)
def test_a_policy_in_json_is_read_or_refused(data: Any) -> None:
    found: list[Policy] = []
    with suppress(InvalidInput, PrivacyRefusal):
        found.append(Policy.from_data(data))
    with suppress(InvalidInput, PrivacyRefusal):
        found.append(Policy.from_json(json.dumps(data)))
    assert all(Policy.from_json(policy.to_json()) == policy for policy in found)


@settings(max_examples=100, deadline=None)
@example({"policy": {**POLICY, "blocks": 5}, "budget": BUDGETS["pure"]})
@example({"policy": {**POLICY, "blocks": "ab"}, "budget": BUDGETS["pure"]})
@example({"policy": POLICY, "budget": {**BUDGETS["renyi"], "orders": 5}})
@given(
    data=st.sampled_from(sorted(BUDGETS)).flatmap(
        lambda mode: changed(
            {"policy": POLICY, "columns": COLUMNS, "table": DIALECT, "budget": BUDGETS[mode]}
        )
    )
)
def test_a_policy_in_toml_is_read_or_refused(data: Any) -> None:
    """As the reader of TOML may give it: tables at the top, and values of any type in them."""
    if not isinstance(data, dict):
        return
    with mock.patch("tacit.ledger.policy.tomllib.loads", return_value=data):
        try:
            found = parse_policy("")
        except (InvalidInput, PrivacyRefusal):  # a column may not be a text: bounds are declared
            return
    assert Policy.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "9" * 5000, '{"unit": ' + "9" * 5000 + "}", "\x00", "nan"],
    ids=["nothing", "half", "deep", "long", "long-inside", "zero", "nan"],
)
def test_a_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Policy.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["[", "x = " + "[" * 100_000, "x = " + "9" * 5000, "policy = 2026-01-01", "\x00", "x = nan"],
    ids=["half", "deep", "long", "date", "zero", "nan"],
)
def test_a_text_that_is_no_policy_in_toml_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_policy(text)


@settings(deadline=None)
@given(text=st.text() | st.lists(st.text(max_size=4), min_size=4, max_size=4).map(":".join))
@example("a:b:²:" + "0" * 64)
@example("a:b:" + "9" * 5000 + ":" + "0" * 64)
def test_an_anchor_is_read_or_refused(text: str) -> None:
    try:
        found = Anchor.parse(text)
    except InvalidInput:
        return
    assert Anchor.parse(str(found)) == found
