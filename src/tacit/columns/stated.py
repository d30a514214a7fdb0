"""What does a person state about a column? A text from a flag or a dialogue becomes public facts."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from tacit.columns.column import Column, Fact
from tacit.errors import InvalidInput


def by_column(option: str, given: Sequence[str], columns: Collection[str]) -> dict[str, str]:
    """What an option says of each column, as ``NAME=WHAT``.

    Raises:
        InvalidInput: without "=", for a column that the table does not have, or twice for one.

    >>> by_column("--kind", ["sex=category", "a=b=date"], ["sex", "a=b"])
    {'sex': 'category', 'a=b': 'date'}
    """
    stated: dict[str, str] = {}
    for text in given:
        names = [name for name in columns if text.startswith(f"{name}=")]
        name = max(names, key=len, default=text.partition("=")[0])
        if "=" not in text:
            raise InvalidInput(f"{option} must be NAME=WHAT, such as {_EXAMPLES[option]}; got {text!r}.")
        check_column(option, name, columns)
        if name in stated:
            raise InvalidInput(f"{option} is given twice for the column {name!r}. Give it once.")
        stated[name] = text[len(name) + 1 :].strip()
    return stated


_EXAMPLES = {
    "--bounds": "age=0:120",
    "--values": "sex=f,m",
    "--kind": "admitted=date",
    "--format": "admitted=%d.%m.%Y",
}


def check_column(option: str, name: str, columns: Collection[str]) -> str:
    """The name, if it is that of a column.

    Raises:
        InvalidInput: with the nearest name.
    """
    if name not in columns:
        near = get_close_matches(name, columns, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(columns)}."
        raise InvalidInput(f"{option}: the table has no column {name!r}; {hint}")
    return name


def bounds_from_text(kind: str, text: str) -> tuple[Fact, Fact]:
    """The least and the greatest value, from ``LOWER:UPPER``; ``..`` in place of the colon for times of day.

    Raises:
        InvalidInput: they are no bounds of a column of that kind.

    >>> bounds_from_text("integer", "0:120"), bounds_from_text("date", "2015-01-01:2025-12-31")[0]
    ((0, 120), datetime.date(2015, 1, 1))
    """
    parts = [part.strip() for part in text.split(".." if ".." in text else ":")]
    if len(parts) != 2:
        example = "2015-01-01:2025-12-31" if kind in ("date", "datetime") else "0:120"
        raise InvalidInput(f"bounds must be LOWER:UPPER, such as {example}; got {text!r}.")
    ends: Mapping[str, object] = dict(zip(("lower", "upper"), parts, strict=True))
    if kind in ("number", "integer"):
        ends = {name: _number(name, part) for name, part in zip(ends, parts, strict=True)}
    column = Column(kind=kind, **ends)  # type: ignore[arg-type]
    if kind in ("number", "integer"):
        return ends["lower"], ends["upper"]  # type: ignore[return-value]
    return column.lower, column.upper  # type: ignore[return-value]


def _number(name: str, text: str) -> int | float:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise InvalidInput(f"{name} must be a number, with a point as the decimal mark; got {text!r}.")


def values_from_text(text: str) -> tuple[str, ...]:
    """The values of a category, from a list with commas; one that holds a comma is in double quotes.

    Raises:
        InvalidInput: there is none, or one twice.

    >>> values_from_text('f, m, "other, unknown"')
    ('f', 'm', 'other, unknown')
    """
    try:
        (cells,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        raise InvalidInput(f'values must be a list such as f,m or "a, b",c; got {text!r}.') from None
    values = Column(kind="category", values=[cell.strip() for cell in cells if cell.strip()]).values
    return tuple(map(str, values or ()))
