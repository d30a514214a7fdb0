"""Which cells does a CSV file hold? One reader for training, for queries and for checks."""

from __future__ import annotations

import csv
import difflib
import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tacit.columns.dialect import Dialect
from tacit.errors import InvalidInput

_ENDINGS = (".csv", ".tsv")
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
    return path.name.lower().removesuffix(".gz").endswith(_ENDINGS)


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
    """A CSV file whose first line names the columns.

    Args:
        path: of the file; with ``.gz`` at the end it is uncompressed.
        columns: those to read.
        dialect: how it is written; by default in UTF-8 with commas, or tabs in a ``.tsv`` file.

    Raises:
        InvalidInput: there is no such file or column.  Nothing but the first line has been read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("name, age\\nAnn, 30\\nBob, NA\\n")
    >>> next(CsvFile(path, ["age"]).chunks())
    {'age': ['30', 'NA']}
    """

    def __init__(self, path: Path, columns: Collection[str], dialect: Dialect | None = None) -> None:
        self._path, self._dialect = path, dialect or Dialect()
        self._separator = self._dialect.separator_of(path)
        if not path.is_file():
            raise InvalidInput(f"there is no table at {path}. Check the path.")
        try:
            with self._open(errors="surrogateescape") as file:  # a buffer holds the first rows as well
                self.header = [name.strip() for name in next(self._lines(file), [])]
            "".join(self.header).encode()
        except (OSError, EOFError, UnicodeError, csv.Error):
            raise InvalidInput(
                f"the first line of {path} is no list of column names in {self._dialect.encoding}; a table "
                "begins with one. If its text is in another encoding, declare that as encoding in [table]."
            ) from None
        self._places = {column: self._place(column) for column in columns}

    def _place(self, column: str) -> int:
        other = next((sign for sign in ";\t|," if len(self.header) == 1 and sign in self.header[0]), None)
        if other is None or self.header == [column]:
            return find_column(self._path, self.header, column)
        raise InvalidInput(
            f"the first line of {self._path} holds no {self._separator!r} but {other!r}. Declare separator = "
            f"{json.dumps(other)} in [table], if that stands between its cells."
        )

    def chunks(self, rows: int = _CHUNK) -> Iterator[dict[str, list[str]]]:
        """The columns in pieces of so many rows, each cell without the spaces around it.

        An empty line is no row.

        Raises:
            MalformedTable: rows have another number of cells than the header, which would put values into
                wrong columns; or the file cannot be read to its end.
        """
        wrong: list[int] = []
        read = count = 0
        with self._open() as file:
            lines = self._lines(file)
            full = filter(None, lines)
            self._piece(lines, full, 1)  # the header
            while piece := self._piece(lines, full, rows):
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
        except (OSError, EOFError, UnicodeError, csv.Error):
            raise MalformedTable(
                f"{self._path} cannot be read to its end: after line {lines.line_num:,} it is not CSV in "
                f"{self._dialect.encoding}, or a quoted text does not end. Save it as CSV in UTF-8, with "
                "double quotes around texts that hold a separator; or declare how it is written in [table].",
                places=[max(1, lines.line_num - 1)],
            ) from None

    def _open(self, errors: str = "strict") -> TextIO:
        name = self._dialect.encoding
        encoding = "utf-8-sig" if name == "utf-8" else name  # which skips a byte order mark
        if self._path.suffix.lower() == ".gz":
            return gzip.open(self._path, "rt", encoding=encoding, errors=errors, newline="")
        return self._path.open(encoding=encoding, errors=errors, newline="")

    def _lines(self, file: TextIO) -> Any:
        return csv.reader(
            file,
            delimiter=self._separator,
            quotechar=self._dialect.quote,
            skipinitialspace=True,
            strict=True,
        )


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
