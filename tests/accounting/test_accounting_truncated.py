"""Truncated Poisson samples, priced by whole ones: against enumerated mechanisms, the grid and 40 digits."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from priced import curve_of
from scipy.special import bdtrc

from tacit.accounting import calibrate, grid_price
from tacit.accounting.account import price_of
from tacit.accounting.flatten import flatten
from tacit.accounting.pair import counted
from tacit.accounting.pld import TruncatedPrice
from tacit.events import (
    Adjacency,
    Compose,
    Event,
    Gaussian,
    PoissonSampled,
    Repeat,
    TruncatedPoissonSampled,
)

Laws = dict[float, float]


def law_of_the_sum(values: list[float], rate: float, largest: int) -> Laws:
    """The law of the sum over a truncated sample, one set of sampled slots and one of kept ones at a time."""
    law: Laws = {}
    slots = range(len(values))
    for size in range(len(values) + 1):
        for sampled in combinations(slots, size):
            chance = rate**size * (1.0 - rate) ** (len(values) - size)
            ways = list(combinations(sampled, min(size, largest)))
            for kept in ways:
                total = sum(values[slot] for slot in kept)
                law[total] = law.get(total, 0.0) + chance / len(ways)
    return law


def true_delta(first: Laws, second: Laws, sigma: float, epsilon: float, steps: int) -> float:
    """The hockey-stick divergence of ``steps`` releases (1 or 2), by sums over a fine grid."""
    x = np.linspace(-9.0 * sigma - 8.0, 9.0 * sigma + 8.0, 4001 if steps == 1 else 1201)

    def density(law: Laws) -> Any:
        parts = [w * np.exp(-((x - m) ** 2) / (2.0 * sigma**2)) for m, w in law.items()]
        one = sum(parts) / (sigma * np.sqrt(2.0 * np.pi))
        return one if steps == 1 else np.multiply.outer(one, one)

    above = np.maximum(0.0, density(first) - np.exp(epsilon) * density(second))
    return float(above.sum()) * float(x[1] - x[0]) ** steps


SETTINGS = [  # records, rate, largest batch: cuts that are rare, common and certain
    (6, 0.02, 3),
    (6, 0.1, 4),
    (6, 0.3, 1),
    (5, 0.5, 2),
    (5, 1.0, 2),
]


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize(("records", "rate", "largest"), SETTINGS)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("present", [6, 2])
def test_no_enumerated_mechanism_loses_more(
    records: int, rate: float, largest: int, steps: int, present: int
) -> None:
    """Fewer records than the public number leave slots empty; empty slots are sampled too."""
    sigma, present = 1.1, min(present, records)
    event = Repeat(TruncatedPoissonSampled(rate, records, largest, Gaussian(sigma)), steps)
    epsilons = np.array([0.0, 0.5, 2.0])
    allowed = curve_of(event).delta(epsilons) * (1.0 + 1e-6) + 1e-13
    empty = [0.0] * (records - present)
    for others in ([-1.0] * (present - 1), [1.0] * (present - 1), [1.0, -1.0] * 3):
        others = [*others[: present - 1], *empty]
        laws = [law_of_the_sum([own, *others], rate, largest) for own in (1.0, 0.0)]
        for epsilon, most in zip(epsilons, allowed, strict=True):
            assert true_delta(laws[0], laws[1], sigma, epsilon, steps) <= most
            assert true_delta(laws[1], laws[0], sigma, epsilon, steps) <= most


def test_the_enumeration_notices_a_truncation_that_is_not_paid_for() -> None:
    laws = [law_of_the_sum([own, *[-1.0] * 5], 0.3, 1) for own in (1.0, 0.0)]
    poisson = curve_of(PoissonSampled(0.3, Gaussian(1.1)))
    assert true_delta(laws[0], laws[1], 1.1, 2.0, 1) > 1.2 * poisson.delta(2.0)


def truncated_price(event: Event, adjacency: Adjacency) -> TruncatedPrice:
    price = price_of(event, adjacency, "pld")
    assert isinstance(price, TruncatedPrice)
    return price


BRACKETED = [
    (Repeat(TruncatedPoissonSampled(0.01, 60_000, 760, Gaussian(2.0)), 300), Adjacency.ADD_REMOVE),
    (Repeat(TruncatedPoissonSampled(0.1, 100, 38, Gaussian(4.0)), 50), Adjacency.ZERO_OUT),
    (Repeat(TruncatedPoissonSampled(0.05, 200, 40, Gaussian(4.0)), 20), Adjacency.REPLACE_ONE),
    (
        Compose((Gaussian(9.0), Repeat(TruncatedPoissonSampled(0.05, 200, 40, Gaussian(4.0)), 20))),
        Adjacency.ADD_REMOVE,
    ),
]


@pytest.mark.parametrize(("event", "adjacency"), BRACKETED)
def test_both_ways_bracket_the_same_truth(event: Event, adjacency: Adjacency) -> None:
    price, delta = truncated_price(event, adjacency), 1e-5
    assert 0.0 < price.overflow < 1e-2 * delta
    lower, upper = price.epsilon_bounds(delta)
    on_grid = price.grid.epsilon_bounds(delta)
    assert lower <= on_grid[1]
    assert on_grid[0] <= upper
    assert upper - lower < 2e-3 * upper
    lower, upper = price.delta_bounds(on_grid[1])
    on_grid = price.grid.delta_bounds(on_grid[1])
    assert lower <= on_grid[1]
    assert on_grid[0] <= upper <= 1.011 * on_grid[1]


def test_many_answers_are_bounds_as_single_ones_are() -> None:
    price = truncated_price(*BRACKETED[1])
    deltas, epsilons = np.array([1e-2, 1e-4, 1e-12]), np.array([0.1, 1.0, 6.0])
    assert price.epsilons(deltas) == pytest.approx([price.epsilon(d) for d in deltas], rel=1e-3)
    assert price.deltas(epsilons) == pytest.approx([price.delta(e) for e in epsilons], rel=1e-2)


def test_a_rare_cut_is_priced_and_calibrated_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a composition on a grid")

    monkeypatch.setattr(grid_price, "composition", never)

    def family(sigma: float) -> Event:
        return Repeat(TruncatedPoissonSampled(0.01, 60_000, 750, Gaussian(sigma)), 1000)

    curve = curve_of(family(1.0))
    assert curve.epsilon(1e-5) == pytest.approx(1.8282, abs=4e-4)
    assert 1.8282 < curve.epsilon_bounds(1e-5)[0] <= curve.epsilon(1e-5)
    sigma = calibrate(family, epsilon=2.0, delta=1e-5, adjacency="add-remove")
    whole = calibrate(
        lambda s: Repeat(PoissonSampled(0.01, Gaussian(s)), 1000),
        epsilon=2.0,
        delta=1e-5,
        adjacency="add-remove",
    )
    assert whole <= sigma < 1.001 * whole


def test_a_cut_that_is_not_rare_is_priced_on_the_grid() -> None:
    event = TruncatedPoissonSampled(0.1, 100, 14, Gaussian(4.0))
    price = truncated_price(event, Adjacency.ADD_REMOVE)
    assert not price.is_enough(1e-5)
    assert price.epsilon(1e-5) == price.grid.epsilon(1e-5)
    poisson = curve_of(PoissonSampled(0.1, Gaussian(4.0))).epsilon(1e-5)
    assert price.epsilon(1e-5) > 1.2 * poisson


def test_counts_and_lists_cost_the_same() -> None:
    one = TruncatedPoissonSampled(0.1, 100, 38, Gaussian(4.0))
    listed = Compose((one, one, one))
    assert flatten(listed) == flatten(Repeat(one, 3))
    for event in (listed, Repeat(one, 3)):
        price = truncated_price(event, Adjacency.ADD_REMOVE)
        assert price.overflow == pytest.approx(3 * 0.38 * float(bdtrc(38, 100, 0.1)), rel=1e-6, abs=0.0)
        assert price.cut == pytest.approx(3 * float(bdtrc(37, 99, 0.1)), rel=1e-6, abs=0.0)


@pytest.mark.parametrize(
    ("records", "rate", "largest"),
    [(60_000, 0.01, 750), (60_000, 0.01, 1500), (1000, 0.1, 200), (10**8, 1e-5, 1300), (10**9, 1e-5, 11_000)],
)
def test_the_binomial_tail_is_as_exact_as_the_price_says(records: int, rate: float, largest: int) -> None:
    with mp.workdps(40):
        q = mp.mpf(rate)
        term = mp.binomial(records, largest + 1) * q ** (largest + 1) * (1 - q) ** (records - largest - 1)
        total, k = term, largest + 1
        while term > total * mp.mpf(10) ** -30:
            term *= mp.mpf(records - k) / (k + 1) * q / (1 - q)
            total, k = total + term, k + 1
        assert abs(bdtrc(largest, records, rate) / total - 1) < counted(records)


def test_a_cut_that_is_too_rare_for_a_float_is_priced() -> None:
    rate, sigma = 0.012529604134667697, 2.715060864743552
    once = TruncatedPoissonSampled(rate, 1_000_000, 17_044, Gaussian(sigma))
    whole = curve_of(PoissonSampled(rate, Gaussian(sigma))).epsilon(1e-5)
    assert whole * (1 - 1e-9) <= curve_of(once).epsilon(1e-5) <= whole * (1 + 1e-6)


@pytest.mark.parametrize("delta", [0.0243, 1e-3])
def test_a_delta_above_all_that_the_steps_can_tell_needs_no_grid(delta: float) -> None:
    """Three steps that hardly ever sample: the estimate was far off, its grid larger than memory."""
    event = Repeat(TruncatedPoissonSampled(3.9e-5, 100, 1, Gaussian(0.386)), 3)
    assert curve_of(event).epsilon_bounds(delta) == (0.0, 0.0)
    lower, upper = curve_of(event).epsilon_bounds(1e-5)
    assert 0.0 < lower <= upper
