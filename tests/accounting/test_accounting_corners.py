"""Corners of the accountant that took long: how much is worked out for one question, and what it is worth."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from priced import curve_of
from scipy.special import ndtr
from scipy.stats import norm

from tacit import Plan
from tacit.accounting import account, calibrate, grid, grid_price
from tacit.accounting import bins as balls
from tacit.events import (
    BallsInBins,
    Compose,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    Repeat,
    TruncatedPoissonSampled,
)

# --- work -------------------------------------------------------------------------------------------------


@contextmanager
def compositions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The points of every composition on a grid that is made."""
    made: list[int] = []
    original: Callable[..., Any] = vars(grid_price)["composition"]

    def counted(*args: Any, **keywords: Any) -> Any:
        found = original(*args, **keywords)
        made.append(found.masses.size)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(grid_price, "composition", counted)
        yield made


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, place: int) -> Iterator[list[int]]:
    """The sizes of the argument at ``place`` of every call."""
    sizes: list[int] = []
    original: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any, **keywords: Any) -> Any:
        sizes.append(int(np.size(args[place])))
        return original(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield sizes


# Each sigma is no other test's, so that nothing of it is remembered.
@pytest.mark.parametrize(
    ("bins", "sigma", "epsilon"), [(100, 0.801, 2.0), (40, 0.901, 1.5), (10, 0.802, 4.0)]
)
def test_balls_in_bins_take_some_points_and_not_millions(
    bins: int, sigma: float, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one grid, a lognormal was integrated at 10^8 points, with windows of 10^9 points considered."""
    curve = curve_of(BallsInBins(bins, Gaussian(sigma)))
    with counting(monkeypatch, balls._Lognormal, "density", 1) as densities:
        curve.delta(epsilon)
    assert sum(densities) <= 3_000_000
    with counting(monkeypatch, balls._Lognormal, "density", 1) as again:
        curve.delta(epsilon)
    assert again == []


def test_only_a_lower_end_makes_the_lower_law(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(monkeypatch, balls._Lognormal, "below", 1) as made:
        curve = curve_of(BallsInBins(30, Gaussian(1.003)))
        curve.epsilon(1e-5)
        assert made == []
        curve.epsilon_bounds(1e-5)
        assert len(made) >= 1


def test_transforms_of_balls_in_bins_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(monkeypatch, vars(balls)["scipy"].fft, "rfft", 0) as lengths:
        curve_of(BallsInBins(100, Gaussian(0.803))).delta(2.0)
    assert sum(lengths) <= 6_000_000
    assert max(lengths) <= 200_000


def test_what_would_be_composed_in_the_same_way_is_not_composed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At epsilon 0 the estimate stays far from delta, and the last round was repeated up to the eighth."""
    with compositions(monkeypatch) as made:
        curve_of(BallsInBins(100, Gaussian(1.004))).delta(0.0)
    assert len(made) <= 6


@pytest.mark.parametrize("steps", [5, 2])
def test_a_search_does_not_ask_for_lower_ends(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a bound is tight was asked of the grid, for every noise that was tried."""
    ends: list[int] = []
    original: Callable[..., Any] = vars(grid_price)["composition"]

    def counted(*args: Any, **keywords: Any) -> Any:
        ends.append(args[3])
        return original(*args, **keywords)

    monkeypatch.setattr(grid_price, "composition", counted)
    calibrate(
        lambda sigma: Repeat(PoissonSampled(0.1001, Gaussian(sigma)), steps),
        epsilon=50.0,
        delta=1e-5,
        adjacency="add-remove",
        method="best",
    )
    assert 0 < len(ends) <= 20
    assert ends.count(0) == 0


@pytest.mark.parametrize("sigma", [0.501, 3.001])
def test_one_step_at_epsilon_0_takes_few_cells(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    event = TruncatedPoissonSampled(0.01, 1000, 12, Gaussian(sigma))
    curve = curve_of(event)
    with counting(monkeypatch, grid, "_quadrature", 1) as edges:
        assert curve.epsilon(0.1) == 0.0
        lower, upper = curve.delta_bounds(0.0)
    assert sum(edges) <= 2_500_000
    assert lower <= upper <= lower * (1.0 + 1e-4)


# --- worth ------------------------------------------------------------------------------------------------


def two_bins(sigma: float, epsilon: float) -> float:
    """delta of one pass of two bins: given the one lognormal, what the other has to be is a threshold."""
    s, (nodes, weights) = 1.0 / sigma, leggauss(20)
    kinks = [(math.log(2.0) + sign * epsilon) / s + s / 2.0 for sign in (1.0, -1.0)]
    edges = np.unique(np.concatenate([np.linspace(-38.0, 38.0, 4001), kinks]))
    half = np.diff(edges) / 2.0
    z = (edges[:-1, None] + half[:, None] * (1.0 + nodes)).ravel()
    mass = (half[:, None] * weights).ravel() * norm.pdf(z)
    w = np.exp(s * z - s * s / 2.0)

    def shares(level: Any, sign: float) -> tuple[Any, Any]:  # P, and the mean, of W above (1) or below (-1)
        log = np.log(np.maximum(level, 1e-300)) / s
        there = level > 0.0
        beyond = 1.0 if sign > 0.0 else 0.0
        return (
            np.where(there, ndtr(-sign * (log + s / 2.0)), beyond),
            np.where(there, ndtr(-sign * (log - s / 2.0)), beyond),
        )

    chance, mean = shares(2.0 * math.exp(epsilon) - w, 1.0)
    remove = float(np.dot(mass, (w / 2.0 - math.exp(epsilon)) * chance + mean / 2.0))
    chance, mean = shares(2.0 * math.exp(-epsilon) - w, -1.0)
    add = float(np.dot(mass, (1.0 - math.exp(epsilon) * w / 2.0) * chance - math.exp(epsilon) / 2.0 * mean))
    return max(remove, add)


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize(
    ("sigma", "epsilon"), [(0.8, 0.5), (0.8, 4.0), (0.8, 7.0), (1.0, 5.5), (1.0, 6.0), (2.0, 3.0), (5.0, 1.2)]
)
def test_two_bins_far_out_in_the_tail(sigma: float, epsilon: float) -> None:
    truth = two_bins(sigma, epsilon)
    lower, upper = curve_of(BallsInBins(2, Gaussian(sigma))).delta_bounds(epsilon)
    assert lower <= truth * (1.0 + 1e-9)
    assert truth * (1.0 - 1e-9) <= upper <= truth * (1.0 + 1e-3)
    assert upper <= lower * (1.0 + 1e-2)


def test_many_bins_far_out_by_plain_convolution() -> None:
    """One grid over all decades was once so coarse that epsilon at 1e-9 was 1.83."""
    bins, epsilon, d, size = 100, 1.7584, 0.01, 1 << 20
    edges = d * np.maximum(np.arange(size + 1) - 0.5, 1e-12)
    masses = np.diff(norm.cdf(np.log(edges) + 0.5))
    total = np.maximum(np.fft.irfft(np.fft.rfft(masses) ** bins), 0.0)
    s = d * np.arange(size) / bins
    there = s < 60.0  # beyond, what rounding leaves would count
    truth = float(np.dot(np.maximum(s - math.exp(epsilon), 0.0)[there], total[there]))
    curve = curve_of(BallsInBins(bins, Gaussian(1.0)))
    lower, upper = curve.delta_bounds(epsilon)
    assert lower <= truth * (1.0 + 1e-3)
    assert truth * (1.0 - 1e-3) <= upper <= lower * (1.0 + 1e-2)
    assert curve.epsilon(1e-9) <= 1.76


def test_a_loss_next_to_0_is_no_lattice() -> None:
    """A sum of bins may lie 1e-16 off t, and all losses on a grid of that spacing: of 10^17 points."""
    lower, upper = curve_of(Repeat(BallsInBins(2, Gaussian(5.0)), 10)).epsilon_bounds(1e-5)
    assert 1.7 < lower <= upper <= lower * (1.0 + 1e-3)


def test_a_selection_of_passes_is_as_tight_as_its_curve_is_long() -> None:
    passes = PrivateSelection(Repeat(BallsInBins(10, Gaussian(2.0)), 2), "poisson", 5.0)
    curve = curve_of(passes)
    assert curve.epsilon(1e-10) <= 2.0  # was 4.9: the curve of one run ended at a delta of 1e-15
    many = curve_of(Repeat(BallsInBins(10, Gaussian(2.0)), 2))
    deltas = many.delta(np.linspace(0.0, 4.0, 60))
    assert np.all(np.diff(deltas) < 0.0)


@pytest.mark.thorough(
    instead="accounting/test_accounting_pairs_bins.py::test_balls_in_bins_with_other_mechanisms"
)
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_passes_with_other_mechanisms_have_a_narrow_bracket(delta: float) -> None:
    event: Event = Compose((Repeat(BallsInBins(5, Gaussian(1.2)), 3), Laplace(4.0)))
    lower, upper = account(event, adjacency="zero-out").epsilon_bounds(delta)
    assert lower <= upper <= lower * (1.0 + 3e-3)


# --- sums -------------------------------------------------------------------------------------------------


def plain(masses: Any, count: int) -> Any:
    found = np.ones(1)
    for _ in range(count):
        found = np.convolve(found, masses)
    return found


@pytest.mark.parametrize("bins", [1, 2, 7, 40])
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("rare", [1.0, 1e-9])
def test_sums_with_one_large_term_by_plain_convolution(bins: int, down: bool, rare: float) -> None:
    rng = np.random.default_rng(bins)
    few, many = rng.random(9), np.append(np.zeros(8), rng.random(17)) * rare
    scale = few.sum() + many.sum()
    few, many = few / scale, many / scale
    window = balls.window_of(many + np.pad(few, (0, many.size - few.size)), 0.25, bins, 1e-18, 1e-18)
    assert window is not None
    value, error, _ = balls.sum_of(few, many, bins, window, down=down)
    of_all, of_few = plain(many + np.pad(few, (0, many.size - few.size)), bins), plain(few, bins)
    exact = of_all - np.pad(of_few, (0, of_all.size - of_few.size))
    place = window.first + np.arange(window.size)
    there = place < exact.size
    truth = np.where(there, exact[np.minimum(place, exact.size - 1)], 0.0)
    noise = 1e-15 * np.where(there, of_all[np.minimum(place, exact.size - 1)], 0.0)  # of the difference here
    assert np.all(value + error >= truth - noise)
    assert np.all(value - error <= truth + noise + 1e-17 * rare)
    assert error.sum() <= 1e-10 * rare * bins
    assert not value[place < 8].any()  # one term at least is 8 or more


# --- digits -----------------------------------------------------------------------------------------------


@pytest.mark.thorough(cases="values")
@pytest.mark.filterwarnings("ignore:epsilon = 50:tacit.errors.PrivacyWarning")
@pytest.mark.parametrize(
    "goal",
    [{"epsilon": 3.0}, {"epsilon": 0.07}, {"epsilon": 50.0}, {"advantage": 0.2},
     {"true_positive_rate": 0.3, "false_positive_rate": 0.01}],
)  # fmt: skip
@pytest.mark.parametrize(("batch_size", "steps"), [(10, 300), (1000, 40), (100, 5)])
def test_a_plan_has_six_digits_of_noise_and_keeps_its_promise(
    goal: dict[str, Any], batch_size: int, steps: int
) -> None:
    plan = Plan.calibrate(
        **goal, delta=1e-5, records=1000, batch_size=batch_size, steps=steps, clipping=1.0,
        adjacency="add-remove", unit="row",
    )  # fmt: skip
    assert float(f"{plan.noise_multiplier:.5e}") == plan.noise_multiplier
    exact = calibrate(
        plan.event_with, **(goal | ({"delta": 1e-5} if "epsilon" in goal else {})),
        adjacency="add-remove", method="best",
    )  # fmt: skip
    assert exact <= plan.noise_multiplier <= exact * (1.0 + 2e-5)
    if "epsilon" in goal:
        assert plan.epsilon <= goal["epsilon"]
    elif "advantage" in goal:
        assert plan.curve.advantage() <= goal["advantage"]
    else:
        found = 1.0 - plan.curve.false_negative_rate(goal["false_positive_rate"])
        assert found <= goal["true_positive_rate"]


def test_processors_that_round_otherwise_make_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("tacit.accounting.calibrate")

    def plan() -> Plan:
        return Plan.calibrate(
            epsilon=2.5, delta=1e-5, records=5000, batch_size=50, steps=200, clipping=1.0,
            adjacency="add-remove", unit="row",
        )  # fmt: skip

    here, original = plan(), module._refine
    for off in (-1e-13, 1e-13):
        monkeypatch.setattr(module, "_refine", lambda *args, off=off: original(*args) + off)
        assert plan() == here
        assert plan().event == here.event
