"""User code that would see several records is refused: modes of torch, and the backward pass of a weight."""

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


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    with Dispatch():  # type: ignore[no-untyped-call]
        return losses(model, x)


def left_on(model: nn.Module, x: Tensor) -> Tensor:
    result = losses(model, x)
    Dispatch().__enter__()  # type: ignore[no-untyped-call]
    return result


def step(
    make: type[Any], loss: Callable[[nn.Module, Tensor], Tensor], model: nn.Module | None = None
) -> GradientEngine:
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    engine: GradientEngine = make(model, loss, FlatClipping(1.0))
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    engine.add_clipped_sum(sums, (torch.full((5, 3), DATA),), None, torch.tensor([1.0]))
    return engine


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


class Wrapper(torch.Tensor):
    """A tensor below vmap: PyTorch gives its operations the tensors of all records."""

    under: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.under = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [arg.under if isinstance(arg, Wrapper) else arg for arg in args]
        seen.extend(t.detach().flatten().tolist() for t in plain if isinstance(t, Tensor))
        return func(*plain, **(kwargs or {}))


class Plain(torch.Tensor):
    """A subclass without code below vmap."""


def scaled_by(kind: type[Any]) -> Callable[[nn.Module, Tensor], Tensor]:
    scale = torch.ones(3)
    return lambda model, x: losses(model, x * (kind(scale) if kind is Wrapper else scale.as_subclass(kind)))


def test_a_tensor_with_code_below_vmap_is_refused() -> None:
    """Before a record's value reaches that code: 7.5 C otherwise, as it may read a record for all others."""
    seen.clear()
    with pytest.raises(UnsupportedModel, match="of the class Wrapper, which has a __torch_dispatch__"):
        step(FastEngine, scaled_by(Wrapper))
    assert not any(DATA in values for values in seen)
    step(FastEngine, scaled_by(Plain))


def test_a_default_device_is_no_such_mode() -> None:
    with torch.device("cpu"):
        step(FastEngine, losses)


class Quantised(torch.autograd.Function):
    """Rounds a weight; its backward pass is random, so norm and sum would come from different gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        return w.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (1 + 1e5 * torch.randint(2, ()))


def hooked(w: Tensor) -> Tensor:
    changed = w * 1.0
    changed.register_hook(lambda g: g * (1 + 1e5 * torch.randint(2, ())))  # type: ignore[no-untyped-call]
    return changed


def hooked_before(w: Tensor) -> Tensor:
    changed = w * 1.0
    assert changed.grad_fn is not None
    changed.grad_fn.register_prehook(lambda gradients: (gradients[0] / gradients[0].abs().max(),))
    return changed


def hooked_after(w: Tensor) -> Tensor:
    changed = w * 1.0
    assert changed.grad_fn is not None
    changed.grad_fn.register_hook(lambda inputs, _: (inputs[0] * (1 + 1e5 * torch.randint(2, ())), None))
    return changed


def straight_through(w: Tensor) -> Tensor:
    return w + (w.round() - w).detach()


class Derived(nn.Linear):
    """A layer whose weight is computed from its parameter."""

    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__(3, 2)
        self.of = of

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return nn.functional.linear(input, self.of(self.weight), self.bias)


OF_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a random Function": lambda w: Quantised.apply(w),  # type: ignore[no-untyped-call]
    "a hook": hooked,
    "a hook before a node": hooked_before,
    "a hook after a node": hooked_after,
}


@pytest.mark.parametrize("of", OF_WEIGHTS.values(), ids=OF_WEIGHTS)
def test_code_in_the_backward_pass_of_a_weight_is_refused(of: Callable[[Tensor], Tensor]) -> None:
    """Such code ran twice, for the norm and for the sum: one record moved the sum by 1e5 C."""
    with pytest.raises(UnsupportedModel, match="user code in the backward pass of a weight"):
        step(FastEngine, losses, Derived(of))


def test_a_gradient_that_passes_straight_through_is_fast() -> None:
    assert step(FastEngine, losses, Derived(straight_through)).route == "fast"
