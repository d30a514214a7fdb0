"""Survival curves from noisy counts: estimates with intervals for noise and sampling, and the log-rank test.

Legend: a bin of time has d events and c censored rows, e rows are exposed to the event in it, and v is the
variance of the noise of a count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Span = tuple[float, float, float | None]
"""A value and its interval; the upper end is None if there is none."""

_STEP = 1e-3  # of numeric derivatives: counts are whole numbers, and the functions are smooth between them
_RESOLVED = 2.0  # a bin is resolved if its exposed rows exceed this many standard deviations of their noise

# All intervals here are f(x) ± z s of a smooth function f of the noisy counts x (the delta method), with
#
#     s^2 = sum over k of (df/dx_k)^2 (x_k + v).                                                          (1)
#
# x_k + v is the variance of a Poisson count and its noise, and its estimate has no bias. Sampling rows gives
# multinomial counts, but f does not change if all counts are multiplied by the same number, and then both
# laws give the same s: for f = log S, (1) without noise is Greenwood's formula.


@dataclass(frozen=True)
class Counts:
    """The noisy counts of one group, in the order of :class:`~tacit.queries.measures.Lifetimes`."""

    cells: Array
    edges: tuple[float, ...]
    variance: float  # v
    whole: bool  # whether times are whole numbers

    @property
    def late(self) -> Array:
        """The share of a bin's censored rows that count as not exposed to its events."""
        # Times are spread evenly over a bin. If it contains w whole numbers, a censored row is exposed to an
        # event at the same time, as Kaplan and Meier count it. For w = 1 the curve is exactly theirs.
        if not self.whole:
            return np.full(len(self.edges) - 1, 0.5)
        w = np.maximum(np.diff(np.floor(self.edges)), 1.0)
        return np.asarray((w - 1) / (2 * w))

    def exposed(self, cells: Array) -> tuple[Array, Array]:
        """Return d and e of each bin; ``cells`` may have leading axes."""
        bins = len(self.edges) - 1
        c, d, beyond = cells[..., :bins], cells[..., bins : 2 * bins], cells[..., 2 * bins :]
        at_risk = np.cumsum((c + d)[..., ::-1], axis=-1)[..., ::-1] + beyond
        return d, at_risk - self.late * c

    @property
    def resolved(self) -> int:
        """The number of bins, from the first, whose exposed rows stand out of the noise."""
        d, e = self.exposed(self.cells)
        left = 2 * np.arange(len(d), 0, -1) + 1  # the counts whose sum is e
        clear = (e > _RESOLVED * np.sqrt(self.variance * left)) & (d < e)
        return int(np.logical_and.accumulate(clear).sum())

    def log_survival(self, cells: Array, bins: int) -> Array:
        d, e = self.exposed(cells)
        return np.cumsum(np.log1p(-d[..., :bins] / e[..., :bins]), axis=-1)

    def estimate(self, f: Callable[[Array], Array], level: float) -> tuple[Array, Array]:
        """Return a function of the logarithm of survival in the resolved bins, and z s of (1)."""
        bins = self.resolved
        return _estimate(lambda x: f(self.log_survival(x, bins)), self.cells, self.variance, level)


def _estimate(
    f: Callable[[Array], Array], cells: Array, variance: float, level: float
) -> tuple[Array, Array]:
    """Return f and z s of (1), for each component of f."""
    steps = _STEP * np.eye(len(cells))
    squared = ((f(cells + steps) - f(cells - steps)) / (2 * _STEP)).T ** 2
    noise = squared.sum(axis=-1) * variance
    z = NormalDist().inv_cdf((1 + level) / 2)
    return f(cells), np.asarray(z * np.sqrt(np.maximum(squared @ (cells + variance), noise)))


def _spans(low: Array, value: Array, high: Array) -> list[Span]:
    return list(zip(value.tolist(), low.tolist(), high.tolist(), strict=True))


def survival(counts: Counts, level: float) -> list[Span]:
    """Return the share without an event at the end of each bin; it never increases."""
    # Beyond the resolved bins the curve stays where it is, and its interval goes down to 0.
    curve, reach = counts.estimate(np.exp, level)
    low, value, high = (np.clip(each, 0.0, 1.0) for each in (curve - reach, curve, curve + reach))
    value = np.minimum.accumulate(value)
    spans = _spans(np.minimum(low, value), value, np.maximum(high, value))
    last, _, highest = spans[-1] if spans else (1.0, 0.0, 1.0)
    return spans + [(last, 0.0, highest)] * (len(counts.edges) - 1 - len(spans))


def cumulative_hazard(counts: Counts, level: float) -> list[Span]:
    """Return the cumulative hazard at the end of each bin; it never decreases."""
    # -log S is exact if the hazard is constant within a bin. A sum of d / e would be smaller in wide bins.
    curve, reach = counts.estimate(np.negative, level)
    value = np.maximum.accumulate(np.maximum(curve, 0.0))
    spans = _spans(np.clip(curve - reach, 0.0, value), value, np.maximum(curve + reach, value))
    last, lowest, _ = spans[-1] if spans else (0.0, 0.0, None)
    return spans + [(last, lowest, None)] * (len(counts.edges) - 1 - len(spans))


def restricted_mean(counts: Counts, level: float) -> Span:
    """Return the area below the survival curve, which is straight between the edges."""
    widths = np.diff(counts.edges)

    def area(log_survival: Array) -> Array:
        curve = np.exp(log_survival)
        whole = np.concatenate([np.ones_like(curve[..., :1]), curve], axis=-1)
        parts = (whole[..., 1:] + whole[..., :-1]) / 2 * widths[: curve.shape[-1]]
        return np.asarray(parts.sum(axis=-1, keepdims=True))

    spans = survival(counts, level)
    (value,) = area(np.log(np.maximum([each[0] for each in spans], 1e-300))).tolist()
    (known,), (reach,) = (each.tolist() for each in counts.estimate(area, level))
    rest = float(widths[counts.resolved :].sum()) * (spans[-1][2] or 0.0)
    low, high = max(known - reach, 0.0), min(known + reach + rest, float(counts.edges[-1]))
    return value, min(low, value), max(high, value)


def log_rank(first: Counts, second: Counts) -> tuple[float, float] | None:
    """Return chi-squared and the p-value of a test that two curves are the same; None if noise hides them.

    The statistic is one group's number of events minus the number expected if both groups had the same
    hazard. Its variance is (1), so it includes the noise of both groups.
    """
    resolved = min(first.resolved, second.resolved)
    if not resolved:
        return None
    size = len(first.cells)

    def excess(cells: Array) -> Array:
        d, e = (x[..., :resolved] for x in first.exposed(cells[..., :size]))
        other_d, other_e = (x[..., :resolved] for x in second.exposed(cells[..., size:]))
        expected = (d + other_d) * e / (e + other_e)
        return np.asarray((d - expected).sum(axis=-1, keepdims=True))

    cells = np.concatenate([first.cells, second.cells])
    level = 2 * NormalDist().cdf(1.0) - 1  # one standard deviation
    value, reach = _estimate(excess, cells, first.variance, level)
    z = float(value[0] / reach[0])
    return z**2, math.erfc(abs(z) / math.sqrt(2.0))
