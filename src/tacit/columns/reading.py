"""The meaning of a cell: one rule for training, queries and checks, and for all kinds of tables."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.columns.column import FALSE, TRUE, Column, Dialect, number_of_moment, reader_of_moments
from tacit.errors import InvalidInput

# The spaces around a cell are stripped. A cell is *missing* if it is empty, one of a few words (``NA``,
# ``null``, ``?``, ...), or one of the ``missing_values`` of the column or the table. A word that the column
# declares as a value is not missing. Every other cell is either of the declared kind or *unreadable*. For
# instance, ``1,002``, ``$5`` and ``5 mg`` are not numbers unless the column declares that thousands mark or
# unit.

MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"})
"""The words that mark a missing value in every column."""

Cells: TypeAlias = Sequence[Any] | NDArray[Any]
"""The cells of one column: texts of a file, a typed array, or Python objects; None and NaN are missing."""

_NUMERALS = re.compile(r"[0-9eE+\-.\n]*")  # if ``float`` reads a text of only these, it is a number
_NO_ROWS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_TYPED = {"b": ("boolean",), "i": ("number", "integer", "boolean"), "M": ("date", "datetime")}
_TYPED |= dict.fromkeys("uf", _TYPED["i"])
_DAY = np.timedelta64(1, "D")


def declared_missing(column: Column | None, dialect: Dialect | None = None) -> tuple[str, ...]:
    return tuple(str(word) for holder in (column, dialect) if holder for word in holder.missing_values)


def numbers_of(
    cells: Cells, column: Column, dialect: Dialect | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the cells as numbers, with NaN for missing and unreadable ones.

    A boolean is 0 or 1, a date is in days and a datetime in seconds since 1970-01-01.

    Returns:
        The numbers, and the indices, from 0, of unreadable cells.
    """
    dialect = dialect or Dialect()
    read = _reader(column, dialect)
    missing = _Missing.of(declared_missing(column, dialect), column, read)
    if isinstance(cells, np.ndarray) and cells.dtype.kind not in "OU":
        return _typed_numbers(cells, column, missing)
    texts = cells.tolist() if isinstance(cells, np.ndarray) else cells
    if not all(type(cell) is str for cell in texts):
        return _numbers_of_objects(texts, column, read, missing)
    if _is_plain(column, dialect) and _NUMERALS.fullmatch("\n".join(texts)):  # fast, for most files
        try:
            values = np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
        except ValueError:
            pass
        else:
            if np.isfinite(values).all():
                return missing.removed(values), _NO_ROWS
    values_of = {cell: read(cell.strip()) for cell in set(texts)}
    values = np.fromiter(map(values_of.__getitem__, texts), dtype=np.float64, count=len(texts))
    lacking = np.flatnonzero(np.isnan(values))
    return missing.removed(values), _places(
        at for at in lacking.tolist() if texts[at].strip() not in missing.words
    )


@dataclass(frozen=True)
class _Missing:
    """The values that are missing in a column of numbers: words, and numbers whatever their spelling."""

    words: frozenset[str]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, declared: Sequence[str], column: Column, read: Callable[[str], float]) -> _Missing:
        as_numbers = _as_float if column.kind == "boolean" else read  # a reader of booleans cannot read 9
        numbers = {number for word in declared if not math.isnan(number := as_numbers(word))}
        return cls(MISSING_WORDS.union(declared), tuple(sorted(numbers)))

    def removed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(self.among(values), np.nan, values) if self.numbers else values

    def among(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        return np.isin(values, np.asarray(self.numbers))

    def holds(self, cell: Any) -> bool:
        if isinstance(cell, str):
            return cell.strip() in self.words
        return _is_missing(cell) or (isinstance(cell, int | float | Decimal) and cell in self.numbers)


def _as_float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def words_of(
    cells: Cells, declared: Collection[str] = (), missing_words: Collection[str] = ()
) -> list[str | None]:
    """Read the cells as texts, with None for missing ones.

    A whole number is written without a point, because pandas stores integers as floats if a cell is missing.

    Args:
        cells: the cells.
        declared: words that are values even if they usually mark a missing value.
        missing_words: further words that mark a missing value in this column.
    """
    missing = MISSING_WORDS.union(missing_words) - set(declared)
    words = (_word(cell) for cell in (cells.tolist() if isinstance(cells, np.ndarray) else cells))
    return [None if word is None or word in missing else word for word in words]


def _word(cell: object) -> str | None:
    if isinstance(cell, str):
        return cell.strip()
    if _is_missing(cell):
        return None
    whole = isinstance(cell, float | np.floating) and cell.is_integer()
    return str(int(cell) if whole else cell).strip()  # type: ignore[call-overload]


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, NaT, or pandas' NA, which cannot be converted to a boolean."""
    if cell is None:
        return True
    try:
        return bool(cell != cell)
    except (ArithmeticError, TypeError, ValueError):  # from a signalling NaN, pandas' NA or an array
        return type(cell).__name__ == "NAType"


def _places(indices: Any) -> NDArray[np.int64]:
    return np.fromiter(indices, dtype=np.int64)


# --- texts -----------------------------------------------------------------------------------------------


def _form(column: Column, dialect: Dialect) -> tuple[str, str]:
    """Return the decimal point and the thousands mark, both from the column if it declares either."""
    if column.decimal is not None:
        return column.decimal, column.thousands or ""
    return dialect.decimal, dialect.thousands


def _is_plain(column: Column, dialect: Dialect) -> bool:
    return column.is_number and _form(column, dialect) == (".", "")


def _reader(column: Column, dialect: Dialect) -> Callable[[str], float]:
    """Return the function that reads a text as a number, or as NaN if it is not of the declared kind."""
    if column.is_moment:
        return reader_of_moments(column.kind, column.format)
    if column.kind == "boolean":
        words = dict.fromkeys((word.casefold() for word in column.true or TRUE), 1.0)
        words |= dict.fromkeys((word.casefold() for word in column.false or FALSE), 0.0)
        return lambda cell: words.get(cell.casefold(), math.nan)
    return _reader_of_numbers(column, *_form(column, dialect))


@lru_cache(maxsize=64)
def number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    point, mark = re.escape(decimal), re.escape(thousands)
    whole = rf"(?:[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+|[0-9]+)" if thousands else "[0-9]+"
    return re.compile(rf"[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _reader_of_numbers(column: Column, decimal: str, thousands: str) -> Callable[[str], float]:
    form = number_pattern(decimal, thousands)

    def read(cell: str) -> float:
        if column.unit:
            cell = cell.removesuffix(column.unit).rstrip()
        if column.below:
            cell = cell.removeprefix(column.below).lstrip()
        if column.unit:
            cell = cell.removeprefix(column.unit).lstrip()
        if not form.fullmatch(cell):
            return math.nan
        value = float(cell.replace(thousands, "").replace(decimal, "."))
        return value if math.isfinite(value) else math.nan

    return read


# --- types -----------------------------------------------------------------------------------------------


def _typed_numbers(
    cells: NDArray[Any], column: Column, missing: _Missing
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if column.kind not in _TYPED.get(cells.dtype.kind, ()):
        raise InvalidInput(f"it is declared as {column.kind} but is {cells.dtype} in the table.")
    if cells.dtype.kind != "M":
        values = missing.removed(cells.astype(np.float64))
        wrong = ~np.isnan(values) & (column.kind == "boolean") & (values != 0.0) & (values != 1.0)
        return np.where(wrong, np.nan, values), np.flatnonzero(wrong)
    if column.kind == "date":
        days = cells.astype("datetime64[D]")
        wrong = (days != cells) & ~np.isnat(cells)
        values = np.where(np.isnat(cells) | wrong, np.nan, (days - np.datetime64(0, "D")) / _DAY)
    else:
        wrong = np.zeros(len(cells), dtype=np.bool_)
        values = (cells - np.datetime64(0, "s")) / np.timedelta64(1, "s")  # NaT is NaN
    return missing.removed(values), np.flatnonzero(wrong)


def _numbers_of_objects(
    cells: Sequence[Any], column: Column, read: Callable[[str], float], missing: _Missing
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    lacking = np.fromiter(map(missing.holds, cells), np.bool_, len(cells))
    values = np.fromiter((_number(cell, column.kind, read) for cell in cells), np.float64, len(cells))
    return missing.removed(values), np.flatnonzero(np.isnan(values) & ~lacking)


def _number(cell: object, kind: str, read: Callable[[str], float]) -> float:
    if isinstance(cell, str):
        return read(cell.strip())
    if _is_missing(cell):
        return math.nan
    if isinstance(cell, np.datetime64):
        cell = cell.astype("datetime64[us]").item()
    match kind:
        case "number" | "integer":
            fits = isinstance(cell, int | float | np.number | Decimal) and not isinstance(cell, bool)
        case "boolean":
            fits = isinstance(cell, bool | np.bool_ | int | float | np.number) and cell in (0, 1)
        case "datetime" if isinstance(cell, dt.date) and not isinstance(cell, dt.datetime):
            cell, fits = dt.datetime(cell.year, cell.month, cell.day), True
        case "date" if isinstance(cell, dt.datetime):
            fits, cell = cell.time() == dt.time(), cell.date()
        case _:
            fits = isinstance(cell, dt.date)
    if not fits:
        return math.nan
    try:
        return number_of_moment(cell) if isinstance(cell, dt.date) else float(cell)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):  # from 10**400, a complex number or a signalling NaN
        return math.nan
