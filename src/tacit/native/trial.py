"""A Triton kernel that runs once, to test whether a device can run the others; it needs the same features."""

from __future__ import annotations

from typing import Final

from tacit.native.jit import jit, tl

TILE: Final = 16


@jit
def trial(result: tl.tensor, TILE: tl.constexpr) -> None:
    """Store the sum of a product of two matrices of ones, TILE^3, by a tensor core and in float64."""
    ones = tl.full((TILE, TILE), 1.0, tl.float16)
    product = tl.dot(ones, ones, max_num_imprecise_acc=1)
    tl.store(result, tl.sum(tl.sum(product.to(tl.float64), 1), 0))
