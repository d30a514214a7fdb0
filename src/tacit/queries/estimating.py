"""From noisy integers to values with intervals: post-processing, which costs no privacy.

Every value comes with an interval that holds the answer without noise in 95 % of all answers, each value by
itself.  It speaks of the noise alone: of the rows that count, with values clipped to the bounds, on the grid.

A mean is a quotient of two noisy numbers.  Each gets an interval that misses in 2.5 % (three of 5/3 % for
a variance), so that all hold together in 95 % (Bonferroni), and the answer lies between the least and the
largest value over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tacit.errors import InvalidInput
from tacit.queries.algebra import (
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
from tacit.queries.compiling import Compiled, Release, bins_between, centred, count_of_units
from tacit.queries.measures import Measure, Present, Rows, Squares, in_units
from tacit.queries.noise import gaussian_interval, laplace_interval

__all__ = ["LEVEL", "Estimate", "Reading", "estimate"]

LEVEL = 0.95
"""How often an interval holds the answer without noise."""

Number = int | float

_ANYTHING = Fraction(1 << 200)  # beyond every bound: what is cut to the bounds is then all of them


@dataclass(frozen=True)
class Estimate:
    """A value, the interval ``[low, high]``, and for a quantile instead of it the error of its rank.

    ``rank_error``: in 95 % of all answers the rank of the value is off by at most so many rows, where each
    row counts as the candidate nearest to it.
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    rank_error: int | None = None

    def to_data(self) -> dict[str, Any]:
        """As plain data; what there is none of is left out."""
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

    def span(self, measure: Measure, missed: float) -> _Span:
        """The same, of a measure without bins."""
        (only,) = self.spans(measure, missed)
        return only


@lru_cache(maxsize=1024)
def _reach(law: str, scale: Fraction, level: float) -> int:
    """How far the noise reaches; the same for all groups."""
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


def _quotient(total: _Span, count: _Span, *, least: int) -> _Span:
    """total / count over all totals and all counts >= ``least`` between the ends; the value by the middle."""
    if count.high < least:
        return _Span(-_ANYTHING, Fraction(0), _ANYTHING)
    few, many = max(count.low, Fraction(least)), max(count.high, Fraction(least))
    low = total.low / (few if total.low < 0 else many)
    high = total.high / (few if total.high > 0 else many)
    value = total.value / count.value if count.value >= least else Fraction(0)  # the centre, if that may be
    return _Span(low, min(max(value, low), high), high)


def _kept(span: _Span, low: Fraction, high: Fraction) -> _Span:
    """Cut to where the answer must lie."""
    return _Span(*(min(max(value, low), high) for value in (span.low, span.value, span.high)))


def _mean(column: str, reading: Reading) -> Estimate:
    """centre + total / count, in [lower, upper]; values are off the grid by half a step at most."""
    total = centred(column, reading.compiled.policy)
    grid, missed = total.grid, (1.0 - LEVEL) / 2
    ratio = _quotient(reading.span(total, missed), reading.span(Present(column), missed), least=1)
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
    total = centred(column, reading.compiled.policy)
    squares = Squares(column, total.grid, total.centre)
    missed, least = (1.0 - LEVEL) / 3, 2 if sample else 1
    count = reading.span(Present(column), missed)
    mean = _quotient(reading.span(total, missed), count, least=least)
    square = _quotient(reading.span(squares, missed), count, least=least)
    unit = Fraction(1 << squares.shift)
    slack = unit / 2 if squares.shift else Fraction(0)
    largest = max(mean.low**2, mean.high**2)
    smallest = Fraction(0) if mean.low <= 0 <= mean.high else min(mean.low**2, mean.high**2)
    span = _Span(
        square.low * unit - slack - largest,
        square.value * unit - mean.value**2,
        square.high * unit + slack - smallest,
    )
    top = Fraction(total.grid.high - total.grid.low, 2) ** 2
    kept = _kept(span, Fraction(0), top)
    if sample:
        few, many = (max(value, Fraction(2)) for value in (count.low, count.high))
        middle = max(count.value, Fraction(2))
        kept = _Span(
            kept.low * many / (many - 1), kept.value * middle / (middle - 1), kept.high * few / (few - 1)
        )
    return _float(kept.scaled(Fraction(total.grid.step) ** 2))


def _root(variance: Estimate) -> Estimate:
    ends = (variance.value, variance.low, variance.high)
    value, low, high = (math.sqrt(end) for end in ends if end is not None)
    return Estimate(value, low, high)


def _float(span: _Span) -> Estimate:
    return Estimate(float(span.value), float(span.low), float(span.high))
