"""The cost of a composition on a grid, for all mechanisms with a dominating pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.convolve import (
    FAINT,
    Composition,
    composition,
    cumulant_of,
    curve_of,
    dominating_composition,
    find,
    saddle_at_delta,
    samples,
    tail_of,
)
from tacit.accounting.flatten import Steps
from tacit.accounting.grid import snapped
from tacit.accounting.losses import loss_of
from tacit.accounting.price import Array, Direction, Price, brent
from tacit.accounting.transform import Saddle, saddle_at

# Upper bounds on many deltas of one composition, on all points of a grid at once.
#
# delta is convex in e^eps, so the chord between two upper bounds is an upper bound.  A composition serves a
# *rung*: all epsilons on either side of its saddle point at which rounding is negligible relative to delta.

UNIT = 2.0**-53
_ROUNDED = 1e-7  # of delta, at the ends of a rung
_WIDEST = 8.0  # nats by which the curve may fall below its tangent
_NEAR = 1e-25  # the least delta of practical interest
_HALVINGS, _STRIDE = 6, 3.0  # halvings of steps between tilts; largest such step, in nats of delta
_DEEPEST = 24.0  # nats by which delta may fall on a rung
_DECADES = 5.0  # decades by which tails are rounded, so that grids can be reused
_UP = 1.0 + 1e-13


@dataclass(frozen=True)
class Profile:
    """Upper bounds ``deltas`` (n,), decreasing, at the epsilons ``first + h k``."""

    first: float
    h: float
    deltas: Array

    def delta(self, epsilons: Array) -> Array:
        """Bound delta from above at each of ``epsilons``; the bound is 1 below ``first``."""
        place = (epsilons - self.first) / self.h
        left = np.clip(np.floor(place).astype(np.int64), 0, self.deltas.size - 2)
        slack = 8.0 * UNIT * (1.0 + np.abs(epsilons)) / self.h
        inside = np.clip(np.clip(place - left, 0.0, 1.0) - slack, 0.0, 1.0) * self.h
        weight = np.expm1(inside) / math.expm1(self.h) * (1.0 - 8.0 * UNIT)
        high, low = self.deltas[left], self.deltas[left + 1]
        return np.where(place < 0.0, 1.0, np.minimum((high - weight * (high - low)) * _UP, 1.0))

    def epsilon(self, deltas: Array) -> Array:
        """Bound epsilon from above at each of ``deltas``; infinite if all bounds on delta are larger."""
        least = deltas / _UP
        right = np.searchsorted(-self.deltas, -least, side="left")  # the first that is no larger
        left = np.maximum(right - 1, 0)
        beyond = right >= self.deltas.size
        right = np.minimum(right, self.deltas.size - 1)
        high, low = self.deltas[left], self.deltas[right]
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.clip((high - least) / (high - low), 0.0, 1.0)
        weight = np.where(high > low, weight, 1.0)
        value = self.first + self.h * left + np.log1p(weight * math.expm1(self.h)) * (right > left)
        value = value + 16.0 * UNIT * (1.0 + np.abs(value)) * (right > left)
        return np.where(beyond, math.inf, value)


@dataclass(frozen=True)
class _Rung:
    """Epsilons from ``low`` to ``high``, which the composition for ``middle`` serves.

    At ``high``, log delta is about ``log_least`` and falls by ``steepest`` per nat."""

    low: float
    middle: float
    high: float
    log_least: float
    steepest: float


@dataclass(frozen=True)
class _Ladder:
    """The curve at its saddle points, and the rungs from epsilon 0 on."""

    epsilons: Array
    log_deltas: Array
    rungs: tuple[_Rung, ...]

    def at_delta(self, deltas: Array) -> Array:
        return np.interp(-np.log(np.maximum(deltas, FAINT)), -self.log_deltas, self.epsilons)

    def rungs_of(self, epsilons: Array) -> NDArray[np.int64]:
        edges = [rung.high for rung in self.rungs[:-1]]
        return np.searchsorted(edges, epsilons, side="right").astype(np.int64)


@lru_cache(maxsize=128)
def _ladder(steps: Steps, way: Direction, tail: float) -> _Ladder:
    # Such outcomes could make K explode, and move the saddle.
    points = _saddles(steps, way, tail)
    tilts = np.array([point.tilt for point in points])
    epsilons = np.maximum.accumulate([point.epsilon for point in points])
    log_deltas = np.minimum.accumulate([min(point.log_delta, 0.0) for point in points])
    tangents = log_deltas + tilts * epsilons  # at epsilon 0
    # relative to delta, the rounding of a tilted sum grows as the curve falls below its tangent at the tilt
    room = math.log(max(_ROUNDED / (3e-14 * sum(count for _, count in steps)), 10.0))
    room = min(room, _WIDEST)
    last, rungs = epsilons.size - 1, list[_Rung]()
    low = middle = high = max(int(np.searchsorted(epsilons, 0.0)) - 1, 0)
    while high < last:
        fall = log_deltas[low] - log_deltas
        below = tangents - tilts * epsilons[low] - log_deltas[low]
        middle = max(int(np.flatnonzero((fall <= _DEEPEST / 2.0) & (below <= room))[-1]), low)
        beyond = tangents[middle] - tilts[middle] * epsilons - log_deltas
        high = max(int(np.flatnonzero((fall <= _DEEPEST) & (beyond <= room))[-1]), low + 1)
        start, saddle, end = (float(max(epsilons[place], 0.0)) for place in (low, middle, high))
        rungs.append(_Rung(start, saddle, end, float(log_deltas[high]), float(tilts[high])))
        low = high
    if not rungs:  # the losses are too small for a saddle at a positive epsilon
        rungs.append(_Rung(0.0, 0.0, 0.0, float(log_deltas[-1]), float(tilts[-1])))
    return _Ladder(epsilons, log_deltas, tuple(rungs))


def _saddles(steps: Steps, way: Direction, tail: float) -> list[Saddle]:
    """Find saddle points at increasing tilts, between which log delta falls by only a few nats."""
    cumulant = cumulant_of(steps, way, tail)
    points = curve_of(cumulant)
    for _ in range(_HALVINGS):
        pairs = list(pairwise(points))
        points += [
            saddle_at(cumulant, math.sqrt(left.tilt * right.tilt))
            for left, right in pairs
            if left.epsilon < right.epsilon
            and left.log_delta - max(right.log_delta, math.log(FAINT)) > _STRIDE
        ]
        points.sort(key=lambda point: point.tilt)
    return points


@lru_cache(maxsize=16)
def _profiles(steps: Steps, way: Direction, rung: _Rung) -> tuple[Profile, ...]:
    """Make one profile for all epsilons of a rung, or two profiles, each of which is tighter somewhere."""
    # With rare large losses and a narrow bulk (tiny sampling rates), the saddle makes the large losses
    # common, and the grid is too coarse for the bulk.  Then a second profile, without them, serves the low
    # end.
    profile, fine = _laid_out(steps, way, rung, rung.middle, _coarse_tail(steps, rung.log_least))
    if fine:
        return (profile,)
    log_delta = math.log(max(float(profile.deltas[0]), FAINT))
    return profile, _laid_out(steps, way, rung, rung.low, _coarse_tail(steps, log_delta))[0]


def _laid_out(steps: Steps, way: Direction, rung: _Rung, middle: float, tail: float) -> tuple[Profile, bool]:
    """Make the profile of a composition for ``middle``, and say whether its cells are narrow enough."""
    saddle = find(cumulant_of(steps, way, tail), lambda point: point.epsilon - middle)
    composition, fine = dominating_composition(steps, way, saddle, rung.steepest, tail)
    h, origin = composition.h, composition.origin
    first, last = math.floor((rung.low - origin) / h) - 1, math.ceil((rung.high - origin) / h) + 2
    return Profile(origin + h * first, h, composition.uppers(first, last)), fine


def _coarse_tail(steps: Steps, log_delta: float) -> float:
    exponent = math.log10(tail_of(steps, log_delta)) / _DECADES
    return max(math.pow(10.0, _DECADES * math.floor(exponent)), FAINT)


def _ladders(steps: Steps, way: Direction) -> tuple[_Ladder, _Ladder]:
    return _ladder(steps, way, max(_NEAR * tail_of(steps, 0.0), FAINT)), _ladder(steps, way, FAINT)


def profile_deltas(steps: Steps, way: Direction, epsilons: Array, negligible: Array) -> Array:
    """Bound delta from above at each of ``epsilons``, tightly down to ``negligible`` at each of them."""
    near, far = _ladders(steps, way)
    reach = near.at_delta(np.array([_NEAR]))[0]
    # delta falls, so that a negligible bound at a smaller epsilon also holds at larger ones
    enough = np.where(negligible > _NEAR, near.at_delta(negligible), far.at_delta(negligible))
    at = np.minimum(epsilons, np.maximum(enough, 0.0))
    result = np.empty(epsilons.shape)
    for ladder, on_it in ((near, at <= reach), (far, at > reach)):
        rungs = np.where(on_it, ladder.rungs_of(at), -1)
        for rung in np.unique(rungs[on_it]):
            places = rungs == rung
            profiles = _profiles(steps, way, ladder.rungs[rung])
            result[places] = np.min([profile.delta(at[places]) for profile in profiles], axis=0)
    return result


def profile_epsilon(steps: Steps, way: Direction, delta: float) -> float:
    """Bound epsilon at ``delta`` from above; infinite if no composition gives a bound."""
    ladder = _ladders(steps, way)[0 if delta > _NEAR else 1]
    rung = int(ladder.rungs_of(ladder.at_delta(np.array([delta])))[0])
    while rung > 0 and _profiles(steps, way, ladder.rungs[rung])[0].deltas[0] < delta:
        rung -= 1
    for following in ladder.rungs[rung:]:
        profiles = _profiles(steps, way, following)
        least = min(float(profile.epsilon(np.array([delta]))[0]) for profile in profiles)
        if least < math.inf:
            return max(0.0, least)
    return math.inf


# The price of a composition on a grid, for all mechanisms with a dominating pair.
#
# One epsilon, or one delta, gets a separate composition.  Of many, those that lie near one another share one
# composition (:mod:`tacit.accounting.grid_price`).

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
    """Make the composition around epsilon = ``anchor``, for deltas of at least ``negligible``."""
    # The grid depends on delta.  If the first estimate of delta is far off, the composition is made again.
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
    steps: Steps
    ways: tuple[Direction, ...]

    def epsilon(self, delta: float) -> float:
        return self._largest(delta, self._epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return self._largest(delta, self._least_epsilon), self.epsilon(delta)

    def near(self, delta: float) -> float:
        return self._largest(delta, lambda delta, way: self._epsilon(delta, way, rough=True))

    def _largest(self, delta: float, one: Callable[[float, Direction], float]) -> float:
        # A coarse grid often shows that the second direction costs less than the first.
        largest = 0.0
        for way in self.ways:
            tried = 0.0 < largest < math.inf
            if largest == 0.0:
                # for deltas above the total variation distance, about this sum, epsilon is 0
                laws = [(*samples(base, way, FAINT), count) for base, count in self.steps]
                variation = sum(
                    count * float(np.dot(np.exp(logs), np.maximum(-np.expm1(-losses), 0.0)))
                    for losses, logs, count in laws
                )
                tried = delta > 0.99 * variation
            if not (tried and self._at_most(delta, way, largest)):
                largest = max(largest, one(delta, way))
        return largest

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
        """Yield brackets of the epsilon at which the bound crosses delta."""
        # A grid is made around an estimate.  If the crossing is far from it, the next grid is made around the
        # crossing.  Coarse grids come first.
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
        infinite = self.infinite(way)
        bounds = np.full(epsilons.shape, min(1.0, infinite * (1.0 + _INFINITE_SLACK)))
        inside = epsilons < self._supremum(way)
        if infinite < 1.0 and inside.any():
            least = np.maximum(negligible[inside], max(_NEGLIGIBLE, 1e-9 * infinite))
            bounds[inside] = profile_deltas(self.steps, way, epsilons[inside], least)
        return bounds

    def _near_epsilon(self, delta: float) -> float:
        """Bound epsilon from above, by a composition that also serves nearby deltas."""
        largest = 0.0
        for way in self.ways:
            if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
                return math.inf
            at, least = np.array([largest]), np.array([_FAR_BELOW * delta])
            if largest == 0.0 or self._uppers(at, way, least)[0] > delta:
                epsilon = min(profile_epsilon(self.steps, way, delta), self._supremum(way))
                largest = max(largest, epsilon if epsilon < math.inf else self._epsilon(delta, way))
        return largest

    def _delta(self, epsilon: float, end: Literal[0, 1]) -> float:
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
