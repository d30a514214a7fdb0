"""The path of a batch through a model: what is done with it, up to the numbers in its tensors.

Two batches that go the same path have the same operations done to them, in the same order, on the results of
the same operations, with the same sizes, names and slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final
from weakref import ref

import numpy as np
import torch
from torch import Tensor

__all__ = ["Path", "tensors_in"]

_UNKNOWN = -1
"""The number of a tensor that no operation made that is seen, such as a gradient."""


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return the tensors in nested arguments.

    >>> len(tensors_in([torch.zeros(2), [torch.zeros(2), 3]], {"x": {"y": torch.zeros(2)}}))
    3
    """
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


@final
class Path:
    """The path of ``rows`` rows through a model that has the tensors ``given``."""

    def __init__(self, rows: int, given: Iterable[Tensor]) -> None:
        self._rows = rows
        self._steps: list[Any] = []
        self._given = {id(tensor): number for number, tensor in enumerate(given)}
        self._made: dict[int, tuple[ref[Tensor], int]] = {}
        self._results = len(self._given)

    def give(self, batch: Iterable[Tensor]) -> None:
        """Tell it of tensors that are there from the start."""
        for tensor in batch:
            self._given[id(tensor)] = self._results = self._results + 1

    def add(
        self,
        func: Callable[..., Any],
        tensors: Iterable[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Go on by an operation."""
        told = () if len(args) < 2 and not kwargs else self._told_by((*args[1:], *kwargs.items()))
        self._steps.append((func, tuple(map(self._number, tensors)), told))

    def note(self, what: object) -> None:
        """Go on by something else that Python says."""
        self._steps.append(what)

    def made(self, results: Iterable[Tensor]) -> None:
        """Know these again."""
        for result in results:
            self._results += 1
            self._made[id(result)] = ref(result), self._results

    def clear(self) -> None:
        """Forget what was made."""
        self._made.clear()
        self._given.clear()

    def __hash__(self) -> int:
        """All of it as one number of this process."""
        return hash(tuple(self._steps))

    def _number(self, tensor: Tensor) -> int:
        made = self._made.get(id(tensor))
        if made is not None and made[0]() is tensor:
            return made[1]
        return self._given.get(id(tensor), _UNKNOWN)

    def _told_by(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments that are whole numbers, names or slices; multiples of B as what multiplies it.

        Never as a number below 0, or as a truth: Python's hash of -1 is that of -2, and of 1 that of True.
        """
        found: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is int or isinstance(value, np.integer):
                of_rows = value > 0 and value % self._rows == 0
                found.append(
                    (int(value) // self._rows,) if of_rows else f"{value}" if value < 0 else int(value)
                )
            elif kind is bool or value is None or value is ... or kind is torch.dtype:
                found.append(f"{value}")
            elif kind is str:
                found.append(value)
            elif kind is slice or kind is range:
                found.append((kind.__name__, self._told_by((value.start, value.stop, value.step))))
            elif kind is tuple or kind is list or kind is torch.Size:
                found.append(self._told_by(value))
            elif isinstance(value, np.ndarray):
                found.append((value.shape, value.dtype.str, value.tobytes()))
            else:
                found.append(kind.__name__)
        return tuple(found)
