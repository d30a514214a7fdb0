"""Parts of a step that must read one record alone: augmentations and dataset items.

Letters: N items; n records; K views per record.
"""

# A record's gradient is the mean over its views and is clipped once, so the views cost no privacy (De et al.,
# 2204.13650, section 3.2).  Their random numbers are drawn before a batch is cut into microbatches.

from __future__ import annotations

import copy
import operator
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any, TypeAlias, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from tacit.clipping.isolation.model_checks import same
from tacit.clipping.isolation.randomness import only_torch_draws
from tacit.clipping.isolation.reasons import NotCarried
from tacit.clipping.isolation.synthetic import made_up
from tacit.clipping.isolation.under_vmap import Pass, isolated
from tacit.clipping.memory import FAST
from tacit.clipping.per_example.use import Kept
from tacit.errors import InvalidInput, UnsupportedModel, check_integer, of_device
from tacit.sampling.samplers import Indices
from tacit.training.records import Collate, DatasetRecords
from tacit.training.tensors import name_of, paths_of


class Augmentation(ABC):
    """Base class for augmentations, which make several versions (*views*) of each record.

    A subclass defines :attr:`draws` and :meth:`views`.  A step calls ``views`` with one record at a time,
    under :func:`torch.func.vmap`.  So ``views`` must not branch on values, as in ``if inputs.max() > 1``, and
    must take all random numbers from ``uniforms``.

    >>> @dataclass(frozen=True)
    ... class Brighter(Augmentation):
    ...     draws = 1  # each view adds one random number to all pixels
    ...     def views(self, inputs, uniforms):
    ...         return inputs.repeat_interleave(uniforms.shape[1], 0) + uniforms.reshape(-1, 1)
    >>> Brighter().views(torch.zeros(1, 2), torch.tensor([[[0.25], [0.5]]]))  # two views of a record
    tensor([[0.2500, 0.2500],
            [0.5000, 0.5000]])
    """

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of random numbers per view."""

    @abstractmethod
    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        """Make K views of each of n records.

        Args:
            inputs: the records, (n, ...).
            uniforms: uniform random numbers in [0, 1), (n, K, draws).

        Returns:
            The views, (n*K, ...); the K views of a record are consecutive.
        """


def views_of(augmentation: Augmentation, inputs: Tensor, uniforms: Tensor) -> Tensor:
    """Make the views (n*K, ...) of ``inputs`` (n, ...) from ``uniforms`` (n, K, draws), each record alone."""
    n, views = uniforms.shape[:2]
    if n == 0:
        one_of_zeros = uniforms.new_zeros(1, *uniforms.shape[1:])
        return views_of(augmentation, inputs.new_zeros(1, *inputs.shape[1:]), one_of_zeros)[:0]
    run = Pass((), n, views, {}, Kept, FAST)

    def one(record: Tensor, numbers: Tensor) -> Tensor:
        with run:
            result = augmentation.views(record[None], numbers[None])
        run.returns(result)
        if len(result) != views:
            raise InvalidInput(f"{name}.views must return n*K rows, K views of each of n records in turn.")
        return result

    name = type(augmentation).__name__
    try:
        with only_torch_draws(), isolated(run):
            numbers = uniforms.to(inputs.device, non_blocking=True)
            results = run.of_each(one, [inputs, numbers], randomness="error")
    except InvalidInput:
        raise
    except (UnsupportedModel, NotCarried, RuntimeError) as reason:
        if of_device(reason):
            raise
        # The text of torch's errors may contain a value of a record. Tacit's goes on about models.
        own = isinstance(reason, UnsupportedModel | NotCarried)
        cause = str(reason).partition(": ")[0] if own else type(reason).__name__
        raise UnsupportedModel(
            f"{name}.views cannot run under torch.func.vmap ({cause}). The method must not branch on values, "
            "call item(), use a tensor of an earlier batch, or draw its own random numbers. Use torch.where "
            "instead of if, or augment in the Dataset."
        ) from None
    return results.flatten(0, 1)


def check_by_record(augmentation: Augmentation, inputs: Tensor, views: int) -> None:
    """Refuse an augmentation that mixes records; isolated, it would not do what its author intends."""
    (records,) = made_up((inputs,), 1)
    numbers = torch.rand(len(records), views, augmentation.draws, generator=torch.Generator().manual_seed(0))
    uniforms = numbers.to(inputs.device)
    of_each = views_of(augmentation, records, uniforms)
    of_batch = augmentation.views(records, uniforms)
    if of_each.shape != of_batch.shape or not torch.allclose(of_each, of_batch, rtol=1e-4, atol=1e-4):
        raise UnsupportedModel(
            f"{type(augmentation).__name__} mixes records: a view changes with the other records of the "
            "batch, as in mixup, cutmix and batch normalisation. Clipping then cannot bound one record's "
            "effect. Make each view from its own record and uniform numbers."
        )


@dataclass(frozen=True)
class FlipAndCrop(Augmentation):
    """Crops images at random places, and mirrors half of them.

    The inputs are images, (n, channels, height, width).

    Args:
        pad: the number of pixels to add on each side, by reflection, before the crop to the original size.
        flip: whether to mirror views, each with probability 1/2.

    >>> augmentation = FlipAndCrop(pad=2)
    >>> augmentation.views(torch.zeros(3, 1, 8, 8), torch.rand(3, 1, augmentation.draws)).shape
    torch.Size([3, 1, 8, 8])
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_integer("pad", self.pad, low=0)

    @property
    def draws(self) -> int:
        return 3

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        if inputs.dim() != 4:
            raise InvalidInput(
                f"FlipAndCrop needs images (n, channels, height, width); got {tuple(inputs.shape)}. "
                "Pass an augmentation for records of this shape."
            )
        height, width = inputs.shape[2:]
        views = uniforms.shape[1]
        pictures = inputs.repeat_interleave(views, dim=0)
        draws = uniforms.reshape(-1, 3)
        offsets = (draws[:, :2] * (2 * self.pad + 1)).long()
        padded = F.pad(pictures, [self.pad] * 4, mode="reflect") if self.pad else pictures
        device = inputs.device
        rows = offsets[:, 0, None] + torch.arange(height, device=device)
        columns = offsets[:, 1, None] + torch.arange(width, device=device)
        if self.flip:
            columns = torch.where(draws[:, 2, None] < 0.5, columns.flip(1), columns)
        each = torch.arange(len(padded), device=device)[:, None, None]
        cropped = padded[each, :, rows[:, :, None], columns[:, None, :]]
        return cropped.permute(0, 3, 1, 2).contiguous()


_SEEDS = 3
"""The number of seeds with which each item is read."""
_DEEP = 3
"""The depth of references that the check follows from the dataset to find rows."""
_FEW = 64
"""The most values of a list or dictionary that the check searches."""
_LARGE = 2**28
"""The check does not copy arrays of more bytes."""
_LONG = 2**20
"""The check does not copy pandas tables of more rows."""
_COLLATE = "the collate function"  # the first name of each path into the collate function
_Path: TypeAlias = tuple[str | int, ...]
"""Names and keys that lead from a dataset to a value in it."""
_Items: TypeAlias = Mapping[int, list[int]]
_Item: TypeAlias = tuple[Tensor, ...] | None
_WHY = (
    "So it depends on other records, as with mixup, mosaic, random pairs, or statistics of all records, and "
    "clipping cannot bound one record's effect. Make each item from its own record and random numbers, and "
    "compute statistics on public records. Fix pairs or triplets before training, with each person in only "
    "one of them."
)


def check_items(records: DatasetRecords, positions: Indices) -> None:
    """Refuse a dataset whose items depend on other records, as far as the items at ``positions`` show it.

    For four positions the check reads 32 items (40 with ``__getitems__``), from copies of the dataset.
    """
    for number, position in enumerate(positions.tolist()):
        part, i = _part_of(records.dataset, position)
        if len(part) > 2:
            if number == 0:
                _check_order(part, i, records.collate)
            _check_rows(part, i, records.collate)


def _part_of(dataset: Any, i: int) -> tuple[Any, int]:
    """Find the dataset that has item i inside torch's subsets and concatenations, and its position there."""
    while type(dataset) in (Subset, ConcatDataset):
        if type(dataset) is Subset:
            dataset, i = dataset.dataset, int(dataset.indices[i])
        else:
            ends = [0, *dataset.cumulative_sizes]
            number = next(k for k, end in enumerate(ends[1:]) if i < end)
            dataset, i = dataset.datasets[number], i - ends[number]
    return dataset, i


def _check_order(dataset: Any, i: int, collate: Collate | None) -> None:
    """Read item i after two different items, and in one call with each of them."""
    one, other = (i + 1) % len(dataset), (i + 2) % len(dataset)

    def after(j: int) -> _Item:
        """Read item j, then item i twice, because the dataset may cache either."""
        twin = _Copy(dataset, {}, collate)
        twin.read([j], 1)
        first = twin.read([i], 0)
        twin.read([j], 1)
        second = twin.read([i], 0)
        return None if first is None or second is None else first + second

    def together(j: int, seed: int = 0) -> _Item:
        return _Copy(dataset, {}, collate).read([j, i], seed)

    changed = _differ(after(one), after(other)) and not _differ(after(one), after(one))
    if not changed and hasattr(dataset, "__getitems__") and not _differ(together(one), together(one, 1)):
        changed = _differ(together(one), together(other))  # here, reading draws no random numbers
    if changed:
        raise UnsupportedModel(
            f"an item of {type(dataset).__name__} changes with the items read before it. {_WHY}"
        )


def _check_rows(dataset: Any, i: int, collate: Collate | None) -> None:
    """Read item i from copies in which other rows are replaced, with the same seeds each time."""
    count = len(dataset)
    places = list(_rows(dataset, {count: [i]}, (), _DEEP))
    befores = [_Copy(dataset, {}, collate).read([i], seed) for seed in range(_SEEDS if places else 0)]

    def changes(replaced: Mapping[_Path, Any]) -> bool:
        return any(
            _differ(before, _Copy(dataset, replaced, collate).read([i], seed))
            and not _differ(
                before, _Copy(dataset, {}, collate).read([i], seed)
            )  # the seed determines all its draws
            for seed, before in enumerate(befores)
        )

    if not changes({path: _replaced(value, own[0]) for path, value, own in places}):
        return
    for path, value, own in places:
        if all(changes({path: _replaced(value, row)}) for row in own):
            raise UnsupportedModel(
                f"an item of {type(dataset).__name__} changes when other records change. {_WHY}"
            )


def _rows(thing: Any, items: _Items, path: _Path, deep: int) -> Iterator[tuple[_Path, Any, list[int]]]:
    """Yield each attribute with one row per item: its path, its value, the rows that may be the item's."""
    values = vars(thing) if hasattr(thing, "__dict__") else {}
    orders = [order for value in values.values() if (order := _order(value, items)) is not None]
    items = {
        count: list(dict.fromkeys([int(o[row]) for o in orders if len(o) == count for row in rows] + rows))
        for count, rows in items.items()
    }
    for name, value in values.items():
        yield from _rows_in(value, items, (*path, name), deep)


def _rows_in(value: Any, items: _Items, path: _Path, deep: int) -> Iterator[tuple[_Path, Any, list[int]]]:
    length = _length(value)
    own = items.get(length, [])
    if own and _can_be_replaced(value):
        yield path, value, own
    elif type(value) in (list, tuple, dict) and len(value) <= _FEW:
        for key, item in _entries(value):
            yield from _rows_in(item, items, (*path, key), deep)
    else:
        inner = {length: own} if own else items
        deeper = list(_rows(value, inner, path, deep - 1)) if deep > 0 and _is_walked(value) else []
        yield from deeper
        if own and not deeper and _is_sequence(value):
            yield path, value, own


def _replaced(value: Any, keep: int) -> Any:
    """Copy a value, but replace all rows except ``keep`` by half of the others, each used twice.

    A permutation would leave the mean unchanged.  A large array gets row ``keep`` in all positions.
    """
    if isinstance(value, Tensor | np.ndarray) and value.nbytes > _LARGE:
        if isinstance(value, Tensor):
            return value[keep : keep + 1].clone().expand_as(value)
        own = np.array(value[keep : keep + 1])
        return np.lib.stride_tricks.as_strided(own, value.shape, (0, *own.strides[1:]))
    rows = np.arange(len(value))
    rest = np.delete(rows, keep)
    number = np.arange(len(rest))
    rows[rest] = rest[(number + len(rest) // 2 + number % 2) % len(rest)]
    if isinstance(value, Tensor):
        return value[torch.from_numpy(rows).to(value.device)]
    if isinstance(value, np.ndarray):
        return np.asarray(value)[rows]
    if isinstance(value, list | tuple):
        return type(value)([value[row] for row in rows])
    if _is_table(value):
        return value.take(rows).set_axis(value.index)
    return _Replaced(value, rows)


@final
class _Replaced(Dataset[Any]):
    """A view of a dataset in which position p gives item ``rows[p]``."""

    def __init__(self, items: Any, rows: NDArray[np.int64]) -> None:
        self._items, self._rows = items, rows

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: Any) -> Any:
        try:
            position = operator.index(key)
        except TypeError:  # the key is a column name or a slice
            return self._items[key]
        return self._items[int(self._rows[position])]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._items, name)


@final
class _Copy:
    """A copy of a dataset and its collate function with seeded draws, and with ``rows`` at these paths."""

    def __init__(self, dataset: Any, rows: Mapping[_Path, Any], collate: Collate | None) -> None:
        self._rows = rows
        self._generators: list[tuple[dict[str, Any], str]] = []
        own = None if collate is None else self._of_object(collate, (_COLLATE,), _DEEP)
        self._records = DatasetRecords(self._of_object(dataset, (), _DEEP), collate=own)

    def read(self, positions: list[int], seed: int) -> _Item:
        """Read the items in one call and return the last of them; return None if reading fails."""
        for attributes, name in self._generators:
            attributes[name] = _seeded(attributes[name], seed)
        try:
            parts = self._records.take(np.array(positions), seed=seed)
        except InvalidInput:  # the step reports it, if the data set itself fails
            return None
        names = map(name_of, paths_of(self._records.template))  # keys may be in any order
        by_name = dict(zip(names, parts, strict=True))
        return tuple(by_name[name][-1].clone() for name in sorted(by_name))

    def _of_object(self, thing: Any, path: _Path, deep: int) -> Any:
        if isinstance(thing, FunctionType):
            return self._of_function(thing, path, deep)
        if hasattr(type(thing), "__del__"):  # deleting the copy would close a resource that the original uses
            return thing
        try:
            twin = copy.copy(thing)
        except Exception:  # noqa: BLE001 (a class of the user's without copies may raise anything)
            return thing
        attributes = vars(twin) if hasattr(twin, "__dict__") else {}
        for name, value in list(attributes.items()):
            attributes[name] = self._of(value, (*path, name), deep)
            if isinstance(value, _GENERATORS):
                self._generators.append((attributes, name))
        return twin

    def _of_function(self, function: FunctionType, path: _Path, deep: int) -> FunctionType:
        """Copy a function and its closure, in which a collate function may store values."""
        cells = tuple(
            CellType(self._of(cell.cell_contents, (*path, name), deep)) if _is_filled(cell) else cell
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        twin = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        return twin

    def _of(self, value: Any, path: _Path, deep: int) -> Any:
        if path in self._rows:
            return self._rows[path]
        if type(value) in (list, tuple, dict) and len(value) <= _FEW:
            of = {key: self._of(item, (*path, key), deep) for key, item in _entries(value)}
            return of if isinstance(value, dict) else type(value)(of.values())
        if isinstance(value, list | dict | set | deque):
            return copy.copy(value)
        return self._of_object(value, path, deep - 1) if deep > 0 and _is_walked(value) else value


_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def _seeded(generator: Any, seed: int) -> Any:
    match generator:
        case np.random.Generator():
            return np.random.Generator(type(generator.bit_generator)(seed))
        case torch.Generator():
            return torch.Generator(generator.device).manual_seed(seed)
        case _:
            return type(generator)(seed)


def _differ(one: _Item, other: _Item) -> bool:
    """Return whether two items differ in any bit; False if either could not be read."""
    if one is None or other is None:
        return False
    return len(one) != len(other) or not all(map(same, one, other))


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty cell raises)
    except ValueError:
        return False
    return True


def _length(value: Any) -> int:
    if isinstance(value, str | bytes | dict | set):
        return -1
    try:
        return len(value)
    except Exception:  # noqa: BLE001 (a class of the user's without a length may raise anything)
        return -1


def _can_be_replaced(value: Any) -> bool:
    """Return whether a value's rows can be replaced: not integers, which may be labels or indices."""
    if isinstance(value, list | tuple):
        return not all(isinstance(item, int | np.integer | Dataset) for item in value)
    if isinstance(value, Tensor):
        return value.ndim > 1 or value.is_floating_point()
    if isinstance(value, np.ndarray) or (_is_table(value) and len(value) <= _LONG):
        return value.ndim > 1 or value.dtype.kind not in "iub"
    return False


def _is_table(value: Any) -> bool:
    return hasattr(value, "iloc") and hasattr(value, "set_axis")


def _is_sequence(value: Any) -> bool:
    plain = isinstance(value, Tensor | np.ndarray | list | tuple) or _is_table(value)
    return not plain and hasattr(value, "__getitem__")


def _is_walked(value: Any) -> bool:
    return isinstance(value, Dataset) or (is_object(value) and not _is_table(value))


def _order(value: Any, items: _Items) -> NDArray[np.int64] | None:
    """Return the value if it is a permutation of row numbers, one for each item; else None."""
    if not isinstance(value, Tensor | np.ndarray | list | tuple) or _length(value) not in items:
        return None
    if isinstance(value, list | tuple) and not all(isinstance(n, int | np.integer) for n in value):
        return None
    numbers = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if (
        numbers.ndim != 1
        or numbers.dtype.kind not in "iu"
        or numbers.min() < 0
        or numbers.max() >= len(numbers)
    ):
        return None
    return numbers.astype(np.int64) if len(np.unique(numbers)) == len(numbers) else None


def _entries(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else enumerate(value))


_LIBRARIES = ("torch", "numpy", "tacit", "builtins", "collections", "logging", "threading", "io", "os")


def is_object(value: object) -> bool:
    """Return whether a value is an instance of a user's class, with attributes."""
    kind: Any = type(value)  # mypy does not accept a class as hashable
    return _is_own(kind) and hasattr(value, "__dict__")


@lru_cache(maxsize=1024)
def _is_own(kind: type[Any]) -> bool:
    of_library = kind.__module__ != "types" and kind.__module__.partition(".")[0] in _LIBRARIES
    return not of_library and not issubclass(kind, type | nn.Module)
