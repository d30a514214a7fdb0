"""The price of a composition on a grid, for all mechanisms with a dominating pair.

One epsilon, or one delta, gets a separate composition.  Of many, those that lie near one another share one
composition (:mod:`tacit.accounting.pld.profile`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from tacit.accounting.flatten import Steps
from tacit.accounting.pld import profile
from tacit.accounting.pld.composed import composition
from tacit.accounting.pld.convolve import Composition
from tacit.accounting.pld.grid import snapped
from tacit.accounting.pld.losses import loss_of
from tacit.accounting.pld.saddle import FAINT, cumulant_of, curve_of, find, saddle_at_delta, samples, tail_of
from tacit.accounting.price import Array, Direction, Price
from tacit.accounting.roots import brent

_NEGLIGIBLE = 1e-200  # smaller deltas are not resolved
_FAR_BELOW = 1e-7  # of the other direction's delta: smaller deltas are not resolved either
_ROUNDS = 8
_COARSER = 1.0 / 8.0  # resolution of the first grids, relative to the final one
_ENDLESS = 1e12
_INFINITE_SLACK = 1e-11  # allowance on the mass at infinity, relative


@lru_cache(maxsize=128)
def _profile(steps: Steps, way: Direction) -> tuple[Array, Array]:
    """Return increasing epsilons, and the standard deviation of the tilted sum of losses at each saddle."""
    points = curve_of(cumulant_of(steps, way, FAINT))
    epsilons = np.maximum.accumulate([point.epsilon for point in points])
    return epsilons, np.sqrt([max(point.variance, 0.0) for point in points])


def _anchor(steps: Steps, way: Direction, epsilon: float) -> float:
    """Return the epsilon of the composition that serves ``epsilon``, within a standard deviation below it."""
    epsilons, deviations = _profile(steps, way)
    step = min(float(np.interp(epsilon, epsilons, deviations)), epsilon / 8.0)
    if step < 1e-12 * epsilon or step < FAINT:
        return epsilon
    step = 2.0 ** math.floor(math.log2(step))
    return step * math.floor(epsilon / step)


@lru_cache(maxsize=8)
def _around(
    steps: Steps, way: Direction, anchor: float, negligible: float, end: Literal[0, 1]
) -> Composition:
    """Make the composition around epsilon = ``anchor``, for deltas of at least ``negligible``.

    The grid depends on delta.  If the first estimate of delta is far off, the composition is made again."""
    tail, best, compositions = FAINT, 1.0, list[Composition]()
    while len(compositions) < _ROUNDS:
        saddle = find(
            cumulant_of(steps, way, tail),
            lambda point: max(point.epsilon - anchor, math.log(negligible) - point.log_delta),
        )
        guess = min(saddle.log_delta, math.log(best))
        compositions.append(composition(steps, way, replace(saddle, epsilon=anchor, log_delta=guess), end))
        best = min(best, compositions[-1].upper(anchor))
        if best <= negligible or (best < 0.5 and abs(math.log(best) - guess) < 0.5):
            break
        before, tail = tail, tail_of(steps, guess)
        if tail == before and guess <= math.log(best):  # the next one would be the same
            break
    if end == 1:
        return min(compositions, key=lambda composition: composition.upper(anchor))
    return max(compositions, key=lambda composition: composition.lower(anchor))


def _crossing(delta_at: Callable[[float], float], delta: float, start: float) -> tuple[float, float]:
    """Find epsilons, 1e-9 apart, between which the decreasing ``delta_at`` crosses ``delta``."""

    def excess(epsilon: float) -> float:
        value = delta_at(epsilon)
        return math.log(value / delta) if value > 0.0 else -800.0

    step = 1e-3 * max(start, 1e-3)
    low, high = max(0.0, start - step), max(0.0, start) + step
    while low > 0.0 and excess(low) <= 0.0:
        low, high, step = max(0.0, low - 4.0 * step), low, 4.0 * step
    if low == 0.0 and excess(low) <= 0.0:
        return 0.0, 0.0
    while excess(high) > 0.0:
        low, high, step = high, high + 4.0 * step, 4.0 * step
        if high > _ENDLESS:  # rounding and the tails alone exceed delta
            return 0.0, math.inf
    root = brent(excess, low, high, xtol=1e-13, rtol=1e-11)
    gap = 1e-10 * max(root, 1e-6)
    below, above = root - gap, root + gap
    while below > 0.0 and excess(below) < 0.0:
        below -= gap
    while excess(above) > 0.0:
        above += gap
    return max(below, 0.0), above


@dataclass(frozen=True)
class PldPrice(Price):
    """The price of ``steps``, in units of the adjacency, by composition on a grid."""

    steps: Steps
    ways: tuple[Direction, ...]

    def epsilon(self, delta: float) -> float:
        return self._largest(delta, self._epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return self._largest(delta, self._least_epsilon), self.epsilon(delta)

    def near(self, delta: float) -> float:
        return self._largest(delta, lambda delta, way: self._epsilon(delta, way, rough=True))

    def _largest(self, delta: float, one: Callable[[float, Direction], float]) -> float:
        """Return the largest of ``one`` over all directions.

        A coarse grid often shows that the second direction costs less than the first."""
        largest = 0.0
        for way in self.ways:
            tried = 0.0 < largest < math.inf or (largest == 0.0 and delta > 0.99 * self._variation(way))
            if not (tried and self._at_most(delta, way, largest)):
                largest = max(largest, one(delta, way))
        return largest

    def _variation(self, way: Direction) -> float:
        """Estimate the steps' total variation distance: for larger deltas epsilon is 0."""
        laws = [(*samples(base, way, FAINT), count) for base, count in self.steps]
        return sum(
            c * float(np.dot(np.exp(logs), np.maximum(-np.expm1(-losses), 0.0))) for losses, logs, c in laws
        )

    def _at_most(self, delta: float, way: Direction, epsilon: float) -> bool:
        if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
            return False
        if epsilon >= self._supremum(way):
            return True
        tail = tail_of(self.steps, math.log(delta))
        at_epsilon = find(cumulant_of(self.steps, way, tail), lambda point: point.epsilon - epsilon)
        saddle = replace(at_epsilon, epsilon=epsilon, log_delta=math.log(delta))
        return composition(self.steps, way, saddle, 1, _COARSER).upper(epsilon) <= delta

    def delta(self, epsilon: float) -> float:
        return self._delta(epsilon, 1)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        return self._delta(epsilon, 0), self._delta(epsilon, 1)

    def _epsilon(self, delta: float, way: Direction, *, rough: bool = False) -> float:
        if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
            return math.inf
        ceiling = self._supremum(way)
        return min(ceiling, min(above for _, above in self._crossings(delta, way, 1, ceiling, rough)))

    def _least_epsilon(self, delta: float, way: Direction) -> float:
        if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
            return math.inf if self.infinite(way, 0) * (1.0 - _INFINITE_SLACK) > delta else 0.0
        crossings = self._crossings(delta, way, 0, self._supremum(way))
        return max(0.0, max(below for below, _ in crossings) - self._snapped(way))

    def _crossings(
        self, delta: float, way: Direction, end: Literal[0, 1], ceiling: float, rough: bool = False
    ) -> Iterator[tuple[float, float]]:
        """Yield brackets of the epsilon at which the bound crosses delta.

        A grid is made around an estimate.  If the crossing is far from it, the next grid is made around the
        crossing.  Coarse grids come first.
        """
        saddle, settled = saddle_at_delta(self.steps, way, delta - self.infinite(way)), False
        if saddle.epsilon < 0.0:  # a negative epsilon is never needed
            whole = cumulant_of(self.steps, way, tail_of(self.steps, math.log(delta)))
            saddle = replace(find(whole, lambda point: point.epsilon), epsilon=0.0, log_delta=math.log(delta))
        for _ in range(_ROUNDS):
            law = composition(self.steps, way, saddle, end if settled else 1, 1.0 if settled else _COARSER)
            bound = law.upper if end == 1 or not settled else law.lower
            below, above = _crossing(bound, delta, min(max(saddle.epsilon, 0.0), ceiling))
            if settled or rough:
                yield below, above
            crossing = min(above, ceiling)
            near = abs(crossing - saddle.epsilon) <= 0.1 * crossing or not 0.0 < crossing < math.inf
            if near and (settled or rough):
                return
            settled = settled or near
            if 0.0 < crossing < math.inf:
                cumulant = cumulant_of(self.steps, way, tail_of(self.steps, math.log(delta)))
                again = find(cumulant, lambda point, target=crossing: point.epsilon - target)  # type: ignore[misc]
                saddle = replace(again, epsilon=crossing, log_delta=math.log(delta))
        if not settled:
            yield (below, above) if end == 1 else (0.0, above)

    def deltas(self, epsilons: Array) -> Array:
        largest = np.zeros(epsilons.shape)
        for way in self.ways:
            largest = np.maximum(largest, self._uppers(epsilons, way, _FAR_BELOW * largest))
        return largest

    def epsilons(self, deltas: Array) -> Array:
        return np.array([self._near_epsilon(float(delta)) for delta in deltas], dtype=np.float64)

    def _uppers(self, epsilons: Array, way: Direction, negligible: Array) -> Array:
        """Bound delta from above at each of ``epsilons``."""
        infinite = self.infinite(way)
        bounds = np.full(epsilons.shape, min(1.0, infinite * (1.0 + _INFINITE_SLACK)))
        inside = epsilons < self._supremum(way)
        if infinite < 1.0 and inside.any():
            least = np.maximum(negligible[inside], max(_NEGLIGIBLE, 1e-9 * infinite))
            bounds[inside] = profile.deltas(self.steps, way, epsilons[inside], least)
        return bounds

    def _near_epsilon(self, delta: float) -> float:
        """Bound epsilon from above, by a composition that also serves nearby deltas."""
        largest = 0.0
        for way in self.ways:
            if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
                return math.inf
            at, least = np.array([largest]), np.array([_FAR_BELOW * delta])
            if largest == 0.0 or self._uppers(at, way, least)[0] > delta:
                epsilon = min(profile.epsilon(self.steps, way, delta), self._supremum(way))
                largest = max(largest, epsilon if epsilon < math.inf else self._epsilon(delta, way))
        return largest

    def _delta(self, epsilon: float, end: Literal[0, 1]) -> float:
        """Compute the lower (0) or upper (1) bound on delta."""
        largest = 0.0
        for way in self.ways:  # a delta far below the other direction's need not be resolved
            largest = max(largest, self._delta_of(epsilon, way, end, max(_NEGLIGIBLE, 1e-6 * largest)))
        return largest

    def _delta_of(self, epsilon: float, way: Direction, end: Literal[0, 1], negligible: float) -> float:
        infinite = self.infinite(way, end)
        if infinite == 1.0 or epsilon >= self._supremum(way):  # no finite loss exceeds epsilon
            return min(1.0, infinite * (1.0 + (_INFINITE_SLACK if end == 1 else -_INFINITE_SLACK)))
        # coarse, so that neighbouring epsilons share a composition
        decades = 5.0 * math.floor(math.log10(max(negligible, 1e-9 * infinite)) / 5.0)
        near = _around(self.steps, way, _anchor(self.steps, way, epsilon), 10.0**decades, end)
        if end == 1:
            # just below the largest loss a grid may be too coarse for a bound; a bit lower it is not
            upper = near.upper(epsilon)
            useless = upper >= 1.0 and epsilon > 0.9 * self._supremum(way)
            if useless:
                upper = self._delta_of(0.9 * epsilon, way, end, negligible)
            # a finite loss exceeds epsilon by at most the distance to the largest one
            finite = -math.expm1(epsilon - self._supremum(way))
            return min(1.0, upper, (infinite + (1.0 - infinite) * finite) * (1.0 + _INFINITE_SLACK))
        return min(1.0, near.lower(epsilon + self._snapped(way)))

    def _snapped(self, way: Direction) -> float:
        """Bound how far the true sum of losses may be below the sum on the lower grid."""
        return sum(count * snapped(loss_of(base, way, FAINT)) for base, count in self.steps)

    def _supremum(self, way: Direction) -> float:
        return sum(count * loss_of(base, way, FAINT).supremum for base, count in self.steps) * (1.0 + 1e-12)

    def infinite(self, way: Direction, end: Literal[0, 1] = 1) -> float:
        """Bound P(L = infinity), 1 - prod (1 - p)^T, from below (0) or above (1)."""
        losses = [(loss_of(base, way, FAINT), count) for base, count in self.steps]
        infinite = [((loss.dominated if end == 0 else None) or loss, count) for loss, count in losses]
        if any(loss.infinite >= 1.0 for loss, _ in infinite):
            return 1.0
        return -math.expm1(sum(count * math.log1p(-loss.infinite) for loss, count in infinite))
