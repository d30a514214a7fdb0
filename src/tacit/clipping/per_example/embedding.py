"""Embedding: rows of a table, looked up by number.

Letters: n records; T positions of a record, views included; V rows of the table; d their width; U pairs
(record, number) that occur.

The gradient of a record is 0 but for the numbers that it holds, where it is the sum of g over their
positions.  Positions are summed by pair (record, number), so nothing of size V d is formed per record and
nothing cancels unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example.recorder import Recorder, Unseen
from tacit.clipping.per_example.use import Use, widened

__all__ = ["Lookup", "embedding", "embedding_bag"]


@final
class Lookup(Use):
    """Gradients of a table (V, d) from numbers (n, T) and output gradients g (n, T, d)."""

    def __init__(self, numbers: Tensor, g: Tensor, V: int) -> None:
        self.numbers, self.g, self.V = numbers, widened(g), V

    def squared_norms(self) -> Tensor:
        """Return the squares summed over the pairs of each record, (n,)."""
        record, _, sums = self._summed
        squares = sums.square().sum(1, dtype=torch.float64)  # as thousands may be added one by one
        return squares.new_zeros(len(self.g)).index_add_(0, record, squares).to(sums.dtype)

    @cached_property
    def _summed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient itself: record (U,), number (U,) and sum (U, d) of each pair that occurs.

        It is what is measured and what is added to the weighted sum.  The positions' own g may be a million
        times as long, where equal numbers cancel, and rounding makes another sum of them each time.
        """
        find = _sorted_pairs if self.g.is_cuda else _pairs
        record, number, place = find(self.numbers, self.V)
        sums = self.g.new_zeros(len(record), self.g.shape[2])
        return record, number, sums.index_add_(0, place, self.g.flatten(0, 1))

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return whole gradients, (m, V, d)."""
        record, number, sums = self._summed
        here = (start <= record) & (record < stop)
        found = self.g.new_zeros(stop - start, self.V, self.g.shape[2])
        return found.index_put_((record[here] - start, number[here]), sums[here], accumulate=True)

    def of(self, records: Tensor) -> Lookup:
        """Return what those records looked up."""
        return Lookup(self.numbers[records], self.g[records], self.V)

    @property
    def skips_zeros(self) -> bool:
        """Where waiting for the device takes longer than looking at the factors."""
        return self.g.is_cuda

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add the sum of each pair, scaled by its record's factor, to its row of the table."""
        record, number, sums = self._summed
        weights = factors[record][:, None]
        scaled = sums * weights
        if self.skips_zeros:
            scaled = torch.where(weights == 0, 0.0, scaled)
        accumulator.index_add_(0, number, scaled.to(accumulator.dtype))


def _pairs(numbers: Tensor, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return record and number of each pair in (n, T) numbers, (U,), and each position's pair, (n T,)."""
    records = torch.arange(len(numbers), device=numbers.device)[:, None]
    pairs, place = torch.unique(records * V + numbers, return_inverse=True)
    return pairs // V, pairs % V, place.flatten()


def _sorted_pairs(numbers: Tensor, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same without waiting for a device to say how many there are: U = n T, some of them empty."""
    del V
    n, T = numbers.shape
    ordered, order = numbers.sort(dim=1)
    new = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))
    place = torch.empty_like(order).scatter_(1, order, new.cumsum(1))
    place = (place + T * torch.arange(n, device=place.device)[:, None]).flatten()
    record = torch.arange(n * T, device=place.device) // T
    return record, torch.zeros_like(place).scatter_(0, place, numbers.flatten()), place


def embedding(
    recorder: Recorder,
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
    if input.dim() == 0 or recorder.decided(lambda: len(input) != recorder.rows and recorder.fixed(input)):
        derived: Tensor = recorder.derive(F.embedding, input, weight, padding_idx)
        return derived
    recorder = recorder.of_rows("embedding", input, 1)
    V = len(weight)
    y = F.embedding(input, recorder.plain(weight))

    def uses(g: Tensor, numbers: Tensor) -> Iterator[tuple[Tensor, Use]]:
        if padding_idx is not None:
            g = g.masked_fill((numbers == padding_idx % V)[..., None], 0.0)
        n = recorder.rows // recorder.views
        yield weight, Lookup(numbers.reshape(n, -1), recorder.positions(g), V)

    return recorder.tap("embedding", y, uses, saved=(input,), sources=(weight,))


def embedding_bag(
    recorder: Recorder,
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
    if offsets is not None:
        input, per_sample_weights = _bags(  # noqa: A001
            recorder.rows, input, offsets[:-1] if include_last_offset else offsets, per_sample_weights
        )
    if input.dim() != 2 or mode not in ("sum", "mean"):
        raise Unseen("operation 'embedding_bag' of another mode than sum and mean")
    if len(input) != recorder.rows or recorder.owns(per_sample_weights):
        raise Unseen("operation 'embedding_bag' of bags that are not the rows, or with learned weights")
    found = embedding(recorder, input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    shares = torch.ones_like(input, dtype=found.dtype) if per_sample_weights is None else per_sample_weights
    if padding_idx is not None:
        shares = shares.masked_fill(input == padding_idx % len(weight), 0.0)
    if mode == "mean":
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1.0)
    return torch.bmm(shares[:, None], found).squeeze(1)  # (B, 1, L) (B, L, d)


def _bags(rows: int, input: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:  # noqa: A002
    """Return (B, L) numbers, and weights, from (B L,) of them and (B,) offsets L apart."""
    L = len(input) // rows
    starts = torch.arange(rows, device=offsets.device) * L
    if L == 0 or L * rows != len(input) or not torch.equal(offsets.to(starts), starts):
        raise Unseen("operation 'embedding_bag' of bags of several sizes")
    return input.view(rows, L), None if weights is None else weights.view(rows, L)
