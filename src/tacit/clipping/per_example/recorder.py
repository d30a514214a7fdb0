"""What a rule of a layer sees of a pass: how many rows each record has, and which tensors are sources.

Letters: n records; k rows of one record in this operation; B = n k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, final, overload

from torch import Tensor

from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example.hooks import Backward, Forward, Function, Tap, Uses

Handler: TypeAlias = Callable[..., Any]
"""A rule: ``rule(recorder, *args, **kwargs)``, the operation's own after the first."""


class NoRule(Exception):
    """A rule does not fit these arguments: sources are lent to the operation instead."""


@final
class Recorder:
    """B rows, ``views`` of each record."""

    def __init__(self, of: Pass, views: int) -> None:
        self.of, self.views, self.rows, self.budget = of, views, of.n * views, of.budget
        self.owns = of.owns
        self.record = of.record

    @overload
    def plain(self, tensor: Tensor) -> Tensor: ...
    @overload
    def plain(self, tensor: Tensor | None) -> Tensor | None: ...
    def plain(self, tensor: Tensor | None) -> Tensor | None:
        """Return the value of a source: what autograd must not differentiate by itself."""
        return tensor.detach() if tensor is not None and self.owns(tensor) else tensor

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
        """Return ``output`` such that its gradient g reaches ``uses(g, *saved)``, and nothing the sources."""
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
        """Return an output with a backward pass of its own, which finds input gradients and uses at once.

        ``inputs`` are what autograd differentiates by; values of sources reach ``forward`` by closure.
        """
        anchor = self.of.anchor if any(self.owns(source) for source in sources) else None
        result: Tensor = Function.apply(self, forward, backward, anchor, *inputs)  # type: ignore[no-untyped-call]
        return result
