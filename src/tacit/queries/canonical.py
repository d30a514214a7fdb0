"""When are two questions the same? If their canonical forms in JSON are: the ledger then has one request."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tacit.errors import InvalidInput
from tacit.queries.predicates import PREDICATES, And, Compare, In, Not, Or, Predicate
from tacit.queries.query import AGGREGATES, Query


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
