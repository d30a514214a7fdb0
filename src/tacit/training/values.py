"""Errors that may show a value of a record, raised again without that value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.errors import DeviceLost, InvalidInput, TacitError, of_device, without_values

_PRINTED = re.compile(r"out of (bounds|range)", re.IGNORECASE)
_OF_DEVICE = re.compile(r"memory|CUDA|cuDNN|cuBLAS|device-side", re.IGNORECASE)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Raise errors of model and loss again without their own text, which may hold a value of a record."""
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
                f"the model or the loss failed on records: {place}. The message leaves out the error's own "
                "text, which may hold values of a record; on records of zeros there was no error. Let "
                "model and loss accept every record, or remove such records by a rule that is known without "
                "the data."
            ) from None
        raise InvalidInput(
            "a number in a record is out of range. The model or the loss does not support it. For example, "
            "a class number is not below the number of the model's outputs, or a token number is not below "
            f"the size of its embedding ({without_values(problem)}). Declare as many classes and tokens as "
            "there may be."
        ) from None


def lacks_memory(problem: BaseException) -> bool:
    """Return whether an error, of torch or of a library that it calls, says that a device lacks memory.

    >>> lacks_memory(torch.OutOfMemoryError("CUDA out of memory."))
    True
    >>> lacks_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"))
    True
    >>> lacks_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    False
    """
    lacks = "out of memory" in str(problem) or "ALLOC_FAILED" in str(problem)
    return isinstance(problem, torch.OutOfMemoryError) or (of_device(problem) and lacks)


@contextmanager
def naming_lost_device(step: int) -> Iterator[None]:
    """Explain what to do if the device fails in ``step``; errors about memory pass unchanged."""
    try:
        yield
    except RuntimeError as problem:
        if lacks_memory(problem) or not of_device(problem):
            raise
        text = str(problem).strip().partition("\n")[0].rstrip(".")
        raise DeviceLost(
            f"the GPU failed in step {step}: {text}. Nothing of the step was released, and this process can "
            "no longer use the GPU. Start the program again and go on from the last saved state, by "
            "session.load(path) or tacit train --resume: the step is taken again with the same noise. "
            "After a device-side assert, see whether a record may hold a class or a token that the model has "
            "no place for: try model and loss on the CPU."
        ) from problem


@contextmanager
def as_for_zeros(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """If the model fails on ``inputs`` (n, ...), raise the error that it gives for records of zeros instead.

    If records of zeros give no error, the original error is raised.
    """
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
                f"the model fails on records that are {kind}: {message}. (This is its error for records of "
                "zeros.) Give it inputs of the shape and type that it was made for."
            )
        else:
            raise
    else:
        return
    raise refusal  # outside the handlers: an error about records must not be its context


def check_classes(targets: Tensor, outputs: int, *, padding: int | None = None) -> None:
    """Refuse class numbers outside 0, ..., ``outputs`` - 1, except ``padding``.

    >>> check_classes(torch.tensor([0, 1, 2]), 2)
    Traceback (most recent call last):
    tacit.errors.InvalidInput: targets must lie in 0..1, as the model has 2 outputs; 1 of 3 do not.
    """
    wrong = (targets < 0) | (targets >= outputs)
    if padding is not None:
        wrong &= targets != padding
    if bool(wrong.any()):
        raise InvalidInput(
            f"targets must lie in 0..{outputs - 1}, as the model has {outputs} outputs; "
            f"{int(wrong.sum())} of {targets.numel()} do not."
        )
