"""How is a value written in YAML, so that all readers take it for the same?

1e-05 would be a text to some, and a bare text may be a number, a truth value or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Plain = str | float | bool | None | Sequence["Plain"] | Mapping[str, "Plain"]


def yaml_value(value: str | float | bool | None) -> str:
    """One value; a text is in double quotes.

    >>> yaml_value(1e-5), yaml_value("yes"), yaml_value(True), yaml_value(None)
    ('1.0e-05', '"yes"', 'true', 'null')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            digits, mark, power = repr(value).partition("e")
            return (digits if "." in digits else f"{digits}.0") + mark + power
    return '"' + "".join(map(_character, value)) + '"'


def yaml_lines(data: Mapping[str, Plain], indent: str = "") -> Iterator[str]:
    """The lines of a mapping, whose values are plain, lists of plain values, or mappings alike.

    >>> print(*yaml_lines({"a": {"b": 1.0, "c": ["x"]}}), sep="\\n")
    a:
      b: 1.0
      c:
        - "x"
    """
    for name, value in data.items():
        match value:
            case Mapping():
                yield f"{indent}{name}:"
                yield from yaml_lines(value, f"{indent}  ")
            case list():
                yield f"{indent}{name}:"
                yield from (f"{indent}  - {yaml_value(item)}" for item in value)
            case _:
                yield f"{indent}{name}: {yaml_value(value)}"  # type: ignore[arg-type]


def _character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == "\n":
        return "\\n"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
