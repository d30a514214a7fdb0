"""What does a cell of a CSV file mean? One reader and one rule for training, for queries and for checks.

A cell is stripped of the spaces around it.  It is *missing* if it is empty or one of a few words for nothing
(``NA``, ``null``, ``?``, ...), unless the column declares that word as a value.  Everything else is what its
column declares, or it is *unreadable*: ``1,002``, ``$5`` and ``5 mg`` are not numbers.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

__all__ = [
    "MISSING_WORDS",
    "CsvFile",
    "MalformedTable",
    "find_column",
    "first_few",
    "is_csv",
    "numbers_of",
    "row_numbers",
    "truths_of",
    "words_of",
]

MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"})
"""Cells that hold no value."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMERALS = re.compile(r"[0-9eE+\-.\n]*")  # whatever ``float`` reads of these characters is a number
_TRUTHS = {"true": True, "t": True, "yes": True, "y": True, "1": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False
}  # fmt: skip
_CHUNK = 1 << 16  # rows
_SHOWN = 10  # row numbers in one message


class MalformedTable(InvalidInput):
    """A file that is not a table: a row has too many cells or too few, or a text does not end.

    Attributes:
        rows: how many rows are concerned; None if reading ended at the first.
        places: the numbers of the first few, or of the line where reading ended; 1 is the first row below
            the header.
    """

    def __init__(self, message: str, *, rows: int | None = None, places: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows, self.places = rows, tuple(places)


def is_csv(path: Path) -> bool:
    """Whether a file is read as CSV, by its ending: ``.csv``, ``.tsv``, or one of these and ``.gz``.

    >>> [is_csv(Path(name)) for name in ("a.csv", "a.TSV.gz", "a.parquet")]
    [True, True, False]
    """
    return _suffix(path) in _DELIMITERS


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def row_numbers(places: Sequence[int], count: int | None = None) -> str:
    """The first few row numbers in words.

    >>> row_numbers([3, 5]), row_numbers(range(1, 11), 40)
    ('rows 3, 5', 'rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 30 more')
    """
    return f"row{'' if len(places) == 1 else 's'} {first_few(places, count)}"


def first_few(places: Sequence[int], count: int | None = None) -> str:
    """The same without the word.

    >>> first_few([3, 5], 6)
    '3, 5 and 4 more'
    """
    shown = ", ".join(f"{place:,}" for place in places[:_SHOWN])
    more = (len(places) if count is None else count) - min(len(places), _SHOWN)
    return shown + (f" and {more:,} more" if more > 0 else "")


class CsvFile:
    """A CSV file in UTF-8 whose first line names the columns; commas, or tabs in a ``.tsv`` file.

    Args:
        path: of the file; with ``.gz`` at the end it is uncompressed.
        columns: those to read.

    Raises:
        InvalidInput: there is no such file or column.  Nothing but the first line has been read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("name, age\\nAnn, 30\\nBob, NA\\n")
    >>> next(CsvFile(path, ["age"]).chunks())
    {'age': ['30', 'NA']}
    """

    def __init__(self, path: Path, columns: Collection[str]) -> None:
        self._path = path
        self._delimiter = _DELIMITERS.get(_suffix(path), ",")
        if not path.is_file():
            raise InvalidInput(f"there is no table at {path}. Check the path.")
        try:
            with self._open(errors="surrogateescape") as file:  # a buffer holds the first rows as well
                self.header = [name.strip() for name in next(self._lines(file), [])]
            "".join(self.header).encode()
        except (OSError, EOFError, UnicodeEncodeError, csv.Error):
            raise InvalidInput(
                f"the first line of {path} is no list of column names in UTF-8; a table begins with one."
            ) from None
        self._places = {column: find_column(path, self.header, column) for column in columns}

    def chunks(self) -> Iterator[dict[str, list[str]]]:
        """The columns in pieces of some thousand rows, each cell without the spaces around it.

        An empty line is no row.

        Raises:
            MalformedTable: rows have another number of cells than the header, which would put values into
                wrong columns; or the file cannot be read to its end.
        """
        wrong: list[int] = []
        read = count = 0
        with self._open() as file:
            lines = self._lines(file)
            rows = filter(None, lines)
            self._piece(lines, rows, 1)  # the header
            while piece := self._piece(lines, rows, _CHUNK):
                width = len(self.header)
                ragged = [read + place for place, line in enumerate(piece, 1) if len(line) != width]
                count += len(ragged)
                wrong += ragged[: _SHOWN - len(wrong)]
                read += len(piece)
                if not count:
                    cells = list(zip(*piece, strict=True))
                    yield {name: [cell.strip() for cell in cells[at]] for name, at in self._places.items()}
        if count:
            raise MalformedTable(
                f"{count:,} rows of {self._path} do not have the {len(self.header)} cells that the header "
                f"names ({row_numbers(wrong, count)}). Correct them, for their values would be in the wrong "
                "columns.",
                rows=count,
                places=wrong,
            )

    def _piece(self, lines: Any, rows: Iterator[list[str]], most: int) -> list[list[str]]:
        try:
            return list(islice(rows, most))
        except (OSError, EOFError, UnicodeDecodeError, csv.Error):
            raise MalformedTable(
                f"{self._path} cannot be read to its end: after line {lines.line_num:,} it is not CSV in "
                "UTF-8, or a quoted text does not end. Save it as CSV in UTF-8, with double quotes around "
                "texts that hold a separator.",
                places=[max(1, lines.line_num - 1)],
            ) from None

    def _open(self, errors: str = "strict") -> TextIO:
        if self._path.suffix.lower() == ".gz":
            return gzip.open(self._path, "rt", encoding="utf-8-sig", errors=errors, newline="")
        return self._path.open(encoding="utf-8-sig", errors=errors, newline="")

    def _lines(self, file: TextIO) -> Any:
        return csv.reader(file, delimiter=self._delimiter, skipinitialspace=True, strict=True)


def find_column(path: Path, header: Sequence[str], column: str) -> int:
    """The position of a column in the first line of a table.

    Raises:
        InvalidInput: the column is missing, or there twice.
    """
    found = header.count(column)
    if found > 1:
        raise InvalidInput(f"the table {path} has {found} columns named {column!r}; rename them.")
    if not found:
        near = difflib.get_close_matches(column, header, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(header) or 'none'}."
        raise InvalidInput(f"the table {path} has no column {column!r}; {hint}")
    return header.index(column)


def numbers_of(cells: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The cells as numbers, NaN where there is none; and the positions, from 0, of those that are unreadable.

    >>> values, unreadable = numbers_of(["1.5", "", "2e3", "1,002", "inf"])
    >>> values.tolist(), unreadable.tolist()
    ([1.5, nan, 2000.0, nan, nan], [3, 4])
    """
    if _NUMERALS.fullmatch("\n".join(cells)):  # most columns of most files
        try:
            values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            pass
        else:
            if np.isfinite(values).all():
                return values, np.empty(0, dtype=np.int64)
    values = np.fromiter(map(_number, cells), dtype=np.float64, count=len(cells))
    lacking = np.flatnonzero(np.isnan(values))
    return values, np.array([at for at in lacking.tolist() if cells[at] not in MISSING_WORDS], dtype=np.int64)


def _number(cell: str) -> float:
    value = float(cell) if _NUMBER.fullmatch(cell) else math.nan
    return value if math.isfinite(value) else math.nan


def truths_of(cells: Sequence[str]) -> tuple[list[bool | None], NDArray[np.int64]]:
    """The cells as truth values, None where there is none; and the positions of those that are unreadable.

    >>> truths_of(["true", "No", "1", "", "maybe"])[0]
    [True, False, True, None, None]
    """
    values = [_TRUTHS.get(cell.lower()) for cell in cells]
    unreadable = [
        at for at, (cell, value) in enumerate(zip(cells, values, strict=True))
        if value is None and cell not in MISSING_WORDS
    ]  # fmt: skip
    return values, np.array(unreadable, dtype=np.int64)


def words_of(cells: Sequence[str], declared: Collection[str] = ()) -> list[str | None]:
    """The cells as texts, None for those that are missing: a word that is declared is a value.

    >>> words_of(["a", "NA", "?"], declared=["NA"])
    ['a', 'NA', None]
    """
    missing = MISSING_WORDS - set(declared)
    return [None if cell in missing else cell for cell in cells]
