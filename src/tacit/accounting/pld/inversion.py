"""The price of compositions of Gaussians, sampled or not, by inversion along a contour.

A *line* holds the transform at nodes along the contour (:class:`tacit.accounting.pld.contour.Line`).  For a
run, which repeats the same steps, :func:`bounds_along` uses one line for many numbers of steps, so that one
more takes a fraction of a millisecond.  Every result is certified separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from tacit.accounting.pld.contour import MANY_PRODUCTS, Line, draw, log_chernoff
from tacit.accounting.pld.contour_saddle import Term, estimate, saddle_at_delta, saddle_at_epsilon
from tacit.accounting.pld.saddle import Saddle
from tacit.accounting.pld.transform import TooDear
from tacit.accounting.price import Array, ErrorBudget, Price

_FINE = 1e-7  # relative width of a bracket that needs no second line
_COARSE = 1e-3  # of delta: the error of a line that only compares one direction with the other
_TIGHT = 1e-4  # relative width of a bracket that counts as tight
_NARROW = 1e-6  # a bracket wider than this is compared with the grid's
_TIGHT_DELTA = 1e-3  # of delta
_ROUNDS, _FAR = 4, 0.05  # a line is drawn anew if its first estimate was that far off
_SPREAD = 1.25  # factor between the counts of a line and the counts that are tried on it
_CHEAP = 1 << 21  # products: a few milliseconds
_LEAST_LOG_DELTA = -600.0

Terms: TypeAlias = tuple[Term, ...]
Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class _Drawn:
    """A line, the counts for which it was drawn, and its bracket there."""

    line: Line
    counts: Array
    lower: float
    upper: float

    @property
    def width(self) -> float:
        return (self.upper - self.lower) / max(abs(self.upper), 1e-300)


def bounds_along(terms: Terms, counts: Array, log_delta: float) -> tuple[Array, Array]:
    """Bound epsilon of one direction for each row of counts (Q, J): (lower, upper), each (Q,).

    The bounds are (-inf, inf) if a line would take too many points.  Rows near one another share a line.
    """
    lower, upper = np.full(len(counts), -math.inf), np.full(len(counts), math.inf)
    open_rows, logs = np.ones(len(counts), dtype=bool), np.log(counts)
    while open_rows.any():
        row = int(np.flatnonzero(open_rows)[np.argmin(counts[open_rows].sum(axis=1))])
        near = open_rows & (np.abs(logs - logs[row]).max(axis=1) <= math.log(_SPREAD))
        middle = np.flatnonzero(near)[np.argsort(counts[near].sum(axis=1))[near.sum() // 2]]
        open_rows[middle] = False
        try:
            curve = _draw(terms, counts[middle], log_delta, MANY_PRODUCTS)
        except TooDear:
            continue
        lower[middle], upper[middle] = curve.lower, curve.upper
        near = np.flatnonzero(open_rows & (np.abs(logs - logs[middle]).max(axis=1) <= math.log(_SPREAD)))
        below, above = curve.line.epsilon(counts[near], log_delta, np.full(near.size, curve.upper))
        good = above - below <= max(_FINE, 2.0 * curve.width) * np.abs(above)  # false for nan
        rows = near[good]
        lower[rows], upper[rows], open_rows[rows] = below[good], above[good], False
    return lower, upper


@lru_cache(maxsize=128)
def _draw_once(terms: Terms, counts: tuple[float, ...], log_delta: float, most: int) -> _Drawn:
    """Draw the best line for these counts.

    If the bracket is too wide, the line is drawn again: around the first result if the estimate was far off,
    else with more accurate sums.
    """
    row = np.array(counts)
    saddle, accurate = saddle_at_delta(terms, row, log_delta), False
    best: _Drawn | None = None
    for _ in range(_ROUNDS):
        line = draw(terms, row, saddle, most, accurate=accurate)
        below, above = line.epsilon(row[None], log_delta, np.array([saddle.epsilon]))
        if not above[0] < math.inf:
            break
        curve = _Drawn(line, row, float(np.nan_to_num(below[0], nan=-math.inf)), float(above[0]))
        best = curve if best is None or curve.width < best.width else best
        if curve.width <= _FINE:
            break
        if curve.lower == -math.inf or abs(curve.upper - saddle.epsilon) > _FAR * curve.upper:
            saddle = Saddle(saddle_at_epsilon(terms, row, curve.upper).tilt, curve.upper, log_delta)
        elif accurate:
            break
        else:
            accurate = True
    if best is None:
        raise TooDear("no bound found along the line")
    return best


def _draw(terms: Terms, counts: Array, log_delta: float, most: int) -> _Drawn:
    return _draw_once(terms, tuple(counts.tolist()), log_delta, most)


@lru_cache(maxsize=128)
def _at_most(terms: Terms, counts: tuple[float, ...], log_delta: float, tilt: float, epsilon: float) -> bool:
    """Return whether a coarse line at ``tilt`` proves that delta(epsilon) <= e^log_delta."""
    row = np.array(counts)
    with suppress(TooDear):
        line = draw(terms, row, Saddle(tilt, epsilon, log_delta), share=_COARSE)
        return bool(line.log_delta(row[None], np.array([epsilon]))[1][0] <= log_delta)
    return False


@dataclass(frozen=True)
class ContourPrice(Price):
    """The price by inversion, from the terms of each direction.

    ``ways`` maps a direction to its terms, and ``counts`` holds their counts (mu^2 for plain Gaussians).
    ``grid`` prices the same event on a grid, for the few compositions with a transform that decays too
    slowly: a handful of steps, or tiny sampling rates.
    """

    ways: Mapping[str, Terms]
    counts: tuple[float, ...]
    grid: Price

    def epsilon_bounds(self, delta: float) -> Bounds:
        bounds = self._bounds(delta, MANY_PRODUCTS)
        return _both(bounds, self.grid.epsilon_bounds(delta)) if _wider(bounds, _NARROW) else bounds

    def _bounds(self, delta: float, most: int) -> Bounds:
        """Bound epsilon of the direction that costs more; (0, inf) if a line would take too long.

        A coarse line is enough to show that the second direction is below the first.
        """
        lower, upper, tilt = 0.0, 0.0, math.nan
        try:
            for terms in self.ways.values():
                if lower > 0.0 and _at_most(terms, self.counts, math.log(delta), tilt, lower):
                    continue
                curve = _draw(terms, np.array(self.counts), math.log(delta), most)
                lower, upper, tilt = max(lower, curve.lower), max(upper, curve.upper), curve.line.tilt
        except TooDear:
            return 0.0, math.inf
        return lower, upper

    def _lines(self, delta: float) -> dict[str, _Drawn]:
        row = np.array(self.counts)
        return {way: _draw(terms, row, math.log(delta), MANY_PRODUCTS) for way, terms in self.ways.items()}

    def epsilon(self, delta: float) -> float:
        bounds = self._bounds(delta, MANY_PRODUCTS)
        return min(bounds[1], self.grid.epsilon(delta)) if _wider(bounds, _NARROW) else bounds[1]

    def is_tight(self, delta: float) -> bool:
        """Decide by the lines alone, as a lower bound on the grid takes longer than any other accountant."""
        return not _wider(self._bounds(delta, MANY_PRODUCTS), _TIGHT)  # the mechanism attains the pair

    def tight_delta(self, epsilon: float) -> float | None:
        lower, upper = self._along_lines(epsilon)
        return upper if upper <= lower * (1.0 + _TIGHT_DELTA) else None

    def near(self, delta: float) -> float:
        bounds = self._bounds(delta, MANY_PRODUCTS)
        return self.grid.near(delta) if _wider(bounds, _NARROW) else bounds[1]

    def estimate(self, delta: float) -> float:
        """Estimate epsilon to about a percent on either side, in a millisecond.  Not a bound."""
        row = np.array(self.counts)
        return max(0.0, *(estimate(terms, row, math.log(delta)) for terms in self.ways.values()))

    def by_direction(self, delta: float) -> Mapping[str, float]:
        try:
            return {way: max(0.0, curve.upper) for way, curve in self._lines(delta).items()}
        except TooDear:
            return self.grid.by_direction(delta)

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Bound the larger delta of the two directions."""
        bounds = self._along_lines(epsilon)
        return self.grid.delta_bounds(epsilon) if math.isnan(bounds[1]) else bounds

    def _along_lines(self, epsilon: float) -> Bounds:
        """Bound the larger delta of the two directions; NaN if a line would take too long."""
        lower, upper = 0.0, 0.0
        for terms in self.ways.values():
            below, above = (
                float(end[0]) for end in _deltas(terms, np.array(self.counts), np.array([epsilon]))
            )
            if math.isnan(above):
                return math.nan, math.nan
            lower, upper = max(lower, below), max(upper, above)
        return lower, upper

    def delta(self, epsilon: float) -> float:
        upper = self._along_lines(epsilon)[1]
        return self.grid.delta(epsilon) if math.isnan(upper) else upper

    def deltas(self, epsilons: Array) -> Array:
        """Use lines.  If one takes too long, use the grid, on which one composition serves all epsilons."""
        upper = np.zeros(epsilons.shape)
        for terms in self.ways.values():
            above = _deltas(terms, np.array(self.counts), epsilons, _CHEAP)[1]
            if np.isnan(above).any():
                return self.grid.deltas(epsilons)
            upper = np.maximum(upper, above)
        return upper

    def epsilons(self, deltas: Array) -> Array:
        """Use lines if these are cheap, else the grid."""
        brackets = [self._bounds(float(delta), _CHEAP) for delta in deltas]
        upper = np.array([above for _, above in brackets], dtype=np.float64)
        dear = np.array([_wider(bounds, _NARROW) for bounds in brackets], dtype=bool)
        if dear.any():
            upper[dear] = np.minimum(upper[dear], self.grid.epsilons(deltas[dear]))
        return upper

    def error_budget(self, delta: float) -> ErrorBudget:
        lower, upper = self.epsilon_bounds(delta)
        try:
            largest = max(self._lines(delta).values(), key=lambda drawn: drawn.upper)
        except TooDear:
            return self.grid.error_budget(delta)
        parts = largest.line.error_parts(largest.counts, largest.upper) if largest.upper > 0.0 else {}
        return ErrorBudget(delta, lower, upper, parts)


def _wider(bounds: Bounds, share: float) -> bool:
    return bounds[1] == math.inf or bounds[1] - bounds[0] > share * bounds[1]


def _both(first: Bounds, second: Bounds) -> Bounds:
    """Intersect two brackets of the same number."""
    return max(first[0], second[0]), min(first[1], second[1])


def _deltas(terms: Terms, counts: Array, epsilons: Array, most: int = MANY_PRODUCTS) -> tuple[Array, Array]:
    """Bound one direction's delta, with one line for several epsilons; all NaN if one is too costly."""
    lower, upper = np.full(epsilons.shape, math.nan), np.full(epsilons.shape, math.nan)
    open_points = np.ones(epsilons.shape, dtype=bool)
    order = np.argsort(epsilons)
    first = [order[:1], order[-1:], order[order.size // 2 :][:1]]  # if TooDear is raised, it is raised early
    for index in np.concatenate([*first, order]):
        if not open_points[index]:
            continue
        open_points[index] = False
        saddle = saddle_at_epsilon(terms, counts, float(epsilons[index]))
        if saddle.log_delta < _LEAST_LOG_DELTA:
            lower[index], upper[index] = 0.0, _faint(terms, counts, saddle, float(epsilons[index]))
            continue
        try:
            line = _line_at(terms, counts, saddle, most)
        except TooDear:
            return np.full(epsilons.shape, math.nan), np.full(epsilons.shape, math.nan)
        tried = np.append(np.flatnonzero(open_points), index)
        below, above = line.log_delta(np.tile(counts, (tried.size, 1)), epsilons[tried])
        good = (above - below <= _FINE) | (tried == index)
        rows = tried[good]
        with np.errstate(under="ignore"):
            lower[rows], upper[rows] = np.exp(below[good]), np.exp(np.minimum(above[good], 0.0))
        open_points[rows] = False
    return lower, upper


def _line_at(terms: Terms, counts: Array, saddle: Saddle, most: int) -> Line:
    """Draw a line for delta at the saddle's epsilon, with more accurate sums if they are needed."""
    line = draw(terms, counts, saddle, most)
    lower, upper = line.log_delta(counts[None], np.array([saddle.epsilon]))
    if upper[0] - lower[0] <= _NARROW:
        return line
    return draw(terms, counts, saddle, most, accurate=True)


def _faint(terms: Terms, counts: Array, saddle: Saddle, epsilon: float) -> float:
    """Bound by Chernoff's bound a delta too small to resolve, as epsilon is near the largest loss."""
    log_bounds = [0.0]
    for factor in (1.0, 0.1, 0.01, 1e-3):
        with suppress(TooDear):
            log_bounds.append(log_chernoff(terms, counts, saddle.tilt * factor, epsilon))
    return math.exp(min(log_bounds))


def epsilons_along(prices: Sequence[ContourPrice], delta: float) -> list[float]:
    """Bound epsilon from above for many compositions of the same terms, such as a run after each step.

    One line serves all counts near those for which it was drawn, so one more takes about ten microseconds.
    """
    counts = np.array([price.counts for price in prices])
    upper, lower = np.zeros(len(counts)), np.zeros(len(counts))
    for terms in prices[0].ways.values():
        below, above = bounds_along(terms, counts, math.log(delta))
        lower, upper = np.maximum(lower, below), np.maximum(upper, above)
    narrow = np.isfinite(upper) & (upper - lower <= _NARROW * upper)
    return [
        float(above) if good else price.epsilon(delta)
        for price, above, good in zip(prices, upper, narrow, strict=True)
    ]
