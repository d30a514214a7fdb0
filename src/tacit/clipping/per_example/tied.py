"""Merging several uses of one parameter, such as a layer applied twice or an embedding tied to the head.

Letters: n records; V rows of the table; d their width; T positions that are looked up, with gradients e_t; U
positions of the head, with inputs h_u and gradients l_u of its V outputs; i_t the number looked up at t.

The gradient of a record is H + E, with H = sum_u l_u h_u^T of the head and E = sum_t 1_{i_t} e_t^T of the
table, both (V, d). The norm of the sum needs their inner product too::

    |H + E|^2 = |H|^2 + |E|^2 + 2 sum_{t,u} l_u[i_t] (e_t . h_u)

This needs no tensor of size V d per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from tacit.clipping.per_example import linear
from tacit.clipping.per_example.embedding import Lookup
from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.use import Use, cancellation, row_squares, widened

PRODUCTS = 2**20
"""The most entries of (T, U) products computed at once, so that they stay in the cache."""


def merged(uses: Sequence[Use]) -> Use | None:
    """Return the uses of one parameter as one use, if there is a rule for the norm of its gradients."""
    if len(uses) == 1:
        return uses[0]
    lookups = [use for use in uses if isinstance(use, Lookup)]
    rest = [use for use in uses if not isinstance(use, Lookup)]
    if not lookups:
        return linear.merged(rest)
    table = Lookup(
        torch.cat([use.numbers for use in lookups], dim=1),
        torch.cat([use.g for use in lookups], dim=1),
        lookups[0].V,
    )
    if not rest:
        return table
    head = linear.merged(rest)
    head = head.at_positions() if isinstance(head, linear.Pair) else head
    return _Tied(head, table) if isinstance(head, Outer) else None


@final
class _Tied(Use):
    """The gradient H + E of a tied embedding."""

    def __init__(self, head: Outer, table: Lookup) -> None:
        self._head, self._table = head, table

    def squared_norms(self) -> Tensor:
        """Return |H + E|^2, (n,), rounded up as in ``ghost_squared_norms``: the two may cancel."""
        left, right, e = (widened(t) for t in (self._head.left, self._head.right, self._table.g))
        n, U = left.shape[:2]
        m = max(1, PRODUCTS // max(1, U * e.shape[1]))
        parts = [slice(start, start + m) for start in range(0, n, m)]
        cross = torch.cat([_cross(left[i], right[i], self._table.numbers[i], e[i]) for i in parts])
        squares = self._head.squared_norms() + self._table.squared_norms() + 2 * cross
        spread = (row_squares(left) * row_squares(right)).sqrt().sum(1) + row_squares(e).sqrt().sum(1)
        kappa = cancellation(left.dtype, max(left.shape[2], right.shape[2]))
        return squares.clamp(min=0.0) + kappa * spread.square()

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return H_i + E_i, (m, V, d)."""
        return self._head.gradients(start, stop) + self._table.gradients(start, stop)

    def of(self, records: Tensor) -> _Tied:
        """Return the use of those records alone."""
        return _Tied(self._head.of(records), self._table.of(records))

    @property
    def skips_zeros(self) -> bool:
        """Whether head and table both skip zero factors."""
        return self._head.skips_zeros and self._table.skips_zeros

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add both weighted sums."""
        self._head.add_weighted(accumulator, factors)
        self._table.add_weighted(accumulator, factors)


def _cross(left: Tensor, right: Tensor, numbers: Tensor, e: Tensor) -> Tensor:
    """Return sum_{t,u} l_u[i_t] (h_u . e_t), (m,), from (m, U, V), (m, U, d), (m, T) and (m, T, d)."""
    at_numbers = left.gather(2, numbers[:, None, :].expand(-1, left.shape[1], -1))  # (m, U, T)
    return (at_numbers * (right @ e.transpose(1, 2))).sum((1, 2))
