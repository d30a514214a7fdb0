"""Readers of the cells of a table: CSV, Parquet and JSON Lines files in pieces, and data frames."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tacit.columns.column import Dialect, nearest
from tacit.columns.names import identifies
from tacit.columns.reading import Cells, words_of
from tacit.errors import InvalidInput, needed

_ENDINGS = (".csv", ".tsv")
_CHUNK = 1 << 16  # rows
_LONGEST = 1 << 26  # the most characters of a cell: enough for a book
_SHOWN = 10  # the most row numbers in one message


class MalformedTable(InvalidInput):
    """A file is not a table: a row has too many or too few cells, or a quoted text does not end.

    Attributes:
        rows: the number of rows with a wrong number of cells; None if the file could not be read to its end.
        places: the numbers of the first few such rows, or of the row where reading ended. 1 is the first row
            below the header.
    """

    def __init__(self, message: str, *, rows: int | None = None, places: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows, self.places = rows, tuple(places)


def is_csv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(_ENDINGS)


def row_numbers(places: Sequence[int], count: int | None = None) -> str:
    return f"row{'' if len(places) == 1 else 's'} {first_few(places, count)}"


def first_few(places: Sequence[int], count: int | None = None) -> str:
    text = ", ".join(f"{place:,}" for place in places[:_SHOWN])
    more = (len(places) if count is None else count) - min(len(places), _SHOWN)
    return text + (f" and {more:,} more" if more > 0 else "")


def check_names(names: Sequence[str], columns: Collection[str], source: str) -> None:
    """Check that a table has each of the columns exactly once, in whatever case of letters.

    DuckDB and Spark ignore case, and DuckDB renames a second such column. So another column could be read.
    """
    counts = Counter(names)
    if lacking := [name for name in columns if name not in counts]:
        hint = nearest(lacking[0], names, "it has", cutoff=0.5)
        raise InvalidInput(f"{source} has no column {', '.join(map(repr, lacking))}; {hint}")
    if double := [name for name in columns if counts[name] > 1]:
        raise InvalidInput(f"{source} has {counts[double[0]]} columns named {double[0]!r}; rename them.")
    spellings = Counter(name.casefold() for name in names)
    if twin := next((name for name in columns if spellings[name.casefold()] > 1), None):
        same = ", ".join(repr(name) for name in names if name.casefold() == twin.casefold())
        raise InvalidInput(
            f"{source} has columns {same}, which differ only in the case of letters: some programs would "
            "read another one. Rename them."
        )


class CsvFile:
    """A CSV file whose first line names the columns.

    Args:
        path: the path of the file; it ends in ``.gz`` if the file is compressed.
        columns: the columns to read.
        dialect: the format of the file; by default UTF-8 with commas, or tabs in a ``.tsv`` file.
    """

    def __init__(self, path: Path, columns: Collection[str], dialect: Dialect | None = None) -> None:
        self._path, self._dialect = path, dialect or Dialect()
        self._separator = self._dialect.separator_of(path)
        if not path.is_file():
            raise InvalidInput(f"there is no table at {path}. Check the path.")
        try:
            with self._open(errors="surrogateescape") as file:  # the buffer also decodes the first rows
                self.header = [name.strip() for name in next(self._lines(file), [])]
            "".join(self.header).encode()
        except (OSError, EOFError, UnicodeError, csv.Error):
            raise InvalidInput(
                f"the first line of {path} cannot be read in {self._dialect.encoding}; a table must begin "
                "with the names of its columns. If it has another encoding, declare encoding in [table]."
            ) from None
        other = next((sign for sign in ";\t|," if len(self.header) == 1 and sign in self.header[0]), None)
        if other is not None and any(self.header != [column] for column in columns):
            raise InvalidInput(
                f"the first line of {path} holds no {self._separator!r} but {other!r}. Declare separator = "
                f"{json.dumps(other)} in [table], if that separates its cells."
            )
        check_names(self.header, columns, f"the table {path}")
        self._places = {column: self.header.index(column) for column in columns}

    def chunks(self, rows: int = _CHUNK) -> Iterator[dict[str, list[str]]]:
        """Yield the columns in pieces of ``rows`` rows, with the spaces around each cell stripped.

        An empty line is not a row.
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
        encoding = "utf-8-sig" if name == "utf-8" else name  # "-sig" skips a byte order mark
        if self._path.suffix.lower() == ".gz":
            return gzip.open(self._path, "rt", encoding=encoding, errors=errors, newline="")
        return self._path.open(encoding=encoding, errors=errors, newline="")

    def _lines(self, file: TextIO) -> Any:
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
        return csv.reader(
            file,
            delimiter=self._separator,
            quotechar=self._dialect.quote,
            skipinitialspace=True,
            strict=True,
        )


ROWS = 1 << 13
"""The number of rows that are read at a time; more rows need more memory, fewer need more time."""


def pieces(
    path: Path, columns: Collection[str], dialect: Dialect | None = None, rows: int = ROWS
) -> Iterator[dict[str, Cells]]:
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from _parquet_pieces(path, columns, rows)
    elif is_json(path):
        yield from _json_pieces(path, columns, rows)
    else:
        for chunk in CsvFile(path, columns, dialect).chunks(rows):
            yield dict(chunk)


def names_of_file(path: Path, dialect: Dialect | None = None) -> list[str]:
    if is_json(path) and path.is_file():
        return list(next(_objects(path), {}))
    if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
        return CsvFile(path, (), dialect).header
    pyarrow = arrow_with_parquet()
    try:
        return [str(name) for name in pyarrow.parquet.read_schema(path).names]
    except (OSError, pyarrow.ArrowException):
        raise _damaged(path) from None


def whole_table(path: Path, columns: Collection[str], dialect: Dialect | None = None) -> dict[str, Cells]:
    chunks: dict[str, list[Cells]] = {column: [] for column in columns}
    for piece in pieces(path, columns, dialect):
        for column, cells in piece.items():
            chunks[column].append(cells)
    table = {column: _joined(parts) for column, parts in chunks.items()}
    if not all(len(cells) for cells in table.values()):
        raise InvalidInput(f"the table {path} holds no rows.")
    return table


def _joined(parts: list[Cells]) -> Cells:
    if parts and all(isinstance(part, np.ndarray) and part.dtype == parts[0].dtype for part in parts):  # type: ignore[union-attr]
        return np.concatenate(parts)
    return [cell for part in parts for cell in part]


def _parquet_pieces(path: Path, columns: Collection[str], rows: int) -> Iterator[dict[str, Cells]]:
    pyarrow = arrow_with_parquet()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_names(list(file.schema_arrow.names), columns, f"the table {path}")
            for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                yield {column: arrow_cells(batch.column(column)) for column in columns}
    except (OSError, pyarrow.ArrowException):  # their messages may hold a cell
        raise _damaged(path) from None


def arrow_with_parquet() -> Any:
    needed("pyarrow.parquet", "tables", "Reading Parquet files")
    return needed("pyarrow", "tables", "Reading Parquet files")


def is_json(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".jsonl")


def _json_pieces(path: Path, columns: Collection[str], rows: int) -> Iterator[dict[str, Cells]]:
    objects = _objects(path)
    first = True
    while piece := list(islice(objects, rows)):
        if first:
            check_names(sorted({name for row in piece for name in row}), columns, f"the table {path}")
        yield {column: [row.get(column) for row in piece] for column in columns}
        first = False


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig")
            if path.suffix.lower() == ".gz"
            else path.open(encoding="utf-8-sig") as file
        ):
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("no object")
                    yield row
    except (OSError, EOFError, ValueError, RecursionError):  # their messages may hold a cell
        raise InvalidInput(
            f"line {max(1, number):,} of {path} is no JSON object in UTF-8. Correct or remove it: each line "
            'must be an object, such as {"text": "..."}.'
        ) from None


def _damaged(path: Path) -> InvalidInput:
    return InvalidInput(f"cannot read {path} as Parquet: it is damaged, or not a Parquet file.")


def arrow_cells(array: Any) -> Cells:
    import pyarrow as pa

    kind = array.type
    copying = {} if hasattr(array, "chunks") else {"zero_copy_only": False}
    cells: Cells
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        cells = array.cast(pa.timestamp("us"), safe=False).to_numpy(**copying)
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        lacking = pa.types.is_boolean(kind) and array.null_count  # a missing number is NaN
        cells = array.to_pylist() if lacking else array.to_numpy(**copying)
    else:
        cells = array.to_pylist()
    return cells


def names_of_frame(data: Any) -> list[str]:
    kind = kind_of_frame(data)
    names = data.column_names if kind == "arrow" else data if kind == "mapping" else data.columns
    return [str(name) for name in names]


def kind_of_frame(data: object) -> str:
    if isinstance(data, Mapping):
        return "mapping"
    origin = (type(data).__module__.split(".")[0], type(data).__name__)
    match origin:
        case ("pandas" | "polars") as kind, "DataFrame":
            return kind
        case "pyarrow", "Table" | "RecordBatch":
            return "arrow"
    raise InvalidInput(
        f"data must be a table in memory; got {type(data).__module__}.{type(data).__name__}. Give a pandas "
        "or Polars DataFrame, a pyarrow Table, or a mapping from names to columns."
    )


def cells_of_frame(data: Any, columns: Collection[str], source: str = "the table") -> dict[str, Cells]:
    check_names(names_of_frame(data), columns, source)
    match kind_of_frame(data):
        case "mapping":
            if single := [column for column in columns if isinstance(data[column], str)]:
                raise InvalidInput(
                    f"column {single[0]!r} of {source} is a single text. Give a list with one cell for each "
                    "row."
                )
            return {column: data[column] for column in columns}
        case "pandas":
            return {column: _pandas_cells(data[column]) for column in columns}
        case "polars":
            data = data.select(list(columns)).to_arrow()
    return {column: arrow_cells(data.column(column)) for column in columns}


def _pandas_cells(series: Any) -> Cells:
    cells: Cells
    if isinstance(series.dtype, np.dtype):
        cells = series.to_numpy()
    elif hasattr(series.dtype, "tz"):
        cells = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    elif getattr(series.dtype, "kind", "O") in "iuf":  # a nullable type of numbers
        cells = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        cells = series.to_numpy(dtype=object, na_value=None)
    return cells


def unit_columns(names: Sequence[str], unit: str, kinds: Mapping[str, str]) -> list[str]:
    """Return the columns that identify the units by their names.

    Args:
        names: the names of all columns.
        unit: the word for the unit of privacy.
        kinds: the kinds of the declared columns.  A category called ``patient`` may be a kind of patients.
    """
    return [name for name in names if identifies(name, unit, kinds.get(name, ""))]


def repeated_in_file(
    path: Path, unit: str, kinds: Mapping[str, str], dialect: Dialect | None = None
) -> str | None:
    """Return a column of a file that identifies the units and has repeated values; None if there is none."""
    columns = unit_columns(names_of_file(path, dialect), unit, kinds)
    return _repeated(columns, lambda: pieces(path, columns, dialect))


def has_column_names(data: object) -> bool:
    try:
        kind_of_frame(data)
    except InvalidInput:
        return False
    return True


def repeated_in_frame(frame: object, unit: str, kinds: Mapping[str, str] | None = None) -> str | None:
    """Return a column of a data frame that identifies the units and has repeated values; None if none has.

    If ``patient_id`` repeats and the unit is a patient, a promise for one row is none for a patient.

    **Guarantee**

    * The result depends on single records. It is only for the person who has the table, and nothing that is
      released may contain it.
    """
    columns = unit_columns(names_of_frame(frame), unit, kinds or {})
    return _repeated(columns, lambda: [cells_of_frame(frame, columns)])


def _repeated(columns: Collection[str], read: Callable[[], Iterable[Mapping[str, Cells]]]) -> str | None:
    if not columns:
        return None

    values: dict[str, set[str]] = {name: set() for name in columns}
    for piece in read():
        for name, before in values.items():
            words = [word for word in words_of(piece[name]) if word is not None]
            distinct = before.union(words)
            if len(distinct) < len(before) + len(words):
                return name
            values[name] = distinct
    return None
