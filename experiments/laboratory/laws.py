"""Tests whether a run's noise and samples have the distribution that was accounted for.

They find faults that no canary shows: noise that is too *large*, the same noise in two steps or two tensors,
a tensor without noise, or a shuffle that was accounted for as independent draws.  A test returns p-values by
name.  It rejects if the smallest p-value times their number is below the level (Bonferroni).

Letters: T steps, d entries of a tensor, n records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, gammainc, gammaincc, kolmogorov, ndtr, smirnov, stdtr

from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]

_EXACT = 1000  # up to this many entries, the exact distribution of the Kolmogorov-Smirnov distance is used
_FEWEST = 30  # from this many products on, the sum of products along a tensor is nearly normal


@dataclass(frozen=True)
class LawTest:
    """The p-values of several tests of one distribution.  Each p-value is valid alone.

    >>> test = LawTest({"size": 0.4, "neighbours": 0.001})
    >>> test.worst, test.p_value, test.rejects(0.01)
    ('neighbours', 0.002, True)
    """

    p_values: Mapping[str, float]

    @property
    def p_value(self) -> float:
        """The smallest p-value, times the number of tests."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))

    @property
    def worst(self) -> str:
        """The name of the test with the smallest p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])

    def rejects(self, level: float) -> bool:
        """Return whether the tests reject.  They reject a true distribution with probability <= ``level``."""
        return self.p_value < check_real("level", level, low=0.0, high=1.0)


def noise_law(noise: Mapping[str, ArrayLike], *, std: float) -> LawTest:
    """Test whether noise is N(0, std^2), independent over entries, tensors and steps.

    Args:
        noise: for each tensor, the released values minus the computed values, of shape (T, ...) with T >= 2.
        std: the standard deviation > 0 that was accounted for, in the same units.

    Raises:
        InvalidInput: if a tensor is empty or not finite, or the numbers of steps differ.

    Each tensor is tested for its sum of squares (two-sided chi^2 with d T degrees of freedom), the sum of
    each step's entries (two-sided chi^2 with T degrees of freedom), the Kolmogorov-Smirnov distance, the
    correlation of every pair of steps, and that of neighbouring entries.  Each pair of tensors is tested for
    the correlation of entries with the same index.

    >>> rng = np.random.default_rng(0)
    >>> noise = {"weight": rng.normal(0.0, 2.0, (60, 10, 20)), "bias": rng.normal(0.0, 2.0, (60, 10))}
    >>> noise_law(noise, std=2.0).rejects(1e-3), noise_law(noise, std=2.2).rejects(1e-3)
    (False, True)
    """
    check_real("std", std, low=0.0, open_low=True)
    tensors = {name: _steps(name, values) / std for name, values in noise.items()}
    if len({z.shape[0] for z in tensors.values()}) != 1:
        raise InvalidInput("noise must hold at least one tensor, all of the same number of steps.")
    p: dict[str, float] = {}
    for name, z in tensors.items():
        p[f"{name}: size"] = _two_sided_chi2(float((z**2).sum()), z.size)
        p[f"{name}: sums"] = _two_sided_chi2(float((z.sum(axis=1) ** 2).sum() / z.shape[1]), z.shape[0])
        p[f"{name}: shape"] = _normal_shape(z.ravel())
        p[f"{name}: steps"] = _equal_steps(z)
        p[f"{name}: neighbours"] = _neighbours(z)
    for (one, a), (other, b) in itertools.combinations(tensors.items(), 2):
        shared = min(a.shape[1], b.shape[1])
        p[f"{one} and {other}"] = _correlation(a[:, :shared].ravel(), b[:, :shared].ravel())
    return LawTest(p)


def sampler_law(counts: ArrayLike, *, sampling_rate: float) -> LawTest:
    """Test whether every record took part in every step independently with probability q.

    Args:
        counts: the number of times that each record was in each step's batch, of shape (T, n).
        sampling_rate: q in (0, 1), as accounted for.

    Raises:
        InvalidInput: if the counts are not whole numbers of shape (T, n).

    The tests reject if a record is twice in one batch.  They also test

    * the total (binomial).
    * the variance of batch sizes, and that of the records' counts in the run and in windows of 1/q steps
      (two-sided chi^2).  With a shuffle, these variances are too small.
    * the pair of records, and the pair of steps, that coincide most often (binomial with rate q^2).

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random((100, 500)) < 0.1
    >>> [sampler_law(coins, sampling_rate=q).rejects(1e-3) for q in (0.1, 0.11)]
    [False, True]
    """
    q = check_real("sampling_rate", sampling_rate, low=0.0, high=1.0, open_low=True, open_high=True)
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2 or not ((table >= 0.0) & (table == np.floor(table))).all():
        raise InvalidInput(f"counts must be whole numbers, steps by records; got shape {table.shape}.")
    steps, records = table.shape
    window = min(steps, max(2, round(1.0 / q)))
    windows = steps // window
    in_windows = table[: windows * window].reshape(windows, window, records).sum(axis=1)
    return LawTest(
        {
            "once a batch": float(table.max() <= 1.0),
            "rate": _two_sided_binomial(float(table.sum()), table.size, q),
            "batch sizes": _spread(table.sum(axis=1), records, q),
            "counts of records": _spread(table.sum(axis=0), steps, q),
            "counts in windows": _spread(in_windows.ravel(), window, q),
            "pairs of records": _coinciding(table.T, q),
            "pairs of steps": _coinciding(table, q),
        }
    )


# --- single tests -----------------------------------------------------------------------------------------


def _steps(name: str, values: ArrayLike) -> Array:
    z = np.asarray(values, dtype=np.float64)
    if z.ndim < 1 or z.shape[0] < 2 or z.size == 0:
        raise InvalidInput(f"noise of {name!r} needs at least two steps and one entry; got shape {z.shape}.")
    if not np.isfinite(z).all():
        raise InvalidInput(
            f"noise of {name!r} must be finite; {int((~np.isfinite(z)).sum())} of its entries are not."
        )
    return z.reshape(z.shape[0], -1)


def _twice(below: float, above: float) -> float:
    return min(1.0, 2.0 * min(below, above))


def _two_sided_chi2(value: float, freedom: float) -> float:
    return _twice(float(gammainc(freedom / 2, value / 2)), float(gammaincc(freedom / 2, value / 2)))


def _two_sided_binomial(count: float, trials: int, rate: float) -> float:
    above = 1.0 if count == 0 else float(bdtrc(count - 1.0, trials, rate))
    return _twice(float(bdtr(min(count, trials), trials, rate)), above)


def _spread(counts: Array, trials: int, rate: float) -> float:
    """Test the variance of independent binomial counts about their mean, by chi^2.

    The square of a centred binomial varies more than that of a Gaussian.  So the degrees of freedom are
    lowered until the mean and the variance of the sum of squares are right.
    """
    variance = trials * rate * (1.0 - rate)
    kurtosis = 3.0 + (1.0 - 6.0 * rate * (1.0 - rate)) / variance
    freedom = counts.size * 2.0 / (kurtosis - 1.0)
    value = float(((counts - trials * rate) ** 2).sum() / variance)
    return _two_sided_chi2(value * freedom / counts.size, freedom)


def _normal_shape(z: Array) -> float:
    """Test ``z`` against N(0, 1) by the Kolmogorov-Smirnov test."""
    u, n = np.sort(ndtr(z)), z.size
    above, below = np.arange(1, n + 1) / n - u, u - np.arange(n) / n
    distance = float(max(above.max(), below.max()))
    return min(1.0, float(2.0 * smirnov(n, distance) if n <= _EXACT else kolmogorov(math.sqrt(n) * distance)))


def _equal_steps(z: Array) -> float:
    """Test the most correlated pair of steps a and b.  Given a, <a, b> / |a| is N(0, 1)."""
    norm = np.linalg.norm(z, axis=1)
    if (norm == 0.0).any():
        return 0.0
    row, column = np.triu_indices(z.shape[0], 1)
    score = np.abs((z @ z.T)[row, column] / norm[row])
    return min(1.0, float(2.0 * ndtr(-score.max())) * row.size)


def _neighbours(z: Array) -> float:
    """Test the sum of products of adjacent entries, which is nearly N(0, number of products)."""
    products = z[:, 1:] * z[:, :-1]
    if products.size < _FEWEST:
        return 1.0
    return float(2.0 * ndtr(-abs(products.sum()) / math.sqrt(products.size)))


def _correlation(a: Array, b: Array) -> float:
    """Test the correlation of a and b, with means of 0, by Student's t.  It is exact for Gaussians."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if a.size < 2 or size == 0.0:
        return 1.0 if a.size < 2 else 0.0
    r = float(a @ b) / size
    if abs(r) >= 1.0 - 1e-12:
        return 0.0
    return float(2.0 * stdtr(a.size - 1.0, -abs(r) * math.sqrt((a.size - 1.0) / (1.0 - r * r))))


def _coinciding(rows: Array, rate: float) -> float:
    """Test the pair of rows that coincides most often.  The count of each pair is Bin(columns, q^2)."""
    together = np.minimum(rows, 1.0) @ np.minimum(rows, 1.0).T
    row, column = np.triu_indices(rows.shape[0], 1)
    most = float(together[row, column].max())
    if most == 0.0:
        return 1.0
    return min(1.0, float(bdtrc(most - 1.0, rows.shape[1], rate**2)) * row.size)
