"""How do the tensors of single records become a batch? They are stacked, if they agree in shape and type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.sampling import Indices
from tacit.training.data.arrays import cast_numbers, tensor_of

_NUMBERS = ({int}, {float})
"""Types of Python that fill a whole part of a batch at once."""


def batch_of(name: str, leaves: Sequence[Any], indices: Indices, floating: torch.dtype | None) -> Tensor:
    """The (n, ...) tensor of the part ``name`` of n records, cast by the casting rule.

    Raises:
        InvalidInput: a leaf cannot be a tensor, or they differ in shape or type.

    >>> batch_of("part 0", [1.5, 2.5], np.arange(2), torch.float32)
    tensor([1.5000, 2.5000])
    """
    if {*map(type, leaves)} in _NUMBERS:
        numbers = np.asarray(leaves)
        if numbers.dtype.kind in "if":
            return cast_numbers(torch.from_numpy(numbers), floating)
    return _stacked(name, [tensor_of(leaf, name) for leaf in leaves], indices, floating)


def batch_of_collated(
    name: str, leaves: Sequence[Any], indices: Indices, floating: torch.dtype | None
) -> Tensor:
    """The same of what ``collate`` made of each record alone, with a leading dimension of 1."""
    rows = [tensor_of(leaf, name) for leaf in leaves]
    if not all(row.dim() > 0 and len(row) == 1 for row in rows):
        raise InvalidInput(
            f"collate gave {name} without a leading dimension of 1. The session calls it with a list of one "
            "record, so that it cannot mix records; let it return a batch, as for a DataLoader."
        )
    return _stacked(name, [row[0] for row in rows], indices, floating)


def _stacked(name: str, rows: list[Tensor], indices: Indices, floating: torch.dtype | None) -> Tensor:
    if len({tuple(row.shape) for row in rows}) > 1:
        raise _no_batch(
            indices,
            f"{name} differs in shape",
            "Give collate=tacit.collate.pad(length=...) with a public length, or let the data set give one "
            "shape. A collate is called for each record alone, so one that pads to the longest of a batch "
            'has no longest to pad to: let it pad to a fixed length (padding="max_length").',
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
    """The first five positions in words."""
    shown = ", ".join(str(int(position)) for position in positions[:5])
    return shown if len(positions) <= 5 else f"{shown}, ..."


def _no_batch(indices: Indices, reason: str, mend: str) -> InvalidInput:
    return InvalidInput(f"the records at {few(indices)} cannot be put into one batch: {reason}. {mend}")
