"""Proposals for the kind of a column and the format of its cells, chosen from fixed lists by a sample.

No part of a cell is copied into a proposal: for instance, only the units in a list here are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tacit.columns.names import is_count, is_identifier, is_person
from tacit.columns.reading import MISSING_WORDS, number_pattern

_DIGITS = (("1", "0"), ("1.0", "0.0"))
_LETTERS = (("t", "f"), ("y", "n"))
_TRUTHS = (("true", "false"), ("yes", "no"), *_LETTERS, *_DIGITS)
_ONE_OF_TWO = (
    "the first rows hold only one value of a pair, such as 0 and 1. If others than this pair may follow, "
    "declare an integer or a category"
)
REPEATS = (
    "its values repeat: if they name the person of each row, declare it as user in [data] (--user), or as "
    "a policy's unit_column"
)
_LEADING_ZERO = re.compile(r"0[0-9]+")
_DISTINCT = 20  # a column with more values than this, and than half its cells, is text, not a category

_SPACES = ("\u00a0", "\u202f", " ")
_FORMATS = (
    (".", ""), (",", ""), (".", ","), (",", "."),
    *((decimal, space) for space in _SPACES for decimal in ".,"),
    (".", "'"), (".", "’"), (",", "'"),
)  # fmt: skip
"""Pairs of decimal and thousands marks, the likelier ones first."""
_CURRENCIES = ("$", "€", "£", "¥", "CHF", "EUR", "USD", "GBP")  # before or after a number
_UNITS = (
    "%", "‰", "°C", "°F", "°", "kg", "g", "mg", "µg", "ug", "ng", "t", "lb", "lbs", "oz", "st",
    "m", "cm", "mm", "km", "in", "ft", "mi", "m2", "m²", "l", "L", "dl", "dL", "ml", "mL",
    "mg/dl", "mg/dL", "g/dl", "g/dL", "mmol/l", "mmol/L", "kg/m2", "kg/m²", "mmHg", "bpm", "/min",
    "s", "ms", "min", "h", "d", "days", "years", "yrs", "kcal", "kJ", "kW",
    "kWh", "W", "V", "A", "Hz", "km/h",
)  # fmt: skip
_BELOW = "<"
_MAYBE_MISSING = (
    "n/a", "N.A.", "n.a.", "na", "#N/A", "<NA>", "NaT", "-", "--", "---", ".", "..", "*", "unknown",
    "Unknown", "UNKNOWN", "missing", "Missing", "MISSING", "none", "NONE", "nil",
    "not available", "not applicable", "not known", "k.A.", "k. A.",
)  # fmt: skip
"""Words for a missing value that may also be values; proposed only if all other cells have one format."""
_MAYBE_ANSWERS = ("*", "none", "NONE", "nil", "not applicable", "na", "n/a")
"""Words of the list above that may be an answer in a category, such as no allergy or no grade."""
_SENTINELS = ("-99", "-999", "-9999", "-99.0", "-999.0", "-9999.0")  # if no other number is below zero

_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%Y%m%d", "%d.%m.%y",
    "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%y",
)  # fmt: skip
_TIMES = (
    " %H:%M:%S", " %H:%M", " %H:%M:%S.%f", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p", ", %H:%M:%S", ", %H:%M",
)  # fmt: skip


@dataclass(frozen=True)
class FoundColumn:
    """The proposed kind of a column, and its formats.

    Attributes:
        kind: the kind as in ``[columns.NAME]``; empty if all cells of the sample are missing.
        settings: decimal, thousands, unit, below and format, if they differ from the table's; and
            missing_values, the words from the lists here that stand for a missing value.
        formats: the date formats, if more than one fits the sample.
        words: for a boolean, its words for true and for false, in the case of letters of the sample.
        doubt: another possible meaning of the cells, in words; empty if there is none.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    doubt: str = ""


def corrected_by_name(name: str, column: FoundColumn, cells: Sequence[str] = ()) -> FoundColumn:
    """Correct a proposal by the column's name: identifiers are text, and counts of 0 and 1 are integers."""
    if is_identifier(name) and not (is_person(name) and column.kind == "boolean"):  # student: yes or no
        different = len(set(cells))
        doubt = REPEATS if different < len(cells) else ""
        if is_person(name) and column.kind == "category" and different <= _DISTINCT:
            return replace(column, doubt=doubt)  # "customer" may be private or business
        return FoundColumn("text", doubt=doubt)
    if column.kind == "boolean" and column.words in _DIGITS and is_count(name):
        return replace(column, kind="integer", words=(), doubt="")
    return column


def looks_like_data(cell: str) -> bool:
    """Return whether a cell of the first line is a number or a date and so no name; a year may be a name.

    >>> [looks_like_data(cell) for cell in ("age", "2019", "34", "1.5", "2020-01-31")]
    [False, False, True, True, True]
    """
    if re.fullmatch(r"(?:19|20)[0-9]{2}", cell):
        return False
    return any(number_pattern(*marks).fullmatch(cell) for marks in _FORMATS) or bool(cell and _dates([cell]))


def find_columns(
    cells: Mapping[str, Sequence[str]], separator: str, form: tuple[str, str] | None = None
) -> tuple[dict[str, str], dict[str, FoundColumn]]:
    """Return proposals for the number format of a table, and for its columns by name.

    Args:
        cells: for each column, the stripped cells of a sample.
        separator: the separator of the cells. If it is a comma, a decimal comma is unlikely.
        form: the decimal point and the thousands mark of the table, if they are known.

    >>> find_columns({"a": ["1,5", "2,25"], "b": ["x", "y"]}, ";")[0]
    {'decimal': ',', 'thousands': ''}
    """
    present = {name: [cell for cell in column if cell not in MISSING_WORDS] for name, column in cells.items()}
    missing = {name: _missing_words(column) for name, column in present.items()}
    values = {
        name: [cell for cell in column if cell not in missing[name]] for name, column in present.items()
    }
    fits = {name: _number_formats(column) for name, column in values.items()}
    order = list(_FORMATS)
    if separator == ",":  # 1,234 is then in quotes, and likelier 1234 than 1.234
        order.sort(key=lambda marks: (marks != (".", ""), marks != (".", ",")))
    table = form or max(order, key=lambda marks: sum(marks in numbers.formats for numbers in fits.values()))
    columns = {}
    for name in cells:
        column = _column_of(values[name], fits[name], table)
        column = _with_missing_words(column, missing[name], values[name])
        columns[name] = corrected_by_name(name, column, values[name])
    return {"decimal": table[0], "thousands": table[1]}, columns


# --- numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbers:
    """The formats in which all cells are numbers, and the cells without unit and "below" mark."""

    formats: frozenset[tuple[str, str]] = frozenset()
    bare: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def _number_formats(cells: Sequence[str]) -> _Numbers:
    bare, settings = list(cells), {}
    if not cells:
        return _Numbers()
    if unit := _unit(cells):
        bare = [cell.removesuffix(unit).removeprefix(unit).strip() for cell in bare]
        settings["unit"] = unit
    if any(cell.startswith(_BELOW) for cell in bare):
        bare = [cell.removeprefix(_BELOW).strip() for cell in bare]
        settings["below"] = _BELOW
    formats = frozenset(
        marks
        for marks in _FORMATS
        if all(map(number_pattern(*marks).fullmatch, bare))  # stops at the first misfit
    )
    return _Numbers(formats, tuple(bare), settings)


def _unit(cells: Sequence[str]) -> str:
    """Find the unit that all cells end with, or the currency that they begin with; empty if there is none."""
    for unit in sorted((*_UNITS, *_CURRENCIES), key=len, reverse=True):
        ending = f" {unit}" if unit.isalpha() and len(unit) == 1 else unit  # 12A may be a room
        if all(cell.endswith(ending) for cell in cells):
            return unit
        if unit in _CURRENCIES and all(cell.startswith(unit) for cell in cells):
            return unit
    return ""


def _number_column(numbers: _Numbers, table: tuple[str, str]) -> FoundColumn:
    marks = table if table in numbers.formats else next(each for each in _FORMATS if each in numbers.formats)
    decimal, thousands = marks
    settings = dict(numbers.settings)
    if marks != table:
        settings = {"decimal": decimal, "thousands": thousands} | settings
    whole = not any(set(cell) & {decimal, "e", "E"} for cell in numbers.bare)
    return FoundColumn("integer" if whole else "number", settings, doubt=_doubt(numbers))


def _doubt(numbers: _Numbers) -> str:
    """Return a question if another format gives the cells, such as 1.234, other values; else empty."""
    signs = [sign for sign in ",." if any(sign in cell for cell in numbers.bare)]
    if not signs or len({decimal for decimal, _ in numbers.formats}) == 1:
        return ""
    return f'is "{signs[0]}" the decimal point, or between thousands? Both fit'


# --- dates -------------------------------------------------------------------------------------------------


def _dates(cells: Sequence[str]) -> list[tuple[str, str]]:
    """Return each kind and format in which all cells are dates or datetimes; ISO is an empty format."""
    if not any(map(str.isdigit, cells[0])):
        return []
    if all(map(_is_iso_date, cells)):
        return [("date", "")]
    if all(map(_is_iso_time, cells)):
        return [("datetime", "")]
    days = [("date", form) for form in _DAYS if _all_read(cells, form)]
    return days or [
        ("datetime", day + time)
        for day in ("%Y-%m-%d", *_DAYS)
        for time in _TIMES
        if _all_read(cells, day + time)
    ]


def _is_iso_date(cell: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", cell)) and _reads(cell, "%Y-%m-%d")


def _is_iso_time(cell: str) -> bool:
    if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]", cell):
        return False
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        return False
    return True


def _all_read(cells: Sequence[str], form: str) -> bool:
    return all(_reads(cell, form) for cell in cells)


def _reads(cell: str, form: str) -> bool:
    try:
        return 1850 <= datetime.strptime(cell, form).year <= 2150
    except ValueError:
        return False


def _date_column(forms: Sequence[tuple[str, str]]) -> FoundColumn:
    kind, form = forms[0]
    if len(forms) == 1:
        return FoundColumn(kind, {"format": form} if form else {})
    return FoundColumn(kind, formats=tuple(each for _, each in forms))


# --- all kinds ---------------------------------------------------------------------------------------------


def _column_of(cells: Sequence[str], numbers: _Numbers, table: tuple[str, str]) -> FoundColumn:
    """Return the proposal for a column from its cells that are not missing."""
    if not cells:
        return FoundColumn("")
    words = {cell.lower() for cell in cells}
    for pair in _TRUTHS:
        if words == set(pair):
            return FoundColumn("boolean", words=_in_case(pair, cells))
        if words < set(pair) and pair not in _LETTERS:  # f without t may belong to f and m
            return FoundColumn("boolean", words=_in_case(pair, cells), doubt=_ONE_OF_TWO)
    if any(map(_LEADING_ZERO.fullmatch, cells)):  # 00123 is a code, not the number 123
        return _word_column(cells)
    if numbers.formats and not _compact_days(cells):
        return _number_column(numbers, table)
    if dates := _dates(cells):
        return _date_column(dates)
    return _word_column(cells)


def _in_case(pair: tuple[str, str], cells: Sequence[str]) -> tuple[str, str]:
    """Return the two words in the case in which the cells have them; in lower case if there are several."""
    spellings = [(change(pair[0]), change(pair[1])) for change in (str.lower, str.capitalize, str.upper)]
    return next((words for words in spellings if set(cells) <= set(words)), pair)


def _compact_days(cells: Sequence[str]) -> bool:
    return all(len(cell) == 8 and cell.isdigit() for cell in cells) and _all_read(cells, "%Y%m%d")


def _word_column(cells: Sequence[str]) -> FoundColumn:
    distinct = len(set(cells))
    numbers = sum(any(number_pattern(*marks).fullmatch(cell) for marks in _FORMATS[:4]) for cell in cells)
    codes = any(map(_LEADING_ZERO.fullmatch, cells))
    doubt = _MOST_ARE_NUMBERS if not codes and len(cells) / 2 < numbers < len(cells) else ""
    return FoundColumn("text" if distinct > max(_DISTINCT, len(cells) / 2) else "category", doubt=doubt)


_MOST_ARE_NUMBERS = (
    'most cells are numbers. If the others stand for a missing value, declare kind = "number" and name them '
    "in missing_values"
)


# --- words for a missing value -----------------------------------------------------------------------------


def _missing_words(cells: Sequence[str]) -> frozenset[str]:
    """Return a column's listed words for missing values, if all other cells have one format."""
    words = frozenset(_MAYBE_MISSING).intersection(cells)
    rest = [cell for cell in cells if cell not in words]
    one_form = rest and (_is_truths(rest) or _number_formats(rest).formats or _dates(rest))
    return words if words and one_form else frozenset()


def _is_truths(cells: Sequence[str]) -> bool:
    return {cell.lower() for cell in cells} in map(set, _TRUTHS)


def _with_missing_words(column: FoundColumn, words: frozenset[str], cells: Sequence[str]) -> FoundColumn:
    """Add to a proposal the words, and numbers such as -999, that stand for a missing value."""
    if column.kind in ("number", "integer"):
        below = {cell for cell in cells if cell.startswith("-")}
        words |= below if below and below <= set(_SENTINELS) and below != set(cells) else set()
    if column.kind == "category":
        marks = {*_MAYBE_MISSING, *_SENTINELS} - set(_MAYBE_ANSWERS)
        words |= marks.intersection(cells) if not marks.issuperset(cells) else set()
    if not words:
        return column
    return replace(column, settings={**column.settings, "missing_values": sorted(words)})
