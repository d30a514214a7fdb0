"""Records by position, from arrays, data frames, lists and datasets (``docs/how-to/large-data.md``).

pandas, Polars and Arrow are supported without importing them.  ``collate`` gets one record at a time, so its
output does not depend on the rest of the batch.  Letters: N records; n records of a batch.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tacit.datasets.on_disk import give_back, with_map
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, without_values
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.samplers import Indices
from tacit.training.tensors import (
    Array,
    Path,
    Template,
    as_array,
    as_tensor,
    batch_of,
    batch_of_collated,
    cast_numbers,
    few,
    flatten,
    leaves_by,
    name_of,
    paths_of,
    rebuild,
    unusable,
)

_LIBRARIES = ("pandas", "polars", "pyarrow")
_ENCODE = (
    "Declare the column and encode it with tacit.columns.Encoder, which uses only declared values and "
    "bounds; or drop it"
)


def is_frame(value: object) -> bool:
    kind = type(value)  # the class, because Polars warns if the columns of a lazy frame are read
    return _is_theirs(value) and (hasattr(kind, "columns") or hasattr(kind, "column_names"))


def is_column(value: object) -> bool:
    return _is_theirs(value) and not is_frame(value) and hasattr(value, "to_numpy")


def columns_of(frame: Any) -> dict[str, Any]:
    pairs = _pairs(frame)
    names = [name for name, _ in pairs]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            "column names of a data frame must be strings, because they become keyword arguments of the "
            "loss. Rename the columns, or pass (frame, labels) to get the frame as a matrix."
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the data frame has two columns {twice!r}. Rename one.")
    return dict(pairs)


def _pairs(frame: Any) -> list[tuple[Any, Any]]:
    if hasattr(frame, "collect"):
        raise InvalidInput(
            f"the data is a {type(frame).__name__}, which has no rows yet. Pass data.collect()."
        )
    if hasattr(frame, "column_names"):  # Arrow
        return list(zip(frame.column_names, frame.columns, strict=True))
    if hasattr(frame, "get_columns"):  # Polars
        return list(zip(frame.columns, frame.get_columns(), strict=True))
    return list(frame.items())


def names_of_columns(data: Any) -> list[str]:
    """Return the names of all columns of the data frames in ``data``, in order."""
    parts = data if isinstance(data, tuple) else (data,)
    return [str(name) for part in parts if is_frame(part) for name, _ in _pairs(part)]


def matrix_of(frame: Any) -> NDArray[Any]:
    """Return the d columns of a data frame, in order, as (N, d) floating-point numbers."""
    columns = [(name, values_of(column, f"column {name!r}")) for name, column in _pairs(frame)]
    for name, values in columns:
        if not isinstance(values, np.ndarray):
            raise _not_numeric(f"column {name!r}", "list")
    if not columns:
        raise InvalidInput("the data frame has no columns. Pass one with the numeric columns to train on.")
    kind = np.result_type(np.float32, *(np.asarray(values).dtype for _, values in columns))
    return np.column_stack([np.asarray(values).astype(kind) for _, values in columns])


def values_of(column: Any, where: str) -> NDArray[Any] | list[Any]:
    """Return the numbers of a Series or an Arrow array, or a list of rows if each cell is a list."""
    kind: Any = getattr(column, "dtype", None) or getattr(column, "type", None)
    if hasattr(column, "isna"):
        missing = bool(column.isna().any())
    else:
        count = column.null_count
        missing = bool(count() if callable(count) else count)
    if missing:
        raise InvalidInput(
            f"{where} ({kind}) has missing cells. Remove such rows, or fill them by a fixed public rule, "
            'such as missing = "indicator" of a declared column; a rule computed from the data would leak.'
        )
    if str(kind) == "category":  # its values are names, even if they are numbers
        raise _not_numeric(where, "category")
    if hasattr(kind, "numpy_dtype") and hasattr(column, "isna"):  # nullable pandas type, no missing cells
        values = np.asarray(column.to_numpy(dtype=kind.numpy_dtype))
    elif type(column).__module__.startswith("pyarrow") and not hasattr(column, "chunks"):
        values = np.asarray(column.to_numpy(zero_copy_only=False))
    else:
        values = np.asarray(column.to_numpy())
    if values.dtype.kind in "biuf":
        return np.asarray(as_array(values, f"{where} ({kind})"))
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], list | np.ndarray):
        return list(values)
    raise _not_numeric(where, str(kind))


def _is_theirs(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES and not isinstance(value, type)


def _not_numeric(where: str, kind: str) -> InvalidInput:
    return InvalidInput(f"{where} is of type {kind}, but a model takes numbers. {_ENCODE}.")


def has_items(data: Any) -> bool:
    """Return whether the data is indexed by record; otherwise it consists of columns."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], Mapping | tuple)
    if isinstance(data, Dataset):
        return True
    if isinstance(data, str | bytes | Mapping | tuple | range) or is_frame(data) or is_column(data):
        return False
    has_both = isinstance(data, Sized) and hasattr(data, "__getitem__")
    is_array = hasattr(data, "__array__") or hasattr(data, "toarray")  # toarray: sparse arrays of SciPy
    return has_both and not is_array and not isinstance(data, type)


def columns_of_data(data: Any) -> tuple[Template, dict[Path, Array | list[Array]]]:
    """Return the template of a record, and the column of each of its leaves."""
    if is_frame(data):
        names = columns_of(data)
        if not names:
            raise _empty(data)
        of_row: Template = {name: number for number, name in enumerate(names)}
        return of_row, {(name,): _column(values, f"column {name!r}") for name, values in names.items()}
    if isinstance(data, list) and data and all(isinstance(part, Tensor | np.ndarray) for part in data):
        data = tuple(data)
    elif isinstance(data, DataLoader | Sampler):
        raise _batches(data)
    elif not (isinstance(data, Mapping | tuple | list) or is_column(data) or hasattr(data, "__array__")):
        raise InvalidInput(
            f"data of type {type(data).__name__} cannot be used as records. Pass tensors, arrays, lists, a "
            "mapping or tuple of them, a data frame, a TensorDataset or a map-style Dataset, not a "
            "DataLoader."
        )
    template, leaves = flatten(data, lists=False)
    if not leaves:
        raise _empty(data)
    return template, {path: _column(leaf, name_of(path)) for path, leaf in leaves.items()}


def _empty(data: object) -> InvalidInput:
    return InvalidInput(
        f"the data is an empty {type(data).__name__}. Pass the columns of the records, one row per record."
    )


def _batches(data: DataLoader[Any] | Sampler[Any]) -> InvalidInput:
    sampler = data if isinstance(data, Sampler) else data.sampler
    weights = ""
    if isinstance(sampler, WeightedRandomSampler):
        weights = (
            " Its WeightedRandomSampler is lost, because the privacy cost assumes equal sampling "
            "probabilities. Weight the classes in the loss instead, by public weights."
        )
    return InvalidInput(
        f"data is a {type(data).__name__}, but a session draws the batches itself. Pass data=loader.dataset, "
        f"and your own collate_fn, if any, as collate.{weights}"
    )


def _column(values: Any, where: str) -> Array | list[Array]:
    """Return the values of a column as an array, or as a list of arrays if they differ in shape."""
    if is_frame(values):
        return matrix_of(values)
    if is_column(values):
        values = values_of(values, where)
    elif isinstance(values, Dataset) or hasattr(values, "column_names"):
        raise unusable(
            where, f"a dataset ({type(values).__name__})", 'Pass one dataset, such as data["train"].'
        )
    if isinstance(values, np.ndarray) and values.dtype.kind == "O" and len(values):
        values = list(values) if isinstance(values[0], list | np.ndarray) else values
    if not isinstance(values, list):
        return as_array(values, where)
    if not values or isinstance(values[0], bool | int | float | np.generic):
        return as_array(values, where)
    rows = [as_array(row, where) for row in values]
    if len({tuple(row.shape) for row in rows}) > 1:
        return rows
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.stack(cast("list[Any]", rows))
    return torch.stack([as_tensor(row) for row in rows])


@final
class Rows(Dataset[Any]):
    """A dataset made of columns, for records of varying length and for use with a ``collate``."""

    def __init__(self, columns: Sequence[Array | list[Array]], template: Template) -> None:
        names = [name_of(path) for path in paths_of(template)]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise uneven([f"{name}: {len(column)}" for name, column in zip(names, columns, strict=True)])
        self.columns = [
            c if isinstance(c, list) else as_tensor(as_array(c, n))
            for c, n in zip(columns, names, strict=True)
        ]
        self.template = template

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, position: int) -> Any:
        return rebuild(self.template, [column[position] for column in self.columns])

    def content(self) -> Iterator[bytes | memoryview]:
        yield str(len(self)).encode()
        for column in self.columns:
            for row in column:
                tensor = as_tensor(row).detach().cpu().contiguous()
                yield f"{tuple(tensor.shape)} {tensor.dtype}".encode()
                yield tensor.view(-1).view(torch.uint8).numpy().data


def uneven(shapes: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        f"all parts need the same leading dimension, one row per record; got {'; '.join(shapes)}. For a list "
        "with one array per record, pass (data,)."
    )


Data: TypeAlias = Sized | Dataset[Any]
"""Data that :func:`as_records` supports; ``docs/how-to/large-data.md`` lists the types."""
Content: TypeAlias = Iterable[bytes | memoryview] | None
"""Bytes by which a ledger recognises records; None if each record would have to be decoded."""
Collate: TypeAlias = Callable[[list[Any]], Any]
"""A function that turns a list of one record into a batch of size 1."""

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
        """The structure of a record (:mod:`tacit.training.tensors`)."""

    @property
    def rows(self) -> int:
        """The number of consecutive rows that :meth:`take` returns for each record."""
        return 1

    @abstractmethod
    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        """Return the tensors of n >= 1 records, each (n * rows, ...); ``seed`` is for random reads."""

    @abstractmethod
    def fingerprint(self, key: bytes) -> str:
        """Return a keyed digest of the records; without the key it cannot confirm a guess."""

    @abstractmethod
    def content(self) -> Iterator[bytes | memoryview] | None:
        """Yield all records as bytes for a ledger; None if that needs decoding."""

    def held(self) -> tuple[Tensor, ...]:
        """Return the tensors (N, ...) of all records; empty if records are read one by one."""
        return ()

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        """Return the positions of the items that :meth:`take` reads for these records."""
        return indices


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

    def fingerprint(self, key: bytes) -> str:
        return self.inner.fingerprint(key)

    def content(self) -> Iterator[bytes | memoryview] | None:
        return self.inner.content()

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        return self.inner.positions(indices, seed)

    def held(self) -> tuple[Tensor, ...]:
        return self.inner.held()


@final
class ArrayRecords(Records):
    """Tensors, arrays or memory maps (N, ...), whose numbers are cast to ``floating`` batch by batch."""

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
        self._tensors = tuple(with_map(as_tensor(array), array) for array in arrays)
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

    def with_tensors(self, tensors: Sequence[Tensor]) -> ArrayRecords:
        """Return records of the same structure with these ``tensors``, which were checked already."""
        records = copy.copy(self)
        records._tensors, records._digest = tuple(tensors), None
        return records

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        del seed
        rows = torch.from_numpy(indices)
        taken = []
        for tensor in self._tensors:
            if rows.device != tensor.device:
                rows = rows.to(tensor.device, non_blocking=True)
            taken.append(cast_numbers(tensor.index_select(0, rows), self._floating))
            give_back(tensor)
        return tuple(taken)

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
            for part in _pieces(tensor):
                yield part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


@final
class DatasetRecords(Records):
    """A map-style dataset whose item i is record i: a tensor, or a tuple or mapping of tensors and numbers.

    Python's, NumPy's and torch's global generators are seeded by ``seed`` and the batch's first position.
    The fingerprint covers the number of records, and 32 records that the key chooses.
    """

    def __init__(
        self, dataset: Any, *, collate: Collate | None = None, floating: torch.dtype | None = None
    ) -> None:
        if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
            raise InvalidInput(
                f"the dataset ({type(dataset).__name__}) has no length, or no access by position "
                "(dataset[i]), which sampling needs. Use a map-style dataset or tensors. If the data fit "
                "into memory, pass data=list(dataset)."
            )
        if collate is not None and not callable(collate):
            raise InvalidInput(
                f"collate must be a function of a list with one record, such as "
                f"tacit.collate.pad(length=128); got {type(collate).__name__}."
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
        """The structure of the first item read, which is record 0 if none was read before."""
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
                f"an item of the dataset is an empty {type(item).__name__}. Return the tensors of a record."
            )
        return [*leaves.values()]

    def _collated(self, collate: Collate, item: Any, position: int) -> Any:
        try:
            return collate([item])
        except (InvalidInput, PrivacyRefusal):
            raise
        except Exception as problem:  # noqa: BLE001 (the user's own code may raise anything)
            raise InvalidInput(
                f"collate failed on record {position}: {without_values(problem)}. The original message is "
                "hidden, because it may contain values of the record. Try collate([data[i]]), as the "
                "session calls it."
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
                f"{type(self.dataset).__name__}.__getitems__ returned {len(items)} items for "
                f"{len(positions)} positions. Return one item for each position, in order."
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
    """Make :class:`Records` from a user's data; ``docs/how-to/large-data.md`` lists all types.

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
            f"{name_of(path)} differs in shape from record to record. Pass "
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
                    f"{name} of the data contains NaN or infinite values. Remove such records, or fill them "
                    "by a fixed rule; a rule computed from the data would leak."
                )
            narrower = floating is not None and torch.finfo(floating).max < torch.finfo(tensor.dtype).max
            if narrower and not bool(piece.to(floating).isfinite().all()):
                raise InvalidInput(
                    f"{name} of the data contains numbers beyond {floating}, the type of the model. Scale it "
                    "by public bounds, or train the model in float64."
                )


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    row = max(1, tensor.element_size() * (tensor.numel() // max(1, len(tensor))))
    for piece in torch.split(tensor, max(1, _CHUNK_BYTES // row)):
        yield piece
        give_back(tensor)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
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
        f"{place} of the dataset could not be read: {without_values(problem)}. The original message is "
        "hidden, because it may contain values of the record; read that record yourself to see it. Remove "
        "unreadable records."
    )


_AHEAD = 2
"""The number of batches that each worker prefetches."""


@dataclass(frozen=True, eq=False)
class Request:
    """The records of a physical batch, and the seed for reading them."""

    indices: Indices
    seed: int

    def same(self, indices: Indices, seed: int) -> bool:
        return self.seed == seed and np.array_equal(self.indices, indices)


@final
class Prefetcher(Wrapped):
    """Records whose batches worker processes prefetch, at most two batches each.

    ``requests`` returns the batches from the next step on.  Asking for another batch reads it and restarts
    the workers.  An error is raised when its batch is asked for.  Workers ignore Ctrl-C and end with their
    parent.
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
            collate_fn=itemgetter(0),
            num_workers=self._workers,
            prefetch_factor=_AHEAD,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # torch's default generator stays unchanged
        )
        return iter(loader)


class _Requests:
    """The requests as a batch sampler for DataLoader."""

    def __init__(self, requests: Callable[[], Iterable[Request]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests())


class _Reads(Dataset[Any]):
    """The records as a dataset of whole requests, for DataLoader."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitems__(self, request: Request) -> list[Any]:
        try:
            return [(request, self._records.take(request.indices, seed=request.seed))]
        except InvalidInput as problem:  # sent as a value; the process that takes the batch raises it
            return [(request, problem)]


def _begin_worker(worker: int) -> None:
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked worker must not collect what its parent left behind. A database connection, for instance, ends
    # threads when it is deleted; they do not exist here, and the worker would crash.
    gc.freeze()


class DrawnRecords(Records):
    """Records whose batches were drawn before the run began, with the run's key."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Prepare for ``step``: the next calls of :meth:`take` are for it."""

    @abstractmethod
    def generator_for(self, plan: Plan) -> Generator:
        """Return the generator that drew the batches of ``plan``."""

    @abstractmethod
    def check_free(self, run: str) -> None:
        """Refuse batches that a run other than ``run`` has claimed."""

    @abstractmethod
    def claim(self, run: str) -> None:
        """Reserve the batches for ``run``, a random name in its resume state."""
