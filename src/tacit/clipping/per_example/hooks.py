"""What autograd calls back: operations whose backward pass records how parameters are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from tacit.clipping.per_example.use import Use

__all__ = ["Backward", "Forward", "Function", "Recorder", "Tap", "Uses"]

Uses: TypeAlias = Callable[..., Iterable[tuple[Tensor, Use]]]
"""``(g, *saved) -> (source, use) ...``, called in the backward pass with the output's gradient g."""
Forward: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""``(*inputs) -> output, saved``, called where autograd does not watch."""
Backward: TypeAlias = Callable[..., tuple[Sequence[Tensor | None], Iterable[tuple[Tensor, Use]]]]
"""``(g, needed, *saved) -> gradients of the inputs, uses``; ``needed`` says which gradients are wanted."""


class Recorder(Protocol):
    """What keeps the uses: a recorder."""

    def by_row(self, *tensors: Tensor) -> AbstractContextManager[None]:
        """The scope of a rule, which goes by the rows of these tensors."""

    def owners(self, tensors: Iterable[Tensor]) -> list[Tensor | None]:
        """Whose the numbers of these are."""

    def check_owners(self, tensors: Sequence[Tensor], before: Sequence[Tensor | None]) -> None:
        """Refuse tensors that came back from where they were kept as others' numbers."""

    def mark(self, *tensors: Tensor | None) -> None:
        """Take each row of these for its record's."""

    def record(self, uses: Iterable[tuple[Tensor, Use]], g: Tensor) -> None:
        """Keep uses of the backward pass, which the output's gradient g came by."""


class Tap(torch.autograd.Function):
    """The identity; its backward pass records, and gives the sources no gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, recorder: Recorder, uses: Uses, rows: int, anchor: Tensor, *saved: Tensor
    ) -> Tensor:
        del anchor
        ctx.recorder, ctx.uses, ctx.rows = recorder, uses, rows
        ctx.save_for_backward(*saved)
        ctx.owners = recorder.owners(saved)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # a checkpointed layer is computed anew in here, seen by the recorder
        with torch._C.DisableTorchFunction(), ctx.recorder.by_row(g.movedim(ctx.rows, 0), *saved):
            ctx.recorder.check_owners(saved, ctx.owners)
            ctx.recorder.record(ctx.uses(g, *saved), g)
        return (g, None, None, None, None, *([None] * len(saved)))


class Function(torch.autograd.Function):
    """An operation whose backward pass returns the gradients of its inputs, and records."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        forward: Forward,
        backward: Backward,
        anchor: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        del anchor
        with recorder.by_row(*inputs):
            output, saved = forward(*inputs)
        recorder.mark(output)
        ctx.recorder, ctx.backward = recorder, backward
        ctx.save_for_backward(*saved)
        ctx.owners = recorder.owners(saved)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction(), ctx.recorder.by_row(g):
            ctx.recorder.check_owners(saved, ctx.owners)
            gradients, uses = ctx.backward(g, ctx.needs_input_grad[4:], *saved)
            ctx.recorder.record(uses, g)
            ctx.recorder.mark(*gradients)
        return (None, None, None, None, *gradients)
