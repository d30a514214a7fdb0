"""In which tensors no record is: constants of the model, what is computed of them, and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from tacit.clipping.isolation.trace import tensors_in
from tacit.clipping.per_example.order import BELOW, DRAWING, FACTORIES

__all__ = ["Recordless", "name_of", "writes"]


@final
class Recordless:
    """What no record is in, by what it is computed from; ``rows``: of the batch, 0 if they are one record's.

    ``is_source``: whether a tensor is a parameter, or derived from parameters and tables alone.
    """

    def __init__(self, constants: Iterable[Tensor], rows: int, is_source: Callable[[Tensor], bool]) -> None:
        self._rows, self._is_source = rows, is_source
        self.held = list(constants)  # so that no other tensors come to have their ids
        self._constants = set(map(id, self.held))
        self._others = set(self._constants)  # and what is as long as the batch, which its rows may go with
        self._drawn: dict[int, Tensor] = {}
        self._uniform: set[int] = set()  # of those drawn, numbers in [0, 1)

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether it is a constant of the model."""
        return id(tensor) in self._constants

    def is_table(self, tensor: Tensor) -> bool:
        """Whether no record is in ``tensor``, so that it may be looked up in any order."""
        return id(tensor) in self._constants or self._is_source(tensor)

    def is_recordless(self, tensor: Tensor) -> bool:
        """Whether no record is in ``tensor``: what Python is told of it is the same for batches as long."""
        return id(tensor) in self._others or self.is_table(tensor)

    def is_drawn(self, tensor: Tensor) -> bool:
        """Whether no record is in ``tensor``, which may have random numbers."""
        return id(tensor) in self._drawn or self.is_recordless(tensor)

    def follow(
        self, func: Callable[..., Any], tensors: Sequence[Tensor], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Know results by what they are computed from; what a record is written into is none any more."""
        if all(map(self.is_recordless, tensors)) if tensors else func in FACTORIES:
            self.hold(result, constant=all(map(self.is_table, tensors)))
        elif all(map(self.is_drawn, tensors)) if tensors else func in DRAWING:
            self._drawn.update((id(t), t) for t in tensors_in((result,)))
            if func is torch.rand:
                self._uniform.add(id(result))
        elif _is_in_place(func) or kwargs.get("out") is not None:
            self._drawn.clear()
            self._uniform.clear()
            self.has_records(t for t in tensors if self.is_recordless(t))

    def has_records(self, tensors: Iterable[Tensor]) -> None:
        """Take what lies in the memory of these for records' numbers."""
        memory = {t.untyped_storage()._cdata for t in tensors}
        if memory:
            self.held[:] = (t for t in self.held if t.untyped_storage()._cdata not in memory)
            self._constants.intersection_update(map(id, self.held))
            self._others.intersection_update(map(id, self.held))

    def is_certain(self, func: Callable[..., Any], args: Sequence[Any]) -> bool:
        """Whether it is asked if a random number in [0, 1) is below 0 or 1, as for a rate of nothing."""
        return func in BELOW and id(args[0]) in self._uniform and args[1] in (0, 1)

    def hold(self, result: Any, *, constant: bool = True) -> None:
        """Take what no record is in for constants, but for rows, which may go with those of the batch."""
        for tensor in tensors_in((result,)):
            if not tensor.requires_grad:
                self.held.append(tensor)
                self._others.add(id(tensor))
                if constant and (tensor.dim() == 0 or len(tensor) != self._rows):
                    self._constants.add(id(tensor))

    def clear(self) -> None:
        """Let go of all tensors."""
        self.held.clear()
        self._drawn.clear()


@cache
def _is_in_place(func: Callable[..., Any]) -> bool:
    name = name_of(func)
    return writes(name, {}) or name == "__set__"


def writes(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation of this name changes its operands.

    >>> writes("add_", {}), writes("__add__", {})
    (True, False)
    """
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__i") or name == "__setitem__" or kwargs.get("out") is not None


def name_of(func: Callable[..., Any]) -> str:
    """What an operation is called.

    >>> name_of(torch.add)
    'add'
    """
    return str(getattr(func, "__name__", func))
