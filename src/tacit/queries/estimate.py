"""What values does an answer show? Those computed from noisy integers: post-processing, free of cost.

Every value has an interval that holds the answer without noise in 95 % of all answers, each value by itself.
The interval covers the noise alone: of the rows that count, with values clipped to the bounds, on the grid.

A mean m is a quotient of two noisy numbers s and n.  At the true m, s - m n is noise alone, and its
distribution is known: the interval holds those m for which s - m n is within 95 % of that noise (Fieller
1954).  With a noisy sum of squares q, q - 2 m s + (m^2 - v) n is noise alone at the true mean m and variance
v.  That statement holds in 95.5 % of all answers; those on m and on the number of rows, on which little
depends, hold in 99.8 % and 99.7 %, so that all hold together in 95 % (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tacit.errors import InvalidInput
from tacit.queries.measures import (
    Measure,
    Present,
    Rows,
    Squares,
    Total,
    bins_between,
    centred,
    count_of_units,
    in_units,
)
from tacit.queries.noise import gaussian_interval, laplace_interval, laplace_sum_reach, normal_sum_reach
from tacit.queries.plan import Compiled, Release
from tacit.queries.query import (
    Aggregate,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    StandardDeviation,
    Sum,
    Variance,
)

LEVEL = 0.95
"""How often an interval holds the answer without noise."""

Number = int | float


@dataclass(frozen=True)
class Estimate:
    """A value, and the interval ``[low, high]``; a quantile has the error of its rank instead.

    ``rank_error``: in 95 % of all answers the rank of the value is off by at most so many rows, where each
    row counts as the candidate nearest to it.

    >>> Estimate(12, low=8, high=16).to_data()
    {'value': 12, 'low': 8, 'high': 16}
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    rank_error: int | None = None

    def to_data(self) -> dict[str, Any]:
        """As plain data, without the fields that are None."""
        fields = {"value": self.value, "low": self.low, "high": self.high, "rank_error": self.rank_error}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class _Span:
    """``low <= value <= high``, exact."""

    low: Fraction
    value: Fraction
    high: Fraction

    def scaled(self, step: Fraction) -> _Span:
        """In other units."""
        return _Span(self.low * step, self.value * step, self.high * step)


@dataclass(frozen=True)
class Reading:
    """The noisy integers of one group, by release."""

    compiled: Compiled
    values: Mapping[Release, tuple[int, ...]]

    def spans(self, measure: Measure, missed: float) -> list[_Span]:
        """Values of a measure, each with an interval that misses with probability at most ``missed``."""
        release = self.compiled.release(measure)
        if release.law == "public":
            known = Fraction(self.compiled.policy.public_records or 0)
            return [_Span(known, known, known)]
        half = _reach(release.law, release.scale, 1.0 - missed)
        f = release.bound.factor
        return [
            _Span(Fraction(x - half, f), Fraction(x, f), Fraction(x + half, f)) for x in self.values[release]
        ]

    def value(self, measure: Measure) -> Fraction:
        """The value of a measure without bins."""
        return self.span(measure, 1.0 - LEVEL).value

    def span(self, measure: Measure, missed: float) -> _Span:
        """The same, of a measure without bins."""
        (only,) = self.spans(measure, missed)
        return only


@lru_cache(maxsize=1024)
def _reach(law: str, scale: Fraction, level: float) -> int:
    """The distance that the noise does not exceed at this level; the same for all groups."""
    return laplace_interval(scale, level) if law == "laplace" else gaussian_interval(scale, level)


def estimate(item: Aggregate, reading: Reading) -> Estimate | tuple[Estimate, ...]:
    """The answer to one aggregate for one group; one per bin for a histogram.

    Counts may be negative, or halves under replace-one: they are unbiased, and add up.
    """
    policy = reading.compiled.policy
    missed = 1.0 - LEVEL
    match item:
        case Count(None):
            return _shown(reading.span(Rows(), missed))
        case Count(str(column)):
            return _shown(reading.span(Present(column), missed))
        case CountUnits():
            return _shown(reading.span(count_of_units(policy), missed))
        case Sum(column):
            total = centred(column, policy, centre=0)
            return _shown(reading.span(total, missed).scaled(Fraction(total.grid.step)))
        case Histogram(column, edges):
            return tuple(map(_shown, reading.spans(bins_between(column, edges), missed)[1:-1]))
        case Mean(column):
            return _mean(column, reading)
        case Variance(column, sample):
            return _variance(column, reading, sample=sample)
        case StandardDeviation(column, sample):
            return _root(_variance(column, reading, sample=sample))
        case Quantile():
            return _quantile(item, reading)
    raise InvalidInput(f"unknown aggregate {item!r}.")


def _shown(span: _Span) -> Estimate:
    return Estimate(_plain(span.value), _plain(span.low), _plain(span.high))


def _plain(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else float(value)


def _quantile(item: Quantile, reading: Reading) -> Estimate:
    release = reading.compiled.choice(item)
    assert release.choice is not None
    (place,) = reading.values[release]
    return Estimate(release.choice.values[place], rank_error=release.choice.rank_error)


# --- quotients -------------------------------------------------------------------------------------------

_Part = tuple[Fraction, Measure]  # the factor of a noisy number, and its measure


def _reach_of_sum(parts: Sequence[_Part], reading: Reading, missed: float) -> Fraction:
    """The smallest t with P(|noise of the sum| > t) <= ``missed``, rounded up.

    Noise on integers, spread evenly over the unit interval around each, is no further from 0 than the
    continuous noise of the same law (Laplace noise: of scale 1 / (2 tanh(1 / (2 b))), just above b).  All
    these densities fall on both sides of 0, so the same holds of the sums (Birnbaum 1948).  Half a unit of
    each accounts for the spreading.
    """
    scales, spread, laplace = [], Fraction(0), False
    for coefficient, measure in parts:
        release = reading.compiled.release(measure)
        if release.law != "public" and coefficient:
            laplace = release.law == "laplace"
            wide = float(release.scale)
            wide = 0.5 / math.tanh(0.5 / wide) if laplace else wide
            scales.append(abs(float(coefficient)) * wide / release.bound.factor)
            spread += abs(coefficient) / (2 * release.bound.factor)
    if not scales:
        return spread
    reach = laplace_sum_reach(scales, missed) if laplace else normal_sum_reach(scales, missed)
    return Fraction(reach * (1 + 1e-9)) + spread


def _within(value: Fraction, rows: Fraction, reach: Fraction, low: Fraction, high: Fraction) -> _Span:
    """All x in [low, high] with |value - x rows| <= reach, for rows > 0; in the middle value / rows."""
    x = value / rows
    return _kept(_Span(x - reach / rows, x, x + reach / rows), low, high)


def _kept(span: _Span, low: Fraction, high: Fraction) -> _Span:
    """Cut to the range of possible answers."""
    return _Span(*(min(max(value, low), high) for value in (span.low, span.value, span.high)))


def _centred_mean(total: Total, reading: Reading, missed: float, *, least: int) -> _Span:
    """The mean of k - c; the noise at the ends of its range bounds it, then that at the ends so found."""
    low, high = map(Fraction, (total.grid.low - total.centre, total.grid.high - total.centre))
    count, value = Present(total.column), reading.value(total)
    rows = reading.value(count)
    if rows <= 0:
        return _Span(low, Fraction(0), high)
    span = _Span(low, Fraction(0), high)
    for _ in range(3):
        widest = max(abs(span.low), abs(span.high))
        reach = _reach_of_sum([(Fraction(1), total), (widest, count)], reading, missed)
        span = _within(value, rows, reach, low, high)
    return span if rows >= least else _kept(_Span(span.low, Fraction(0), span.high), span.low, span.high)


def _mean(column: str, reading: Reading) -> Estimate:
    """centre + total / count, in [lower, upper]; values are off the grid by half a step at most."""
    total = centred(column, reading.compiled.policy)
    grid = total.grid
    ratio = _centred_mean(total, reading, 1.0 - LEVEL, least=1)
    half = Fraction(0) if _on_grid(column, reading) else Fraction(1, 2)
    ends = _Span(ratio.low - half, ratio.value, ratio.high + half)
    shifted = _Span(*(in_units(grid, total.centre + value) for value in (ends.low, ends.value, ends.high)))
    return _float(_kept(shifted, Fraction(grid.lower), Fraction(grid.upper)))


def _on_grid(column: str, reading: Reading) -> bool:
    """Whole numbers on a grid of whole steps need no rounding."""
    declared = reading.compiled.policy.columns[column]
    return declared.kind == "integer" and declared.grid_step == 1.0


def _variance(column: str, reading: Reading, *, sample: bool) -> Estimate:
    """E[y^2] - E[y]^2 of y = k - centre, in [0, (range / 2)^2]; n / (n - 1) times that for a sample.

    The squares are rounded to 2^shift each, the mean of squares by half of that at most.
    """
    missed, least = 1.0 - LEVEL, 2 if sample else 1
    total, count = centred(column, reading.compiled.policy), Present(column)
    squares = Squares(column, total.grid, total.centre)
    unit = Fraction(1 << squares.shift)
    top = Fraction(total.grid.high - total.grid.low, 2) ** 2
    mean = _centred_mean(total, reading, 0.04 * missed, least=least)
    rows, s, q = reading.value(count), reading.value(total), reading.value(squares) * unit
    span = _Span(Fraction(0), Fraction(0), top)
    if rows > 0:
        nearest, ends = min(max(s / rows, mean.low), mean.high), (mean.low, mean.high)
        lowest, *highest = (q - 2 * m * s + m * m * rows for m in (nearest, *ends))
        slack = unit / 2 if squares.shift else Fraction(0)
        for _ in range(3):
            means = (*ends, _nearest_zero(mean))
            widest = max(abs(m * m - v) for m in means for v in (span.low, span.high))
            parts = [(unit, squares), (2 * max(map(abs, ends)), total), (widest, count)]
            reach = _reach_of_sum(parts, reading, 0.9 * missed)
            low, high = (lowest - reach) / rows - slack, (max(highest) + reach) / rows + slack
            middle = q / rows - mean.value**2 if rows >= least else Fraction(0)
            span = _kept(_Span(low, min(max(middle, low), high), high), Fraction(0), top)
    if sample:
        counted = reading.span(count, 0.06 * missed)
        few, many = (max(value, Fraction(2)) for value in (counted.low, counted.high))
        n = max(rows, Fraction(2))
        span = _Span(span.low * many / (many - 1), span.value * n / (n - 1), span.high * few / (few - 1))
    return _float(span.scaled(Fraction(total.grid.step) ** 2))


def _nearest_zero(span: _Span) -> Fraction:
    return min(max(Fraction(0), span.low), span.high)


def _root(variance: Estimate) -> Estimate:
    ends = (variance.value, variance.low, variance.high)
    value, low, high = (math.sqrt(end) for end in ends if end is not None)
    return Estimate(value, low, high)


def _float(span: _Span) -> Estimate:
    return Estimate(float(span.value), float(span.low), float(span.high))
