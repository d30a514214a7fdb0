"""Tables that charge the ledger before they answer a query; their answers, with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from fractions import Fraction
from itertools import starmap
from typing import Any, Self, Unpack, final

import numpy as np

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Compose
from tacit.ledger import Ledger, Policy, StillRunning
from tacit.ledger.records import Charge, Price
from tacit.notebook import grid
from tacit.queries import survival
from tacit.queries.distribution import Distribution
from tacit.queries.engines import EngineFailure, engine_of
from tacit.queries.measures import (
    Grid,
    Lifetimes,
    Measure,
    Pair,
    Regular,
    Squares,
    Total,
    centred,
    count_of,
    in_units,
    interval,
    laplace_sum_reach,
    measures_of,
    noise_variance,
    normal_sum_reach,
)
from tacit.queries.plan import (
    Compiled,
    Key,
    Noisy,
    Privacy,
    Release,
    Sampler,
    collect,
    compile_query,
    listing_privacy,
    release_all,
    sampler,
)
from tacit.queries.query import (
    Aggregate,
    Cdf,
    CumulativeHazard,
    Histogram,
    Mean,
    Predicate,
    Quantile,
    Quantiles,
    Query,
    RestrictedMean,
    StandardDeviation,
    Survival,
    Variance,
    column_of,
)
from tacit.queries.sql import parse
from tacit.rounding import shown_epsilon

# The interval of every value contains the answer without noise in 95 % of all answers. This holds for each
# value alone, not for all together. The interval covers only the noise: "the answer without noise" is
# computed from the rows that count, with values clipped to the bounds and rounded to the grid. Only the
# intervals of survival curves are for noise and sampling together.
LEVEL = 0.95
"""The share of answers whose interval contains the answer without noise."""

Number = int | float
_POINTS = 20  # of a distribution by default
_CURVES = Survival | CumulativeHazard | RestrictedMean
_START: Mapping[type[Aggregate], float] = {Survival: 1.0, CumulativeHazard: 0.0}  # at time 0


@dataclass(frozen=True)
class Estimate:
    """A value with its interval ``[low, high]``; a quantile has a rank error instead.

    In 95 % of all answers, a quantile's rank is off by at most ``rank_error`` rows, with each row rounded to
    its nearest candidate.

    >>> Estimate(12, low=8, high=16).to_data()
    {'value': 12, 'low': 8, 'high': 16}
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    rank_error: int | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the estimate as plain data, without the fields that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class _Span:
    low: Fraction
    value: Fraction
    high: Fraction

    def whole(self) -> _Span:
        """Round a number that is an integer without noise; its interval loses no integer."""
        return _Span(*map(Fraction, (math.ceil(self.low), round(self.value), math.floor(self.high))))

    def scaled(self, step: Fraction) -> _Span:
        return _Span(self.low * step, self.value * step, self.high * step)


_Place = tuple[Release, int]  # of a noisy integer


@dataclass(frozen=True)
class Reading:
    compiled: Compiled
    values: Mapping[Release, tuple[int, ...]]

    def spans(self, measure: Measure, risk: float) -> list[_Span]:
        """Return the values of a measure, with intervals that each miss with probability at most ``risk``."""
        release = self.compiled.release(measure)
        if release.law == "public":
            count = self.value(measure)
            return [_Span(count, count, count)]
        if isinstance(release.measure, Pair):
            value, reach = self.value(measure), _reach_of_sum([[(Fraction(1), measure)]], self, risk)
            return [_Span(value - reach, value, value + reach)]
        half = interval(release.law, release.scale, 1.0 - risk)
        f = release.bound.factor
        return [
            _Span(Fraction(x - half, f), Fraction(x, f), Fraction(x + half, f)) for x in self.values[release]
        ]

    def count(self, column: str) -> Measure:
        return count_of(column, self.compiled.complete)

    def form(self, measure: Measure) -> dict[_Place, Fraction]:
        """Return the factors of the noisy integers in a number; none if it is public."""
        release = self.compiled.release(measure)
        if release.law == "public":
            return {}
        one = (Fraction(1, release.bound.factor),)
        factors = release.measure.form(measure) if isinstance(release.measure, Pair) else one
        return {(release, place): factor for place, factor in enumerate(factors)}

    def value(self, measure: Measure) -> Fraction:
        form = self.form(measure)
        if not form:
            return Fraction(self.compiled.policy.public_records or 0)
        return sum(
            (factor * self.values[release][place] for (release, place), factor in form.items()), Fraction(0)
        )


def estimate(item: Aggregate, reading: Reading) -> Estimate | tuple[Estimate, ...]:
    """Return the estimate of one aggregate for one group; for a histogram, one estimate per bin."""
    # Counts are unbiased and add up. So they may be negative.
    match item:
        case Mean(column):
            return _mean(column, reading)
        case Variance(column, sample):
            return _variance(column, reading, sample=sample)
        case StandardDeviation(column, sample):
            variance = _variance(column, reading, sample=sample)
            ends = (variance.value, variance.low, variance.high)
            value, low, high = (math.sqrt(end or 0.0) for end in ends)
            return Estimate(value, low, high)
        case Quantile():
            return _quantile(item, reading)
        case Survival():
            return tuple(starmap(Estimate, survival.survival(_counts(item, reading), LEVEL)))
        case CumulativeHazard():
            return tuple(starmap(Estimate, survival.cumulative_hazard(_counts(item, reading), LEVEL)))
        case Quantiles(_, qs):
            return tuple(starmap(Estimate, _distribution(item, reading).quantiles(qs)))
        case Cdf():
            points = _points(item, reading.compiled.policy)
            return tuple(starmap(Estimate, _distribution(item, reading).cdf(points)))
        case RestrictedMean():
            return Estimate(*survival.restricted_mean(_counts(item, reading), LEVEL))
    (measure,) = measures_of(item, reading.compiled.policy, reading.compiled.complete)
    step = Fraction(measure.grid.step if isinstance(measure, Total) else 1)
    spans = [span.whole().scaled(step) for span in reading.spans(measure, 1.0 - LEVEL)]
    estimates = [Estimate(_plain(span.value), _plain(span.low), _plain(span.high)) for span in spans]
    # without the bins beyond a histogram's edges
    return tuple(estimates[1:-1]) if measure.binned else estimates[0]


def _plain(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else float(value)


def _quantile(item: Quantile, reading: Reading) -> Estimate:
    release = reading.compiled.choice(item)
    assert release.choice is not None
    (place,) = reading.values[release]
    return Estimate(release.choice.values[place], rank_error=release.choice.rank_error)


def _counts(item: Aggregate, reading: Reading) -> survival.Counts:
    (measure,) = measures_of(item, reading.compiled.policy)
    assert isinstance(measure, Lifetimes)
    release = reading.compiled.release(measure)
    whole = reading.compiled.policy.columns[measure.time].kind == "integer"
    cells = np.array(reading.values[release], dtype=np.float64)
    return survival.Counts(cells, measure.edges, noise_variance(release.law, release.scale), whole)


def _distribution(item: Aggregate, reading: Reading) -> Distribution:
    (measure,) = measures_of(item, reading.compiled.policy)
    assert isinstance(measure, Regular)
    release = reading.compiled.release(measure)
    variance = noise_variance(release.law, release.scale)
    # the noise of very small scales is nearly always 0, and no moment describes it
    kurtosis = 3.0 + min(1.0 / variance, 3.0) if release.law == "laplace" else 0.0
    lows, highs = map(np.array, measure.ends(reading.compiled.policy))
    counts = np.array(reading.values[release], dtype=np.float64)
    candidates = np.array(measure.candidates)
    return Distribution(counts, candidates, lows, highs, measure.run, variance, kurtosis, LEVEL)


def _log_rank(compiled: Compiled, readings: Sequence[Reading]) -> tuple[float, float] | None:
    """Return the test of two groups' survival; None if the answer has no two groups or no curves."""
    curves = [item for item in compiled.query.aggregates if isinstance(item, Survival)]
    if len(readings) != 2 or not curves:
        return None
    first, second = (_counts(curves[0], reading) for reading in readings)
    return survival.log_rank(first, second)


def _points(item: Aggregate, policy: Policy) -> tuple[float, ...]:
    """Return the places at which an aggregate has a value, if it has several; for a histogram, none."""
    if isinstance(item, _CURVES):
        (measure,) = measures_of(item, policy)
        assert isinstance(measure, Lifetimes)
        return measure.edges[-1:] if isinstance(item, RestrictedMean) else measure.edges[1:]
    if isinstance(item, Quantiles):
        return item.qs
    if isinstance(item, Cdf):
        column = policy.columns[item.column]
        low, high = Grid.of(item.column, column).lower, Grid.of(item.column, column).upper
        regular = [low + (high - low) * place / _POINTS for place in range(1, _POINTS + 1)]
        return tuple(map(float, item.points or column.edges or regular))
    return ()


# --- quotients -------------------------------------------------------------------------------------------

_Part = tuple[Fraction, Measure]  # a factor, and the measure whose noisy number it multiplies


def _reach_of_sum(ways: Iterable[Sequence[_Part]], reading: Reading, risk: float) -> Fraction:
    """Return t with P(|noise of the sum| > t) <= ``risk``, for a sum that is one of ``ways`` or between."""
    # Spread the integer noise evenly over the unit interval around each integer. It is then no further from 0
    # than continuous noise of the same distribution (for Laplace noise, with the scale 1 / (2 tanh(1 / (2
    # b))), just above b). All these densities decrease on both sides of 0, so the same holds for the sums
    # (Birnbaum 1948). Half a unit of each part, added to t, covers the spreading.
    most: dict[_Place, Fraction] = {}
    for parts in ways:
        factors: dict[_Place, Fraction] = {}
        for coefficient, measure in parts:
            for place, factor in reading.form(measure).items():
                factors[place] = factors.get(place, Fraction(0)) + coefficient * factor
        for place, factor in factors.items():
            most[place] = max(most.get(place, Fraction(0)), abs(factor))
    scales, spread, laplace = [], sum(most.values(), Fraction(0)) / 2, False
    for (release, _), factor in most.items():
        if factor:
            laplace = release.law == "laplace"
            wide = float(release.scale)
            scales.append(float(factor) * (0.5 / math.tanh(0.5 / wide) if laplace else wide))
    if not scales:
        return spread
    reach = laplace_sum_reach(scales, risk) if laplace else normal_sum_reach(scales, risk)
    return Fraction(reach * (1 + 1e-9)) + spread


def _clamped(span: _Span, low: Fraction, high: Fraction) -> _Span:
    return _Span(*(min(max(value, low), high) for value in (span.low, span.value, span.high)))


def _centred_mean(total: Total, reading: Reading, risk: float, *, least: int) -> _Span:
    """Return the mean of k - c with its interval, which is narrowed in three rounds."""
    # The noise of the quotient depends on the mean. It is bounded for the ends of the possible range first,
    # then for the ends of the interval that the last round gave.
    low, high = map(Fraction, (total.grid.low - total.centre, total.grid.high - total.centre))
    count = reading.count(total.column)
    rows, span = reading.value(count), _Span(low, Fraction(0), high)
    if rows <= 0:
        return span
    x = reading.value(total) / rows
    for _ in range(3):
        ways = [[(Fraction(1), total), (-end, count)] for end in (span.low, span.high)]
        reach = _reach_of_sum(ways, reading, risk) / rows
        span = _clamped(_Span(x - reach, x, x + reach), low, high)
    return span if rows >= least else _clamped(_Span(span.low, Fraction(0), span.high), span.low, span.high)


# A mean m is the quotient of two noisy numbers, a sum s and a count n. At the true m, s - m n is only noise,
# whose distribution is known. So the interval contains all m for which s - m n is within the 95 % range of
# that noise (Fieller 1954).
def _mean(column: str, reading: Reading) -> Estimate:
    """Return centre + total / count, clamped to [lower, upper]."""
    # Rounding to the grid moves a value by at most half a step, and the interval allows for that.
    total = centred(column, reading.compiled.policy)
    grid = total.grid
    ratio = _centred_mean(total, reading, 1.0 - LEVEL, least=1)
    declared = reading.compiled.policy.columns[column]
    on_grid = declared.kind == "integer" and declared.grid_step == 1.0  # needs no rounding
    half = Fraction(0) if on_grid else Fraction(1, 2)
    ends = (ratio.low - half, ratio.value, ratio.high + half)
    shifted = _Span(*(in_units(grid, total.centre + value) for value in ends))
    return _float(_clamped(shifted, Fraction(grid.lower), Fraction(grid.upper)))


# A variance v also needs a noisy sum of squares q. At the true m and v, q - 2 m s + (m^2 - v) n is only
# noise. The range of that noise holds in 95.5 % of all answers. The intervals for m and for the number of
# rows matter less, and hold in 99.8 % and 99.7 %. So all three hold together in 95 % (Bonferroni).
def _variance(column: str, reading: Reading, *, sample: bool) -> Estimate:
    """Return the variance E[y^2] - E[y]^2 of y = k - centre, clamped to [0, (range / 2)^2]."""
    # For a sample, it is multiplied by n / (n - 1). Squares are rounded to multiples of 2^shift, which
    # changes their mean by at most 2^shift / 2.
    risk, least = 1.0 - LEVEL, 2 if sample else 1
    total, count = centred(column, reading.compiled.policy), reading.count(column)
    squares = Squares(column, total.grid, total.centre)
    unit = Fraction(1 << squares.shift)
    top = Fraction(total.grid.high - total.grid.low, 2) ** 2
    mean = _centred_mean(total, reading, 0.04 * risk, least=least)
    rows, s, q = reading.value(count), reading.value(total), reading.value(squares) * unit
    span = _Span(Fraction(0), Fraction(0), top)
    if rows > 0:
        nearest, ends = min(max(s / rows, mean.low), mean.high), (mean.low, mean.high)
        lowest, *highest = (q - 2 * m * s + m * m * rows for m in (nearest, *ends))
        slack = unit / 2 if squares.shift else Fraction(0)
        # and the possible means nearest to 0 and to the middle, where factors of a count are smallest
        centres = (Fraction(0), Fraction(total.grid.low + total.grid.high, 2) - total.centre)
        means = (*ends, *(min(max(centre, mean.low), mean.high) for centre in centres))
        for _ in range(3):
            corners = [(m, v) for m in means for v in (span.low, span.high)]
            ways = [[(unit, squares), (-2 * m, total), (m * m - v, count)] for m, v in corners]
            reach = _reach_of_sum(ways, reading, 0.9 * risk)
            low, high = (lowest - reach) / rows - slack, (max(highest) + reach) / rows + slack
            middle = q / rows - mean.value**2 if rows >= least else Fraction(0)
            span = _clamped(_Span(low, min(max(middle, low), high), high), Fraction(0), top)
    if sample:
        (size,) = reading.spans(count, 0.06 * risk)
        fewest, largest = (max(value, Fraction(2)) for value in (size.low, size.high))
        n = max(rows, Fraction(2))
        span = _Span(
            span.low * largest / (largest - 1), span.value * n / (n - 1), span.high * fewest / (fewest - 1)
        )
    return _float(span.scaled(Fraction(total.grid.step) ** 2))


def _float(span: _Span) -> Estimate:
    return Estimate(float(span.value), float(span.low), float(span.high))


@dataclass(frozen=True)
class AnswerRow:
    """A group of an answer: its keys, and one estimate per aggregate (for a histogram, one per bin).

    >>> AnswerRow(("east",), (Estimate(12, 8, 16),)).keys
    ('east',)
    """

    keys: Key
    values: tuple[Estimate | tuple[Estimate, ...], ...]

    def to_data(self) -> dict[str, Any]:
        return {"keys": list(self.keys), "values": list(map(_data, self.values))}


@dataclass(frozen=True)
class Answer:
    """The answer to a query: noisy values, and an interval around each.

    Use :meth:`value` to get a number, and :meth:`to_text` to print everything.

    Attributes:
        by: the columns to group by.
        columns: the names of the aggregates (the computed values).
        rows: one row per group, in the policy's order. If a threshold selects the groups, they are sorted.
        mechanism: how noise was added, as one line of text for each noisy release.
        edges: for each aggregate, the edges of the bins if it is a histogram, else an empty tuple.
        points: for each aggregate, the positions on the x axis (times, values or shares); empty for single
            values and histograms.
        charge: the key of the charge in the ledger.
        epsilon, delta: the cost of this answer alone.
        remaining: the largest epsilon that the next release may cost.
        repeated: whether the query was asked before. The answer then comes from the ledger, at no cost.
        threshold: the noisy number of units that a group needs to be shown. None if the policy declares the
            groups.
        unit: the policy's word for the unit of privacy, such as ``patient``.
        log_rank: chi-squared and p-value of a log-rank test, which compares the survival curves of two
            groups. It accounts for the noise. None if there is no test.
        sampled: whether some intervals also account for the sampling of the rows, as those of survival curves
            do.
        axes: for each aggregate, the name of the x axis, such as the column of times.
        starts: for each aggregate, its value at time 0 if it is a curve over time, else None.

    >>> row = AnswerRow(("east",), (Estimate(12, 8, 16),))
    >>> answer = Answer(("ward",), ("count",), (row,), (), ((),), "key", 0.5, 0.0, 0.5, repeated=False)
    >>> print(answer.to_text())
    ward  count
    east  12 (8 to 16)
    Each interval contains the answer without noise in 95 % of all answers.
    Cost: epsilon 0.500. Left: epsilon 0.500.
    """

    by: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[AnswerRow, ...]
    mechanism: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]
    charge: str
    epsilon: float
    delta: float
    remaining: float
    repeated: bool
    threshold: int | None = None
    unit: str = "row"
    points: tuple[tuple[float, ...], ...] = ()
    log_rank: tuple[float, float] | None = None
    sampled: bool = False
    axes: tuple[str, ...] = ()
    starts: tuple[float | None, ...] = ()

    def value(self, column: str | None = None, keys: Key = ()) -> Any:
        """Return one noisy value; a histogram or curve gives a tuple of values.

        Args:
            column: the name of the aggregate, such as ``mean_age``; None if there is only one.
            keys: the group, as a tuple with a value for each column in ``by``; empty without groups.

        Raises:
            InvalidInput: if there is no such group or aggregate, or if ``column`` is None but there are
                several.
        """
        result = self.estimate(column, keys)
        return tuple(item.value for item in result) if isinstance(result, tuple) else result.value

    def estimate(self, column: str | None = None, keys: Key = ()) -> Estimate | tuple[Estimate, ...]:
        """Return a value with its interval; the arguments and errors are those of :meth:`value`."""
        exists = column in self.columns if column is not None else len(self.columns) == 1
        if not exists:
            raise InvalidInput(f"column must be one of {', '.join(self.columns)}; got {column!r}.")
        place = 0 if column is None else self.columns.index(column)
        for row in self.rows:
            if row.keys == tuple(keys):
                return row.values[place]
        raise InvalidInput(f"the answer has no group {keys!r}.")

    def to_data(self) -> dict[str, Any]:
        """Return the answer as a dict; :meth:`to_json` returns the same as a string."""
        data = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }
        data |= {
            "level": LEVEL,
            "rows": [row.to_data() for row in self.rows],
            "edges": [*map(list, self.edges)],
            "points": [*map(list, self.points)],
        }
        data["remaining_epsilon"] = data.pop("remaining")
        del data["unit"], data["axes"], data["starts"]
        return data

    def to_json(self) -> str:
        """Return the answer as a string in JSON."""
        return json.dumps(self.to_data(), allow_nan=False)

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the printed table, as strings: first the header, then one row per group.

        With a histogram or a curve, each group has a row per bin or point.
        """
        heads = (["bin"] if any(self.edges) else []) + (["at"] if any(self.points) else [])
        yield (*self.by, *(("/".join(heads),) if heads else ()), *self.columns)
        for row in self.rows:
            lines: dict[str, list[str]] = {}
            for place, item in enumerate(row.values):
                labels = self._labels(place)
                for number, part in enumerate(_parts(item)):
                    line = lines.setdefault(labels[number], [""] * len(self.columns))
                    line[place] = _cell(part)
            for label, cells in lines.items():
                yield (*map(str, row.keys), *((label,) if heads else ()), *cells)

    def _labels(self, place: int) -> list[str]:
        """Return the labels of an aggregate's values: bins, points, or one empty text."""
        if edges := self.edges[place]:
            return [_bin(edges, number) for number in range(len(edges) - 1)]
        points = self.points[place] if self.points else ()
        return [_number(point) for point in points] or [""]

    def notes(self) -> tuple[str, ...]:
        """Return the notes below the printed table, such as what the intervals mean; the last is the cost."""
        parts = [part for row in self.rows for item in row.values for part in _parts(item)]
        level = f"{LEVEL:.0%}".replace("%", " %")
        lines = []
        if self.sampled:
            lines.append(
                f"Intervals of survival, hazard and restricted mean contain the value of the population from "
                f"which the rows were drawn, and other intervals the answer without noise, in {level} of all "
                "answers."
            )
        elif any(part.low is not None for part in parts):
            lines.append(f"Each interval contains the answer without noise in {level} of all answers.")
        if self.log_rank is not None:
            chi_squared, p = self.log_rank
            lines.append(
                f"Log-rank test of the two groups, with their noise: chi-squared {chi_squared:.4g}, "
                f"p = {p:.3g}."
            )
        if any(part.rank_error is not None for part in parts):
            lines.append(
                f"Rank ± n: in {level} of all answers the value is at most n rows from the requested rank. "
                "Each row counts as its nearest candidate."
            )
        if self.threshold is not None:
            below = f"below {self.threshold}"
            lines.append(f"Groups whose noisy number of units ({self.unit}) is {below} are not shown.")
        cost = f"epsilon {shown_epsilon(self.epsilon)}" + (f", delta {self.delta:.3g}" if self.delta else "")
        paid = (
            f"Asked before: answered from the ledger at no cost (then {cost})."
            if self.repeated
            else f"Cost: {cost}."
        )
        return (*lines, f"{paid} Left: epsilon {shown_epsilon(self.remaining, ROUND_FLOOR)}.")

    def to_text(self) -> str:
        """Return the table and its notes as plain text."""
        table = list(self.cells())
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes()])

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return grid("", head, body, self.notes())

    def __str__(self) -> str:
        return self.to_text()


def _parts(item: Estimate | tuple[Estimate, ...]) -> tuple[Estimate, ...]:
    return item if isinstance(item, tuple) else (item,)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _cell(item: Estimate) -> str:
    if item.low is not None:
        low, value, high = _as_precise(item.low, item.value, item.high)
        return f"{value} ({low} to {high})" if item.high is not None else f"{value} ({low} or more)"
    if item.rank_error is not None:
        return f"{_number(item.value)} (rank ± {item.rank_error:,})"
    return _number(item.value)


def _as_precise(low: Number, value: Number, high: Number | None) -> list[str]:
    """Return a value and its interval as text, with two digits of half the interval, which never shrinks."""
    ends = [low, value, value if high is None else high]
    half = (ends[2] - low) / 2 if high is not None else value - low
    if half <= 0 or all(isinstance(end, int) for end in ends):
        return [_number(end) for end in ends]
    places = min(max(1 - math.floor(math.log10(half)), 0), 15)
    scale = 10.0**places
    ends = [math.floor(low * scale) / scale, value, math.ceil(ends[2] * scale) / scale]
    return [f"{end:z,.{places}f}" for end in ends]  # z: never -0.0


def _bin(edges: tuple[float, ...], number: int) -> str:
    closing = "]" if number == len(edges) - 2 else ")"
    return f"[{_number(edges[number])}, {_number(edges[number + 1])}{closing}"


# --- to and from the ledger ------------------------------------------------------------------------------


def content_of(compiled: Compiled, noisy: Noisy) -> dict[str, Any]:
    """Return the part of an answer that depends on the data and the noise, which the ledger stores."""
    query = compiled.query
    readings = [
        Reading(compiled, {release: values[place] for release, values in noisy.values.items()})
        for place in range(len(noisy.groups))
    ]
    rows = [
        AnswerRow(keys, tuple(estimate(item, reading) for item in query.aggregates))
        for keys, reading in zip(noisy.groups, readings, strict=True)
    ]
    test = _log_rank(compiled, readings)
    return {
        "by": list(query.by),
        "columns": list(query.output_names),
        "rows": [row.to_data() for row in rows],
        "level": LEVEL,
        "mechanism": list(describe(compiled)),
        "edges": [list(item.edges) if isinstance(item, Histogram) else [] for item in query.aggregates],
        "points": [list(_points(item, compiled.policy)) for item in query.aggregates],
        "log_rank": None if test is None else list(test),
        "sampled": any(isinstance(item, _CURVES) for item in query.aggregates),
        "threshold": None if compiled.threshold is None else compiled.threshold.value,
    }


def read_content(
    data: Mapping[str, Any],
    compiled: Compiled,
    *,
    charge: str,
    epsilon: float,
    delta: float,
    remaining: float,
    repeated: bool,
) -> Answer:
    rows = (AnswerRow(tuple(row["keys"]), tuple(map(_estimate, row["values"]))) for row in data["rows"])
    return Answer(
        by=tuple(data["by"]),
        columns=compiled.query.output_names,
        rows=tuple(rows),
        mechanism=tuple(data["mechanism"]),
        edges=tuple(map(tuple, data["edges"])),
        points=tuple(map(tuple, data.get("points", ()))),  # absent from answers of older versions
        log_rank=tuple(test) if (test := data.get("log_rank")) else None,
        sampled=data.get("sampled", False),
        charge=charge,
        epsilon=epsilon,
        delta=delta,
        remaining=remaining,
        repeated=repeated,
        threshold=data["threshold"],
        unit=compiled.policy.unit,
        axes=tuple(
            "share" if isinstance(item, Quantiles) else column_of(item) or ""
            for item in compiled.query.aggregates
        ),
        starts=tuple(_START.get(type(item)) for item in compiled.query.aggregates),
    )


def _data(item: Estimate | tuple[Estimate, ...]) -> Any:
    return [part.to_data() for part in item] if isinstance(item, tuple) else item.to_data()


def _estimate(data: Any) -> Estimate | tuple[Estimate, ...]:
    return tuple(Estimate(**part) for part in data) if isinstance(data, list) else Estimate(**data)


def foreseen(compiled: Compiled) -> tuple[str, ...]:
    """Return the noise's width for each aggregate, one per line; skip widths that depend on the data."""
    widths = {item: 1 if item.choice is not None else item.measure.bins for item in compiled.releases}
    reading = Reading(compiled, {release: (0,) * width for release, width in widths.items()})
    lines = []
    for name, item in zip(compiled.query.output_names, compiled.query.aggregates, strict=True):
        if isinstance(item, Mean | Variance | StandardDeviation | Quantiles | Cdf | _CURVES):
            continue  # its interval shrinks with the number of rows
        forecast = estimate(item, reading)
        bins = " in each bin" if isinstance(forecast, tuple) else ""
        first = forecast[0] if isinstance(forecast, tuple) else forecast
        if first.rank_error is not None:
            lines.append(f"{name}: rank ± {first.rank_error:,}")
        elif first.high is not None:
            lines.append(f"{name}: ± {_number(first.high - first.value)}{bins}")
    return tuple(lines)


# --- the mechanism, in words -----------------------------------------------------------------------------


def describe(compiled: Compiled) -> tuple[str, ...]:
    lines = [
        f"{release.measure.words.format(release.measure)}: {_law(release)}" for release in compiled.releases
    ]
    if compiled.threshold is not None:
        lines.append(
            f"groups are shown if the noisy {compiled.threshold.gate.words} is at least "
            f"{compiled.threshold.value} (delta {compiled.threshold.delta:g})"
        )
    return tuple(lines)


def _law(release: Release) -> str:
    factor = f", added to {release.bound.factor} times the number" if release.bound.factor > 1 else ""
    match release.law:
        case "laplace":
            sensitivity = f"sensitivity {release.bound.whole}"
            return f"discrete Laplace noise of scale {float(release.scale):.6g}, {sensitivity}{factor}"
        case "gaussian":
            sensitivity = f"squared sensitivity {release.bound.squared}"
            return f"discrete Gaussian noise of sigma {float(release.scale):.6g}, {sensitivity}{factor}"
        case "choice" if release.choice is not None:
            candidates = f"{len(release.choice.values)} candidates"
            return f"exponential mechanism of epsilon {float(release.scale):.6g} over {candidates}"
        case _:
            return "public"


# --- private tables ----------------------------------------------------------------------------------------
#
# The order is always: check against the policy, price, reserve, count, add noise, settle, show.

_UNREGISTERED = (
    "this table is not registered as {dataset!r}. No query is priced or answered until the data owner has "
    "checked its cells against the policy: `tacit ledger register LEDGER TABLE --dataset {dataset}`, or in "
    "Python tacit.queries.register_table(table, ledger=ledger, dataset={dataset!r})."
)


@dataclass(frozen=True)
class Quote:
    """The cost of a query and the mechanism of its answer, before any charge.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> from tacit.queries import Count, register_table
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(
    ...     unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...     columns={"age": Column(kind="number", lower=0, upper=120)},
    ... ))
    >>> visits = pd.DataFrame({"age": [71.0, 34.0, 80.0]})
    >>> _ = register_table(visits, ledger=ledger, dataset="visits")
    >>> quote = PrivateTable(visits, ledger=ledger, dataset="visits").price(Query((Count(),)), epsilon=0.5)
    >>> quote.epsilon, quote.asked_before, quote.price.fits
    (0.5, False, True)
    """

    price: Price  # the ledger's price
    mechanism: tuple[str, ...]  # how noise would be added, one line per release
    # the width of the noise in 95 % of all answers, one line per aggregate. It omits means, variances and
    # standard deviations, as their noise depends on the number of rows.
    foreseen: tuple[str, ...]
    # the state of the charge for this question, ``RESERVED``, ``SETTLED`` or ``FORFEITED``; None if it has
    # not been charged
    state: str | None
    epsilon: float  # epsilon, delta: the cost of this answer alone, as in :class:`Answer`
    delta: float

    @property
    def asked_before(self) -> bool:
        """Whether the ledger has the answer already, so that it costs nothing."""
        return self.state == "SETTLED"


@final
class PrivateTable:
    """Answers queries about a table and charges them to its privacy budget.

    Args:
        data: a pandas or Polars DataFrame, a pyarrow Table, the path of a Parquet or CSV file, or an
            :class:`~tacit.queries.engines.Engine`.
        ledger: the ledger with the budget.
        dataset: the data set's name in the ledger.
        block: the name of the block in ``data``, if the policy divides the data set into blocks (parts that
            share no person).
        noise: the library that samples the noise, ``own`` (Tacit) or ``opendp``.

    First, the data owner must register the table with :func:`~tacit.queries.register_table`. Any other table
    is refused, always with the same message.

    The budget belongs to the people, not to the file. If the data set gets new content, its answers are
    charged again, to the same budget. Only the data owner can know that the new content is about the same
    people. Unchanged content cannot be registered again as another block, or under another name with a
    separate budget.

    Raises:
        PrivacyRefusal: if the table is not registered.
        Conflict: if the table is registered as another block.
        InvalidInput: if the table cannot be opened, or lacks a column.

    **Guarantee**

    * Nothing is counted before the ledger has committed the charge to its database, and nothing is shown
      before the ledger has stored the answer.
    * Refusals do not depend on cells. An unregistered table is refused before any cost is computed, with the
      same message whatever the table contains.
    * The charge is the cost of the mechanism that really runs. A query that does not fit the budget is
      refused, and costs nothing.
    * If you ask the same query again about the same content, the ledger returns the stored answer, with the
      same noise and without a charge.
    * After a failure the charge stays spent, and the message reveals nothing about the data.
    * The guarantee does not cover the time that an answer takes.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> from tacit.queries import Compare, Count, register_table
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(
    ...     unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...     columns={"age": Column(kind="number", lower=0, upper=120)},
    ... ))
    >>> visits = pd.DataFrame({"age": [71.0, 34.0, 80.0]})
    >>> _ = register_table(visits, ledger=ledger, dataset="visits")  # by the data owner
    >>> table = PrivateTable(visits, ledger=ledger, dataset="visits")
    >>> old = Query((Count(),), where=Compare("age", ">", 65))
    >>> table.ask(old, epsilon=0.5).epsilon
    0.5
    >>> table.ask(old, epsilon=0.5).repeated
    True
    """

    def __init__(
        self, data: object, *, ledger: Ledger, dataset: str, block: str | None = None, noise: str = "own"
    ) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self._policy = ledger.policy(dataset)
        self._block = block
        self._sampler: Sampler = sampler(noise)
        self._engine = engine_of(data, self._policy)
        self._version = ledger.fingerprint(self._engine.content())
        verdict = ledger.verdict(dataset, self._version)
        if verdict is None:
            raise PrivacyRefusal(_UNREGISTERED.format(dataset=dataset))
        # Registration refuses missing cells, unless the policy says how to treat them or the curator accepts
        # them. Both are public. The public number of records is that of the whole data set, not of a block.
        self._complete = frozenset(
            name
            for name, column in self._policy.columns.items()
            if block is None and column.missing == "refuse" and name not in verdict.missing
        )
        ledger.register_content(dataset, self._version, block=block)
        self._engine.check(self._policy)
        self._engine.load()

    @property
    def policy(self) -> Policy:
        """The public facts about the data set, from the ledger: the unit of privacy, budget and columns."""
        return self._policy

    @property
    def version(self) -> str:
        """The fingerprint of the table's content: a keyed hash that only this ledger can compute."""
        return self._version

    @listing_privacy
    def price(self, query: Query, *, attempt: int = 1, **privacy: Unpack[Privacy]) -> Quote:
        """Return what a query would cost, without a charge and without reading the data.

        The arguments are those of :meth:`ask`.
        """
        compiled = self._compiled(query, privacy)
        key, _ = self._request(compiled, attempt)
        price = self._ledger.price(
            self._dataset, compiled.event, block=self._block, delta=compiled.charge_delta
        )
        charge = self._ledger.find(self._dataset, key)
        cost = compiled.stated_cost or (price.epsilon, price.delta)
        return Quote(
            price, describe(compiled), foreseen(compiled), None if charge is None else charge.state, *cost
        )

    @listing_privacy
    def ask(self, query: Query, *, attempt: int = 1, by: str = "", **privacy: Unpack[Privacy]) -> Answer:
        """Charge a query to the ledger, then answer it.

        Args:
            query: the query.
            privacy: ``epsilon`` is the cost of the whole answer. ``mechanism`` is ``laplace`` (the default)
                or ``gaussian``. Gaussian noise needs ``epsilon`` and ``delta``, or ``rho`` instead. Groups
                that the policy does not declare need ``delta`` too.
            attempt: 1 by default. Set it to 2, 3, ... to pay again for the same query, for fresh noise or
                because an answer was lost.
            by: the analyst's name, for the ledger's public history.

        Raises:
            Refused: if the query does not fit the budget; the message gives the query's cost, what is left,
                and what would fit.
            StillRunning: if another process is answering the same query.
            EngineFailure: if the engine that reads the table failed. The charge stays spent. The message
                hides the reason, which may reveal data.
            InvalidInput, PrivacyRefusal: if the policy does not allow the query; nothing is charged.
        """
        compiled = self._compiled(query, privacy)
        charge = self._reserve(compiled, attempt, by)
        if charge.token is None:
            return self._stored_answer(compiled, charge)
        failure: BaseException | None = None
        try:
            raw = collect(compiled, [self._engine.rows(each) for each in compiled.statements])
            content = content_of(compiled, release_all(compiled, raw, self._sampler))
        except BaseException as problem:  # noqa: BLE001 - a Ctrl-C too leaves the charge spent
            failure = problem
        if failure is not None:  # outside the handler, so that no later error has this one as its context
            self._ledger.forfeit(charge)
            raise EngineFailure if isinstance(failure, Exception) else failure
        return self._answer(compiled, self._ledger.settle(charge, content), repeated=False)

    @listing_privacy
    def sql(self, text: str, *, attempt: int = 1, by: str = "", **privacy: Unpack[Privacy]) -> Answer:
        """Charge and answer a query in SQL; the other arguments are those of :meth:`ask`.

        After FROM, write the name of the data set. Only a part of SQL is supported; see
        :func:`~tacit.queries.sql.parse`.

        Raises:
            InvalidInput, PrivacyRefusal: if part of the query is not supported or not allowed. The message
                shows where, and nothing is charged.
        """
        query = parse(text, self._policy, table=self._dataset)
        return self.ask(query, attempt=attempt, by=by, **privacy)

    @listing_privacy
    def survival(
        self,
        time: str,
        event: str,
        *,
        edges: Sequence[float] | None = None,
        where: Predicate | None = None,
        groups: Sequence[str] = (),
        attempt: int = 1,
        by: str = "",
        **privacy: Unpack[Privacy],
    ) -> Answer:
        """Estimate the survival curve, the cumulative hazard and the mean time without an event.

        All three come from one noisy table of counts, so you pay once. The answer has the columns
        ``survival``, ``hazard`` and ``restricted_mean``. The intervals account for both the noise and the
        sampling of the rows. With two groups, the answer's ``log_rank`` tests whether they differ.

        Args:
            time: the column of times, from 0 to a declared upper bound.
            event: the column that is true (or 1) if the event happened at that time. It is false (or 0) if
                the row is censored: observed until that time, without an event.
            edges: the edges of the time bins, beginning with 0. By default they are the bins that the policy
                declares, or else 20 equal bins. A later time counts as censored at the last edge. In wide
                bins, the intervals are too narrow.
            where: which rows count, such as ``Compare("age", ">", 65)``; by default all.
            groups: the columns to group by.
            attempt, by, privacy: as for :meth:`ask`, with the same errors.
        """
        if isinstance(groups, str):
            raise InvalidInput(f"groups must be a list of columns; got {groups!r}. Use groups=[{groups!r}].")
        shape: Any = time, event, tuple(edges) if isinstance(edges, Iterable) else edges
        return self.ask(
            Query(
                (Survival(*shape), CumulativeHazard(*shape), RestrictedMean(*shape)),
                where=where,
                by=tuple(groups),
                names=("survival", "hazard", "restricted_mean"),
            ),
            attempt=attempt,
            by=by,
            **privacy,
        )

    def close(self) -> None:
        """Close the engine that reads the table; the ledger stays open."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compiled(self, query: Query, privacy: Privacy) -> Compiled:
        if not isinstance(query, Query):
            raise InvalidInput(f"query must be a Query, such as Query((Count(),)); got {query!r}.")
        in_block = self._block is not None
        return compile_query(query, self._policy, complete=self._complete, in_block=in_block, **privacy)

    def _request(self, compiled: Compiled, attempt: int) -> tuple[str, dict[str, Any]]:
        """Return the key of a request in the history, and the request."""
        # The key is a keyed hash, as a plain hash would confirm a guess of the request.
        again = check_integer("attempt", attempt, low=1)
        request = compiled.request(self._version, block=self._block, attempt=again)
        return self._ledger.fingerprint([json.dumps(request, sort_keys=True).encode()]), request

    def _reserve(self, compiled: Compiled, attempt: int, by: str) -> Charge:
        key, request = self._request(compiled, attempt)
        self._engine.check(self._policy)
        return self._ledger.reserve(
            self._dataset,
            compiled.event,
            key=key,
            request=request,
            block=self._block,
            delta=compiled.charge_delta,
            by=by,
            label="query",
        )

    def _stored_answer(self, compiled: Compiled, charge: Charge) -> Answer:
        if charge.state == "SETTLED":
            return self._answer(compiled, charge, repeated=True)
        if charge.state == "RESERVED":
            raise StillRunning(
                "the same query is being answered, or its process died; it is charged once. Ask again "
                f"later, for its answer (the reservation ends {charge.lease_ends:%Y-%m-%d %H:%M} UTC), or "
                "now with a higher attempt, which is charged again."
            )
        raise PrivacyRefusal(
            "this query was charged before, but its answer was lost. The charge stays, because someone may "
            "have seen the answer. To ask and pay again, increase attempt, such as attempt=2."
        )

    def _answer(self, compiled: Compiled, charge: Charge, *, repeated: bool) -> Answer:
        if not isinstance(charge.answer, dict):
            raise PrivacyRefusal(f"the ledger's entry {charge.key!r} is not an answer to a query.")
        epsilon, delta = compiled.stated_cost or self._policy.budget.epsilon_of(charge.cost)
        left = self._ledger.price(self._dataset, Compose(()), block=self._block).remaining
        return read_content(
            charge.answer,
            compiled,
            charge=charge.key,
            epsilon=epsilon,
            delta=delta,
            remaining=left,
            repeated=repeated,
        )
