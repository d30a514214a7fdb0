"""Which rows does a query keep? Predicates, as frozen data.

Predicates have two values.  A comparison with a missing value (NULL or NaN) is false, also with ``!=``;
``Not`` turns true into false and false into true.  SQL differs here: its NOT leaves a missing value missing,
while ``Not(Compare("age", ">", 65))`` keeps the rows without an age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, check_in, check_real

Value = str | int | float | bool
"""What a column is compared with."""


def put(item: object, field: str, value: object) -> None:
    """Set a field of a frozen object while it is made."""
    object.__setattr__(item, field, value)


def column_name(field: str, value: object) -> str:
    """A name: a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{field} must be the name of a column; got {value!r}.")
    return value


def plain_value(field: str, value: object) -> Value:
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


def sequence_of(field: str, values: object) -> Sequence[Any]:
    """Refuse a text, which is a sequence of letters: no user means that."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{field} must be a tuple; got {values!r}.")
    return values


OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
"""The comparisons."""

_DEEPEST, _MOST_LEAVES = 64, 10_000  # of a predicate: far from any recursion limit


class Predicate:
    """Which rows are kept: true or false for each row by itself.  The interface of all predicates.

    >>> isinstance(Compare("age", ">", 65), Predicate)
    True
    """

    __slots__ = ()


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
        column_name("column", self.column)
        check_in("op", self.op, OPERATORS)
        put(self, "value", plain_value("value", self.value))


@dataclass(frozen=True)
class IsNull(Predicate):
    """The column is missing: NULL, or NaN in a column of numbers.

    >>> IsNull("age")
    IsNull(column='age')
    """

    column: str

    def __post_init__(self) -> None:
        column_name("column", self.column)


@dataclass(frozen=True)
class In(Predicate):
    """The column is one of ``values``; false where it is missing.

    >>> In("ward", ("surgery", "medicine"))
    In(column='ward', values=('medicine', 'surgery'))
    """

    column: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        column_name("column", self.column)
        values = tuple(plain_value("values", value) for value in sequence_of("values", self.values))
        if not values:
            raise InvalidInput("values must be one or more values to look for; got none.")
        if len(values) > _MOST_LEAVES:
            raise InvalidInput(f"values must be at most {_MOST_LEAVES} values; got {len(values)}.")
        put(self, "values", tuple(sorted(_distinct(values), key=_order)))


def _parts(name: str, parts: object) -> tuple[Predicate, ...]:
    found = tuple(as_predicate(part) for part in sequence_of(f"the parts of {name}", parts))
    if not found:
        raise InvalidInput(f"{name} takes one or more predicates; got none.")
    return found


def as_predicate(part: object) -> Predicate:
    """``part``, if it is a predicate.

    :raises InvalidInput: if it is none.
    """
    if not isinstance(part, Predicate):
        raise InvalidInput(f"a predicate must be one of {', '.join(PREDICATES)}; got {part!r}.")
    return part


@dataclass(frozen=True)
class And(Predicate):
    """Every one of ``parts``.

    >>> len(And((Compare("age", ">=", 18), Compare("age", "<", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        put(self, "parts", _parts("And", self.parts))


@dataclass(frozen=True)
class Or(Predicate):
    """At least one of ``parts``.

    >>> len(Or((Compare("age", "<", 18), Compare("age", ">=", 65))).parts)
    2
    """

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        put(self, "parts", _parts("Or", self.parts))


@dataclass(frozen=True)
class Not(Predicate):
    """Not ``part``: true where it is false, for a missing value too.

    >>> Not(IsNull("age"))
    Not(part=IsNull(column='age'))
    """

    part: Predicate

    def __post_init__(self) -> None:
        as_predicate(self.part)


PREDICATES: MappingProxyType[str, type[Any]] = MappingProxyType(
    {kind.__name__: kind for kind in (Compare, IsNull, In, And, Or, Not)}
)
"""All predicates, by name."""


def leaves_of(predicate: Predicate) -> Iterator[Compare | IsNull | In]:
    """The comparisons that a predicate consists of."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves_of(part)
        case Not(part):
            yield from leaves_of(part)
        case Compare() | IsNull() | In():
            yield predicate


def check_size(predicate: Predicate) -> None:
    """Refuse a predicate that is too deep or too large, without recursion.

    :raises InvalidInput: with the limits.
    """
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
