"""What a model keeps of the records that it sees: nothing may stay in it but what the noisy step puts there.

A forward pass may write to the model beside computing losses: activations for a plot, a running mean, weights
that are set from the first batch.  All of it would leave with the model, or reach later steps, without noise.
What is written may also hang on no record, as a counter does, or a table that is made when it is first
needed; so two passes are compared that begin alike and see different records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tacit.clipping.tables import Table, tables_around, tables_of, tables_of_module

__all__ = ["Memory", "Place", "differing", "same"]

Place: TypeAlias = tuple[int, str]
"""The number of a table, and a name in it."""
_OF_TORCH = frozenset(vars(nn.Module()))  # its own tables, and the flag ``training``
_LARGE = 2**26
"""Bytes of a tensor, around a loss, that are not kept."""
_LONG = 4096
"""Items of a list that are not."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@final
class Memory:
    """The parameters, buffers and plain attributes of ``model`` as they are when it is made; and of ``loss``.

    Plain are numbers, words, tensors, arrays, and lists and dictionaries of them; nothing else is looked at,
    but for objects that have such attributes, and the variables around a loss.
    """

    def __init__(self, model: nn.Module, loss: object = None) -> None:
        self._model, self._loss = model, loss
        self._kept = list(self._tables())  # so that no others come to have their numbers
        self._before = {place: (value, _copy(value)) for place, value in self._values()}

    def changes(self) -> dict[Place, Any]:
        """Copies of what is otherwise now in the model, by place; None where something is gone."""
        mine = {number for number, _ in tables_of(self._model)}
        now = {place: value for place, value in self._values() if place[0] in mine}
        before = {place: copy for place, (_, copy) in self._before.items() if place[0] in mine}
        changed: dict[Place, Any] = dict.fromkeys(before.keys() - now.keys())
        for place, value in now.items():
            if place not in before or not _equal(value, before[place]):
                changed[place] = _copy(value)
        return changed

    def restore(self) -> None:
        """Put everything back."""
        tables = dict(self._tables())
        for number, key in [place for place, _ in self._values() if place not in self._before]:
            del tables[number][key]
        for (number, key), (value, copy) in self._before.items():
            if not _equal(value, copy):
                _write_back(value, copy)
            table = tables.get(number)
            if table is not None and (key not in table or table[key] is not value):
                table[key] = value

    def names(self, places: set[Place]) -> list[str]:
        """The names of places in the model, as a user would write them."""
        prefixes = {
            number: name
            for name, module in self._model.named_modules()
            for number, _ in tables_of_module(module)
        }
        return sorted(f"{prefixes.get(number, '')}.{key}".lstrip(".") for number, key in places)

    def _tables(self) -> Iterator[Table]:
        yield from tables_of(self._model)
        yield from tables_around(self._loss, self._model)

    def _values(self) -> Iterator[tuple[Place, Any]]:
        for number, table in tables_of(self._model):
            for key, value in list(table.items()):
                if key not in _OF_TORCH and _is_plain(value):
                    yield (number, key), value
        for number, table in tables_around(self._loss, self._model):
            for key, value in list(table.items()):
                if key not in _OF_TORCH and not _is_data(value) and _is_plain(value):
                    yield (number, key), value


def differing(one: dict[Place, Any], other: dict[Place, Any]) -> set[Place]:
    """Where two passes left different values."""
    both = one.keys() & other.keys()
    return {place for place in both if not _equal(one[place], other[place])} | (one.keys() ^ other.keys())


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, NaN being equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _is_data(value: object) -> bool:
    """Whether it is so large that it is what a loss has to read, more likely than what it keeps."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes > _LARGE
    return isinstance(value, list | tuple | dict | set | deque | str | bytes) and len(value) > _LONG


def _is_plain(value: object) -> bool:
    match value:
        case Tensor():
            return value.layout is torch.strided and not (is_lazy(value) or value.is_nested or value.is_meta)
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


def _equal(a: Any, b: Any) -> bool:
    match a, b:
        case Tensor(), Tensor():
            return same(a, b)
        case np.ndarray(), np.ndarray():
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        case (list() | tuple() | deque(), list() | tuple() | deque()):
            return len(a) == len(b) and all(map(_equal, a, b))
        case dict(), dict():
            return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
        case _:
            return type(a) is type(b) and bool(a == b or (a != a and b != b))


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
