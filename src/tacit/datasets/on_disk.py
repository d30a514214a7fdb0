"""Arrays in files, which may be larger than the memory."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InvalidInput, without_values


@final
class OnDisk:
    """An array to which rows are appended, in a file without a name, which ends with the last map of it."""

    def __init__(self) -> None:
        with _of_disk():
            self._file = tempfile.TemporaryFile(dir=Path.cwd())  # noqa: SIM115 (closed in ``tensor``)
        self._like: NDArray[Any] | None = None
        self._count = 0

    def append(self, rows: NDArray[Any]) -> None:
        self._like = rows[:0]
        self._count += len(rows)
        with _of_disk():
            self._file.write(np.ascontiguousarray(rows).data)

    def tensor(self) -> Tensor:
        assert self._like is not None, "there were rows"
        if self._count == 0:  # an empty file has no map
            return torch.from_numpy(self._like)
        with self._file, _of_disk():
            self._file.flush()
            shape = (self._count, *self._like.shape[1:])
            rows = np.memmap(self._file, self._like.dtype, "r+", shape=shape)
        return with_map(torch.from_numpy(rows), rows)


def empty_on_disk(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor in a file without a name, which ends with it; its place on the disk is reserved."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    with _of_disk(), tempfile.TemporaryFile(dir=Path.cwd()) as file:
        # else a full disk would end the process when the map is written to
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * kind.itemsize)
        rows = np.memmap(file, kind, "r+", shape=shape)
    return with_map(torch.from_numpy(rows), rows)


@contextmanager
def _of_disk() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        folder = Path.cwd()  # not that of temporary files, which may be in memory
        raise InvalidInput(
            f"cannot write the rows of a large table to a temporary file in the current folder, {folder}: "
            f"{without_values(problem)}. Start in a folder on a disk with enough room."
        ) from None


def with_map(tensor: Tensor, array: object) -> Tensor:
    """Return ``tensor``, made of ``array``, with the file that it may be a map of, for :func:`give_back`."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            private = array.mode == "c"  # a copy on write: what was written is in no file
            cast("Any", tensor).pages = None if private else cast("Any", array)._mmap
            break
        array = array.base
    return tensor


def is_map(tensor: Tensor) -> bool:
    """Return whether a tensor is known to be a map of a file."""
    return getattr(tensor, "pages", None) is not None


def give_back(tensor: Tensor) -> None:
    """Give the memory of a tensor back that is a map of a file; reading it again reads the file."""
    pages = getattr(tensor, "pages", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
