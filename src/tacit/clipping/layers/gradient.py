"""The per-record gradients of one parameter, from all its uses in a batch.

Letters: n records; m records of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from tacit.clipping.layers import tied
from tacit.clipping.layers.tape import Tape
from tacit.clipping.layers.use import Kept, Use, chunks

__all__ = ["Gradient", "Joined", "gradients_of", "joined"]

SMALL = {"cpu": 2**11, "cuda": 2**16}
"""Numbers of a parameter, by device, up to which its gradients are joined with others'.

Each small operation takes some microseconds, and on CUDA devices it is they that a step waits for."""


@final
class Gradient:
    """g_i of n records by all uses of one parameter, its own and those of sources derived from it.

    Several uses are formed, ``most`` bytes at once, and summed.  They may cancel; so what is measured is also
    what is added to the weighted sum, formed anew: the same to the last bit.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        own: list[Use],
        derived: list[tuple[Tensor, list[Use]]],
        most: int,
    ) -> None:
        self._parameter, self._most = parameter, most
        one = tied.merged(own)
        self._own = own if one is None else [one]
        self._derived = derived

    @property
    def used(self) -> bool:
        """Whether any gradient reaches the parameter."""
        return bool(self._own or self._derived)

    @property
    def _alone(self) -> Use | None:
        """The only use, which needs not be formed."""
        return self._own[0] if len(self._own) == 1 and not self._derived else None

    @property
    def small(self) -> Kept | None:
        """What is formed of it, if that is few numbers and for this use alone."""
        use = self._alone
        if not isinstance(use, Kept) or use.shared or use.rows.dtype != torch.float32:
            return None
        return use if self._parameter.numel() <= SMALL.get(self._parameter.device.type, 0) else None

    def squared_norms(self, n: int) -> Tensor:
        """Return |g_i|^2, (n,); uses are summed before they are squared."""
        if self._alone is not None:
            return self._alone.squared_norms()
        return torch.cat([part.squared_norms() for _, _, part in self._formed(n)])

    def _formed(self, n: int) -> Iterator[tuple[int, int, Kept]]:
        """Yield g_i of the records start to stop - 1, with these numbers."""
        size = self._parameter.numel() * self._parameter.element_size()
        for start, stop in chunks(n, size, self._most):
            yield start, stop, Kept(self._sum(start, stop))

    def _sum(self, start: int, stop: int) -> Tensor:
        """Return g_i of the records start to stop - 1, (m, *shape)."""
        total = sum(use.gradients(start, stop) for use in self._own)
        for source, uses in self._derived:
            parts = torch.stack([use.gradients(start, stop) for use in uses]).sum(0)
            pulled = [_pull(source, self._parameter, part) for part in parts]
            total = total + torch.stack([g for g in pulled if g is not None])
        assert isinstance(total, Tensor)
        return total

    @property
    def skips_zeros(self) -> bool:
        """Whether a record whose factor is 0 adds nothing, be its numbers infinite or NaN."""
        return not self.used or (self._alone is not None and self._alone.skips_zeros)

    def of(self, records: Tensor) -> Gradient:
        """Return the same of some records, (n,) bool."""
        derived = [(source, [use.of(records) for use in uses]) for source, uses in self._derived]
        return Gradient(self._parameter, [use.of(records) for use in self._own], derived, self._most)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i g_i to the accumulator, in place."""
        factors = factors.to(accumulator.dtype)  # another in a model with parameters of several types
        if self._alone is not None:
            self._alone.add_weighted(accumulator, factors)
        else:
            for start, stop, part in self._formed(len(factors)):
                part.add_weighted(accumulator, factors[start:stop])


@final
class Joined:
    """Small gradients of several parameters of one group side by side, (n, P)."""

    def __init__(self, sizes: Mapping[str, int], kept: Kept) -> None:
        self._sizes, self._kept = sizes, kept

    def squared_norms(self) -> Tensor:
        """Return the sum of their squared norms, (n,)."""
        return self._kept.squared_norms()

    @property
    def skips_zeros(self) -> bool:
        """Whether a record whose factor is 0 adds nothing, be its numbers infinite or NaN."""
        return self._kept.skips_zeros

    def of(self, records: Tensor) -> Joined:
        """Return the same of some records, (n,) bool."""
        return Joined(self._sizes, self._kept.of(records))

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        """Add sum_i factors_i g_i of each parameter to the buffer of its name, in place.

        What the buffers hold, which is noise, is joined first, and the sum is added to that.
        """
        buffers = [buffer(name) for name in self._sizes]
        total = torch.cat([b.reshape(-1) for b in buffers])
        self._kept.add_weighted(total, factors.to(total.dtype))
        parts = zip(total.split_with_sizes(list(self._sizes.values())), buffers, strict=True)
        torch._foreach_copy_(buffers, [part if b.dim() == 1 else part.view_as(b) for part, b in parts])


def joined(gradients: dict[str, Gradient], names: Sequence[str]) -> Joined | None:
    """Take the small ones of those names out of ``gradients``, if there are two or more, and join them."""
    small = {name: kept for name in names if (kept := gradients[name].small) is not None}
    if len(small) < 2:
        return None
    for name in small:
        del gradients[name]
    rows = [kept.rows for kept in small.values()]
    sizes = {name: part.shape[1] for name, part in zip(small, rows, strict=True)}
    return Joined(sizes, Kept(torch.cat(rows, 1)))


def gradients_of(parameters: Mapping[str, nn.Parameter], tape: Tape) -> dict[str, Gradient]:
    """Take the uses from the tape: those of each parameter, and those of what is derived from it."""
    uses = dict(tape.uses)
    tape.uses.clear()
    derived = [
        (source, uses[key]) for key, source in tape.sources.items() if key in uses and not source.is_leaf
    ]
    return {
        name: Gradient(
            p,
            uses.get(id(p), []),
            [pair for pair in derived if _depends(pair[0], p)],
            tape.budget.chunk_bytes,
        )
        for name, p in parameters.items()
    }


def _pull(source: Tensor, parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
    """Return the gradient of a derived source pulled back to a parameter it is derived from, else None."""
    return torch.autograd.grad(
        source, parameter, gradient.to(source.dtype), retain_graph=True, allow_unused=True
    )[0]


def _depends(source: Tensor, parameter: nn.Parameter) -> bool:
    return _pull(source, parameter, torch.zeros_like(source)) is not None
