"""Columns: the values of one part of all records, read from arrays, lists and data frames.

Data frames of pandas, Polars and Arrow with numeric columns are supported.  This module imports none of these
libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

from tacit.errors import InvalidInput
from tacit.training.data.arrays import Array, as_array, as_tensor, unusable
from tacit.training.data.structure import Path, Template, flatten, name_of, paths_of, rebuild

_LIBRARIES = ("pandas", "polars", "pyarrow")
_ENCODE = (
    "Declare the column and encode it by tacit.columns.Encoder, whose numbers depend on declared values and "
    "bounds alone; or leave it out"
)


def is_frame(value: object) -> bool:
    """Return whether the value is a data frame or table of one of the three libraries.

    >>> import pandas
    >>> is_frame(pandas.DataFrame({"a": [1]})), is_frame(pandas.Series([1]))
    (True, False)
    """
    kind = type(value)  # the class, because Polars warns if the columns of a lazy frame are read
    return _is_theirs(value) and (hasattr(kind, "columns") or hasattr(kind, "column_names"))


def is_column(value: object) -> bool:
    """Return whether the value is a Series or an Arrow array.

    >>> import pandas
    >>> is_column(pandas.Series([1]))
    True
    """
    return _is_theirs(value) and not is_frame(value) and hasattr(value, "to_numpy")


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a data frame by name.

    Raises:
        InvalidInput: a name is not text or occurs twice, or the data frame is lazy.
    """
    pairs = _pairs(frame)
    names = [name for name, _ in pairs]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            "the name of a data frame's column is not text. The loss gets the columns as keywords. Give "
            "the columns text names, or pass (frame, labels): the loss then gets the frame as a matrix."
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
    if hasattr(frame, "column_names"):  # Arrow
        return list(zip(frame.column_names, frame.columns, strict=True))
    if hasattr(frame, "get_columns"):  # Polars
        return list(zip(frame.columns, frame.get_columns(), strict=True))
    return list(frame.items())


def matrix_of(frame: Any) -> NDArray[Any]:
    """Return the d columns of a data frame, in order, as an (N, d) floating-point array; bool becomes 0 or 1.

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
    """Return the numbers of a Series or an Arrow array, or a list of rows if each cell is a list.

    Raises:
        InvalidInput: cells are missing or are not numbers; the message names column and type.
    """
    kind = getattr(column, "dtype", None) or getattr(column, "type", None)
    if _has_missing(column):
        raise InvalidInput(
            f"{where} ({kind}) has missing cells. Leave such rows out or fill them by a fixed public rule, "
            'such as a declared column with missing = "indicator"; a rule computed from the data would leak.'
        )
    if str(kind) == "category":  # its values are names, even if they are numbers
        raise _not_numeric(where, "category")
    values = _to_numpy(column, kind)
    if values.dtype.kind in "biuf":
        return np.asarray(as_array(values, f"{where} ({kind})"))
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], list | np.ndarray):
        return list(values)
    raise _not_numeric(where, str(kind))


def _is_theirs(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES and not isinstance(value, type)


def _has_missing(column: Any) -> bool:
    if hasattr(column, "isna"):
        return bool(column.isna().any())
    count = column.null_count
    return bool(count() if callable(count) else count)


def _to_numpy(column: Any, kind: Any) -> NDArray[Any]:
    if hasattr(kind, "numpy_dtype") and hasattr(column, "isna"):  # nullable pandas type, no missing cells
        return np.asarray(column.to_numpy(dtype=kind.numpy_dtype))
    if type(column).__module__.startswith("pyarrow") and not hasattr(column, "chunks"):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy())


def _not_numeric(where: str, kind: str) -> InvalidInput:
    return InvalidInput(f"{where} is of type {kind}, and a model takes numbers. {_ENCODE}.")


def has_items(data: Any) -> bool:
    """Return whether the data gives records by position; else it consists of columns."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], Mapping | tuple)
    if isinstance(data, Dataset):
        return True
    if isinstance(data, str | bytes | Mapping | tuple | range) or is_frame(data) or is_column(data):
        return False
    has_both = isinstance(data, Sized) and hasattr(data, "__getitem__")
    is_array = hasattr(data, "__array__") or hasattr(data, "toarray")  # toarray: sparse arrays of SciPy
    return has_both and not is_array and not isinstance(data, type)


def columns_of_data(data: Any) -> tuple[Template, dict[Path, Array | list[Array]]]:
    """Return the template of a record, and for each leaf of it the column with the values of all records."""
    if is_frame(data):
        names = columns_of(data)
        if not names:
            raise _empty(data)
        of_row: Template = {name: number for number, name in enumerate(names)}
        return of_row, {(name,): _column(values, f"column {name!r}") for name, values in names.items()}
    if isinstance(data, list) and data and all(isinstance(part, Tensor | np.ndarray) for part in data):
        data = tuple(data)
    elif isinstance(data, DataLoader | Sampler):
        raise _batches(data)
    elif not _holds_columns(data):
        raise InvalidInput(
            f"data of type {type(data).__name__} cannot be used as records. Pass tensors, arrays or lists, "
            "a mapping or tuple of them, a data frame, a TensorDataset or a map-style Dataset. A "
            "DataLoader is not needed: the session draws the batches itself."
        )
    template, leaves = flatten(data, lists=False)
    if not leaves:
        raise _empty(data)
    return template, {path: _column(leaf, name_of(path)) for path, leaf in leaves.items()}


def _empty(data: object) -> InvalidInput:
    return InvalidInput(
        f"the data is an empty {type(data).__name__}. Pass the columns of the records, one row per record."
    )


def _batches(data: DataLoader[Any] | Sampler[Any]) -> InvalidInput:
    """Make the error for a loader or a sampler, which would choose the records of a batch."""
    sampler = data if isinstance(data, Sampler) else data.sampler
    weights = ""
    if isinstance(sampler, WeightedRandomSampler):
        weights = (
            " The weights of its WeightedRandomSampler are lost: the plan draws each record with the same "
            "probability, from which the privacy cost follows. Weight the classes in the loss instead, by "
            "public weights."
        )
    return InvalidInput(
        f"data is a {type(data).__name__}, but a session draws the batches itself. Pass the data set, "
        f"data=loader.dataset, and a collate_fn of your own as collate.{weights}"
    )


def _holds_columns(data: Any) -> bool:
    return isinstance(data, Mapping | tuple | list) or is_column(data) or hasattr(data, "__array__")


def _column(values: Any, where: str) -> Array | list[Array]:
    """Return the values of a column as an array, or as a list of arrays if they differ in shape."""
    if is_frame(values):
        return matrix_of(values)
    if is_column(values):
        values = values_of(values, where)
    elif isinstance(values, Dataset) or hasattr(values, "column_names"):
        raise unusable(
            where, f"a data set ({type(values).__name__})", 'Pass one data set, such as data["train"].'
        )
    if isinstance(values, np.ndarray) and values.dtype.kind == "O" and len(values):
        values = list(values) if isinstance(values[0], list | np.ndarray) else values
    if not isinstance(values, list):
        return as_array(values, where)
    if not values or isinstance(values[0], bool | int | float | np.generic):
        return as_array(values, where)
    rows = [as_array(row, where) for row in values]
    if len({tuple(row.shape) for row in rows}) > 1:
        return rows
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.stack(cast("list[Any]", rows))
    return torch.stack([as_tensor(row) for row in rows])


@final
class Rows(Dataset[Any]):
    """A data set made of columns, for records of varying length and for use with a ``collate``."""

    def __init__(self, columns: Sequence[Array | list[Array]], template: Template) -> None:
        names = [name_of(path) for path in paths_of(template)]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise uneven([f"{name}: {len(column)}" for name, column in zip(names, columns, strict=True)])
        self.columns = [
            c if isinstance(c, list) else as_tensor(as_array(c, n))
            for c, n in zip(columns, names, strict=True)
        ]
        self.template = template

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, position: int) -> Any:
        return rebuild(self.template, [column[position] for column in self.columns])

    def content(self) -> Iterator[bytes | memoryview]:
        """Yield all records in bytes."""
        yield str(len(self)).encode()
        for column in self.columns:
            for row in column:
                tensor = as_tensor(row).detach().cpu().contiguous()
                yield f"{tuple(tensor.shape)} {tensor.dtype}".encode()
                yield tensor.view(-1).view(torch.uint8).numpy().data


def uneven(shapes: Sequence[str]) -> InvalidInput:
    """Make the error for parts with different numbers of rows."""
    return InvalidInput(
        f"all parts need the same leading dimension; got {'; '.join(shapes)}. Each has one row per record. "
        "For a list with one array per record, pass (data,)."
    )
