"""What autograd calls back: operations whose backward pass records how parameters are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from tacit.clipping.per_example.use import Use

Uses: TypeAlias = Callable[..., Iterable[tuple[Tensor, Use]]]
"""``(g, *saved) -> (source, use) ...``, called in the backward pass with the output's gradient g."""
Forward: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""``(*inputs) -> output, saved``, called where autograd does not watch."""
Backward: TypeAlias = Callable[..., tuple[Sequence[Tensor | None], Iterable[tuple[Tensor, Use]]]]
"""``(g, needed, *saved) -> gradients of the inputs, uses``; ``needed`` says which gradients are wanted."""


class _Recorder(Protocol):
    @property
    def record(self) -> Callable[[Iterable[tuple[Tensor, Use]]], None]:
        """Keep uses of the backward pass."""


class Tap(torch.autograd.Function):
    """The identity; its backward pass records, and gives the sources no gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, recorder: _Recorder, uses: Uses, anchor: Tensor, *saved: Tensor
    ) -> Tensor:
        del anchor
        ctx.recorder, ctx.uses = recorder, uses
        ctx.save_for_backward(*saved)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # a checkpointed layer is computed anew in here, seen by the pass
        with torch._C.DisableTorchFunction():
            ctx.recorder.record(ctx.uses(g, *saved))
        return (g, None, None, None, *([None] * len(saved)))


class Function(torch.autograd.Function):
    """An operation whose backward pass returns the gradients of its inputs, and records."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: _Recorder,
        forward: Forward,
        backward: Backward,
        anchor: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        del anchor
        output, saved = forward(*inputs)
        ctx.recorder, ctx.backward = recorder, backward
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            gradients, uses = ctx.backward(g, ctx.needs_input_grad[4:], *saved)
            ctx.recorder.record(uses)
        return (None, None, None, None, *gradients)
