"""What can a user ask of a private table? A query, as frozen data.

A :class:`Query` is aggregates over the rows that a predicate keeps, for every group of some columns.
There is nothing else: no joins, no arithmetic, no functions.  The class is the definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, check_real
from tacit.queries.fields import Value, column_name, plain_value, put, sequence_of
from tacit.queries.predicates import Compare, In, IsNull, Predicate, as_predicate, check_size, leaves_of


class Aggregate:
    """What is computed from the rows of a group.  The interface of all aggregates.

    >>> isinstance(Count(), Aggregate)
    True
    """

    __slots__ = ()


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of rows where ``column`` is not missing.

    >>> Count()
    Count(column=None)
    """

    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is not None:
            column_name("column", self.column)


@dataclass(frozen=True)
class CountUnits(Aggregate):
    """The number of different units (persons, say) that have a row; SQL's ``count(DISTINCT unit)``.

    >>> CountUnits()
    CountUnits()
    """


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column, each value clipped to the policy's bounds, missing ones left out.

    >>> Sum("age")
    Sum(column='age')
    """

    column: str

    def __post_init__(self) -> None:
        column_name("column", self.column)


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of a column, clipped as in :class:`Sum`; measured as a centred sum and a count.

    >>> Mean("age")
    Mean(column='age')
    """

    column: str

    def __post_init__(self) -> None:
        column_name("column", self.column)


def _check_sample(sample: object) -> None:
    if not isinstance(sample, bool):
        raise InvalidInput(f"sample must be True (divide by n - 1) or False (divide by n); got {sample!r}.")


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column, clipped as in :class:`Sum`; measured as count, centred sum and centred
    sum of squares.  ``sample`` divides by n - 1, as SQL's VARIANCE does; without it by n.

    >>> Variance("age")
    Variance(column='age', sample=True)
    """

    column: str
    sample: bool = True

    def __post_init__(self) -> None:
        column_name("column", self.column)
        _check_sample(self.sample)


@dataclass(frozen=True)
class StandardDeviation(Aggregate):
    """The square root of :class:`Variance`.

    >>> StandardDeviation("age")
    StandardDeviation(column='age', sample=True)
    """

    column: str
    sample: bool = True

    def __post_init__(self) -> None:
        column_name("column", self.column)
        _check_sample(self.sample)


def _increasing(name: str, values: object, *, least: int) -> tuple[Value, ...]:
    for value in sequence_of(name, values):
        check_real(name, value)
    numbers = tuple(plain_value(name, value) for value in sequence_of(name, values))
    rising = all(float(low) < float(high) for low, high in itertools.pairwise(numbers))
    if len(numbers) < least or not rising:
        raise InvalidInput(f"{name} must be {least} or more numbers, strictly increasing; got {values!r}.")
    return numbers


@dataclass(frozen=True)
class Quantile(Aggregate):
    """The ``q``-quantile of a column, chosen by the exponential mechanism among public ``candidates``: those
    given here, or a regular grid within the policy's bounds.

    ``q`` 1/2 is the median.  ``q`` 1 stands for the maximum and 0 for the minimum: the mechanism aims a few
    rows inside, at a public rank that the noise can resolve, since the very largest value is one person's.

    >>> Quantile("age", 0.5, candidates=(0, 20, 40, 60, 80))
    Quantile(column='age', q=0.5, candidates=(0, 20, 40, 60, 80))
    """

    column: str
    q: float
    candidates: tuple[int | float, ...] | None = None

    def __post_init__(self) -> None:
        column_name("column", self.column)
        put(self, "q", check_real("q", self.q, low=0.0, high=1.0))
        if self.candidates is not None:
            put(self, "candidates", _increasing("candidates", self.candidates, least=1))


@dataclass(frozen=True)
class Histogram(Aggregate):
    """How many rows lie in each bin ``[edges[i], edges[i+1])``, the last one closed; as numpy counts them.

    >>> Histogram("age", (0, 18, 65, 120))
    Histogram(column='age', edges=(0, 18, 65, 120))
    """

    column: str
    edges: tuple[int | float, ...]

    def __post_init__(self) -> None:
        column_name("column", self.column)
        put(self, "edges", _increasing("edges", self.edges, least=2))


AGGREGATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (Count, CountUnits, Sum, Mean, Variance, StandardDeviation, Quantile, Histogram)
    }
)
"""All aggregates, by name."""


@dataclass(frozen=True)
class Query:
    """``aggregates`` of the rows where ``where`` is true, for every group of the columns ``by``.

    Attributes:
        aggregates: one or more; they share the privacy that the query is given.
        where: which rows count; None for all.
        by: the columns whose values make the groups; none for one group of all rows.
        table: the name of the table in the question.  The data set is what counts; the canonical form leaves
            the name out.
        names: what the answer calls the aggregates; none for names made of their kind and column.

    Raises:
        InvalidInput: a field is not a predicate, an aggregate or a name, or the predicate is too large.

    >>> question = Query((Count(), Mean("age")), where=Compare("age", ">", 65), by=("ward",))
    >>> question.output_names
    ('count', 'mean_age')
    """

    aggregates: tuple[Aggregate, ...]
    where: Predicate | None = None
    by: tuple[str, ...] = ()
    table: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_aggregates()
        if self.where is not None:
            check_size(as_predicate(self.where))
        put(self, "by", tuple(column_name("by", column) for column in sequence_of("by", self.by)))
        if len(set(self.by)) < len(self.by):
            raise InvalidInput(f"by must name every column once; got {self.by!r}.")
        self._check_names()

    def _check_aggregates(self) -> None:
        put(self, "aggregates", tuple(sequence_of("aggregates", self.aggregates)))
        if not self.aggregates:
            raise InvalidInput("a query needs at least one aggregate; got none.")
        for item in self.aggregates:
            if not isinstance(item, Aggregate):
                raise InvalidInput(f"an aggregate must be one of {', '.join(AGGREGATES)}; got {item!r}.")

    def _check_names(self) -> None:
        put(self, "names", tuple(column_name("names", name) for name in sequence_of("names", self.names)))
        if self.names and len(self.names) != len(self.aggregates):
            raise InvalidInput(
                f"names must be one per aggregate ({len(self.aggregates)}); got {self.names!r}."
            )
        columns = (*self.by, *self.output_names)
        if len(set(columns)) < len(columns):
            raise InvalidInput(f"the columns of the answer must have different names; got {columns!r}.")

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the answer calls each aggregate."""
        return self.names or _numbered(tuple(map(_default_name, self.aggregates)))

    def leaves(self) -> Iterator[Compare | IsNull | In]:
        """The comparisons that the predicate consists of."""
        if self.where is not None:
            yield from leaves_of(self.where)


def _default_name(item: Aggregate) -> str:
    match item:
        case Count(None):
            return "count"
        case CountUnits():
            return "units"
        case Quantile(column, q):
            kind = {0.5: "median", 1.0: "max", 0.0: "min"}.get(q, f"quantile_{q:g}")
            return f"{kind}_{column}"
        case StandardDeviation(column):
            return f"stddev_{column}"
        case Count(column) | Sum(column) | Mean(column) | Variance(column) | Histogram(column):
            return f"{type(item).__name__.lower()}_{column}"
    raise InvalidInput(f"an aggregate must be one of {', '.join(AGGREGATES)}; got {item!r}.")


def _numbered(names: tuple[str, ...]) -> tuple[str, ...]:
    """The second column of a name becomes name_2."""
    return tuple(
        name if names[:place].count(name) == 0 else f"{name}_{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    )
