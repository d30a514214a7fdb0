"""Public facts about columns in TOML and in command-line options.

``FILL IN`` marks the facts that are still missing.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tacit.columns.column import Column, Fact, nearest
from tacit.errors import InvalidInput

BLANK = "FILL IN"
"""The mark for a public fact that is still missing."""

_SECTION = re.compile(r"""\s*\[\s*((?:[^\[\]"']|"[^"]*"|'[^']*')+?)\s*\]\s*(?:#.*)?""")
# Matches a key, "=" and FILL IN, bare, in quotes, or inside a list or inline table, but not after a "#".
_SETTING = re.compile(rf"""\s*([^=#]+?)\s*=(?:[^#"']|"[^"]*"|'[^']*')*?(?P<quote>["']?){BLANK}(?P=quote)""")


@dataclass(frozen=True)
class Blank:
    line: int
    section: str
    key: str

    def __str__(self) -> str:
        return f"line {self.line}: {f'[{self.section}] ' if self.section else ''}{self.key}"


def find_blanks(text: str) -> list[Blank]:
    blanks, section = [], ""
    for number, line in enumerate(text.splitlines(), start=1):
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif setting := _SETTING.match(line):
            blanks.append(Blank(number, section, setting[1]))
    return blanks


def refuse_blanks(text: str, source: str) -> None:
    blanks = find_blanks(text)
    if blanks:
        lines = "\n".join(f"  {blank}" for blank in blanks)
        raise InvalidInput(
            f"{source}: {len(blanks)} fact{'s are' * (len(blanks) > 1) or ' is'} still "
            f'"{BLANK}":\n{lines}\nFill in each from public knowledge, never from the data. Delete a line '
            "only if its comment allows it."
        )


_COMMENTS_AT = 34  # the column of a line at which a comment begins, if there is room

_OF_TABLE = {
    "separator": "between cells",
    "quote": "around cells that contain a separator",
    "encoding": "of the file",
    "decimal": "the decimal point of numbers",
    "thousands": "between groups of three digits",
}


def toml_value(value: object) -> str:
    match value:
        case str():
            return quoted(value)
        case bool():
            return "true" if value else "false"
        case dt.date():
            return value.isoformat()
        case Sequence():
            return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def quoted(text: str) -> str:
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML


def column_key(name: str) -> str:
    """Return the name of a column's section, such as ``columns.age`` or ``columns."body mass"``."""
    return f"columns.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else quoted(name)}"


def setting(key: str, value: object, comment: str = "") -> str:
    line = f"{key} = {toml_value(BLANK if value is None else value)}"
    return f"{line:<{_COMMENTS_AT - 1}} # {comment}" if comment else line


def table_section(dialect: Mapping[str, str]) -> str:
    """Return ``[table]``, the format of the file, without empty settings and without the usual quote."""
    settings = {name: value for name, value in dialect.items() if value and (name, value) != ("quote", '"')}
    lines = [setting(name, value, _OF_TABLE[name]) for name, value in settings.items()]
    return "\n".join(["[table]", *lines]) + "\n"


def column_section(name: str, facts: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    texts = comments or {}
    lines = [setting(key, value, texts.get(key, "")) for key, value in facts.items()]
    return "\n".join([f"[{column_key(name)}]", *lines]) + "\n"


def by_column(option: str, texts: Sequence[str], columns: Collection[str]) -> dict[str, str]:
    """Read a repeated option ``NAME=WHAT``, and return WHAT for each column."""
    # A name with ``*`` stands for all columns that it matches and that no other text names in full.
    facts: dict[str, str] = {}
    by_pattern: dict[str, str] = {}
    for text in texts:
        names = [name for name in columns if text.startswith(f"{name}=")]
        name = max(names, key=len, default=text.partition("=")[0])
        if "=" not in text:
            raise InvalidInput(f"{option} must be NAME=WHAT, such as {_EXAMPLES[option]}; got {text!r}.")
        is_pattern = "*" in name and name not in columns
        into = by_pattern if is_pattern else facts
        for each in (is_pattern and matching(name, columns)) or [check_column(option, name, columns)]:
            if each in into:
                raise InvalidInput(f"{option} is set twice for column {each!r}. Set it once.")
            into[each] = text[len(name) + 1 :].strip()
    return by_pattern | facts


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    form = ".*".join(map(re.escape, pattern.split("*")))
    return [name for name in names if re.fullmatch(form, name, re.DOTALL)]


_EXAMPLES = {
    "--bounds": "age=0:120",
    "--values": "sex=f,m",
    "--kind": "admitted=date",
    "--format": "admitted=%d.%m.%Y",
}


def check_column(option: str, name: str, columns: Collection[str]) -> str:
    if name not in columns:
        raise InvalidInput(
            f"{option}: the table has no column {name!r}; {nearest(name, columns, cutoff=0.6)}"
        )
    return name


def bounds_from_text(kind: str, text: str, *, grouped: bool = False) -> tuple[Fact, Fact]:
    """Read bounds from ``LOWER:UPPER``, or from ``LOWER..UPPER`` for times with colons."""
    parts = [part.strip() for part in text.split(".." if ".." in text else ":")]
    if len(parts) != 2:
        example = "2015-01-01:2025-12-31" if kind in ("date", "datetime") else "0:120"
        raise InvalidInput(f"bounds must be LOWER:UPPER, such as {example}; got {text!r}.")
    ends: Mapping[str, object] = dict(zip(("lower", "upper"), parts, strict=True))
    if kind in ("number", "integer"):
        for name, part in zip(ends, parts, strict=True):
            if grouped or kind == "integer":
                refuse_two_meanings(name, part)
        ends = {name: _number(name, part) for name, part in zip(ends, parts, strict=True)}
    column = Column(kind=kind, **ends)  # type: ignore[arg-type]
    if kind in ("number", "integer"):
        return ends["lower"], ends["upper"]  # type: ignore[return-value]
    return column.lower, column.upper  # type: ignore[return-value]


def refuse_two_meanings(name: str, text: str) -> None:
    if re.fullmatch(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}", text):
        raise InvalidInput(
            f"{name} is {text}, which may mean {text.replace('.', '')} or {float(text):g}. Write "
            f"{text.replace('.', '')} for the first, {text}0 for the second."
        )


def _number(name: str, text: str) -> int | float:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise InvalidInput(f"{name} must be a number, such as 1.5; got {text!r}.")


def values_from_text(text: str) -> tuple[str, ...]:
    """Read the values of a category from a comma-separated list; quote a value that contains a comma."""
    try:
        (cells,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        raise InvalidInput(f'values must be a list such as f,m or "a, b",c; got {text!r}.') from None
    values = Column(kind="category", values=[cell.strip() for cell in cells if cell.strip()]).values
    return tuple(map(str, values or ()))
