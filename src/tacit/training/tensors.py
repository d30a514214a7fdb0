"""A record as tensors: its structure, the conversion of its values, and errors without values of a record.

A template is the record with the numbers 0, 1, ... instead of its tensors, such as ``{"x": 0, "y": (1, 2)}``.
:func:`cast_numbers` has the casting rule (``docs/how-to/large-data.md``).
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.errors import DeviceLost, InvalidInput, TacitError, of_device, without_values
from tacit.sampling.samplers import Indices

Array: TypeAlias = Tensor | NDArray[Any]

_LARGEST = 2**63 - 1
_USUAL = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
_WORDS = (
    "Turn text into numbers before training, by a tokenizer or by positions in a declared list of values; "
    "or remove this part."
)
_MISSING = (
    "Remove such records, or fill them by a fixed public rule; a rule computed from the data would leak."
)
_NUMBERS = "tensors, arrays and numbers"


def floating_type(model: nn.Module) -> torch.dtype | None:
    """Return the dtype of the model's floating-point parameters; None if there are several, or none."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return types.pop() if len(types) == 1 else None


def cast_numbers(tensor: Tensor, floating: torch.dtype | None) -> Tensor:
    """Cast floating-point numbers to ``floating``, if given, and integers to int64; not bool or complex."""
    if tensor.is_floating_point():
        return tensor if floating is None else tensor.to(floating)
    return tensor if tensor.dtype is torch.bool or tensor.is_complex() else tensor.to(torch.int64)


def tensor_of(value: Any, where: str) -> Tensor:
    """Convert a number, list, array or tensor to a tensor; ``where`` names the value in errors."""
    return as_tensor(as_array(value, where))


def as_array(value: Any, where: str) -> Array:
    """Return the value as an array or tensor, copied only if torch cannot use its memory or type."""
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
    if isinstance(array, Tensor):
        return array
    with warnings.catch_warnings():  # nothing writes to a read-only map: see ``ArrayRecords``
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def unusable(where: str, kind: str, mend: str) -> InvalidInput:
    return InvalidInput(
        f"{where} is {kind}, which cannot be a tensor. A record must be a tensor, or a tuple or mapping of "
        f"tensors and numbers. {mend}"
    )


def _checked_tensor(value: Tensor, where: str) -> Tensor:
    if value.dtype in _USUAL and value.layout is torch.strided and not value.is_nested and not value.is_meta:
        return value
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else "sparse"
        kind = "meta" if value.is_meta else kind
        mend = {"sparse": "Pass value.to_dense().", "quantized": "Pass value.dequantize()."}
        raise unusable(where, f"a {kind} tensor", mend.get(kind, "Pass a dense tensor of its numbers."))
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
        return "Let the dataset return torch.from_numpy(numpy.array(image)) in one size."
    if hasattr(value, "toarray"):
        return "Pass value.toarray()."
    return f"Give {_NUMBERS}."


def _too_large(where: str) -> InvalidInput:
    return InvalidInput(
        f"{where} contains an integer too large for int64. Replace identifiers by their positions in a "
        "public list, or remove this part."
    )


_OF_PYTHON = ({int}, {float})
"""Python types of numbers; NumPy converts a list with one of these types at once."""


def batch_of(name: str, leaves: Sequence[Any], indices: Indices, floating: torch.dtype | None) -> Tensor:
    """Stack ``leaves``, the part ``name`` of the records at ``indices``, into one cast tensor (n, ...)."""
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
            f"collate returned {name} without a leading dimension of 1. The session calls it with a list of "
            "one record. Return a batch, as for a DataLoader."
        )
    return _stacked(name, [row[0] for row in rows], indices, floating)


def _stacked(name: str, rows: list[Tensor], indices: Indices, floating: torch.dtype | None) -> Tensor:
    if len({tuple(row.shape) for row in rows}) > 1:
        raise _no_batch(
            indices,
            f"{name} differs in shape",
            "Pass collate=tacit.collate.pad(length=...) with a public length, or let the dataset return one "
            "shape. collate is called for one record at a time, so it must pad to a fixed length "
            '(padding="max_length"), not to the longest record.',
        )
    if len({row.dtype for row in rows}) > 1:
        rows = [cast_numbers(row, floating) for row in rows]
        if len(types := {str(row.dtype) for row in rows}) > 1:
            raise _no_batch(
                indices,
                f"{name} differs in type ({', '.join(sorted(types))})",
                "Let the dataset return one type: float(...) or int(...).",
            )
    return cast_numbers(torch.stack(rows), floating)


def few(positions: Sequence[int] | Indices) -> str:
    text = ", ".join(str(int(position)) for position in positions[:5])
    return text if len(positions) <= 5 else f"{text}, ..."


def _no_batch(indices: Indices, reason: str, mend: str) -> InvalidInput:
    return InvalidInput(f"the records at {few(indices)} cannot be put into one batch: {reason}. {mend}")


Template: TypeAlias = int | tuple[Any, ...] | dict[str, Any]
Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead from a record to one of its parts."""


def flatten(record: Any, *, lists: bool = True) -> tuple[Template, dict[Path, Any]]:
    """Return the template of a record, and its leaves by their paths; a list of numbers is a leaf.

    >>> flatten({"x": [0.5, 2.0], "pair": (1, 2)})
    ({'x': 0, 'pair': (1, 2)}, {('x',): [0.5, 2.0], ('pair', 0): 1, ('pair', 1): 2})
    """
    leaves: dict[Path, Any] = {}

    def template_of(value: Any, path: Path) -> Template:
        if isinstance(value, Mapping):
            for key in value:
                _check_key(key, path)
            return {key: template_of(part, (*path, key)) for key, part in value.items()}
        if isinstance(value, tuple) or (lists and isinstance(value, list) and not _holds_numbers(value)):
            parts = [template_of(part, (*path, position)) for position, part in enumerate(value)]
            return _rebuilt_like(value, parts)
        leaves[path] = value
        return len(leaves) - 1

    template: Template = template_of(record, ())
    return template, leaves


def leaves_by(template: Template, record: Any) -> list[Any]:
    """Return the leaves of a record in the order of a template."""
    if is_positional(template) and isinstance(record, tuple | list) and len(record) == len(template):
        return list(record)
    paths, leaves = paths_of(template), flatten(record)[1]
    if len(leaves) != len(paths) or any(path not in leaves for path in paths):
        raise InvalidInput(
            "the records differ in structure. Let each item of the dataset be a tuple or mapping of tensors "
            "and numbers, with the same keys and the same number of parts."
        )
    return [leaves[path] for path in paths]


def rebuild(template: Template, leaves: Sequence[Any]) -> Any:
    """Rebuild a record from its leaves."""
    match template:
        case int():
            return leaves[template]
        case dict():
            return {key: rebuild(part, leaves) for key, part in template.items()}
        case _:
            return _rebuilt_like(template, [rebuild(part, leaves) for part in template])


def name_of(path: Path) -> str:
    words = [f"key {step!r}" if isinstance(step, str) else f"part {step}" for step in path]
    return ", ".join(words) or "the record"


def paths_of(template: Template) -> list[Path]:
    return list(flatten(template)[1])


def is_positional(template: Template) -> TypeGuard[tuple[int, ...]]:
    """Return whether records are flat tuples, whose tensors the loss gets as positional arguments."""
    return isinstance(template, tuple) and all(type(part) is int for part in template)


def with_record(loss: PerExampleLoss, template: Callable[[], Template]) -> PerExampleLoss:
    """Wrap ``loss`` to be called with tensors; ``template()`` is known when the first item was read."""

    def of_record(model: nn.Module, *tensors: Tensor) -> Tensor:
        parts, keywords = _arguments(template(), tensors)
        return loss(model, *parts, **keywords)

    return of_record


def check_loss_takes(loss: Callable[..., object], template: Template) -> None:
    """Refuse a loss that cannot be called with the model and a record of this template."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # compiled code has no signature
        return
    parts, keywords = _arguments(template, range(len(paths_of(template))))
    try:
        signature.bind(None, *parts, **keywords)
    except TypeError:
        count = len(parts) + len(keywords)
        plural = "s" if count > 1 else ""
        if keywords:
            record, arguments = "a mapping", f"{count} keyword{plural}, the record's key{plural}"
            fix = "def loss(model, **record)"
        else:
            record, arguments = f"{count} part{plural}", f"{count} tensor{plural}"
            letters = ", ".join("xyzuvw"[:count])
            fix = f"def loss(model, {letters})" if count <= 6 else "def loss(model, *parts)"
        raise InvalidInput(
            f"the loss takes ({', '.join(_names(signature))}), but the session calls it with the model and "
            f"{arguments}, because a record is {record}. Define it as {fix}."
        ) from None


def _arguments(template: Template, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    record = rebuild(template, leaves)
    if isinstance(template, dict):
        return (), record
    return (record,) if isinstance(template, int) else record, {}


def _names(signature: inspect.Signature) -> Iterator[str]:
    for name, parameter in signature.parameters.items():
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        yield ("**" if parameter.kind is parameter.VAR_KEYWORD else star) + name


def _rebuilt_like(like: Any, parts: list[Any]) -> tuple[Any, ...]:
    record: tuple[Any, ...] = type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return record


def _holds_numbers(values: Any) -> bool:
    """Return whether a list holds numbers, such as tokens, as far as its first item shows."""
    while isinstance(values, list) and len(values) > 0:
        values = values[0]
    return isinstance(values, list | Number | np.generic)


def _check_key(key: object, path: Path) -> None:
    if not isinstance(key, str):
        raise InvalidInput(
            f"{name_of(path)} is a mapping with a key of type {type(key).__name__}. Keys must be strings, "
            "because they are keyword arguments of the loss. Rename the keys."
        )


_PRINTED = re.compile(r"out of (bounds|range)", re.IGNORECASE)
_OF_DEVICE = re.compile(r"memory|CUDA|cuDNN|cuBLAS|device-side", re.IGNORECASE)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Raise errors of model and loss without their message, which may contain a value of a record."""
    try:
        yield
    except (TacitError, Warning, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as problem:  # the user's own code may raise anything
        text = str(problem)
        if not (isinstance(problem, IndexError | RuntimeError) and _PRINTED.search(text)):
            if _OF_DEVICE.search(text) or " in " not in (place := without_values(problem)):
                raise
            raise InvalidInput(
                f"the model or the loss failed on records: {place}. It did not fail on records of zeros. The "
                "original message is hidden, because it may contain values of a record. Let model and loss "
                "accept every record, or remove such records by a public rule."
            ) from None
        raise InvalidInput(
            "a number in a record is out of range for the model or the loss, such as a class beyond the "
            f"model's outputs, or a token beyond its embedding ({without_values(problem)}). Declare as many "
            "classes and tokens as there may be."
        ) from None


def lacks_memory(problem: BaseException) -> bool:
    """Return whether an error of torch, or of a library that it calls, means a lack of device memory."""
    lacks = "out of memory" in str(problem) or "ALLOC_FAILED" in str(problem)
    return isinstance(problem, torch.OutOfMemoryError) or (of_device(problem) and lacks)


@contextmanager
def naming_lost_device(step: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        if lacks_memory(problem) or not of_device(problem):
            raise
        text = str(problem).strip().partition("\n")[0].rstrip(".")
        raise DeviceLost(
            f"the GPU failed in step {step}: {text}. The step released nothing. Restart the program, and "
            "resume from the last saved state with session.load(path) or tacit train --resume; the step is "
            "repeated with the same noise. After a device-side assert, try model and loss on the CPU: a "
            "class or token number of a record may be out of range."
        ) from problem


@contextmanager
def as_for_zeros(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """If the model fails on ``inputs`` (n, ...), raise its error on records of zeros instead, if any."""
    try:
        yield
    except (TacitError, Warning, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # noqa: BLE001 (the user's own code may raise anything)
        try:
            model(torch.zeros_like(inputs[:2]))
        except Exception as problem:  # noqa: BLE001 (likewise)
            message = f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0].rstrip('.')}"
            kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape[1:])}"
            refusal = InvalidInput(
                f"the model fails on records that are {kind}: {message}. (The message is from records of "
                "zeros.) Pass records of the shape and type that the model expects."
            )
        else:
            raise
    else:
        return
    raise refusal  # outside the handlers: an error about records must not be its context


def check_classes(targets: Tensor, outputs: int, *, padding: int | None = None) -> None:
    """Refuse class numbers outside 0, ..., ``outputs`` - 1, except ``padding``."""
    wrong = (targets < 0) | (targets >= outputs)
    if padding is not None:
        wrong &= targets != padding
    if bool(wrong.any()):
        raise InvalidInput(
            f"targets must be in 0..{outputs - 1}, because the model has {outputs} outputs; "
            f"{int(wrong.sum())} of {targets.numel()} are not."
        )
