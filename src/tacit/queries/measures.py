"""The integer sums of a query, their sensitivity to one unit, and the noise for a share of the budget.

Legend: x is the value of a row, k its integer, s the step of the grid, c the centre. K is the number of a
unit's rows that count, and G the number of an answer's groups in which a unit may count.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar

from tacit.accounting.price import halved, last_whole
from tacit.accounting.renyi import zcdp_curve
from tacit.columns import Column
from tacit.errors import InvalidInput, PrivacyRefusal, check_real
from tacit.events import Adjacency
from tacit.ledger.policy import Policy
from tacit.queries.query import (
    Aggregate,
    Cdf,
    Count,
    CumulativeHazard,
    Histogram,
    Mean,
    Quantile,
    Quantiles,
    Query,
    RestrictedMean,
    StandardDeviation,
    Sum,
    Survival,
    Variance,
)

# A query is answered from a few *measures*. A measure gives each row an integer, which depends only on the
# row and on public facts, and sums these integers over each group. So the sum is exact, in whatever order an
# engine adds, and one unit changes it by at most the bounds in this file. Sums of floats depend on the order
# of the rows, and the textbook sensitivity does not hold for them (Casacuberta et al. 2022, 2207.10635).

_LARGEST_SUM = (1 << 62) - 1  # the largest sum that an engine may return; twice as much fits into 64 bits
# The largest x / s: up to here x / s + 1/2 is exact enough that only the rounding of x / s affects k.
_LARGEST_CELL = 1 << 52
_LARGEST_ROOT = 1 << 31  # the largest k - c: its square fits into 63 bits
# A noisy sum has fewer than 2^200 steps (a charge is at least 1e-9), so neither it nor a square overflows.
_LARGEST_BOUND, _SMALLEST_STEP = 1e100, 1e-100
_MOST_CANDIDATES = 1024  # candidates of a quantile on a grid
_RUNS_FROM = 48  # candidates
_TIMES = 20  # bins of a survival curve by default
_SQUARE_BITS = 20  # bits of a square after rounding: as fine as the default grid


@dataclass(frozen=True)
class Grid:
    """The integers k = floor(clip(x, lower, upper) / step + 1/2) of a column, from ``low`` to ``high``."""

    # Division and floor are monotone in x, so k stays between ``low`` and ``high`` in every engine that
    # computes in doubles.
    lower: float
    upper: float
    step: float

    def __post_init__(self) -> None:
        if max(-self.lower, self.upper) > _LARGEST_BOUND or self.step < _SMALLEST_STEP:
            raise InvalidInput(
                f"bounds [{self.lower!r}, {self.upper!r}] or step {self.step!r} are out of range. Bounds "
                f"must be at most {_LARGEST_BOUND:g} in absolute value, and steps at least "
                f"{_SMALLEST_STEP:g}. Declare tighter bounds, or the column in another unit."
            )
        if max(abs(self.lower), abs(self.upper)) / self.step > _LARGEST_CELL:
            raise InvalidInput(
                f"step {self.step!r} is too small for bounds [{self.lower!r}, {self.upper!r}]: adjacent "
                "steps are equal as 64-bit floats. Declare a larger step."
            )
        if self.low == self.high:
            raise InvalidInput(
                f"step {self.step!r} is too large for bounds [{self.lower!r}, {self.upper!r}]: both bounds "
                "round to the same multiple of the step. Declare a smaller step."
            )

    @classmethod
    def of(cls, name: str, column: Column) -> Grid:
        if column.low is None or column.high is None:
            raise InvalidInput(
                f"column {name!r} has no bounds, so one row could change the answer without limit. Declare "
                "lower and upper in the policy; never take them from the data."
            )
        return cls(column.low, column.high, column.grid_step)

    def cell(self, value: float) -> int:
        return math.floor(min(max(value, self.lower), self.upper) / self.step + 0.5)

    @property
    def low(self) -> int:
        return self.cell(self.lower)

    @property
    def high(self) -> int:
        return self.cell(self.upper)


class Measure:
    """An integer per row, summed over the rows of each group; the base class of measures."""

    words: ClassVar[str]
    """A description of the sum, as a format string for the measure ``{0}``."""
    binned: ClassVar[bool] = False
    """Whether a group has one sum for every bin."""

    @property
    def span(self) -> tuple[int, int]:
        """The smallest and the largest integer of a row."""
        return 0, 1

    @property
    def bins(self) -> int:
        return 1

    def bins_at(self, place: int) -> tuple[int, ...]:
        """Return the bins in which a row of the statement's bin ``place`` counts."""
        return (place,)

    @property
    def largest(self) -> int:
        low, high = self.span
        return max(-low, high)

    @property
    def parts(self) -> tuple[Measure, ...]:
        """The measures that an engine sums."""
        return (self,)

    @property
    def gives(self) -> tuple[Measure, ...]:
        """The measures that this one replaces."""
        return (self,)


@dataclass(frozen=True)
class Rows(Measure):
    """The number of rows: 1 for every row."""

    words = "number of rows"


@dataclass(frozen=True)
class Units(Measure):
    """The number of distinct units in a group: a sum over units, not over rows."""

    words = "number of units"


@dataclass(frozen=True)
class Present(Measure):
    """The number of rows with a value: 1 if ``column`` is not missing, else 0."""

    words = "number of rows with {0.column}"
    column: str


@dataclass(frozen=True)
class Total(Measure):
    """The sum of a column: ``k - centre`` if the column is not missing, else 0."""

    words = "sum of {0.column}{0.centre_words} in steps of {0.grid.step:g}"
    column: str
    grid: Grid
    centre: int = 0

    @property
    def centre_words(self) -> str:
        return f" around {self.centre * self.grid.step:g}" if self.centre else ""

    @property
    def span(self) -> tuple[int, int]:
        """The smallest and the largest integer of a row; 0 is between them, as values may be missing."""
        return min(self.grid.low - self.centre, 0), max(self.grid.high - self.centre, 0)


@dataclass(frozen=True)
class Squares(Measure):
    """The sum of squares: ``(k - centre)^2 / 2^shift``, rounded to an integer; 0 for a missing value."""

    words = "sum of squares of {0.column} in steps of {0.step:g}"
    column: str
    grid: Grid
    centre: int

    def __post_init__(self) -> None:
        if self.root > _LARGEST_ROOT:
            raise InvalidInput(
                f"a sum of squares of column {self.column!r} allows at most {2 * _LARGEST_ROOT} steps "
                f"between its bounds; got {self.grid.high - self.grid.low}. Declare a larger step."
            )

    @property
    def root(self) -> int:
        """The largest |k - centre|."""
        return max(abs(self.grid.low - self.centre), abs(self.grid.high - self.centre))

    @property
    def shift(self) -> int:
        """The number of bits rounded away from the squares."""
        return max(0, (self.root**2).bit_length() - _SQUARE_BITS)

    @property
    def step(self) -> float:
        """The value of one step of the sum, in squared units of the column."""
        return self.grid.step**2 * float(1 << self.shift)

    @property
    def span(self) -> tuple[int, int]:
        return 0, (self.root**2 + (1 << self.shift >> 1)) >> self.shift


@dataclass(frozen=True)
class Pair(Measure):
    """The sum and the number of a column's values, released together as two noisy integers."""

    # A and B are the sums of k - low and of k - high, so A - B is the number of values times H = high - low.
    # A row moves A and B by at most H together, and its sum and its number by H each. So the pair (A, B) has
    # twice the budget for its sum that two measures have ("Mean Estimation in the Add-Remove Model of
    # Differential Privacy", 2312.06658). If a unit's rows are exchanged within one sum, ``turned`` is better:
    # A + B and A - B move by at most 2 max(|dA|, |dB|) in L1 and (2 dA^2 + 2 dB^2)^(1/2) in L2. Both are at
    # most 2 K H, which the sum alone needs, and the number is free.
    words = "sum and count of {0.total.column} in steps of {0.total.grid.step:g}"
    total: Total
    count: Measure
    turned: bool

    @property
    def span(self) -> tuple[int, int]:
        return 0, self.total.grid.high - self.total.grid.low

    @property
    def bins(self) -> int:
        return 2

    @property
    def parts(self) -> tuple[Measure, ...]:
        grid = self.total.grid
        return tuple(dataclasses.replace(self.total, centre=end) for end in (grid.low, grid.high))

    @property
    def gives(self) -> tuple[Measure, ...]:
        return self.total, self.count

    def mixed(self, a: int, b: int) -> list[int]:
        """Return the integers that are released."""
        return [a + b, a - b] if self.turned else [a, b]

    def form(self, measure: Measure) -> tuple[Fraction, Fraction]:
        """Return the factors of the two released integers in the sum or the count."""
        half, each = Fraction(1, 2), Fraction(1, self.largest)
        number = (Fraction(0), each) if self.turned else (each, -each)
        if measure == self.count:
            return number
        a = (half, half) if self.turned else (Fraction(1), Fraction(0))
        above = self.total.centre - self.total.grid.low
        return a[0] - above * number[0], a[1] - above * number[1]


@dataclass(frozen=True)
class Bins(Measure):
    """The number of rows in each bin: 1 for the bin that contains x."""

    # Bin i contains x between ``edges[i-1]`` and ``edges[i]``. An x that equals ``edges[i]`` is in bin i if
    # ``closed[i]`` is True, else in bin i + 1. Missing values are in no bin.
    words = "number of rows in each bin of {0.column}"
    binned = True
    column: str
    edges: tuple[float, ...]
    closed: tuple[bool, ...]

    @property
    def bins(self) -> int:
        return len(self.edges) + 1


@dataclass(frozen=True)
class Regular(Measure):
    """The number of rows nearest to each of the candidates ``low``, ``low + stride``, ..."""

    # Bin i belongs to candidate i, counted from 0. If two candidates are equally near to k, the larger
    # counts. Missing values are in no bin.
    words = "number of rows nearest to each candidate of {0.column}{0.in_runs}"
    binned = True
    column: str
    grid: Grid
    stride: int
    run: int = 0  # if not 0, each run of this length among the bins has a bin of its own, after all others

    @property
    def leaves(self) -> int:
        """The number of candidates."""
        return (self.grid.high - self.grid.low) // self.stride + 1

    @property
    def bins(self) -> int:
        return self.leaves + (-(-self.leaves // self.run) if self.run else 0)

    @property
    def in_runs(self) -> str:
        return f", and in each run of {self.run} candidates" if self.run else ""

    @property
    def candidates(self) -> tuple[float, ...]:
        grid = self.grid
        cells = range(grid.low, grid.high + 1, self.stride)
        return tuple(min(max(float(in_units(grid, cell)), grid.lower), grid.upper) for cell in cells)

    def bins_at(self, place: int) -> tuple[int, ...]:
        return (place, self.leaves + place // self.run) if self.run else (place,)

    def ends(self, policy: Policy) -> tuple[list[float], list[float]]:
        """Return the smallest and the largest values that the bins of the candidates can contain."""
        grid = self.grid
        lows = [grid.low + self.stride * place - self.stride // 2 for place in range(1, self.leaves)]
        column = policy.columns[self.column]
        on_grid = column.kind == "integer" and column.grid_step == 1.0
        cut = [(float(low - 1), float(low)) if on_grid else ((low - 0.5) * grid.step,) * 2 for low in lows]
        return [grid.lower, *(low for _, low in cut)], [*(high for high, _ in cut), grid.upper]


@dataclass(frozen=True)
class Lifetimes(Measure):
    """The number of rows per time bin without the event, then with it, then beyond the last edge."""

    # Bin i is (edges[i], edges[i+1]]; a time of 0 is in the first one. A row is beyond if its time is above
    # the last edge, or equal to it without an event: nobody knows how long after the edge such a time ends.
    words = "number of rows in each bin of {0.time}, with and without {0.event}"
    binned = True
    time: str
    event: str
    edges: tuple[float, ...]

    @property
    def bins(self) -> int:
        return 2 * len(self.edges) - 1

    @property
    def times(self) -> Bins:
        inner = self.edges[1:-1]
        return Bins(self.time, inner, (True,) * len(inner))


@dataclass(frozen=True)
class Bound:
    """The sensitivity of a vector of sums, one per group (or bin), to one unit."""

    # As in events, the L1 norm of one unit's contribution is at most ``whole``. A contribution changes at
    # most ``places`` sums, each by at most ``each``. Neighbours differ by at most one contribution under
    # add-remove and zero-out, and by at most two under replace-one.
    #
    # ``factor`` multiplies the integers before noise is added. It is 2 under replace-one if the largest
    # difference between neighbours is odd, because ``whole``, half of the difference, must be an integer.
    # ``public`` means that the sum is a public number, which no unit changes.
    whole: int
    each: int
    places: int
    factor: int = 1
    public: bool = False

    @property
    def squared(self) -> int:
        """The squared L2 norm of one unit's contribution: the smaller of two upper bounds."""
        return min(self.whole**2, self.places * self.each**2)


def bound(measure: Measure, policy: Policy, *, groups: bool, filtered: bool) -> Bound:
    """Return the sensitivity of a measure under a policy."""
    # Under replace-one, neighbours' values of a single sum differ by at most K times the width of a row's
    # span, which may be less than twice the largest contribution. If all integers are doubled and shifted by
    # a public constant, that difference is exactly twice the contribution of a unit.
    rows = policy.rows_per_unit
    low, high = measure.span
    each = measure.largest
    if each * policy.largest_table > _LARGEST_SUM:
        raise PrivacyRefusal(
            f"the sum over {policy.largest_table} rows of up to {each} steps each can exceed 64 bits. "
            "Declare a smaller largest_table, or a larger step."
        )
    if isinstance(measure, Pair):
        return Bound(rows * each, each=rows * each, places=2 * rows if groups else 2)
    several = groups or measure.binned
    if isinstance(measure, Units):
        whole = most_groups(policy) if groups else 1
        tight = Bound(whole, each=1, places=whole)
        width = 1
    else:
        bins = len(measure.bins_at(0))  # in which one row counts
        tight = Bound(bins * rows * each, each=rows * each, places=bins * rows if several else 1)
        width = rows * (high - low)
    if policy.relation is not Adjacency.REPLACE_ONE or several:
        return tight
    # the public number of units, or of rows if each row is a unit
    counts_units = isinstance(measure, Units) or (isinstance(measure, Rows) and policy.unit_column is None)
    if counts_units and not filtered and policy.public_records is not None:
        return Bound(1, 1, 1, public=True)
    if width % 2 == 0:
        return Bound(width // 2, width // 2, 1)
    return Bound(width, width, 1, factor=2)


def most_groups(policy: Policy) -> int:
    """Return the largest number of groups of an answer that one unit can be in."""
    return policy.rows_per_unit if policy.groups_per_unit is None else policy.groups_per_unit


def in_units(grid: Grid, integer: int | Fraction) -> Fraction:
    return Fraction(integer) * Fraction(grid.step)


def measures_of(item: Aggregate, policy: Policy, complete: Collection[str] = ()) -> list[Measure]:
    """Return the measures of an aggregate; ``complete`` is the set of columns without a missing cell."""
    match item:
        case Count(None):
            return [Rows()]
        case Count(str(column)):
            return [count_of(column, complete)]
        case Sum(column):
            return [centred(column, policy, centre=0)]
        case Mean(column):
            return [centred(column, policy), count_of(column, complete)]
        case Variance(column) | StandardDeviation(column):
            total = centred(column, policy)
            return [Squares(column, total.grid, total.centre), total, count_of(column, complete)]
        case Histogram(column, edges):
            return [Bins(column, tuple(map(float, edges)), (False,) * (len(edges) - 1) + (True,))]
        case Quantile():
            return [bins_of(item, policy)]
        case Quantiles(column) | Cdf(column):
            return [_tree(column, policy)]
        case Survival() | CumulativeHazard() | RestrictedMean():
            return [_lifetimes(item, policy)]
    return [count_of_units(policy)]


def pairs_of(
    query: Query, policy: Policy, complete: Collection[str], counted: Collection[Measure]
) -> dict[Measure, Pair]:
    """Return the pairs to measure, keyed by the sums and counts in them.

    ``counted`` are the counts that are public or measured anyway.
    """
    # A count that several averages need is measured once for all of them.
    sums: dict[Measure, set[Total]] = {}
    for item in query.aggregates:
        if isinstance(item, Mean | Variance | StandardDeviation):
            count = measures_of(item, policy, complete)[-1]
            sums.setdefault(count, set()).add(centred(item.column, policy))
    turned = policy.relation is Adjacency.REPLACE_ONE and not query.by
    pairs = [
        Pair(next(iter(totals)), count, turned)
        for count, totals in sums.items()
        if len(totals) == 1 and count not in counted
    ]
    return {measure: pair for pair in pairs for measure in pair.gives}


def count_of(column: str, complete: Collection[str]) -> Measure:
    """Return the measure that counts the values of a column; if none is missing, that is all rows."""
    return Rows() if column in complete else Present(column)


def count_of_units(policy: Policy) -> Measure:
    """Return the measure that counts units; if each row is a unit, that is the number of rows."""
    return Rows() if policy.unit_column is None else Units()


def _tree(column: str, policy: Policy) -> Regular:
    """Return the counts of a whole distribution: those of the candidates, and of runs of them."""
    # Below 48 candidates, runs save less noise of sums than they add to each count.
    leaves = bins_of(Quantile(column, 0.5), policy)
    assert isinstance(leaves, Regular), "without candidates"
    run = math.isqrt(leaves.leaves - 1) + 1 if leaves.leaves >= _RUNS_FROM else 0
    return dataclasses.replace(leaves, run=run)


def _lifetimes(item: Survival | CumulativeHazard | RestrictedMean, policy: Policy) -> Lifetimes:
    edges: Sequence[float] | None = item.edges
    if edges is None:
        column = policy.columns[item.time]
        top = Grid.of(item.time, column).upper
        inner = column.edges or [top * place / _TIMES for place in range(1, _TIMES)]
        edges = (0.0, *inner, top)
    return Lifetimes(item.time, item.event, tuple(map(float, edges)))


def centred(column: str, policy: Policy, *, centre: int | None = None) -> Total:
    """Return the measure that sums the differences between a column and ``centre``."""
    # The default centre is the middle of the bounds, which minimises the sensitivity to one value.
    grid = Grid.of(column, policy.columns[column])
    return Total(column, grid, (grid.low + grid.high) // 2 if centre is None else centre)


def bins_of(item: Quantile, policy: Policy) -> Bins | Regular:
    """Return bins for the candidates of a quantile; the default is a regular grid within the bounds."""
    if item.candidates is not None:
        if len(item.candidates) > _MOST_CANDIDATES + 1:
            raise InvalidInput(
                f"candidates must contain at most {_MOST_CANDIDATES + 1} values; got {len(item.candidates)}."
            )
        candidates = map(float, item.candidates)
        edges = tuple(low / 2 + high / 2 for low, high in itertools.pairwise(candidates))
        return Bins(item.column, edges, (False,) * len(edges))
    grid = Grid.of(item.column, policy.columns[item.column])
    return Regular(item.column, grid, -(-(grid.high - grid.low) // _MOST_CANDIDATES))


# --- the noise for a share of the budget -------------------------------------------------------------------
#
# All arithmetic is exact, and rounds towards more noise. Scales are rounded up to 50 bits. So events hold
# them exactly as doubles, and they are small fractions for the exact samplers. If a quotient needs fewer
# bits, as 1 / 0.1 = 10, nothing is rounded and the price is exactly the one requested.

_BITS = 50


def exact(name: str, value: object, *, high: float = 1e6, low: float = 1e-9) -> Fraction:
    """Return a parameter as the exact decimal that the user wrote: 0.1 is 1/10."""
    number = check_real(name, value, low=0.0, high=high, open_low=True)
    if number < low:
        raise InvalidInput(
            f"{name} must be at least {low:g}; got {value!r}. Below that, an answer is only noise."
        )
    return Fraction(repr(number))


def _exponent(value: Fraction) -> int:
    """Return e with 2^(_BITS - 1) <= value / 2^e < 2^(_BITS + 1)."""
    return value.numerator.bit_length() - value.denominator.bit_length() - _BITS


def _power(e: int) -> Fraction:
    return Fraction(2) ** e


def rounded_down(value: Fraction) -> Fraction:
    """Return the largest number of 50 bits that is at most ``value``."""
    unit = _power(_exponent(value))
    return math.floor(value / unit) * unit


def root_down(value: Fraction) -> Fraction:
    """Return a number of 50 bits at or just below the square root."""
    half = _exponent(value) // 2 - _BITS // 2
    return math.isqrt(math.floor(value / _power(2 * half))) * _power(half)


def laplace_scale(sensitivity: int, epsilon: Fraction) -> Fraction:
    """Return the smallest scale of 50 bits with sensitivity / scale <= epsilon."""
    value = sensitivity / epsilon
    unit = _power(_exponent(value))
    return math.ceil(value / unit) * unit


def gaussian_sigma(squared: int, rho: Fraction) -> Fraction:
    """Return the smallest sigma of 50 bits with squared / (2 sigma^2) <= rho."""
    # ``squared`` is the squared L2 sensitivity.
    value = Fraction(squared) / (2 * rho)
    half = _exponent(value) // 2 - _BITS // 2
    scaled = value / _power(2 * half)
    root = math.isqrt(math.ceil(scaled))
    while root * root < scaled:
        root += 1
    return root * _power(half)


def rho_within(epsilon: Fraction, delta: float) -> Fraction:
    """Return the largest rho (of 50 bits) for which rho-zCDP is (epsilon, delta)-DP at the best order."""
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    target = float(epsilon) * (1.0 - 1e-15)
    low, high = 0.0, float(epsilon)  # rho = epsilon is more than any delta < 1/2 allows
    while zcdp_curve(high).epsilon(delta) <= target:
        low, high = high, 2.0 * high
    low, _ = halved(lambda rho: zcdp_curve(rho).epsilon(delta) <= target, low, high, 60)
    return rounded_down(Fraction(low))


_ROUNDING = 1e-9  # relative margin for the rounding of probabilities computed here
_SUMMED = 64  # up to this sigma the tail of a discrete Gaussian is summed term by term
_RISK = 0.05


# --- the width of the noise ------------------------------------------------------------------------------


@lru_cache(maxsize=1024)  # an answer calls it once per group
def interval(law: str, scale: Fraction, level: float) -> int:
    """Return the smallest k with P(|noise| <= k) >= ``level`` for integer ``laplace`` or ``gaussian`` noise.

    **Guarantee**

    * k is never too small. As a margin for rounding, 1 - ``level`` is multiplied by 1 - 1e-9. If sigma is
      above 64, the tail has a closed-form bound, and k may be one more than needed.
    """
    return _smallest(law, scale, (1.0 - level) / 2) - 1


def noise_variance(law: str, scale: Fraction) -> float:
    """Return the variance of integer ``laplace`` or ``gaussian`` noise, at most rounded up."""
    # The sum of k^2 r^|k| (1 - r) / (1 + r) with r = exp(-1 / scale) is 2 r / (1 - r)^2.
    if law == "gaussian":
        return float(scale) ** 2
    return 1.0 / (math.cosh(1.0 / max(float(scale), 1e-2)) - 1.0)


# Thresholds are for groups whose keys are not public: a group may exist because of one person. Let D' have
# one unit more than D, which counts in at most G groups, and at most ``each`` times in each. Groups that
# exist only because of this unit have a true count of at most ``each``. One such group reaches the threshold
# t with probability at most p, and any of them does with probability at most delta:
#
#     p is P[each + Z >= t], and delta is 1 - (1 - p)^G,                                        (1)
#
# where the noises Z of the groups are independent. So the release on D' is a mixture of two cases. With
# probability at least 1 - delta, none of these groups is shown. Then groups and counts are those of a
# mechanism that sees only the keys of D, and its noise hides the unit as it does if keys are public. The
# event of the noise composed with ``ApproximateDP(0, delta)`` covers a mixture with weights 1 - delta and
# delta. Under replace-one both data sets have such groups, each because of a different unit, and the same
# holds for both.
def threshold(law: str, scale: Fraction, *, each: int, groups: int, delta: float) -> int:
    """Return the smallest threshold t for which (1) is at most ``delta``."""
    # If sigma is above 64, the tail has a closed-form bound, and t may be one more than needed.
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    return each + _smallest(law, scale, -math.expm1(math.log1p(-delta) / groups))


def _smallest(law: str, scale: Fraction, most: float) -> int:
    """Return the smallest k >= 1 with P[noise >= k] at most ``most``."""
    limit = math.log(most * (1.0 - _ROUNDING))
    low, high = 0, 1
    while _log_tail(law, high, scale) > limit:
        low, high = high, 2 * high
    return 1 + last_whole(lambda k: _log_tail(law, k, scale) > limit, low, high)


def _log_tail(law: str, k: int, scale: Fraction) -> float:
    """Return log P[noise >= k] for k >= 1."""
    # For Laplace noise the probability is r^k / (1 + r), with r = exp(-1 / scale). Scales below 1/1000 count
    # as 1/1000, as noise of such scales is almost certainly 0.
    scale = max(scale, Fraction(1, 1000))
    if law == "laplace":
        return -float(k / scale) - math.log1p(math.exp(-float(1 / scale)))
    if scale > _SUMMED:
        return _log_normal_tail(k, scale)
    s = float(scale)
    reach = range(1, math.ceil(12 * s) + 1)  # terms beyond 12 sigma are below 1e-30 of the first
    rest = 1.0 + math.fsum(math.exp(-j * (2 * k + j) / (2.0 * s * s)) for j in reach)
    whole = 1.0 + 2.0 * math.fsum(math.exp(-((j / s) ** 2) / 2.0) for j in reach)
    return -((k / s) ** 2) / 2.0 + math.log(rest / whole)


def _log_normal_tail(k: int, sigma: Fraction) -> float:
    """Return log P[N(0, sigma^2) > k - 1/2], which is at least log P[noise >= k] up to exp(-19 sigma^2)."""
    # Beyond sigma, f(j) = exp(-j^2 / 2 sigma^2) is convex. So f(j) is at most its mean over [j - 1/2, j +
    # 1/2], and the tail is at most the integral from k - 1/2. Within sigma, f is concave, and the sum over
    # the middle is at least its integral. The sum of all f(j) is the integral times 1 + 2 exp(-2 pi^2
    # sigma^2) + ... (Poisson).
    z = float((k - Fraction(1, 2)) / sigma) / math.sqrt(2.0)
    tail = math.erfc(z)
    return math.log(tail / 2.0) if tail > 1e-290 else -z * z - math.log(2.0)  # Chernoff: erfc(z) <= exp(-z^2)


def laplace_sum_reach(scales: Sequence[float], risk: float) -> float:
    """Return t with P(|noise| > t) = ``risk``, for a sum of independent continuous Laplace noises."""
    # The characteristic function is a product of 1 / (1 + (b_i x)^2). By partial fractions,
    #
    #     P(|noise| > t) = sum over i of exp(-t / b_i) b_i^(2 (m - 1)) / product over j != i (b_i^2 - b_j^2).
    #
    # Scales that are too close to each other for this formula are increased, which increases t.
    apart: list[float] = []
    for scale in sorted(scales):
        apart.append(max(scale, apart[-1] * 1.01) if apart else scale)
    weights = [
        math.prod(b * b / (b * b - c * c) for place, c in enumerate(apart) if place != i)
        for i, b in enumerate(apart)
    ]

    def beyond(t: float) -> float:
        return math.fsum(w * math.exp(-t / b) for w, b in zip(weights, apart, strict=True))

    most = sum(apart) * (math.log(len(apart)) - math.log(risk))
    return halved(lambda t: beyond(t) > risk, 0.0, most, 44)[1]


def normal_sum_reach(scales: Sequence[float], risk: float) -> float:
    """Return t with P(|noise| > t) = ``risk``, for a sum of independent normal noises."""
    return math.hypot(*scales) * NormalDist().inv_cdf(1.0 - risk / 2)


# --- quantiles --------------------------------------------------------------------------------------------
#
# Quantiles use the exponential mechanism. A value counts as the candidate nearest to it. If instead a value
# could lie between two candidates, no candidate would be the median of a column of equal values, and all
# candidates would have the same loss. For a candidate c let L, E and R be the numbers of values below it,
# equal to it and above it, and n = L + E + R. With q = a / d the loss of c is d times the distance of the
# rank q n from the ranks L to L + E,
#
#     max(0,  (d - a) L - a (R + E),  a R - (d - a) (L + E)).                                              (2)
#
# One value changes each of the terms, and so the loss, by at most max(d - a, a) if it is added or removed,
# and by d if it is replaced. Values equal to a candidate count on neither side. So a candidate whose equal
# values include the rank q n has the loss 0, however many they are.
#
# The largest value belongs to one person. So the maximum aims at rank t from the top, where t is the error of
# the rank that noise exceeds in at most 5 % of cases. Its loss is the distance of t from the ranks R to R +
# E, counted from the top. The minimum does the same from the bottom.
#
# A candidate is drawn with probability proportional to exp(-epsilon loss / (2 Delta)) (McSherry & Talwar
# 2007). The draw is exact: a uniform candidate is kept with probability exp(-epsilon loss / (2 Delta)), which
# only comparisons of integers decide.


@dataclass(frozen=True)
class Choice:
    """A quantile's candidates and losses."""

    values: tuple[float, ...]  # the candidates, in increasing order
    # below, above: d - a and a, the weights of the values below and above a candidate in its signed loss
    below: int
    above: int
    shift: int  # the number subtracted from the signed loss; 0 except for the maximum and the minimum
    sensitivity: int  # Delta, the sensitivity of all groups' losses to one unit, under the policy's adjacency
    epsilon: Fraction  # the cost of the choice in all groups together

    def losses(self, counts: Sequence[int]) -> list[int]:
        """Return the loss of each candidate, given the number of values that count as that candidate."""
        if len(counts) != len(self.values):
            raise InvalidInput(
                f"counts must contain one count per candidate ({len(self.values)}); got {len(counts)}."
            )
        whole, below, losses = sum(counts), 0, []
        for equal in counts:
            above = whole - below - equal
            least = self.below * below - self.above * (above + equal) - self.shift
            most = self.below * (below + equal) - self.above * above - self.shift
            losses.append(max(0, least, -most))
            below += equal
        return losses

    @property
    def rate(self) -> Fraction:
        """The factor ``rate`` in a candidate's weight, exp(-rate loss)."""
        return self.epsilon / (2 * self.sensitivity)

    @property
    def rank_error(self) -> int:
        """The largest error of the answer's rank, in rows, in 95 % of all answers."""
        # For m candidates, P[loss >= smallest loss + x] <= m exp(-epsilon x / (2 Delta)). In general the loss
        # is d times the error of the rank, and the smallest loss is 0. For the maximum the error is R. If
        # there are more than t values, R - t is at most the loss, and the smallest loss is 0. With fewer, R <
        # t.
        excess = _reach(self.sensitivity, self.epsilon, len(self.values)) - 1
        return math.ceil(excess / (self.below + self.above)) + abs(self.shift)


def _reach(sensitivity: int, epsilon: Fraction, candidates: int) -> int:
    """Return the smallest x with m exp(-epsilon x / (2 Delta)) <= 0.05, for m candidates."""
    return math.ceil(2 * sensitivity / float(epsilon) * math.log(candidates / _RISK))


def choice_of(item: Quantile, policy: Policy, epsilon: Fraction, *, groups: bool) -> Choice:
    values = _candidates(item, bins_of(item, policy))
    q = Fraction(repr(item.q))
    extreme = q in (0, 1)
    below, above = (int(1 - q), int(q)) if extreme else (q.denominator - q.numerator, q.numerator)
    one = policy.rows_per_unit * max(below, above)
    exchanged = 2 * one if groups else policy.rows_per_unit * (below + above)
    sensitivity = exchanged if policy.relation is Adjacency.REPLACE_ONE else one
    shift = _reach(sensitivity, epsilon, len(values)) if extreme else 0
    return Choice(values, below, above, -shift if q == 1 else shift, sensitivity, epsilon)


def _candidates(item: Quantile, measure: Bins | Regular) -> tuple[float, ...]:
    if isinstance(measure, Bins):
        return tuple(map(float, item.candidates or ()))
    return measure.candidates
