"""A Triton kernel to test whether a device has the features that the other kernels need."""

from __future__ import annotations

from typing import Final

from tacit.native.jit import jit, tl

TILE: Final = 16


@jit
def trial(result: tl.tensor, TILE: tl.constexpr) -> None:
    """Store TILE^3, the sum of a product of two matrices of ones: a tensor core multiplies, float64 adds."""
    ones = tl.full((TILE, TILE), 1.0, tl.float16)
    product = tl.dot(ones, ones, max_num_imprecise_acc=1)
    tl.store(result, tl.sum(tl.sum(product.to(tl.float64), 1), 0))
