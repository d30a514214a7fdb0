"""Embedding: rows of a table, looked up by number.

Letters: n records; T positions of a record, views included; V rows of the table; d their width; U pairs
(record, number) that occur.

The gradient of a record is 0 but for the numbers that it holds, where it is the sum of g over their
positions.  Positions are summed by pair (record, number), so nothing of size V d is formed per record and
nothing cancels unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.tape import Tape, Unseen
from tacit.clipping.layers.use import Use, widened

__all__ = ["Lookup", "embedding", "embedding_bag"]


@final
class Lookup(Use):
    """Gradients of a table (V, d) from numbers (n, T) and output gradients g (n, T, d)."""

    def __init__(self, numbers: Tensor, g: Tensor, V: int) -> None:
        self.numbers, self.g, self.V = numbers, widened(g), V

    def squared_norms(self) -> Tensor:
        """Return the squares summed over the pairs of each record, (n,)."""
        if self.g.is_cuda:
            return self._sorted_squared_norms()
        n, _, d = self.g.shape
        record = torch.arange(n, device=self.numbers.device)[:, None]
        pairs, place = torch.unique(record * self.V + self.numbers, return_inverse=True)  # (U,), (n, T)
        sums = self.g.new_zeros(len(pairs), d).index_add_(0, place.flatten(), self.g.flatten(0, 1))
        return self.g.new_zeros(n).index_add_(0, pairs // self.V, sums.square().sum(1))

    def _sorted_squared_norms(self) -> Tensor:
        """Return the same without waiting for the device to say how many pairs there are."""
        n, T, d = self.g.shape
        ordered, order = self.numbers.sort(dim=1)
        new = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))
        place = torch.empty_like(order).scatter_(1, order, new.cumsum(1))
        place += T * torch.arange(n, device=place.device)[:, None]
        sums = self.g.new_zeros(n * T, d).index_add_(0, place.flatten(), self.g.flatten(0, 1))
        return sums.view(n, -1).square().sum(1)

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return whole gradients, (m, V, d)."""
        found = self.g.new_zeros(stop - start, self.V, self.g.shape[2])
        for gradient, numbers, g in zip(found, self.numbers[start:stop], self.g[start:stop], strict=True):
            gradient.index_add_(0, numbers, g)
        return found

    def of(self, records: Tensor) -> Lookup:
        """Return what those records looked up."""
        return Lookup(self.numbers[records], self.g[records], self.V)

    @property
    def skips_zeros(self) -> bool:
        """Where waiting for the device takes longer than looking at the factors."""
        return self.g.is_cuda

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add each position's g, scaled by its record's factor, to its row of the table."""
        weights = factors[:, None, None]
        scaled = self.g * weights
        if self.skips_zeros:
            scaled = torch.where(weights == 0, 0.0, scaled)
        accumulator.index_add_(0, self.numbers.flatten(), scaled.flatten(0, 1).to(accumulator.dtype))


def embedding(
    tape: Tape,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """``F.embedding`` of a table (V, d); numbers that do not come by row, such as positions, are derived."""
    del norm_type, sparse  # the one goes with max_norm, the other with p.grad
    if max_norm is not None or scale_grad_by_freq:
        raise Unseen("operation 'embedding' has max_norm or scale_grad_by_freq, which mix rows")
    if input.dim() == 0 or len(input) != tape.rows:
        derived: Tensor = tape.derive(F.embedding, input, weight, padding_idx)
        return derived
    V = len(weight)
    y = F.embedding(input, tape.plain(weight))

    def uses(g: Tensor, numbers: Tensor) -> Iterator[tuple[Tensor, Use]]:
        if padding_idx is not None:
            g = g.masked_fill((numbers == padding_idx % V)[..., None], 0.0)
        n = tape.rows // tape.views
        yield weight, Lookup(numbers.reshape(n, -1), tape.positions(g), V)

    return tape.tap("embedding", y, uses, saved=(input,), sources=(weight,))


def embedding_bag(
    tape: Tape,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """``F.embedding_bag`` of bags of one size, (B, L) numbers: the rows looked up, then their sum or mean.

    Bags of several sizes, given by offsets, and the maximum have no rule.
    """
    del include_last_offset
    if offsets is not None or input.dim() != 2 or mode not in ("sum", "mean"):
        raise Unseen("operation 'embedding_bag' with offsets, or of another mode than sum and mean")
    if len(input) != tape.rows or tape.owns(per_sample_weights):
        raise Unseen("operation 'embedding_bag' of bags that are not the rows, or with learned weights")
    found = embedding(tape, input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    shares = torch.ones_like(input, dtype=found.dtype) if per_sample_weights is None else per_sample_weights
    if padding_idx is not None:
        shares = shares.masked_fill(input == padding_idx % len(weight), 0.0)
    if mode == "mean":
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1.0)
    return torch.bmm(shares[:, None], found).squeeze(1)  # (B, 1, L) (B, L, d)
