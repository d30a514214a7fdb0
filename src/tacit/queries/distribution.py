"""Shares and quantiles from noisy counts of candidates and of runs of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

Array = NDArray[np.float64]
Span = tuple[float, float, float]


# The noisy counts y of leaves and runs are combined by least squares (Hay et al. 2010, 0904.0942). Let R be a
# run of b leaves with noisy count r and s = sum of its noisy leaves. Then the best estimate of its count is
# (b r + s) / (b + 1), and each leaf gets a b-th of the difference to s.
@lru_cache(maxsize=8)
def _weights(leaves: int, run: int) -> Array:
    """Return the matrix that turns noisy counts into the numbers of rows up to and with each leaf."""
    leaf = np.eye(leaves)
    if not run:
        return np.cumsum(leaf, axis=0)
    runs = np.arange(leaves) // run
    member = (runs[:, None] == np.arange(runs[-1] + 1)).astype(float)
    size = member.sum(axis=0)
    # of each leaf: what its run's count adds, less what the leaves' own counts have added
    change = (member * (1 / (size + 1))) @ np.hstack([-member.T, np.eye(len(size))])
    return np.cumsum(np.hstack([leaf, np.zeros((leaves, len(size)))]) + change, axis=0)


@lru_cache(maxsize=64)
def _moments(leaves: int, run: int, q: float) -> tuple[Array, Array]:
    """Return the sums of squares and of fourth powers of the weights of each total less q times the last."""
    squared = (_weights(leaves, run) - q * _weights(leaves, run)[-1]) ** 2
    return squared.sum(axis=-1), (squared * squared).sum(axis=-1)


@dataclass(frozen=True)
class Distribution:
    """The noisy counts of one group.

    Leaf i contains the values between ``lows[i]`` and ``highs[i]``; the candidate is ``values[i]``.
    """

    counts: Array
    values: Array
    lows: Array
    highs: Array
    run: int
    variance: float  # of the noise of a count
    kurtosis: float  # its excess kurtosis
    level: float  # of the intervals

    @property
    def weights(self) -> Array:
        return _weights(len(self.lows), self.run)

    @property
    def totals(self) -> Array:
        """The numbers of rows up to and with each leaf; they never decrease and are not negative."""
        fit = isotonic_regression(self.weights @ self.counts)
        return np.maximum(fit.x, 0.0)

    def reach(self, second: Array, fourth: Array) -> Array:
        """Return the largest noise, at the level, of sums of counts from :func:`_moments`."""
        # Cornish and Fisher's expansion; by the fourth moment it is exact enough for any sum of both laws.
        excess = self.kurtosis * fourth / np.maximum(second**2, 1e-300)
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        return np.asarray((z + excess * (z**3 - 3 * z) / 24) * np.sqrt(self.variance * second))

    def cdf(self, points: Sequence[float]) -> list[Span]:
        """Return the share of values that are at most each point."""
        # A leaf that a point cuts counts in part for the value, not at all for the lower end of the interval,
        # and as a whole for the upper end.
        totals = self.totals
        spans = []
        for point in points:
            within = int(np.searchsorted(self.highs, point, side="right"))  # leaves that end before the point
            reached = int(np.searchsorted(self.lows, point, side="right"))  # leaves that begin before it
            ends = [self._share(within, totals), self._share(reached, totals)]
            part = 0.0
            if within < reached:
                part = (point - self.lows[within]) / (self.highs[within] - self.lows[within])
            value = ends[0][1] + part * (ends[1][1] - ends[0][1])
            spans.append((value, min(ends[0][0], value), max(ends[1][2], value)))
        return spans

    def _share(self, leaves: int, totals: Array) -> Span:
        """Return the share of the first so many leaves: low, value and high."""
        if leaves in (0, len(totals)):
            share = float(leaves > 0)
            return share, share, share
        if totals[-1] <= 0:
            return 0.0, 0.0, 1.0
        below, whole = self.weights[leaves - 1], self.weights[-1]
        # of the shares p for which the rows below less p times all rows could be noise (Fieller 1954)
        rough = float(np.clip((below @ self.counts) / totals[-1], 0.0, 1.0))
        squared = (below - rough * whole) ** 2
        reach = float(self.reach(squared.sum(), (squared * squared).sum()) / totals[-1])
        value = float(totals[leaves - 1] / totals[-1])
        return max(rough - reach, 0.0), value, min(rough + reach, 1.0)

    def quantiles(self, qs: Sequence[float]) -> list[Span]:
        """Return the quantiles, each a candidate; they never decrease."""
        # The q-quantile is in a leaf if the rows up to it are at least q times all rows, and those before it
        # are at most as many. The interval begins with the first leaf of which the former may be true, and
        # ends with the last of which the latter may be.
        totals, weights = self.totals, self.weights
        spans = []
        for q in qs:
            rank = q * totals[-1]
            place = min(int(np.searchsorted(totals, rank)), len(totals) - 1)
            value = self.values[place]
            rows = weights @ self.counts
            excess, reach = rows - q * rows[-1], self.reach(*_moments(len(totals), self.run, q))
            reaching = np.append(np.flatnonzero(excess + reach >= 0), len(totals) - 1)
            short = np.append(-1, np.flatnonzero(excess - reach <= 0))
            first, last = reaching[0], min(short[-1] + 1, len(totals) - 1)
            low = float(min(self.lows[first], value))
            spans.append((float(value), low, float(max(self.highs[last], value))))
        return spans
