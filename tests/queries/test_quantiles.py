"""Quantiles: losses by counting, the law of the choice, how far the rank is off."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_oracles import fix_bits, policy_of
from scipy import stats

from tacit.errors import InvalidInput
from tacit.ledger import Column, Policy
from tacit.noise.discrete import exponential_choice
from tacit.queries.measures import Bins, Choice, Regular, bins_of, choice_of
from tacit.queries.query import Quantile

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100),
    "kids": Column(kind="integer", lower=0, upper=8),
}


def policy(adjacency: str = "add-remove", **fields: Any) -> Policy:
    return policy_of(COLUMNS, adjacency, unit="row", **fields)


def places(values: list[float], candidates: tuple[float, ...]) -> list[int]:
    """Return the number of values nearest to each candidate."""
    counts = Counter(nearest(x, candidates) for x in values)
    return [counts[c] for c in candidates]


def nearest(x: float, candidates: tuple[float, ...]) -> float:
    return min(reversed(candidates), key=lambda c: abs(c - x))


qs = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.999, 1.0])


@given(qs, st.lists(st.integers(0, 9).map(float), max_size=30))
def test_losses_count_what_lies_below_and_above(q: float, values: list[float]) -> None:
    candidates = (1, 4, 6.5, 8)
    choice = choice_of(Quantile("age", q, candidates), policy(), Fraction(1), groups=False)
    d = Fraction(str(q)).denominator
    rank = Fraction(str(q)) * len(values)
    if q in (0.0, 1.0):
        d, rank = 1, Fraction(len(values) - abs(choice.shift) if q else choice.shift)
    moved = [nearest(x, candidates) for x in values]
    for candidate, loss in zip(candidates, choice.losses(places(values, candidates)), strict=True):
        first, last = sum(x < candidate for x in moved), sum(x <= candidate for x in moved)
        assert loss == d * max(Fraction(0), first - rank, rank - last)


@given(qs, st.lists(st.integers(0, 9).map(float), min_size=1, max_size=20), st.integers(0, 9).map(float))
def test_one_value_moves_losses_by_the_sensitivity(q: float, values: list[float], new: float) -> None:
    candidates = (1, 4, 6.5, 8)
    item = Quantile("age", q, candidates)
    for rules, neighbour in ((policy(), values[1:]), (policy("replace-one"), [new, *values[1:]])):
        choice = choice_of(item, rules, Fraction(1), groups=False)
        one, other = (choice.losses(places(each, candidates)) for each in (values, neighbour))
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= choice.sensitivity


def test_many_equal_values_are_the_median_themselves() -> None:
    """Half of the values are 2.  A loss that looks at what is below and above alone would rather have 3."""
    values = [1.0] * 50 + [2.0] * 500 + [4.0] * 450
    item = Quantile("kids", 0.5)
    choice = choice_of(item, policy(), Fraction(1), groups=False)
    losses = choice.losses(places(values, choice.values))
    assert [answer for answer, loss in zip(choice.values, losses, strict=True) if loss == 0] == [2.0]


def test_sensitivities_grow_with_the_rows_of_a_unit() -> None:
    unit: dict[str, Any] = {"unit_column": "pid", "rows_per_unit": 3}
    item = Quantile("age", 0.25)
    assert choice_of(item, policy(), Fraction(1), groups=False).sensitivity == 3
    assert choice_of(item, policy(**unit), Fraction(1), groups=True).sensitivity == 9
    assert choice_of(item, policy("replace-one"), Fraction(1), groups=False).sensitivity == 4
    assert choice_of(item, policy("replace-one"), Fraction(1), groups=True).sensitivity == 6


def log_chances(choice: Choice, counts: list[int]) -> list[float]:
    """log P of every candidate, from the losses and the rate."""
    exponents = [-float(choice.rate) * loss for loss in choice.losses(counts)]
    whole = math.log(math.fsum(math.exp(x) for x in exponents))
    return [x - whole for x in exponents]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.75, 1.0])
def test_the_range_of_the_choice_is_epsilon_and_comes_near(q: float, adjacency: str) -> None:
    """The log ratios of two neighbours' chances differ by at most epsilon (1905.04273, Definition 5)."""
    candidates, epsilon = (1, 4, 6.5, 8), Fraction(3, 4)
    choice = choice_of(Quantile("age", q, candidates), policy(adjacency), epsilon, groups=False)
    widest = 0.0
    for low in range(0, 60, 3):
        values = [0.0] * low + [5.0] * 20 + [9.0] * (60 - low)
        for new in ([], [5.0], [9.0]):
            neighbour = [*values[1:], *new] if adjacency == "replace-one" else [*values, *(new or [0.0])]
            one, other = (log_chances(choice, places(each, candidates)) for each in (values, neighbour))
            ratios = [a - b for a, b in zip(one, other, strict=True)]
            if len(neighbour) == len(values) or adjacency == "add-remove":
                widest = max(widest, max(ratios) - min(ratios))
    assert widest <= 0.75 * (1 + 1e-9)
    if 0.0 < q < 1.0:
        assert widest >= 0.75 * 0.45, "it is not half of what it may be"


def fit(losses: list[int], rate: Fraction, drawn: Fraction, draws: int = 20_000) -> float:
    """p of a chi-square test that choices at rate ``drawn`` follow the law of ``rate``."""
    counts = Counter(exponential_choice(losses, drawn) for _ in range(draws))
    weights = [math.exp(-float(rate) * loss) for loss in losses]
    expected = [draws * weight / math.fsum(weights) for weight in weights]
    return float(stats.chisquare([counts[i] for i in range(len(losses))], expected).pvalue)


@pytest.mark.untraced
def test_the_choice_follows_its_law_and_no_other() -> None:
    losses, rate = [3, 0, 1, 5, 1], Fraction(2, 3)
    assert fit(losses, rate, rate) > 1e-6
    assert fit(losses, rate, rate * Fraction(11, 10)) < 1e-6
    assert fit([loss - 7 for loss in losses], rate, rate) > 1e-6, "what counts are differences"


def test_choices_need_losses_and_a_rate() -> None:
    for losses, rate in (([], Fraction(1)), ([1], Fraction(0)), ([1], Fraction(-1)), ([1], 0.5)):
        with pytest.raises(InvalidInput):
            exponential_choice(losses, rate)  # type: ignore[arg-type]


@pytest.mark.untraced
def test_the_rank_is_off_by_no_more_than_stated_in_95_of_100() -> None:
    spread, piled = [float(x % 100) for x in range(2000)], [0.0] * 900 + [60.0] * 60 + [99.9] * 40
    missed = {}
    for q, values in itertools.product((0.5, 0.9, 1.0), (spread, piled)):
        item = Quantile("age", q)
        choice = choice_of(item, policy(), Fraction(1, 2), groups=False)
        counts = places(values, choice.values)
        losses = choice.losses(counts)
        moved = np.array(choice.values)[np.abs(np.subtract.outer(values, choice.values)).argmin(axis=1)]
        ordered, wanted = np.sort(moved), q * len(values)
        low, high = (np.searchsorted(ordered, choice.values, side) for side in ("left", "right"))
        off = np.maximum(0.0, np.maximum(low - wanted, wanted - high))
        answers = [exponential_choice(losses, choice.rate) for _ in range(120)]
        missed[q, values[-1]] = int((off[answers] > choice.rank_error).sum())
    assert max(missed.values()) <= 18, missed
    tight = Choice(choice.values, 1, 1, 0, 1, Fraction(100))
    assert tight.rank_error == 0, "a large epsilon misses by less than a row"


def test_candidates_are_a_grid_within_the_bounds_or_those_given() -> None:
    regular = bins_of(Quantile("age", 0.5), policy())
    assert isinstance(regular, Regular)
    wide = choice_of(Quantile("age", 0.5), policy(), Fraction(1), groups=False).values
    assert (wide[0], len(wide)) == (0.0, 1024 + 1)
    assert 99.9 <= wide[-1] <= 100.0
    whole = choice_of(Quantile("kids", 0.5), policy(), Fraction(1), groups=False).values
    assert whole == tuple(range(9))
    given_ones = bins_of(Quantile("kids", 0.5, (1, 2.5)), policy())
    assert given_ones == Bins("kids", (1.75,), (False,))


def test_a_wrong_number_of_places_is_refused() -> None:
    choice = choice_of(Quantile("kids", 0.5), policy(), Fraction(1), groups=False)
    with pytest.raises(InvalidInput, match=r"per candidate \(9\)"):
        choice.losses([1, 2])
