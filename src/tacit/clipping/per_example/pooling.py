"""Max pooling of images on a CPU in channels-last layout, as torch is slow in the default layout.

The default kernel reads a window value by value; the channels-last kernel vectorises over channels. Parts of
the batch are copied to that layout, pooled and copied back while they are in the cache. The maxima are the
same, and if a window has several, the same one receives the gradient.

Measured, forward and backward, in ms on two cores of an AMD EPYC 9004, float32:

=====================  ======  =====  ====
input                  window  torch  here
=====================  ======  =====  ====
(512, 16, 13, 13)      2 s1     14.6   6.1
(512, 32, 5, 5)        2 s1      3.1   1.0
(256, 32, 32, 32)      2 s2     39.0  32.6
(256, 64, 16, 16)      2 s2     15.4   8.2
(512, 8, 28, 28)       2 s2     12.4   7.3
(512, 4, 28, 28)       2 s2      5.9   6.1
=====================  ======  =====  ====

Letters: B rows; C channels; h x w positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Window: TypeAlias = int | tuple[int, ...]

CHANNELS = 8
"""The least number of channels for which the copies save time."""
NUMBERS = 2**14
"""The least number of values for which the calls save time."""
CACHE_BYTES = 2**20
"""The most bytes of the input that are pooled at once."""


def max_pool2d(
    input: Tensor,  # noqa: A002
    kernel_size: Window,
    stride: Window | None = None,
    padding: Window = 0,
    dilation: Window = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Run ``F.max_pool2d`` with bitwise equal results.

    >>> x = torch.randn(2, 8, 5, 5)
    >>> torch.equal(max_pool2d(x, 2), F.max_pool2d(x, 2))
    True
    """
    settings = (kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices or not _is_faster(input):
        return F.max_pool2d(input, *settings, return_indices)  # type: ignore[call-overload]
    return _MaxPool.apply(input, settings)  # type: ignore[no-untyped-call]


def _is_faster(x: Tensor) -> bool:
    fits = x.is_cpu and x.dtype == torch.float32 and x.dim() == 4 and x.numel() >= NUMBERS
    return (
        fits
        and x.shape[1] >= CHANNELS
        and x.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
    )


class _MaxPool(torch.autograd.Function):
    """Pools in channels-last layout; the backward pass is torch's, which is fast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: tuple[Any, ...]) -> Tensor:
        output, places = _pooled(x, settings)
        ctx.settings = settings
        ctx.save_for_backward(x, places)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        kernel_size, stride, *rest = ctx.settings
        x, places = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # hides the call from the pass
            gradient: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
                g, x, *(_pair(value) for value in (kernel_size, kernel_size if stride is None else stride)),
                *(_pair(value) for value in rest[:2]), rest[2], places,
            )  # fmt: skip
        return gradient, None


def _pooled(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return the maxima, (B, C, h, w), and their indices in the plane."""
    size = max(1, CACHE_BYTES // (x[0].numel() * x.element_size()))
    first, where = _side_by_side(x[:size], settings)
    if len(first) == len(x):
        return first.contiguous(), where.contiguous()
    output = first.new_empty(len(x), *first.shape[1:])
    places = where.new_empty(output.shape)
    output[:size], places[:size] = first, where
    for start in range(size, len(x), size):
        rows = slice(start, start + size)
        output[rows], places[rows] = _side_by_side(x[rows], settings)
    return output, places


def _side_by_side(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    last = x.contiguous(memory_format=torch.channels_last)
    result: tuple[Tensor, Tensor] = F.max_pool2d(last, *settings, return_indices=True)
    return result


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


FASTER: Mapping[Any, Callable[..., Any]] = dict.fromkeys((F.max_pool2d, torch.max_pool2d), max_pool2d)
"""By operation, a faster function with the same results; none of them has parameters."""
