"""Readers of files and data frames, with the same rules for cells in training, queries and checks."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.columns.column import FALSE, TRUE, Column, Dialect, nearest, number_of_moment, reader_of_moments
from tacit.errors import InvalidInput, needed, without_values

# The spaces around a cell are stripped. A cell is *missing* if it is empty, one of a few words (``NA``,
# ``null``, ``?``, ...), or one of the ``missing_values`` of the column or the table. A word that the column
# declares as a value is not missing. Every other cell is either of the declared kind or *unreadable*. For
# instance, ``1,002``, ``$5`` and ``5 mg`` are not numbers unless the column declares that thousands mark or
# unit.

MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"})
"""The words that mark a missing value in every column."""

Cells: TypeAlias = Sequence[Any] | NDArray[Any]
"""The cells of a column: a file's strings, a typed array, or Python objects; None and NaN are missing."""

_NUMERALS = re.compile(r"[0-9eE+\-.\n]*")  # if ``float`` reads a text of only these, it is a number
_TYPED = {"b": ("boolean",), "i": ("number", "integer", "boolean"), "M": ("date", "datetime")}
_TYPED |= dict.fromkeys("uf", _TYPED["i"])


def declared_missing(column: Column | None, dialect: Dialect | None = None) -> tuple[str, ...]:
    return tuple(str(word) for holder in (column, dialect) if holder for word in holder.missing_values)


def numbers_of(
    cells: Cells, column: Column, dialect: Dialect | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the cells as numbers, NaN if missing or unreadable, and the indices of unreadable ones."""
    # A boolean is 0 or 1, a date is in days and a datetime in seconds since 1970-01-01.
    dialect = dialect or Dialect()
    read = _reader(column, dialect)
    words = declared_missing(column, dialect)
    # a declared number is missing whatever its spelling; the reader of a boolean cannot read 9
    number_in = _as_float if column.kind == "boolean" else read
    numbers = [number for word in words if not math.isnan(number := number_in(word))]

    if isinstance(cells, np.ndarray) and cells.dtype.kind not in "OU":
        values, unread = _typed_numbers(cells, column, numbers)
    else:
        items = cells.tolist() if isinstance(cells, np.ndarray) else cells
        values = _numbers_in(items, column, dialect, read)
        unread = np.isnan(values)
        for at in np.flatnonzero(unread).tolist():
            unread[at] = not _is_declared_missing(items[at], MISSING_WORDS.union(words), numbers)
    return np.where(unread | np.isin(values, numbers), np.nan, values), np.flatnonzero(unread)


def _numbers_in(
    items: Sequence[Any], column: Column, dialect: Dialect, read: Callable[[str], float]
) -> NDArray[np.float64]:
    if not all(type(item) is str for item in items):
        return np.fromiter((_number(item, column.kind, read) for item in items), np.float64, len(items))
    is_plain = column.is_number and _form(column, dialect) == (".", "")
    if is_plain and _NUMERALS.fullmatch("\n".join(items)):  # fast, for most files
        try:
            values = np.fromiter(map(float, items), np.float64, len(items))
        except ValueError:
            pass
        else:
            if np.isfinite(values).all():
                return values
    value_of = {item: read(item.strip()) for item in set(items)}
    return np.fromiter(map(value_of.__getitem__, items), np.float64, len(items))


def _is_declared_missing(item: Any, words: Collection[str], numbers: Collection[float]) -> bool:
    if isinstance(item, str):
        return item.strip() in words
    return _is_missing(item) or (isinstance(item, int | float | Decimal) and item in numbers)


def _as_float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def words_of(
    cells: Cells, declared: Collection[str] = (), missing_words: Collection[str] = ()
) -> list[str | None]:
    """Return the cells as strings, None if missing; ``declared`` words are never missing."""
    # A whole number is written without a point, because pandas stores integers as floats if a cell is
    # missing.
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


# --- texts -----------------------------------------------------------------------------------------------


def _form(column: Column, dialect: Dialect) -> tuple[str, str]:
    """Return the decimal point and the thousands mark, both from the column if it declares either."""
    if column.decimal is not None:
        return column.decimal, column.thousands or ""
    return dialect.decimal, dialect.thousands


def _reader(column: Column, dialect: Dialect) -> Callable[[str], float]:
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
    cells: NDArray[Any], column: Column, missing: list[float]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers in a typed array, NaN if missing, and whether each is not of the declared kind."""
    if column.kind not in _TYPED.get(cells.dtype.kind, ()):
        raise InvalidInput(f"declared as {column.kind}, but {cells.dtype} in the table.")
    if column.kind == "date":
        days = cells.astype("datetime64[D]")
        return (days - np.datetime64(0, "D")) / np.timedelta64(1, "D"), (days != cells) & ~np.isnat(cells)
    if column.kind == "datetime":
        values = (cells - np.datetime64(0, "s")) / np.timedelta64(1, "s")  # NaT is NaN
        return values, np.zeros(len(cells), np.bool_)
    values = cells.astype(np.float64)
    fits = np.isnan(values) | np.isin(values, [0.0, 1.0, *missing])
    return values, ~fits & (column.kind == "boolean")


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


# --- files -------------------------------------------------------------------------------------------------

_ENDINGS = (".csv", ".tsv")
_CHUNK = 1 << 16  # rows
_LONGEST = 1 << 26  # the most characters of a cell: enough for a book
_SHOWN = 10  # the most row numbers in one message


class MalformedTable(InvalidInput):
    """A file is not a table: a row has too many or too few cells, or a quoted string is not closed.

    Attributes:
        rows: the number of rows with a wrong number of cells; None if the file could not be read to its end.
        places: the numbers of the first few such rows, or of the row where reading stopped; 1 is the first
            row below the header.
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
    """Check that a table has each column exactly once, ignoring case."""
    # DuckDB and Spark ignore case, and DuckDB renames a second such column. So another column could be read.
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
            f"{source} has columns {same}, which differ only in case: some programs would read the wrong "
            "one. Rename them."
        )


class CsvFile:
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
                f"the first line of {path} cannot be read as {self._dialect.encoding}. If the file has "
                "another encoding, declare encoding in [table]; the first line must contain the column "
                "names."
            ) from None
        other = next((sign for sign in ";\t|," if len(self.header) == 1 and sign in self.header[0]), None)
        if other is not None and any(self.header != [column] for column in columns):
            raise InvalidInput(
                f"the first line of {path} contains {other!r} but no {self._separator!r}. Declare separator "
                f"= {json.dumps(other)} in [table] if that separates its cells."
            )
        check_names(self.header, columns, f"the table {path}")
        self._places = {column: self.header.index(column) for column in columns}

    def chunks(self, rows: int = _CHUNK) -> Iterator[dict[str, list[str]]]:
        """Yield the columns in chunks of ``rows`` rows, with spaces around cells stripped."""
        # An empty line is not a row.
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
                f"{count:,} rows of {self._path} do not have {len(self.header)} cells, as the header has "
                f"({row_numbers(wrong, count)}), so values would be in the wrong columns. Correct these "
                "rows.",
                rows=count,
                places=wrong,
            )

    def _piece(self, lines: Any, rows: Iterator[list[str]], most: int) -> list[list[str]]:
        try:
            return list(islice(rows, most))
        except (OSError, EOFError, UnicodeError, csv.Error):
            raise MalformedTable(
                f"{self._path} cannot be read to its end: after line {lines.line_num:,} it is not CSV in "
                f"{self._dialect.encoding}, or a quoted string is not closed. Save it as CSV in UTF-8, "
                "with double quotes around strings that contain a separator; or declare its format in "
                "[table].",
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
        return list(next(lines_of_json(path), {}))
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
        raise InvalidInput(f"the table {path} has no rows.")
    return table


def _joined(parts: list[Cells]) -> Cells:
    if parts and all(isinstance(part, np.ndarray) and part.dtype == parts[0].dtype for part in parts):  # type: ignore[union-attr]
        return np.concatenate(parts)
    return [cell for part in parts for cell in part]


def _parquet_pieces(path: Path, columns: Collection[str], rows: int) -> Iterator[dict[str, Cells]]:
    pyarrow = arrow_with_parquet()
    try:
        # with pre_buffer, Arrow keeps all that it has read of the file in memory
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
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
    objects = lines_of_json(path)
    first = True
    while piece := list(islice(objects, rows)):
        if first:
            check_names(sorted({name for row in piece for name in row}), columns, f"the table {path}")
        yield {column: [row.get(column) for row in piece] for column in columns}
        first = False


def lines_of_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object on each line of a file, plain or .gz; an error names the line alone."""
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
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Check the file.") from None
    except (ValueError, RecursionError):  # their messages may hold a cell
        raise InvalidInput(
            f"line {max(1, number):,} of {path} is not a JSON object in UTF-8. Remove it, or correct it, "
            f'such as {{"text": "..."}}.'
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
        f"data must be a table in memory; got {type(data).__module__}.{type(data).__name__}. Pass a pandas "
        "or Polars DataFrame, a pyarrow Table, or a mapping from names to columns."
    )


def cells_of_frame(data: Any, columns: Collection[str], source: str = "the table") -> dict[str, Cells]:
    check_names(names_of_frame(data), columns, source)
    match kind_of_frame(data):
        case "mapping":
            if single := [column for column in columns if isinstance(data[column], str)]:
                raise InvalidInput(
                    f"column {single[0]!r} of {source} is a single string. Pass a list with one cell per row."
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


def has_column_names(data: object) -> bool:
    try:
        kind_of_frame(data)
    except InvalidInput:
        return False
    return True
