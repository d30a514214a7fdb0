"""How are a table's dialect and columns written down? As TOML, with ``FILL IN`` for what is not stated."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence

from tacit.columns.blanks import BLANK

_COMMENTS_AT = 34  # the character at which a comment begins, where there is room

_OF_TABLE = {
    "separator": "between cells",
    "quote": "around cells that hold a separator",
    "encoding": "of the file",
    "decimal": "the decimal point of numbers",
    "thousands": "between groups of three digits",
}


def toml_value(value: object) -> str:
    """A public fact in TOML.

    >>> toml_value(["f", "m"]), toml_value(1e-6), toml_value(dt.date(2015, 1, 1))
    ('["f", "m"]', '1e-06', '2015-01-01')
    """
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
    """A text in TOML's quotes.

    >>> print(quoted("f"), quoted('"'))
    "f" '"'
    """
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML


def column_key(name: str) -> str:
    """The heading of a column's section, without brackets: ``columns.age``, ``columns."body mass"``."""
    return f"columns.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else quoted(name)}"


def setting(key: str, value: object, comment: str = "") -> str:
    """One line: a key, a value, ``FILL IN`` for None, and a comment.

    >>> setting("epsilon", None, "1 is strong")
    'epsilon = "FILL IN"               # 1 is strong'
    """
    line = f"{key} = {toml_value(BLANK if value is None else value)}"
    return f"{line:<{_COMMENTS_AT - 1}} # {comment}" if comment else line


def table_section(dialect: Mapping[str, str]) -> str:
    """``[table]``: how the file is written; thousands marks and other quotes only where there are any."""
    said = {name: value for name, value in dialect.items() if value and (name, value) != ("quote", '"')}
    lines = [setting(name, value, _OF_TABLE[name]) for name, value in said.items()]
    return "\n".join(["[table]", *lines]) + "\n"


def column_section(name: str, facts: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    """``[columns.NAME]``: the facts, None for one that is to be filled in, with a comment for some of them.

    >>> print(column_section("age", {"kind": "integer", "lower": None, "upper": None}).strip())
    [columns.age]
    kind = "integer"
    lower = "FILL IN"
    upper = "FILL IN"
    """
    said = comments or {}
    lines = [setting(key, value, said.get(key, "")) for key, value in facts.items()]
    return "\n".join([f"[{column_key(name)}]", *lines]) + "\n"
