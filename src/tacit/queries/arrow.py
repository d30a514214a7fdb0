"""The conversion of data frames and files to Arrow tables with the policy's columns and types.

The content of a cell neither decides how other cells are read nor makes reading fail. A cell that is not as
its column declares becomes missing, and its position is recorded for the curator's check.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.names import check_names
from tacit.columns.reading import Cells, declared_missing, numbers_of, words_of
from tacit.columns.tables import CsvFile, arrow_cells, kind_of_frame, names_of_frame, pieces
from tacit.errors import InvalidInput, needed
from tacit.ledger.policy import Policy


@dataclass(frozen=True)
class Read:
    """A table that was read, and the positions of the cells that became missing.

    Attributes:
        table: a pyarrow Table with the policy's columns.
        unreadable: for each column, the indices (from 0) of rows whose cell is not as the column declares.
        mistyped: for each column, the indices of rows whose cell is a Python object of another type.
    """

    table: Any
    unreadable: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    mistyped: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


_TEXT = ("VARCHAR", "string")
_TYPES = {
    "number": ("DOUBLE", "double"),
    "integer": ("DOUBLE", "double"),
    "boolean": ("BOOLEAN", "bool"),
    "category": _TEXT,
    "text": _TEXT,
    "date": ("DATE", "date32"),
    "datetime": ("TIMESTAMP", "timestamp[us]"),
}
"""For each kind of column, its type in SQL and in Arrow."""


def sql_type(column: str, policy: Policy) -> str:
    """Return the SQL type that the policy implies for a column; used if the table's column has no type.

    >>> from tacit.ledger import Column, PureBudget
    >>> age = {"age": Column(kind="number", lower=0, upper=120)}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=age)
    >>> sql_type("age", policy)
    'DOUBLE'
    """
    return _TYPES[_kind(column, policy)][0]


def _kind(column: str, policy: Policy) -> str:
    """Return the declared kind; the unit column is read as text, whatever is declared."""
    return "text" if column == policy.unit_column else policy.columns[column].kind


def _pyarrow() -> Any:
    return needed("pyarrow", "query", "Asking a data frame or a CSV file")


def _arrow_type(column: str, policy: Policy) -> Any:
    return _pyarrow().type_for_alias(_TYPES[_kind(column, policy)][1])


# --- files -----------------------------------------------------------------------------------------------


def file_table(path: Path, policy: Policy) -> Read:
    """Read a CSV file, or a Parquet file whose types do not fit, cell by cell as the policy declares.

    Raises:
        InvalidInput: if the file does not exist or lacks a column.
        MalformedTable: if its rows do not form a table.
    """
    pa = _pyarrow()
    columns = policy.needed_columns
    schema = pa.schema([(column, _arrow_type(column, policy)) for column in columns])
    unreadable: dict[str, list[NDArray[np.int64]]] = {column: [] for column in columns}
    batches, rows = [], 0
    names = columns or CsvFile(path, (), policy.dialect).header[:1]
    for piece in pieces(path, names, policy.dialect):
        arrays = []
        for column in columns:
            array, places = _read_cells(piece[column], column, policy)
            arrays.append(array)
            unreadable[column].append(places + rows)
        rows += len(next(iter(piece.values())))
        batches.append(pa.record_batch(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema=schema) if columns else _rows_alone(rows)
    places_of = {column: np.concatenate(places) for column, places in unreadable.items() if places}
    return Read(table, _not_empty(places_of))


def _not_empty(places_of: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    return {column: places for column, places in places_of.items() if len(places)}


def _read_cells(cells: Cells, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    """Return cells as an Arrow array of the declared kind, and the indices of the unreadable cells."""
    pa, kind = _pyarrow(), _kind(column, policy)
    if kind in ("category", "text"):
        declared = () if column not in policy.columns else map(str, policy.columns[column].values or ())
        words = words_of(cells, tuple(declared), _missing_words(column, policy))
        return pa.array(words, pa.string()), np.empty(0, dtype=np.int64)
    try:
        numbers, places = numbers_of(cells, policy.columns[column], policy.dialect)
    except InvalidInput as problem:
        raise InvalidInput(f"column {column!r}: {problem} Convert it, or declare what it is.") from None
    lacking = np.isnan(numbers)
    if kind == "boolean":
        return pa.array(numbers == 1.0, pa.bool_(), mask=lacking), places
    if kind in ("date", "datetime"):
        scale, whole = (1.0, pa.int32()) if kind == "date" else (1e6, pa.int64())
        counts = np.round(np.nan_to_num(numbers) * scale).astype(np.int64)
        return pa.array(counts, whole, mask=lacking).cast(_arrow_type(column, policy)), places
    return pa.array(numbers, from_pandas=True), places


def _missing_words(column: str, policy: Policy) -> tuple[str, ...]:
    return declared_missing(policy.columns.get(column), policy.dialect)


def refuse_missing_values(policy: Policy) -> None:
    """Refuse a policy that declares words for missing values, which a database cannot apply.

    Raises:
        InvalidInput: if a column declares such words; the message names the column and a view that helps.
    """
    if columns := [column for column in policy.needed_columns if _missing_words(column, policy)]:
        name, word = columns[0], _missing_words(columns[0], policy)[0]
        raise InvalidInput(
            f"column {name!r} has missing_values, which a database cannot apply. Query a view with "
            f"NULLIF(\"{name}\", '{word}') in its place, and delete missing_values from the policy."
        )


def _needs_reading(column: str, arrow_type: Any, policy: Policy) -> bool:
    """Return whether a column of this Arrow type must be read cell by cell, such as numbers in texts."""
    types = _pyarrow().types
    string = (
        types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type)
    )
    moment = types.is_timestamp(arrow_type)
    read = {
        "number": string,
        "integer": string,
        "boolean": string or types.is_integer(arrow_type) or types.is_floating(arrow_type),
        "date": string or moment,
        "datetime": string or (moment and arrow_type.tz is not None),
    }
    return bool(_missing_words(column, policy) or read.get(_kind(column, policy)))


def must_be_read(path: Path, policy: Policy) -> bool:
    """Return whether a Parquet file's schema has a column that must be read cell by cell."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:  # without pyarrow, only types that the engine itself can read are supported
        return False
    try:
        schema = parquet.read_schema(path)
    except (OSError, ArrowException):  # the engine reports the problem
        return False
    columns = [column for column in policy.needed_columns if schema.names.count(column) == 1]
    return any(_needs_reading(column, schema.field(column).type, policy) for column in columns)


# --- data frames -----------------------------------------------------------------------------------------


def arrow_table(data: object, policy: Policy) -> Read:
    """Return the policy's columns of a data frame or Arrow table; numbers are not copied if possible.

    Raises:
        InvalidInput: if ``data`` is no table, or lacks a column.
        MissingExtra: if pyarrow is not installed.
    """
    pa, names, kind = _pyarrow(), policy.needed_columns, kind_of_frame(data)
    if kind == "mapping":
        raise InvalidInput(
            "data must be a table; got a mapping. Give a data frame, a pyarrow Table or the path of a file."
        )
    check_names(names_of_frame(data), names, "the table")
    frame: Any = data
    rows = len(frame)
    frame = frame.select(names).to_arrow() if kind == "polars" else frame
    columns: dict[str, Any] = {}
    unreadable: dict[str, NDArray[np.int64]] = {}
    mistyped: dict[str, NDArray[np.int64]] = {}
    for column in names:
        cells = _pandas_column(frame[column]) if kind == "pandas" else frame.column(column)
        if cells is None:
            cells, places = _cell_by_cell(frame[column], column, policy)
            texts = np.array([isinstance(frame[column].iloc[at], str) for at in places], dtype=np.bool_)
            unreadable[column], mistyped[column] = places[texts], places[~texts]
        if _needs_reading(column, cells.type, policy):
            cells, places = _read_cells(arrow_cells(cells), column, policy)
            unreadable.setdefault(column, places)
        elif pa.types.is_null(cells.type):  # the column contains only None
            cells = cells.cast(_arrow_type(column, policy))
        columns[column] = cells
    table = pa.table(columns) if columns else _rows_alone(rows)
    return Read(table, _not_empty(unreadable), _not_empty(mistyped))


def _rows_alone(rows: int) -> Any:
    """Return a table that has only a number of rows, for a policy that declares no columns."""
    pa = _pyarrow()
    return pa.table({"row": pa.nulls(rows)})


def _pandas_column(series: Any) -> Any:
    """Return a column in Arrow's format; None if it contains Python objects or cannot be converted."""
    pa = _pyarrow()
    if str(series.dtype) == "object":
        return None
    try:
        return pa.chunked_array(pa.array(series, from_pandas=True))
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
        return None  # a cell that cannot be converted is of another type


def _cell_by_cell(series: Any, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    """Read a column of Python objects cell by cell, as values of the declared kind."""
    pa, kind = _pyarrow(), _kind(column, policy)
    cells = series.to_numpy(dtype=object, na_value=None)
    if kind not in ("category", "text"):
        return _read_cells(cells, column, policy)
    read = _as_text if kind == "category" else _as_name
    missing = series.isna().to_numpy()
    values = [None if lacks else read(cell) for cell, lacks in zip(cells, missing, strict=True)]
    readable = np.array([value is not None for value in values], dtype=np.bool_)
    return pa.array(values, pa.string()), np.flatnonzero(~readable & ~missing)


def _as_text(cell: object) -> str | None:
    if not isinstance(cell, str):
        return None
    try:
        cell.encode()
    except UnicodeEncodeError:  # the text contains half of a surrogate pair
        return None
    return str(cell)


def _as_name(cell: object) -> str | None:
    """Return the identifier of a row's unit as text; None if the cell's type cannot be an identifier."""
    if isinstance(cell, int | np.integer | uuid.UUID | datetime.date) and not isinstance(cell, bool):
        return str(cell)
    return _as_text(cell)
