"""Queries as frozen data, and the check that a query fits the policy.

A :class:`Query` consists of aggregates over the rows that a predicate keeps, for every group that some
columns make. It has no joins, no arithmetic and no functions. Two questions are the same if their canonical
forms in JSON are equal. The ledger charges them once.

Columns must exist, types must match, and no person may be named. The check reads only public facts, so a
refusal reveals nothing about the data and costs nothing.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.columns import Column
from tacit.columns.moments import as_moment
from tacit.errors import InvalidInput, PrivacyRefusal, check_real
from tacit.ledger.policy import Policy
from tacit.queries.predicates import (
    Compare,
    In,
    IsNull,
    Predicate,
    Value,
    as_predicate,
    canonical,
    check_fields,
    column_name,
    leaves_of,
    plain_value,
    put,
    sequence_of,
)


class Aggregate:
    """A value computed from the rows of a group; the base class of aggregates.

    >>> isinstance(Count(), Aggregate)
    True
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of rows in which ``column`` is not missing.

    >>> Count()
    Count(column=None)
    """

    column: str | None = None


@dataclass(frozen=True)
class CountUnits(Aggregate):
    """The number of different units (persons, say) that have a row; SQL's ``count(DISTINCT unit)``.

    >>> CountUnits()
    CountUnits()
    """


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column's values, clipped to the policy's bounds; missing values are left out.

    >>> Sum("age")
    Sum(column='age')
    """

    column: str


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of a column, clipped as in :class:`Sum`; it is measured as a centred sum and a count.

    >>> Mean("age")
    Mean(column='age')
    """

    column: str


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column, clipped as in :class:`Sum`.

    It is measured as a count, a centred sum and a centred sum of squares. If ``sample``, the divisor is
    n - 1, as in SQL's VARIANCE, else n.

    >>> Variance("age")
    Variance(column='age', sample=True)
    """

    column: str
    sample: bool = True


@dataclass(frozen=True)
class StandardDeviation(Aggregate):
    """The square root of :class:`Variance`.

    >>> StandardDeviation("age")
    StandardDeviation(column='age', sample=True)
    """

    column: str
    sample: bool = True


@dataclass(frozen=True)
class Quantile(Aggregate):
    """The ``q``-quantile of a column, chosen by the exponential mechanism among ``candidates``.

    The candidates are public: those given here, or a regular grid within the policy's bounds.

    ``q`` 1/2 is the median, 1 the maximum and 0 the minimum. For the maximum and the minimum, the mechanism
    aims at a rank a few rows inside, as the very largest value belongs to one person. That rank is public,
    and the noise can resolve it.

    >>> Quantile("age", 0.5, candidates=(0, 20, 40, 60, 80))
    Quantile(column='age', q=0.5, candidates=(0, 20, 40, 60, 80))
    """

    column: str
    q: float
    candidates: tuple[int | float, ...] | None = None


@dataclass(frozen=True)
class Histogram(Aggregate):
    """The number of rows in each bin ``[edges[i], edges[i+1])``; the last bin is closed, as in numpy.

    >>> Histogram("age", (0, 18, 65, 120))
    Histogram(column='age', edges=(0, 18, 65, 120))
    """

    column: str
    edges: tuple[int | float, ...]


AGGREGATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (Count, CountUnits, Sum, Mean, Variance, StandardDeviation, Quantile, Histogram)
    }
)
"""All aggregates, by name."""


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False; got {value!r}. True divides by n - 1, False by n.")
    return value


def _increasing(name: str, values: object) -> tuple[Value, ...]:
    least = 2 if name == "edges" else 1
    for value in sequence_of(name, values):
        check_real(name, value)
    numbers = tuple(plain_value(name, value) for value in sequence_of(name, values))
    if len(numbers) < least or any(float(a) >= float(b) for a, b in itertools.pairwise(numbers)):
        raise InvalidInput(f"{name} must be {least} or more numbers, strictly increasing; got {values!r}.")
    return numbers


_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "column": column_name,
    "sample": _boolean,
    "q": lambda name, q: check_real(name, q, low=0.0, high=1.0),
    "candidates": _increasing,
    "edges": _increasing,
}


@dataclass(frozen=True)
class Query:
    """A question: ``aggregates`` of the rows for which ``where`` is true, per group of the columns ``by``.

    Attributes:
        aggregates: one or more; they share the query's privacy parameters.
        where: the condition on the rows that count; None for all rows.
        by: the columns whose values make the groups; empty for one group of all rows.
        table: the name of the table in the question. The canonical form omits it, as the data set decides
            which table is meant.
        names: the names of the aggregates in the answer; if empty, made of their kinds and columns.

    Raises:
        InvalidInput: if a field is not a predicate, an aggregate or a name, or the predicate is too large.

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
        put(self, "aggregates", sequence_of("aggregates", self.aggregates))
        if not self.aggregates:
            raise InvalidInput("a query needs at least one aggregate; got none.")
        for item in self.aggregates:
            if not isinstance(item, Aggregate):
                raise InvalidInput(f"an aggregate must be one of {', '.join(AGGREGATES)}; got {item!r}.")
        if self.where is not None:
            leaves_of(as_predicate("where", self.where))
        for field in ("by", "names"):
            names = sequence_of(field, getattr(self, field))
            put(self, field, tuple(column_name(field, name) for name in names))
        if len(set(self.by)) < len(self.by):
            raise InvalidInput(f"by must not name a column twice; got {self.by!r}.")
        if self.names and len(self.names) != len(self.aggregates):
            raise InvalidInput(
                f"names must be one per aggregate ({len(self.aggregates)}); got {self.names!r}."
            )
        columns = (*self.by, *self.output_names)
        if len(set(columns)) < len(columns):
            raise InvalidInput(f"the columns of the answer must have different names; got {columns!r}.")

    @property
    def output_names(self) -> tuple[str, ...]:
        """The aggregates' names in the answer; if default names repeat, they get numbers."""
        names = tuple(map(_default_name, self.aggregates))
        counts = [names[:place].count(name) for place, name in enumerate(names)]
        numbered = (
            f"{name}_{count + 1}" if count else name for name, count in zip(names, counts, strict=True)
        )
        return self.names or tuple(numbered)

    def leaves(self) -> list[Compare | IsNull | In]:
        """Return the comparisons in the predicate."""
        return leaves_of(self.where)


def _default_name(item: Aggregate) -> str:
    kind = type(item).__name__.lower()
    match item:
        case CountUnits():
            kind = "units"
        case Quantile(_, q):
            kind = {0.5: "median", 1.0: "max", 0.0: "min"}.get(q, f"quantile_{q:g}")
        case StandardDeviation():
            kind = "stddev"
    column = column_of(item)
    return kind if column is None else f"{kind}_{column}"


def column_of(item: Aggregate) -> str | None:
    """Return the column of an aggregate, if it has one."""
    column: str | None = getattr(item, "column", None)
    return column


def query_to_json(query: Query) -> str:
    """Return the canonical form of a question: a text that is equal for equal questions.

    The order, nesting and repetition of the parts of And and Or, a double Not, ``In`` with one value, and
    65.0 instead of 65 make no difference. The form does not contain the names of the table and of the
    outputs.

    >>> query_to_json(Query((Sum("age"),)))
    '{"aggregates":[{"aggregate":"Sum","column":"age"}],"by":[],"where":null}'
    >>> from tacit.queries import Not
    >>> one, other = Compare("age", "=", 65), Not(Not(In("age", (65.0,))))
    >>> query_to_json(Query((Sum("age"),), where=one)) == query_to_json(Query((Sum("age"),), where=other))
    True
    """
    data = {
        "aggregates": [{"aggregate": type(item).__name__} | vars(item) for item in query.aggregates],
        "where": None if query.where is None else canonical(query.where),
        "by": query.by,
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


# --- the policy ------------------------------------------------------------------------------------------

_A_NUMBER = "a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)
_COMPARED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "number": _A_NUMBER,
    "integer": _A_NUMBER,
    "category": ("a text", lambda value: isinstance(value, str)),
    "boolean": ("True or False", lambda value: isinstance(value, bool)),
    "date": ("a date as a text, such as '2020-01-31'", lambda value: _is_moment("date", value)),
    "datetime": (
        "a datetime as a text, such as '2020-01-31 14:05:00'",
        lambda value: _is_moment("datetime", value),
    ),
    "text": ("nothing, as its values identify persons", lambda _: False),
}
"""For each kind of column, the values that it is compared with: in words, and as a test."""
_NO_GROUPS = {
    "number": "every different number would be a group. Use a histogram, or declare the column as integer or "
    "category.",
    "date": "every day would be a group. Ask for one range of days after the other in WHERE, or declare a "
    "category of months or years.",
    "datetime": "every moment would be a group. Ask for one range after the other in WHERE, or declare a "
    "category of months or hours.",
    "text": "every person could be a group. Declare a column of kind category, with its values.",
}
"""For each kind of column that makes no groups, the reason and the fix."""


def _is_moment(kind: str, value: object) -> bool:
    return isinstance(value, str) and bool(as_moment("value", kind, value))


def check_query(query: Query, policy: Policy) -> None:
    """Refuse a query that the policy does not allow.

    Raises:
        InvalidInput: if a column is unknown, or a value or an aggregate does not fit the column's kind.
        PrivacyRefusal: if the query names the unit column, as its values identify persons.
    """
    for leaf in query.leaves():
        _check_leaf(leaf, _declaration(leaf.column, policy))
    for name in query.by:
        kind = _declaration(name, policy).kind
        if kind in _NO_GROUPS:
            raise InvalidInput(f"column {name!r} is a {kind}, and {_NO_GROUPS[kind]}")
    for item in query.aggregates:
        if (target := column_of(item)) is not None:
            column = _declaration(target, policy)
            if not isinstance(item, Count):
                _check_number(type(item).__name__, target, column)


def _declaration(name: str, policy: Policy) -> Column:
    """Return the policy's declaration of a column that a question names."""
    if name == policy.unit_column:
        raise PrivacyRefusal(
            f"column {name!r} names the {policy.unit} of each row: an answer about it may be about one "
            f"{policy.unit}. Ask only how many different values it has: CountUnits(), or in SQL "
            f"count(DISTINCT {name})."
        )
    if name not in policy.columns:
        near = difflib.get_close_matches(name, policy.columns, n=1)
        columns = ", ".join(sorted(policy.columns)) or "none"
        hint = f"did you mean {near[0]!r}?" if near else f"it declares {columns}."
        raise InvalidInput(f"the policy declares no column {name!r}; {hint}")
    return policy.columns[name]


def _check_leaf(leaf: Compare | IsNull | In, column: Column) -> None:
    words, fits = _COMPARED[column.kind]
    values: tuple[Value, ...] = ()
    match leaf:
        case Compare(name, op, value):
            if not (column.is_number or column.is_moment) and op not in ("=", "!="):
                raise InvalidInput(
                    f"column {name!r} is of kind {column.kind!r}, which has no order: only = and != compare "
                    f"it; got {op!r}."
                )
            values = (value,)
        case In(_, values):
            pass
    for value in values:
        if not fits(value):
            raise InvalidInput(
                f"column {leaf.column!r} is of kind {column.kind!r} and is compared with {words}; got "
                f"{value!r}."
            )


def _check_number(aggregate: str, name: str, column: Column) -> None:
    if column.is_moment:
        raise InvalidInput(
            f"{aggregate} needs a column of numbers; {name!r} is a {column.kind}, which can be counted and "
            "compared. Prepare a column of numbers, such as the days since a public day, with bounds."
        )
    if not column.is_number:
        raise InvalidInput(f"{aggregate} needs a column of numbers; {name!r} is of kind {column.kind!r}.")
