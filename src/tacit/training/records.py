"""The records of a run: anything that gives a record's tensors for its position."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from tacit.errors import InvalidInput
from tacit.sampling import Indices

__all__ = ["Data", "Records", "as_records"]

Data = Sequence[Tensor] | TensorDataset | Dataset[Any]


@dataclass(frozen=True)
class Records:
    """Records by position: ``tensors`` of a common leading dimension N, or a map-style data set."""

    tensors: tuple[Tensor, ...] | None
    dataset: Dataset[Any] | None

    def __len__(self) -> int:
        if self.tensors is not None:
            return len(self.tensors[0])
        return len(cast(Sized, self.dataset))

    def take(self, indices: Indices) -> tuple[Tensor, ...]:
        """The tensors (n, ...) of the records at these positions, n >= 1."""
        if self.tensors is not None:
            first, last = int(indices[0]), int(indices[-1]) + 1
            if last - first == len(indices) and len(np.unique(indices)) == len(indices):
                # A copy all the same: a model may work in place on its input.
                return tuple(tensor[first:last].clone() for tensor in self.tensors)
            rows = torch.from_numpy(indices)
            return tuple(tensor.index_select(0, rows) for tensor in self.tensors)
        dataset = cast("Dataset[Any]", self.dataset)
        batch = default_collate([dataset[int(i)] for i in indices])
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        if not all(isinstance(part, Tensor) for part in parts):
            raise InvalidInput(
                "each item of the data set must be a tensor or a tuple of tensors and numbers; "
                f"got an item with {', '.join(type(part).__name__ for part in parts)} after collation."
            )
        return cast("tuple[Tensor, ...]", parts)

    def fingerprint(self, key: bytes) -> str:
        """A keyed digest that tells whether a resumed run sees the same records.

        Without the key, which lies in the resume state only, it confirms no guess about the data.
        """
        digest = hashlib.blake2b(key=key, digest_size=16)
        digest.update(str(len(self)).encode())
        for tensor in self.tensors or ():
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def as_records(data: Data | Records) -> Records:
    """Take tensors, a ``TensorDataset`` or a map-style ``Dataset``; refuse what has no positions.

    >>> len(as_records((torch.zeros(5, 3), torch.zeros(5))))
    5
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, TensorDataset):
        return _from_tensors(tuple(data.tensors))
    if isinstance(data, Dataset):
        if not isinstance(data, Sized):
            raise InvalidInput(
                f"{type(data).__name__} has no length: records must be reachable by position, so that "
                "each can be sampled independently. Use a map-style data set, or tensors."
            )
        return Records(None, data)
    if isinstance(data, list | tuple) and data and all(isinstance(part, Tensor) for part in data):
        return _from_tensors(tuple(data))
    raise InvalidInput(
        f"data must be a sequence of tensors, a TensorDataset or a map-style Dataset; got "
        f"{type(data).__name__}. A DataLoader is not needed: the session draws the batches itself."
    )


def _from_tensors(tensors: tuple[Tensor, ...]) -> Records:
    lengths = {len(tensor) if tensor.dim() else -1 for tensor in tensors}
    if len(lengths) != 1 or lengths == {-1}:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise InvalidInput(f"all tensors need the same leading dimension, one row per record; got {shapes}.")
    for position, tensor in enumerate(tensors):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InvalidInput(
                f"tensor {position} of the data holds NaN or infinite values. Remove such records or fill "
                "them by a fixed rule before training; a rule computed from the data would leak."
            )
    return Records(tensors, None)
