"""What do data frames give? Their numeric columns: of pandas, Polars and Arrow, none of which it imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.training.data.arrays import as_array

_LIBRARIES = ("pandas", "polars", "pyarrow")
_ENCODE = (
    "Declare the column and encode it by tacit.columns.Encoder, whose numbers depend on declared values and "
    "bounds alone; or leave it out"
)


def is_frame(value: object) -> bool:
    """Whether it is a data frame or table of one of the three.

    >>> import pandas
    >>> is_frame(pandas.DataFrame({"a": [1]})), is_frame(pandas.Series([1]))
    (True, False)
    """
    kind = type(value)  # not the value: Polars warns of the columns of a lazy frame
    return _is_theirs(value) and (hasattr(kind, "columns") or hasattr(kind, "column_names"))


def is_column(value: object) -> bool:
    """Whether it is a Series or an Arrow array.

    >>> import pandas
    >>> is_column(pandas.Series([1]))
    True
    """
    return _is_theirs(value) and not is_frame(value) and hasattr(value, "to_numpy")


def columns_of(frame: Any) -> dict[str, Any]:
    """The columns of a frame by name.

    Raises:
        InvalidInput: a name is no word or is there twice; or the frame is lazy.
    """
    pairs = _pairs(frame)
    names = [name for name, _ in pairs]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            "a column of the data frame has a name that is no word; the loss gets the columns as keywords. "
            "Name the columns, or pass (frame, labels), whose first part is a matrix."
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the data frame has two columns {twice!r}. Rename one.")
    return dict(pairs)


def _pairs(frame: Any) -> list[tuple[Any, Any]]:
    if hasattr(frame, "collect"):
        raise InvalidInput(
            f"the data is a {type(frame).__name__}, which holds no rows yet. Pass data.collect()."
        )
    return list(_columns(frame))


def matrix_of(frame: Any) -> NDArray[Any]:
    """(N, d) floating numbers: the columns of a frame, in order; bool as 0 and 1.

    >>> import pandas
    >>> matrix_of(pandas.DataFrame({"a": [1, 2], "b": [0.5, 0.25]})).tolist()
    [[1.0, 0.5], [2.0, 0.25]]
    """
    columns = [(name, values_of(column, f"column {name!r}")) for name, column in _pairs(frame)]
    for name, values in columns:
        if not isinstance(values, np.ndarray):
            raise _not_numeric(f"column {name!r}", "list")
    if not columns:
        raise InvalidInput("the data frame has no columns. Pass one with the numeric columns to train on.")
    kind = np.result_type(np.float32, *(np.asarray(values).dtype for _, values in columns))
    return np.column_stack([np.asarray(values).astype(kind) for _, values in columns])


def values_of(column: Any, where: str) -> NDArray[Any] | list[Any]:
    """The numbers of a Series or an Arrow array; a list of rows where each cell is a list.

    Raises:
        InvalidInput: it holds missing cells, or cells that are no numbers; the message names column and type.
    """
    kind = getattr(column, "dtype", None) or getattr(column, "type", None)
    if _has_missing(column):
        raise InvalidInput(
            f"{where} ({kind}) has missing cells. Leave such rows out or fill them by a fixed public rule, "
            'such as a declared column with missing = "indicator"; a rule computed from the data would leak.'
        )
    if str(kind) == "category":  # whose values may be numbers, but are names
        raise _not_numeric(where, "category")
    values = _to_numpy(column, kind)
    if values.dtype.kind in "biuf":
        return np.asarray(as_array(values, f"{where} ({kind})"))
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], list | np.ndarray):
        return list(values)
    raise _not_numeric(where, str(kind))


def _is_theirs(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES and not isinstance(value, type)


def _columns(frame: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(frame, "column_names"):  # Arrow
        yield from zip(frame.column_names, frame.columns, strict=True)
    elif hasattr(frame, "get_columns"):  # Polars
        yield from zip(frame.columns, frame.get_columns(), strict=True)
    else:
        yield from frame.items()


def _has_missing(column: Any) -> bool:
    if hasattr(column, "isna"):
        return bool(column.isna().any())
    count = column.null_count
    return bool(count() if callable(count) else count)


def _to_numpy(column: Any, kind: Any) -> NDArray[Any]:
    if hasattr(kind, "numpy_dtype") and hasattr(column, "isna"):  # of pandas' own types; none is missing
        return np.asarray(column.to_numpy(dtype=kind.numpy_dtype))
    if type(column).__module__.startswith("pyarrow") and not hasattr(column, "chunks"):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy())


def _not_numeric(where: str, kind: str) -> InvalidInput:
    return InvalidInput(f"{where} is of type {kind}, and a model takes numbers. {_ENCODE}.")
