"""Weight normalisation, w_o = s_o v_o with s_o = g_o / |v_o|: gradients of v and g from one use of w.

Letters: n records; m records of a chunk; O rows of N numbers.
"""

# With the unit vectors u_o = v_o / |v_o|, a record whose gradient of w is G (O, N) has::
#
#     dg_o = <G_o, u_o>    dv_o = s_o (G_o - dg_o u_o)    |dv_o|^2 = s_o^2 (|G_o|^2 - dg_o^2)
#
# A linear layer at one position has G_o = left_o right^T. Then <G_o, u_o> = left_o <right, u_o> takes one
# matrix product, and G is not formed. The layer's forward pass already computes that product and keeps it
# (``Pair.normed``). For other uses, G is formed in chunks, once for both v and g.
#
# **Rounding.** |G_o|^2 - dg_o^2 cancels where G is nearly parallel to the weights.
#
# * A dot product of N numbers is off by at most N units of rounding, so N units of |s G|^2 are added to
#   |dv|^2.
# * Errors in single precision vary with the size of the batch, and one more record must not change how the
#   others are clipped. So if |dv|^2 is below :data:`CANCELLED` times |s G|^2, that record's norm is computed
#   in double precision.
# * dg is formed, so that norms and sums use the same numbers. :data:`LEAST` units of |G| are added to its
#   norm, so that no record's dg is mostly rounding errors of G.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from tacit.clipping.per_example.linear import GRAM_DEPTH, Outer, Pair, WeightNorm, product, weight_norm_of
from tacit.clipping.per_example.use import Kept, Use, cancellation, chunks, row_squares

CANCELLED = 0.1
"""The ratio of |dv|^2 to |s G|^2 below which double precision is used."""
LEAST = 2.0**10
"""The allowance added to |dg|, in units of rounding of the largest possible dg."""
MOST = 4 * 2**20
"""The most bytes of gradients formed at once, so that they stay in the cache between operations."""
UNITS = 64
"""The units of rounding allowed for norms of rows, products and unit vectors; dot products get their own."""


def normed_weight(source: Tensor, uses: list[Use], n: int, most: int) -> NormedWeight | None:
    """Return the use that v and g share, if ``source`` is computed from them and is used once."""
    if len(uses) != 1:
        return None
    use = uses[0]
    parts = use.normed if isinstance(use, Pair) else None
    made_of = weight_norm_of(source) if parts is None else parts[0]
    return None if made_of is None else NormedWeight(use, made_of, n, most)


@dataclass(frozen=True)
class _Measured:
    """The values dg (n, O), |dg|^2 (n,) and |dv|^2 (n,) of n records."""

    along: Tensor
    of_magnitudes: Tensor
    of_directions: Tensor

    def of(self, records: Tensor) -> _Measured:
        return _Measured(self.along[records], self.of_magnitudes[records], self.of_directions[records])


@final
class NormedWeight:
    """One use of a weight w (O, ...) with directions v (O, ...) and magnitudes g (O, 1, ...)."""

    def __init__(
        self, use: Use, made_of: WeightNorm, n: int, most: int, values: _Measured | None = None
    ) -> None:
        self.use, self.made_of, self.n = use, made_of, n
        self._most, self._values = most, values
        self.shape, self.unit, self.scale = made_of.directions.shape, made_of.unit, made_of.scale

    def use_by(self, parameter: Tensor) -> Use | None:
        """Return the use of this parameter if it is v or g, else None."""
        if parameter is self.made_of.directions:
            return _Directions(self)
        return _Magnitudes(self) if parameter is self.made_of.magnitudes else None

    def of(self, records: Tensor) -> NormedWeight:
        """Return the use of some records, (n,) bool."""
        n = int(records.sum())
        return NormedWeight(self.use.of(records), self.made_of, n, self._most, self.measured.of(records))

    @cached_property
    def measured(self) -> _Measured:
        """The gradients dg, and the squared norms of dg and dv."""
        if self._values is not None:
            return self._values
        parts = self._from_products(self.use) if isinstance(self.use, Pair) else self._from_formed()
        along, of_rows, whole, left = (torch.cat(part) for part in zip(*parts, strict=True))
        N, limits = self.unit.shape[1], torch.finfo(along.dtype)
        units = min(N, GRAM_DEPTH) + N / GRAM_DEPTH + UNITS
        squares = left + units * limits.eps * whole + self._lost_in_sums()
        least = (LEAST * limits.eps) ** 2 * of_rows
        return _Measured(along, row_squares(along) + least.to(along.dtype), squares.to(along.dtype))

    def _from_products(self, pair: Pair) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield dg (m, O), |G|^2, |s G|^2 and |dv|^2 (m,) for G that are outer products."""
        unit, scale = (one.to(pair.right.rows.dtype) for one in (self.unit, self.scale))
        for start, stop in chunks(self.n, 4 * 8 * len(unit), self._most):
            left, right = pair.left.rows[start:stop], pair.right.rows[start:stop]
            squares = pair.right.squares[start:stop].double()
            dots = _dots(right, unit) if pair.normed is None else pair.normed[1][start:stop]
            along = left * dots
            scaled = left * scale
            whole = row_squares(scaled).double() * squares
            rest = whole - row_squares(along * scale)
            if len(low := (rest < CANCELLED * whole).nonzero().flatten()):
                rows = right[low].double()
                dots = rows @ self.made_of.exact_unit().T
                of_rows = (rows.square().sum(1, keepdim=True) - dots.square()).clamp_(min=0)
                rest[low] = (scaled[low].double().square() * of_rows).sum(1)
            yield along, pair.left.squares[start:stop].double() * squares, whole, rest

    def _from_formed(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield dg (m, O), |G|^2, |s G|^2 and |dv|^2 (m,) from formed G."""
        scales = self.scale.double().square()
        for start, stop in self.chunks():
            formed, order = _in_order(self.use.gradients(start, stop))
            rows = formed.flatten(2)
            along = _dots_of_rows(rows, _ordered(self.unit, self.shape, order).to(rows.dtype))
            squares = row_squares(rows).double()
            whole = squares @ scales
            rest = whole - along.double().square() @ scales
            if len(low := (rest < CANCELLED * whole).nonzero().flatten()):
                exact = rows[low].double()
                dots = (exact * _ordered(self.made_of.exact_unit(), self.shape, order)).sum(2)
                rest[low] = (exact.square().sum(2) - dots.square()).clamp_(min=0) @ scales
            yield along, squares.sum(1), whole, rest

    def _lost_in_sums(self) -> Tensor | float:
        """Return an addition to squared norms that covers the rounding of the weighted sum."""
        if not self.sums_positions:
            return float(torch.finfo(self.unit.dtype).tiny)
        assert isinstance(self.use, Outer)
        left, right = self.use.left.double(), self.use.right.double()
        spread: Tensor = (torch.linalg.vector_norm(left, dim=2) * torch.linalg.vector_norm(right, dim=2)).sum(
            1
        )
        kappa = cancellation(self.unit.dtype, max(self.unit.shape))
        return kappa * (spread * self.scale.abs().max()).square()

    @property
    def sums_positions(self) -> bool:
        """Whether the weighted sum is one product over all positions, which does not form G."""
        return isinstance(self.use, Outer)

    def chunks(self) -> list[tuple[int, int]]:
        """Return the ranges of records whose gradients are formed at once."""
        return chunks(self.n, self.unit.numel() * self.unit.element_size(), min(MOST, self._most))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return sum_i factors_i G_i, (O, N)."""
        if self.sums_positions or self.use.sums_what_it_forms:
            total = factors.new_zeros(self.shape)
            self.use.add_weighted(total, factors)
            return total.flatten(1)
        return _weighted_sum(self.use, self.shape, self.chunks(), factors).flatten(1)


class _Part(Use):
    def __init__(self, weight: NormedWeight) -> None:
        self._weight = weight

    def of(self, records: Tensor) -> Use:
        return type(self)(self._weight.of(records))


@final
class _Directions(_Part):
    """The gradients dv_o = s_o (G_o - dg_o u_o)."""

    def squared_norms(self) -> Tensor:
        return self._weight.measured.of_directions

    def gradients(self, start: int, stop: int) -> Tensor:
        formed = self._weight.use.gradients(start, stop)
        scale = self._weight.scale.to(formed.dtype)[:, None]
        return (scale * self._across(formed.flatten(2))).view(formed.shape)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        total = self._weight.weighted_sum(factors)
        scale = self._weight.scale.to(total.dtype).view(-1, *[1] * (accumulator.dim() - 1))
        accumulator.addcmul_(self._across(total).view(accumulator.shape), scale)

    def _across(self, rows: Tensor) -> Tensor:
        """Return G_o - dg_o u_o from G (..., O, N), with pairwise sums, which do not lose small numbers."""
        unit = self._weight.unit.to(rows.dtype)
        return torch.addcmul(rows, unit, (rows * unit).sum(-1, keepdim=True), value=-1)


@final
class _Magnitudes(_Part):
    """The gradients dg_o = <G_o, u_o>, which are formed."""

    def squared_norms(self) -> Tensor:
        return self._weight.measured.of_magnitudes

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._weight.measured.along[start:stop].view(-1, *self._weight.made_of.magnitudes.shape)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        Kept(self._weight.measured.along).add_weighted(accumulator, factors)


def _ordered(rows: Tensor, shape: torch.Size, order: list[int]) -> Tensor:
    """Return the rows (O, N) of a weight of this shape after permuting its dimensions to ``order``."""
    return rows.view(shape).permute(order).reshape(rows.shape)


def _dots(rows: Tensor, unit: Tensor) -> Tensor:
    """Return <row_i, unit_o>, (m, O), adding at most ``GRAM_DEPTH`` products at once."""
    blocks = range(0, rows.shape[1], GRAM_DEPTH)
    total, *parts = (product(rows[:, k : k + GRAM_DEPTH], unit[:, k : k + GRAM_DEPTH]) for k in blocks)
    for part in parts:
        total += part
    return total


def _dots_of_rows(rows: Tensor, unit: Tensor) -> Tensor:
    """Return <row_io, unit_o>, (m, O), from (m, O, N)."""
    total = rows.new_zeros(rows.shape[1], len(rows), 1)
    for k in range(0, rows.shape[2], GRAM_DEPTH):
        block = slice(k, k + GRAM_DEPTH)
        total.baddbmm_(rows[:, :, block].transpose(0, 1), unit[:, block, None])
    return total.squeeze(2).T


def _weighted_sum(use: Use, shape: torch.Size, parts: list[tuple[int, int]], factors: Tensor) -> Tensor:
    """Return sum_i factors_i G_i in this shape, from gradients that are formed again part by part."""
    total = factors.new_zeros(shape)
    for start, stop in parts:
        formed, order = _in_order(use.gradients(start, stop))
        part = formed.new_zeros(formed.shape[1:], dtype=factors.dtype)
        Kept(formed).add_weighted(part, factors[start:stop])
        total.permute(order).add_(part)
    return total


def _in_order(formed: Tensor) -> tuple[Tensor, list[int]]:
    """Return gradients (m, O, ...) with dimensions in memory order, and that order for a weight (O, ...)."""
    order = sorted(range(2, formed.dim()), key=formed.stride, reverse=True)
    return formed.permute(0, 1, *order), [0, *(dim - 1 for dim in order)]
