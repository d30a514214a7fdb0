"""How do data frames, Arrow tables and CSV files become Arrow tables with the policy's columns and types?

No cell decides how another is read, and none makes reading fail: a cell that is not what its column declares
becomes a missing one, and its position is recorded for the curator's check.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.cells import CsvFile, numbers_of, truths_of, words_of
from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy

__all__ = ["Read", "arrow_table", "csv_table", "lacks_none", "type_of_nothing", "wanted_columns"]


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
    return {"DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "VARCHAR": pa.string()}[_TYPES[kind]]


# --- CSV -------------------------------------------------------------------------------------------------


def csv_table(path: Path, policy: Policy) -> Read:
    """A CSV file, each cell by :mod:`tacit.columns.cells` and its column's kind.

    Raises:
        InvalidInput: the file is not there or lacks a column.
        MalformedTable: its rows are no table.
    """
    pa = _pyarrow()
    wanted = wanted_columns(policy)
    kinds = {column: _kind(column, policy) for column in wanted}
    schema = pa.schema([(column, _arrow_type(kind)) for column, kind in kinds.items()])
    unreadable: dict[str, list[NDArray[np.int64]]] = {column: [] for column in wanted}
    file = CsvFile(path, wanted)
    batches, rows = [], 0
    for chunk in (file if wanted else CsvFile(path, file.header[:1])).chunks():
        arrays = []
        for column, kind in kinds.items():
            array, places = _csv_column(chunk[column], kind, policy.columns.get(column))
            arrays.append(array)
            unreadable[column].append(places + rows)
        rows += len(next(iter(chunk.values())))
        batches.append(pa.record_batch(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema=schema) if wanted else _rows_alone(rows)
    found = {column: np.concatenate(places) for column, places in unreadable.items() if places}
    return Read(table, {column: places for column, places in found.items() if len(places)})


def _csv_column(cells: Sequence[str], kind: str, column: Any) -> tuple[Any, NDArray[np.int64]]:
    pa = _pyarrow()
    match kind:
        case "number" | "integer":
            numbers, places = numbers_of(cells)
            return pa.array(numbers, from_pandas=True), places
        case "boolean":
            truths, places = truths_of(cells)
            return pa.array(truths, pa.bool_()), places
    declared = () if kind == "who" else map(str, column.keys or ())
    return pa.array(words_of(cells, tuple(declared)), pa.string()), np.empty(0, dtype=np.int64)


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
    return Read(_table({name: _typed(cells, name, policy) for name, cells in found.items()}, rows))


def _typed(cells: Any, column: str, policy: Policy) -> Any:
    """A column of nothing but None, which has no type, in the declared type."""
    pa = _pyarrow()
    return cells.cast(_arrow_type(_kind(column, policy))) if pa.types.is_null(cells.type) else cells


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
    columns: dict[str, Any] = {}
    mistyped: dict[str, NDArray[np.int64]] = {}
    for column in wanted:
        series = frame[column]
        if str(series.dtype) != "object":
            try:
                columns[column] = _typed(pa.chunked_array(pa.array(series, from_pandas=True)), column, policy)
                continue
            except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
                pass  # then cell by cell: what cannot be converted is a cell of another type
        columns[column], places = _cell_by_cell(series, _kind(column, policy))
        if len(places):
            mistyped[column] = places
    return Read(_table(columns, len(frame)), mistyped=mistyped)


def _cell_by_cell(series: Any, kind: str) -> tuple[Any, NDArray[np.int64]]:
    """A column of Python objects, whose type no schema gives: each by itself, by the declared kind."""
    pa = _pyarrow()
    missing = series.isna().to_numpy()
    read = _READERS[kind]
    values = [None if lacks else read(cell) for cell, lacks in zip(series, missing, strict=True)]
    there = np.array([value is not None for value in values], dtype=np.bool_)
    return pa.array(values, _arrow_type(kind)), np.flatnonzero(~there & ~missing)


def _as_number(cell: object) -> float | None:
    if isinstance(cell, bool | np.bool_) or not isinstance(cell, int | float | np.number | decimal.Decimal):
        return None
    try:
        value = float(cell)
    except (OverflowError, TypeError, ValueError):  # 10**400; a complex number; a signalling NaN
        return None
    return None if math.isnan(value) else value


def _as_truth(cell: object) -> bool | None:
    return bool(cell) if isinstance(cell, bool | np.bool_) else None


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


_READERS: dict[str, Callable[[object], Any]] = {
    "number": _as_number,
    "integer": _as_number,
    "boolean": _as_truth,
    "category": _as_text,
    "who": _as_name,
}
