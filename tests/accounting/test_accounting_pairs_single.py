"""Every dominating pair, one step: the grid's bracket around hockey-stick divergences by brute force.

The oracle knows densities and masses as the papers define the mechanisms, sums or integrates
max(p - e^eps q, 0), and shares nothing with the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from priced import hockey_stick_of
from scipy import stats

from tacit.accounting.grid import aligned, dominated, dominating
from tacit.accounting.losses import loss_of
from tacit.accounting.price import Direction
from tacit.events import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SparseVector,
    TruncatedPoissonSampled,
    WithoutReplacement,
)

Array = NDArray[np.float64]
Density = Callable[[Array], Array]
EPSILONS = (0.0, 0.05, 0.3, 0.9, 1.7)


def normal(mean: float, sigma: float) -> Density:
    return lambda x: np.asarray(stats.norm.pdf(x, mean, sigma), dtype=np.float64)


def laplace(mean: float, scale: float) -> Density:
    return lambda x: np.exp(-np.abs(x - mean) / scale) / (2 * scale)


def discrete_gaussian(mean: int, scale: float) -> Density:
    total = sum(math.exp(-(k * k) / (2 * scale * scale)) for k in range(-400, 401))
    return lambda k: np.exp(-((k - mean) ** 2) / (2 * scale * scale)) / total


def discrete_laplace(mean: int, scale: float) -> Density:
    total = sum(math.exp(-abs(k) / scale) for k in range(-2000, 2001))
    return lambda k: np.exp(-np.abs(k - mean) / scale) / total


def mixed(*parts: tuple[float, Density]) -> Density:
    return lambda x: np.sum([w * density(x) for w, density in parts], axis=0)


def over_reals(p: Density, q: Density) -> Callable[[float], float]:
    """Integral of max(p - e^eps q, 0); kinks of Laplace noise, at integers, are grid points."""
    x = np.linspace(-60, 60, 240_001)

    def integral(eps: float) -> float:
        return float(np.trapezoid(np.maximum(p(x) - math.exp(eps) * q(x), 0.0), x))

    return integral


def over_integers(p: Density, q: Density) -> Callable[[float], float]:
    k = np.arange(-400.0, 401.0)
    return lambda eps: float(np.maximum(p(k) - math.exp(eps) * q(k), 0.0).sum())


def over_points(p: list[float], q: list[float]) -> Callable[[float], float]:
    return lambda eps: sum(max(a - math.exp(eps) * b, 0.0) for a, b in zip(p, q, strict=True))


def worst_range(epsilon: float) -> Callable[[float], float]:
    """The largest over t of the two-point mechanisms with log ratios t and t - epsilon."""

    def largest(eps: float) -> float:
        t = np.linspace(0.0, epsilon, 100_001)
        mass = (math.exp(epsilon) - np.exp(t)) / math.expm1(epsilon)
        return float(np.max(mass * np.maximum(0.0, -np.expm1(eps - t))))

    return largest


def without_replacement(base: Callable[[float], float], rate: float) -> Callable[[float], float]:
    """Balle, Barthe & Gaboardi 2018, Theorem 9: q delta(eps') at e^eps = 1 + q (e^eps' - 1)."""
    return lambda eps: rate * base(math.log1p(math.expm1(eps) / rate))


def truncated(q: float, n: int, largest: int, sigma: float) -> Callable[[float], float]:
    """Sum over the number m of others that are sampled, the record's chance being q B / (m + 1) if cut."""
    m = np.arange(n)
    chances = stats.binom.pmf(m, n - 1, q)
    cut = float(chances[m >= largest].sum())
    inside = float((chances * q * largest / (m + 1))[m >= largest].sum()) / cut
    whole = over_reals(mixed((1 - q, normal(0, sigma)), (q, normal(1, sigma))), normal(0, sigma))
    other = over_reals(
        mixed((1 - inside, normal(0, sigma)), (inside, normal(2, sigma))),
        mixed((1 - inside, normal(0, sigma)), (inside, normal(-2, sigma))),
    )
    return lambda eps: (1 - cut) * whole(eps) + cut * other(eps)


def group(sigma: float, shares: tuple[float, ...], sign: float) -> Density:
    return mixed(*((w, normal(sign * s, sigma)) for s, w in enumerate(shares)))


SHARES = (0.81, 0.18, 0.01)
MIXTURE = GaussianMixture(0.8, (0.0, 1.0, 2.0), SHARES)
E1 = math.exp(1.0)
COIN = [E1 / (1 + E1), 1 / (1 + E1)]
LEAKY = [0.01, 0.99 * COIN[0], 0.99 * COIN[1], 0.0]
LEAKY_TOO = [0.0, 0.99 * COIN[1], 0.99 * COIN[0], 0.01]
LEAKY_SAMPLED = [0.2 * p + 0.8 * q for p, q in zip(LEAKY, LEAKY_TOO, strict=True)]
RESPONSE = over_points([0.6, 0.2, 0.2], [0.2, 0.6, 0.2])
SAMPLED_LAPLACE = mixed((0.7, laplace(0, 0.7)), (0.3, laplace(1, 0.7)))
OTHER_LAPLACE = mixed((0.7, laplace(0, 0.7)), (0.3, laplace(-1, 0.7)))
SAMPLED_GAUSSIAN = mixed((0.7, normal(0, 0.7)), (0.3, normal(1, 0.7)))
OTHER_GAUSSIAN = mixed((0.7, normal(0, 0.7)), (0.3, normal(-1, 0.7)))
SAMPLED_DISCRETE = mixed((0.8, discrete_gaussian(0, 1.5)), (0.2, discrete_gaussian(1, 1.5)))
SAMPLED_GEOMETRIC = mixed((0.8, discrete_laplace(0, 1.5)), (0.2, discrete_laplace(2, 1.5)))
TWO = (0.5, normal(0.5, 1)), (0.5, normal(2, 1))

CASES: list[tuple[Event, Direction, Callable[[float], float]]] = [
    (Gaussian(0.9), "remove", over_reals(normal(1, 0.9), normal(0, 0.9))),
    (Laplace(0.7), "remove", over_reals(laplace(1, 0.7), laplace(0, 0.7))),
    (DiscreteGaussian(2.5), "remove", over_integers(discrete_gaussian(1, 2.5), discrete_gaussian(0, 2.5))),
    (DiscreteGaussian(2.5, 4), "add", over_integers(discrete_gaussian(0, 2.5), discrete_gaussian(4, 2.5))),
    (DiscreteLaplace(2.0), "remove", over_integers(discrete_laplace(1, 2), discrete_laplace(0, 2))),
    (DiscreteLaplace(2.0, 5), "replace", over_integers(discrete_laplace(5, 2), discrete_laplace(0, 2))),
    (RandomizedResponse(0.3, 2), "replace", over_points([0.85, 0.15], [0.15, 0.85])),
    (RandomizedResponse(0.6, 3), "replace", RESPONSE),
    (RandomizedResponse(0.0, 3), "replace", over_points([1.0, 0.0], [0.0, 1.0])),
    (RandomizedResponse(1.0, 3), "replace", over_points([1.0], [1.0])),
    (ApproximateDP(1.0), "replace", over_points(COIN, COIN[::-1])),
    (ApproximateDP(1.0, 0.01), "remove", over_points(LEAKY, LEAKY_TOO)),
    (ApproximateDP(0.0, 0.2), "remove", over_points([0.2, 0.8, 0.0], [0.0, 0.8, 0.2])),
    (SparseVector(0.3, 0.7, 9), "add", over_points(COIN, COIN[::-1])),
    (ExponentialMechanism(1.3), "remove", worst_range(1.3)),
    (MIXTURE, "remove", over_reals(group(0.8, SHARES, 1), normal(0, 0.8))),
    (MIXTURE, "add", over_reals(normal(0, 0.8), group(0.8, SHARES, 1))),
    (MIXTURE, "replace", over_reals(group(0.8, SHARES, 1), group(0.8, SHARES, -1))),
    (GaussianMixture(1.0, (0.0,), (1.0,)), "add", over_points([1.0], [1.0])),
    (GaussianMixture(1.0, (0.5, 2.0), (0.5, 0.5)), "add", over_reals(normal(0, 1), mixed(*TWO))),
    (PoissonSampled(0.3, Laplace(0.7)), "remove", over_reals(SAMPLED_LAPLACE, laplace(0, 0.7))),
    (PoissonSampled(0.3, Laplace(0.7)), "add", over_reals(laplace(0, 0.7), SAMPLED_LAPLACE)),
    (PoissonSampled(0.3, Laplace(0.7)), "replace", over_reals(SAMPLED_LAPLACE, OTHER_LAPLACE)),
    (PoissonSampled(0.3, Gaussian(0.7)), "replace", over_reals(SAMPLED_GAUSSIAN, OTHER_GAUSSIAN)),
    (
        PoissonSampled(0.2, DiscreteGaussian(1.5)),
        "remove",
        over_integers(SAMPLED_DISCRETE, discrete_gaussian(0, 1.5)),
    ),
    (
        PoissonSampled(0.2, DiscreteLaplace(1.5, 2)),
        "add",
        over_integers(discrete_laplace(0, 1.5), SAMPLED_GEOMETRIC),
    ),
    (PoissonSampled(0.2, ApproximateDP(1.0, 0.01)), "remove", over_points(LEAKY_SAMPLED, LEAKY_TOO)),
    (PoissonSampled(0.2, ApproximateDP(1.0, 0.01)), "add", over_points(LEAKY_TOO, LEAKY_SAMPLED)),
    (
        WithoutReplacement(10, 3, Gaussian(2.0)),
        "replace",
        without_replacement(over_reals(normal(2, 2), normal(0, 2)), 0.3),
    ),
    (
        WithoutReplacement(10, 3, Laplace(2.0)),
        "remove",
        without_replacement(over_reals(laplace(2, 2), laplace(0, 2)), 0.3),
    ),
    (
        WithoutReplacement(10, 3, DiscreteGaussian(2.0)),
        "replace",
        without_replacement(over_integers(discrete_gaussian(2, 2), discrete_gaussian(0, 2)), 0.3),
    ),
    (
        WithoutReplacement(10, 3, DiscreteLaplace(2.0)),
        "replace",
        without_replacement(over_integers(discrete_laplace(2, 2), discrete_laplace(0, 2)), 0.3),
    ),
    (
        WithoutReplacement(10, 3, ExponentialMechanism(1.3)),
        "replace",
        without_replacement(worst_range(1.3), 0.3),
    ),
    (TruncatedPoissonSampled(0.3, 20, 6, Gaussian(1.2)), "remove", truncated(0.3, 20, 6, 1.2)),
]


@pytest.mark.thorough(cases=20)
@pytest.mark.parametrize(
    ("event", "direction", "exact"), CASES, ids=lambda value: "" if callable(value) else repr(value)[:60]
)
@pytest.mark.parametrize("wanted", [0.02, 0.0007])
def test_bracket_encloses_brute_force(
    event: Event, direction: Direction, exact: Callable[[float], float], wanted: float
) -> None:
    loss = loss_of(event, direction, 1e-14)
    h, _ = aligned(wanted, loss.atoms)
    assert 0.2 * wanted <= h <= wanted
    lower, upper = dominated(loss, h), dominating(loss, h)
    assert (lower.masses >= 0.0).all()
    assert (upper.masses >= 0.0).all()
    for eps in EPSILONS:
        delta = exact(eps)
        assert hockey_stick_of(upper, h, eps) >= delta * (1 - 3e-7) - 2e-8  # the oracle's own error
        assert hockey_stick_of(lower, h, eps) <= delta * (1 + 3e-7) + 2e-8
        if wanted < 1e-3:
            # curvature costs h^2, an atom that is not on the grid h
            assert hockey_stick_of(upper, h, eps) == pytest.approx(delta, abs=2 * h * h + 2e-8)
            assert hockey_stick_of(lower, h, eps) == pytest.approx(delta, abs=h)


@pytest.mark.parametrize("shift", [0.0, 0.7, math.pi / 2, 2.5, math.pi])
@pytest.mark.parametrize("eps", [-0.4, 0.2, 0.8])
def test_opposite_shifts_on_a_line_are_the_worst(shift: float, eps: float) -> None:
    """(1-q) N(0) + q N(u) against (1-q) N(0) + q N(v) in the plane, v at an angle to u or shorter."""
    q, sigma = 0.3, 0.8
    axis = np.linspace(-7, 7, 701)
    x, y = np.meshgrid(axis, axis)

    def density(u: float, v: float) -> Array:
        whole = (1 - q) * np.exp(-(x**2 + y**2) / (2 * sigma**2)) + q * np.exp(
            -((x - u) ** 2 + (y - v) ** 2) / (2 * sigma**2)
        )
        return np.asarray(whole / (2 * math.pi * sigma**2), dtype=np.float64)

    worst = over_reals(
        mixed((1 - q, normal(0, sigma)), (q, normal(1, sigma))),
        mixed((1 - q, normal(0, sigma)), (q, normal(-1, sigma))),
    )(eps)
    for length in (0.4, 1.0):
        q_density = density(length * math.cos(shift), length * math.sin(shift))
        found = (
            np.maximum(density(1.0, 0.0) - math.exp(eps) * q_density, 0.0).sum() * (axis[1] - axis[0]) ** 2
        )
        assert found <= worst + 1e-5  # of the sum over squares
        if (shift, length) == (math.pi, 1.0):
            assert found == pytest.approx(worst, abs=1e-5)


def test_atoms_are_put_on_the_grid() -> None:
    atoms = np.array([[0.5, 1.0], [-0.5, 0.5], [0.25, 0.2]])
    assert aligned(0.13, atoms) == (0.125, 0.0)
    h, cost = aligned(0.1, np.array([[1.0, 1.0], [-math.sqrt(0.5), 0.5]]))
    assert 0.04 < h <= 0.1
    assert cost < 0.01  # a twentieth of what a grid taken at random costs on average
    assert aligned(0.1, np.empty((0, 2))) == (0.1, 0.0)
