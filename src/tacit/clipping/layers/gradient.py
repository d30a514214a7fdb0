"""The per-record gradients of one parameter, from all its uses in a batch.

Letters: n records; m records of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from tacit.clipping.layers import tied
from tacit.clipping.layers.tape import Tape
from tacit.clipping.layers.use import Kept, Use, chunks

__all__ = ["Gradient", "gradients_of"]


@final
class Gradient:
    """g_i of n records by all uses of one parameter, its own and those of sources derived from it."""

    def __init__(
        self, parameter: nn.Parameter, own: list[Use], derived: list[tuple[Tensor, list[Use]]]
    ) -> None:
        self._parameter = parameter
        one = tied.merged(own)
        self._own = own if one is None else [one]
        self._derived = derived

    @property
    def used(self) -> bool:
        """Whether any gradient reaches the parameter."""
        return bool(self._own or self._derived)

    def squared_norms(self, n: int, most: int) -> Tensor:
        """Return |g_i|^2, (n,); uses are summed before they are squared, ``most`` bytes at once."""
        if len(self._own) == 1 and not self._derived:
            return self._own[0].squared_norms()
        size = self._parameter.numel() * self._parameter.element_size()
        parts = chunks(n, size, most)
        return torch.cat([Kept(self._formed(start, stop)).squared_norms() for start, stop in parts])

    def _formed(self, start: int, stop: int) -> Tensor:
        """Return g_i of the records start to stop - 1, (m, *shape)."""
        total = sum(use.gradients(start, stop) for use in self._own)
        for source, uses in self._derived:
            parts = torch.stack([use.gradients(start, stop) for use in uses]).sum(0)
            pulled = [_pull(source, self._parameter, part) for part in parts]
            total = total + torch.stack([g for g in pulled if g is not None])
        assert isinstance(total, Tensor)
        return total

    def of(self, records: Tensor) -> Gradient:
        """Return the same of some records, (n,) bool."""
        derived = [(source, [use.of(records) for use in uses]) for source, uses in self._derived]
        return Gradient(self._parameter, [use.of(records) for use in self._own], derived)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i g_i to the accumulator, in place."""
        factors = factors.to(accumulator.dtype)  # another in a model with parameters of several types
        for use in self._own:
            use.add_weighted(accumulator, factors)
        for source, uses in self._derived:
            total = torch.zeros_like(source, dtype=accumulator.dtype)
            for use in uses:
                use.add_weighted(total, factors)
            pulled = _pull(source, self._parameter, total)
            assert pulled is not None
            accumulator.add_(pulled)


def gradients_of(parameters: Mapping[str, nn.Parameter], tape: Tape) -> dict[str, Gradient]:
    """Take the uses from the tape: those of each parameter, and those of what is derived from it."""
    uses = dict(tape.uses)
    tape.uses.clear()
    derived = [
        (source, uses[key]) for key, source in tape.sources.items() if key in uses and not source.is_leaf
    ]
    return {
        name: Gradient(p, uses.get(id(p), []), [pair for pair in derived if _depends(pair[0], p)])
        for name, p in parameters.items()
    }


def _pull(source: Tensor, parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
    """Return the gradient of a derived source pulled back to a parameter it is derived from, else None."""
    return torch.autograd.grad(
        source, parameter, gradient.to(source.dtype), retain_graph=True, allow_unused=True
    )[0]


def _depends(source: Tensor, parameter: nn.Parameter) -> bool:
    return _pull(source, parameter, torch.zeros_like(source)) is not None
