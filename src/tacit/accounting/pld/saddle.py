"""The saddle point of a composition.

It is an estimate.  The bounds of the composition hold for any estimate, and are tight for a good one.

With the cumulant function of the sum of all losses, K(z) = sum_j T_j log E e^{z L_j},

    log delta(eps) ~ K(c) - c eps - log c(c+1) - log(2 pi v) / 2

at the saddle c, where eps = K'(c) - 1/c - 1/(c+1) and v = K''(c) + 1/c^2 + 1/(c+1)^2 (Alghamdi et al. 2022,
2208.09595).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.accounting.flatten import Base, Steps
from tacit.accounting.pld.convolve import Window
from tacit.accounting.pld.losses import loss_of
from tacit.accounting.pld.pair import Branch
from tacit.accounting.price import Array, Direction
from tacit.accounting.roots import brent

FAINT = 1e-290
"""A mass too small to affect any delta."""

_MANY_ATOMS = 4000


@dataclass(frozen=True)
class Cumulant:
    """K and its first two derivatives, from weighted samples of each loss: (losses, log masses, count).

    Gaussians without sampling add mu^2 z (z+1) / 2, with their total mu^2 in ``plain``."""

    parts: tuple[tuple[Array, Array, float], ...]
    plain: float = 0.0

    def __call__(self, z: float) -> tuple[float, float, float]:
        value, slope, curvature = self.plain * z * (z + 1.0) / 2.0, self.plain * (z + 0.5), self.plain
        for losses, logs, count in self.parts:
            exponents = logs + z * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            total = float(weights.sum())
            mean = float(np.dot(weights, losses)) / total
            value += count * (top + math.log(total))
            slope += count * mean
            curvature += count * float(np.dot(weights, (losses - mean) ** 2)) / total
        return value, slope, curvature


@lru_cache(maxsize=64)
def samples(base: Base, direction: Direction, tail: float) -> tuple[Array, Array]:
    """Compute losses and log masses of ``base`` for the estimates, by the midpoint rule."""
    loss = loss_of(base, direction, tail)
    parts = [_midpoints(branch) for branch in loss.branches] + [_thinned(*loss.atoms.T)]
    losses, masses = (np.concatenate(column) for column in zip(*parts, strict=True))
    return losses[masses > 0.0], np.log(masses[masses > 0.0])


def _thinned(losses: Array, masses: Array) -> tuple[Array, Array]:
    """Merge neighbouring atoms at their mean, so that at most a few thousand remain."""
    if losses.size <= _MANY_ATOMS:
        return losses, masses
    place = ((losses - losses.min()) / float(np.ptp(losses)) * _MANY_ATOMS).astype(np.int64)
    total = np.bincount(place, masses).astype(np.float64)
    positive = total > 0.0
    return np.bincount(place, masses * losses)[positive] / total[positive], total[positive]


def _midpoints(branch: Branch) -> tuple[Array, Array]:
    edges = np.linspace(branch.panels[0], branch.panels[-1], min(1000, 8 * branch.panels.size))
    x = (edges[1:] + edges[:-1]) / 2.0
    return branch.value(x), (edges[1] - edges[0]) * branch.density(x)


def cumulant_of(steps: Steps, direction: Direction, tail: float, cap: float = math.inf) -> Cumulant:
    """Make K of all ``steps``, with the P-mass ``tail`` cut off at either end of each loss.

    All losses above ``cap`` are replaced by their mean."""
    parts = [(*samples(base, direction, tail), count) for base, count in steps]
    return Cumulant(tuple((_capped(losses, logs, cap), logs, count) for losses, logs, count in parts))


def _capped(losses: Array, logs: Array, cap: float) -> Array:
    above = losses > cap
    if not above.any():
        return losses
    masses = np.exp(logs[above] - logs[above].max())
    mean = cap - math.log(float(np.dot(masses, np.exp(cap - losses[above])) / masses.sum()))
    return np.where(above, mean, losses)


def tail_of(steps: Steps, log_delta: float) -> float:
    """Return the P-mass to cut off at each end of a loss: a billionth of delta in all, rounded for caches."""
    log_tail = log_delta - math.log(1e9 * sum(count for _, count in steps))
    return float(10.0 ** math.floor(max(log_tail, math.log(FAINT)) / math.log(10.0)))


@dataclass(frozen=True)
class Saddle:
    """An estimate: the point (epsilon, log delta) of the curve at the tilt ``tilt``."""

    tilt: float
    epsilon: float
    log_delta: float
    variance: float = math.nan


def saddle_at(cumulant: Cumulant, tilt: float) -> Saddle:
    """Return the point of the curve with its saddle at ``tilt``."""
    value, slope, curvature = cumulant(tilt)
    epsilon = slope - 1.0 / tilt - 1.0 / (tilt + 1.0)
    spread = curvature + 1.0 / tilt**2 + 1.0 / (tilt + 1.0) ** 2
    log_delta = (
        value - tilt * epsilon - math.log(tilt * (tilt + 1.0)) - 0.5 * math.log(2.0 * math.pi * spread)
    )
    return Saddle(tilt, epsilon, log_delta, curvature)


def curve_of(cumulant: Cumulant) -> list[Saddle]:
    """Return the points of the curve at increasing tilts, over the whole range that matters."""
    return [saddle_at(cumulant, float(tilt)) for tilt in np.geomspace(1e-3, 1e7, 121)]


def find(cumulant: Cumulant, excess: Callable[[Saddle], float]) -> Saddle:
    """Find the saddle at which ``excess``, which increases with the tilt, is 0, or the nearest end."""
    low, high = math.log(1e-3), math.log(1e7)

    def at(log_tilt: float) -> float:
        return excess(saddle_at(cumulant, math.exp(log_tilt)))

    if at(low) >= 0.0:
        return saddle_at(cumulant, math.exp(low))
    if at(high) <= 0.0:
        return saddle_at(cumulant, math.exp(high))
    return saddle_at(cumulant, math.exp(brent(at, low, high, xtol=1e-3)))


def saddle_at_delta(steps: Steps, way: Direction, delta: float) -> Saddle:
    """Return the point of the curve at ``delta``."""
    cumulant = cumulant_of(steps, way, tail_of(steps, math.log(delta)))
    return find(cumulant, lambda point: math.log(delta) - point.log_delta)


def _window(cumulant: Cumulant, tilt: float, rest: float = 1e-16) -> Window:
    """Choose a window with less than ``rest`` of the tilted mass outside, by Chernoff's bound."""
    value, _, curvature = cumulant(tilt)
    log_rest = -math.log(rest)
    unit = math.sqrt(2.0 * log_rest / max(curvature, 1e-300))  # the best further tilt if all were Gaussian
    low, down, high, up = -math.inf, 0.0, math.inf, 0.0
    for further in unit * 2.0 ** np.arange(-8.0, 3.0):
        right = (cumulant(tilt + further)[0] - value + log_rest) / further
        left = (value - cumulant(tilt - further)[0] - log_rest) / further
        low, down = (left, float(further)) if left > low else (low, down)
        high, up = (right, float(further)) if right < high else (high, up)
    return Window(tilt, low, high, down, up)


def narrowest(cumulant: Cumulant, saddle: Saddle, steps: int, share: float = 1e-7) -> Window:
    """Choose the tilt, at most the saddle's, with the window of the fewest points.

    With rare large losses and a narrow bulk (tiny sampling rates), the saddle's tilt makes the large losses
    common and the window wide.  A smaller tilt is used as long as rounding, about 3e-14 a step, stays below
    ``share`` of delta.
    """

    def rounding(tilt: float) -> float:  # log of its share of delta
        return cumulant(tilt)[0] - tilt * saddle.epsilon + math.log(3e-14 * steps) - saddle.log_delta

    top = saddle.tilt
    usual = 8.0 / math.sqrt(max(cumulant(0.0)[2], 1e-300))
    while top > usual and top * top * cumulant(top)[2] < 0.25 and rounding(top / 2.0) < math.log(1e-8):
        top /= 2.0  # all of the mass is at one point, so that such a tilt gains nothing
    best = _window(cumulant, top)
    for tilt in top * 0.7 ** np.arange(1.0, 9.0):
        if rounding(float(tilt)) > math.log(share):
            break
        window = _window(cumulant, float(tilt))
        best = window if window.high - window.low < 0.9 * (best.high - best.low) else best
    return best
