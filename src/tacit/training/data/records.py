"""Records by position: data sources that return the tensors at a given position.  Long: all kinds of them.

Tensors, arrays, memory maps, data frames and mappings of them return a batch by one gather.  A map-style data
set or a list of records returns records one by one, or several by ``__getitems__`` if it has this method.
:mod:`tacit.training.data.prefetch` can read batches of these data sets before their step.

**Guarantee**

* A ``collate`` gets one record at a time, so its output for a record does not depend on the rest of the
  batch.

Letters: N records; n records of a batch.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeAlias, cast, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tacit.errors import InvalidInput, without_values
from tacit.sampling.base import Indices
from tacit.training.data.arrays import (
    Array,
    as_array,
    as_tensor,
    batch_of,
    batch_of_collated,
    cast_numbers,
    few,
)
from tacit.training.data.columns import Rows, columns_of_data, has_items, uneven
from tacit.training.data.structure import Template, flatten, leaves_by, name_of, paths_of

Data: TypeAlias = Sized | Dataset[Any]
"""Data that :func:`as_records` supports; ``docs/records.md`` lists the types."""
Collate: TypeAlias = Callable[[list[Any]], Any]
"""A function that turns a list of one record into a batch of leading dimension 1."""

_APART = 0x9E3779B97F4A7C15
_SAMPLED = 32  # number of records in the fingerprint of a data set
_CHUNK_BYTES = 1 << 22
"""Records are checked in pieces of this size, because a memory map may be larger than the memory."""


class Records(ABC):
    """Records by position."""

    @abstractmethod
    def __len__(self) -> int:
        """Return N."""

    @property
    @abstractmethod
    def template(self) -> Template:
        """The structure of a record (:mod:`tacit.training.data.structure`)."""

    @property
    def rows(self) -> int:
        """The number of consecutive rows that :meth:`take` returns for each record."""
        return 1

    def begin(self, step: int) -> None:  # noqa: B027 (most records do not depend on it)
        """Prepare for the records of ``step``: the next calls of :meth:`take` are for this step."""

    @abstractmethod
    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        """Return the tensors of the n >= 1 records at these positions, each of shape (n * rows, ...).

        ``seed`` determines the random numbers that reading the records of this step draws.
        """

    @abstractmethod
    def fingerprint(self, key: bytes) -> str:
        """Return a keyed digest by which a resumed run recognises the same records.

        Only the resume state holds the key.  Without the key, nobody can test a guess about the data by the
        digest.
        """

    @abstractmethod
    def content(self) -> Iterator[bytes | memoryview] | None:
        """Yield all records as bytes, for the fingerprint by which a ledger recognises them.

        Return None instead if each record would have to be read and decoded.
        """

    def held(self) -> tuple[Tensor, ...]:
        """Return the tensors (N, ...) that hold all records; none if they are read one by one."""
        return ()


class Wrapped(Records):
    """Base class of wrappers around other records, ``inner``; a wrapper overrides some of the methods."""

    def __init__(self, inner: Records) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def template(self) -> Template:
        return self.inner.template

    @property
    def rows(self) -> int:
        return self.inner.rows

    def begin(self, step: int) -> None:
        self.inner.begin(step)

    def fingerprint(self, key: bytes) -> str:
        return self.inner.fingerprint(key)

    def content(self) -> Iterator[bytes | memoryview] | None:
        return self.inner.content()

    def held(self) -> tuple[Tensor, ...]:
        return self.inner.held()


@final
class ArrayRecords(Records):
    """Tensors, arrays or memory maps with a common leading dimension N; row i is record i.

    Args:
        template: the structure of a record; by default a tuple with one row of each array.
        floating: the type that floating-point numbers are cast to, batch by batch; None for no cast.

    >>> ArrayRecords((torch.arange(5), np.ones((5, 2)))).take(np.array([0, 3]), seed=0)[0]
    tensor([0, 3])
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        *,
        template: Template | None = None,
        floating: torch.dtype | None = None,
    ) -> None:
        self._template = tuple(range(len(arrays))) if template is None else template
        names = [name_of(path) for path in paths_of(self._template)]
        arrays = [as_array(array, name) for array, name in zip(arrays, names, strict=True)]
        self._tensors = tuple(as_tensor(array) for array in arrays)
        self._floating = floating
        _check_rows(self._tensors, names, floating)
        self._count = len(self._tensors[0])
        self._digest: tuple[object, str] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def template(self) -> Template:
        return self._template

    def held(self) -> tuple[Tensor, ...]:
        return self._tensors

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        del seed
        rows = torch.from_numpy(indices)
        positions = {tensor.device: rows.to(tensor.device, non_blocking=True) for tensor in self._tensors}
        parts = (tensor.index_select(0, positions[tensor.device]) for tensor in self._tensors)
        return tuple(cast_numbers(tensor, self._floating) for tensor in parts)

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
    """A map-style data set whose item i is record i: a tensor, or a tuple or mapping of tensors and numbers.

    Its draws from Python's, NumPy's or torch's global generators are a function of ``seed`` and of the first
    position of the batch, and these generators are unchanged afterwards.  Reading all records could take as
    long as an epoch, so the fingerprint covers their number and 32 records that the key chooses.

    Args:
        dataset: a data set with a length, and with items by position.
        collate: turns a list of one item into a batch of leading dimension 1; called for each item alone.
        floating: the type that floating-point numbers are cast to; None for no cast.

    >>> items = [{"x": [0.5, 2.0], "y": 1}, {"x": [1.0, 3.0], "y": 0}]
    >>> DatasetRecords(items, floating=torch.float32).take(np.array([1]), seed=0)
    (tensor([[1., 3.]]), tensor([0]))
    """

    def __init__(
        self, dataset: Any, *, collate: Collate | None = None, floating: torch.dtype | None = None
    ) -> None:
        if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
            raise InvalidInput(
                f"the data set ({type(dataset).__name__}) has no length, or no items by position. Each "
                "record must be reachable by its position, to be sampled independently. Use a map-style data "
                "set or tensors; if the data fit into memory, data=list(dataset)."
            )
        if collate is not None and not callable(collate):
            raise InvalidInput(
                f"collate must be a function; got {type(collate).__name__}. It gets a list with one "
                "record, as tacit.collate.pad(length=128) does."
            )
        self.dataset: Any = dataset
        self.collate = collate
        self._floating = floating
        self._template: Template | None = None
        self._names: list[str] = []
        self._digest: tuple[bytes, str] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def template(self) -> Template:
        """The structure of the first item that was read; if there is none yet, record 0 is read."""
        if self._template is None:
            self.take(np.zeros(1, dtype=np.int64), seed=0)
        return cast("Template", self._template)

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        if len(indices) == 0:  # a physical batch without records has their shapes and types
            return tuple(part[:0] for part in self.take(np.zeros(1, dtype=np.int64), seed=0))
        positions = [int(i) for i in indices]
        with _seeded((seed ^ positions[0] * _APART) % 2**63):  # each batch of a step draws other numbers
            items = self._items(positions)
            if self.collate is not None:
                items = [self._collated(self.collate, *pair) for pair in zip(items, positions, strict=True)]
        rows = zip(*[self._leaves(item) for item in items], strict=True)
        stack = batch_of if self.collate is None else batch_of_collated
        return tuple(
            stack(name, part, indices, self._floating) for name, part in zip(self._names, rows, strict=True)
        )

    def _leaves(self, item: Any) -> list[Any]:
        if self._template is not None:
            return leaves_by(self._template, item)
        self._template, leaves = flatten(item)
        self._names = [name_of(path) for path in leaves]
        if not leaves:
            raise InvalidInput(
                f"an item of the data set is an empty {type(item).__name__}. Let it give the tensors of a "
                "record."
            )
        return [*leaves.values()]

    def _collated(self, collate: Collate, item: Any, position: int) -> Any:
        try:
            return collate([item])
        except InvalidInput:
            raise
        except Exception as problem:  # noqa: BLE001 (the user's own code may raise anything)
            raise InvalidInput(
                f"collate failed on record {position}: {without_values(problem)}. The message leaves out "
                "the error's own text, which may hold values of the record. The session calls collate with "
                "a list of one record; try collate([data[i]])."
            ) from None

    def _items(self, positions: list[int]) -> list[Any]:
        together: Callable[[list[int]], list[Any]] | None = getattr(self.dataset, "__getitems__", None)
        if together is None:
            return [self._item(position) for position in positions]
        try:
            items = together(positions)
        except Exception as problem:  # noqa: BLE001 (the user's own code may raise anything)
            raise _unreadable(f"one of the records at {few(positions)}", problem) from None
        if len(items) != len(positions):
            raise InvalidInput(
                f"{type(self.dataset).__name__}.__getitems__ gave {len(items)} items for {len(positions)} "
                "positions. It must give one item for each position, in order."
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

    def content(self) -> Iterator[bytes | memoryview] | None:
        return self.dataset.content() if isinstance(self.dataset, Rows) else None


def as_records(
    data: Data | Records, *, collate: Collate | None = None, floating: torch.dtype | None = None
) -> Records:
    """Make :class:`Records` from the data that a user passes.

    Args:
        data: arrays, data frames, mappings and tuples of them, or a data set; ``docs/records.md`` lists all
            types.
        collate: turns a list of one record into a batch of leading dimension 1, for records of varying
            length, such as :func:`tacit.collate.pad`.
        floating: the type that floating-point numbers are cast to; None for no cast.

    Raises:
        InvalidInput: the data has a type that is not supported.  The message names the part, its type and the
            fix, and shows no value of a record.

    >>> len(as_records((torch.zeros(5, 3), np.zeros(5))))
    5
    >>> as_records({"x": np.zeros((5, 3)), "y": [0, 1, 1, 0, 1]}).template
    {'x': 0, 'y': 1}
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if has_items(data):
        return DatasetRecords(data, collate=collate, floating=floating)
    template, columns = columns_of_data(data)
    if collate is None and not any(isinstance(column, list) for column in columns.values()):
        return ArrayRecords(cast("list[Array]", [*columns.values()]), template=template, floating=floating)
    if collate is None:
        path = next(path for path, column in columns.items() if isinstance(column, list))
        raise InvalidInput(
            f"{name_of(path)} differs in shape from record to record. A batch has one shape. Give "
            "collate=tacit.collate.pad(length=...), with a public length."
        )
    return DatasetRecords(Rows([*columns.values()], template), collate=collate, floating=floating)


def _check_rows(tensors: Sequence[Tensor], names: Sequence[str], floating: torch.dtype | None) -> None:
    lengths = {len(tensor) if tensor.dim() else -1 for tensor in tensors}
    if len(lengths) != 1 or lengths == {-1}:
        raise uneven([f"{n}: {tuple(t.shape)}" for n, t in zip(names, tensors, strict=True)])
    for name, tensor in zip(names, tensors, strict=True):
        if not tensor.is_floating_point():
            continue
        for piece in _pieces(tensor):
            if not bool(piece.isfinite().all()):
                raise InvalidInput(
                    f"{name} of the data holds NaN or infinite values. Remove such records or fill them by a "
                    "fixed rule before training; a rule computed from the data would leak."
                )
            narrower = floating is not None and torch.finfo(floating).max < torch.finfo(tensor.dtype).max
            if narrower and not bool(piece.to(floating).isfinite().all()):
                raise InvalidInput(
                    f"{name} of the data holds numbers beyond {floating}. Floating numbers are cast to "
                    "this type, that of the model. Scale it by public bounds, or train a model in float64."
                )


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a tensor, a few at a time."""
    row = max(1, tensor.element_size() * (tensor.numel() // max(1, len(tensor))))
    yield from torch.split(tensor, max(1, _CHUNK_BYTES // row))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore them afterwards."""
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


def _unreadable(place: str, problem: Exception) -> InvalidInput:
    return InvalidInput(
        f"{place} of the data set could not be read: {without_values(problem)}. The message leaves out the "
        "error's own text, which may hold values of the record: read that record yourself to see it. "
        "Remove records that cannot be read before the run starts."
    )
