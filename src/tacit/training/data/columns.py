"""Which values do all records have in one place? Columns of arrays, lists and data frames, or of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tacit.errors import InvalidInput
from tacit.training.data.arrays import Array, as_array, as_tensor, unusable
from tacit.training.data.frames import columns_of, is_column, is_frame, matrix_of, values_of
from tacit.training.data.structure import Path, Template, flatten, name_of, paths_of, rebuild


def has_items(data: Any) -> bool:
    """Whether it gives records by position, rather than columns of them."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], Mapping | tuple)
    if isinstance(data, Dataset):
        return True
    if isinstance(data, str | bytes | Mapping | tuple | range) or is_frame(data) or is_column(data):
        return False
    has_both = isinstance(data, Sized) and hasattr(data, "__getitem__")
    is_array = hasattr(data, "__array__") or hasattr(data, "toarray")  # the latter: sparse ones of SciPy
    return has_both and not is_array and not isinstance(data, type)


def columns_of_data(data: Any) -> tuple[Template, dict[Path, Array | list[Array]]]:
    """The structure of a record, and the values that all records have in each of its places."""
    if is_frame(data):
        names = columns_of(data)
        if not names:
            raise _empty(data)
        of_row: Template = {name: number for number, name in enumerate(names)}
        return of_row, {(name,): _column(values, f"column {name!r}") for name, values in names.items()}
    if isinstance(data, list) and data and all(isinstance(part, Tensor | np.ndarray) for part in data):
        data = tuple(data)
    elif not _holds_columns(data):
        raise InvalidInput(
            "data must be tensors, arrays or lists, a mapping or tuple of them, a data frame, "
            f"a TensorDataset or a map-style Dataset; got {type(data).__name__}. A DataLoader is not needed: "
            "the session draws the batches itself."
        )
    template, leaves = flatten(data, lists=False)
    if not leaves:
        raise _empty(data)
    return template, {path: _column(leaf, name_of(path)) for path, leaf in leaves.items()}


def _empty(data: object) -> InvalidInput:
    return InvalidInput(
        f"the data is an empty {type(data).__name__}. Pass the columns of the records, one row per record."
    )


def _holds_columns(data: Any) -> bool:
    return isinstance(data, Mapping | tuple | list) or is_column(data) or hasattr(data, "__array__")


def _column(values: Any, where: str) -> Array | list[Array]:
    """One value per record, as an array, or as a list of arrays where these differ in shape."""
    if is_frame(values):
        return matrix_of(values)
    if is_column(values):
        values = values_of(values, where)
    elif isinstance(values, Dataset) or hasattr(values, "column_names"):
        raise unusable(
            where, f"a data set ({type(values).__name__})", 'Pass it by itself, such as data["train"].'
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
    """Columns as a data set of records: for records of varying length, and where there is a ``collate``."""

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
        """All records in bytes."""
        yield str(len(self)).encode()
        for column in self.columns:
            for row in column:
                tensor = as_tensor(row).detach().cpu().contiguous()
                yield f"{tuple(tensor.shape)} {tensor.dtype}".encode()
                yield tensor.view(-1).view(torch.uint8).numpy().data


def uneven(shapes: Sequence[str]) -> InvalidInput:
    """The error for parts with other numbers of rows."""
    return InvalidInput(
        f"all parts need the same leading dimension, one row per record; got {'; '.join(shapes)}. For a list "
        "with one array per record, pass (data,)."
    )
