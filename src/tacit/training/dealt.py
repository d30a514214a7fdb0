"""Rows of a large file, sorted by batch at the start of each epoch, so that steps read sequentially.

If each record is used once per epoch, an epoch begins with one pass over the file in order.  It writes the
rows of each batch next to each other to a temporary file, from which the steps read them.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.datasets.on_disk import empty_on_disk, give_back, is_map
from tacit.noise.generator import Generator
from tacit.sampling.samplers import BallsInBinsSampling, Indices, Sampling
from tacit.training.own_records import OwnRecords
from tacit.training.records import ArrayRecords, Records, Wrapped

_LARGE = 1 << 30  # bytes; a smaller file is likely to stay in memory, and rows are read where they are
_AT_ONCE = 1 << 26  # bytes of rows that are dealt at once


@final
class Dealt(Wrapped):
    """Records whose ``rows`` are in a file; a step reads its batch in order."""

    def __init__(self, inner: Records, rows: ArrayRecords, sampling: BallsInBinsSampling) -> None:
        super().__init__(inner)
        self._sampling, self._tensors = sampling, rows.held()
        self._own = inner.own(len(inner)) if isinstance(inner, OwnRecords) else range(len(inner))
        self._files = [empty_on_disk(tuple(tensor.shape), tensor.dtype) for tensor in self._tensors]
        self._dealt = rows.with_tensors(self._files)
        self._epoch = -1

    def held(self) -> tuple[Tensor, ...]:
        return self._tensors

    def begin(self, step: int, participants: Indices, generator: Generator) -> None:
        """Prepare for the reads of a step, without reading."""
        self._step, self._participants, self._generator = step, participants, generator

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        epoch, batch = divmod(self._step, self._sampling.bins)
        if epoch != self._epoch:
            self._deal(epoch)
        places = self._starts[batch] + np.searchsorted(self._participants, indices)
        return self._dealt.take(places, seed=seed)

    def _deal(self, epoch: int) -> None:
        batches = self._sampling.batches(self._generator, epoch, self._own)
        counts = np.bincount(batches, minlength=self._sampling.bins)
        self._starts = np.cumsum(counts) - counts
        for tensor, file in zip(self._tensors, self._files, strict=True):
            place = self._starts.copy()
            block = max(1, _AT_ONCE // max(1, tensor[:1].nbytes))
            for first in range(0, len(tensor), block):
                order = np.argsort(batches[first : first + block], kind="stable")
                of_batch, ends = np.unique(batches[first : first + block][order], return_index=True)
                rows = tensor[first : first + block][torch.from_numpy(order)]
                for batch, group in zip(of_batch.tolist(), rows.tensor_split(ends[1:].tolist()), strict=True):
                    file[place[batch] : place[batch] + len(group)] = group
                    place[batch] += len(group)
                give_back(tensor)
                give_back(file)
        self._epoch = epoch


def dealt(records: Records, sampling: Sampling) -> Dealt | None:
    """Return ``records`` sorted by epoch if ``sampling`` has epochs and they are rows of a large file."""
    rows = records.inner if isinstance(records, OwnRecords) else records
    if not (isinstance(sampling, BallsInBinsSampling) and isinstance(rows, ArrayRecords)):
        return None
    tensors = rows.held()
    in_file = sum(tensor.nbytes for tensor in tensors if is_map(tensor))
    return Dealt(records, rows, sampling) if in_file > _LARGE else None
