"""Tests of normal draws, which return a p-value each.

The test suite runs them on a few million draws, and ``make check-noise`` on 1e8.  Draws are arrays of floats
with unit variance.  *Tiles* are draws in the order of :mod:`tacit.noise.gaussian`, (t, 2, 1024): cosines
and sines of the same 1024 pairs.

Letters: N draws; z a value in standard deviations; b bins; r radius of a pair.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri

__all__ = [
    "autocorrelation",
    "chi_square",
    "deep_tail",
    "dependence",
    "kolmogorov_smirnov",
    "pairs",
    "radius_bits",
    "scale",
    "tail",
    "tail_count",
]

Floats = NDArray[np.floating]
_AT_ONCE = 1 << 22  # the number of values converted to double precision at a time


def _parts(draws: Floats) -> list[NDArray[np.float64]]:
    return [draws[start : start + _AT_ONCE].astype(np.float64) for start in range(0, len(draws), _AT_ONCE)]


def scale(draws: Floats) -> float:
    """Test the sum of squares, which is chi-square with N degrees of freedom, on two sides."""
    total, count = sum(float(part @ part) for part in _parts(draws)), len(draws)
    return float(2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count)))


def kolmogorov_smirnov(ordered: Floats) -> float:
    """Test sorted draws by the largest distance of the empirical distribution from the normal one."""
    count, distance = len(ordered), 0.0
    for start in range(0, count, _AT_ONCE):
        cdf = ndtr(ordered[start : start + _AT_ONCE].astype(np.float64))
        rank = np.arange(start, start + len(cdf))
        distance = max(distance, float((cdf - rank / count).max()), float(((rank + 1) / count - cdf).max()))
    return float(stats.kstwo.sf(distance, count))


def chi_square(ordered: Floats, bins: int = 1000) -> float:
    """Test sorted draws by their numbers in ``bins`` intervals of equal probability."""
    edges = ndtri(np.arange(1, bins) / bins)
    counts = np.diff(np.searchsorted(ordered, edges), prepend=0, append=len(ordered))
    return _uniform(counts)


def tail(draws: Floats, z: float) -> tuple[int, float, float]:
    """Return the number of draws further out than z, the expected number, and its two-sided p-value."""
    found = sum(int(np.count_nonzero(abs(part) > z)) for part in _parts(draws))
    return (found, *tail_count(found, len(draws), z))


def tail_count(found: int, count: int, z: float) -> tuple[float, float]:
    """Return the number of ``count`` draws expected further out than z, and the p-value of ``found``."""
    expected = 2 * float(ndtr(-z)) * count
    both = 2 * min(stats.poisson.cdf(found, expected), stats.poisson.sf(found - 1, expected))
    return expected, float(min(1.0, both))


def pairs(tiles: Floats, bins: int = 64) -> float:
    """Test by a contingency table that u = exp(-r^2 / 2) and the angle are uniform and independent."""
    counts = np.zeros((bins, bins), np.int64)
    for part in np.array_split(tiles, max(1, tiles.size // _AT_ONCE)):
        x, y = part[:, 0].astype(np.float64), part[:, 1].astype(np.float64)
        u, turn = np.exp(-(x * x + y * y) / 2), np.arctan2(y, x) / (2 * np.pi) + 0.5
        cells = (np.minimum(u * bins, bins - 1).astype(int), np.minimum(turn * bins, bins - 1).astype(int))
        counts += np.bincount(cells[0].ravel() * bins + cells[1].ravel(), minlength=bins * bins).reshape(
            bins, bins
        )
    return _uniform(counts)


def radius_bits(tiles: Floats, bits: int, bins: int = 16) -> float:
    """Test that the fractional part of 2^bits u is uniform in the tail, u = exp(-r^2 / 2) < 2^(12 - bits).

    If a generator's u has only ``bits`` bits, its tail is on a lattice, and all draws fall into one bin.
    """
    left = []
    for part in np.array_split(tiles, max(1, tiles.size // _AT_ONCE)):
        half = (part[:, 0].astype(np.float64) ** 2 + part[:, 1].astype(np.float64) ** 2) / 2
        left.append(np.exp2(bits) * np.exp(-half[half > (bits - 12) * np.log(2)]) % 1.0)
    return _uniform(np.bincount((np.concatenate(left) * bins).astype(int), minlength=bins))


def deep_tail(box_muller: Callable[[NDArray[np.uint8]], Floats], zeros: int, count: int = 1 << 18) -> float:
    """Test far tails: given u < 2^-zeros, r^2 / 2 - zeros ln 2 is exponential.

    ``box_muller`` maps the 12,288 bytes of a tile to draws (2, 1024).  Leading zeros in the bytes make u
    small.
    """
    random = np.random.default_rng(zeros)
    excess = []
    for _ in range(count // 1024):
        radius = random.integers(0, 1 << 63, 1024, np.int64) >> zeros
        angle = random.integers(0, 1 << 32, 1024, np.uint32)
        words = np.concatenate([radius.view(np.uint8), angle.view(np.uint8)])
        x, y = box_muller(words).astype(np.float64)
        excess.append((x * x + y * y) / 2 - zeros * np.log(2))
    return float(stats.kstest(np.concatenate(excess), "expon").pvalue)


def dependence(streams: Floats) -> float:
    """Test streams (k, N) by the largest correlation of two of them, or of their squares."""
    wide = streams.astype(np.float64)
    both = np.stack([np.corrcoef(wide), np.corrcoef(wide**2)])
    above = np.triu_indices(len(wide), 1)
    return _largest_of(both[:, *above].ravel() * np.sqrt(wide.shape[1]))


def autocorrelation(draws: Floats) -> float:
    """Test the largest autocorrelation of the draws, or of their squares, at any lag."""
    wide = draws.astype(np.float64)
    found = []
    for values in (wide, (wide**2 - 1) / np.sqrt(2)):
        spectrum = abs(np.fft.rfft(values)) ** 2
        found.append(np.fft.irfft(spectrum, len(values))[1 : len(values) // 2] / np.sqrt(len(values)))
    return _largest_of(np.concatenate(found))


def _uniform(counts: NDArray[np.int64]) -> float:
    return float(stats.chisquare(counts.ravel()).pvalue)


def _largest_of(z: NDArray[np.float64]) -> float:
    """Return the p-value of the largest of many values that are nearly standard normal and independent."""
    return float(-np.expm1(len(z) * np.log1p(-2 * ndtr(-abs(z).max()))))
