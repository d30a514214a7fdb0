"""Linear maps at T positions by C++ kernels: per-record gradients, their weighted sum and their norms.

Letters: n records; T positions; d inputs; p outputs.
"""

# ``linear.py`` has the same in Python. On processors that are not Intel's, MKL uses half of each register,
# and for few positions needs several times as long. In ms by MKL and here, on one core of an AMD EPYC 9005:
#
# =====================  ==========  ==========  ==========
# (n, T, p, d)           gradients   sum         norms
# =====================  ==========  ==========  ==========
# (800, 15, 512, 128)    101, 10.6   17.4,  8.3  12.2, 2.3
# (32, 64, 512, 128)      3.4,  1.2   2.8,  1.3   1.8, 0.6
# (16, 128, 768, 256)     8.8,  3.7   7.7,  3.6   4.5, 1.8
# (4, 512, 768, 768)       23,   11    23,   12    19,  12
# =====================  ==========  ==========  ==========
#
# With the registers of AVX2 a sum takes as long as by MKL, and gradients of 64 positions a quarter less.

from __future__ import annotations

from ctypes import CDLL, Array, c_int64

import torch
from torch import Tensor

from tacit import native

LEAST_PRODUCTS = 2**12
"""The least number of multiplications for one gradient, below which the call takes longer than it saves."""
WIDEST, MOST_POSITIONS = 4096, 256
"""The widest right side, and the most positions of a norm, whose tensors stay in the cache."""


def takes(left: Tensor, right: Tensor) -> bool:
    """Return whether the kernels take these sides, (n, T, p) and (n, T, d), whatever n is."""
    T, p, d = *left.shape[1:], right.shape[2]
    single = left.dtype == right.dtype == torch.float32 and left.is_cpu and right.is_cpu
    fits = single and T > 1 and d <= WIDEST and T * p * d >= LEAST_PRODUCTS
    library = native.library() if fits else None
    return library is not None and library.tacit_convolution_level() > 0


def gradients(left: Tensor, right: Tensor) -> Tensor:
    """Return sum_t left_t right_t^T, (n, p, d), each the same whatever the other records are."""
    library, sides, left, right = _arguments(left, right)
    formed = left.new_empty(len(left), left.shape[2], right.shape[2])
    library.tacit_outer(
        sides, left.data_ptr(), right.data_ptr(), formed.data_ptr(),
        torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    return formed


def add_weighted(accumulator: Tensor, left: Tensor, right: Tensor, factors: Tensor) -> None:
    """Add the gradients times ``factors`` (n,) to a contiguous accumulator (p, d) in float32."""
    library, sides, left, right = _arguments(left, right)
    factors = factors.contiguous()
    library.tacit_outer_sum(
        sides, left.data_ptr(), right.data_ptr(), factors.data_ptr(), accumulator.data_ptr(),
        torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip


def squared_norms(left: Tensor, right: Tensor, kappa: float) -> Tensor:
    """Return the squared norms, (n,), with kappa S^2 added as in ``linear.ghost_squared_norms``."""
    library, sides, left, right = _arguments(left, right)
    squares = left.new_empty(len(left))
    library.tacit_outer_squares(
        sides, left.data_ptr(), right.data_ptr(), kappa, squares.data_ptr(),
        torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    return squares


def _arguments(left: Tensor, right: Tensor) -> tuple[CDLL, Array[c_int64], Tensor, Tensor]:
    library = native.library()
    assert library is not None
    sides = (c_int64 * 4)(*left.shape, right.shape[2])
    return library, sides, left.contiguous(), right.contiguous()
