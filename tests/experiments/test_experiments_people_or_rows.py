"""Drawing people or rows: each keeps the promise with the least noise; the advice names the better."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.people_or_rows import Way, compare_ways
from tacit.errors import InvalidInput
from tacit.plan import Plan
from tacit.planner import PlanRequest
from tacit.report.statement import group_epsilon

QUESTION = PlanRequest(records=5000, unit="user", epsilon=3, delta=1e-6, adjacency="add-remove", steps=300)


@settings(max_examples=6)
@given(B=st.sampled_from([50, 400, 5000]), K=st.sampled_from([1, 2, 6]))
def test_both_ways_are_the_plans_that_a_session_would_run(B: int, K: int) -> None:
    found = compare_ways(QUESTION, B, K)
    common = {
        "epsilon": 3.0, "delta": 1e-6, "steps": 300, "clipping": 1.0, "adjacency": "add-remove",
        "unit": "user",
    }  # fmt: skip
    people = Plan.calibrate(records=5000, batch_size=B, **common)  # type: ignore[arg-type]
    rows = Plan.calibrate(records=5000 * K, batch_size=B * K, rows_per_user=K, **common)  # type: ignore[arg-type]
    assert math.isclose(found.people.noise_multiplier, people.noise_multiplier, rel_tol=1e-6)
    assert math.isclose(found.rows.noise_multiplier, rows.noise_multiplier, rel_tol=1e-6)
    assert found.rows.batch_size == B * K
    assert found.people.noise_alike == pytest.approx(found.people.noise_unlike * math.sqrt(K))


def test_the_group_bound_keeps_the_promise_and_costs_more() -> None:
    found = compare_ways(QUESTION, 50, 6)
    noise = found.group_bound.noise_multiplier
    assert noise > found.rows.noise_multiplier
    plan = Plan.with_noise(
        noise_multiplier=noise, delta=1e-6, records=30_000, batch_size=300, steps=300, clipping=1.0,
        adjacency="add-remove", unit="row",
    )  # fmt: skip
    assert 2.5 < group_epsilon(plan.curve, 1e-6, 6) <= 3.0 + 1e-3


def test_one_row_each_is_the_same_either_way() -> None:
    found = compare_ways(QUESTION, 50, 1)
    assert found.people.noise_multiplier == pytest.approx(found.rows.noise_multiplier, rel=1e-9)


def test_the_words_follow_the_figures() -> None:
    found = compare_ways(QUESTION, 50, 6)

    def words(alike: float, unlike: float) -> str:
        people = Way("people", 50, 1.0, alike, unlike)
        return type(found)(6, 300, people, Way("rows", 300, 1.0, 1.0, 1.0), found.group_bound).in_words()

    assert words(0.8, 0.3).startswith("Draw people: that has at most 0.80")
    assert words(4.0, 1.5).startswith("Draw rows: drawing people has at least 1.50")
    assert "draw rows: drawing people has 2.00 times" in words(2.0, 0.5)


def test_a_batch_larger_than_the_people_is_refused() -> None:
    with pytest.raises(InvalidInput, match="batch_size"):
        compare_ways(QUESTION, 5001, 2)


def test_ways_are_compared_at_an_epsilon() -> None:
    asked = PlanRequest(
        records=1000, unit="user", advantage=0.1, delta=1e-6, adjacency="add-remove", steps=10
    )
    with pytest.raises(InvalidInput, match="the comparison needs an epsilon"):
        compare_ways(asked, 100, 4)
