"""Prefetching: worker processes read the next batches while the step computes.

It is for data sets that must decode files.  The records of a step, and the seed of the random numbers that
reading them draws, are functions of the run's key and the step.  So the batches do not depend on the number
of workers.
"""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tacit.errors import InvalidInput, check_integer
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.base import Indices
from tacit.training.data.records import Records, Wrapped

_AHEAD = 2
"""The number of batches that each worker keeps ready."""


@dataclass(frozen=True, eq=False)
class Request:
    """The records of a physical batch, and the seed for reading them."""

    indices: Indices
    seed: int

    def same(self, indices: Indices, seed: int) -> bool:
        """Return whether this request has these records and this seed."""
        return self.seed == seed and np.array_equal(self.indices, indices)


@final
class Prefetcher(Wrapped):
    """Records whose batches worker processes prefetch, at most two batches each.

    Args:
        requests: returns the batches of the run from its next step on, in the order in which the workers read
            them; called each time the workers start.  If another batch is requested, it is read too, and the
            workers start again.
        workers: the number of processes.

    If a worker fails to read a batch, the process that asks for the batch raises the error.  Workers ignore
    Ctrl-C and end with the process that started them.
    """

    def __init__(self, records: Records, requests: Callable[[], Iterable[Request]], *, workers: int) -> None:
        super().__init__(records)
        self._requests = requests
        self._workers = check_integer("workers", workers, low=1)
        self._stream: Iterator[Any] | None = None

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        for _ in range(2):
            if self._stream is None:
                self._stream = self._started()
            request, batch = next(self._stream, (None, ()))
            if request is not None and request.same(indices, seed):
                if isinstance(batch, InvalidInput):
                    self._stream = None  # ends the workers
                    raise batch
                return batch
            self._stream = None
        return self.inner.take(indices, seed=seed)

    def _started(self) -> Iterator[Any]:
        loader = DataLoader(
            _Reads(self.inner),
            batch_sampler=_Requests(self._requests),
            collate_fn=_only,
            num_workers=self._workers,
            prefetch_factor=_AHEAD,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # torch's default generator stays unchanged
        )
        return iter(loader)


class _Requests:
    """The requests as a batch sampler for DataLoader, which asks for one as soon as a worker is free."""

    def __init__(self, requests: Callable[[], Iterable[Request]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests())


class _Reads(Dataset[Any]):
    """The records as a data set whose "items" are whole requests; DataLoader sends it to the workers."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitems__(self, request: Request) -> list[Any]:
        try:
            return [(request, self._records.take(request.indices, seed=request.seed))]
        except InvalidInput as problem:  # sent as a value; the process that takes the batch raises it
            return [(request, problem)]


def _only(items: list[Any]) -> Any:
    return items[0]


def _ignore_interrupts(worker: int) -> None:
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class DrawnRecords(Records):
    """Records whose batches were drawn before the run began, with the run's key.

    The process of the run prefetches these batches without worker processes.
    """

    @abstractmethod
    def generator_for(self, plan: Plan) -> Generator:
        """Return the generator with which the batches of ``plan`` were drawn."""

    @abstractmethod
    def check_free(self, run: str) -> None:
        """Refuse batches that a run other than ``run`` has claimed."""

    @abstractmethod
    def claim(self, run: str) -> None:
        """Reserve the batches for ``run``, a random name in its resume state."""
