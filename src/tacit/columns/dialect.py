"""The declared format of a CSV file: separator, quote, encoding and format of numbers."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tacit.errors import InvalidInput

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_IN_NUMBERS = "0123456789+-eE"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The public format of a CSV file; ``[table]`` in a run file and in a policy.

    Spaces around a cell are always stripped, an empty line is not a row, and a name that ends in ``.gz``
    marks a compressed file.

    Args:
        separator: the character between cells; by default a comma, or a tab in a ``.tsv`` file.
        decimal: the decimal point of numbers.
        thousands: the character between groups of three digits in numbers; none by default.
        encoding: the encoding of the text. A byte order mark is skipped.
        quote: the character around cells that contain a separator. It is doubled inside such a cell.
        missing_values: words that stand for a missing value in any column, such as ``n/a`` and ``-999``.

    >>> Dialect(separator=";", decimal=",").to_data()
    {'separator': ';', 'decimal': ','}
    """

    separator: str | None = None
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quote: str = '"'
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.separator is not None:
            _check_sign("separator", self.separator)
        _check_sign("quote", self.quote)
        if self.separator == self.quote:
            raise InvalidInput(f"separator and quote must differ; both are {self.quote!r}.")
        check_number_form(self.decimal, self.thousands)
        object.__setattr__(self, "missing_values", missing_words(self.missing_values))
        try:
            "".encode(self.encoding)
            name = codecs.lookup(self.encoding).name
        except (LookupError, TypeError, UnicodeError, ValueError):
            raise InvalidInput(
                f"encoding must be the name of a text encoding; got {self.encoding!r}. For example, "
                'encoding = "utf-8", "latin-1", "cp1252" or "utf-16".'
            ) from None
        object.__setattr__(self, "encoding", name)

    def separator_of(self, path: Path) -> str:
        """Return the separator of one file."""
        return self.separator or _SEPARATORS.get(Path(path.name.lower().removesuffix(".gz")).suffix, ",")

    def to_data(self) -> dict[str, Any]:
        """Return plain data without the settings that have their default."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["missing_values"] = list(self.missing_values)
        return {
            item.name: data[item.name] for item in fields(self) if getattr(self, item.name) != item.default
        }

    @classmethod
    def from_data(cls, data: object, where: str = "[table]") -> Dialect:
        """Read a dialect from plain data, such as the section of a TOML file.

        Raises:
            InvalidInput: if a setting is unknown or impossible; the message names it.
        """
        settings = check_settings(where, data, [item.name for item in fields(cls)])
        for name, value in settings.items():
            if name != "missing_values" and not isinstance(value, str):
                raise InvalidInput(f"{where} {name} must be a text; got {value!r}.")
        try:
            return cls(**settings)
        except InvalidInput as problem:
            raise InvalidInput(f"{where} {problem}") from None


def nearest(name: str, names: Collection[str], there_are: str = "there are", *, cutoff: float = 0.7) -> str:
    """Return a hint with the one of ``names`` that is most like ``name``, or with all names.

    >>> nearest("lowr", ["lower", "upper"]), nearest("x", ["lower", "upper"])
    ("did you mean 'lower'?", 'there are lower, upper.')
    """
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{there_are} {', '.join(names) or 'none'}."


def check_settings(
    where: str, data: object, settings: Collection[str], required: Collection[str] = ()
) -> dict[str, Any]:
    """Check the names of the settings in a section, given as plain data, and return the section.

    Raises:
        InvalidInput: if the data are not a section, or a setting is missing or unknown. For an unknown
            setting, the message names the nearest known one.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} must be a section; got {data!r}.")
    for name in data:
        if name not in settings:
            hint = nearest(str(name), settings)
            raise InvalidInput(f"{where}: unknown setting {name!r}; {hint}")
    for name in required:
        if name not in data:
            raise InvalidInput(f"{where} lacks {name!r}; there is no default for it. State it.")
    return dict(data)


def _check_sign(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n\0 ":
        raise InvalidInput(f"{name} must be one character, not a space or line end; got {value!r}.")


def missing_words(value: object) -> tuple[str, ...]:
    """Return words and numbers that stand for a missing value as texts, in the spelling of a table.

    Raises:
        InvalidInput: if ``value`` is not a list of words and numbers.

    >>> missing_words(["n/a", -999, -999.0])
    ('n/a', '-999')
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    words = list(value) if is_list else [None]  # type: ignore[call-overload]
    if not all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in words):
        raise InvalidInput(
            f"missing_values must be a list of words or numbers; got {value!r}. For example, missing_values "
            '= ["n/a", "-", -999].'
        )
    whole = [int(word) if isinstance(word, float) and word.is_integer() else word for word in words]
    return tuple(dict.fromkeys(str(word).strip() for word in whole))


def check_number_form(decimal: object, thousands: object) -> None:
    """Check that numbers can be read with this decimal point and separator of thousands.

    Raises:
        InvalidInput: if they cannot; the message says why.
    """
    for name, value in (("decimal", decimal), ("thousands", thousands)):
        empty = name == "thousands" and value == ""
        if not empty and (not isinstance(value, str) or len(value) != 1 or value in _IN_NUMBERS):
            raise InvalidInput(f"{name} must be one character, not a digit or sign; got {value!r}.")
    if decimal == thousands:
        raise InvalidInput(f"decimal and thousands must differ; both are {decimal!r}.")
