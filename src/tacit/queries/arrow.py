"""How do data frames, Arrow tables and CSV files become Arrow tables with the policy's columns and types?

No cell decides how another is read, and none makes reading fail: a cell that is not what its column declares
becomes a missing one, and its position is recorded for the curator's check.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.reading import Cells, declared_missing, numbers_of, words_of
from tacit.columns.tables import CsvFile, arrow_cells, pieces
from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy


@dataclass(frozen=True)
class Read:
    """A table, and the cells that reading made missing.

    Attributes:
        table: the policy's columns, a pyarrow Table.
        unreadable: by column, the rows, from 0, with cells that are not what the column declares.
        mistyped: likewise, with Python objects of another type than the column declares.
    """

    table: Any
    unreadable: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    mistyped: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


def wanted_columns(policy: Policy) -> list[str]:
    """The unit column and the declared ones."""
    return list(dict.fromkeys([*([policy.unit_column] if policy.unit_column else []), *policy.columns]))


def lacks_none(columns: Iterable[object], wanted: Iterable[str]) -> None:
    """Refuse a table without one of the columns, or with two of one name.

    Raises:
        InvalidInput: the message names it.
    """
    found = list(columns)
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise InvalidInput(
            f"the table has no column {', '.join(map(repr, lacking))}, which the policy declares; it has "
            f"{', '.join(map(repr, found)) or 'none'}."
        )
    double = [name for name in wanted if found.count(name) > 1]
    if double:
        raise InvalidInput(f"the table has more than one column {double[0]!r}.")


def type_of_nothing(column: str, policy: Policy) -> str:
    """The SQL type that a column of the policy gets where the table's column has no type.

    >>> from tacit.ledger import Column, PureBudget
    >>> age = {"age": Column(kind="number", lower=0, upper=120)}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=age)
    >>> type_of_nothing("age", policy)
    'DOUBLE'
    """
    return _TYPES[_kind(column, policy)]


_TYPES = {
    "number": "DOUBLE",
    "integer": "DOUBLE",
    "boolean": "BOOLEAN",
    "category": "VARCHAR",
    "date": "DATE",
    "datetime": "TIMESTAMP",
    "text": "VARCHAR",
    "who": "VARCHAR",
}


def _kind(column: str, policy: Policy) -> str:
    return "who" if column == policy.unit_column else policy.columns[column].kind


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow", "query", "Asking a data frame or a CSV file") from None
    return pyarrow


def _arrow_type(kind: str) -> Any:
    pa = _pyarrow()
    types = {
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "VARCHAR": pa.string(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us"),
    }
    return types[_TYPES[kind]]


# --- files -----------------------------------------------------------------------------------------------


def file_table(path: Path, policy: Policy) -> Read:
    """A CSV file, or a Parquet file that holds other types, each cell by its column's declared facts.

    Raises:
        InvalidInput: the file is not there or lacks a column.
        MalformedTable: its rows are no table.
    """
    pa = _pyarrow()
    wanted = wanted_columns(policy)
    kinds = {column: _kind(column, policy) for column in wanted}
    schema = pa.schema([(column, _arrow_type(kind)) for column, kind in kinds.items()])
    unreadable: dict[str, list[NDArray[np.int64]]] = {column: [] for column in wanted}
    batches, rows = [], 0
    for piece in pieces(path, wanted or _first_column(path, policy), policy.dialect):
        arrays = []
        for column, kind in kinds.items():
            array, places = _read_cells(piece[column], kind, column, policy)
            arrays.append(array)
            unreadable[column].append(places + rows)
        rows += len(next(iter(piece.values())))
        batches.append(pa.record_batch(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema=schema) if wanted else _rows_alone(rows)
    found = {column: np.concatenate(places) for column, places in unreadable.items() if places}
    return Read(table, {column: places for column, places in found.items() if len(places)})


def _first_column(path: Path, policy: Policy) -> list[str]:
    return CsvFile(path, (), policy.dialect).header[:1]


def _read_cells(cells: Cells, kind: str, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    """Some cells as an Arrow array of the declared kind, and the places of those that are unreadable."""
    pa = _pyarrow()
    if kind in ("who", "category", "text"):
        declared = () if column not in policy.columns else map(str, policy.columns[column].values or ())
        words = words_of(cells, tuple(declared), _nothing(column, policy))
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
        return pa.array(counts, whole, mask=lacking).cast(_arrow_type(kind)), places
    return pa.array(numbers, from_pandas=True), places


def _nothing(column: str, policy: Policy) -> tuple[str, ...]:
    return declared_missing(policy.columns.get(column), policy.dialect)


def refuse_missing_values(policy: Policy) -> None:
    """Refuse a policy with words for a missing value, where a database reads the cells.

    Raises:
        InvalidInput: naming the column and what a view would say.
    """
    if telling := [column for column in wanted_columns(policy) if _nothing(column, policy)]:
        name, word = telling[0], _nothing(telling[0], policy)[0]
        raise InvalidInput(
            f"the policy declares missing_values for column {name!r}, and a database is asked as it is. Name "
            f"a view that has NULLIF(\"{name}\", '{word}') in its place, and delete missing_values from "
            "the policy."
        )


def needs_reading(column: str, found: Any, policy: Policy) -> bool:
    """Whether a column of this Arrow type is read cell by cell: texts, or what the kind writes otherwise."""
    if _nothing(column, policy):
        return True
    types = _pyarrow().types
    match _kind(column, policy):
        case "number" | "integer":
            return bool(_is_string(found))
        case "boolean":
            return bool(_is_string(found) or types.is_integer(found) or types.is_floating(found))
        case "date":
            return bool(_is_string(found) or types.is_timestamp(found))
        case "datetime":
            return bool(_is_string(found) or (types.is_timestamp(found) and found.tz is not None))
    return False


def _is_string(found: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))


def must_be_read(path: Path, policy: Policy) -> bool:
    """Whether a Parquet file has a column that an engine cannot read as it is; reads the schema alone."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:  # then only what the engine reads by itself
        return False
    try:
        schema = parquet.read_schema(path)
    except (OSError, ArrowException):  # the engine says what is wrong
        return False
    wanted = [column for column in wanted_columns(policy) if schema.names.count(column) == 1]
    return any(needs_reading(column, schema.field(column).type, policy) for column in wanted)


# --- data frames -----------------------------------------------------------------------------------------


def arrow_table(data: object, policy: Policy) -> Read:
    """The policy's columns of a data frame or an Arrow table; numbers are shared with it, not copied.

    Raises:
        InvalidInput: ``data`` is no table, or lacks a column.
        MissingExtra: pyarrow is not installed.
    """
    pa = _pyarrow()
    wanted = wanted_columns(policy)
    kind = type(data).__module__.split(".")[0]
    frame: Any = data
    if isinstance(data, pa.Table):
        lacks_none(data.column_names, wanted)
        found, rows = {column: frame.column(column) for column in wanted}, data.num_rows
    elif kind == "polars" and type(data).__name__ == "DataFrame":
        lacks_none(frame.columns, wanted)
        whole = frame.select(wanted).to_arrow()
        found, rows = {column: whole.column(column) for column in wanted}, len(frame)
    elif kind == "pandas" and type(data).__name__ == "DataFrame":
        return _pandas_table(frame, policy)
    else:
        raise InvalidInput(
            "data must be a pandas or Polars DataFrame, a pyarrow Table, or the path of a Parquet or CSV "
            f"file; got {type(data).__module__}.{type(data).__name__}."
        )
    return _by_column(found, rows, policy)


def _by_column(found: Mapping[str, Any], rows: int, policy: Policy) -> Read:
    """Arrow columns as they are, or read cell by cell where the policy's kind needs that."""
    pa = _pyarrow()
    columns: dict[str, Any] = {}
    unreadable: dict[str, NDArray[np.int64]] = {}
    for column, cells in found.items():
        kind = _kind(column, policy)
        if needs_reading(column, cells.type, policy):
            columns[column], places = _read_cells(arrow_cells(cells), kind, column, policy)
            unreadable |= {column: places} if len(places) else {}
        else:  # a column of nothing but None has no type
            columns[column] = cells.cast(_arrow_type(kind)) if pa.types.is_null(cells.type) else cells
    return Read(_table(columns, rows), unreadable)


def _table(columns: Mapping[str, Any], rows: int) -> Any:
    pa = _pyarrow()
    return pa.table(dict(columns)) if columns else _rows_alone(rows)


def _rows_alone(rows: int) -> Any:
    """The rows without a column, where the policy declares none."""
    pa = _pyarrow()
    return pa.table({"row": pa.nulls(rows)})


def _pandas_table(frame: Any, policy: Policy) -> Read:
    pa = _pyarrow()
    wanted = wanted_columns(policy)
    lacks_none(list(frame.columns), wanted)
    found: dict[str, Any] = {}
    mistyped: dict[str, NDArray[np.int64]] = {}
    unreadable: dict[str, NDArray[np.int64]] = {}
    for column in wanted:
        series = frame[column]
        if str(series.dtype) != "object":
            try:
                found[column] = pa.chunked_array(pa.array(series, from_pandas=True))
                continue
            except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
                pass  # then cell by cell: what cannot be converted is a cell of another type
        found[column], places = _cell_by_cell(series, column, policy)
        texts = np.array([isinstance(series.iloc[place], str) for place in places], dtype=np.bool_)
        for kept, part in ((unreadable, places[texts]), (mistyped, places[~texts])):
            kept |= {column: part} if len(part) else {}
    read = _by_column(found, len(frame), policy)
    return Read(read.table, {**read.unreadable, **unreadable}, mistyped)


def _cell_by_cell(series: Any, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    """A column of Python objects, whose type no schema gives: each by itself, by the declared kind."""
    pa = _pyarrow()
    kind = _kind(column, policy)
    cells = series.to_numpy(dtype=object, na_value=None)
    if kind not in ("who", "category", "text"):
        return _read_cells(cells, kind, column, policy)
    read = _as_text if kind == "category" else _as_name
    missing = series.isna().to_numpy()
    values = [None if lacks else read(cell) for cell, lacks in zip(cells, missing, strict=True)]
    there = np.array([value is not None for value in values], dtype=np.bool_)
    return pa.array(values, _arrow_type(kind)), np.flatnonzero(~there & ~missing)


def _as_text(cell: object) -> str | None:
    if not isinstance(cell, str):
        return None
    try:
        cell.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return str(cell)


def _as_name(cell: object) -> str | None:
    """The unit of a row, as a text."""
    if isinstance(cell, int | np.integer | uuid.UUID | datetime.date) and not isinstance(cell, bool):
        return str(cell)
    return _as_text(cell)
