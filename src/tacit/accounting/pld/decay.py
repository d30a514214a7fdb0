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

from tacit.accounting.pld.pair import log_mixture
from tacit.accounting.pld.transform import Sampled
from tacit.accounting.price import Array

__all__ = ["EDGES", "log_decay"]

EDGES: Array = np.geomspace(1e-3, 1e10, 256)  # of the intervals of u; the last one has no end
_SQUARES, _FOURTHS = EDGES**2, EDGES**4
_PANELS = 256
_COUNTED = np.arange(_PANELS + 1.0)
_CUTS = np.array([0.35, 0.65, 0.85, 0.95, 0.99])
_MANY_CUTS = np.concatenate([np.arange(0.1, 0.9, 0.1), [0.9, 0.94, 0.97, 0.985, 0.995, 0.998, 0.9995]])
_SAFE = 1e-6  # relative; far above the rounding of masses and edges here
_LOG_TAIL = math.log(1e-9)


def log_decay(base: Sampled, tilt: float, log_value: float, *, fine: bool = False) -> Array:
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


def _lower_density(base: Sampled, tilt: float, log_value: float) -> tuple[Array, Array, Array]:
    """Intervals of the loss and a density on each that the tilted density is nowhere below.

    With s the power of m, log density = -x^2/(2 sigma^2) + (s+1) log m - y + constant as a function of x; its
    second derivative (s+1) r (1-r) / sigma^4 - 1/sigma^2, r = dlog m/dy, bounds how far it may fall below the
    line between the ends of a panel.
    """
    power, variance = base.power(tilt), base.sigma**2
    low, high = base.reach(power, _LOG_TAIL)
    x = low + (high - low) / _PANELS * _COUNTED
    y = base.y(x)
    log_m = log_mixture(y, base.q)
    log_r = np.minimum(math.log(base.q) + y - log_m, 0.0)
    logs = base.log_normal(x) + power * log_m - log_r + (math.log(variance) - log_value)
    r = np.exp(log_r)
    steep = np.maximum(r * (1.0 - r), 0.0)
    steepest = np.where((r[:-1] < 0.5) & (r[1:] > 0.5), 0.25, np.maximum(steep[:-1], steep[1:]))
    sag = (x[1] - x[0]) ** 2 / 8.0 * (1.0 / variance + abs(power + 1.0) * steepest / variance**2)
    density = np.exp(np.minimum(logs[:-1], logs[1:]) - sag) * (1.0 - _SAFE)
    left, right = log_m[:-1], log_m[1:]
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
