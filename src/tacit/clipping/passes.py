"""Splitting a batch into passes: several passes over parts of a batch are often faster than one pass.

The activations of a large batch are blocks of tens of MiB. The system allocates them anew in each step, page
by page, and touching fresh pages may take longer than computing their content. A small pass reuses the memory
of the pass before. But each pass has fixed costs, namely its calls and one read and write of all sums, so it
must not be too small. :func:`keep_memory` tells the allocator to keep freed blocks of tens of MiB.

Letters: n records; K views; B = n K rows.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TRIED = 2
"""The number of records in the pass that measures the memory of activations."""
_TIMES_PARAMETERS = 8
"""A pass may always take this many times the bytes of the parameters, as it reads and writes their sums."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_BLOCK = 32 * 2**20  # the largest value that glibc allows for M_MMAP_THRESHOLD
_REQUESTS: set[int] = set()  # sizes already requested


def keep_memory(most: int) -> None:
    """Let malloc keep up to ``most`` bytes of freed memory, at least 32 MiB, for the next step.

    By default, glibc keeps free memory at the end of its heap only up to twice the largest block that was
    ever freed, and at most 64 MiB. It returns the rest to the system, and blocks above 32 MiB immediately.
    Steps then touch tens of thousands of fresh pages, at 1.3 us each: up to a third of the time of a
    convolutional net. If a process calls this several times, the largest ``most`` counts. With other C
    libraries nothing happens. The user's ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_`` take
    precedence.

    >>> keep_memory(64 * 2**20)
    """
    size = min(max(most, _LARGEST_BLOCK), 2**31 - 1)
    settings = os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    if size <= max(_REQUESTS, default=0) or settings or platform.libc_ver()[0] != "glibc":
        return
    _REQUESTS.add(size)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, size)
    mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)


def cut(batch: tuple[Tensor, ...], parts: int, views: int) -> list[tuple[Tensor, ...]]:
    """Split the batch (B, ...) into ``parts`` parts of nearly equal size, without splitting a record.

    >>> [len(rows) for (rows,) in cut((torch.zeros(10, 3),), 2, views=2)]
    [4, 6]
    """
    n = len(batch[0]) // views
    edges = [n * i // parts * views for i in range(parts + 1)]
    return [tuple(t[a:b] for t in batch) for a, b in pairwise(edges)]


@final
class Passes:
    """Splits batches into passes with a limited amount of activations.

    The limit is ``most`` bytes, or 8 times the bytes of the parameters if that is more. The memory of a
    record is measured once per shape, and stored in ``measured``.
    """

    def __init__(self, most: int, parameter_bytes: int, views: int, measured: dict[str, int]) -> None:
        self._most = max(most, _TIMES_PARAMETERS * parameter_bytes)
        self._views = views
        self._measured = measured

    def cut(
        self,
        batch: tuple[Tensor, ...],
        forward: Callable[[tuple[Tensor, ...]], object],
        kind: str,
        expected: int | None = None,
    ) -> list[tuple[Tensor, ...]]:
        """Split the batch (B, ...) into nearly equal parts, without splitting a record.

        The number of parts follows from ``expected``, a public number of records, so that a loss that counts
        its calls learns nothing. Parts may be empty.

        Args:
            batch: the rows.
            forward: a function that computes the losses of some rows.
            kind: all else that the size of activations depends on, in addition to the shapes of the rows.
            expected: the public number of records; None: that of the batch.
        """
        n = len(batch[0]) // self._views if expected is None else expected
        bytes_of_one = self._bytes_of_one(batch, forward, kind)
        passes = min(n, -(-n * bytes_of_one // self._most))
        if passes <= 1:
            return [batch]
        return cut(batch, passes, self._views)

    def _bytes_of_one(
        self, batch: tuple[Tensor, ...], forward: Callable[[tuple[Tensor, ...]], object], kind: str
    ) -> int:
        key = _key(batch, kind)
        if key not in self._measured:
            rows = min(len(batch[0]), _TRIED * self._views)
            self.measure(tuple(t[:rows] for t in batch), forward, kind)
        return self._measured[key]

    def measure(
        self, rows: tuple[Tensor, ...], forward: Callable[[tuple[Tensor, ...]], object], kind: str
    ) -> None:
        """Run ``forward`` on rows, and measure the memory of a record if it is not known yet."""
        if _key(rows, kind) in self._measured:
            forward(rows)
            return
        size = forward_bytes(forward, rows)
        self._measured[_key(rows, kind)] = -(-size * self._views // len(rows[0]))


def _key(batch: tuple[Tensor, ...], kind: str) -> str:
    shapes = " ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in batch)
    return f"{shapes} {kind}"


def forward_bytes(forward: Callable[[tuple[Tensor, ...]], object], batch: tuple[Tensor, ...]) -> int:
    """Return the bytes of all results computed from the batch; leave random generators unchanged.

    Results computed from parameters alone, such as the weight of weight_norm, do not count, as they do not
    grow with the batch.

    >>> forward_bytes(lambda batch: batch[0].double().tanh(), (torch.zeros(3, dtype=torch.float32),))
    48
    >>> weight = torch.ones(500)
    >>> forward_bytes(lambda batch: batch[0] * weight.square().sum(), (torch.zeros(3),))
    12
    """
    counting = _Counting(batch)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), counting:
        torch.default_generator.manual_seed(0)
        forward(batch)
    return counting.total


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of results computed from the batch, except views and in-place changes."""

    supports_higher_order_operators = True

    def __init__(self, batch: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._of_batch = {t.untyped_storage()._cdata: t for t in batch}
        """The tensors by the address of their storage, held so that no address is reused."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        if inputs.isdisjoint(self._of_batch):
            return result
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            if (storage := tensor.untyped_storage())._cdata not in inputs:
                self.total += storage.nbytes()
            self._of_batch.setdefault(storage._cdata, tensor)
        return result
