"""How a rule of a layer sees a pass under vmap: as rows of the physical tensors, and sources.

Letters: n records; k rows of one record in this operation; B = n k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from torch import Tensor

from tacit.clipping.per_example.hooks import Backward, Forward, Function, Tap, Uses
from tacit.clipping.under_vmap import Pass

__all__ = ["Rows"]

_NOTHING: AbstractContextManager[None] = nullcontext()


@final
class Rows:
    """B rows, ``views`` of each record, in the place of the recorder that rules know."""

    exact = 0
    """Bytes up to which norms must be those of formed gradients: none."""

    def __init__(self, of: Pass, views: int) -> None:
        self.of, self.views, self.rows, self.budget = of, views, of.n * views, of.budget
        self.owns = of.owns
        self.record = of.record

    def plain(self, tensor: Tensor | None) -> Tensor | None:
        """Return the value of a source: what autograd must not differentiate by itself."""
        return tensor.detach() if tensor is not None and self.owns(tensor) else tensor

    def of_rows(self, operation: str, tensor: Tensor, dimensions: int) -> Rows:
        """Return itself: the pass brings the rows first."""
        del operation, tensor, dimensions
        return self

    def decided(self, decide: Callable[[], Any]) -> Any:
        """Return what follows from shapes."""
        return decide()

    def positions(self, tensor: Tensor) -> Tensor:
        """Return (B, ..., d) as (n, K ..., d)."""
        return tensor.reshape(self.of.n, -1, tensor.shape[-1])

    def derive(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute from sources alone."""
        return self.of.derive(func, args, kwargs)

    def tap(
        self,
        operation: str,
        output: Tensor,
        uses: Uses,
        *,
        saved: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
        rows: int = 0,
    ) -> Tensor:
        """Return ``output`` such that its gradient g reaches ``uses(g, *saved)``."""
        del operation
        if not any(self.owns(source) for source in sources):
            return output
        result: Tensor = Tap.apply(output, self, uses, rows, self.of.anchor, *saved)  # type: ignore[no-untyped-call]
        return result

    def function(
        self,
        operation: str,
        forward: Forward,
        backward: Backward,
        *,
        inputs: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return an output with a backward pass of its own."""
        del operation
        anchor = self.of.anchor if any(self.owns(source) for source in sources) else None
        result: Tensor = Function.apply(self, forward, backward, anchor, *inputs)  # type: ignore[no-untyped-call]
        return result

    def by_row(self, *tensors: Tensor) -> AbstractContextManager[None]:
        """Nothing: under vmap each row is its record's."""
        del tensors
        return _NOTHING

    def owners(self, tensors: Iterable[Tensor]) -> list[Tensor | None]:
        """Nothing."""
        del tensors
        return []

    def check_owners(self, tensors: Sequence[Tensor], before: Sequence[Tensor | None]) -> None:
        """Nothing."""

    def mark(self, *tensors: Tensor | None) -> None:
        """Nothing."""
