"""One composition for many questions: against sums written out, and likelihood-ratio tests on cells.

The oracle of the trade-off curve knows nothing of privacy losses.  It cuts the outcomes into cells, orders
the cells by the ratio of their probabilities, and reads off the errors of the best tests.  To see only the
cell is post-processing, so that its curve is above the true one, by the square of the cells' width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from priced import curve_of
from scipy.stats import laplace, norm

from tacit.accounting import account, convolve
from tacit.accounting.convolve import Composition, Window, compose, directly
from tacit.accounting.grid import Masses, dominating
from tacit.accounting.grid_price import PldPrice, Profile
from tacit.accounting.losses import loss_of
from tacit.audits import Claim
from tacit.events import (
    Compose,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    Repeat,
    WithoutReplacement,
)

Array: TypeAlias = NDArray[np.float64]
Law: TypeAlias = tuple[Array, Array]  # the probabilities of each cell under P and under Q

RATES = np.concatenate([np.logspace(-6.0, -1.0, 100), np.linspace(0.101, 0.999, 100)])


# --- the oracle: likelihood-ratio tests --------------------------------------------------------------------


def _cells(cdf: Callable[[Array], Array], low: float, high: float, cells: int) -> Array:
    edges = np.concatenate([[-np.inf], np.linspace(low, high, cells - 1), [np.inf]])
    return np.asarray(np.diff(cdf(edges)))


def _sampled_gaussian(q: float, sigma: float, cells: int) -> Law:
    """With the record, and without it."""

    def around(center: float) -> Array:
        return _cells(lambda x: norm.cdf((x - center) / sigma), -8.0 * sigma, 1.0 + 8.0 * sigma, cells)

    return (1.0 - q) * around(0.0) + q * around(1.0), around(0.0)


def _laplace(scale: float, cells: int) -> Law:
    edges = np.linspace(0.0, 1.0, cells - 1)  # beyond these, the ratio is constant

    def around(center: float) -> Array:
        return np.diff(laplace.cdf(np.concatenate([[-np.inf], edges, [np.inf]]), center, scale))

    return around(1.0), around(0.0)


def _both(first: Law, second: Law) -> Law:
    return np.multiply.outer(first[0], second[0]).ravel(), np.multiply.outer(first[1], second[1]).ravel()


def _errors(p: Array, q: Array) -> tuple[Array, Array]:
    """False-positive and false-negative rates of the tests that take the cells of largest p/q for members."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-(p / q), kind="stable")  # cells that are never seen come last
    return np.append(0.0, np.cumsum(q[order])), 1.0 - np.append(0.0, np.cumsum(p[order]))


def _best_tests(law: Law, rates: Array) -> Array:
    """The convex hull of the errors of all tests, with the record as either hypothesis."""
    (a, b), (c, d) = _errors(*law), _errors(*law[::-1])
    curves = [np.interp(RATES, a, b), np.interp(RATES, c, d)]
    return _hull(
        np.concatenate([[0.0], RATES, [1.0]]), np.concatenate([[1.0], np.minimum(*curves), [0.0]]), rates
    )


def _hull(x: Array, y: Array, at: Array) -> Array:
    """The largest convex function below the points."""
    kept: list[int] = []
    for i in range(x.size):
        while len(kept) > 1 and (y[kept[-1]] - y[kept[-2]]) * (x[i] - x[kept[-2]]) >= (y[i] - y[kept[-2]]) * (
            x[kept[-1]] - x[kept[-2]]
        ):
            kept.pop()
        kept.append(i)
    return np.interp(at, x[kept], y[kept])


@dataclass(frozen=True)
class Known:
    """An event, the same with a little more noise, and its law, cut into cells."""

    event: Event
    quieter: Event
    law: Callable[[], Law]


KNOWN = {
    "one step": Known(
        Compose((PoissonSampled(0.3, Gaussian(0.7)),)),
        PoissonSampled(0.3, Gaussian(0.74)),
        lambda: _sampled_gaussian(0.3, 0.7, 20_000),
    ),
    "two steps": Known(
        Repeat(PoissonSampled(0.2, Gaussian(1.0)), 2),
        Repeat(PoissonSampled(0.2, Gaussian(1.05)), 2),
        lambda: _both(_sampled_gaussian(0.2, 1.0, 600), _sampled_gaussian(0.2, 1.0, 600)),
    ),
    "two Laplace": Known(
        Repeat(Laplace(1.3), 2),
        Repeat(Laplace(1.4), 2),
        lambda: _both(_laplace(1.3, 600), _laplace(1.3, 600)),
    ),
    "a Gaussian, sampled, and Laplace": Known(
        Compose((PoissonSampled(0.5, Gaussian(0.8)), Laplace(2.0))),
        Compose((PoissonSampled(0.5, Gaussian(0.84)), Laplace(2.0))),
        lambda: _both(_sampled_gaussian(0.5, 0.8, 600), _laplace(2.0, 600)),
    ),
}


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize("name", KNOWN)
def test_trade_off_is_that_of_the_best_tests(name: str) -> None:
    known = KNOWN[name]
    best = _best_tests(known.law(), RATES)
    found = curve_of(known.event).false_negative_rate(RATES)
    assert (found <= best + 1e-9).all(), "no promise of more misses than the best test has"
    assert (found >= best - 3e-5).all()
    wrong = curve_of(known.quieter).false_negative_rate(RATES)
    assert (wrong > best + 1e-3).any(), "the curve of another noise must be told apart"


# --- how much is composed ----------------------------------------------------------------------------------


@pytest.fixture
def composed_so_often(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by one with every law that is put on a grid or composed."""
    calls: list[str] = []

    def count(name: str, work: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **named: object) -> object:
            calls.append(name)
            return work(*args, **named)

        return counted

    for name in ("compose", "directly", "dominating", "dominated"):
        monkeypatch.setattr(convolve, name, count(name, getattr(convolve, name)))
    return calls


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (Repeat(PoissonSampled(0.2, Gaussian(1.01)), 10), "add-remove"),
        (Repeat(PoissonSampled(0.2, Gaussian(1.01)), 2), "replace-one"),
        (Repeat(PoissonSampled(0.1, Gaussian(1.01)), 2), "add-remove"),
        (Repeat(PoissonSampled(1e-4, Gaussian(1.01)), 7), "add-remove"),
        (Repeat(GaussianMixture(1.01, (0.0, 1.0, 2.0), (0.81, 0.18, 0.01)), 2), "add-remove"),
        (Repeat(WithoutReplacement(1000, 200, Gaussian(1.01)), 10), "replace-one"),
    ],
    ids=["few steps", "replaced", "two steps", "rarely sampled", "mixture", "fixed size"],
)
def test_a_curve_is_not_composed_point_by_point(
    composed_so_often: list[str], event: Event, adjacency: str
) -> None:
    curve = account(event, adjacency=adjacency)
    curve.false_negative_rate(RATES)
    once = len(composed_so_often)
    assert 0 < once <= 12, "a grid and a composition, for some directions and parts of the curve"
    curve.false_negative_rate(np.linspace(0.0, 1.0, 1001))
    curve.delta(np.linspace(0.0, 1.0, 100))
    curve.posterior(0.5, delta=1e-6)
    assert len(composed_so_often) <= once + 4, "what was composed is used again"


def test_the_table_of_a_claim_is_of_one_curve(composed_so_often: list[str]) -> None:
    curve = curve_of(Repeat(PoissonSampled(0.3, Gaussian(0.402)), 8))
    curve.epsilon(1e-5)  # that of one delta is composed for it
    before = len(composed_so_often)
    Claim(curve, delta=1e-5, nodes=64)
    assert len(composed_so_often) <= before + 12


# --- many at once against one at a time ---------------------------------------------------------------------


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    ("event", "adjacency", "width"),
    [
        (Repeat(PoissonSampled(0.2, Gaussian(1.0)), 10), "add-remove", 1e-6),
        (Repeat(PoissonSampled(1e-3, Gaussian(0.8)), 2), "add-remove", 1e-4),
        (Repeat(PoissonSampled(0.1, Gaussian(1.0)), 40), "replace-one", 1e-6),
    ],
    ids=["few steps", "two rare steps", "replaced"],
)
def test_many_answers_are_as_tight_as_one(event: Event, adjacency: str, width: float) -> None:
    curve = account(event, adjacency=adjacency)
    deltas = np.array([1e-3, 1e-6])
    epsilons = curve.epsilon(deltas)
    for delta, epsilon in zip(deltas.tolist(), epsilons.tolist(), strict=True):
        lower, upper = curve.epsilon_bounds(delta)
        assert lower <= epsilon <= upper * (1.0 + width) + 1e-15
    asked = np.append(0.0, epsilons)
    for epsilon, delta in zip(asked.tolist(), curve.delta(asked).tolist(), strict=True):
        lower, upper = curve.delta_bounds(epsilon)
        assert lower <= delta <= upper * (1.0 + width)


def test_a_delta_that_is_out_of_reach_is_bounded_all_the_same() -> None:
    """Near the largest loss, and beyond it; delta there is the product of tiny tails."""
    event = Repeat(Laplace(2.0), 4)
    curve = curve_of(event)
    near, beyond = curve.delta(np.array([2.0 - 1e-9, 2.0 + 1e-9]))
    assert 1e-9 / 16.0 * (1.0 - 1e-6) <= near < 1e-7  # all four at their largest, times 1 - e^-1e-9
    assert beyond == 0.0


def test_below_its_first_point_a_profile_promises_nothing() -> None:
    profile = Profile(0.5, 0.1, np.array([0.3, 0.2, 0.1]))
    assert profile.delta(np.array([0.0, 0.499, 0.5, 9.0])).round(9).tolist() == [1.0, 1.0, 0.3, 0.1]


def test_no_question_has_no_answer() -> None:
    curve = curve_of(Repeat(PoissonSampled(0.2, Gaussian(1.0)), 10))
    assert curve.delta(np.empty(0)).shape == curve.epsilon(np.empty(0)).shape == (0,)


# --- the parts, by sums written out -----------------------------------------------------------------------


def _delta(losses: Array, masses: Array, infinite: float, epsilon: float) -> float:
    """E (1 - e^{epsilon - L})_+, term by term."""
    return infinite + math.fsum(np.where(losses > epsilon, masses * -np.expm1(epsilon - losses), 0.0))


laws = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12)


@settings(deadline=None)
@given(weights=laws, infinite=st.floats(0.0, 0.01), count=st.integers(1, 4), tilt=st.floats(0.2, 5.0))
@example(weights=[1.0, 1.0, 1.0, 0.25], infinite=1e-11, count=3, tilt=1.0)
def test_bounds_on_all_points_of_the_grid_are_those_of_the_sum(
    weights: list[float], infinite: float, count: int, tilt: float
) -> None:
    h = 0.1
    part = Masses(-4, np.array(weights) / sum(weights) * (1.0 - infinite), infinite)
    low, high = count * h * -4 - 0.3, count * h * (part.masses.size - 4) + 0.3
    masses: Array = np.ones(1)
    for _ in range(count):
        masses = np.convolve(masses, part.masses).astype(np.float64)
    losses: Array = np.asarray(h * (np.arange(masses.size) - 4 * count), dtype=np.float64)
    lost = -math.expm1(count * math.log1p(-infinite))  # the difference from 1 has too few digits
    first, last = -4 * count - 5, masses.size + 5
    exact = [_delta(losses, masses, lost, h * place) for place in range(first, last)]
    compositions: list[Composition] = [
        directly(part, count, h),
        compose([(part, count)], h, Window(tilt, low, high, 40.0, 40.0)),
    ]
    for composition in compositions:
        found = composition.uppers(first, last)
        assert (found >= np.array(exact) * (1.0 - 1e-12) - 1e-15).all()
        assert (np.diff(found) <= 0.0).all()
        one_by_one = [composition.upper(h * place) for place in range(first, last)]
        np.testing.assert_allclose(found, one_by_one, rtol=1e-8, atol=1e-11)
    _check_profile(
        Profile(h * first, h, np.minimum(compositions[0].uppers(first, last), 1.0)), losses, masses, lost
    )


def _check_profile(profile: Profile, losses: Array, masses: Array, infinite: float) -> None:
    """Between the points of the grid too, and the other way round."""
    asked = np.linspace(losses[0], losses[-1], 37)
    exact = [_delta(losses, masses, infinite, epsilon) for epsilon in asked.tolist()]
    found = profile.delta(asked)
    assert (found >= np.array(exact) * (1.0 - 1e-12) - 1e-15).all()
    np.testing.assert_allclose(
        found, exact, rtol=1e-9, atol=1e-13
    )  # losses are on the grid: chords are exact
    deltas = np.array([0.5, 0.1, 1e-3, 1e-9])
    for delta, epsilon in zip(deltas.tolist(), profile.epsilon(deltas).tolist(), strict=True):
        if epsilon == math.inf:
            assert infinite >= delta * (1.0 - 1e-9)
        elif epsilon >= losses[0]:
            assert _delta(losses, masses, infinite, epsilon) <= delta * (1.0 + 1e-9)
            if epsilon > losses[0] + 1e-6:  # and not much less would do
                assert _delta(losses, masses, infinite, epsilon - 1e-6) >= delta * (1.0 - 1e-9)


@pytest.mark.parametrize("floor", [-2.0, -0.3])
def test_losses_that_are_raised_to_a_floor_dominate(floor: float) -> None:
    """And delta rises by no more than the probability that one of them is below the floor."""
    h, count = 1e-3, 3
    loss = loss_of(PoissonSampled(0.2, Gaussian(1.0)), "add", 1e-20)
    free, raised = dominating(loss, h, -math.inf), dominating(loss, h, floor)
    below = float(free.masses[: round(floor / h) - free.first].sum())
    assert raised.first == round(floor / h)
    assert raised.masses.sum() == pytest.approx(free.masses.sum(), rel=1e-12)
    assert raised.masses[:2].sum() >= below
    for epsilon in (0.0, 0.1, 0.4):
        least, most = (directly(part, count, h).upper(epsilon) for part in (free, raised))
        assert least * (1.0 - 1e-10) <= most <= least * (1.0 + 1e-10) + count * below


@pytest.mark.untraced
@settings(max_examples=2, deadline=None)
@given(
    q=st.floats(0.05, 0.9),
    sigma=st.floats(0.6, 4.0),
    count=st.integers(3, 20),
    position=st.floats(0.0, 1.0),
)
def test_any_few_steps_lie_between_the_ends_of_one_by_one(
    q: float, sigma: float, count: int, position: float
) -> None:
    event = PoissonSampled(q, Gaussian(sigma))
    price = PldPrice(((event, count),), ("remove", "add"))
    curve = curve_of(Repeat(event, count))
    epsilon = position * curve.epsilon(1e-7)
    lower, upper = curve.delta_bounds(epsilon)
    assert lower <= price.deltas(np.array([epsilon]))[0] <= upper * (1.0 + 2e-6)
