"""Which errors of torch print a number of a record? Those here, which are raised again without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tacit.errors import InvalidInput, without_values

__all__ = ["check_classes", "without_numbers"]

_PRINTED = re.compile(r"out of (bounds|range)", re.IGNORECASE)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Raise torch's error about a number of a record without that number, which torch would print.

    Raises:
        InvalidInput: for "Target 17 is out of bounds" and "index 17 is out of range".
    """
    try:
        yield
    except (IndexError, RuntimeError) as problem:
        if isinstance(problem, torch.OutOfMemoryError) or not _PRINTED.search(str(problem)):
            raise
        raise InvalidInput(
            "a record holds a number that the model or the loss has no place for, such as a class number "
            "that is not below the number of the model's outputs, or a token number that is not below the "
            f"size of its embedding ({without_values(problem)}). Declare as many classes and tokens as there "
            "may be."
        ) from None


def check_classes(targets: Tensor, outputs: int, *, padding: int | None = None) -> None:
    """Refuse class numbers that a model with so many ``outputs`` cannot give.

    Raises:
        InvalidInput: there are such numbers; the message says how many.

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
