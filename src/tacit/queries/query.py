"""Queries as frozen data: aggregates, predicates and groups; the check of a query against its policy."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.columns import Column
from tacit.columns.column import as_moment, nearest
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_real
from tacit.ledger.policy import Policy

# A comparison with a missing value is false, even with ``!=``, and ``Not`` exchanges true and false. So
# ``Not(Compare("age", ">", 65))`` keeps the rows without an age, which SQL would drop as unknown.

Value = str | int | float | bool
"""A value that a column is compared with."""


def put(item: object, field: str, value: object) -> None:
    object.__setattr__(item, field, value)


def column_name(field: str, value: object) -> str:
    """Return ``value`` if it can be the name of a column: a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{field} must be the name of a column; got {value!r}.")
    return value


def plain_value(field: str, value: object) -> Value:
    """Return a finite number, boolean or string that engines can store; 65.0 becomes 65, -0.0 becomes 0."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if "\x00" in value or any(0xD800 <= ord(letter) < 0xE000 for letter in value):
            raise InvalidInput(
                f"{field} must be a string of valid Unicode characters, without NUL; got {value!r}."
            )
        return value
    if isinstance(value, int):
        if abs(value) > 1 << 53:
            raise InvalidInput(
                f"{field} must be at most 2**53 in absolute value, because 64-bit floats round larger "
                f"integers; got {value}."
            )
        return value
    number = check_real(field, value)
    return int(number) if number.is_integer() and abs(number) <= 1 << 53 else number


def sequence_of(field: str, values: object) -> tuple[Any, ...]:
    """Return a sequence as a tuple; refuse a string, which is never meant as a sequence of letters."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{field} must be a tuple or list; got {values!r}.")
    return tuple(values)


def check_fields(item: Any, checks: Mapping[str, Callable[[str, Any], object]]) -> None:
    """Check and set each field of a predicate or aggregate, with the check of its name; skip defaults."""
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if value is not field.default:
            put(item, field.name, checks[field.name](field.name, value))


OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
"""The comparisons."""

_MOST_TIMES = (
    200  # bins of a survival curve; with more, the noise of the events adds up to more than they show
)
_DEEPEST, _MOST_LEAVES = 64, 10_000  # limits of a predicate, far from any recursion limit


class Predicate:
    """A condition that is true or false for each row; the base class of predicates."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)


@dataclass(frozen=True)
class Compare(Predicate):
    """A condition that compares a column with a value; false if the column's value is missing.

    ``op`` is one of ``=``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``.

    >>> Compare("age", ">", 65.0)
    Compare(column='age', op='>', value=65)
    """

    column: str
    op: str
    value: Value


@dataclass(frozen=True)
class IsNull(Predicate):
    """A condition that is true if the row has no value in the column: NULL, or NaN in a numeric column.

    >>> IsNull("age")
    IsNull(column='age')
    """

    column: str


@dataclass(frozen=True)
class In(Predicate):
    """A condition that is true if the column has one of ``values``; false if the value is missing.

    >>> In("ward", ("surgery", "medicine"))
    In(column='ward', values=('medicine', 'surgery'))
    """

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class And(Predicate):
    """A condition that is true for a row if all conditions in ``parts`` are true.

    >>> len(And((Compare("age", ">=", 18), Compare("age", "<", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or(Predicate):
    """A condition that is true for a row if at least one of the conditions in ``parts`` is true.

    >>> len(Or((Compare("age", "<", 18), Compare("age", ">=", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Not(Predicate):
    """A condition that is true if the condition ``part`` is false.

    A comparison with a missing value is false, so ``Not`` of it is true, unlike in SQL.

    >>> Not(IsNull("age"))
    Not(part=IsNull(column='age'))
    """

    part: Predicate


PREDICATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {kind.__name__: kind for kind in (Compare, IsNull, In, And, Or, Not)}
)
"""All predicates, by name."""


def as_predicate(field: str, part: object) -> Predicate:
    if not isinstance(part, Predicate):
        raise InvalidInput(f"{field} must be a predicate, one of {', '.join(PREDICATES)}; got {part!r}.")
    return part


def _parts(field: str, parts: object) -> tuple[Predicate, ...]:
    predicates = tuple(as_predicate(field, part) for part in sequence_of(field, parts))
    if not predicates:
        raise InvalidInput(f"{field} must be one or more predicates; got none.")
    return predicates


def _values(field: str, items: object) -> tuple[Value, ...]:
    """Return the distinct values in a canonical order; True and 1 are different values."""
    values = [plain_value(field, value) for value in sequence_of(field, items)]
    if not 0 < len(values) <= _MOST_LEAVES:
        raise InvalidInput(f"{field} must contain 1 to {_MOST_LEAVES} values; got {len(values)}.")
    ordered: dict[tuple[str, float, str], Value] = {}
    for value in values:
        if isinstance(value, str):
            ordered["text", 0.0, value] = value
        else:
            ordered["boolean" if isinstance(value, bool) else "number", float(value), ""] = value
    return tuple(ordered[key] for key in sorted(ordered))


_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "column": column_name,
    "op": lambda name, op: check_in(name, op, OPERATORS),
    "value": plain_value,
    "values": _values,
    "parts": _parts,
    "part": as_predicate,
}


def leaves_of(predicate: Predicate | None) -> list[Compare | IsNull | In]:
    level = [] if predicate is None else [predicate]
    leaves: list[Compare | IsNull | In] = []
    depth = 0
    while level:
        depth += 1
        below: list[Predicate] = []
        for item in level:
            match item:
                case And(parts) | Or(parts):
                    below += parts
                case Not(part):
                    below.append(part)
                case Compare() | IsNull() | In():
                    leaves.append(item)
        if depth > _DEEPEST or len(leaves) > _MOST_LEAVES:
            raise InvalidInput(
                f"the where condition may have at most {_DEEPEST} levels and {_MOST_LEAVES} comparisons. "
                "Simplify it."
            )
        level = below
    return leaves


def canonical(predicate: Predicate) -> dict[str, Any]:
    """Return a form that ignores order, nesting and repetition of the parts of And and Or."""
    name = type(predicate).__name__
    match predicate:
        case Not(part):
            inner = canonical(part)
            twice: dict[str, Any] = inner["part"] if inner["predicate"] == "Not" else {}
            return twice or {"predicate": name, "part": inner}
        case And(parts) | Or(parts):
            inside = map(canonical, parts)
            nested = (part["parts"] if part["predicate"] == name else [part] for part in inside)
            joined = [part for several in nested for part in several]
            different = {json.dumps(part, sort_keys=True): part for part in joined}
            if len(different) == 1:
                return joined[0]
            return {"predicate": name, "parts": [different[text] for text in sorted(different)]}
        case In(column, (value,)):
            return canonical(Compare(column, "=", value))
    return {"predicate": name} | vars(predicate)


class Aggregate:
    """A value computed from the rows of a group; the base class of aggregates."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS_of_query)


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows or, if you give ``column``, of rows that have a value in this column.

    >>> Count()
    Count(column=None)
    """

    column: str | None = None


@dataclass(frozen=True)
class CountUnits(Aggregate):
    """The number of distinct units of privacy, such as patients; ``count(DISTINCT unit)`` in SQL.

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
    """The mean of a column's values, clipped to the policy's bounds; missing values are left out.

    It is computed from two noisy numbers: the count, and the sum of the differences from the centre of the
    bounds.

    >>> Mean("age")
    Mean(column='age')
    """

    column: str


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column's values, clipped to the policy's bounds; missing values are left out.

    It is computed from three noisy numbers: the count, the sum of the differences from the centre of the
    bounds, and the sum of their squares. ``sample=True`` divides by n - 1, as VARIANCE in SQL does;
    ``sample=False`` divides by n.

    >>> Variance("age")
    Variance(column='age', sample=True)
    """

    column: str
    sample: bool = True


@dataclass(frozen=True)
class StandardDeviation(Aggregate):
    """The standard deviation of a column: the square root of :class:`Variance`, with the same arguments.

    >>> StandardDeviation("age")
    StandardDeviation(column='age', sample=True)
    """

    column: str
    sample: bool = True


@dataclass(frozen=True)
class Quantile(Aggregate):
    """A quantile of a column: one of ``candidates``, which the exponential mechanism chooses at random.

    A candidate near the true quantile is more likely to be chosen. Choose the candidates without looking at
    the data. By default they are a regular grid within the policy's bounds.

    ``q`` is 0.5 for the median, 1 for the maximum and 0 for the minimum. An extreme value belongs to one
    person, so for 1 and 0 the mechanism aims a few rows further inside. How many does not depend on the data.

    >>> Quantile("age", 0.5, candidates=(0, 20, 40, 60, 80))
    Quantile(column='age', q=0.5, candidates=(0, 20, 40, 60, 80))
    """

    column: str
    q: float
    candidates: tuple[int | float, ...] | None = None


@dataclass(frozen=True)
class Histogram(Aggregate):
    """The number of rows in each bin ``[edges[i], edges[i+1])``; the last bin includes both its edges.

    >>> Histogram("age", (0, 18, 65, 120))
    Histogram(column='age', edges=(0, 18, 65, 120))
    """

    column: str
    edges: tuple[int | float, ...]


@dataclass(frozen=True)
class Quantiles(Aggregate):
    """Several quantiles of a column, all from one noisy histogram, so that you pay only once.

    The default is a box plot: the median, the quartiles, and whiskers at 5 % and 95 %. The whiskers are not
    the minimum and maximum, because each of these belongs to one person.

    >>> Quantiles("age").qs
    (0.05, 0.25, 0.5, 0.75, 0.95)
    """

    column: str
    qs: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Cdf(Aggregate):
    """The cumulative distribution function: the share of values at or below each of ``points``.

    It is computed from a noisy histogram. Choose the points without looking at the data. By default they are
    the bin edges that the policy declares, or else 20 points at equal distances.

    >>> Cdf("age", (18, 65)).points
    (18, 65)
    """

    column: str
    points: tuple[int | float, ...] | None = None


@dataclass(frozen=True)
class Survival(Aggregate):
    """The survival curve: for each time in ``edges``, the share of rows without an event until then.

    Args:
        time: the column with a time for each row.
        event: the column that is true if the event happened at this time. It is false if the row is censored:
            observed until this time, without an event.
        edges: the times, beginning with 0; choose them without looking at the data. By default they are the
            edges of the bins that the policy declares for ``time``, or else of 20 equal bins. A later time
            counts as censored at the last edge.

    >>> Survival("months", "died", edges=(0, 6, 12, 24))
    Survival(time='months', event='died', edges=(0, 6, 12, 24))
    """

    time: str
    event: str
    edges: tuple[int | float, ...] | None = None


@dataclass(frozen=True)
class CumulativeHazard(Aggregate):
    """The cumulative hazard (the summed risk of the event) at each of the times ``edges``.

    The arguments are those of :class:`Survival`. In the same query, both use the same noisy counts.

    >>> CumulativeHazard("months", "died").edges is None
    True
    """

    time: str
    event: str
    edges: tuple[int | float, ...] | None = None


@dataclass(frozen=True)
class RestrictedMean(Aggregate):
    """The mean time without an event, counted up to the last of ``edges``.

    This is the area under the survival curve. The arguments are those of :class:`Survival`.

    >>> RestrictedMean("months", "died").time
    'months'
    """

    time: str
    event: str
    edges: tuple[int | float, ...] | None = None


AGGREGATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            Count,
            CountUnits,
            Sum,
            Mean,
            Variance,
            StandardDeviation,
            Quantile,
            Histogram,
            Quantiles,
            Cdf,
            Survival,
            CumulativeHazard,
            RestrictedMean,
        )
    }
)
"""All aggregates, by name."""


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True (divide by n - 1) or False (divide by n); got {value!r}.")
    return value


def _increasing(name: str, values: object) -> tuple[Value, ...]:
    least = 2 if name == "edges" else 1
    for value in sequence_of(name, values):
        check_real(name, value)
    numbers = tuple(plain_value(name, value) for value in sequence_of(name, values))
    if len(numbers) < least or any(float(a) >= float(b) for a, b in itertools.pairwise(numbers)):
        raise InvalidInput(
            f"{name} must be {least} or more numbers in strictly increasing order; got {values!r}."
        )
    return numbers


_CHECKS_of_query: Mapping[str, Callable[[str, Any], object]] = {
    "column": column_name,
    "time": column_name,
    "event": column_name,
    "sample": _boolean,
    "q": lambda name, q: check_real(name, q, low=0.0, high=1.0),
    "candidates": _increasing,
    "edges": _increasing,
    "points": _increasing,
    "qs": lambda name, qs: tuple(
        check_real(f"each share in {name}", q, low=0.0, high=1.0) for q in _increasing(name, qs)
    ),
}


@dataclass(frozen=True)
class Query:
    """A query: what to compute, from which rows, and in which groups.

    Attributes:
        aggregates: what to compute in each group, such as ``Count()``; one or more. All together cost the
            query's epsilon (or rho) and delta.
        where: which rows count, such as ``Compare("age", ">", 65)``; None for all rows.
        by: the columns to group by; empty for one group of all rows.
        table: the table's name in SQL, which has no effect on the answer.
        names: the names of the aggregates in the answer. By default they are built from the aggregates, such
            as ``mean_age``.

    Raises:
        InvalidInput: if an attribute has a wrong type, or ``where`` is too large.

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
            raise InvalidInput(f"by contains a column twice: {self.by!r}. Name each column once.")
        if self.names and len(self.names) != len(self.aggregates):
            raise InvalidInput(
                f"names must contain one name per aggregate ({len(self.aggregates)}); got {self.names!r}."
            )
        columns = (*self.by, *self.output_names)
        if len(set(columns)) < len(columns):
            raise InvalidInput(f"the columns of the answer must have different names; got {columns!r}.")

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the aggregates in the answer. Equal names get numbers, such as ``mean_age_2``."""
        names = tuple(map(_default_name, self.aggregates))
        counts = [names[:place].count(name) for place, name in enumerate(names)]
        numbered = (
            f"{name}_{count + 1}" if count else name for name, count in zip(names, counts, strict=True)
        )
        return self.names or tuple(numbered)

    def leaves(self) -> list[Compare | IsNull | In]:
        """Return each :class:`Compare`, :class:`In` and :class:`IsNull` in ``where``, in one list."""
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
        case CumulativeHazard():
            kind = "cumulative_hazard"
        case RestrictedMean():
            kind = "restricted_mean"
    column = column_of(item)
    return kind if column is None else f"{kind}_{column}"


def column_of(item: Aggregate) -> str | None:
    column: str | None = getattr(item, "column", getattr(item, "time", None))
    return column


def query_to_json(query: Query) -> str:
    """Return JSON that is equal for equal queries; it omits the names of the table and of the outputs."""
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
    "category": ("a string", lambda value: isinstance(value, str)),
    "boolean": ("True or False", lambda value: isinstance(value, bool)),
    "date": ("a date as a string, such as '2020-01-31'", lambda value: _is_moment("date", value)),
    "datetime": (
        "a datetime as a string, such as '2020-01-31 14:05:00'",
        lambda value: _is_moment("datetime", value),
    ),
    "text": ("nothing, because its values identify persons", lambda _: False),
}
"""For each kind of column, the values that it is compared with: in words, and as a test."""
_NO_GROUPS = {
    "number": "every distinct number would be a group. Use a histogram, or declare the column as integer "
    "or category.",
    "date": "every day would be a group. Query one range of days at a time with WHERE, or declare a "
    "category of months or years.",
    "datetime": "every moment would be a group. Query one range at a time with WHERE, or declare a "
    "category of months or hours.",
    "text": "every person could be a group. Declare a column of kind category, with its values.",
}
"""For each kind of column that makes no groups, the reason and the fix."""


def _is_moment(kind: str, value: object) -> bool:
    return isinstance(value, str) and bool(as_moment("value", kind, value))


def check_query(query: Query, policy: Policy) -> None:
    """Refuse a query that the policy does not allow."""
    # This reads only public facts, so a refusal reveals nothing about the data and costs nothing. The reader
    # of SQL calls the check of each part, and adds where the part stands.
    for leaf in query.leaves():
        check_leaf(leaf, policy)
    for name in query.by:
        check_group(name, policy)
    for item in query.aggregates:
        check_aggregate(item, policy)


def declaration(name: str, policy: Policy) -> Column:
    if name == policy.unit_column:
        raise PrivacyRefusal(
            f"column {name!r} identifies the {policy.unit} of each row, so an answer could describe a single "
            f"{policy.unit}. Only count its distinct values: CountUnits(), or count(DISTINCT {name}) in SQL."
        )
    if name not in policy.columns:
        near = nearest(name, policy.columns, "it declares", cutoff=0.6)
        raise InvalidInput(f"the policy declares no column {name!r}; {near}")
    return policy.columns[name]


def check_leaf(leaf: Compare | IsNull | In, policy: Policy) -> None:
    column = declaration(leaf.column, policy)
    words, fits = _COMPARED[column.kind]
    values: tuple[Value, ...] = ()
    match leaf:
        case Compare(name, op, value):
            if not (column.is_number or column.is_moment) and op not in ("=", "!="):
                raise InvalidInput(
                    f"column {name!r} is of kind {column.kind!r}, which has no order; got {op!r}. Compare it "
                    "with = or !=."
                )
            values = (value,)
        case In(_, values):
            pass
    for value in values:
        if not fits(value):
            raise InvalidInput(
                f"column {leaf.column!r} is of kind {column.kind!r}. Compare it with {words}; got {value!r}."
            )


def check_group(name: str, policy: Policy) -> None:
    kind = declaration(name, policy).kind
    if kind in _NO_GROUPS:
        raise InvalidInput(f"column {name!r} is a {kind}, and {_NO_GROUPS[kind]}")


def check_aggregate(item: Aggregate, policy: Policy) -> None:
    name = column_of(item)
    if name is None:
        return
    column = declaration(name, policy)
    aggregate = type(item).__name__
    if column.is_moment and not isinstance(item, Count):
        raise InvalidInput(
            f"{aggregate} needs a numeric column; {name!r} is a {column.kind}, which you can only count and "
            "compare. Prepare a numeric column with bounds, such as the days since a public date."
        )
    if not column.is_number and not isinstance(item, Count):
        raise InvalidInput(f"{aggregate} needs a numeric column; {name!r} is of kind {column.kind!r}.")
    if isinstance(item, Survival | CumulativeHazard | RestrictedMean):
        _check_lifetimes(item, column, policy)


def _check_lifetimes(
    item: Survival | CumulativeHazard | RestrictedMean, time: Column, policy: Policy
) -> None:
    if time.low is None or time.low < 0:
        raise InvalidInput(
            f"a survival time needs lower = 0 and an upper bound; {item.time!r} has lower = {time.low!r}. "
            "Declare lower = 0, and register the table again."
        )
    if policy.rows_per_unit > 1:
        raise InvalidInput(
            "a survival curve needs rows_per_unit = 1, because its intervals assume independent rows; the "
            f"policy has {policy.rows_per_unit}. Prepare a table with one row per {policy.unit}."
        )
    event = declaration(item.event, policy)
    zero_or_one = event.kind == "integer" and (
        (event.low, event.high) == (0.0, 1.0) or set(event.values or ()) == {0, 1}
    )
    if event.kind != "boolean" and not zero_or_one:
        raise InvalidInput(
            f"an event must be true or false, or 1 or 0; {item.event!r} is declared as {event.kind}. Declare "
            'kind = "boolean". For other codes, declare them too, such as true = ["2"], false = ["1"].'
        )
    if item.edges is None:
        return
    if item.edges[0] != 0 or len(item.edges) > _MOST_TIMES + 1:
        raise InvalidInput(
            f"edges (of the time bins) must begin with 0 and be at most {_MOST_TIMES + 1} values; got "
            f"{len(item.edges)} values that begin with {item.edges[0]}."
        )
    if time.high is not None and item.edges[-1] > time.high:  # nobody is observed there
        raise InvalidInput(
            f"edges (of the time bins) must end at or below {time.high:g}, the declared upper bound of "
            f"{item.time!r}; got {item.edges[-1]}."
        )
