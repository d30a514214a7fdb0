"""Two steps of sampled Gaussians: against quadrature in multi-precision, the grid, and planted mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.accounting import account
from tacit.accounting.directions import Direction
from tacit.accounting.pld import two_step_gaussian
from tacit.accounting.pld.grid import bracket
from tacit.accounting.pld.grid_price import PldPrice
from tacit.accounting.pld.losses import loss_of
from tacit.accounting.pld.two_step_gaussian import SampledPair, TwoStepPrice
from tacit.events import Compose, Gaussian, PoissonSampled, Repeat

WAYS: tuple[Direction, ...] = ("remove", "add", "replace")
PAIRS = [(0.1, 1.0, 0.5, 2.0), (0.3, 0.8, 0.02, 0.6), (1e-5, 0.5, 1e-5, 0.5), (0.999, 20.0, 0.5, 9.0)]


def _tails(q: Any, sigma: Any, way: Direction, s: Any) -> tuple[Any, Any]:
    """P and Q above s, by mpmath."""
    still = mp.ncdf(-s / sigma)
    moved = (1 - q) * still + q * mp.ncdf((1 - s) / sigma)
    back = (1 - q) * still + q * mp.ncdf((-1 - s) / sigma)
    return (still if way == "add" else moved), (still if way == "remove" else back)


def _densities(q: Any, sigma: Any, way: Direction, s: Any) -> tuple[Any, Any]:
    still = mp.npdf(s, 0, sigma)
    moved = (1 - q) * still + q * mp.npdf(s, 1, sigma)
    back = (1 - q) * still + q * mp.npdf(s, -1, sigma)
    return (still if way == "add" else moved), (still if way == "remove" else back)


def _cut(q: float, sigma: float, way: Direction, loss: float) -> float:
    """Where the loss of a step is ``loss``, by bisection in doubles: to first order it does not matter."""

    def excess(s: float) -> float:
        plus = math.log1p(q * math.expm1((2 * s - 1) / (2 * sigma**2))) if way != "add" else 0.0
        minus = math.log1p(q * math.expm1((-2 * s - 1) / (2 * sigma**2))) if way != "remove" else 0.0
        return plus - minus - loss

    low, high = -25.0 * sigma, 25.0 * sigma
    if excess(high) < 0.0:
        return math.inf
    if excess(low) > 0.0:
        return -math.inf
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
    return low


def _delta(q: float, sigma: float, rate: float, noise: float, way: Direction, epsilon: float) -> float:
    """delta by quadrature in the outcome of the first step, on panels of half a sigma."""

    def integrand(s: Any) -> Any:
        p, other = _densities(mp.mpf(q), mp.mpf(sigma), way, s)
        loss = mp.mpf(epsilon) - mp.log(p / other)
        p_above, q_above = _tails(
            mp.mpf(rate), mp.mpf(noise), way, mp.mpf(_cut(rate, noise, way, float(loss)))
        )
        return p * (p_above - mp.exp(loss) * q_above)

    with mp.workdps(20):
        kinks = []
        if (
            way != "replace"
        ):  # beyond which the second step's loss is above epsilon - loss for certain, or never
            edge = math.log1p(-rate) * (1 if way == "remove" else -1)
            kink = _cut(q, sigma, way, epsilon - edge)
            kinks = (
                [mp.mpf(kink) + sigma * mp.mpf(k) / 16 for k in range(-8, 9)] if math.isfinite(kink) else []
            )
        ends = [mp.mpf(k) * sigma / 2 for k in range(-22, 23)] + [
            11 * sigma + mp.mpf(k) / 2 for k in (1, 2, 3)
        ]
        points = sorted(ends + [kink for kink in kinks if abs(kink) < 11 * sigma])
        return float(mp.quad(integrand, points, maxdegree=6, method="gauss-legendre"))


@pytest.mark.untraced
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("q", "sigma", "rate", "noise"), PAIRS[:2])
def test_delta_against_multi_precision(
    q: float, sigma: float, rate: float, noise: float, way: Direction
) -> None:
    price = TwoStepPrice(((SampledPair(q, sigma, way), SampledPair(rate, noise, way)),))
    exact = _delta(q, sigma, rate, noise, way, 0.2)
    lower, upper = price.delta_bounds(0.2)
    assert lower <= exact * (1 + 1e-11)
    assert exact * (1 - 1e-11) <= upper
    assert upper - lower <= 1e-7 * upper


@pytest.mark.untraced
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("q", "sigma", "rate", "noise"), PAIRS)
def test_the_order_of_the_steps_does_not_matter(
    q: float, sigma: float, rate: float, noise: float, way: Direction
) -> None:
    """The sums have nothing in common but delta: what is an integral here is a closed form there."""
    one, other = SampledPair(q, sigma, way), SampledPair(rate, noise, way)
    there, back = TwoStepPrice(((one, other),)), TwoStepPrice(((other, one),))
    for delta in (1e-3, 1e-6, 1e-12):
        first, second = there.epsilon_bounds(delta), back.epsilon_bounds(delta)
        assert max(first[0], second[0]) <= min(first[1], second[1])
        for lower, upper in (first, second):
            assert upper - lower <= 1e-6 * upper or (way == "add" and delta < 1e-9)  # next to the supremum


@pytest.mark.untraced
@given(
    q=st.floats(1e-6, 0.999),
    sigma=st.floats(0.4, 20.0),
    rate=st.floats(1e-6, 0.999),
    noise=st.floats(0.4, 20.0),
    log_delta=st.floats(-30.0, -3.0),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=15, deadline=None)
def test_brackets_meet_those_of_the_grid(
    q: float, sigma: float, rate: float, noise: float, log_delta: float, way: Direction
) -> None:
    steps = ((PoissonSampled(q, Gaussian(sigma)), 1), (PoissonSampled(rate, Gaussian(noise)), 1))
    grid = PldPrice(steps, (way,)).epsilon_bounds(math.exp(log_delta))
    price = TwoStepPrice(((SampledPair(q, sigma, way), SampledPair(rate, noise, way)),))
    lower, upper = price.epsilon_bounds(math.exp(log_delta))
    assert lower <= grid[1] + 1e-15
    assert grid[0] <= upper + 1e-15
    assert 0.0 <= lower <= upper < math.inf
    at = max(upper, 1e-6)
    below, above = price.delta_bounds(at)
    assert below <= math.exp(log_delta) * (1 + 1e-9) or at > upper
    assert above <= math.exp(log_delta) * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_two_steps_are_priced_this_way(adjacency: str) -> None:
    for event in (
        Repeat(PoissonSampled(1e-5, Gaussian(0.5)), 2),
        Compose((PoissonSampled(1e-5, Gaussian(0.5)), PoissonSampled(0.2, Gaussian(0.8)))),
    ):
        lower, upper = account(event, adjacency=adjacency).epsilon_bounds(1e-9)
        assert 0.0 < lower <= upper <= lower * (1 + 1e-6)


def test_masses_and_tails_add_up() -> None:
    ends = np.linspace(-9.0, 10.0, 2001)
    for way in WAYS:
        pair = SampledPair(0.3, 0.9, way)
        p, p_off, q, q_off = pair.masses(ends[:-1], ends[1:])
        for found, off, column in ((p, p_off, 0), (q, q_off, 1)):
            with mp.workdps(60):
                for i in (0, 500, 999, 1500, 1999):
                    low, high = (
                        _tails(mp.mpf(0.3), mp.mpf(0.9), way, mp.mpf(x))[column] for x in ends[[i, i + 1]]
                    )
                    assert abs(mp.mpf(found[i]) - (low - high)) <= mp.mpf(off[i])
        assert math.isclose(p.sum(), 1.0, rel_tol=1e-12)


def _chord_below(original: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """The mistake of taking Jensen's value for an upper bound."""

    def shares(self: Any, second: SampledPair, epsilon: float) -> tuple[Any, Any]:
        lower, _ = original(self, second, epsilon)
        return lower, lower

    return shares


def test_planted_mistakes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    price = TwoStepPrice(((SampledPair(0.1, 1.0, "remove"), SampledPair(0.5, 2.0, "remove")),))
    exact = _delta(0.1, 1.0, 0.5, 2.0, "remove", 0.7)
    assert price.delta_bounds(0.7)[1] >= exact
    with monkeypatch.context() as planted:
        panels = two_step_gaussian._Panels
        planted.setattr(panels, "shares", _chord_below(panels.shares))
        planted.setattr(two_step_gaussian, "_PANELS", 1 << 10)
        assert price.delta_bounds(0.7)[1] < exact * (1 - 1e-11)
    with monkeypatch.context() as planted:
        planted.setattr(SampledPair, "position", lambda self, loss: np.zeros_like(loss))
        assert not price.delta_bounds(0.7)[0] <= exact <= price.delta_bounds(0.7)[1]


@given(
    q=st.floats(1e-7, 0.3),
    sigma=st.floats(0.5, 30.0),
    cells=st.floats(0.02, 200.0),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=40, deadline=None)
def test_grids_of_narrow_laws_are_on_their_sides(
    q: float, sigma: float, cells: float, way: Direction
) -> None:
    """Whatever part of a cell the law fills, one step of the grid never crosses the closed form."""
    pair = SampledPair(q, sigma, way)
    h = 6.0 * q / sigma / cells
    epsilons = h * np.arange(-12.0, 12.0, 0.37)
    loss = loss_of(PoissonSampled(q, Gaussian(sigma)), way, 1e-15)
    assume(float(np.ptp(loss.branches[0].value(loss.branches[0].panels))) < 2000.0 * h)
    lower, upper = bracket(loss, h)
    below, above = pair.hockey_stick(epsilons)
    for masses, bound, sign in ((lower, above, 1.0), (upper, below, -1.0)):
        losses = masses.origin + h * (masses.first + np.arange(masses.masses.size))
        gains = -np.expm1(np.minimum(epsilons[:, None] - losses, 0.0))
        found = gains @ masses.masses + masses.infinite
        assert (sign * (found - bound) <= 1e-13 + 1e-12 * np.abs(bound)).all()
        assert masses.masses.sum() + masses.infinite == pytest.approx(1.0, abs=1e-12)
