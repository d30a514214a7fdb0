"""How are columns written in a file? One section each, ``[columns.NAME]``; older forms with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tacit.columns.column import Column, no_data_bounds
from tacit.errors import Deprecated, InvalidInput, PrivacyRefusal


def parse_columns(data: object, where: str = "columns", *, source: str = "") -> dict[str, Column]:
    """The columns in plain data, as a TOML file has them, by name.

    The forms of earlier versions are read with a DeprecationWarning: ``{ low, high }``, ``[low, high]`` and
    ``{ values }`` without a kind, and ``keys`` for ``values``.

    Args:
        data: a section for each column; a Column stays what it is.
        where: the section, for errors.
        source: what errors begin with, such as the name of the file.

    Raises:
        InvalidInput: naming the column and the setting that is missing, misspelt or impossible.
        PrivacyRefusal: bounds or values are left to the data.

    >>> parse_columns({"age": {"kind": "integer", "lower": 0, "upper": 120}})["age"].upper
    120.0
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{source}[{where}] must hold a section for each column; got {data!r}.")
    columns, old = {}, []
    for name, given in data.items():
        place = f"{source}[{where}.{name}]"
        columns[str(name)], facts = _column(place, given)
        if facts:
            written = ", ".join(f"{fact} = {_toml(value)}" for fact, value in facts.items())
            old.append(f"[columns.{name}] {written}")
    if old:
        message = f"{source}[{where}] has an old form. Write {'; '.join(old)}."
        warnings.warn(message, Deprecated, stacklevel=2)
    return columns


def _column(where: str, given: Any) -> tuple[Column, dict[str, Any]]:
    """The column and, if its form is old, its facts in the new one."""
    facts: dict[str, Any]
    match given:
        case Column():
            return given, {}
        case None | str():
            raise PrivacyRefusal(f"{where}: {no_data_bounds('a column')}")
        case [low, high] | {"low": low, "high": high} if len(given) == 2:
            facts = {"kind": "number", "lower": low, "upper": high}
        case {"values": values, **rest} if not rest:
            texts = [str(value) for value in values] if isinstance(values, list | tuple) else values
            facts = {"kind": "category", "values": texts}
        case {"keys": keys, **rest} if "values" not in rest:
            facts = {str(name): fact for name, fact in rest.items()} | {"values": keys}
        case _:
            return Column.from_data(given, where), {}
    if any(value is None for value in facts.values()):
        raise PrivacyRefusal(f"{where}: {no_data_bounds('a column')}")
    return Column.from_data(facts, where), facts


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(value, str)
        else str(value)
    )
