"""The place of the contour, a saddle point of F, and a bound on the characteristic function beyond its end.

The saddle points are estimates.  The bounds hold for any contour, and are tight for a good one.

F and K are those of :mod:`tacit.accounting.pld.contour`.

The characteristic function phi of a privacy loss has a proven bound at every u.  If a measure nu lies below
the tilted distribution of the loss, then |phi(u)| <= 1 - nu(1) + |phi_nu(u)|.  Here nu has a piecewise
constant density, so that its mass, moments and total variation V are known exactly, and

    |phi_nu(u)|^2 <= nu(1)^2 - u^2 D2 / 2 + u^4 D4 / 24,   |phi_nu(u)| <= V / u,

where Dk is the integral of (l - l')^k over nu x nu.  The first bound uses cos t <= 1 - t^2/2 + t^4/24, the
second uses integration by parts.  Several nu are tried: the whole density, and its parts to the left and to
the right of several cuts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import ndtri_exp

from tacit.accounting.pld.saddle import Cumulant, Saddle, saddle_at
from tacit.accounting.pld.transform import Mixture
from tacit.accounting.price import Array
from tacit.accounting.roots import brent

EDGES: Array = np.geomspace(1e-3, 1e10, 256)  # of the intervals of u; the last one has no end
_SQUARES, _FOURTHS = EDGES**2, EDGES**4
_PANELS = 256
_COUNTED = np.arange(_PANELS + 1.0)
_CUTS = np.array([0.35, 0.65, 0.85, 0.95, 0.99])
_MANY_CUTS = np.concatenate([np.arange(0.1, 0.9, 0.1), [0.9, 0.94, 0.97, 0.985, 0.995, 0.998, 0.9995]])
_SAFE = 1e-6  # relative; far above the rounding of masses and edges
_LOG_TAIL = math.log(1e-9)

_LOG_ROUGH = math.log(1e-12)
_STRIDE = 0.2  # of the search for a saddle, in log tilt


@dataclass(frozen=True)
class Plain:
    """Gaussians without sampling: K(z) = mu^2 z (z+1) / 2, for a count of mu^2."""


Term: TypeAlias = Mixture | Plain


@lru_cache(maxsize=256)
def _samples(term: Mixture, tilt: float, log_tail: float | None) -> tuple[Array, Array]:
    """Compute losses and log masses for an estimate of K near ``tilt``, by a coarse trapezoid rule.

    With ``log_tail``, outcomes rarer than e^log_tail are left out, so that rare large losses do not make K
    explode.
    """
    if log_tail is None:
        low, high = term.reach(tilt, _LOG_ROUGH)
    else:
        high = far = -term.sigma * float(ndtri_exp(log_tail))
        low = -far
        if term.direction != "add":
            high = max(far, *(s - term.sigma * ndtri_exp(min(log_tail - w, -1.0)) for s, _, w in term.terms))
    width = min(term.sigma / 2.0, term.sigma**2 / term.shifts[-1])
    x = np.linspace(low, high, min(4000, 2 + math.ceil((high - low) / width)))
    logs = term.log_normal(x) + math.log(x[1] - x[0])
    if term.direction == "add":
        return -term.loss(x), logs
    return term.loss(x), logs + term.log_m(x)


def _cumulant(terms: tuple[Term, ...], counts: Array, z: float, log_tail: float | None) -> Cumulant:
    """Estimate K and its first two derivatives near z."""
    at, parts, plain = z if log_tail is None else 0.0, [], 0.0
    for term, count in zip(terms, counts.tolist(), strict=True):
        if isinstance(term, Plain):
            plain += count
        else:
            parts.append((*_samples(term, at, log_tail), count))
    return Cumulant(tuple(parts), plain)


def _saddle(terms: tuple[Term, ...], counts: Array, tilt: float, log_tail: float | None = None) -> Saddle:
    return saddle_at(_cumulant(terms, counts, tilt, log_tail), tilt)


def saddle_at_delta(terms: tuple[Term, ...], counts: Array, log_delta: float) -> Saddle:
    """Estimate epsilon at delta, and the saddle there."""
    near = _estimate(terms, counts, log_delta)
    at_tilt = _saddle(terms, counts, near.tilt)
    if abs(at_tilt.epsilon - near.epsilon) > 1e-3 * abs(near.epsilon):
        at_tilt = saddle_at_epsilon(terms, counts, near.epsilon)
    return replace(at_tilt, epsilon=near.epsilon, log_delta=log_delta)


def estimate(terms: tuple[Term, ...], counts: Array, log_delta: float) -> float:
    """Estimate epsilon by the saddle point alone, within about a percent.  Not a bound."""
    return _estimate(terms, counts, log_delta).epsilon


def _estimate(terms: tuple[Term, ...], counts: Array, log_delta: float) -> Saddle:
    """Find the saddle without outcomes that are rare relative to delta, which hardly change epsilon.

    Such outcomes could make K explode, and move the saddle.
    """
    log_tail = log_delta - math.log(10.0 * max(1.0, float(counts.max())))
    variance = _cumulant(terms, counts, 0.0, log_tail)(0.0)[2]
    tilt = math.sqrt(-2.0 * log_delta / variance)
    for _ in range(3):  # the saddle of a Gaussian loss
        share = math.log(2.0 * math.pi * (variance + 1.0 / tilt**2)) / 2.0 + math.log(tilt * (tilt + 1.0))
        tilt = math.sqrt(2.0 * max(1.0 - log_delta - share, 0.1) / variance)
    return _search(
        lambda tilt: _saddle(terms, counts, tilt, log_tail), lambda p: log_delta - p.log_delta, tilt
    )


def saddle_at_epsilon(terms: tuple[Term, ...], counts: Array, epsilon: float) -> Saddle:
    """Find the saddle of F at ``epsilon``."""
    _, mean, variance = _cumulant(terms, counts, 0.0, None)(0.0)
    far = epsilon - mean  # if the loss is Gaussian, variance c^2 - far c = 2 for c << 1, = 1 for c >> 1
    tilt = (far + math.sqrt(far * far + 6.0 * variance)) / (2.0 * variance)
    saddle = _search(lambda tilt: _saddle(terms, counts, tilt), lambda point: point.epsilon - epsilon, tilt)
    return replace(saddle, epsilon=epsilon)


def _search(saddle: Callable[[float], Saddle], excess: Callable[[Saddle], float], start: float) -> Saddle:
    """Find the saddle at which ``excess``, which increases with the tilt, is 0, or the nearest possible one.

    The search begins at the tilt ``start`` and doubles its strides.
    """

    @cache
    def at(log_tilt: float) -> Saddle:
        return saddle(math.exp(log_tilt))

    least, most, stride = math.log(1e-3), math.log(1e6), _STRIDE
    point = min(max(math.log(start), least), most)
    sign = -1.0 if excess(at(point)) > 0.0 else 1.0
    while True:
        next_point = min(max(point + sign * stride, least), most)
        if next_point == point:
            return at(point)
        if (excess(at(next_point)) > 0.0) != (sign < 0.0):
            break
        point, stride = next_point, 2.0 * stride
    low, high = min(point, next_point), max(point, next_point)
    return at(brent(lambda log_tilt: excess(at(log_tilt)), low, high, xtol=1e-2))


def log_decay(base: Mixture, tilt: float, log_value: float, *, fine: bool = False) -> Array:
    """Bound log |phi(u)| from above on each interval [EDGES[i], EDGES[i+1]], the last [EDGES[-1], inf).

    Args:
        log_value: K(c) = log E e^{cL}, to better than 1e-7.
        fine: try more cuts, which help in some cases.
    """
    left, right, density = _lower_density(base, tilt, log_value)
    masses = density * (right - left)
    inside = _parts(masses, _MANY_CUTS if fine else _CUTS)
    mass = inside @ masses
    middle, square = (left + right) / 2.0, np.square((right - left) / 2.0)
    from_mean = np.square(middle - ((inside @ (masses * middle)) / mass)[:, None])
    weights = inside * masses
    second = (weights * (from_mean + square / 3.0)).sum(axis=1)
    fourth = (weights * (np.square(from_mean) + 2.0 * from_mean * square + square * square / 5.0)).sum(axis=1)
    d2, d4 = 2.0 * mass * second, 2.0 * mass * fourth + 6.0 * second * second
    heights = np.zeros((mass.size, density.size + 2))
    heights[:, 1:-1] = inside * density
    variation = np.abs(heights[:, 1:] - heights[:, :-1]).sum(axis=1)

    size = variation[:, None] / EDGES
    # bounds on |phi_nu|^2: convex in u^2, so the largest value is at an end of an interval
    curved = (mass * mass)[:, None] - np.multiply.outer(d2 / 2.0, _SQUARES) + np.outer(d4 / 24.0, _FOURTHS)
    near = np.sqrt(np.maximum(np.maximum(curved[:, :-1], curved[:, 1:]), 0.0))
    size[:, :-1] = np.fmin(size[:, :-1], near)
    gap = (mass[:, None] - (1.0 + _SAFE) * size).max(axis=0) - _SAFE
    return np.asarray(np.log1p(-np.clip(gap, 0.0, 1.0 - 1e-9)))


def _lower_density(base: Mixture, tilt: float, log_value: float) -> tuple[Array, Array, Array]:
    """Return intervals of the loss, and a lower bound on the tilted density in each.

    Let a and b be the powers of m(x) and m(-x), and let r = dL/dx = (posterior mean of the sensitivity at x,
    plus that at -x if b is not 0) / sigma^2.  As a function of x,

        log density = -x^2/(2 sigma^2) + a log m(x) + b log m(-x) - log r + constant.

    Let v be the variance of the sensitivity given x.  As r is a sum of log-convex functions divided by those
    m, -(log r)'' is at most the largest v over sigma^4.  So the second derivative of log density is at most
    (max(a, 0) + 1) v / sigma^4 - 1/sigma^2, which bounds how far log density may fall below its chord over a
    panel.  log v changes by at most S/sigma^2 per unit of x.
    """
    low, high = base.reach(tilt, _LOG_TAIL)
    x = low + (high - low) / _PANELS * _COUNTED
    losses, logs = base.loss(x), base.log_normal(x) - log_value
    slope, steepest = np.zeros_like(x), np.zeros_like(x)
    for power, points in zip(base.powers(tilt), (x, -x), strict=True):
        if power != 0.0:
            log_m = base.log_m(points)
            mean, variance = base.posterior(points, log_m)
            slope, logs = slope + mean, logs + power * log_m
            steepest = np.maximum(steepest, variance)
    logs = logs - np.log(slope) + 2.0 * math.log(base.sigma)
    width, largest = x[1] - x[0], base.shifts[-1]
    between = np.sqrt(steepest[:-1] * steepest[1:]) * math.exp(largest * width / (2.0 * base.sigma**2))
    bend = (max(base.powers(tilt)[0], 0.0) + 1.0) * np.minimum(between, largest**2 / 4.0) / base.sigma**4
    sag = width**2 / 8.0 * np.maximum(bend - 1.0 / base.sigma**2, 0.0)
    density = np.exp(np.minimum(logs[:-1], logs[1:]) - sag) * (1.0 - _SAFE)
    left, right = losses[:-1], losses[1:]
    resolved = right - left > 1e-8 * np.maximum(np.abs(left), np.abs(right))
    return left[resolved], right[resolved], density[resolved]


def _parts(masses: Array, cuts: Array) -> Array:
    """Return indicators (parts, panels) of all panels, and of those on either side of each cut."""
    total = np.cumsum(masses)
    ends = np.searchsorted(total, cuts * total[-1])
    ends = ends[(ends > 2) & (ends < masses.size - 2)]
    lower = np.arange(masses.size) < ends[:, None]
    inside = np.ones((1 + 2 * ends.size, masses.size))
    inside[1 : 1 + ends.size], inside[1 + ends.size :] = lower, ~lower
    return inside
