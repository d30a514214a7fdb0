"""The interface between a pass and a layer's rule, which records the uses of sources.

Letters: n records; k rows of one record in this operation; B = n k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, final, overload

import torch
from torch import Tensor

from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example.use import Kept, Late, Use, form, narrowed, stackable

Uses: TypeAlias = Callable[..., Iterable[tuple[Tensor, Use]]]
"""A function ``(g, *saved) -> (source, use) ...``; the backward pass calls it with the output's gradient g.
"""
Forward: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""A function ``(*inputs) -> output, saved`` that is called outside of autograd."""
Backward: TypeAlias = Callable[..., tuple[Sequence[Tensor | None], Iterable[tuple[Tensor, Use]]]]
"""A function ``(g, needed, *saved) -> input gradients, uses``; ``needed`` has a bool for each input."""
Handler: TypeAlias = Callable[..., Any]
"""A rule ``rule(recorder, *args, **kwargs)``, with the operation's arguments after the recorder."""


class NoRule(Exception):
    """A rule does not support these arguments, so sources are lent to the operation instead."""


@final
class Recorder:
    """Records the uses of sources for a rule, which gets ``views`` rows of each record."""

    def __init__(self, of: Pass, views: int) -> None:
        self.of, self.views, self.rows, self.budget = of, views, of.n * views, of.budget
        self.owns = of.owns
        self.record = of.record

    @overload
    def plain(self, tensor: Tensor) -> Tensor: ...
    @overload
    def plain(self, tensor: Tensor | None) -> Tensor | None: ...
    def plain(self, tensor: Tensor | None) -> Tensor | None:
        """Return a source detached, so that autograd does not differentiate it, and others unchanged."""
        return tensor.detach() if tensor is not None and self.owns(tensor) else tensor

    def narrowed(self, x: Tensor) -> Tensor:
        """Return ``narrowed(x)``, cached for consecutive layers that read the same x, as in attention."""
        of, version = self.of, None if x.is_inference() else x._version
        if of.cast is None or of.cast[1] != version or not _same(x, of.cast[0]):
            of.cast = x, version, narrowed(x)
        return of.cast[2]

    def late(self, make: Callable[..., Tensor], *parts: Tensor) -> Use:
        """Return the use with gradients ``make(*parts)``; small ones wait for those of equal layers."""
        most = stackable(*parts) // 2  # waiting parts take memory in the backward pass
        if most < 2:
            return Kept(make(*parts))
        use = Late(make, *parts)
        waiting = self.of.waiting.setdefault(use.alike, [])
        waiting.append(use)
        if len(waiting) >= most:
            form(waiting)
            waiting.clear()
        return use

    def positions(self, tensor: Tensor) -> Tensor:
        """Return (B, ..., d) as (n, k ..., d): all positions of a record on one axis."""
        return tensor.reshape(self.of.n, -1, tensor.shape[-1])

    def tap(
        self,
        output: Tensor,
        uses: Uses,
        *,
        saved: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return ``output``; the backward pass calls ``uses(g, *saved)`` and gives sources no gradient."""
        if not any(self.owns(source) for source in sources):
            return output
        result: Tensor = Tap.apply(output, self, uses, self.of.anchor, *saved)  # type: ignore[no-untyped-call]
        return result

    def function(
        self,
        forward: Forward,
        backward: Backward,
        *,
        inputs: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return an output whose backward pass computes input gradients and uses together.

        Autograd differentiates with respect to ``inputs``; values of sources reach ``forward`` by closure.
        """
        anchor = self.of.anchor if any(self.owns(source) for source in sources) else None
        result: Tensor = Function.apply(self, forward, backward, anchor, *inputs)  # type: ignore[no-untyped-call]
        return result


def _same(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors share their memory and have the same layout."""
    return x.data_ptr() == y.data_ptr() and (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


class Tap(torch.autograd.Function):
    """The identity; its backward pass records uses, and gives the sources no gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, recorder: Recorder, uses: Uses, anchor: Tensor, *saved: Tensor
    ) -> Tensor:
        del anchor
        ctx.recorder, ctx.uses = recorder, uses
        ctx.save_for_backward(*saved)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # may recompute a checkpointed layer, which the pass must see
        uses, ctx.uses = ctx.uses, None  # may hold tensors, and the node lives as long as the graph
        with torch._C.DisableTorchFunction():
            ctx.recorder.record(uses(g, *tensors))
        return (g, None, None, None, *([None] * len(tensors)))


class Function(torch.autograd.Function):
    """An operation whose backward pass returns the gradients of its inputs, and records uses."""

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
        output, tensors = forward(*inputs)
        ctx.recorder, ctx.backward = recorder, backward
        ctx.save_for_backward(*tensors)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        backward, ctx.backward = ctx.backward, None  # holds a copy of the weight in a narrow type
        with torch._C.DisableTorchFunction():
            gradients, uses = backward(g, ctx.needs_input_grad[4:], *tensors)
            ctx.recorder.record(uses)
        return (None, None, None, None, *gradients)
