"""Proposals for the format of a table and the kinds of its columns, which the curator has to check.

They are made from the first rows of a file, and from the types in a Parquet or Arrow file.

**Guarantee**

* The names of the columns are copied from the file, the cells are not. The proposal for a column comes from
  fixed lists of kinds, number formats, units, date formats and words for a missing value. The proposal for
  the file comes from fixed lists of separators, quotes and encodings. No bound, value or count comes from the
  cells: usual bounds follow from the name of a column (:mod:`tacit.columns.names`).
* The choice from these lists depends on the first rows, so it is not differentially private. It is for the
  curator, who knowingly publishes it with the file that contains the proposal.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tacit.columns.kinds import FoundColumn, corrected_by_name, find_columns, looks_like_data
from tacit.columns.names import check_names
from tacit.columns.reading import MISSING_WORDS, words_of
from tacit.columns.tables import arrow_cells
from tacit.errors import InvalidInput, needed

SAMPLE_ROWS = 1000
"""The number of first rows of a table that are read."""

_ENDINGS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
_SEPARATORS = (",", ";", "\t", "|")
_TYPED = (".parquet", ".pq", ".arrow", ".feather")
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_LONGEST_LINE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Sniffed:
    """The proposed format of a table and of its columns.

    Attributes:
        dialect: the settings of ``[table]``: separator, quote, encoding, decimal, thousands. They are empty
            for a Parquet or Arrow file.
        columns: for each column, its kind and formats.
        unnamed: the positions, from 1, of columns without a name, which cannot be used.
        rows: the number of rows that were read.
    """

    dialect: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, FoundColumn]
    unnamed: tuple[int, ...] = ()
    rows: int = 0


def sniff(path: Path | str) -> Sniffed:
    """Propose the dialect and the columns of a table; see the guarantee of the module.

    Args:
        path: a .csv or .tsv file, which may also end in .gz, or a .parquet, .arrow or .feather file.

    Raises:
        InvalidInput: if the file cannot be read, is not a table, or does not begin with a line of names.
        MissingExtra: if the file is Parquet, Arrow or Feather, and pyarrow is not installed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("name;weight;born\\nA;72,5;1.2.1980\\nB;80,0;30.11.1975\\n")
    >>> table = sniff(path)
    >>> table.dialect["separator"], table.dialect["decimal"], table.columns["born"].settings
    (';', ',', {'format': '%d.%m.%Y'})
    """
    path = Path(path)
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in _TYPED:
        return _typed_table(path, ending)
    if ending not in _ENDINGS:
        raise InvalidInput(
            f"{path.name!r} is no table that can be read. Give a .csv or .tsv file (also with .gz), or a "
            ".parquet, .arrow or .feather file. Save a spreadsheet as CSV."
        )
    raw, whole = _first_lines(path)
    encoding = _encoding(raw, path)
    text = _decoded(raw, encoding, whole)
    separator, quote = _best_dialect(text, _ENDINGS[ending])
    header, rows = _checked_rows(path, _rows(text, separator, quote)[0])
    cells = {name: [row[at].strip() for row in rows] for at, name in enumerate(header) if name}
    numbers, columns = find_columns(cells, separator)
    columns |= {
        name: replace(columns[name], doubt="its name is also a value: does the first line hold names?")
        for name in _names_among_values(header, rows)
    }
    dialect = {"separator": separator, "quote": quote, "encoding": encoding, **numbers}
    unnamed = tuple(at for at, name in enumerate(header, 1) if not name)
    return Sniffed(dialect=dialect, columns=columns, unnamed=unnamed, rows=len(rows))


# --- bytes to text -----------------------------------------------------------------------------------------


def _first_lines(path: Path) -> tuple[bytes, bool]:
    """Return the bytes of the first lines, and whether they are the whole file."""
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            lines = [file.readline(_LONGEST_LINE) for _ in range(SAMPLE_ROWS + 1)]
            return b"".join(lines), not file.read(1)
    except (OSError, EOFError):
        raise InvalidInput(f"the table {path} cannot be read. Check the path and its permissions.") from None


def _encoding(raw: bytes, path: Path) -> str:
    for mark, name in _MARKS.items():
        if raw.startswith(mark):
            return name
    if b"\x00" in raw:
        raise InvalidInput(f"{path} is no text file: it holds NUL bytes. Save the table as CSV in UTF-8.")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        # Most bytes of 0x80 to 0x9f are printable in Windows' code page, and control characters in Latin-1.
        return "cp1252" if re.search(rb"[\x80\x82-\x8c\x8e\x91-\x9c\x9e\x9f]", raw) else "latin-1"
    return "utf-8"


def _decoded(raw: bytes, encoding: str, whole: bool) -> str:
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)
    return decoder(errors="replace").decode(raw, whole)


# --- text to rows ------------------------------------------------------------------------------------------


def _best_dialect(text: str, usual: str) -> tuple[str, str]:
    """Choose the separator and quote with which most rows have as many cells as the first row (2 or more)."""
    separators = sorted(_SEPARATORS, key=lambda each: each != usual)
    scores = {(each, quote): _score(text, each, quote) for quote in "\"'" for each in separators}
    separator, quote = max(scores, key=scores.__getitem__)
    if scores[separator, quote][1] < 2:  # the table has one column, so any separator fits
        return usual, '"'
    if quote == '"' and _quoted_by_apostrophes(_rows(text, separator, quote)[0]):
        quote = "'"
    return separator, quote


def _score(text: str, separator: str, quote: str) -> tuple[float, int]:
    rows, fits = _rows(text, separator, quote)
    width = len(rows[0]) if rows else 0
    if width < 2 or not fits:
        return 0.0, width
    return sum(len(row) == width for row in rows) / len(rows), width


def _rows(text: str, separator: str, quote: str) -> tuple[list[list[str]], bool]:
    """Return the header and the rows below it, without empty ones, and whether all of the text was read."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, quotechar=quote, skipinitialspace=True, strict=True)
    rows: list[list[str]] = []
    try:
        rows.extend(islice(filter(None, reader), SAMPLE_ROWS + 1))
    except csv.Error:  # a wrong quote or separator or, at the end, a quoted cell that the sample cuts
        return rows, not lines.read(1)
    return rows, True


def _quoted_by_apostrophes(rows: Sequence[Sequence[str]]) -> bool:
    for column in zip(*rows[1:], strict=False):
        cells = [cell.strip() for cell in column if cell.strip()]
        if cells and all(len(cell) > 1 and cell[0] == cell[-1] == "'" for cell in cells):
            return True
    return False


def _checked_rows(path: Path, rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the header, and the rows of the same width; no error shows cells, which may be a record's."""
    if not rows:
        raise InvalidInput(f"the table {path} is empty; it must begin with a line of column names.")
    header = [name.strip() for name in rows[0]]
    below = [row for row in rows[1:] if len(row) == len(header)]
    wrong = [at for at, name in enumerate(header, 1) if looks_like_data(name) and not _are_counted(header)]
    among = _names_among_values(header, below)
    if 2 * len(among) >= sum(map(bool, header)):  # if fewer, names such as "male" may equal values by chance
        wrong += [header.index(name) + 1 for name in among]
    if wrong:
        raise InvalidInput(
            f"the first line of {path} does not hold names: cell {wrong[0]} of it is a number, a date, or a "
            "value that lines below contain. A table begins with a line of column names, each with a "
            "letter. Add it to the file."
        )
    if not any(header):
        raise InvalidInput(
            f"the first line of {path} names no column; a table must begin with the names of its columns."
        )
    names = [name for name in header if name]
    check_names(names, names, f"the table {path}")
    return header, below


def _are_counted(header: Sequence[str]) -> bool:
    """Return whether the names are 0, 1, 2, ... or 1, 2, 3, ..., the defaults of data frames."""
    names = [name for name in header if name]
    return len(names) > 1 and any(
        names == [str(at) for at in range(start, start + len(names))] for start in (0, 1)
    )


def _names_among_values(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names that also occur as a value of their column, if the column has other values too."""
    cells = {name: {row[at].strip() for row in rows} for at, name in enumerate(header) if name}
    return [name for name, values in cells.items() if name in values and len(values - MISSING_WORDS) > 1]


# --- files with types --------------------------------------------------------------------------------------


def _typed_table(path: Path, ending: str) -> Sniffed:
    """Find kinds from the types in the schema, or from the first rows if these are more specific."""
    needed("pyarrow.parquet", "tables", "reading the types of a table")
    types = needed("pyarrow.types", "tables", "reading the types of a table")
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    try:
        first = _first_rows_of_parquet(path) if ending in (".parquet", ".pq") else _first_rows_of_arrow(path)
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors; their messages may contain a cell
        raise InvalidInput(f"the table {path} cannot be read: it is damaged, or not {ending[1:]}.") from None
    check_names(first.schema.names, first.schema.names, f"the table {path}")
    kinds = {
        "boolean": [types.is_boolean],
        "integer": [types.is_integer],
        "number": [types.is_floating, types.is_decimal],
        "date": [types.is_date],
        "datetime": [types.is_timestamp],
        "category": [types.is_string, types.is_large_string, types.is_dictionary],
    }
    typed = {
        each.name: next(
            (kind for kind, tests in kinds.items() if any(is_of(each.type) for is_of in tests)), ""
        )
        for each in first.schema
    }
    refinable = ("integer", "number", "category")
    cells = {
        name: [word or "" for word in words_of(arrow_cells(first.column(name)))]
        for name, kind in typed.items()
        if kind in refinable
    }
    _, by_rows = find_columns(cells, ",", (".", ""))
    columns = {
        name: _merged(kind, by_rows[name]) if name in by_rows else corrected_by_name(name, FoundColumn(kind))
        for name, kind in typed.items()
    }
    return Sniffed(columns=columns, rows=first.num_rows)


def _first_rows_of_parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        batches = list(islice(file.iter_batches(batch_size=SAMPLE_ROWS), 1))
        return pa.Table.from_batches(batches, schema=file.schema_arrow)


def _first_rows_of_arrow(path: Path) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        batches = [file.get_batch(0)] if file.num_record_batches else []
        return pa.Table.from_batches(batches, schema=file.schema).slice(0, SAMPLE_ROWS)


def _merged(kind: str, column: FoundColumn) -> FoundColumn:
    """Return the kind that the rows show for texts, or for numbers that are booleans; else the type's."""
    if (
        kind == "category"
        or column.kind in (kind, "text")
        or (kind in ("integer", "number") and column.kind == "boolean")
    ):
        return column if column.kind else FoundColumn(kind)
    return FoundColumn(kind, {k: v for k, v in column.settings.items() if k == "missing_values"})
