"""Conversion of values to tensors, and of the tensors of single records to a batch.

Numbers, lists of numbers, arrays and tensors become tensors.  Other values are refused, with an error that
names the part of the record and its type but shows no value.  :func:`cast_numbers` has the casting rule;
``docs/records.md`` also states it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.sampling.base import Indices

Array: TypeAlias = Tensor | NDArray[Any]

_LARGEST = 2**63 - 1
_USUAL = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
_WORDS = (
    "Turn text into numbers before training, by a tokenizer or by positions in a declared list of values; "
    "or leave the part out."
)
_MISSING = (
    "Leave such records out or fill them by a fixed public rule; one computed from the data would leak."
)
_NUMBERS = "tensors, arrays and numbers"


def floating_type(model: nn.Module) -> torch.dtype | None:
    """Return the type of the model's floating parameters; None if there are several types, or none.

    >>> floating_type(nn.Linear(2, 3).double())
    torch.float64
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return types.pop() if len(types) == 1 else None


def cast_numbers(tensor: Tensor, floating: torch.dtype | None) -> Tensor:
    """Cast floating-point numbers to ``floating``, the type of the model, and integers to int64.

    Tensors of bool do not change, because they may be masks.  Complex numbers do not change either, nor do
    floating-point numbers if ``floating`` is None.

    >>> cast_numbers(torch.zeros(2, dtype=torch.float64), torch.float32).dtype
    torch.float32
    >>> cast_numbers(torch.zeros(2, dtype=torch.uint8), torch.float32).dtype
    torch.int64
    """
    if tensor.is_floating_point():
        return tensor if floating is None else tensor.to(floating)
    return tensor if tensor.dtype is torch.bool or tensor.is_complex() else tensor.to(torch.int64)


def tensor_of(value: Any, where: str) -> Tensor:
    """Convert a number, list of numbers, array or tensor to a tensor; errors call the value ``where``.

    >>> tensor_of([1, 2], "part 0")
    tensor([1, 2])
    """
    return as_tensor(as_array(value, where))


def as_array(value: Any, where: str) -> Array:
    """Return the value as an array or tensor, copied only if torch cannot use its memory or type.

    Raises:
        InvalidInput: the value is not a number or an array of numbers, or does not fit into int64.
    """
    if isinstance(value, Tensor):
        return _checked_tensor(value, where)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise unusable(where, "an array with masked cells", _MISSING)
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return _checked_array(np.asarray(value), where, type(value).__name__)
    if isinstance(value, list):
        return _of_list(value, where)
    if hasattr(value, "__array__") and not isinstance(value, type):
        return _checked_array(_its_array(value, where), where, type(value).__name__)
    raise unusable(where, _kind(value), _mend(value))


def as_tensor(array: Array) -> Tensor:
    """Return the array as a tensor on the same memory, without a copy."""
    if isinstance(array, Tensor):
        return array
    with warnings.catch_warnings():  # nothing writes to a read-only map: see ``ArrayRecords``
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def unusable(where: str, kind: str, mend: str) -> InvalidInput:
    """Make the error for a part of a record that cannot be a tensor."""
    return InvalidInput(
        f"{where} is {kind}, which cannot be a tensor. A record is a tensor, or a tuple of tensors and "
        f"numbers, or a mapping of them. {mend}"
    )


def _checked_tensor(value: Tensor, where: str) -> Tensor:
    if value.dtype in _USUAL and value.layout is torch.strided and not value.is_nested and not value.is_meta:
        return value
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else "sparse"
        kind = "meta" if value.is_meta else kind
        mend = {"sparse": "Pass value.to_dense().", "quantized": "Pass value.dequantize()."}
        raise unusable(
            where, f"a {kind} tensor", mend.get(kind, "Pass a dense tensor that holds its numbers.")
        )
    if value.dtype is torch.uint64 and bool((value.view(torch.int64) < 0).any()):
        raise _too_large(where)
    if value.is_floating_point() and value.element_size() == 1:  # torch does not compute in this type
        return value.to(torch.float32)
    return value.to(torch.int64) if value.dtype in (torch.uint16, torch.uint32, torch.uint64) else value


def _checked_array(array: NDArray[Any], where: str, kind: str) -> NDArray[Any]:
    if array.dtype.kind not in "biufc":
        raise _not_numeric(array, where, kind)
    if array.dtype.kind == "u" and array.itemsize > 1:
        if array.itemsize == 8 and array.size and int(array.max()) > _LARGEST:
            raise _too_large(where)
        array = array.astype(np.int64)
    if array.dtype.kind in "fc" and array.itemsize > (8 if array.dtype.kind == "f" else 16):  # long doubles
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.complex128)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def _not_numeric(array: NDArray[Any], where: str, kind: str) -> InvalidInput:
    match array.dtype.kind:
        case "U" | "S" | "T":
            return unusable(where, _of(kind, "text"), _WORDS)
        case "M" | "m":
            return unusable(where, _of(kind, "dates"), "Turn them into days since a public day.")
        case "V":
            return unusable(
                where, f"a structured {kind}", "Pass a mapping of its fields: {name: array[name]}."
            )
    if kind == "int":
        return _too_large(where)
    first = next((one for one in array.flat if not isinstance(one, bool | int | float)), 0.0)
    mend = _mend(first) if isinstance(first, str | bytes | None) else "Convert it: array.astype(float)."
    return unusable(where, _of(kind, f"objects ({type(first).__name__})"), mend)


def _of(kind: str, cells: str) -> str:
    return cells if kind.startswith(("str", "datetime", "timedelta")) else f"of type {kind} and holds {cells}"


def _of_list(values: list[Any], where: str) -> NDArray[Any]:
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        return _checked_array(np.asarray(values), where, "list")
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError):  # their texts may hold a value
        mend = f"Give {_NUMBERS}; where the lengths differ, collate=tacit.collate.pad(length=...)."
        raise unusable(where, "a list whose items differ in length or type", mend) from None


def _its_array(value: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception:  # noqa: BLE001 (a class of the user's may raise anything)
        raise unusable(where, _kind(value), f"Give {_NUMBERS}.") from None


def _kind(value: object) -> str:
    return "None, a missing value" if value is None else f"of type {type(value).__name__}"


def _mend(value: object) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, str | bytes):
        return _WORDS
    if type(value).__module__.partition(".")[0] == "PIL":
        return "Let the data set return torch.from_numpy(numpy.array(picture)) in one size."
    if hasattr(value, "toarray"):
        return "Pass value.toarray()."
    return f"Give {_NUMBERS}."


def _too_large(where: str) -> InvalidInput:
    return InvalidInput(
        f"{where} holds an integer beyond int64. Integers are cast to that type. If these are "
        "identifiers, replace each by its position in a public list, or leave this part out."
    )


_OF_PYTHON = ({int}, {float})
"""Python types of numbers; NumPy converts a list with one of these types at once."""


def batch_of(name: str, leaves: Sequence[Any], indices: Indices, floating: torch.dtype | None) -> Tensor:
    """Stack ``leaves``, the part ``name`` of n records, into a (n, ...) tensor, cast by the casting rule.

    ``indices`` are the positions of the records, for errors.

    Raises:
        InvalidInput: a leaf cannot be a tensor, or leaves differ in shape or type.

    >>> batch_of("part 0", [1.5, 2.5], np.arange(2), torch.float32)
    tensor([1.5000, 2.5000])
    """
    if {*map(type, leaves)} in _OF_PYTHON:
        numbers = np.asarray(leaves)
        if numbers.dtype.kind in "if":
            return cast_numbers(torch.from_numpy(numbers), floating)
    return _stacked(name, [tensor_of(leaf, name) for leaf in leaves], indices, floating)


def batch_of_collated(
    name: str, leaves: Sequence[Any], indices: Indices, floating: torch.dtype | None
) -> Tensor:
    """Stack the part ``name`` of n records as ``collate`` returned it, with a leading dimension of 1 each."""
    rows = [tensor_of(leaf, name) for leaf in leaves]
    if not all(row.dim() > 0 and len(row) == 1 for row in rows):
        raise InvalidInput(
            f"collate gave {name} without a leading dimension of 1. The session calls it with a list of "
            "one record, so that it cannot mix records. Let it return a batch, as for a DataLoader."
        )
    return _stacked(name, [row[0] for row in rows], indices, floating)


def _stacked(name: str, rows: list[Tensor], indices: Indices, floating: torch.dtype | None) -> Tensor:
    if len({tuple(row.shape) for row in rows}) > 1:
        raise _no_batch(
            indices,
            f"{name} differs in shape",
            "Give collate=tacit.collate.pad(length=...) with a public length, or let the data set give one "
            "shape. A collate is called for each record alone. If it pads to the longest record of a "
            'batch, let it pad to a fixed length instead (padding="max_length").',
        )
    if len({row.dtype for row in rows}) > 1:
        rows = [cast_numbers(row, floating) for row in rows]
        if len(types := {str(row.dtype) for row in rows}) > 1:
            raise _no_batch(
                indices,
                f"{name} differs in type ({', '.join(sorted(types))})",
                "Let the data set give one type: float(...) or int(...).",
            )
    return cast_numbers(torch.stack(rows), floating)


def few(positions: Sequence[int] | Indices) -> str:
    """Return the first five positions as text."""
    text = ", ".join(str(int(position)) for position in positions[:5])
    return text if len(positions) <= 5 else f"{text}, ..."


def _no_batch(indices: Indices, reason: str, mend: str) -> InvalidInput:
    return InvalidInput(f"the records at {few(indices)} cannot be put into one batch: {reason}. {mend}")
