"""Rows of one person, sampled independently: the price against integrals that share no code with it."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray
from priced import curve_of

from tacit.events import Event, Gaussian, GroupPrivacy, PoissonSampled, Repeat

Floats = NDArray[np.float64]


def event(k: int, rate: float, sigma: float, steps: int) -> Event:
    return GroupPrivacy(Repeat(PoissonSampled(rate, Gaussian(sigma)), steps), k)


def weights(k: int, rate: float) -> list[mp.mpf]:
    q = mp.mpf(rate)
    return [mp.binomial(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]


def one_step(k: int, rate: float, sigma: float, epsilon: float) -> float:
    """The larger of two integrals of (P - e^eps Q)_+, in 30 digits; each integrand has one change of sign."""
    with mp.workdps(30):
        s, w = mp.mpf(sigma), weights(k, rate)

        def likelihood(x: mp.mpf) -> mp.mpf:  # of the mixture against the noise alone, increasing
            return mp.fsum(w[j] * mp.exp((2 * j * x - j * j) / (2 * s * s)) for j in range(k + 1))

        def above(x: mp.mpf) -> mp.mpf:  # mass of the mixture above x
            return mp.fsum(w[j] * mp.ncdf((j - x) / s) for j in range(k + 1))

        def crossing(value: mp.mpf) -> mp.mpf:
            low, high = mp.mpf(-60) * s - k, mp.mpf(60) * s + k
            for _ in range(140):
                middle = (low + high) / 2
                low, high = (middle, high) if likelihood(middle) < value else (low, middle)
            return low

        grown = mp.exp(epsilon)
        x = crossing(grown)
        removed = above(x) - grown * mp.ncdf(-x / s)
        added = mp.mpf(0)
        if w[0] < 1 / grown:  # else the noise alone is nowhere so much likelier
            x = crossing(1 / grown)
            added = mp.ncdf(x / s) - grown * (1 - above(x))
        return float(max(removed, added))


def two_steps(k: int, rate: float, sigma: float, epsilon: float) -> float:
    """The same for two steps, as a sum over a grid of both outcomes; good to about 1e-5."""
    x, h = np.linspace(-10 * sigma - k, 10 * sigma + k, 3001, retstep=True)
    w = [float(value) for value in weights(k, rate)]

    def density(mean: float) -> Floats:
        found: Floats = np.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi)) * h
        return found

    mixture = np.sum([w[j] * density(j) for j in range(k + 1)], axis=0)
    alone = density(0)

    def both(p: Floats) -> Floats:
        found: Floats = np.multiply.outer(p, p)
        return found

    P, Q, grown = both(mixture), both(alone), math.exp(epsilon)
    return max(float(np.maximum(P - grown * Q, 0).sum()), float(np.maximum(Q - grown * P, 0).sum()))


SETTINGS = [
    (k, rate, sigma, epsilon)
    for k, rate, sigma in (
        (2, 0.01, 1.0), (2, 0.5, 4.0), (4, 0.1, 2.0), (4, 0.001, 0.6), (8, 0.01, 1.0), (8, 0.3, 6.0),
        (16, 0.05, 3.0), (16, 0.9, 20.0), (32, 0.002, 1.5), (3, 0.2, 0.8),
    )
    for epsilon in (0.1, 0.5, 1.5, 4.0)
]  # fmt: skip


@pytest.mark.thorough(cases=20)
@pytest.mark.parametrize(("k", "rate", "sigma", "epsilon"), SETTINGS)
def test_one_step_is_that_of_the_integral(k: int, rate: float, sigma: float, epsilon: float) -> None:
    truth = one_step(k, rate, sigma, epsilon)
    curve = curve_of(event(k, rate, sigma, 1))
    found = curve.delta(epsilon)
    assert truth * (1 - 1e-9) <= found <= truth * (1 + 1e-5) + 1e-25


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(
    ("k", "rate", "sigma", "epsilon"),
    [(2, 0.1, 1.0, 0.5), (4, 0.1, 2.0, 0.3), (8, 0.05, 2.0, 0.7), (3, 0.4, 3.0, 0.4), (16, 0.02, 1.5, 1.0)],
)
def test_two_steps_are_those_of_the_double_integral(
    k: int, rate: float, sigma: float, epsilon: float
) -> None:
    truth = two_steps(k, rate, sigma, epsilon)
    found = curve_of(event(k, rate, sigma, 2)).delta(epsilon)
    assert found == pytest.approx(truth, rel=3e-4)
    assert found >= truth * (1 - 3e-4)


def test_fewer_rows_of_a_person_never_cost_more() -> None:
    prices = [curve_of(event(k, 0.05, 2.0, 50)).epsilon(1e-6) for k in (1, 2, 3, 5)]
    assert prices == sorted(prices)


def test_a_group_that_is_hardly_ever_sampled_costs_nothing_at_so_large_a_delta() -> None:
    """The estimate of epsilon was below 0, and the grid for it larger than memory."""
    event = Repeat(GroupPrivacy(PoissonSampled(3.2e-6, Gaussian(1.36)), 2), 8)
    assert curve_of(event).epsilon_bounds(1e-5) == (0.0, 0.0)
    lower, upper = curve_of(event).epsilon_bounds(1e-8)
    assert 0.0 < lower <= upper <= lower * 1.01
