"""Linear maps: y = x W^T + b at T positions of a record.

Letters: n records; T positions of a record, views included; d inputs; p outputs; g = d loss / d y.

The gradient of a record is G = sum_t g_t x_t^T, (p, d).  Three forms, chosen by shape alone:

* T = 1: |G|^2 = |g|^2 |x|^2 (Goodfellow, 1510.01799).
* kept, if p d <= 2 T (p + d): form G, which is no larger than twice what it is made of.
* ghost, otherwise: |G|^2 = sum_{t,u} (x_t . x_u)(g_t . g_u), from two T x T matrices (Li et al.,
  2110.05679).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.tape import Tape, Unseen
from tacit.clipping.layers.use import Kept, Use, row_squares, widened

__all__ = ["Outer", "addmm", "ghost_squared_norms", "linear", "matmul", "merged"]

SLACK = 2


@final
class Outer(Use):
    """G_i = sum_t left_it right_it^T from left (n, T, p) and right (n, T, d)."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = widened(left), widened(right)
        T, p, d = left.shape[1], left.shape[2], right.shape[2]
        keep = T > 1 and p * d <= SLACK * T * (p + d)
        self._kept = Kept(self.gradients(0, len(left))) if keep else None

    def squared_norms(self) -> Tensor:
        """Return |G_i|^2, (n,), in the form that the shapes choose."""
        if self._kept is not None:
            return self._kept.squared_norms()
        if self.left.shape[1] == 1:
            return (row_squares(self.left) * row_squares(self.right)).squeeze(1)
        return ghost_squared_norms(self.left, self.right)

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return G_i, (m, p, d)."""
        return self.left[start:stop].transpose(1, 2) @ self.right[start:stop]

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i G_i, (p, d): one product of (p, n T) and (n T, d), the narrower one scaled."""
        if self._kept is not None:
            self._kept.add_weighted(accumulator, factors)
            return
        left, right, weights = self.left, self.right, factors[:, None, None]
        if left.shape[2] < right.shape[2]:
            left = left * weights
        else:
            right = right * weights
        left, right = left.flatten(0, 1), right.flatten(0, 1)
        if accumulator.dtype == left.dtype == right.dtype:
            accumulator.addmm_(left.T, right)
        else:
            accumulator.add_(left.T @ right)


def ghost_squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return |sum_t left_t right_t^T|^2, (n,), from (n, T, p) and (n, T, d), rounded up.

    Positions may cancel, and what rounding leaves of the sum may then be far below the true norm: at
    S = sum_t |left_t| |right_t| = 1e5 C, float32 releases 3 C.  The error is below kappa S^2, kappa = 1e-6
    for float32 (measured, up to T = 512, d = 256, p = 768), which is added.
    """
    grams = (left @ left.transpose(1, 2)) * (right @ right.transpose(1, 2))
    spread = (row_squares(left) * row_squares(right)).sqrt().sum(1)
    kappa = 8 * torch.finfo(left.dtype).eps
    return grams.sum((1, 2)).clamp(min=0.0) + kappa * spread.square()


def merged(uses: Sequence[Use]) -> Use | None:
    """Return several uses of one weight as one use at all their positions, if all are outer products."""
    outer = [use for use in uses if isinstance(use, Outer)]
    if not uses or len(outer) < len(uses):
        return None
    return (
        uses[0]
        if len(uses) == 1
        else Outer(
            torch.cat([use.left for use in outer], dim=1), torch.cat([use.right for use in outer], dim=1)
        )
    )


def matmul(tape: Tape, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """``input @ other`` with a private matrix (d, p) on the right."""
    if tape.owns(input) or other.dim() != 2:
        raise Unseen("operation 'matmul' with a parameter that is not a matrix on the right")
    tape = tape.of_rows("matmul", input, 2)

    def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
        yield other, Outer(tape.positions(x), tape.positions(g))

    return tape.tap("matmul", input @ tape.plain(other), uses, saved=(input,), sources=(other,))


def addmm(
    tape: Tape,
    input: Tensor,  # noqa: A002
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """``torch.addmm(bias, x, W)`` with x (B T, d), a private W (d, p) and a bias (p,)."""
    if tape.owns(mat1) or input.dim() != 1 or beta != 1 or alpha != 1:
        raise Unseen("operation 'addmm' other than bias (p,) + x (B T, d) times a parameter (d, p)")
    tape = tape.of_rows("addmm", mat1, 2)
    y = torch.addmm(tape.plain(input), mat1, tape.plain(mat2))

    def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
        left = tape.positions(g)
        if tape.owns(mat2):
            yield mat2, Outer(tape.positions(x), left)
        if tape.owns(input):
            yield input, Kept(widened(left).sum(1))

    return tape.tap("addmm", y, uses, saved=(mat1,), sources=(mat2, input))


def linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """``F.linear`` with recorded weight (p, d) and bias (p,), any dimensions between the first and last."""
    tape = tape.of_rows("linear", input, 2)
    y = F.linear(input, tape.plain(weight), tape.plain(bias))

    def uses(g: Tensor, input: Tensor) -> Iterator[tuple[Tensor, Use]]:  # noqa: A002
        left = tape.positions(g)
        if tape.owns(weight):
            yield weight, Outer(left, tape.positions(input))
        if bias is not None and tape.owns(bias):
            yield bias, Kept(widened(left).sum(1))

    return tape.tap("linear", y, uses, saved=(input,), sources=(weight, bias))
