"""The integers that a query sums, and their sensitivity to one unit.

Legend: x is the value of a row, k its integer, s the step of the grid, c the centre. K is the number of a
unit's rows that count, and G the number of an answer's groups in which a unit may count.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from tacit.columns import Column
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency
from tacit.ledger.policy import Policy
from tacit.queries.query import Aggregate, Count, Histogram, Mean, Quantile, StandardDeviation, Sum, Variance

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
_SQUARE_BITS = 20  # bits of a square after rounding: as fine as the default grid


@dataclass(frozen=True)
class Grid:
    """The integers k = floor(clip(x, lower, upper) / step + 1/2) of a column, from ``low`` to ``high``.

    Division and floor are monotone in x, so k stays between ``low`` and ``high`` in every engine that
    computes in doubles.
    """

    lower: float
    upper: float
    step: float

    def __post_init__(self) -> None:
        if max(-self.lower, self.upper) > _LARGEST_BOUND or self.step < _SMALLEST_STEP:
            raise InvalidInput(
                f"bounds [{self.lower!r}, {self.upper!r}] in steps of {self.step!r} cannot be summed or "
                f"squared in doubles: bounds must be at most {_LARGEST_BOUND:g} in size, and steps at least "
                f"{_SMALLEST_STEP:g}. Declare bounds that values can reach, or the column in another unit."
            )
        if max(abs(self.lower), abs(self.upper)) / self.step > _LARGEST_CELL:
            raise InvalidInput(
                f"step {self.step!r} is too small for bounds [{self.lower!r}, {self.upper!r}]: a double "
                "cannot tell neighbouring values apart. Declare a larger step."
            )
        if self.low == self.high:
            raise InvalidInput(
                f"step {self.step!r} is too large for bounds [{self.lower!r}, {self.upper!r}]: both round "
                "to the same multiple of the step. Declare a smaller step."
            )

    @classmethod
    def of(cls, name: str, column: Column) -> Grid:
        """Return the grid that the policy declares for a column of numbers."""
        if column.low is None or column.high is None:
            raise InvalidInput(
                f"column {name!r} has no bounds: one row could change the answer without limit. Declare "
                "lower and upper in the policy of the data set; never take them from the data."
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
    """A description of the sum as a format string; ``{0}`` is the measure."""
    binned: ClassVar[bool] = False
    """Whether a group has one sum for every bin."""

    @property
    def span(self) -> tuple[int, int]:
        """The smallest and the largest integer of a row."""
        return 0, 1

    @property
    def bins(self) -> int:
        return 1

    @property
    def largest(self) -> int:
        low, high = self.span
        return max(-low, high)


@dataclass(frozen=True)
class Rows(Measure):
    """The number of rows: 1 for every row."""

    words = "number of rows"


@dataclass(frozen=True)
class Units(Measure):
    """The number of different units in a group: a sum over units, not over rows."""

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
        """The centre in words; empty if it is 0."""
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
                f"squares of column {self.column!r} allow at most {2 * _LARGEST_ROOT} steps; got "
                f"{self.grid.high - self.grid.low}. Declare a larger step."
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
        """The smallest and the largest integer of a row."""
        return 0, (self.root**2 + (1 << self.shift >> 1)) >> self.shift


@dataclass(frozen=True)
class Bins(Measure):
    """The number of rows in each bin: 1 for the bin that contains x.

    Bin i contains x between ``edges[i-1]`` and ``edges[i]``. An x that equals ``edges[i]`` is in bin i if
    ``closed[i]`` is True, else in bin i + 1. Missing values are in no bin.
    """

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
    """The number of rows nearest to each of the candidates ``low``, ``low + stride``, ``low + 2 stride``, ...

    Bin i belongs to candidate i, counted from 0. If two candidates are equally near to k, the larger counts.
    Missing values are in no bin.
    """

    words = "number of rows nearest to each candidate of {0.column}"
    binned = True
    column: str
    grid: Grid
    stride: int

    @property
    def bins(self) -> int:
        return (self.grid.high - self.grid.low) // self.stride + 1


@dataclass(frozen=True)
class Bound:
    """The sensitivity of a vector of sums, one per group (or bin), to one unit.

    As in events, the L1 norm of one unit's contribution is at most ``whole``. A contribution changes at most
    ``places`` sums, each by at most ``each``. Neighbours differ by at most one contribution under add-remove
    and zero-out, and by at most two under replace-one.

    ``factor`` multiplies the integers before noise is added. It is 2 under replace-one if the largest
    difference between neighbours is odd, because ``whole``, half of the difference, must be an integer.
    ``public`` means that the sum is a public number, which no unit changes.
    """

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
    """Return the sensitivity of a measure under a policy.

    Args:
        measure: the sum.
        policy: the policy of the data set.
        groups: whether the query has ``by`` columns.
        filtered: whether the query has a predicate, so that some rows may not count.

    Under replace-one, neighbours' values of a single sum differ by at most K times the width of a row's span,
    which may be less than twice the largest contribution. If all integers are doubled and shifted by a public
    constant, that difference is exactly twice the contribution of a unit.
    """
    rows = policy.rows_per_unit
    low, high = measure.span
    each = measure.largest
    if each * policy.largest_table > _LARGEST_SUM:
        raise PrivacyRefusal(
            f"{policy.largest_table} rows of up to {each} steps each do not fit into 64 bits. Declare a "
            "smaller largest_table or a larger step for the column in the policy."
        )
    several = groups or measure.binned
    if isinstance(measure, Units):
        whole = most_groups(policy) if groups else 1
        tight = Bound(whole, each=1, places=whole)
        width = 1
    else:
        tight = Bound(rows * each, each=rows * each, places=rows if several else 1)
        width = rows * (high - low)
    if policy.relation is not Adjacency.REPLACE_ONE or several:
        return tight
    if _is_public(measure, policy, filtered):
        return Bound(1, 1, 1, public=True)
    if width % 2 == 0:
        return Bound(width // 2, width // 2, 1)
    return Bound(width, width, 1, factor=2)


def most_groups(policy: Policy) -> int:
    """Return the largest number of groups of an answer that one unit can be in."""
    return policy.rows_per_unit if policy.groups_per_unit is None else policy.groups_per_unit


def _is_public(measure: Measure, policy: Policy, filtered: bool) -> bool:
    """Return whether a measure is the public number of units, or of rows if each row is a unit."""
    counts_units = isinstance(measure, Units) or (isinstance(measure, Rows) and policy.unit_column is None)
    return counts_units and not filtered and policy.public_records is not None


def in_units(grid: Grid, integer: int | Fraction) -> Fraction:
    return Fraction(integer) * Fraction(grid.step)


def measures_of(item: Aggregate, policy: Policy) -> list[Measure]:
    """Return the measures that an aggregate is computed from."""
    match item:
        case Count(None):
            return [Rows()]
        case Count(str(column)):
            return [Present(column)]
        case Sum(column):
            return [centred(column, policy, centre=0)]
        case Mean(column):
            return [centred(column, policy), Present(column)]
        case Variance(column) | StandardDeviation(column):
            total = centred(column, policy)
            return [Squares(column, total.grid, total.centre), total, Present(column)]
        case Histogram(column, edges):
            return [Bins(column, tuple(map(float, edges)), (False,) * (len(edges) - 1) + (True,))]
        case Quantile():
            return [bins_of(item, policy)]
    return [count_of_units(policy)]


def count_of_units(policy: Policy) -> Measure:
    """Return the measure that counts units; if each row is a unit, that is the number of rows."""
    return Rows() if policy.unit_column is None else Units()


def centred(column: str, policy: Policy, *, centre: int | None = None) -> Total:
    """Return the measure that sums the differences between a column and ``centre``.

    The default centre is the middle of the bounds, which minimises the sensitivity to one value.
    """
    grid = Grid.of(column, policy.columns[column])
    return Total(column, grid, (grid.low + grid.high) // 2 if centre is None else centre)


def bins_of(item: Quantile, policy: Policy) -> Bins | Regular:
    """Return bins for the candidates of a quantile; the default is a regular grid within the bounds."""
    if item.candidates is not None:
        if len(item.candidates) > _MOST_CANDIDATES + 1:
            raise InvalidInput(
                f"a quantile chooses among at most {_MOST_CANDIDATES + 1} candidates; got "
                f"{len(item.candidates)}."
            )
        candidates = map(float, item.candidates)
        edges = tuple(low / 2 + high / 2 for low, high in itertools.pairwise(candidates))
        return Bins(item.column, edges, (False,) * len(edges))
    grid = Grid.of(item.column, policy.columns[item.column])
    return Regular(item.column, grid, -(-(grid.high - grid.low) // _MOST_CANDIDATES))
