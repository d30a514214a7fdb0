"""How fast the characteristic function of a privacy loss decays: a proven bound on |phi(u)| at every u.

If a measure nu lies below the tilted law of the loss, then |phi(u)| <= 1 - nu(1) + |phi_nu(u)|.  Here nu has
a piecewise constant density, so that its mass, moments and total variation V are known exactly, and

    |phi_nu(u)|^2 <= nu(1)^2 - u^2 D2 / 2 + u^4 D4 / 24,   |phi_nu(u)| <= V / u,

where Dk is the integral of (l - l')^k over nu x nu (cos t <= 1 - t^2/2 + t^4/24; integration by parts).
Several nu are tried: the whole, and parts to the left and to the right of a cut.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting.pld.transform import Mixture
from tacit.accounting.price import Array

EDGES: Array = np.geomspace(1e-3, 1e10, 256)  # of the intervals of u; the last one has no end
_SQUARES, _FOURTHS = EDGES**2, EDGES**4
_PANELS = 256
_COUNTED = np.arange(_PANELS + 1.0)
_CUTS = np.array([0.35, 0.65, 0.85, 0.95, 0.99])
_MANY_CUTS = np.concatenate([np.arange(0.1, 0.9, 0.1), [0.9, 0.94, 0.97, 0.985, 0.995, 0.998, 0.9995]])
_SAFE = 1e-6  # relative; far above the rounding of masses and edges here
_LOG_TAIL = math.log(1e-9)


def log_decay(base: Mixture, tilt: float, log_value: float, *, fine: bool = False) -> Array:
    """Upper bounds on log |phi(u)|, one for each interval [EDGES[i], EDGES[i+1]], the last [EDGES[-1], inf).

    :param log_value: K(c) = log E e^{cL}, to better than 1e-7.
    :param fine: try more cuts, for the cases where they pay.
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
    # of |phi_nu|^2: convex in u^2, so largest at an end of an interval
    curved = (mass * mass)[:, None] - np.multiply.outer(d2 / 2.0, _SQUARES) + np.outer(d4 / 24.0, _FOURTHS)
    near = np.sqrt(np.maximum(np.maximum(curved[:, :-1], curved[:, 1:]), 0.0))
    size[:, :-1] = np.fmin(size[:, :-1], near)
    gap = (mass[:, None] - (1.0 + _SAFE) * size).max(axis=0) - _SAFE
    return np.asarray(np.log1p(-np.clip(gap, 0.0, 1.0 - 1e-9)))


def _lower_density(base: Mixture, tilt: float, log_value: float) -> tuple[Array, Array, Array]:
    """Intervals of the loss and a density on each that the tilted density is nowhere below.

    With the powers a of m(x) and b of m(-x), and r = dL/dx = (sum of the posterior means of the sensitivity
    at x, and at -x where it counts) / sigma^2, log density = -x^2/(2 sigma^2) + a log m(x) + b log m(-x) -
    log r + constant as a function of x.  Let v be the variance of the sensitivity given x.  As -(log r)'' is
    at most the largest v over sigma^4, for r is a sum of log-convex functions over those m, the second
    derivative is at most (max(a, 0) + 1) v / sigma^4 - 1/sigma^2, which bounds how far it may fall below the
    line between the ends of a panel.  log v changes by at most S/sigma^2 per unit of x.
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
    """Indicators of the whole, and of the parts on either side of each cut: (parts, panels)."""
    total = np.cumsum(masses)
    ends = np.searchsorted(total, cuts * total[-1])
    ends = ends[(ends > 2) & (ends < masses.size - 2)]
    lower = np.arange(masses.size) < ends[:, None]
    inside = np.ones((1 + 2 * ends.size, masses.size))
    inside[1 : 1 + ends.size], inside[1 + ends.size :] = lower, ~lower
    return inside
