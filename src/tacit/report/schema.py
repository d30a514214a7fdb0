"""Do plain data fit a JSON Schema? A check of the keywords that Tacit's published schemas use.

It reads the very file that is published, so the two cannot differ.  It refuses a keyword that it does not
know.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, ValuesView
from importlib import resources
from typing import Any

from tacit.errors import InvalidInput

_DEEPEST = 64
_SAID = {"$schema", "$id", "$defs", "title", "description"}  # what a schema says to people
_CHECKED = {
    "$ref", "type", "const", "enum", "minimum", "maximum", "pattern", "anyOf",
    "properties", "required", "additionalProperties", "items", "minItems",
}  # fmt: skip


def read_schema(name: str) -> dict[str, Any]:
    """A schema that is published with the package, such as "certificate.schema.json"."""
    schema: dict[str, Any] = json.loads((resources.files("tacit.report") / name).read_text(encoding="utf-8"))
    return schema


def check_against(schema: Mapping[str, Any], data: object, *, what: str) -> None:
    """Raise InvalidInput that names the first place where ``data`` do not fit the schema.

    :param what: the name of the data in the message, such as "the certificate".

    >>> check_against({"type": "object", "required": ["format"]}, {}, what="the certificate")
    Traceback (most recent call last):
    tacit.errors.InvalidInput: the certificate lacks 'format'. ...
    """
    problem = _nesting(data) or _problem(schema, data, schema, "")
    if problem is not None:
        raise InvalidInput(f"{what}{problem}. It must be as its schema says; get it again from its issuer.")


def _nesting(data: object) -> str | None:
    """A problem if the data are nested deeply: that would exhaust whatever code walks through them."""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [part for item in inner if isinstance(item, list | ValuesView) for part in item]
        if not level:
            return None
    return f" is nested more than {_DEEPEST} deep"


def _problem(schema: Mapping[str, Any], data: Any, root: Mapping[str, Any], where: str) -> str | None:
    """What is wrong with ``data``, in words that follow the name of the whole; None if nothing is."""
    if unknown := set(schema) - _SAID - _CHECKED:
        raise InvalidInput(f"a schema uses {sorted(unknown)}, which is not checked here; do without it.")
    if "$ref" in schema:
        return _problem(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], data, root, where)
    if "anyOf" in schema:
        found = [_problem(option, data, root, where) for option in schema["anyOf"]]
        if None not in found:
            return found[-1]
    return (
        _about_value(schema, data, where)
        or _about_object(schema, data, root, where)
        or _about_list(schema, data, root, where)
    )


def _about_value(schema: Mapping[str, Any], data: Any, where: str) -> str | None:
    place = f"'s {where}" if where else ""
    shown = json.dumps(data)[:60]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(data, kind) for kind in kinds):
        return f"{place} must be of type {' or '.join(kinds)}; it is {shown}"
    if "const" in schema and data != schema["const"]:
        return f"{place} must be {json.dumps(schema['const'])}; it is {shown}"
    if "enum" in schema and data not in schema["enum"]:
        return f"{place} must be one of {', '.join(map(json.dumps, schema['enum']))}; it is {shown}"
    if "pattern" in schema and isinstance(data, str) and not re.search(schema["pattern"], data):
        return f"{place} must match {schema['pattern']!r}; it is {shown}"
    if _is(data, "number"):
        if data < schema.get("minimum", -math.inf):
            return f"{place} must be at least {schema['minimum']}; it is {shown}"
        if data > schema.get("maximum", math.inf):
            return f"{place} must be at most {schema['maximum']}; it is {shown}"
    return None


def _about_object(schema: Mapping[str, Any], data: Any, root: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(data, dict):
        return None
    for name in schema.get("required", ()):
        if name not in data:
            return f"{f'{chr(39)}s {where}' if where else ''} lacks {name!r}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, value in data.items():
        inner = f"{where}.{name}" if where else str(name)
        rule = known.get(name, others)
        if rule is False:
            return f"{f'{chr(39)}s {where}' if where else ''} has {name!r}, which is not in its schema"
        if isinstance(rule, Mapping) and (found := _problem(rule, value, root, inner)) is not None:
            return found
    return None


def _about_list(schema: Mapping[str, Any], data: Any, root: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(data, list):
        return None
    if len(data) < schema.get("minItems", 0):
        return f"'s {where} must have at least {schema['minItems']} items; it has {len(data)}"
    for position, item in enumerate(data):
        if "items" in schema:
            found = _problem(schema["items"], item, root, f"{where}[{position}]")
            if found is not None:
                return found
    return None


def _is(data: object, kind: str) -> bool:
    match kind:
        case "null":
            return data is None
        case "boolean":
            return isinstance(data, bool)
        case "integer":
            return isinstance(data, int) and not isinstance(data, bool)
        case "number":
            return isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data)
        case "string":
            return isinstance(data, str)
        case "array":
            return isinstance(data, list)
        case "object":
            return isinstance(data, dict)
    raise InvalidInput(f"a schema names the type {kind!r}, which JSON does not have.")
