"""Several processes that take each private step together: each adds its share to one sum.

Every process (a *rank*) has the whole model and can read all records.  Letters: R ranks; r a rank, from 0.

**Guarantee**

* All ranks draw with the key of rank 0, so each record of a step's sample is computed by exactly one rank.
* The sum of the ranks' noise has the step's variance.  One rank's share has 1/R of it and must not be
  released alone.  The shares travel only between processes that trust each other.
* All ranks have the same plan, records, model, loss and settings (:mod:`tacit.training.ranks.replicas`).
* If a rank fails, no rank takes the step.
* If torch.distributed has a process group of two or more processes, or a launcher such as torchrun started
  two or more, a session without ``ranks`` reads no record and releases nothing.  Otherwise each process would
  draw its own key and train its own model, and two of these models, or their average, would cost more than
  either session reports.
"""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor
from torch import distributed as dist

from tacit.errors import InvalidInput, PrivacyRefusal, ProcessLost, launched
from tacit.noise.generator import Generator

T = TypeVar("T")

_BUCKET = 25 * 2**20
"""The most bytes of small tensors that are summed together."""


class Ranks(ABC):
    """The processes of a run, with the communication that a step needs.

    All ranks call each method in the same order and wait for one another.

    Attributes:
        rank: the number of this process, from 0.
        ranks: the number of processes.

    >>> alone = Alone()
    >>> alone.first, alone.ranks, alone.total(lambda: (2.0,))
    (True, 1, (2.0,))
    """

    rank: int
    ranks: int

    @property
    def first(self) -> bool:
        """True for rank 0, which alone writes files, charges the ledger and shows progress."""
        return self.rank == 0

    @abstractmethod
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks; the bits of the sum are the same at each rank."""

    @abstractmethod
    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite each tensor with that of rank 0."""

    @abstractmethod
    def total(self, function: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """Return the sums, over all ranks, of the numbers that each rank's ``function`` returns."""

    @abstractmethod
    def from_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` at rank 0 alone; return its result, or raise its error, at all ranks."""

    @abstractmethod
    def reached(self) -> AbstractContextManager[None]:
        """Return a context that explains communication errors: another process cannot be reached."""

    def each(self, function: Callable[[], T]) -> T:
        """Return the result of ``function`` at this rank; if it fails at one rank, no rank continues."""
        results: list[T] = []

        def call() -> tuple[float, ...]:
            results.append(function())
            return ()

        self.total(call)
        return results[0]

    def only_first(self, function: Callable[[], T]) -> T | None:
        """Call ``function`` at rank 0 alone; return its result there, and None at the other ranks.

        All ranks raise its error.  In contrast to :meth:`from_first`, the result is not sent to other ranks.
        """
        results: list[T] = []

        def call() -> None:
            results.append(function())

        self.from_first(call)
        return results[0] if results else None

    def share_secret(self, generator: Generator) -> Generator:
        """Return a generator with the key of rank 0."""
        key, secure = self.from_first(generator.secret_state)
        return generator if self.first else Generator(key, secure=secure)


@final
class Alone(Ranks):
    """One process that trains alone, even if others are running.

    >>> Alone().total(lambda: (1.0, 2.0))
    (1.0, 2.0)
    """

    rank, ranks = 0, 1

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        pass

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        pass

    def total(self, function: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        return function()

    def from_first(self, function: Callable[[], T]) -> T:
        return function()

    def reached(self) -> AbstractContextManager[None]:
        return nullcontext()


@final
class ProcessRanks(Ranks):
    """The processes of a group of ``torch.distributed``, by default all of them.

    Args:
        group: the process group; by default the one that ``torch.distributed.init_process_group`` made.

    Raises:
        InvalidInput: there is no process group, or this process is not in it.

    Start the script with ``torchrun --nproc-per-node 2 script.py``, and give the session
    ``ranks=ProcessRanks()``.  This example has a group of one process, which needs no torchrun:

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ranks = ProcessRanks()
    >>> ranks.first, ranks.ranks, ranks.total(lambda: (2.0,))
    (True, 1, (2.0,))
    >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidInput(
                "there is no process group of torch.distributed. The processes of this run need one to "
                "find each other. Call torch.distributed.init_process_group() before ProcessRanks(), and "
                "start the script with torchrun; or leave ranks= out to train in one process."
            )
        self._group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidInput(
                "this process is not in the group of ProcessRanks. Give ProcessRanks a group with this "
                "process."
            )
        self._process = os.getpid()
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        with self.reached():
            pending = []
            for bucket in _buckets(tensors):
                whole = len(bucket) == 1 and bucket[0].is_contiguous()
                flat = bucket[0].view(-1) if whole else torch.cat([tensor.reshape(-1) for tensor in bucket])
                pending.append((dist.all_reduce(flat, group=self._group, async_op=True), flat, bucket, whole))
            for work, flat, bucket, whole in pending:
                work.wait()
                if not whole:
                    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
                    for tensor, part in zip(bucket, parts, strict=True):
                        tensor.copy_(part.view_as(tensor))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        with self.reached(), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().to(self._device, copy=True, memory_format=torch.contiguous_format)
                dist.broadcast(sent.view(-1).view(torch.uint8), group=self._group, group_src=0)
                tensor.copy_(sent)

    def total(self, function: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        try:
            own = function()
        except BaseException:
            with self.reached():
                self._failures(failed=True)
            raise
        with self.reached():
            failed = self._failures(failed=False)
            if failed:
                raise ProcessLost(_failed(failed))
            if not own:
                return own
            sums = torch.tensor(own, dtype=torch.float64, device=self._device)
            dist.all_reduce(sums, group=self._group)
        return tuple(sums.tolist())

    def _failures(self, *, failed: bool) -> list[int]:
        """Return the ranks that have failed."""
        flags = torch.zeros(self.ranks, dtype=torch.int32, device=self._device)
        flags[self.rank] = int(failed)
        dist.all_reduce(flags, group=self._group)
        return [rank for rank, flag in enumerate(flags.tolist()) if flag]

    def from_first(self, function: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]  # the result of the function, and its error
        if self.first:
            try:
                outcome[0] = function()
            except BaseException as problem:  # noqa: BLE001 (raised below, at all ranks)
                outcome[1] = problem
        with self.reached():
            sent = outcome if self.first and _picklable(outcome[1]) else [None, ProcessLost(_failed([0]))]
            dist.broadcast_object_list(sent, group=self._group, group_src=0, device=self._device)
        outcome = outcome if self.first else sent
        if outcome[1] is not None:
            raise outcome[1]
        return cast("T", outcome[0])

    @contextmanager
    def reached(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise PrivacyRefusal(
                "a forked process cannot act as the rank of its parent. Start the processes with torchrun."
            )
        try:
            yield
        except ProcessLost:
            raise
        except RuntimeError as problem:
            raise ProcessLost(
                "another process of this run cannot be reached: it has ended, or the connection is lost. "
                "The step that was under way is not taken here. Start all processes again and go on from "
                "the last saved state."
            ) from problem


def _failed(ranks: Sequence[int]) -> str:
    who = f"process {ranks[0]}" if len(ranks) == 1 else f"processes {', '.join(map(str, ranks))}"
    return (
        f"{who} of this run failed, and its own output says why. No process took the step that was under "
        "way. Mend the cause, start all processes again and go on from the last saved state."
    )


def _picklable(problem: BaseException | None) -> bool:
    try:
        pickle.loads(pickle.dumps(problem))  # some errors can be pickled but not unpickled
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of tensors to sum together: each has one type and device, and small tensors are joined."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for of_kind in kinds.values():
        bucket: list[Tensor] = []
        for tensor in of_kind:
            if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > _BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        if bucket:
            yield bucket


def check_one_process() -> None:
    """Refuse to train in one of several processes.

    The check recognises a launcher by the environment variables ``WORLD_SIZE`` and ``RANK``, which
    torch.distributed reads.  torchrun and accelerate set both, even if the script never makes a process
    group.

    >>> check_one_process()
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _refuse_several(
            torch.distributed.get_world_size(),
            "torch.distributed has a process group of {} processes here",
            "Give the session ranks=tacit.training.ProcessRanks(), and they train one model together. To "
            "train in one process, start the script once, with python, without init_process_group.",
        )
    launch = launched()
    _refuse_several(
        launch.processes,
        f"a launcher such as torchrun started this script in {{}} processes (WORLD_SIZE={launch.processes}, "
        f"RANK={launch.rank})",
        "To train one model in all of them, call torch.distributed.init_process_group() and give the "
        "session ranks=tacit.training.ProcessRanks(). To train in one, start the script once, with "
        "python. If no other process trains, give the session ranks=tacit.training.Alone().",
    )


def _refuse_several(count: int, situation: str, way_out: str) -> None:
    if count > 1:
        raise PrivacyRefusal(
            f"{situation.format(count)}, and the session has no ranks. Each process would train a separate "
            "model with its own key, and anyone who sees two of these models, or their average, learns "
            f"more than session.epsilon says. {way_out}"
        )
