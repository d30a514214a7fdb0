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


def _reach(f: Callable[[Array], Array], cells: Array, variance: float, level: float) -> Array:
    """Return z s of (1) for each component of f."""
    steps = _STEP * np.eye(len(cells))
    squared = ((f(cells + steps) - f(cells - steps)) / (2 * _STEP)).T ** 2
    noise = squared.sum(axis=-1) * variance
    z = NormalDist().inv_cdf((1 + level) / 2)
    return np.asarray(z * np.sqrt(np.maximum(squared @ (cells + variance), noise)))


def survival(counts: Counts, level: float) -> list[Span]:
    """Return the share without an event at the end of each bin; it never increases."""
    # Beyond the resolved bins the curve stays where it is, and its interval goes down to 0.
    bins, resolved = len(counts.edges) - 1, counts.resolved
    value, low, high = np.ones(bins), np.zeros(bins), np.ones(bins)
    if resolved:
        curve = np.exp(counts.log_survival(counts.cells, resolved))
        reach = curve * _reach(
            lambda cells: counts.log_survival(cells, resolved), counts.cells, counts.variance, level
        )
        value[:resolved] = np.minimum.accumulate(np.clip(curve, 0.0, 1.0))
        low[:resolved] = np.minimum(np.clip(curve - reach, 0.0, 1.0), value[:resolved])
        high[:resolved] = np.maximum(np.clip(curve + reach, 0.0, 1.0), value[:resolved])
        value[resolved:] = value[resolved - 1]
        high[resolved:] = high[resolved - 1]
    return list(zip(value.tolist(), low.tolist(), high.tolist(), strict=True))


def cumulative_hazard(counts: Counts, level: float) -> list[Span]:
    """Return the cumulative hazard at the end of each bin; it never decreases."""
    # -log S is exact if the hazard is constant within a bin. A sum of d / e would be smaller in wide bins.
    bins, resolved = len(counts.edges) - 1, counts.resolved
    if not resolved:
        return [(0.0, 0.0, None)] * bins
    curve = -counts.log_survival(counts.cells, resolved)
    reach = _reach(lambda cells: counts.log_survival(cells, resolved), counts.cells, counts.variance, level)
    value = np.maximum.accumulate(np.maximum(curve, 0.0))
    low = np.clip(curve - reach, 0.0, value)
    high = np.maximum(curve + reach, value)
    spans: list[Span] = list(zip(value.tolist(), low.tolist(), high.tolist(), strict=True))
    return spans + [(float(value[-1]), float(low[-1]), None)] * (bins - resolved)


def restricted_mean(counts: Counts, level: float) -> Span:
    """Return the area below the survival curve, which is straight between the edges."""
    resolved, widths = counts.resolved, np.diff(counts.edges)

    def area(log_survival: Array) -> Array:
        curve = np.exp(log_survival)
        whole = np.concatenate([np.ones_like(curve[..., :1]), curve], axis=-1)
        parts = (whole[..., 1:] + whole[..., :-1]) / 2 * widths[: curve.shape[-1]]
        return np.asarray(parts.sum(axis=-1, keepdims=True))

    spans = survival(counts, level)
    value = float(area(np.log(np.maximum([each[0] for each in spans], 1e-300)))[0])
    if not resolved:
        return value, 0.0, float(counts.edges[-1])
    known = float(area(counts.log_survival(counts.cells, resolved))[0])
    reach = float(
        _reach(
            lambda cells: area(counts.log_survival(cells, resolved)), counts.cells, counts.variance, level
        )[0]
    )
    rest = float(widths[resolved:].sum()) * (spans[-1][2] or 0.0)
    low, high = max(known - reach, 0.0), min(known + reach + rest, float(counts.edges[-1]))
    return value, min(low, value), max(high, value)


def log_rank(first: Counts, second: Counts) -> tuple[float, float] | None:
    """Return chi-squared and the p-value of a test that two curves are the same; None if noise hides them.

    The statistic is the sum of the events of one group minus those that it would have if both groups had the
    same hazard. Its variance is (1), so it has the noise of both groups.
    """
    resolved = min(first.resolved, second.resolved)
    if not resolved:
        return None
    size = len(first.cells)

    def excess(cells: Array) -> Array:
        d, e = first.exposed(cells[..., :size])
        other_d, other_e = second.exposed(cells[..., size:])
        expected = (d + other_d) * e / (e + other_e)
        return np.asarray((d - expected)[..., :resolved].sum(axis=-1, keepdims=True))

    cells = np.concatenate([first.cells, second.cells])
    level = 2 * NormalDist().cdf(1.0) - 1  # one standard deviation
    z = float(excess(cells)[0] / _reach(excess, cells, first.variance, level)[0])
    return z**2, math.erfc(abs(z) / math.sqrt(2.0))
