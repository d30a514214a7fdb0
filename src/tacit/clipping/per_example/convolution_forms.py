"""Per-row weight gradients of a convolution and their norms, in the forms that convolution.py chooses from.

Letters: B rows; C input channels; P outputs; c = C / groups; k kernel positions (all dimensions); D = c k; T
output positions; S input positions; s... the spatial dimensions.
"""

# The gradient of a row is G = sum_t g_t patch_t^T, (P, D), where patch_t is the input of output position t.

from __future__ import annotations

from collections.abc import Iterator
from ctypes import Array, c_int64
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import native
from tacit.clipping.per_example.use import cancellation

CACHE_BYTES = 2**21
"""The most bytes of patches or of products of positions at once: about the size of a second-level cache."""


@final
@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution with zero padding, one number per spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def weight_gradient(x: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Return G summed over the rows, ``shape`` = (P, c, k...), from (B, C, s...) and (B, P, s...)."""
    unread = x.new_empty(1).expand(shape)  # only the shape of the weight is used
    gradients = torch.ops.aten.convolution_backward(
        g, x, unread, None, geometry.stride, geometry.padding, geometry.dilation,
        False, [0] * len(geometry.kernel), geometry.groups, [False, True, False],
    )  # fmt: skip
    gradient: Tensor = gradients[1]
    return gradient


def fold(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return G of each row, (B, P, c, k...), from one convolution whose groups are the rows."""
    B, P, c = len(x), g.shape[1], x.shape[1] // geometry.groups
    folded = Geometry(
        geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, B * geometry.groups
    )
    one_x, one_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    shape = (P, c, *geometry.kernel)
    return weight_gradient(one_x, one_g, (B * P, *shape[1:]), folded).view(B, *shape)


def is_depthwise(x: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Return whether each channel is alone in its group, and the native kernel takes both tensors."""
    alone = geometry.groups == x.shape[1] == g.shape[1] > 1
    fits = x.is_cpu and x.dtype == g.dtype == torch.float32
    return alone and fits and native.library() is not None


def depthwise(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return G of each row, (B, C, 1, k...), by the native kernel if :func:`is_depthwise` is true."""
    library = native.library()
    assert library is not None
    last_x = x.movedim(1, -1).is_contiguous()
    last_g = g.movedim(1, -1).is_contiguous()
    x = x if last_x else x.contiguous()
    g = g if last_g else g.contiguous()
    gradients = x.new_empty(len(x), x.shape[1], 1, *geometry.kernel)
    library.tacit_depthwise(
        _shape(x, g, geometry, 1), x.data_ptr(), last_x, g.data_ptr(), last_g, gradients.data_ptr(),
        torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    return gradients


def from_patches(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return each row's G, channels last, (B, P, k..., C), by products of (P, T) and (T, k C); groups = 1."""
    B, P, C = len(x), g.shape[1], x.shape[1]
    left, gradients = g.flatten(2), x.new_empty(B, P, prod(geometry.kernel) * C)
    for rows, patches in _patches(x, g, geometry):
        torch.bmm(left[rows], patches, out=gradients[rows])
    return gradients.view(B, P, *geometry.kernel, C)


def _patches(x: Tensor, g: Tensor, geometry: Geometry) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows, and their patches at each output position, (rows, T, k C), channels last."""
    pads = [p for size in reversed(geometry.padding) for p in (size, size)]
    last = (F.pad(x, pads) if any(pads) else x).movedim(1, -1).contiguous()  # (B, s..., C)
    places, C, (row, *steps, one) = g.shape[2:], x.shape[1], last.stride()
    shape = (*places, *geometry.kernel, C)
    strides = (
        *(step * stride for step, stride in zip(steps, geometry.stride, strict=True)),
        *(step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)),
        one,
    )
    size = max(1, CACHE_BYTES // (prod(shape) * x.element_size()))
    for start in range(0, len(x), size):
        part = last[start : start + size]
        windows = part.as_strided((len(part), *shape), (row, *strides))
        yield slice(start, start + size), windows.reshape(len(part), prod(places), -1)


def is_thinned(geometry: Geometry) -> bool:
    """Return whether each output position reads one input position: kernel size 1, no padding, one group."""
    return geometry.groups == max(geometry.kernel) == 1 and max(geometry.padding) == 0


def thinned_input_gradient(x: Tensor, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x (B, C, s...) from g (B, P, s...) if :func:`is_thinned` is true."""
    P, C = weight.shape[:2]
    values = torch.matmul(weight.reshape(P, C).T, g.flatten(2)).view(len(g), C, *g.shape[2:])
    gradient = g.new_zeros(x.shape)
    steps = [slice(None, None, stride) for stride in geometry.stride]
    gradient[:, :, *steps] = values
    return gradient


def ghost_squared_norms(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return |G|^2 of each row, (B,), rounded up and without forming G; groups = 1.

    |G|^2 = sum_{t,u} (patch_t . patch_u) (g_t . g_u) (Li et al., 2110.05679, section 4).  Patches overlap,
    so the T x T matrix of their products is a sum of k pieces of the S x S matrix of products of inputs:
    patch_t . patch_u = sum_j x_{t+j} . x_{u+j}.  That takes S^2 C products instead of T^2 D.

    If positions cancel, rounding errors up to kappa R^2 remain, with R = sum_t |patch_t| |g_t| and kappa from
    ``use.cancellation``. So kappa R^2 is added. Underflow in products of x loses up to
    D tiny (sum_t |g_t|)^2, and in products of g up to P tiny (sum_t |patch_t|)^2. These are added too.
    """
    D, P, tiny = x.shape[1] * prod(geometry.kernel), g.shape[1], torch.finfo(g.dtype).tiny
    kappa = cancellation(g.dtype, max(D, P))
    padded = prod(size + 2 * pad for size, pad in zip(x.shape[2:], geometry.padding, strict=True))
    size = max(1, CACHE_BYTES // (padded**2 * x.element_size()))
    norms = []
    for start in range(0, len(x), size):
        inputs, out = x[start : start + size], g[start : start + size].flatten(2)
        patches, outputs = _patch_products(inputs, g.shape[2:], geometry), out.transpose(1, 2) @ out
        squares = (m.diagonal(dim1=1, dim2=2) for m in (outputs, patches))
        of_g, of_patch = (of.clamp(min=0.0).sqrt() for of in squares)  # |g_t|, |patch_t|
        total = outputs.mul_(patches).sum((1, 2))  # pairwise; a product adds a million numbers one by one
        allowed = kappa * (of_g * of_patch).sum(1).square()
        allowed += (D * tiny) * of_g.sum(1).square() + (P * tiny) * of_patch.sum(1).square()
        norms.append(total.clamp_(min=0.0) + allowed)
    return torch.cat(norms)


def _patch_products(x: Tensor, places: torch.Size, geometry: Geometry) -> Tensor:
    """Return patch_t . patch_u, (B, T, T), from x (B, C, s...), with one sum per spatial dimension."""
    n, flat = len(places), x.flatten(2)
    pads = [p for size in reversed(geometry.padding) for p in (size, size)]
    products = F.pad((flat.transpose(1, 2) @ flat).view(len(x), *x.shape[2:], *x.shape[2:]), pads * 2)
    for i in range(n):
        reach = (places[i] - 1) * geometry.stride[i] + 1
        total = None
        for j in range(geometry.kernel[i]):
            at = slice(j * geometry.dilation[i], j * geometry.dilation[i] + reach, geometry.stride[i])
            where = [slice(None)] * products.dim()
            where[1 + i] = where[1 + n + i] = at
            part = products[tuple(where)]
            total = part.contiguous() if total is None else total.add_(part)
        assert total is not None
        products = total
    return products.reshape(len(x), prod(places), prod(places))


# Per-record weight gradients of convolutions by the C++ kernel, if it is built.
#
# Letters: n records of K views; B = n K rows; C input channels; P outputs; D = C times kernel positions; s...
# spatial dimensions.
#
# Gradients are channels last, (P, k..., C), as in ``convolution_forms.from_patches``, the kernel's twin in
# Python. The kernel forms bitwise the same gradient for a norm, for a weighted sum and as a result.


def native_available(x: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Return whether the kernel is built and fits: float32 on a CPU, one group, at most 3-D."""
    fits = x.dtype == g.dtype == torch.float32 and x.device.type == g.device.type == "cpu"
    return fits and geometry.groups == 1 and x.dim() <= 5 and native.library() is not None


def native_formed(x: Tensor, g: Tensor, geometry: Geometry, views: int) -> tuple[Tensor, Tensor]:
    """Return the gradients (n, P, k..., C) and their squared norms (n,)."""
    n = len(x) // views
    gradients = x.new_empty(n, g.shape[1], *geometry.kernel, x.shape[1])
    squares = x.new_empty(n, dtype=torch.float64)
    _call(x, g, geometry, views, squares=squares, gradients=gradients)
    return gradients, _single(squares, gradients[0].numel())


def native_squared_norms(x: Tensor, g: Tensor, geometry: Geometry, views: int) -> Tensor:
    """Return the squared norms, (n,); gradients are formed one at a time."""
    squares = x.new_empty(len(x) // views, dtype=torch.float64)
    _call(x, g, geometry, views, squares=squares)
    return _single(squares, g.shape[1] * x.shape[1] * prod(geometry.kernel))


def native_weighted_sum(x: Tensor, g: Tensor, geometry: Geometry, views: int, factors: Tensor) -> Tensor:
    """Return sum_i factors_i G_i, (P, k..., C); gradients are formed one at a time."""
    total = x.new_empty(g.shape[1], *geometry.kernel, x.shape[1])
    _call(x, g, geometry, views, factors=factors.to(x.dtype).contiguous(), total=total)
    return total


def _single(squares: Tensor, numbers: int) -> Tensor:
    """Return sums of squares in float32, with an allowance for ``numbers`` squares that underflow."""
    return (squares + numbers * torch.finfo(torch.float32).tiny).to(torch.float32)


def native_ghost_squared_norms(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
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


def native_input_gradient(x: Tensor, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
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
