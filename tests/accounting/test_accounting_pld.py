"""The PLD accountant against dp_accounting, and at its ends; ``test_accounting_oracles`` has references."""

from __future__ import annotations

import math
import warnings
from typing import Any
from unittest import mock

import mpmath as mp
import numpy as np
import pytest
from priced import curve_of, dp_sgd

from tacit.accounting import account, convolve
from tacit.accounting.convolve import compose
from tacit.events import (
    ApproximateDP,
    Compose,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    Repeat,
    WithoutReplacement,
)

# --- dp_accounting: what has no closed form --------------------------------------------------------------


def _their_epsilon(build: str, delta: float, count: int, **settings: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.pld import privacy_loss_distribution as theirs

        single = getattr(theirs, build)(value_discretization_interval=1e-4, **settings)
        return float(single.self_compose(count).get_epsilon_for_delta(delta))


def _replace_one() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.privacy_accountant import NeighboringRelation

        return NeighboringRelation.REPLACE_ONE


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.1, 5.0, 1000), (0.01, 1.0, 1000), (0.5, 2.0, 1)])
def test_replace_one_against_dp_accounting(q: float, sigma: float, steps: int) -> None:
    theirs = _their_epsilon(
        "from_gaussian_mechanism",
        1e-5,
        steps,
        standard_deviation=sigma,
        sampling_prob=q,
        neighboring_relation=_replace_one(),
    )
    lower, upper = account(dp_sgd(q, sigma, steps), adjacency="replace-one").epsilon_bounds(1e-5)
    assert lower <= theirs
    assert upper == pytest.approx(theirs, rel=3e-4)


@pytest.mark.parametrize(
    ("q", "scale", "steps"), [(1.0, 10.0, 10), (1.0, 10.0, 100), (0.01, 2.0, 1000), (1.0, 2.0, 1)]
)
def test_laplace_against_dp_accounting(q: float, scale: float, steps: int) -> None:
    theirs = _their_epsilon("from_laplace_mechanism", 1e-5, steps, parameter=scale, sampling_prob=q)
    event = Repeat(PoissonSampled(q, Laplace(scale)), steps)
    lower, upper = curve_of(event).epsilon_bounds(1e-5)
    assert lower <= theirs * (1 + 1e-9)
    assert upper == pytest.approx(theirs, rel=3e-4)
    if q == 1.0:
        assert upper <= steps / scale * (1 + 1e-9)  # pure differential privacy caps it


def test_replace_one_at_small_delta_is_not_what_dp_accounting_loses_to_rounding() -> None:
    # dp_accounting says 3.442981; its delta loses relative accuracy there. Ours brackets from both sides.
    lower, upper = account(dp_sgd(0.01, 4.0, 10_000), adjacency="replace-one").epsilon_bounds(1e-12)
    assert lower == pytest.approx(3.44920, abs=2e-4)
    assert lower <= upper <= lower * (1 + 1e-4)


# --- Guarantee -------------------------------------------------------------------------------------------


def test_add_remove_reports_the_larger_direction_and_zero_out_has_the_same_pair() -> None:
    event = dp_sgd(0.01, 4.0, 10_000)
    both = curve_of(event).epsilon(1e-5)
    assert both > 0.946866  # remove; add alone is .937036
    assert account(event, adjacency="zero-out").epsilon(1e-5) == both


def test_large_delta_costs_nothing() -> None:
    event = dp_sgd(0.01, 4.0, 100)
    assert curve_of(event).epsilon(0.5) == 0.0
    assert curve_of(event).epsilon_bounds(0.5) == (0.0, 0.0)


def test_huge_epsilon_has_no_delta() -> None:
    laplace = Repeat(Laplace(2.0), 3)
    assert curve_of(laplace).delta(1.6) == 0.0
    assert curve_of(dp_sgd(0.01, 4.0, 100)).delta(500.0) < 1e-50


def test_epsilon_is_infinite_only_where_delta_is_out_of_reach() -> None:
    sampled = WithoutReplacement(10_000, 100, Gaussian(8.0))
    curve = account(Repeat(sampled, 100_000), adjacency="replace-one")
    assert curve.epsilon(1e-300) == math.inf  # the tails cut off are larger than that
    assert 29.0 < curve.epsilon_bounds(1e-300)[0] < math.inf
    assert math.isfinite(curve.epsilon(1e-280))
    assert 30.0 < curve_of(dp_sgd(0.01, 4.0, 100_000)).epsilon(1e-300) < 31.0
    assert 59.0 < account(dp_sgd(0.01, 4.0, 100_000), adjacency="replace-one").epsilon(1e-300) < 60.0


@pytest.mark.untraced
@pytest.mark.parametrize(("coin", "steps", "leak"), [(0.1, 100, 0.0), (0.1, 100, 1e-9), (0.01, 3000, 1e-12)])
def test_delta_bounds_enclose_the_exact_delta(coin: float, steps: int, leak: float) -> None:
    """One composition serves many epsilons.  The sum of T coins with a loss of +-eps: the binomial law."""
    deviation = coin * math.sqrt(steps)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 8.0, 10), np.linspace(2.0, 2.1, 4)]) * deviation
    curve = curve_of(Repeat(ApproximateDP(coin, leak), steps))
    lower, upper = curve.delta_bounds(epsilons)
    assert np.all(np.diff(upper[:-4]) < 0.0)
    with mp.workdps(30):
        heavy, infinite = 1 / (1 + mp.exp(-mp.mpf(coin))), 1 - (1 - mp.mpf(leak)) ** steps
        top, pmf = mp.mpf(coin) * steps, mp.mpf(heavy) ** steps
        sums = []
        for k in range(steps // 2 + 1):  # the number of losses of -eps
            sums.append((top - 2 * mp.mpf(coin) * k, pmf))
            pmf *= (1 - heavy) / heavy * (steps - k) / (k + 1)
        for eps, least, most in zip(epsilons, lower, upper, strict=True):
            finite = mp.fsum(p * (1 - mp.exp(mp.mpf(eps) - s)) for s, p in sums if s > eps)
            exact = float(infinite + (1 - infinite) * finite)
            assert least <= exact * (1 + 1e-14)
            assert exact * (1 - 1e-14) <= most <= least * (1 + 1e-6)


def test_delta_far_out_is_refined_and_beyond_the_largest_loss_it_is_the_leak() -> None:
    curve = curve_of(Repeat(ApproximateDP(0.1, 1e-9), 100))
    lower, upper = curve.delta_bounds(10.1)
    exact = -math.expm1(100 * math.log1p(-1e-9))
    assert exact * (1 - 1e-10) <= lower <= exact <= upper <= exact * (1 + 1e-10)
    assert curve_of(Repeat(Laplace(2.0), 3)).delta_bounds(1.6) == (0.0, 0.0)


def test_neighbouring_epsilons_share_a_composition() -> None:
    sampled = WithoutReplacement(10_000, 100, Gaussian(8.0))
    curve = account(Repeat(sampled, 10_000), adjacency="replace-one")
    with mock.patch.object(convolve, "compose", wraps=compose) as counted:
        lower, upper = curve.delta_bounds(np.linspace(2.0, 2.01, 50))
    assert 0 < counted.call_count <= 4  # for 50 epsilons; half a second each
    assert np.all(np.diff(upper) < 0.0)
    assert np.all((lower > 0.0) & (lower <= upper) & (upper <= lower * (1 + 2e-3)))


@pytest.mark.parametrize("sampled", [WithoutReplacement(10_000, 100, Gaussian(30.0)), dp_sgd(0.01, 1e6, 1)])
def test_a_delta_out_of_reach_is_infinite_not_an_overflow(sampled: Event) -> None:
    assert account(Repeat(sampled, 100), adjacency="replace-one").epsilon(1e-300) == math.inf


def test_gaussian_and_laplace_mixed() -> None:
    event = Compose((Laplace(2.0), Gaussian(2.0)))
    both = curve_of(event)
    gaussian = curve_of(Gaussian(2.0))
    lower, upper = both.epsilon_bounds(1e-5)
    assert gaussian.epsilon(1e-5) < lower <= upper < gaussian.epsilon(1e-5) + 0.5
