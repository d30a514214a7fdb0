"""Frozen dataclasses as JSON, and exactly back.

An object is written as a mapping: its class under the tag of its family, and its fields by name, each written
in the same way.  Tuples become lists.  Reading calls the class, which checks the values.  An unknown class or
field is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from tacit.errors import InvalidInput, TacitError


@dataclass(frozen=True)
class Family:
    """Classes that are read and written by name.

    Attributes:
        tag: the key that holds an object's class; a field of that name, or its plural, is written as "of".
        kinds: the classes.
        unknown: the error for a class that is none of them.
    """

    tag: str
    kinds: tuple[type[Any], ...]
    unknown: type[TacitError] = InvalidInput

    def fields_of(self, kind: type[Any]) -> dict[str, str]:
        """Map keys in JSON to fields; the key "of" comes last."""
        inner = (self.tag, f"{self.tag}s")
        ordered = sorted((field.name for field in fields(kind)), key=lambda name: name in inner)
        return {"of" if name in inner else name: name for name in ordered}

    def named(self, name: object) -> type[Any]:
        """Return the class of that name."""
        for kind in self.kinds:
            if kind.__name__ == name:
                return kind
        names = ", ".join(kind.__name__ for kind in self.kinds)
        raise self.unknown(f"unknown {self.tag} {name!r}; known: {names}.")


def to_data(value: Any, families: Sequence[Family]) -> Any:
    """Write ``value``, an object of one of the families or a value of its fields, as plain data.

    Raises:
        TacitError: a dataclass belongs to no family; the error is that of the first family.
    """
    if isinstance(value, tuple | list):
        return [to_data(item, families) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if not is_dataclass(value):
        return value
    family = next((one for one in families if type(value) in one.kinds), None)
    if family is None:
        names = ", ".join(kind.__name__ for kind in families[0].kinds)
        raise families[0].unknown(f"unknown {families[0].tag} {value!r}; known: {names}.")
    items = family.fields_of(type(value)).items()
    return {family.tag: type(value).__name__} | {
        key: to_data(getattr(value, name), families) for key, name in items
    }


def from_data(data: Any, families: Sequence[Family]) -> Any:
    """Read what :func:`to_data` wrote.

    Raises:
        InvalidInput: fields are missing or unknown, or the class refuses a value.
        TacitError: a class is unknown; the error is that of its family.
    """
    if isinstance(data, list):
        return tuple(from_data(item, families) for item in data)
    if not isinstance(data, Mapping):
        return data
    family = next((one for one in families if one.tag in data), None)
    if family is None:
        tags = " or ".join(repr(one.tag) for one in families)
        raise InvalidInput(
            f"{_article(families[0].tag)} must be an object with the key {tags}; got {data!r}."
        )
    kind = family.named(data[family.tag])
    names, keys = family.fields_of(kind), set(data) - {family.tag}
    if keys != set(names):
        raise InvalidInput(
            f"{family.tag} {kind.__name__} takes exactly the fields {', '.join(sorted(names))}; "
            f"got {', '.join(sorted(keys)) or 'none'}."
        )
    values = {name: from_data(data[key], families) for key, name in names.items()}
    try:
        return kind(**values)
    except (TypeError, AttributeError, ArithmeticError) as problem:  # a class does not check what it iterates
        raise InvalidInput(f"{family.tag} {kind.__name__} cannot hold these values: {problem}.") from None


def from_json(text: str, families: Sequence[Family]) -> Any:
    """Read an object of the first family from JSON."""
    thing = _article(families[0].tag)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as problem:
        raise InvalidInput(f"not {thing} in JSON: {problem}.") from None
    if not isinstance(data, Mapping) or families[0].tag not in data:
        raise InvalidInput(f"{thing} must be an object with the key {families[0].tag!r}; got {data!r}.")
    return from_data(data, families)


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
