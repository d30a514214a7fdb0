"""Shuffled reports: the exact law of the multiset for a few people, and the published figures."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from priced import curve_of

from tacit.accounting import account, losses
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import GroupPrivacy, Repeat, ShuffledReports, event_from_json, event_to_json

Array = NDArray[np.float64]
Law = dict[tuple[int, ...], float]


def shuffled(reports: list[Array]) -> Law:
    """The law of how many people sent each of the answers, one person after another."""
    size = reports[0].size
    law: Law = {(0,) * size: 1.0}
    for report in reports:
        longer: Law = {}
        for counts, chance in law.items():
            for answer, share in enumerate(report):
                key = (*counts[:answer], counts[answer] + 1, *counts[answer + 1 :])
                longer[key] = longer.get(key, 0.0) + chance * float(share)
        law = longer
    return law


def delta_of(p: Law, q: Law, epsilon: float) -> float:
    return sum(max(0.0, p.get(key, 0.0) - math.exp(epsilon) * q.get(key, 0.0)) for key in p.keys() | q.keys())


def response(epsilon: float, categories: int, answer: int) -> Array:
    wrong = 1.0 / (math.exp(epsilon) + categories - 1.0)
    return np.where(np.arange(categories) == answer, math.exp(epsilon) * wrong, wrong)


@pytest.mark.parametrize(
    ("people", "categories", "epsilon"), [(2, 2, 1.0), (5, 2, 2.0), (4, 3, 1.0), (3, 4, 2.5)]
)
def test_no_answers_of_the_others_exceed_the_bound(people: int, categories: int, epsilon: float) -> None:
    """Also above the bound for any randomiser, of which randomised response is one."""
    curves = [
        account(ShuffledReports(people, epsilon, kind), adjacency="replace-one")
        for kind in (categories, None)
    ]
    for rest in itertools.combinations_with_replacement(range(categories), people - 1):
        others = [response(epsilon, categories, answer) for answer in rest]
        p, q = (shuffled([response(epsilon, categories, mine), *others]) for mine in (0, 1))
        for at in (0.0, 0.2, 0.5, 0.9):
            truth = delta_of(p, q, at * epsilon)
            assert truth <= curves[0].delta(at * epsilon) * (1.0 + 1e-9)
            assert truth <= curves[1].delta(at * epsilon) * (1.0 + 1e-9)


@st.composite
def randomisers(draw: st.DrawFn) -> tuple[float, list[Array]]:
    """Laws of the reports on some values, each within e^epsilon of each other."""
    size, people = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    logs = st.lists(st.floats(-1.5, 1.5) | st.sampled_from([-1.5, 1.5]), min_size=size, max_size=size)
    base = np.exp(draw(st.lists(st.floats(-3.0, 0.0), min_size=size, max_size=size)))
    rows = [base * np.exp(draw(logs)) for _ in range(people + 1)]
    rows = [row / row.sum() for row in rows]
    epsilon = max(float(np.log(a / b).max()) for a, b in itertools.permutations(rows, 2))
    return max(epsilon, 1e-3) * (1.0 + 1e-12), rows


@settings(max_examples=20, deadline=None)
@given(made=randomisers())
def test_no_local_randomiser_exceeds_the_bound(made: tuple[float, list[Array]]) -> None:
    epsilon, (mine, other, *others) = made
    p, q = shuffled([mine, *others]), shuffled([other, *others])
    curve = account(ShuffledReports(len(others) + 1, epsilon), adjacency="replace-one")
    for at in (0.0, 0.3, 0.8):
        assert delta_of(p, q, at * epsilon) <= curve.delta(at * epsilon) * (1.0 + 1e-9) + 1e-15


def test_the_bound_is_attained_by_the_pair_that_it_is_of() -> None:
    """Two categories, and others of whom the attacker knows who answers by coin: the pair, by enumeration."""
    people, epsilon = 6, 1.0
    blanket = 2.0 / (math.exp(epsilon) + 1.0)
    curve = account(ShuffledReports(people, epsilon, 2), adjacency="replace-one")
    for at in (0.0, 0.3, 0.7):
        total = 0.0
        for coins in range(people):
            chance = math.comb(people - 1, coins) * blanket**coins * (1.0 - blanket) ** (people - 1 - coins)
            p, q = (shuffled([response(epsilon, 2, mine), *[np.full(2, 0.5)] * coins]) for mine in (0, 1))
            total += chance * delta_of(p, q, at)
        lower, upper = curve.delta_bounds(at)
        assert lower <= total * (1.0 + 1e-9)
        assert total * (1.0 - 1e-9) <= upper <= total * (1.0 + 1e-4)
        assert lower >= total * (1.0 - 1e-4)


@pytest.mark.parametrize(
    ("records", "epsilon", "lower", "upper"),
    [
        # the README of apple/ml-shuffling-amplification, and what its code gives with steps of 10 and 300
        (100_000, 4.0, 0.1675385583317841, 0.172790550755978),
        (10_000, 2.0, 0.1547741185446494, 0.15919189946522283),
        (1_000_000, 1.0, 0.0043336545632348174, 0.004529086763990921),
    ],
)
def test_the_published_brackets_hold_the_bound(
    records: int, epsilon: float, lower: float, upper: float
) -> None:
    found = account(ShuffledReports(records, epsilon), adjacency="replace-one").epsilon_bounds(1e-6)
    assert lower <= found[1] <= upper
    assert found[1] * 0.985 <= found[0] <= found[1]


@pytest.mark.parametrize("categories", [None, 2, 10])
def test_what_is_computed_grows_with_the_root_of_the_people_at_most(
    categories: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    laws, outcomes = losses._laws, list[int]()

    def counted(cells: list[losses._Cell], epsilon: float) -> tuple[list[tuple[Array, Array]], float]:
        found = laws(cells, epsilon)
        outcomes.append(sum(ratios.size for ratios, _ in found[0]))
        return found

    monkeypatch.setattr(losses, "_laws", counted)
    losses.shuffled_reports.__wrapped__(10**6, 1.0, categories)
    assert max(outcomes) < (10**7 if categories == 10 else 10**6)  # a second, and a tenth


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("categories", [None, 2, 3, 20])
def test_more_people_and_more_answers_cost_less_and_more_epsilon_more(categories: int | None) -> None:
    @cache
    def of(records: int, epsilon: float, kind: int | None = categories) -> float:
        return account(ShuffledReports(records, epsilon, kind), adjacency="replace-one").epsilon(1e-6)

    assert of(1, 1.5) <= 1.5 * (1.0 + 1e-9)
    assert of(30_000, 1.5) < of(3_000, 1.5) < of(300, 1.5) < 1.5
    assert of(3_000, 1.0) < of(3_000, 1.5) < of(3_000, 2.0)
    assert of(3_000, 1.5) <= of(3_000, 1.5, None)
    if categories is not None:
        assert of(3_000, 1.5, categories + 5) < of(3_000, 1.5)


def test_rounds_compose_and_other_methods_are_above_the_pair() -> None:
    rounds = Repeat(ShuffledReports(20_000, 2.0), 30)
    found = account(rounds, adjacency="zero-out", method="best")
    assert found.best_method(1e-6) == "pld"
    lower, upper = found.epsilon_bounds(1e-6)
    assert 0.95 * upper < lower < upper
    assert upper < account(rounds, adjacency="zero-out", method="optimal").epsilon(1e-6) < 30 * 0.12
    group = GroupPrivacy(ShuffledReports(20_000, 2.0), 3)
    assert account(group, adjacency="replace-one", method="optimal").epsilon(1e-6) < 3.0


def test_what_is_not_covered_is_refused() -> None:
    with pytest.raises(UnsupportedEvent, match="depends on the number of records"):
        curve_of(ShuffledReports(100, 1.0))
    with pytest.raises(InvalidInput, match="epsilon"):
        ShuffledReports(100, 0.0)
    with pytest.raises(InvalidInput, match="categories"):
        ShuffledReports(100, 1.0, 1)
    event = ShuffledReports(100, 1.0, 7)
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize("bug", ["chance", "people"])
def test_planted_bug_a_person_who_is_hidden_too_well(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the chance that the report is among the first two answers; or three times the people."""
    if bug == "chance":
        right = losses._chance
        monkeypatch.setattr(losses, "_chance", lambda m, r, epsilon: right(m, r, epsilon) / 2.0)
    size = 3 if bug == "chance" else 2
    loss = losses.shuffled_reports.__wrapped__(5 if bug == "chance" else 15, 1.0, size)
    p, q = (shuffled([response(1.0, size, mine), *[response(1.0, size, size - 1)] * 4]) for mine in (0, 1))
    ratios, masses = loss.atoms.T
    bounds = [float(masses @ -np.expm1(np.minimum(at - ratios, 0.0))) for at in (0.0, 0.3, 0.7)]
    truths = [delta_of(p, q, at) for at in (0.0, 0.3, 0.7)]
    assert any(truth > bound * (1.0 + 1e-9) for truth, bound in zip(truths, bounds, strict=True))
