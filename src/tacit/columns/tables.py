"""Which cells does a table hold? CSV and Parquet files in pieces, and data frames."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.columns.cells import CsvFile, find_column
from tacit.columns.dialect import Dialect
from tacit.columns.reading import Cells
from tacit.errors import InvalidInput, MissingExtra

ROWS = 1 << 13
"""Rows of a file that are read at a time: more take memory, fewer take time."""


def pieces(
    path: Path, columns: Collection[str], dialect: Dialect | None = None, rows: int = ROWS
) -> Iterator[dict[str, Cells]]:
    """The columns of a CSV or Parquet file, so many rows at a time.

    Raises:
        InvalidInput: there is no such file or column, or the file is damaged.
        MissingExtra: Parquet without pyarrow.
    """
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from _parquet_pieces(path, columns, rows)
    else:
        for chunk in CsvFile(path, columns, dialect).chunks(rows):
            yield dict(chunk)


def names_of_file(path: Path, dialect: Dialect | None = None) -> list[str]:
    """The names of the columns of a CSV or Parquet file.

    Raises:
        InvalidInput, MissingExtra: as for :func:`pieces`.
    """
    if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
        return CsvFile(path, (), dialect).header
    pyarrow, parquet = _parquet()
    try:
        return [str(name) for name in parquet.read_schema(path).names]
    except (OSError, pyarrow.ArrowException):
        raise _damaged(path) from None


def whole_table(path: Path, columns: Collection[str], dialect: Dialect | None = None) -> dict[str, Cells]:
    """The columns of a CSV or Parquet file with all their rows.

    Raises:
        InvalidInput, MissingExtra: as for :func:`pieces`; or the table holds no rows.
    """
    found: dict[str, list[Cells]] = {column: [] for column in columns}
    for piece in pieces(path, columns, dialect):
        for column, cells in piece.items():
            found[column].append(cells)
    table = {column: _joined(parts) for column, parts in found.items()}
    if not all(len(cells) for cells in table.values()):
        raise InvalidInput(f"the table {path} holds no rows.")
    return table


def _joined(parts: list[Cells]) -> Cells:
    if parts and all(isinstance(part, np.ndarray) and part.dtype == parts[0].dtype for part in parts):  # type: ignore[union-attr]
        return np.concatenate(parts)
    return [cell for part in parts for cell in part]


def _parquet_pieces(path: Path, columns: Collection[str], rows: int) -> Iterator[dict[str, Cells]]:
    pyarrow, parquet = _parquet()
    try:
        with parquet.ParquetFile(path) as file:
            for column in columns:
                find_column(path, list(file.schema_arrow.names), column)
            for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                yield {column: arrow_cells(batch.column(column)) for column in columns}
    except (OSError, pyarrow.ArrowException):  # their texts may hold a value
        raise _damaged(path) from None


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "tables", "Reading Parquet files") from None
    return pyarrow, parquet


def _damaged(path: Path) -> InvalidInput:
    return InvalidInput(f"cannot read {path} as Parquet: it is damaged, or no Parquet file.")


def arrow_cells(array: Any) -> Cells:
    """The cells of an Arrow array, with its type where NumPy has it; otherwise as objects of Python."""
    import pyarrow as pa

    kind = array.type
    number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if number or (pa.types.is_boolean(kind) and not array.null_count):
        numbers: Cells = array.to_numpy(**_copying(array))  # a missing one is NaN
        return numbers
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        moments: Cells = array.cast(pa.timestamp("us"), safe=False).to_numpy(**_copying(array))
        return moments
    objects: Cells = array.to_pylist()
    return objects


def _copying(array: Any) -> dict[str, bool]:
    return {} if hasattr(array, "chunks") else {"zero_copy_only": False}


def names_of_frame(data: Any) -> list[str]:
    """The names of the columns of a mapping of arrays, a pandas or Polars data frame or an Arrow table.

    Raises:
        InvalidInput: it is none of them.
    """
    kind = _kind_of_frame(data)
    return [
        str(name)
        for name in (
            data.column_names if kind == "arrow" else data.keys() if kind == "mapping" else data.columns
        )
    ]


def _kind_of_frame(data: object) -> str:
    if isinstance(data, Mapping):
        return "mapping"
    origin = (type(data).__module__.split(".")[0], type(data).__name__)
    match origin:
        case ("pandas" | "polars") as kind, "DataFrame":
            return kind
        case "pyarrow", "Table" | "RecordBatch":
            return "arrow"
    raise InvalidInput(
        "data must be a pandas or Polars DataFrame, a pyarrow Table, or a mapping from names to columns; got "
        f"{type(data).__module__}.{type(data).__name__}."
    )


def check_names(found: Sequence[str], wanted: Collection[str], source: str) -> None:
    """Refuse a table without one of the columns, or with two of one name.

    Raises:
        InvalidInput: the message names it.
    """
    if lacking := [name for name in wanted if name not in found]:
        raise InvalidInput(
            f"{source} has no column {', '.join(map(repr, lacking))}; it has {', '.join(found) or 'none'}."
        )
    if double := [name for name in wanted if found.count(name) > 1]:
        raise InvalidInput(f"{source} has more than one column {double[0]!r}; rename them.")


def cells_of_frame(data: Any, columns: Collection[str], source: str = "the table") -> dict[str, Cells]:
    """Some columns of a mapping of arrays, a pandas or Polars data frame or an Arrow table.

    Raises:
        InvalidInput: it is none of them, or lacks a column.
    """
    check_names(names_of_frame(data), columns, source)
    match _kind_of_frame(data):
        case "mapping":
            return {column: data[column] for column in columns}
        case "pandas":
            return {column: _pandas_cells(data[column]) for column in columns}
        case "polars":
            data = data.select(list(columns)).to_arrow()
    return {column: arrow_cells(data.column(column)) for column in columns}


def _pandas_cells(series: Any) -> Cells:
    if isinstance(series.dtype, np.dtype):
        cells: Cells = series.to_numpy()
        return cells
    if hasattr(series.dtype, "tz"):
        moments: Cells = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return moments
    if getattr(series.dtype, "kind", "O") in "iuf":  # a nullable type of numbers
        numbers: Cells = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    objects: Cells = series.to_numpy(dtype=object, na_value=None)
    return objects
