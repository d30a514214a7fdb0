"""Exact conversion of frozen dataclasses to JSON and back.

An object becomes a mapping of its fields, converted in the same way, and its class name under the key of its
family, the tag.  Tuples become lists.  Reading calls the class, which checks the values.  For an unknown
class or field it raises an error that names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from tacit.errors import InvalidInput, TacitError


@dataclass(frozen=True)
class Family:
    """A family of classes that JSON names by the same key.

    Attributes:
        tag: the key of the class name, such as "event"; a field "event" or "events" is then written as "of".
        kinds: the classes of the family.
        unknown: the error to raise for an unknown class.
    """

    tag: str
    kinds: Collection[type[Any]]
    unknown: type[TacitError] = InvalidInput

    def fields_of(self, kind: type[Any]) -> dict[str, str]:
        """Return the field for each key in JSON; the key "of" comes last."""
        inner = (self.tag, f"{self.tag}s")
        ordered = sorted((field.name for field in fields(kind)), key=lambda name: name in inner)
        return {"of" if name in inner else name: name for name in ordered}

    def named(self, name: object) -> type[Any]:
        """Return the class of the family that has this name."""
        for kind in self.kinds:
            if kind.__name__ == name:
                return kind
        names = ", ".join(kind.__name__ for kind in self.kinds)
        raise self.unknown(f"unknown {self.tag} {name!r}; known: {names}.")


def to_data(value: Any, families: Sequence[Family]) -> Any:
    """Convert ``value``, an object of one of the families or a value of its fields, to plain data.

    Raises:
        TacitError: if a dataclass belongs to no family; it is the ``unknown`` error of the first family.
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
    """Convert plain data from :func:`to_data` back to objects.

    Raises:
        InvalidInput: if fields are missing or unknown, or the class refuses a value.
        TacitError: if a class is unknown; it is the ``unknown`` error of its family.
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
    except (TypeError, AttributeError, ArithmeticError) as problem:  # the class does not check a type
        raise InvalidInput(
            f"{family.tag} {kind.__name__} cannot be made from these values: {problem}."
        ) from None


def parse_json(text: str | bytes) -> Any:
    """Read plain data from JSON, in which every object has each key once.

    The standard reader keeps the last of several equal keys, and a person may read the first.

    Raises:
        ValueError: the text is not JSON, or an object has two equal keys.
    """
    return json.loads(text, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        [(key, count)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {key[:60]!r} {count} times")
    return data


def from_json(text: str, families: Sequence[Family]) -> Any:
    """Read an object of the first family from JSON."""
    thing = _article(families[0].tag)
    try:
        data = parse_json(text)
    except ValueError as problem:
        raise InvalidInput(f"not {thing} in JSON: {problem}.") from None
    if not isinstance(data, Mapping) or families[0].tag not in data:
        raise InvalidInput(f"{thing} must be an object with the key {families[0].tag!r}; got {data!r}.")
    return from_data(data, families)


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
