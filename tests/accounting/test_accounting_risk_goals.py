"""Noise for a risk of attacks: against closed forms, and a brute-force search over the trade-off curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from priced import curve_of
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from tacit.accounting import calibrate
from tacit.accounting.calibrate import LooseBudget
from tacit.errors import BudgetExceeded, InvalidInput
from tacit.events import Adjacency, ApproximateDP, Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat


def hockey_sticks(q: float, sigma: float, epsilons: np.ndarray) -> np.ndarray:
    """The larger of both directions, of one Poisson-sampled Gaussian, in closed form."""

    def tails(log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # where the log ratio is above
        inside = np.maximum(np.expm1(log_ratio) / q, -1.0)
        with np.errstate(divide="ignore"):
            cut = sigma**2 * np.log1p(inside) + 0.5
        return ndtr((1.0 - cut) / sigma) * q + ndtr(-cut / sigma) * (1.0 - q), ndtr(-cut / sigma)

    p, other = tails(epsilons)
    removed = p - np.exp(epsilons) * other
    p, other = tails(-epsilons)
    added = (1.0 - other) - np.exp(epsilons) * (1.0 - p)
    return np.asarray(np.maximum(np.maximum(removed, added), 0.0))


def brute_force_rate(q: float, sigma: float, false: float) -> float:
    """The largest true-positive rate at a false-positive rate: the best of many lines, and again near it."""
    epsilons = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 20_000)])
    for _ in range(3):
        deltas = hockey_sticks(q, sigma, epsilons)
        lines = np.maximum(
            1.0 - deltas - np.exp(epsilons) * false, np.exp(-epsilons) * (1.0 - deltas - false)
        )
        best = int(np.argmax(lines))
        near = epsilons[max(best - 1, 0)], epsilons[min(best + 1, epsilons.size - 1)]
        epsilons = np.linspace(*near, 5000)
    return 1.0 - float(lines.max())


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.7])
def test_noise_for_an_advantage_is_that_of_the_closed_form(limit: float) -> None:
    found = calibrate(Gaussian, advantage=limit, adjacency="add-remove")
    truth = 1.0 / (2.0 * float(ndtri((1.0 + limit) / 2.0)))
    assert truth <= found * (1 + 1e-12) <= truth * (1 + 1e-6)

    def sampled(sigma: float) -> Event:
        return PoissonSampled(0.8, Gaussian(sigma))

    found = calibrate(sampled, advantage=limit, adjacency="add-remove")
    truth = brentq(lambda sigma: 0.8 * (2.0 * ndtr(0.5 / sigma) - 1.0) - limit, 0.05, 1e3, xtol=1e-12)
    assert truth <= found * (1 + 1e-12) <= truth * (1 + 1e-6)


@pytest.mark.parametrize(("true", "false"), [(0.05, 0.01), (0.5, 0.1), (1e-3, 1e-4)])
def test_noise_for_a_rate_is_that_of_a_brute_force_search(true: float, false: float) -> None:
    found = calibrate(Gaussian, true_positive_rate=true, false_positive_rate=false, adjacency="add-remove")
    truth = 1.0 / float(ndtri(true) - ndtri(false))
    assert truth <= found * (1 + 1e-12) <= truth * (1 + 2e-6)

    def sampled(sigma: float) -> Event:
        return PoissonSampled(0.6, Gaussian(sigma))

    found = calibrate(sampled, true_positive_rate=true, false_positive_rate=false, adjacency="add-remove")
    truth = brentq(lambda sigma: brute_force_rate(0.6, sigma, false) - true, 0.1, 50.0, xtol=1e-10)
    assert abs(found / truth - 1.0) <= 2e-6


def test_the_goal_is_kept_by_a_run_and_asks_for_less_noise_than_epsilon_would() -> None:
    def run(sigma: float) -> Event:
        return Repeat(PoissonSampled(0.01, Gaussian(sigma)), 1000)

    noise = calibrate(run, advantage=0.1, adjacency="add-remove")
    assert curve_of(run(noise)).advantage() <= 0.1
    assert curve_of(run(noise / (1 + 1e-6))).advantage() > 0.1
    # an epsilon that alone implies the advantage, by (e^eps - 1 + 2 delta) / (e^eps + 1), costs more
    implied = math.log((1.0 + 0.1) / (1.0 - 0.1))
    assert calibrate(run, epsilon=implied, delta=1e-6, adjacency="add-remove") > 1.5 * noise


def test_where_the_search_ended_is_said() -> None:
    with pytest.raises(
        LooseBudget, match=r"advantage of 0\.9 is too loose.* multiplier 0\.1.* an advantage of"
    ):
        calibrate(lambda s: PoissonSampled(0.1, Gaussian(s)), advantage=0.9, adjacency="add-remove")
    with pytest.raises(BudgetExceeded, match=r"reaches an advantage of 0\.1.* costs an advantage of 0\.24"):
        calibrate(
            lambda s: Compose((ApproximateDP(0.5, 0.0), Gaussian(s))), advantage=0.1, adjacency="add-remove"
        )


def test_just_one_goal_is_asked_for() -> None:
    family, both = Laplace, Adjacency.ADD_REMOVE
    with pytest.raises(InvalidInput, match="exactly one target"):
        calibrate(family, adjacency=both)
    with pytest.raises(InvalidInput, match="exactly one target"):
        calibrate(family, epsilon=1.0, adjacency=both)
    with pytest.raises(InvalidInput, match="exactly one target"):
        calibrate(family, epsilon=1.0, delta=1e-5, advantage=0.1, adjacency=both)
    with pytest.raises(InvalidInput, match="exactly one target"):
        calibrate(family, true_positive_rate=0.1, adjacency=both)
    with pytest.raises(InvalidInput, match="advantage"):
        calibrate(family, advantage=1.5, adjacency=both)
    with pytest.raises(InvalidInput, match="true_positive_rate"):
        calibrate(family, true_positive_rate=0.1, false_positive_rate=0.2, adjacency=both)
