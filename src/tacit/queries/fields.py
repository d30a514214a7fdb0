"""Which values may the fields of a query hold? Names, plain values, sequences, checked as it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.errors import InvalidInput, check_real

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
