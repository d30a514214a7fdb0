"""What can be asked of a private table, as frozen data.

A :class:`Query` is aggregates over the rows that a predicate keeps, for every group of some columns.
There is nothing else: no joins, no arithmetic, no functions.  The class is the definition.

Predicates have two values.  A comparison with a missing value (NULL or NaN) is false, also with ``!=``;
``Not`` turns true into false and false into true.  That is where they differ from SQL, whose NOT leaves
a missing value missing: ``Not(Compare("age", ">", 65))`` keeps the rows without an age.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, check_in, check_real

__all__ = [
    "AGGREGATES",
    "OPERATORS",
    "PREDICATES",
    "Aggregate",
    "And",
    "Compare",
    "Count",
    "CountUnits",
    "Histogram",
    "In",
    "IsNull",
    "Mean",
    "Not",
    "Or",
    "Predicate",
    "Quantile",
    "Query",
    "StandardDeviation",
    "Sum",
    "Value",
    "Variance",
]

Value = str | int | float | bool
"""What a column is compared with."""

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
"""The comparisons."""

_DEEPEST, _MOST_LEAVES = 64, 10_000  # of a predicate: no recursion limit and no planner is put to the test


class Predicate:
    """Which rows are kept: true or false for each row by itself.  The interface of all predicates."""

    __slots__ = ()


class Aggregate:
    """What is computed from the rows of a group.  The interface of all aggregates."""

    __slots__ = ()


def _set(item: object, field: str, value: object) -> None:
    object.__setattr__(item, field, value)


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{field} must be the name of a column; got {value!r}.")
    return value


def _value(field: str, value: object) -> Value:
    """A finite number, a boolean or a text that every engine can hold; 65.0 is 65 and -0.0 is 0."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if "\x00" in value or any(0xD800 <= ord(letter) < 0xE000 for letter in value):
            raise InvalidInput(f"{field} must be a text without NUL and lone surrogates; got {value!r}.")
        return value
    if isinstance(value, int):
        if abs(value) > 1 << 53:
            raise InvalidInput(f"{field} must be exact as a double: at most 2**53 in size; got {value}.")
        return value
    number = check_real(field, value)
    return int(number) if number.is_integer() and abs(number) <= 1 << 53 else number


def _sequence(field: str, values: object) -> Sequence[Any]:
    """A text is a sequence of letters, which is never meant."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{field} must be a tuple; got {values!r}.")
    return values


def _order(value: Value) -> tuple[str, float, str]:
    """Orders values of every type; True is not 1."""
    if isinstance(value, str):
        return "text", 0.0, value
    return ("boolean" if isinstance(value, bool) else "number"), float(value), ""


def _distinct(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple({_order(value): value for value in values}.values())


@dataclass(frozen=True)
class Compare(Predicate):
    """``column op value``; false where the column is missing.

    >>> Compare("age", ">", 65.0)
    Compare(column='age', op='>', value=65)
    """

    column: str
    op: str
    value: Value

    def __post_init__(self) -> None:
        _name("column", self.column)
        check_in("op", self.op, OPERATORS)
        _set(self, "value", _value("value", self.value))


@dataclass(frozen=True)
class IsNull(Predicate):
    """The column is missing: NULL, or NaN in a column of numbers."""

    column: str

    def __post_init__(self) -> None:
        _name("column", self.column)


@dataclass(frozen=True)
class In(Predicate):
    """The column is one of ``values``; false where it is missing."""

    column: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        _name("column", self.column)
        values = tuple(_value("values", value) for value in _sequence("values", self.values))
        if not values:
            raise InvalidInput("values must be one or more values to look for; got none.")
        if len(values) > _MOST_LEAVES:
            raise InvalidInput(f"values must be at most {_MOST_LEAVES} values; got {len(values)}.")
        _set(self, "values", tuple(sorted(_distinct(values), key=_order)))


def _parts(name: str, parts: object) -> tuple[Predicate, ...]:
    found = tuple(_predicate(part) for part in _sequence(f"the parts of {name}", parts))
    if not found:
        raise InvalidInput(f"{name} takes one or more predicates; got none.")
    return found


def _predicate(part: object) -> Predicate:
    if not isinstance(part, Predicate):
        raise InvalidInput(f"a predicate must be one of {', '.join(PREDICATES)}; got {part!r}.")
    return part


@dataclass(frozen=True)
class And(Predicate):
    """Every one of ``parts``."""

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        _set(self, "parts", _parts("And", self.parts))


@dataclass(frozen=True)
class Or(Predicate):
    """At least one of ``parts``."""

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        _set(self, "parts", _parts("Or", self.parts))


@dataclass(frozen=True)
class Not(Predicate):
    """Not ``part``: true where it is false, for a missing value too."""

    part: Predicate

    def __post_init__(self) -> None:
        _predicate(self.part)


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of rows where ``column`` is not missing."""

    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is not None:
            _name("column", self.column)


@dataclass(frozen=True)
class CountUnits(Aggregate):
    """The number of different units (persons, say) that have a row; SQL's ``count(DISTINCT unit)``."""


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column, each value clipped to the policy's bounds, missing ones left out."""

    column: str

    def __post_init__(self) -> None:
        _name("column", self.column)


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of a column, clipped as in :class:`Sum`; measured as a centred sum and a count."""

    column: str

    def __post_init__(self) -> None:
        _name("column", self.column)


def _check_sample(sample: object) -> None:
    if not isinstance(sample, bool):
        raise InvalidInput(f"sample must be True (divide by n - 1) or False (divide by n); got {sample!r}.")


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column, clipped as in :class:`Sum`; measured as count, centred sum and centred
    sum of squares.  ``sample`` divides by n - 1, as SQL's VARIANCE does; without it by n."""

    column: str
    sample: bool = True

    def __post_init__(self) -> None:
        _name("column", self.column)
        _check_sample(self.sample)


@dataclass(frozen=True)
class StandardDeviation(Aggregate):
    """The square root of :class:`Variance`."""

    column: str
    sample: bool = True

    def __post_init__(self) -> None:
        _name("column", self.column)
        _check_sample(self.sample)


def _increasing(name: str, values: object, *, least: int) -> tuple[Value, ...]:
    for value in _sequence(name, values):
        check_real(name, value)
    numbers = tuple(_value(name, value) for value in _sequence(name, values))
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
        _name("column", self.column)
        _set(self, "q", check_real("q", self.q, low=0.0, high=1.0))
        if self.candidates is not None:
            _set(self, "candidates", _increasing("candidates", self.candidates, least=1))


@dataclass(frozen=True)
class Histogram(Aggregate):
    """How many rows lie in each bin ``[edges[i], edges[i+1])``, the last one closed; as numpy counts them."""

    column: str
    edges: tuple[int | float, ...]

    def __post_init__(self) -> None:
        _name("column", self.column)
        _set(self, "edges", _increasing("edges", self.edges, least=2))


PREDICATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {kind.__name__: kind for kind in (Compare, IsNull, In, And, Or, Not)}
)
"""The predicates by name: all that there are."""

AGGREGATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (Count, CountUnits, Sum, Mean, Variance, StandardDeviation, Quantile, Histogram)
    }
)
"""The aggregates by name: all that there are."""


@dataclass(frozen=True)
class Query:
    """``aggregates`` of the rows where ``where`` is true, for every group of the columns ``by``.

    Attributes:
        aggregates: one or more; they share the privacy that the query is given.
        where: which rows count; None for all.
        by: the columns whose values make the groups; none for one group of all rows.
        table: what the question calls the table.  The data set is what counts; this is no part of the
            canonical form.
        names: what the answer calls the aggregates; none for names made of their kind and column.

    Raises:
        InvalidInput: something is not a predicate, an aggregate or a name, or the predicate is too large.

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
            _check_size(_predicate(self.where))
        _set(self, "by", tuple(_name("by", column) for column in _sequence("by", self.by)))
        if len(set(self.by)) < len(self.by):
            raise InvalidInput(f"by must name every column once; got {self.by!r}.")
        self._check_names()

    def _check_aggregates(self) -> None:
        _set(self, "aggregates", tuple(_sequence("aggregates", self.aggregates)))
        if not self.aggregates:
            raise InvalidInput("a query needs at least one aggregate; got none.")
        for item in self.aggregates:
            if not isinstance(item, Aggregate):
                raise InvalidInput(f"an aggregate must be one of {', '.join(AGGREGATES)}; got {item!r}.")

    def _check_names(self) -> None:
        _set(self, "names", tuple(_name("names", name) for name in _sequence("names", self.names)))
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
            yield from _leaves(self.where)


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
    """The second one of a name becomes name_2."""
    return tuple(
        name if names[:place].count(name) == 0 else f"{name}_{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    )


def _leaves(predicate: Predicate) -> Iterator[Compare | IsNull | In]:
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(part)
        case Not(part):
            yield from _leaves(part)
        case Compare() | IsNull() | In():
            yield predicate


def _check_size(predicate: Predicate) -> None:
    """Walks without recursion: the tree may be deep."""
    level, leaves, depth = [predicate], 0, 0
    while level:
        depth += 1
        below: list[Predicate] = []
        for item in level:
            match item:
                case And(parts) | Or(parts):
                    below.extend(parts)
                case Not(part):
                    below.append(part)
                case _:
                    leaves += 1
        if depth > _DEEPEST or leaves > _MOST_LEAVES:
            raise InvalidInput(
                f"where must be at most {_DEEPEST} levels deep with at most {_MOST_LEAVES} comparisons."
            )
        level = below
