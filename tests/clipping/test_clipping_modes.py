"""Modes of torch: one that sees the operations of a step sees all records, so the step is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import FlatClipping
from tacit.errors import UnsupportedModel

DATA = 7.5
"""The value that all records have."""
seen: list[list[float]] = []
"""The values that a mode saw."""


class Dispatch(TorchDispatchMode):
    """A mode below vmap."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in args if isinstance(t, Tensor) and not is_functorch_wrapped_tensor(t)]
        seen.extend(t.detach().flatten().tolist() for t in tensors)
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    """A mode above vmap."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x)).square().sum(1)


def within_a_mode(model: nn.Module, x: Tensor) -> Tensor:
    with Dispatch():
        return losses(model, x)


def left_on(model: nn.Module, x: Tensor) -> Tensor:
    result = losses(model, x)
    Dispatch().__enter__()
    return result


def step(make: type[Any], loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    engine: GradientEngine = make(model, loss, FlatClipping(1.0))
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    engine.add_clipped_sum(sums, (torch.full((5, 3), DATA),), None, torch.tensor([1.0]))


@pytest.mark.parametrize("make", [FastEngine, ReferenceEngine])
@pytest.mark.parametrize("mode", [Dispatch, Function])
def test_a_step_within_a_mode_is_refused(mode: type[AbstractContextManager[Any]], make: type[Any]) -> None:
    with mode(), pytest.raises(UnsupportedModel, match=rf"under the mode {mode.__name__}"):
        step(make, losses)


@pytest.mark.parametrize("loss", [within_a_mode, left_on])
def test_a_loss_that_enters_a_dispatch_mode_is_refused(loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """The first to refuse it is the check on synthetic records, before data are read."""
    seen.clear()
    depth = torch._C._len_torch_dispatch_stack()
    try:
        with pytest.raises(UnsupportedModel, match="under the mode Dispatch"):
            step(FastEngine, loss)
    finally:
        while torch._C._len_torch_dispatch_stack() > depth:
            torch._C._pop_torch_dispatch_stack(None)
    assert not any(DATA in values for values in seen)


def test_a_default_device_is_no_such_mode() -> None:
    with torch.device("cpu"):
        step(FastEngine, losses)
