"""Reading ahead: worker processes read the batches that come next while the step computes.

For data sets that must decode files.  Which records a step takes, and the seed of what is random in reading
them, are functions of the run's key and the step; so what is read does not depend on the number of workers.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tacit.errors import InvalidInput, check_integer
from tacit.sampling import Indices
from tacit.training.records import Records

__all__ = ["ReadAhead", "Request"]

_AHEAD = 2
"""Batches that each worker holds ready."""


@dataclass(frozen=True, eq=False)
class Request:
    """The records of a physical batch, and the seed for reading them."""

    indices: Indices
    seed: int

    def same(self, indices: Indices, seed: int) -> bool:
        """Whether it asks for this."""
        return self.seed == seed and np.array_equal(self.indices, indices)


@final
class ReadAhead(Records):
    """``records``, read by ``workers`` processes in the order of ``requests``, at most 2 batches each ahead.

    Args:
        requests: gives what will be asked for, from the next step of the run on, each time it is called.
            A batch that is asked for out of turn is read all the same, and the workers start again.

    Errors in a worker are raised where its batch is taken.  Workers leave Ctrl-C to the process that
    started them, and end with it.
    """

    def __init__(self, records: Records, requests: Callable[[], Iterable[Request]], *, workers: int) -> None:
        self._records = records
        self._requests = requests
        self._workers = check_integer("workers", workers, low=1)
        self._stream: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._records)

    def fingerprint(self, key: bytes) -> str:
        return self._records.fingerprint(key)

    def content(self) -> Iterator[bytes | memoryview] | None:
        return self._records.content()

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        for _ in range(2):
            if self._stream is None:
                self._stream = self._started()
            request, found = next(self._stream, (None, ()))
            if request is not None and request.same(indices, seed):
                if isinstance(found, InvalidInput):
                    self._stream = None  # ends the workers
                    raise found
                return found
            self._stream = None
        return self._records.take(indices, seed=seed)

    def _started(self) -> Iterator[Any]:
        loader = DataLoader(
            _Reads(self._records),
            batch_sampler=_Asked(self._requests),
            collate_fn=_only,
            num_workers=self._workers,
            prefetch_factor=_AHEAD,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # torch's own is left as it is
        )
        return iter(loader)


class _Asked:
    """The requests as a sampler of batches, which DataLoader takes one by one as its workers get free."""

    def __init__(self, requests: Callable[[], Iterable[Request]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests())


class _Reads(Dataset[Any]):
    """The records as a data set that answers a whole request; this is what goes to a worker."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitems__(self, request: Request) -> list[Any]:
        try:
            return [(request, self._records.take(request.indices, seed=request.seed))]
        except InvalidInput as problem:  # travels as a value, and is raised where the batch is taken
            return [(request, problem)]


def _only(items: list[Any]) -> Any:
    return items[0]


def _ignore_interrupts(worker: int) -> None:
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
