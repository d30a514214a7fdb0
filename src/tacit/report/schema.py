"""Checks of plain data: its JSON Schema, and the version of Tacit that wrote it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, ValuesView
from importlib import resources
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.errors import InvalidInput, needed, reason_of
from tacit.events.serial import parse_json

_DEEPEST = 64


class OtherVersion(InvalidInput):
    """A statement or a certificate of another version of Tacit, which is not verified.

    Attributes:
        version: the version that wrote it.
    """

    version: str = ""


def other_version(what: str, version: str, form: object, due: int) -> OtherVersion:
    """Return the error for a paper in the format ``form``, where this version reads the format ``due``."""
    error = OtherVersion(
        f"the {what} was written by tacit {version} in format {str(form)[:20]}, and this is tacit "
        f"{__version__}, which reads its own in format {due}: it is not verified. Verify it with the version "
        "that wrote it."
    )
    error.version = version
    return error


def read_json(path: Path | str, what: str, give: str) -> Any:
    """Read the plain data in a JSON file that another person wrote.

    Args:
        path: the file.
        what: the name of the data in error messages, such as "certificate".
        give: a description of the file that the user should give, for error messages.

    Raises:
        InvalidInput: the file cannot be read, or is not JSON.
    """
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no {what} at {path}. Check the path, and give {give}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the {what} {path}: {reason_of(problem)}. Check the path.") from None
    except (ValueError, RecursionError) as problem:  # also a number with too many digits, or equal keys
        raise InvalidInput(f"{path} is not JSON: {problem}. Give {give}.") from None


def read_schema(name: str) -> dict[str, Any]:
    """Read a schema that the package includes, such as "certificate.schema.json"."""
    schema: dict[str, Any] = json.loads((resources.files("tacit.report") / name).read_text(encoding="utf-8"))
    return schema


def check_against(schema: Mapping[str, Any], data: object, *, what: str) -> None:
    """Check that ``data`` fit the schema. Numbers must be finite, and 1.0 does not count as an integer.

    Args:
        schema: the schema.
        data: the plain data.
        what: the name of the data in the message, such as "the certificate".

    Raises:
        InvalidInput: the data do not fit. The message names the first place where they do not.

    >>> check_against({"type": "object", "required": ["format"]}, {}, what="the certificate")
    Traceback (most recent call last):
    tacit.errors.InvalidInput: the certificate: 'format' is a required property. ...
    """
    jsonschema = needed("jsonschema", "ledger", "a check of a certificate")
    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: base.TYPE_CHECKER.is_type(value, "number") and math.isfinite(value),
        }
    )
    reader = jsonschema.validators.extend(base, type_checker=kinds)(schema)
    if _too_deep(data):
        finding = f": it is nested more than {_DEEPEST} deep"
    elif problem := next(reader.iter_errors(data), None):
        place = problem.json_path.removeprefix("$").removeprefix(".")
        finding = f"{f'{chr(39)}s {place}' if place else ''}: {problem.message[:300]}"
    else:
        return
    raise InvalidInput(f"{what}{finding}. It must fit its schema; get it again from its issuer.")


def _too_deep(data: object) -> bool:
    """Return whether data are nested so deeply that recursive code could exhaust the stack."""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [part for item in inner if isinstance(item, list | ValuesView) for part in item]
    return bool(level)
