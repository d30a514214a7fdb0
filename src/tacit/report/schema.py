"""Do plain data fit a JSON Schema? A check against the very file that is published, by jsonschema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, ValuesView
from importlib import resources
from typing import Any

from tacit.errors import InvalidInput, MissingExtra

_DEEPEST = 64


def read_schema(name: str) -> dict[str, Any]:
    """A schema that is published with the package, such as "certificate.schema.json"."""
    schema: dict[str, Any] = json.loads((resources.files("tacit.report") / name).read_text(encoding="utf-8"))
    return schema


def check_against(schema: Mapping[str, Any], data: object, *, what: str) -> None:
    """Raise InvalidInput that names the first place where ``data`` do not fit the schema.

    Numbers are finite, and 1.0 is no integer.

    :param what: the name of the data in the message, such as "the certificate".

    >>> check_against({"type": "object", "required": ["format"]}, {}, what="the certificate")
    Traceback (most recent call last):
    tacit.errors.InvalidInput: the certificate: 'format' is a required property. ...
    """
    try:
        import jsonschema
    except ImportError:
        raise MissingExtra("jsonschema", "ledger", "a check of a certificate") from None
    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: base.TYPE_CHECKER.is_type(value, "number") and math.isfinite(value),
        }
    )
    reader = jsonschema.validators.extend(base, type_checker=kinds)(schema)
    if _too_deep(data):
        found = f": it is nested more than {_DEEPEST} deep"
    elif problem := next(reader.iter_errors(data), None):
        place = problem.json_path.removeprefix("$").removeprefix(".")
        found = f"{f'{chr(39)}s {place}' if place else ''}: {problem.message[:300]}"
    else:
        return
    raise InvalidInput(f"{what}{found}. It must be as its schema says; get it again from its issuer.")


def _too_deep(data: object) -> bool:
    """Whether data are nested so deeply that they would exhaust whatever code walks through them."""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [part for item in inner if isinstance(item, list | ValuesView) for part in item]
    return bool(level)
