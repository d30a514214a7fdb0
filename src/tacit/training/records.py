"""Where do the records of a step come from? From anything that gives a record's tensors for its position.

Tensors, NumPy arrays and memory maps give a batch by one gather.  A map-style data set gives its records one
by one, or by ``__getitems__`` where it has it, and :mod:`tacit.training.prefetch` reads them early.

Letters: N records; n records of a batch.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeAlias, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from tacit.errors import InvalidInput, without_values
from tacit.sampling import Indices

__all__ = ["ArrayRecords", "Data", "DatasetRecords", "Records", "as_records"]

Array: TypeAlias = Tensor | NDArray[Any]
Data = Sequence[Array] | TensorDataset | Dataset[Any]

_SAMPLED = 32  # records of a data set that its fingerprint is made of
_CHUNK_BYTES = 1 << 24
"""Records are checked in pieces of this size, so that a memory map need not fit into memory."""


class Records(ABC):
    """Records by position."""

    @abstractmethod
    def __len__(self) -> int:
        """N."""

    @abstractmethod
    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        """The tensors (n, ...) of the records at these positions, n >= 1.

        ``seed``: of the random numbers that reading a record draws.
        """

    @abstractmethod
    def fingerprint(self, key: bytes) -> str:
        """A keyed digest by which a resumed run recognises the same records.

        Only the resume state holds the key, without which the digest confirms no guess about the data.
        """

    @abstractmethod
    def content(self) -> Iterator[bytes | memoryview] | None:
        """All records in bytes, for the fingerprint by which a ledger recognises them; None where each would
        have to be read and decoded for it."""


@final
class ArrayRecords(Records):
    """Tensors, arrays or memory maps of a common leading dimension N; row i is record i.

    A stretch of consecutive records, such as the full batch, is not copied.  A model may change its input in
    place, so the first stretch is a copy, which shows whether the model does.

    >>> ArrayRecords((torch.arange(5), np.ones((5, 2)))).take(np.array([0, 3]), seed=0)[0]
    tensor([0, 3])
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._tensors = tuple(_as_tensor(array) for array in arrays)
        _check_rows(self._tensors)
        self._count = len(self._tensors[0])
        self._may_lend = all(_writable(array) for array in arrays)
        self._lend: bool | None = None  # None: not known yet whether the model leaves its input unchanged
        self._lent: tuple[tuple[Tensor, int], ...] = ()
        self._digest: tuple[object, str] | None = None

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        del seed
        first, last = int(indices[0]), int(indices[-1]) + 1
        if last - first == len(indices) and bool((indices[:-1] < indices[1:]).all()):
            return self._stretch(first, last)
        rows = torch.from_numpy(indices)
        there = {tensor.device: rows.to(tensor.device, non_blocking=True) for tensor in self._tensors}
        return tuple(tensor.index_select(0, there[tensor.device]) for tensor in self._tensors)

    def _stretch(self, first: int, last: int) -> tuple[Tensor, ...]:
        unchanged = all(tensor._version == version for tensor, version in self._lent)
        if self._lend and not unchanged:
            raise InvalidInput(
                "the records changed during the run: by other code, or by a model that changes its input in "
                "place in this step and did not before. Give the session tensors that nothing else changes, "
                "and let the model begin with x = x.clone()."
            )
        if self._lend is None and self._lent:
            self._lend = unchanged
        stretch = tuple(tensor[first:last] for tensor in self._tensors)
        if self._lend:
            self._lent = tuple((tensor, tensor._version) for tensor in self._tensors)
            return stretch
        copies = tuple(tensor.clone() for tensor in stretch)
        watched = copies if self._may_lend and self._lend is None else ()
        self._lent = tuple((tensor, tensor._version) for tensor in watched)
        return copies

    def fingerprint(self, key: bytes) -> str:
        state = (key, [None if t.is_inference() else t._version for t in self._tensors])
        if self._digest is None or self._digest[0] != state:
            digest = hashlib.blake2b(key=key, digest_size=16)
            for piece in self.content():
                digest.update(piece)
            self._digest = state, digest.hexdigest()
        return self._digest[1]

    def content(self) -> Iterator[bytes | memoryview]:
        yield str(len(self)).encode()
        for tensor in self._tensors:
            yield f"{tuple(tensor.shape)} {tensor.dtype}".encode()
            for part in _pieces(tensor.detach()):
                yield part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data


@final
class DatasetRecords(Records):
    """A map-style data set, whose item i is record i: a tensor, or a tuple of tensors and numbers.

    What it draws from Python's, NumPy's or torch's global generators is a function of ``seed``, and these
    generators are afterwards as before.  Reading all records could take as long as an epoch, so the
    fingerprint is that of their number and of 32 records that the key chooses.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        if not isinstance(dataset, Sized):
            raise InvalidInput(
                f"{type(dataset).__name__} has no length: records must be reachable by position, so that "
                "each can be sampled independently. Use a map-style data set, or tensors."
            )
        self.dataset = dataset
        self._digest: tuple[bytes, str] | None = None

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        with _seeded(seed):
            items = self._items([int(i) for i in indices])
        try:
            batch = default_collate(items)
        except (TypeError, RuntimeError) as problem:  # their texts name types and shapes
            raise _no_batch(indices, str(problem).rstrip(".")) from None
        except (LookupError, ValueError, OverflowError) as problem:
            raise _no_batch(indices, without_values(problem)) from None
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        if not all(isinstance(part, Tensor) for part in parts):
            raise InvalidInput(
                "each item of the data set must be a tensor or a tuple of tensors and numbers; "
                f"got an item with {', '.join(type(part).__name__ for part in parts)} after collation."
            )
        return cast("tuple[Tensor, ...]", parts)

    def _items(self, positions: list[int]) -> list[Any]:
        together: Callable[[list[int]], list[Any]] | None = getattr(self.dataset, "__getitems__", None)
        if together is None:
            return [self._item(position) for position in positions]
        try:
            items = together(positions)
        except Exception as problem:  # noqa: BLE001 (the user's own code may raise anything)
            raise _unreadable(f"one of the records at {_few(positions)}", problem) from None
        if len(items) != len(positions):
            raise InvalidInput(
                f"{type(self.dataset).__name__}.__getitems__ gave {len(items)} items for {len(positions)} "
                "positions; it must give one for each, in order."
            )
        return items

    def _item(self, position: int) -> Any:
        try:
            return self.dataset[position]
        except Exception as problem:  # noqa: BLE001 (the user's own code may raise anything)
            raise _unreadable(f"record {position}", problem) from None

    def fingerprint(self, key: bytes) -> str:
        if self._digest is None or self._digest[0] != key:
            digest = hashlib.blake2b(str(len(self)).encode(), key=key, digest_size=16)
            order = np.random.default_rng(list(hashlib.blake2b(key, person=b"fingerprint").digest()))
            for position in order.choice(len(self), min(_SAMPLED, len(self)), replace=False):
                for part in self.take(np.array([position]), seed=0):
                    digest.update(f"{position} {tuple(part.shape)} {part.dtype}".encode())
                    digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            self._digest = key, digest.hexdigest()
        return self._digest[1]

    def content(self) -> None:
        return None


def as_records(data: Data | Records) -> Records:
    """Take tensors, arrays, a ``TensorDataset`` or a map-style ``Dataset``; refuse data without positions.

    >>> len(as_records((torch.zeros(5, 3), np.zeros(5))))
    5
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, TensorDataset):
        return ArrayRecords(data.tensors)
    if isinstance(data, Dataset):
        return DatasetRecords(data)
    if (
        isinstance(data, list | tuple)
        and data
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
    ):
        return ArrayRecords(data)
    raise InvalidInput(
        "data must be a sequence of tensors or arrays, a TensorDataset or a map-style Dataset; got "
        f"{type(data).__name__}. A DataLoader is not needed: the session draws the batches itself."
    )


def _as_tensor(array: Array) -> Tensor:
    """The array's memory as a tensor, without a copy."""
    if isinstance(array, Tensor):
        return array
    try:
        with warnings.catch_warnings():  # a read-only map is never written to: see ``_writable``
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"an array of type {array.dtype} cannot be a tensor. Convert it to numbers in the byte order of "
            "this machine."
        ) from None


def _writable(array: Array) -> bool:
    """Whether a view of it may be given out: a write into a read-only map would end the process."""
    return not array.is_inference() if isinstance(array, Tensor) else bool(array.flags.writeable)


def _check_rows(tensors: Sequence[Tensor]) -> None:
    lengths = {len(tensor) if tensor.dim() else -1 for tensor in tensors}
    if len(lengths) != 1 or lengths == {-1}:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise InvalidInput(f"all tensors need the same leading dimension, one row per record; got {shapes}.")
    for position, tensor in enumerate(tensors):
        if tensor.is_floating_point() and not all(bool(p.isfinite().all()) for p in _pieces(tensor)):
            raise InvalidInput(
                f"tensor {position} of the data holds NaN or infinite values. Remove such records or fill "
                "them by a fixed rule before training; a rule computed from the data would leak."
            )


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The rows of a tensor, a few at a time."""
    row = max(1, tensor.element_size() * (tensor.numel() // max(1, len(tensor))))
    yield from torch.split(tensor, max(1, _CHUNK_BYTES // row))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` in here, and restore the global generators afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (what data sets use)
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _unreadable(what: str, problem: Exception) -> InvalidInput:
    return InvalidInput(
        f"{what} of the data set could not be read: {without_values(problem)}. The error's own text is left "
        "out, as it may hold values of the record; read that record yourself to see it. The data set must "
        "be able to give every record: remove those that cannot be read before the run starts."
    )


def _no_batch(indices: Indices, reason: str) -> InvalidInput:
    return InvalidInput(
        f"the records at {_few(indices)} cannot be put into one batch, which takes tensors and numbers of "
        f"one shape: {reason}. Let the data set give a tensor, or a tuple of tensors and numbers, of the "
        "same shapes for each."
    )


def _few(positions: Sequence[int] | Indices) -> str:
    shown = ", ".join(str(int(position)) for position in positions[:5])
    return shown if len(positions) <= 5 else f"{shown}, ..."
