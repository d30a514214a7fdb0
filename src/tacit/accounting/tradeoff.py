"""The trade-off function and the largest privacy loss, from a privacy curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# Write x = e^eps, and a for the false-positive rate of a membership test.  If an event is
# (eps, delta(eps))-DP for all eps >= 0, every test has at least the false-negative rate
#
#     f(a) = sup over eps of  max(0,  1 - delta(eps) - e^eps a,  e^-eps (1 - delta(eps) - a))
#
# (Dong, Roth & Su 2019, 1905.02383, Proposition 2.12; Kairouz, Oh & Viswanath 2015, 1311.0776).  For
# neighbours that may be swapped, delta(-eps) = 1 - e^-eps (1 - delta(eps)).  Then both terms are one formula,
# 1 - delta(eps) - e^eps a over all real eps, which is concave in x.  Every eps gives a straight line in a
# below f.  The largest of finitely many lines is convex and below f, so it errs towards more attack success.

Array: TypeAlias = NDArray[np.float64]

_SLACK = 8.0 * 2.0**-53  # rounding error of a line at a point, relative to its terms
_SMALL, _LEAST = 1e-7, 1e-14  # the curve is evaluated down to the first delta, or the second for tiny rates
_FARTHEST = 700.0  # nats; e to that power is still a float
_FIRST, _ROUNDS, _POLISHED = 9, 60, 2
_MOST_RATES, _BLOCK = 256, 1024  # most rates in one search, and in one evaluation
_COARSE = 2e-3  # the search stops bisecting at this possible relative gain, and starts polishing
_NARROW = 1.0 / 512.0  # of the range: a first or last interval this narrow is not divided
_EXCESSES = np.array([1e-9, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4, 0.7, 1.5])  # t, in nats


def false_negative_rates(
    deltas: Callable[[Array], Array], epsilon: Callable[[float], float], rates: Array
) -> Array:
    """Bound f from below at each of the false-positive ``rates``, of shape (n,), in [0, 1].

    Args:
        deltas: computes upper bounds on delta at an array of epsilons >= 0.
        epsilon: computes an upper bound on epsilon at a delta.  It only guides the search.

    **Guarantee**

    * Every value is at most f of the true curve, also after rounding.  It is never below 0 or above 1 - a.
    * As a function of ``rates`` the values are convex and decreasing, up to rounding.

    >>> pure = lambda eps: np.where(eps >= 1.0, 0.0, 0.5)  # (1, 0)-DP, and no better than 1/2 below
    >>> false_negative_rates(pure, lambda delta: 1.0, np.array([0.1, 0.5])).round(6).tolist()
    [0.728172, 0.18394]
    """
    some = np.unique(rates[(rates > 0.0) & (rates < 1.0)])  # at 0 and 1 the ends of the range are best
    x, d = _nodes(deltas, _reach(epsilon, some), some[:: max(1, some.size // _MOST_RATES)])
    value = np.empty(rates.size)
    for start in range(0, rates.size, _BLOCK):  # the table of lines stays small
        block = rates[start : start + _BLOCK]
        value[start : start + _BLOCK] = np.clip(_lines(x, d, block)[1].max(axis=1), 0.0, 1.0 - block)
    return value


def _nodes(deltas: Callable[[Array], Array], reach: float, rates: Array) -> tuple[Array, Array]:
    """Find epsilons that give nearly the highest lines at each of ``rates``, and the deltas there."""
    x = np.linspace(0.0, reach, _FIRST) if reach > 0.0 else np.zeros(1)
    d = deltas(x)
    if rates.size == 0:
        return x, d
    polished = 0
    for _ in range(_ROUNDS):
        points, lines = _lines(x, d, rates)
        best = np.argmax(lines, axis=1)
        # the smaller of the false-negative and the true-positive rate, to resolve both tails
        value = lines[np.arange(best.size), best]
        smaller = np.maximum(np.minimum(value, 1.0 - value), 1e-12)
        wide = _possible_gain(points, lines, best) > _COARSE * smaller
        polished += not wide.any()
        if polished > _POLISHED or reach == 0.0:
            break
        if wide.any():
            middle = points[best[wide]]
            more = np.concatenate([middle + points[end] for end in _around(points, best[wide])]) / 2.0
        else:
            more = _vertices(points, lines, best)
        more = np.setdiff1d(np.abs(more), x)
        x, d = np.concatenate([x, more]), np.concatenate([d, deltas(more)])
        order = np.argsort(x)
        x, d = x[order], d[order]
    return x, d


def _reach(epsilon: Callable[[float], float], rates: Array) -> float:
    """Choose the largest epsilon to evaluate: the first finite one of those at three small deltas."""
    least = float(np.minimum(rates, 1.0 - rates).min(initial=1.0))
    for delta in (min(max(1e-3 * least, _LEAST), _SMALL), 1e-5, 1e-3):
        largest = epsilon(delta)
        if math.isfinite(largest):
            return min(largest, _FARTHEST)
    return _FARTHEST


def _lines(x: Array, d: Array, rates: Array) -> tuple[Array, Array]:
    """Return all real epsilons (-x and x), and the value of each one's line (columns) at each rate (rows)."""
    a = rates[:, None]
    upper = (1.0 - d) - np.exp(x) * a
    upper -= _SLACK * (1.0 + np.exp(x) * a * (1.0 + x))
    lower = np.exp(-x) * ((1.0 - a) - d)
    lower -= _SLACK * np.exp(-x) * (1.0 + x) * ((1.0 - a) + d)
    return np.concatenate([-x[:0:-1], x]), np.concatenate([lower[:, :0:-1], upper], axis=1)


def _around(points: Array, best: Array) -> tuple[Array, Array]:
    return np.maximum(best - 1, 0), np.minimum(best + 1, points.size - 1)


def _possible_gain(points: Array, lines: Array, best: Array) -> Array:
    """Bound how much higher than the best line any other line may reach."""
    # A concave function of e^eps lies below its chord to one neighbour, extended beyond the other end.
    rows = np.arange(best.size)
    left, right = _around(points, best)
    x = np.exp(points)
    middle = lines[rows, best]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = (middle - lines[rows, left]) / (x[best] - x[left]) * (x[right] - x[best])
        falling = (middle - lines[rows, right]) / (x[right] - x[best]) * (x[best] - x[left])
    inside = (left < best) & (best < right)
    at_the_end = np.where(points[right] - points[left] > _NARROW * np.ptp(points), np.inf, 0.0)
    return np.where(inside, np.maximum(np.nan_to_num(rising), np.nan_to_num(falling)), at_the_end)


def _vertices(points: Array, lines: Array, best: Array) -> Array:
    """Return the maximum of the parabola through the best line and its two neighbours."""
    rows = np.arange(best.size)
    left, right = _around(points, best)
    down, up = points[best] - points[left], points[right] - points[best]
    fall, rise = lines[rows, best] - lines[rows, left], lines[rows, best] - lines[rows, right]
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (up * up * fall - down * down * rise) / (up * fall + down * rise) / 2.0
    return np.unique(np.clip(points[best] + np.nan_to_num(shift), points[left], points[right]))


def largest_loss(epsilons: Callable[[Array], Array], delta: float) -> float:
    """Bound the privacy loss L, except with probability ``delta``; in nats, >= 0.

    delta(eps) = E(1 - e^{eps - L})_+ >= (1 - e^-t) P(L > eps + t) for every t > 0, so that
    eps(delta (1 - e^-t)) + t is a bound for every t.  The result is the least over a grid of t.

    >>> largest_loss(lambda deltas: np.full(deltas.shape, 2.0), 1e-6) < 2.0 + 1e-8
    True
    """
    share = delta * -np.expm1(-_EXCESSES)
    usable = share > 1e-300
    losses = epsilons(share[usable]) + _EXCESSES[usable]
    return float(losses.min()) * (1.0 + 1e-15) if losses.size else math.inf
