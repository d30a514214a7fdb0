"""Embedding: rows of a table, looked up by number.

Letters: n records; T positions of a record, views included; V rows of the table; d their width; U pairs
(record, number) that occur.
"""

# The gradient of a record is nonzero only in the rows that it looks up: there it is the sum of g over their
# positions. Positions are summed by pair (record, number), so nothing of size V d is formed per record, and
# cancellation is exact.

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import native
from tacit.clipping.isolation.reasons import NoRule
from tacit.clipping.per_example.use import (
    Kept,
    Recorder,
    SourceUse,
    Use,
    allowance,
    row_squares,
    squared_product,
    widened,
)


@final
class Lookup(Use):
    """Gradients of a table (V, d), from the numbers looked up (n, T) and output gradients g (n, T, d)."""

    def __init__(self, numbers: Tensor, g: Tensor, V: int) -> None:
        self.numbers, self.g, self.V = numbers, widened(g), V
        self.skips_zeros = g.is_cuda  # where checking the factors would wait for the device
        self._alike = self.g.stride(1) == 0 and numbers.shape[1] > 0
        """Whether all positions of a record have the same g, as after a mean over them."""

    def squared_norms(self) -> Tensor:
        if self._alike:  # the sum for a number at c positions is c g
            return squared_product(row_squares(self.g[:, 0]), self._repeats())
        record, _, sums = self._summed
        squares = sums.square().sum(1, dtype=torch.float64)  # float64, as thousands may be added one by one
        least = self.numbers.shape[1] * allowance(sums)  # for squares that underflow
        return squares.new_full((len(self.g),), least).index_add_(0, record, squares).to(sums.dtype)

    def _repeats(self) -> Tensor:
        """Return the sum of c^2 over the numbers of each record, (n,), each of which is at c positions."""
        n, T = self.numbers.shape
        library = _library(self.g)
        if library is not None:
            numbers, squares = self.numbers.long().contiguous(), self.g.new_empty(n)
            library.tacit_repeats(n, T, numbers.data_ptr(), squares.data_ptr())
            return squares
        place = _pairs(self.numbers)[2]
        counts = self.g.new_zeros(n * T).index_add_(0, place, self.g.new_ones(()).expand(n * T))
        return counts.view(n, T).square().sum(1)

    @cached_property
    def _summed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient: record (U,), number (U,) and sum of g (U, d) of each pair that occurs.

        Both the norms and the weighted sum use it. If positions of a number cancel, their g may be a million
        times as long as the sum, and another order of summation would round to another sum.
        """
        library = _library(self.g)
        if library is not None and self.g.stride(2) == 1:
            return self._summed_by(library)
        record, number, place = _pairs(self.numbers)
        sums = self.g.new_zeros(len(record), self.g.shape[2])
        return record, number, sums.index_add_(0, place, self.g.flatten(0, 1))

    def _summed_by(self, library: ctypes.CDLL) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same by a C++ kernel, which leaves out pairs that do not occur."""
        n, T, d = self.g.shape
        numbers = self.numbers.long().contiguous()
        record, number = torch.empty(2, n * T, dtype=torch.int64).unbind()
        sums = self.g.new_empty(n * T, d)
        pairs = library.tacit_pairs(
            n, T, d, numbers.data_ptr(), self.g.data_ptr(), self.g.stride(0), self.g.stride(1),
            record.data_ptr(), number.data_ptr(), sums.data_ptr(),
        )  # fmt: skip
        return record[:pairs], number[:pairs], sums[:pairs]

    def gradients(self, start: int, stop: int) -> Tensor:
        record, number, sums = self._summed
        here = (start <= record) & (record < stop)
        tables = self.g.new_zeros(stop - start, self.V, self.g.shape[2])
        return tables.index_put_((record[here] - start, number[here]), sums[here], accumulate=True)

    def of(self, records: Tensor) -> Lookup:
        return Lookup(self.numbers[records], self.g[records], self.V)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        if self._alike:
            numbers, rows, weights = self.numbers, self.g[:, 0], factors[:, None]
        else:
            record, number, rows = self._summed
            numbers, weights = number[:, None], factors[record][:, None]
        scaled = rows * weights
        if self.skips_zeros:
            scaled = torch.where(weights == 0, 0.0, scaled)
        _add_rows(accumulator, numbers, scaled.to(accumulator.dtype))


def _add_rows(table: Tensor, numbers: Tensor, rows: Tensor) -> None:
    """Add each of the rows (R, d) to T rows of a table (V, d), those of its ``numbers`` (R, T)."""
    library = _library(table)
    if library is not None and table.is_contiguous():
        numbers, rows = numbers.long().contiguous(), rows.contiguous()
        (R, T), d = numbers.shape, rows.shape[1]
        library.tacit_add_rows(R, T, d, numbers.data_ptr(), rows.data_ptr(), table.data_ptr())
    else:
        each = rows[:, None].expand(*numbers.shape, rows.shape[1])
        table.index_add_(0, numbers.flatten(), each.flatten(0, 1))


def _library(tensor: Tensor) -> ctypes.CDLL | None:
    """Return the library of kernels if they take such a tensor."""
    return native.library() if tensor.is_cpu and tensor.dtype == torch.float32 else None


@final
class SameLookup(Use):
    """Gradients of a table (V, d) in which all records look up the same ``numbers`` (T,), from g (n, T, d).

    A language model's position embedding is an example. Positions with the same number are summed first, into
    an array of T rows, some of which stay zero.
    """

    def __init__(self, numbers: Tensor, g: Kept, V: int) -> None:
        self._numbers, self._g, self._V = numbers, g, V
        self.skips_zeros = g.skips_zeros

    @staticmethod
    def of_positions(numbers: Tensor, g: Tensor, V: int) -> SameLookup:
        """Return the use after summing positions with the same number."""
        _, rows, place = _pairs(numbers[None])
        g = widened(g)
        return SameLookup(rows, Kept(torch.zeros_like(g).index_add_(1, place, g)), V)

    def squared_norms(self) -> Tensor:
        return self._g.squared_norms()

    def gradients(self, start: int, stop: int) -> Tensor:
        g = self._g.gradients(start, stop)
        return g.new_zeros(len(g), self._V, g.shape[2]).index_add_(1, self._numbers, g)

    def of(self, records: Tensor) -> SameLookup:
        return SameLookup(self._numbers, self._g.of(records), self._V)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        total = torch.zeros_like(self._g.gradients(0, 1)[0])
        self._g.add_weighted(total, factors)
        accumulator.index_add_(0, self._numbers, total.to(accumulator.dtype))


def looked_up(source: Tensor, parameter: Tensor, uses: Sequence[Use], n: int) -> SameLookup | None:
    """Return the use of a table if ``source`` is a look-up in it that is the same for all records."""
    node: Any = source.grad_fn
    if type(node).__name__ != "EmbeddingBackward0" or source._backward_hooks:
        return None
    table = getattr(node.next_functions[0][0], "variable", None)
    if table is not parameter or node._saved_scale_grad_by_freq:
        return None
    numbers, padding, V = node._saved_indices, node._saved_padding_idx, len(parameter)
    g = sum(use.gradients(0, n) for use in uses)
    assert isinstance(g, Tensor)
    if padding < V:
        g = g.masked_fill((numbers == padding)[..., None], 0.0)
    return SameLookup.of_positions(numbers.flatten(), g.reshape(n, -1, g.shape[-1]), V)


def _pairs(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the record and the number of each pair, (U,), and the pair of each position, (n T,).

    ``numbers``: (n, T). Counting the pairs would wait for the device. So U = n T, and some pairs are empty.
    """
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
    """Run ``F.embedding`` on a table (V, d)."""
    del norm_type, sparse  # norm_type only matters with max_norm, and sparse with p.grad
    if max_norm is not None or scale_grad_by_freq:
        raise NoRule
    V = len(weight)
    y = F.embedding(input, recorder.plain(weight))

    def uses(g: Tensor, numbers: Tensor) -> Iterator[SourceUse]:
        if padding_idx is not None:
            g = g.masked_fill((numbers == padding_idx % V)[..., None], 0.0)
        n = recorder.rows // recorder.views
        yield weight, Lookup(numbers.reshape(n, -1), recorder.positions(g), V)

    return recorder.tap(y, uses, saved=(input,), sources=(weight,))
