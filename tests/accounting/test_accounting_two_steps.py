"""Two steps of sampled Gaussians, where grids are least accurate, and one step on grids of uneven cells.

Against quadrature in multi-precision and closed forms, with planted mistakes.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from tacit.accounting import account, convolve
from tacit.accounting.grid import Layout, Masses, dominated, dominating
from tacit.accounting.grid_price import PldPrice
from tacit.accounting.losses import loss_of
from tacit.accounting.price import Direction
from tacit.events import Compose, Gaussian, PoissonSampled, Repeat

WAYS: tuple[Direction, ...] = ("remove", "add", "replace")
PAIRS = [(0.1, 1.0, 0.5, 2.0), (0.3, 0.8, 0.02, 0.6)]


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
    """Find x where the loss of a step is ``loss``, in doubles: an error of second order."""

    def excess(s: float) -> float:
        plus = math.log1p(q * math.expm1((2 * s - 1) / (2 * sigma**2))) if way != "add" else 0.0
        minus = math.log1p(q * math.expm1((-2 * s - 1) / (2 * sigma**2))) if way != "remove" else 0.0
        return plus - minus - loss

    low, high = -25.0 * sigma, 25.0 * sigma
    if excess(high) < 0.0:
        return math.inf
    if excess(low) > 0.0:
        return -math.inf
    return float(brentq(excess, low, high, xtol=1e-13))


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


def _price(q: float, sigma: float, rate: float, noise: float, way: Direction) -> PldPrice:
    return PldPrice(
        ((PoissonSampled(q, Gaussian(sigma)), 1), (PoissonSampled(rate, Gaussian(noise)), 1)), (way,)
    )


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("q", "sigma", "rate", "noise"), PAIRS)
def test_delta_against_multi_precision(
    q: float, sigma: float, rate: float, noise: float, way: Direction
) -> None:
    epsilon = 0.2
    exact = _delta(q, sigma, rate, noise, way, epsilon)
    price = _price(q, sigma, rate, noise, way)
    lower, upper = price.delta_bounds(epsilon)
    assert lower <= exact * (1 + 1e-11)
    assert exact * (1 - 1e-11) <= upper
    assert upper - lower <= 1e-4 * upper
    lower, upper = price.epsilon_bounds(exact)
    assert lower <= epsilon * (1 + 1e-11)
    assert epsilon * (1 - 1e-11) <= upper
    assert upper - lower <= 1e-6 * upper


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_two_steps_have_narrow_brackets(adjacency: str) -> None:
    for event in (
        Repeat(PoissonSampled(1e-3, Gaussian(0.7)), 2),  # whose first saddle point is far off
        Compose((PoissonSampled(1e-5, Gaussian(0.5)), PoissonSampled(0.2, Gaussian(0.8)))),
    ):
        lower, upper = account(event, adjacency=adjacency).epsilon_bounds(1e-6)
        assert 0.0 < lower <= upper <= lower * (1 + 2e-6)


def test_planted_mistakes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant two mistakes: no mass at infinity in the upper pair, or too high a mean in the lower."""
    exact = _delta(1e-3, 0.5, 1e-3, 0.5, "remove", 0.5)
    price = _price(1e-3, 0.5, 1e-3, 0.5, "remove")
    assert price.epsilon_bounds(exact)[0] <= 0.5 <= price.epsilon_bounds(exact)[1]
    right, below = dominating, dominated

    def nothing_is_infinite(*arguments: Any, **options: Any) -> Masses:
        found = right(*arguments, **options)
        return Masses(found.first, found.masses, 0.0, found.origin)

    def mean_is_higher(*arguments: Any) -> Masses:
        found = below(*arguments)
        masses = np.concatenate([found.masses[:-1], np.zeros(1 << 6), found.masses[-1:]])
        return Masses(found.first, masses, found.infinite, found.origin)

    convolve._grid.cache_clear()
    with monkeypatch.context() as planted:
        planted.setattr(convolve, "dominating", nothing_is_infinite)
        assert price.epsilon_bounds(exact)[1] < 0.5 * (1 - 1e-9)
    convolve._grid.cache_clear()
    with monkeypatch.context() as planted:
        planted.setattr(convolve, "dominated", mean_is_higher)
        assert price.epsilon_bounds(exact)[0] > 0.5 * (1 + 1e-9)
    convolve._grid.cache_clear()


def _hockey_stick(
    q: float, sigma: float, way: Direction, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """delta of one step in doubles, to about 1e-15; any cut gives a lower bound."""
    cuts = np.array([_cut(q, sigma, way, float(epsilon)) for epsilon in epsilons])
    still = ndtr(-cuts / sigma)
    moved, back = ((1 - q) * still + q * ndtr((center - cuts) / sigma) for center in (1.0, -1.0))
    p, other = (still if way == "add" else moved), (still if way == "remove" else back)
    grown = np.exp(np.minimum(epsilons, 700.0))
    return np.asarray(np.maximum(p - grown * other, 0.0))


def _check_sides(bounds: tuple[Masses, Masses], h: float, epsilons: Any, exact: Any) -> None:
    for masses, sign in zip(bounds, (1.0, -1.0), strict=True):
        losses = masses.origin + h * (masses.first + np.arange(masses.masses.size))
        there = masses.masses > 0.0
        gains = -np.expm1(np.minimum(epsilons[:, None] - losses[there], 0.0))
        found = gains @ masses.masses[there] + masses.infinite
        assert (sign * (found - exact) <= 1e-13 + 1e-12 * exact).all()
        assert masses.masses.sum() + masses.infinite == pytest.approx(1.0, abs=3e-12)


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
    h = 6.0 * q / sigma / cells
    epsilons = h * np.arange(-12.0, 12.0, 0.37)
    loss = loss_of(PoissonSampled(q, Gaussian(sigma)), way, 1e-15)
    assume(float(np.ptp(loss.branches[0].value(loss.branches[0].panels))) < 2000.0 * h)
    _check_sides(
        (dominated(loss, h), dominating(loss, h)), h, epsilons, _hockey_stick(q, sigma, way, epsilons)
    )


@pytest.mark.parametrize(
    ("q", "sigma", "h", "way"),
    [(0.3986652586766, 1.0, 0.2190508233961, "replace"), (0.1941800830915, 1.5, 0.0328005546517, "remove")],
)
def test_nodes_of_a_quadrature_are_no_outcomes(q: float, sigma: float, h: float, way: Direction) -> None:
    """Groups that part the nodes of one interval made the lower bound 3e-7 too large."""
    loss = loss_of(PoissonSampled(q, Gaussian(sigma)), way, 1e-15)
    lower = dominated(loss, h)
    points = lower.origin + h * (lower.first + np.arange(lower.masses.size))
    epsilons = np.concatenate([points, points + h / 3.0, points + h / 2.0])
    exact = _hockey_stick(q, sigma, way, epsilons)
    _check_sides((dominating(loss, h), lower)[::-1], h, epsilons, exact)


@given(
    q=st.floats(1e-5, 0.9),
    sigma=st.floats(0.3, 5.0),
    spacings=st.floats(20.0, 20_000.0),
    widths=st.lists(st.floats(0.0, 10.0), min_size=2, max_size=12),
    cap=st.floats(0.01, 1.0),
    way=st.sampled_from(WAYS),
)
@example(q=0.25, sigma=1.5, spacings=237.0, widths=[0.0, 4.0], cap=1.125, way="remove")
@settings(max_examples=60, deadline=None)
def test_grids_of_uneven_cells_are_on_their_sides(
    q: float, sigma: float, spacings: float, widths: list[float], cap: float, way: Direction
) -> None:
    """Cells of any widths, and a last one without end, never cross the closed form."""
    loss = loss_of(PoissonSampled(q, Gaussian(sigma)), way, 1e-15)
    low, high = loss.branches[0].value(loss.branches[0].panels[[0, -1]])
    h = float(high - low) / spacings
    places = np.linspace(low, high, len(widths))
    end = float(low + cap * (high - low))
    layout = Layout(places, h * 2.0 ** np.array(widths), end)
    found = dominated(loss, h, layout), dominating(loss, h, layout=layout)
    epsilons = np.linspace(low, high, 60)
    _check_sides(found, h, epsilons, _hockey_stick(q, sigma, way, epsilons))
