"""Predicates as frozen data: the conditions that decide which rows a query counts.

A predicate is either true or false for a row. A comparison with a missing value (NULL or NaN) is false, even
with ``!=``. ``Not`` exchanges true and false, so ``Not(Compare("age", ">", 65))`` keeps the rows without an
age. SQL would drop them: there, the comparison and its NOT are both unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, check_in, check_real

Value = str | int | float | bool
"""A value that a column is compared with."""


def put(item: object, field: str, value: object) -> None:
    """Set a field of a frozen object during its construction."""
    object.__setattr__(item, field, value)


def column_name(field: str, value: object) -> str:
    """Return ``value`` if it can be the name of a column: a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{field} must be the name of a column; got {value!r}.")
    return value


def plain_value(field: str, value: object) -> Value:
    """Return a finite number, boolean or text that all engines can hold; 65.0 becomes 65, -0.0 becomes 0."""
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


def sequence_of(field: str, values: object) -> tuple[Any, ...]:
    """Return a sequence as a tuple; refuse a text, which is never meant as a sequence of letters."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{field} must be a tuple; got {values!r}.")
    return tuple(values)


def check_fields(item: Any, checks: Mapping[str, Callable[[str, Any], object]]) -> None:
    """Check and set each field of a predicate or aggregate, with the check of its name; skip defaults."""
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if value is not field.default:
            put(item, field.name, checks[field.name](field.name, value))


OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
"""The comparisons."""

_DEEPEST, _MOST_LEAVES = 64, 10_000  # limits of a predicate, far from any recursion limit


class Predicate:
    """A condition that is true or false for each row; the base class of predicates.

    >>> isinstance(Compare("age", ">", 65), Predicate)
    True
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)


@dataclass(frozen=True)
class Compare(Predicate):
    """``column op value``; false if the column is missing.

    >>> Compare("age", ">", 65.0)
    Compare(column='age', op='>', value=65)
    """

    column: str
    op: str
    value: Value


@dataclass(frozen=True)
class IsNull(Predicate):
    """The column is missing: NULL, or NaN in a column of numbers.

    >>> IsNull("age")
    IsNull(column='age')
    """

    column: str


@dataclass(frozen=True)
class In(Predicate):
    """The column is one of ``values``; false if it is missing.

    >>> In("ward", ("surgery", "medicine"))
    In(column='ward', values=('medicine', 'surgery'))
    """

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class And(Predicate):
    """All of ``parts`` are true.

    >>> len(And((Compare("age", ">=", 18), Compare("age", "<", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or(Predicate):
    """At least one of ``parts`` is true.

    >>> len(Or((Compare("age", "<", 18), Compare("age", ">=", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Not(Predicate):
    """``part`` is false, which includes comparisons with a missing value.

    >>> Not(IsNull("age"))
    Not(part=IsNull(column='age'))
    """

    part: Predicate


PREDICATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {kind.__name__: kind for kind in (Compare, IsNull, In, And, Or, Not)}
)
"""All predicates, by name."""


def as_predicate(field: str, part: object) -> Predicate:
    """Return ``part`` if it is a predicate.

    Raises:
        InvalidInput: if it is not.
    """
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
        raise InvalidInput(f"{field} must be 1 to {_MOST_LEAVES} values; got {len(values)}.")
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
    """Return the comparisons in a predicate.

    Raises:
        InvalidInput: if the predicate is too deep or too large. (The check does not recurse.)
    """
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
                f"where must be at most {_DEEPEST} levels deep with at most {_MOST_LEAVES} comparisons."
            )
        level = below
    return leaves


def canonical(predicate: Predicate) -> dict[str, Any]:
    """Return the canonical form of a predicate as plain data.

    The order, nesting and repetition of the parts of And and Or, a double Not, and ``In`` with one value make
    no difference.
    """
    name = type(predicate).__name__
    match predicate:
        case Not(part):
            inner = canonical(part)
            twice: dict[str, Any] = inner["part"] if inner["predicate"] == "Not" else {}
            return twice or {"predicate": name, "part": inner}
        case And(parts) | Or(parts):
            joined = [each for part in map(canonical, parts) for each in _same_kind(part, name)]
            different = {json.dumps(part, sort_keys=True): part for part in joined}
            if len(different) == 1:
                return joined[0]
            return {"predicate": name, "parts": [different[text] for text in sorted(different)]}
        case In(column, (value,)):
            return canonical(Compare(column, "=", value))
    return {"predicate": name} | vars(predicate)


def _same_kind(part: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return part["parts"] if part["predicate"] == name else [part]
