"""What can a user ask of a private table? A query, as frozen data, with one form in JSON per question.

A :class:`Query` is aggregates over the rows that a predicate keeps, for every group of some columns.
There is nothing else: no joins, no arithmetic, no functions.  The class is the definition.  Two questions are
the same if their canonical forms in JSON are: the ledger then has one request.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, check_real
from tacit.queries.predicates import (
    PREDICATES,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    Value,
    as_predicate,
    check_size,
    column_name,
    leaves_of,
    plain_value,
    put,
    sequence_of,
)


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


def _canonical(predicate: Predicate) -> dict[str, Any]:
    """The same form for predicates that are equal by the laws of And, Or and Not over two values."""
    match predicate:
        case Not(part):
            inner = _canonical(part)
            twice: dict[str, Any] = inner["part"] if inner["predicate"] == "Not" else {}
            return twice or {"predicate": "Not", "part": inner}
        case And(parts) | Or(parts):
            name = type(predicate).__name__
            return _joined(name, [_canonical(part) for part in parts])
        case In(column, (value,)):
            return _canonical(Compare(column, "=", value))
        case _:
            return {"predicate": type(predicate).__name__} | _fields(predicate)


def _joined(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [inner for part in parts for inner in (part["parts"] if part["predicate"] == name else [part])]
    different = {json.dumps(part, sort_keys=True): part for part in flat}
    if len(different) == 1:
        return flat[0]
    return {"predicate": name, "parts": [different[text] for text in sorted(different)]}


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def query_to_json(query: Query) -> str:
    """The canonical form: one text per question.

    The order of And and Or, their nesting and repetition, a double Not, ``In`` one value, and 65.0 for
    65 make no difference.  The form leaves out names of the table and of the outputs.

    >>> from tacit.queries import Sum
    >>> query_to_json(Query((Sum("age"),)))
    '{"aggregates":[{"aggregate":"Sum","column":"age"}],"by":[],"where":null}'
    >>> one, other = Compare("age", "=", 65), Not(Not(In("age", (65.0,))))
    >>> query_to_json(Query((Sum("age"),), where=one)) == query_to_json(Query((Sum("age"),), where=other))
    True
    """
    data = {
        "aggregates": [{"aggregate": type(item).__name__} | _fields(item) for item in query.aggregates],
        "where": None if query.where is None else _canonical(query.where),
        "by": query.by,
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _object(data: object, key: str, known: Mapping[str, type[Any]]) -> Any:
    if not isinstance(data, dict) or data.get(key) not in tuple(known):
        raise InvalidInput(f"{key} must be an object, one of {', '.join(known)}; got {data!r}.")
    kind = known[data[key]]
    given = {name: value for name, value in data.items() if name != key}
    wanted = {field.name for field in dataclasses.fields(kind)}
    if set(given) != wanted:
        raise InvalidInput(
            f"{data[key]} takes exactly {', '.join(sorted(wanted)) or 'nothing'}; got {sorted(given)}."
        )
    return kind(**{name: _read(name, value) for name, value in given.items()})


def _read(name: str, value: Any) -> Any:
    if name == "part":
        return _object(value, "predicate", PREDICATES)
    if name == "parts" and isinstance(value, list):
        return tuple(_object(part, "predicate", PREDICATES) for part in value)
    return tuple(value) if isinstance(value, list) else value


def query_from_json(text: str) -> Query:
    """Read a query written by :func:`query_to_json`; refuse unknown parts by name.

    >>> query_from_json('{"aggregates": [{"aggregate": "Sum", "column": "age"}], "where": null, "by": []}')
    Query(aggregates=(Sum(column='age'),), where=None, by=(), table='', names=())
    """
    try:
        return _query(json.loads(text, parse_constant=_no_constant))
    except json.JSONDecodeError as problem:
        raise InvalidInput(f"not a query in JSON: {problem}.") from None
    except RecursionError:
        raise InvalidInput("a query is at most 64 levels deep; this one is far deeper.") from None


def _query(data: object) -> Query:
    if not isinstance(data, dict) or set(data) != {"aggregates", "where", "by"}:
        raise InvalidInput(f"a query takes exactly aggregates, by, where; got {data!r}.")
    if not isinstance(data["aggregates"], list) or not isinstance(data["by"], list):
        raise InvalidInput(f"aggregates and by must be lists; got {data!r}.")
    return Query(
        tuple(_object(item, "aggregate", AGGREGATES) for item in data["aggregates"]),
        where=None if data["where"] is None else _object(data["where"], "predicate", PREDICATES),
        by=tuple(data["by"]),
    )


def _no_constant(name: str) -> float:
    raise InvalidInput(f"a query holds finite numbers only; got {name}.")
