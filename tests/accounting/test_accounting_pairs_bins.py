"""Balls in bins: quadrature, plain convolution, the reference page's values, and known bins."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from priced import curve_of
from scipy.stats import norm

from tacit.accounting import account
from tacit.accounting.bins import balls_in_bins
from tacit.events import BallsInBins, Compose, Gaussian, Laplace, Repeat


def bounds(bins: int, sigma: float, epochs: int, delta: float) -> tuple[float, float]:
    event = Repeat(BallsInBins(bins, Gaussian(sigma)), epochs)
    return curve_of(event).epsilon_bounds(delta)


# A contour along the transform of S, of the reference page, to the digits it prints.  Not here: its .620988
# at (100, 1, 1, 1e-5), where plain convolution (below) has delta(.620988) = 9.99465e-6.
@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize(
    ("bins", "sigma", "epochs", "delta", "truth"),
    [
        (100, 1.0, 10, 1e-5, 1.7015),
        (100, 4.0, 100, 1e-5, 0.94237),
        (1000, 2.0, 10, 1e-6, 0.20276),
        (1000, 1.0, 100, 1e-6, 1.84430),
    ],
)
def test_reference_values(bins: int, sigma: float, epochs: int, delta: float, truth: float) -> None:
    lower, upper = bounds(bins, sigma, epochs, delta)
    half = 5e-5 if truth == 1.7015 else 5e-6  # the last digit
    assert lower <= truth + half
    assert truth - half <= upper <= lower * (1 + 1e-3)


@pytest.mark.thorough(cases=3)
@pytest.mark.untraced
@pytest.mark.parametrize(("sigma", "eps"), [(1.5, 0.7), (0.3, 18.0), (0.8, 2.5), (3.0, 0.3), (0.5, 8.0)])
def test_two_bins_in_one_epoch_by_quadrature(sigma: float, eps: float) -> None:
    """Given the one lognormal, what the other has to be is a threshold."""
    with mp.workdps(20):
        s = 1 / mp.mpf(sigma)

        def above(c: mp.mpf) -> tuple[mp.mpf, mp.mpf]:  # P(W > c), E W 1[W > c]
            if c <= 0:
                return mp.mpf(1), mp.mpf(1)
            return mp.ncdf(-(mp.log(c) / s + s / 2)), mp.ncdf(-(mp.log(c) / s - s / 2))

        def remove(z: mp.mpf) -> mp.mpf:  # E (S / 2 - e^eps)_+
            w = mp.exp(s * z - s * s / 2)
            mass, mean = above(2 * mp.exp(eps) - w)
            return mp.npdf(z) * ((w / 2 - mp.exp(eps)) * mass + mean / 2)

        def add(z: mp.mpf) -> mp.mpf:  # E (1 - e^eps S / 2)_+
            w = mp.exp(s * z - s * s / 2)
            mass, mean = above(2 * mp.exp(-eps) - w)
            return mp.npdf(z) * ((1 - mp.exp(eps) * w / 2) * (1 - mass) - mp.exp(eps) / 2 * (1 - mean))

        edges = [(mp.log(2) + k * mp.mpf(eps)) / s + s / 2 for k in (-1, 1)]
        cuts = sorted([mp.mpf(-12), *edges, *map(mp.mpf, range(-11, 12)), mp.mpf(12)])
        exact = float(max(mp.quad(remove, cuts), mp.quad(add, cuts)))
    curve = curve_of(BallsInBins(2, Gaussian(sigma)))
    lower, upper = curve.delta_bounds(eps)
    assert lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= upper <= lower * (1 + 3e-3)
    assert account(BallsInBins(2, Gaussian(sigma)), adjacency="zero-out").delta(eps) == upper


def test_many_bins_by_plain_convolution() -> None:
    """Cell masses from the distribution function, no tilt, no spread: good to 1e-5 here."""
    bins, eps, d, size = 100, 0.620988, 0.01, 1 << 19
    edges = d * np.maximum(np.arange(size + 1) - 0.5, 1e-12)
    masses = np.diff(norm.cdf(np.log(edges) + 0.5))
    total = np.fft.irfft(np.fft.rfft(masses) ** bins)
    exact = float(np.dot(np.maximum(d * np.arange(size) / bins - math.exp(eps), 0.0), total))
    assert exact == pytest.approx(9.99466e-6, rel=1e-5)
    lower, upper = curve_of(BallsInBins(bins, Gaussian(1.0))).delta_bounds(eps)
    assert lower <= exact * (1 + 1e-5)
    assert exact * (1 - 1e-5) <= upper <= lower * (1 + 1e-3)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.8, 1.0, 2.0, 6.0])
def test_the_two_laws_of_one_lognormal_are_on_either_side_in_convex_order(sigma: float) -> None:
    """E (W - a)_+ on grid points and between them, where chords are farthest from the curve."""
    upper = balls_in_bins(1, sigma, remove=True, tail=1e-15)
    assert upper.dominated is not None
    ratios = np.exp(upper.atoms[:, 0])
    a = np.concatenate([ratios, (ratios[1:] + ratios[:-1]) / 2.0])
    a = a[(a > 0.02) & (a < np.exp(3.0 / sigma))]
    a = a[:: max(1, a.size // 500)]
    z = sigma * np.log(a)
    exact = norm.cdf(0.5 / sigma - z) - a * norm.cdf(-0.5 / sigma - z)

    def mean_above(atoms: np.ndarray[tuple[int, ...], np.dtype[np.float64]], level: float) -> float:
        return float(np.dot(atoms[:, 1], np.maximum(1.0 - level * np.exp(-atoms[:, 0]), 0.0)))

    above = np.array([mean_above(upper.atoms, float(level)) for level in a])
    below = np.array([mean_above(upper.dominated.atoms, float(level)) for level in a])
    gap = (1.0 / 60.0 / sigma) ** 2  # of the grid, squared: chords are off by an eighth of it and the density
    assert np.all(above + upper.tail >= exact - 1e-13)
    assert np.all(below <= exact + 1e-13)
    if sigma >= 1.0:  # below, the grid is coarser, as W reaches far
        assert np.all(above - below <= gap * sigma)


def test_all_passes_through_the_same_bins_are_one_gaussian() -> None:
    passes = curve_of(BallsInBins(50, Gaussian(4.0), passes=4)).epsilon(1e-5)
    assert passes == curve_of(BallsInBins(50, Gaussian(2.0))).epsilon(1e-5)


def test_between_a_known_bin_and_more_bins() -> None:
    few, many = bounds(10, 2.0, 5, 1e-6), bounds(40, 2.0, 5, 1e-6)
    known = curve_of(Repeat(Gaussian(2.0), 5)).epsilon(1e-6)
    assert many[1] < few[0] <= few[1] < known


@pytest.mark.untraced
@pytest.mark.parametrize("delta", [1e-18, 1e-30, 1e-200])
def test_where_delta_is_tiny_a_known_bin_is_the_bound(delta: float) -> None:
    lower, upper = bounds(100, 4.0, 20, delta)
    known = curve_of(Repeat(Gaussian(4.0), 20)).epsilon(delta)
    assert 0.0 <= lower <= upper <= known


@pytest.mark.untraced
def test_balls_in_bins_with_other_mechanisms() -> None:
    epoch = Repeat(BallsInBins(100, Gaussian(2.0)), 3)
    both = curve_of(Compose((epoch, Laplace(5.0), Gaussian(10.0))))
    lower, upper = both.epsilon_bounds(1e-5)
    assert bounds(100, 2.0, 3, 1e-5)[1] < lower <= upper <= lower * (1 + 1e-3)
