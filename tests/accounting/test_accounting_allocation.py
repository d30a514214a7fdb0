"""Renyi divergence of balls in bins: integrals over all bins at once, the pair, and k steps of t."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from priced import curve_of

from tacit.accounting import account
from tacit.accounting import renyi as quadrature
from tacit.accounting.renyi import balls_in_bins
from tacit.errors import UnsupportedEvent
from tacit.events import BallsInBins, Gaussian, Repeat

Array = NDArray[np.float64]


def brute(bins: int, sigma: float, alpha: float, add: bool) -> float:
    """The divergence by the trapezoid rule in as many dimensions as there are bins."""
    x = np.arange(-9.0 * sigma - 1.0, (9.0 + alpha / sigma) * sigma + 1.0, min(sigma, sigma**2) / 3.0)
    one = np.exp(-((x / sigma) ** 2) / 2.0)
    one /= one.sum()
    w = np.exp((2.0 * x - 1.0) / (2.0 * sigma**2))
    total, chance = w, one
    for _ in range(bins - 1):
        total, chance = np.add.outer(total, w).ravel(), np.multiply.outer(chance, one).ravel()
    power = 1.0 - alpha if add else alpha
    return float(math.log(chance @ (total / bins) ** power) / (alpha - 1.0))


CASES = [(2, 0.5, 2.0), (2, 0.7, 3.0), (2, 0.4, 2.0), (2, 1.5, 6.0), (3, 1.0, 2.0), (3, 1.2, 3.0)]


@pytest.mark.parametrize(("bins", "sigma", "alpha"), CASES)
def test_whole_orders_are_the_integral(bins: int, sigma: float, alpha: float) -> None:
    truth = max(brute(bins, sigma, alpha, add) for add in (False, True))
    found = float(balls_in_bins(bins, sigma, np.array([alpha]))[0])
    assert truth * (1.0 - 1e-9) <= found <= truth * (1.0 + 1e-3)


@settings(max_examples=25, deadline=None)
@given(sigma=st.floats(0.35, 3.0), alpha=st.floats(1.05, 6.0))
def test_no_order_is_below_the_integral(sigma: float, alpha: float) -> None:
    truth = max(brute(2, sigma, alpha, add) for add in (False, True))
    assert truth * (1.0 - 1e-9) <= float(balls_in_bins(2, sigma, np.array([alpha]))[0])


@pytest.mark.parametrize(("bins", "sigma", "alpha"), [(2, 0.5, 2.5), (2, 1.5, 4.0), (3, 1.0, 2.5)])
def test_adding_is_the_integral_too(bins: int, sigma: float, alpha: float) -> None:
    b = alpha - 1.0
    truth = brute(bins, sigma, alpha, add=True)
    assert truth * (1.0 - 1e-9) <= quadrature._log_inverse(bins, sigma, b) / b <= truth * (1.0 + 2e-3)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(("bins", "sigma", "epochs"), [(100, 0.8, 1), (100, 0.8, 10), (1000, 1.0, 10)])
def test_it_is_above_the_pair_and_not_far(bins: int, sigma: float, epochs: int) -> None:
    event = Repeat(BallsInBins(bins, Gaussian(sigma)), epochs)
    tight = curve_of(event).epsilon_bounds(1e-5)
    found = curve_of(event, "rdp").epsilon(1e-5)
    assert tight[1] < found < 1.7 * tight[1]


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.29])
def test_little_noise_has_a_bound_below_that_of_a_known_bin(sigma: float) -> None:
    event = Repeat(BallsInBins(100, Gaussian(sigma)), 10)
    best = account(event, adjacency="zero-out", method="best")
    known = account(Repeat(Gaussian(sigma), 10), adjacency="zero-out", method="rdp").epsilon(1e-5)
    assert best.best_method(1e-5) == "rdp"
    assert best.epsilon(1e-5) <= known * (1.0 + 1e-9)
    with pytest.raises(UnsupportedEvent, match="'best' or 'rdp'"):
        account(event, adjacency="zero-out")
    with pytest.raises(UnsupportedEvent, match="BallsInBins"):
        account(event, adjacency="replace-one", method="rdp")


@pytest.mark.parametrize(("steps", "chosen"), [(4, 2), (5, 2), (6, 3), (7, 2)])
@pytest.mark.parametrize("order", [2, 3])
def test_k_steps_of_t_cost_no_more_than_k_epochs_of_fewer(steps: int, chosen: int, order: int) -> None:
    """As the docstring proves, E_Q (P/Q)^a is a mean of e^{common pairs / sigma^2} over sets of steps."""
    sigma = 0.7
    sets = list(itertools.combinations(range(steps), chosen))
    total = 0.0
    for drawn in itertools.product(sets, repeat=order):
        common = sum(len(set(a) & set(b)) for a, b in itertools.combinations(drawn, 2))
        total += math.exp(common / sigma**2)
    truth = math.log(total / len(sets) ** order) / (order - 1.0)
    assert truth <= chosen * float(balls_in_bins(steps // chosen, sigma, np.array([float(order)]))[0])


@pytest.mark.parametrize("bug", ["_log_moments_of_bins", "_laplace_transform"])
def test_planted_bug_one_bin_too_many(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(quadrature, bug)
    monkeypatch.setattr(quadrature, bug, lambda bins, sigma: right(bins + 1, sigma))
    if bug == "_log_moments_of_bins":
        assert float(balls_in_bins(2, 0.7, np.array([3.0]))[0]) < brute(2, 0.7, 3.0, add=False)
    else:
        assert quadrature._log_inverse(2, 1.0, 2.0) / 2.0 < brute(2, 1.0, 3.0, add=True)
