"""What a model keeps of the records that it sees: nothing may stay in it but what the noisy step puts there.

A forward pass may write to the model beside computing losses: activations for a plot, a running mean, weights
that are set from the first batch.  All of it would leave with the model, or reach later steps, without noise.
What is written may also hang on no record, as a counter does, or a table that is made when it is first
needed; so two passes are compared that begin alike and see different records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy

from tacit.clipping.isolation.tables import Table, is_object, tables_around, tables_of, tables_of_module

__all__ = ["Memory", "Place", "Surroundings", "differing", "same"]

Place: TypeAlias = tuple[Hashable, str]
"""The number of a table, and a name in it."""
_Kept: TypeAlias = dict[Place, tuple[Any, Any]]
"""What was where, and a copy of it."""
_OF_TORCH = frozenset(vars(nn.Module()))  # its own tables, and the flag ``training``
_LARGE = 2**26
"""Bytes of a tensor, around a loss, that is not copied."""
_LONG = 4096
"""Items of a list that is not."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@final
class Memory:
    """The parameters, buffers and plain attributes of ``model`` as they are when it is made.

    Plain are numbers, words, tensors, arrays, and lists and dictionaries of them; nothing else is looked at,
    but for objects that have such attributes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tables = list(tables_of(model))
        self._before = {place: (value, _copy(value)) for place, value in _values(self._tables)}

    def changes(self) -> dict[Place, Any]:
        """Copies of what is otherwise now in the model, by place; None where something is gone."""
        now = dict(_values(tables_of(self._model)))
        changed: dict[Place, Any] = dict.fromkeys(self._before.keys() - now.keys())
        for place, value in now.items():
            if place not in self._before or not _equal(value, self._before[place][1]):
                changed[place] = None if is_object(value) else _copy(value)  # whose own values have places
        return changed

    def restore(self) -> None:
        """Put everything back, and take away what is new; what is in new objects is left as it is."""
        tables = dict(self._tables)
        for number, key in [place for place, _ in _values(self._tables) if place not in self._before]:
            del tables[number][key]
        _put_back(tables, self._before)

    def names(self, places: set[Place]) -> list[str]:
        """The names of places in the model, as a user would write them."""
        prefixes: dict[Hashable, str] = {}
        for name, module in self._model.named_modules():
            for number, _ in tables_of_module(module):
                prefixes[number] = f"{name}.{number[1]}" if isinstance(number, tuple) else name
        return sorted(f"{prefixes.get(number, '')}.{key}".lstrip(".") for number, key in places)


@final
class Surroundings:
    """The plain variables around ``loss`` and what it calls, without the model, as they are when it is made.

    They are the user's own: nothing is put back but what is asked for.
    """

    def __init__(self, loss: object, model: nn.Module) -> None:
        self._tables = list(tables_around(loss, model))
        self._before = {place: (value, _copy_of_any(value)) for place, value in self._now().items()}

    def changed(self) -> set[Place]:
        """Where something else is now."""
        now = self._now()
        return {
            place
            for place in self._before.keys() | now.keys()
            if not (place in self._before and place in now) or not _equal(now[place], self._before[place][1])
        }

    def put_back(self, places: AbstractSet[Place]) -> None:
        """Put back what was in these."""
        tables = dict(self._tables)
        for number, key in places - self._before.keys():
            tables[number].pop(key, None)
        _put_back(tables, {place: self._before[place] for place in self._before.keys() & places})

    def _now(self) -> dict[Place, Any]:
        return {
            (number, key): value
            for number, table in self._tables
            for key, value in list(table.items())
            if key not in _OF_TORCH
        }


def differing(one: dict[Place, Any], other: dict[Place, Any]) -> set[Place]:
    """Where two passes left different values."""
    both = one.keys() & other.keys()
    return {place for place in both if not _equal(one[place], other[place])} | (one.keys() ^ other.keys())


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, NaN being equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _values(tables: Iterable[Table]) -> Iterator[tuple[Place, Any]]:
    for number, table in tables:
        for key, value in list(table.items()):
            if key not in _OF_TORCH and (_is_plain(value) or is_object(value)):
                yield (number, key), value


def _put_back(tables: Mapping[Hashable, MutableMapping[str, Any]], before: _Kept) -> None:
    for (number, key), (value, copy) in before.items():
        if not _equal(value, copy):
            _write_back(value, copy)
        table = tables[number]
        if key not in table or table[key] is not value:
            table[key] = value


def _is_data(value: object) -> bool:
    """Whether it is so large that it is what a loss has to read, more likely than what it keeps."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes > _LARGE
    return isinstance(value, list | tuple | dict | set | deque | str | bytes) and len(value) > _LONG


def _is_plain(value: object) -> bool:
    match value:
        case Tensor():
            lacks = is_lazy(value) or value.is_nested or value.is_meta
            return value.layout is torch.strided and not (lacks or is_functorch_wrapped_tensor(value))
        case list() | tuple() | deque() | set():
            return all(_is_plain(item) and not isinstance(item, nn.Parameter) for item in value)
        case dict():
            return all(map(_is_plain, value.values()))
        case _:
            return isinstance(value, (*_PLAIN, np.ndarray, np.generic))


def _copy(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().clone()
        case np.ndarray():
            return value.copy()
        case list() | tuple() | deque():
            return [_copy(item) for item in value]
        case dict():
            return {key: _copy(item) for key, item in value.items()}
        case set():
            return set(value)
        case _:
            return value


def _copy_of_any(value: Any) -> Any:
    """A copy to compare with; values that are not plain, or large, are compared by identity."""
    if _is_data(value):
        return value
    if not _is_plain(value) and isinstance(value, list | deque | dict | set):
        return value.copy()
    return _copy(value) if _is_plain(value) else value


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    match a, b:
        case Tensor(), Tensor():
            return _is_plain(a) and _is_plain(b) and same(a, b)
        case np.ndarray(), np.ndarray():
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        case (list() | tuple() | deque(), list() | tuple() | deque()):
            return len(a) == len(b) and all(map(_equal, a, b))
        case dict(), dict():
            return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
        case _:  # objects are compared by identity: what is in them has places of its own
            known = type(a) is type(b) and isinstance(a, (*_PLAIN, np.generic, set))
            return known and bool(a == b or (a != a and b != b))


def _write_back(value: Any, copy: Any) -> None:
    """Make ``value``, which was changed in place, what it was."""
    match value:
        case Tensor():
            with torch.no_grad():
                value.set_(copy) if value.shape != copy.shape else value.copy_(copy)
        case np.ndarray():
            value[...] = copy
        case list():
            value[:] = copy
        case deque():
            value.clear()
            value.extend(copy)
        case dict() | set():
            value.clear()
            value.update(copy)
        case _:  # a tuple, whose items were changed
            for item, old in zip(value, copy, strict=True):
                _write_back(item, old)
