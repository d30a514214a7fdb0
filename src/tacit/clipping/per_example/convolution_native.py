"""Per-record weight gradients of convolutions by the C++ kernel, if it is built.

Letters: n records of K views; B = n K rows; C input channels; P outputs; D = C times kernel positions; s...
spatial dimensions.

Gradients are channels last, (P, k..., C), as in ``convolution_forms.from_patches``, the kernel's twin in
Python. The kernel forms bitwise the same gradient for a norm, for a weighted sum and as a result.
"""

from __future__ import annotations

from ctypes import Array, c_int64
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.per_example.convolution_forms import Geometry
from tacit.clipping.per_example.use import cancellation


def available(x: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Return whether the kernel is built and fits: float32 on a CPU, one group, at most 3-D."""
    fits = x.dtype == g.dtype == torch.float32 and x.device.type == g.device.type == "cpu"
    return fits and geometry.groups == 1 and x.dim() <= 5 and native.library() is not None


def formed(x: Tensor, g: Tensor, geometry: Geometry, views: int) -> tuple[Tensor, Tensor]:
    """Return the gradients (n, P, k..., C) and their squared norms (n,)."""
    n = len(x) // views
    gradients = x.new_empty(n, g.shape[1], *geometry.kernel, x.shape[1])
    squares = x.new_empty(n, dtype=torch.float64)
    _call(x, g, geometry, views, squares=squares, gradients=gradients)
    return gradients, _single(squares, gradients[0].numel())


def squared_norms(x: Tensor, g: Tensor, geometry: Geometry, views: int) -> Tensor:
    """Return the squared norms, (n,); gradients are formed one at a time."""
    squares = x.new_empty(len(x) // views, dtype=torch.float64)
    _call(x, g, geometry, views, squares=squares)
    return _single(squares, g.shape[1] * x.shape[1] * prod(geometry.kernel))


def weighted_sum(x: Tensor, g: Tensor, geometry: Geometry, views: int, factors: Tensor) -> Tensor:
    """Return sum_i factors_i G_i, (P, k..., C); gradients are formed one at a time."""
    total = x.new_empty(g.shape[1], *geometry.kernel, x.shape[1])
    _call(x, g, geometry, views, factors=factors.to(x.dtype).contiguous(), total=total)
    return total


def _single(squares: Tensor, numbers: int) -> Tensor:
    """Return sums of squares in float32, with an allowance for ``numbers`` squares that underflow."""
    return (squares + numbers * torch.finfo(torch.float32).tiny).to(torch.float32)


def ghost_squared_norms(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return |G|^2 of each row, (B,), rounded up as in ``convolution_forms.ghost_squared_norms``."""
    library = native.library()
    assert library is not None
    longest = max(x.shape[1] * prod(geometry.kernel), g.shape[1])
    x, g, squares = x.contiguous(), g.contiguous(), x.new_empty(len(x), dtype=torch.float64)
    library.tacit_convolution_ghost(
        _shape(x, g, geometry, 1), x.data_ptr(), g.data_ptr(), cancellation(x.dtype, longest),
        squares.data_ptr(), torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    return squares.to(torch.float32)


def input_gradient(x: Tensor, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x (B, C, s...); only the shape of x is read."""
    library = native.library()
    assert library is not None
    g, lines, gradient = g.contiguous(), weight.movedim(1, -1).contiguous(), g.new_empty(x.shape)
    library.tacit_convolution_input(
        _shape(x, g, geometry, 1), lines.data_ptr(), g.data_ptr(), gradient.data_ptr(),
        torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    return gradient


def _call(
    x: Tensor,
    g: Tensor,
    geometry: Geometry,
    views: int,
    *,
    factors: Tensor | None = None,
    squares: Tensor | None = None,
    gradients: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    """Call the kernel, which fills those outputs that are not None."""
    library = native.library()
    assert library is not None
    x, g = x.contiguous(), g.contiguous()
    pointers = [None if t is None else t.data_ptr() for t in (x, g, factors, squares, gradients, total)]
    shape = _shape(x, g, geometry, views)
    library.tacit_convolution(shape, *pointers, torch.get_num_threads(), library.tacit_convolution_level())


def _shape(x: Tensor, g: Tensor, geometry: Geometry, views: int) -> Array[c_int64]:
    """Return the ``Shape`` struct for the kernels, which do not change it."""
    return _numbers(tuple(x.shape), tuple(g.shape), geometry, views)


@lru_cache(maxsize=256)
def _numbers(x: tuple[int, ...], g: tuple[int, ...], geometry: Geometry, views: int) -> Array[c_int64]:
    numbers = [x[0] // views, views, x[1], g[1]]
    for values, missing in (
        (x[2:], 1), (geometry.kernel, 1), (geometry.stride, 1),
        (geometry.padding, 0), (geometry.dilation, 1), (g[2:], 1),
    ):  # fmt: skip
        numbers += [*[missing] * (3 - len(values)), *values]
    return (c_int64 * len(numbers))(*numbers)
