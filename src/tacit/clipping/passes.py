"""The number of records per pass: several passes over a batch are often faster than one.

Activations of a large batch are blocks of tens of MiB. The system allocates them again in each step, page by
page, and touching fresh pages may take longer than computing their content. A small pass reuses the memory of
the pass before. But each pass has fixed costs, its calls and one read and write of all sums, so it must not
be too small. :func:`keep_memory` tells the allocator once that blocks of tens of MiB come and go.

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
"""The number of records on which activations are measured."""
_TIMES_PARAMETERS = 8
"""A pass's activations take at least this many times the parameters, whose sums it reads and writes."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_BLOCK = 32 * 2**20  # the limit of glibc
_REQUESTS: set[int] = set()  # sizes already requested


def keep_memory(most: int) -> None:
    """Let malloc keep up to ``most`` bytes of freed memory, at least 32 MiB, for the next step.

    By default glibc returns free memory at the end of its heap to the system, beyond twice the largest block
    that was ever freed and at most beyond 64 MiB; it returns larger blocks immediately. Steps then touch tens
    of thousands of fresh pages, at 1.3 us each: up to a third of the time of a convolutional net. Of several
    calls in a process the largest counts. Other C libraries are left as they are. The user's
    ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_`` take precedence.

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
    """Return the batch (B, ...) in ``parts`` parts of whole records and nearly equal size.

    >>> [len(rows) for (rows,) in cut((torch.zeros(10, 3),), 2, views=2)]
    [4, 6]
    """
    n = len(batch[0]) // views
    edges = [n * i // parts * views for i in range(parts + 1)]
    return [tuple(t[a:b] for t in batch) for a, b in pairwise(edges)]


@final
class Passes:
    """Cuts batches into passes of at most ``most`` bytes of activations, or 8 times the parameters if more.

    The memory of a record is measured once per shape, and kept in ``measured``.
    """

    def __init__(self, most: int, parameter_bytes: int, views: int, measured: dict[str, int]) -> None:
        self._most = max(most, _TIMES_PARAMETERS * parameter_bytes)
        self._views = views
        self._measured = measured

    def cut(
        self, batch: tuple[Tensor, ...], forward: Callable[[tuple[Tensor, ...]], object], kind: str
    ) -> list[tuple[Tensor, ...]]:
        """Return the batch (B, ...) in equal parts of whole records.

        Args:
            batch: the rows.
            forward: computes the losses of some rows.
            kind: what activations depend on in addition to the shapes of the rows.
        """
        n = len(batch[0]) // self._views
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
        """Run ``forward`` on rows, and store the memory of a record if it is not known."""
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

    Results of parameters alone, such as the weight of weight_norm, do not grow with the batch.

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
    """Adds up the memory of results computed from the batch, without views and in-place changes."""

    supports_higher_order_operators = True

    def __init__(self, batch: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._of_batch = {t.untyped_storage()._cdata: t for t in batch}
        """Holds the tensors, so that no address is reused."""

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
