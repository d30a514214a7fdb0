"""A stand-in for CUDA graphs on a CPU: operations are recorded, and replayed in the same memory.

Like on a device, sums skip records whose factor is 0, and no code reads a norm before the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacit.clipping import captured, summing
from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.use import Kept


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A list of operations, with the tensors that they read and made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, found))
        return found

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, found in self.done:
                again = func(*args, **kwargs)
                for there, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if (
                        isinstance(new, Tensor)
                        and new.untyped_storage()._cdata != there.untyped_storage()._cdata
                    ):
                        there.copy_(new)


def record(body: Callable[[], None], device: torch.device, pool: list[Any]) -> Operations:
    operations = Operations()
    with operations:
        body()
    return operations


def where(factors: Tensor, like: Tensor) -> Tensor:
    return like.where((factors != 0).view(-1, *[1] * (like.dim() - 1)), 0)


def cpu_if_wanted(parameters: Iterable[Tensor]) -> torch.device | None:
    return torch.device("cpu") if os.environ.get("TACIT_CUDA_GRAPHS") == "1" else None


def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines that are made from here on capture passes, which needs no device."""
    kept, outer = Kept.add_weighted, Outer.add_weighted

    def add_kept(use: Kept, accumulator: Tensor, factors: Tensor) -> None:
        kept(Kept(where(factors, use.gradients(0, len(factors)))), accumulator, factors)

    def add_outer(use: Outer, accumulator: Tensor, factors: Tensor) -> None:
        sides = where(factors, use.left), where(factors, use.right)
        outer(Outer(*sides, use.slack), accumulator, factors)

    monkeypatch.setattr(Kept, "add_weighted", add_kept)
    monkeypatch.setattr(Outer, "add_weighted", add_outer)
    monkeypatch.setattr(summing, "_skip_zeros", lambda gradients: True)
    monkeypatch.setattr(captured, "device_for", cpu_if_wanted)
    monkeypatch.setattr(captured, "record", record)
    monkeypatch.setenv("TACIT_CUDA_GRAPHS", "1")
