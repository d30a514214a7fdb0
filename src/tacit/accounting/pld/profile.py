"""Upper bounds on many deltas of one composition, on all points of a grid at once.

delta is convex in e^eps, so the chord between two upper bounds is an upper bound.  A composition serves a
*rung*: all epsilons on either side of its saddle point at which rounding is negligible relative to delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.flatten import Steps
from tacit.accounting.pld.composed import dominating_composition
from tacit.accounting.pld.saddle import FAINT, Saddle, cumulant_of, curve_of, find, saddle_at, tail_of
from tacit.accounting.price import Array, Direction

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
    """Upper bounds ``deltas`` (n,), decreasing, at the epsilons ``first + h k``.

    >>> profile = Profile(0.0, 1.0, np.array([0.5, 0.2, 0.0]))
    >>> profile.delta(np.array([0.0, 0.5, 1.0, 5.0])).round(6).tolist()
    [0.5, 0.386738, 0.2, 0.0]
    >>> profile.epsilon(np.array([0.5, 0.2])).round(6).tolist()
    [0.0, 1.0]
    """

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
        """Estimate epsilon at each of ``deltas``."""
        return np.interp(-np.log(np.maximum(deltas, FAINT)), -self.log_deltas, self.epsilons)

    def rungs_of(self, epsilons: Array) -> NDArray[np.int64]:
        """Return the index of the rung of each of ``epsilons``."""
        edges = [rung.high for rung in self.rungs[:-1]]
        return np.searchsorted(edges, epsilons, side="right").astype(np.int64)


@lru_cache(maxsize=128)
def _ladder(steps: Steps, way: Direction, tail: float) -> _Ladder:
    """Make the ladder of the losses without outcomes rarer than ``tail``.

    Such outcomes could make K explode, and move the saddle."""
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
    """Make one profile for all epsilons of a rung, or two profiles, each of which is tighter somewhere.

    With rare large losses and a narrow bulk (tiny sampling rates), the saddle makes the large losses common,
    and the grid is too coarse for the bulk.  Then a second profile, without them, serves the low end.
    """
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
    """Make a ladder for deltas down to ``_NEAR``, and one for all deltas."""
    return _ladder(steps, way, max(_NEAR * tail_of(steps, 0.0), FAINT)), _ladder(steps, way, FAINT)


def deltas(steps: Steps, way: Direction, epsilons: Array, negligible: Array) -> Array:
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


def epsilon(steps: Steps, way: Direction, delta: float) -> float:
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
