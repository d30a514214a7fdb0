"""Convolutions in 1, 2 and 3 dimensions: any stride, dilation and groups; padding modes are F.pad.

Letters: n records; B rows; C input channels; P outputs; c = C / groups; k kernel positions (all
dimensions); D = c k; T output positions; s... the spatial dimensions.

The gradient of a row is G = sum_t g_t patch_t^T.  Forms, chosen by shape alone (measured on a CPU):

* kept, if D <= 2.5 T (then G is at most 2.5 times g) or all rows' G take less than 32 MiB: by *fold* if
  T >= 200 or groups > 1, else from *patches*.
* otherwise norms first, and then one weighted weight gradient of the whole batch: norms by *ghost* if
  T <= 128 and groups = 1 and K = 1, else by fold in chunks.

*Fold* makes the rows groups of one convolution and takes its weight gradient, (B P, c, k).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.linear import ghost_squared_norms
from tacit.clipping.layers.tape import Handler, Tape
from tacit.clipping.layers.use import Kept, Use, chunks, over_views, widened

__all__ = ["conv1d", "conv2d", "conv3d"]

SLACK = 2.5
SMALL_BYTES = 32 * 2**20
FOLD_FROM = 200
GHOST_UP_TO = 128
PATCH_BYTES = 2**20  # stays in the cache


@final
@dataclass(frozen=True)
class _Geometry:
    """The settings of a convolution with zero padding, one number per spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@final
class _Convolution(Use):
    """Per-record weight gradients from inputs x (B, C, s...) and output gradients g (B, P, s...)."""

    def __init__(self, x: Tensor, g: Tensor, geometry: _Geometry, views: int) -> None:
        self._x, self._g, self._geometry, self._views = widened(x), widened(g), geometry, views
        self._shape = (g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
        T, D, size = prod(g.shape[2:]), prod(self._shape[1:]), prod(self._shape) * g.element_size()
        self._ghost = T <= GHOST_UP_TO and geometry.groups == 1 and views == 1
        self._by_fold = T >= FOLD_FROM or geometry.groups > 1
        self._bytes = size * views
        keep = D <= SLACK * T or size * len(x) < SMALL_BYTES
        self._kept = Kept(self.gradients(0, len(x) // views)) if keep else None

    def squared_norms(self) -> Tensor:
        """Return |G_i|^2, (n,)."""
        if self._kept is not None:
            return self._kept.squared_norms()
        n = len(self._x) // self._views
        if self._ghost:
            left, right = self._g.flatten(2).transpose(1, 2), _patches(self._x, self._g, self._geometry)
            return torch.cat([ghost_squared_norms(left[rows], some) for rows, some in right])
        return torch.cat([Kept(self.gradients(a, b)).squared_norms() for a, b in chunks(n, self._bytes)])

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return G_i summed over the views of each record, (m, P, c, k...)."""
        rows = slice(start * self._views, stop * self._views)
        form = _fold if self._by_fold else _from_patches
        per_row = form(self._x[rows], self._g[rows], self._shape, self._geometry)
        return over_views(per_row, self._views)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i G_i: a sum of kept gradients, or one weight gradient of (x, g * factors)."""
        if self._kept is not None:
            self._kept.add_weighted(accumulator, factors)
            return
        weights = factors.repeat_interleave(self._views).view(-1, *[1] * (self._g.dim() - 1))
        accumulator.add_(_weight_gradient(self._x, self._g * weights, self._shape, self._geometry))


def _weight_gradient(x: Tensor, g: Tensor, shape: tuple[int, ...], geometry: _Geometry) -> Tensor:
    """Return the weight gradient, summed over the rows, from (B, C, s...) and (B, P, s...)."""
    unread = x.new_empty(1).expand(shape)  # only the shape of the weight is used
    found = torch.ops.aten.convolution_backward(
        g, x, unread, None, geometry.stride, geometry.padding, geometry.dilation,
        False, [0] * len(geometry.kernel), geometry.groups, [False, True, False],
    )  # fmt: skip
    gradient: Tensor = found[1]
    return gradient


def _fold(x: Tensor, g: Tensor, shape: tuple[int, ...], geometry: _Geometry) -> Tensor:
    """Return per-row weight gradients (B, P, c, k...): the rows are groups of one convolution."""
    B = len(x)
    folded = _Geometry(
        geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, B * geometry.groups
    )
    one_x, one_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    return _weight_gradient(one_x, one_g, (B * shape[0], *shape[1:]), folded).view(B, *shape)


def _from_patches(x: Tensor, g: Tensor, shape: tuple[int, ...], geometry: _Geometry) -> Tensor:
    """Return per-row weight gradients (B, P, c, k...) from products of (P, T) and (T, k c); groups = 1."""
    P, c, *kernel = shape
    left, found = g.flatten(2), x.new_empty(len(x), P, prod(kernel) * c)
    for rows, patches in _patches(x, g, geometry):
        torch.bmm(left[rows], patches, out=found[rows])
    return found.view(len(x), P, *kernel, c).movedim(-1, 2)


def _patches(x: Tensor, g: Tensor, geometry: _Geometry) -> Iterator[tuple[slice, Tensor]]:
    """Yield some rows, and what each output position sees of them: (rows, T, k C), channels last."""
    pads = [p for size in reversed(geometry.padding) for p in (size, size)]
    last = F.pad(x, pads).movedim(1, -1).contiguous()  # (B, s..., C)
    places, C, (row, *steps, one) = g.shape[2:], x.shape[1], last.stride()
    shape = (*places, *geometry.kernel, C)
    strides = (
        *(step * stride for step, stride in zip(steps, geometry.stride, strict=True)),
        *(step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)),
        one,
    )
    size = max(1, PATCH_BYTES // (prod(shape) * x.element_size()))
    for start in range(0, len(x), size):
        part = last[start : start + size]
        seen = part.as_strided((len(part), *shape), (row, *strides))
        yield slice(start, start + size), seen.reshape(len(part), prod(places), -1)


def _conv(dimensions: int, operation: Any) -> Handler:
    """Return the recording form of ``F.conv1d``, ``F.conv2d`` or ``F.conv3d``."""

    def conv(
        tape: Tape,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Tensor:
        tape = tape.of_rows(f"conv{dimensions}d", input, dimensions + 2)
        kernel, apart = tuple(weight.shape[2:]), _tuple(dilation, dimensions)
        x, zeros = _padded(input, padding, kernel, apart)
        geometry = _Geometry(kernel, _tuple(stride, dimensions), zeros, apart, groups)
        y = operation(x, tape.plain(weight), tape.plain(bias), geometry.stride, zeros, apart, groups)

        def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
            if tape.owns(weight):
                yield weight, _Convolution(x, g, geometry, tape.views)
            if bias is not None and tape.owns(bias):
                yield bias, Kept(over_views(widened(g).flatten(2).sum(2), tape.views))

        return tape.tap(f"conv{dimensions}d", y, uses, saved=(x,), sources=(weight, bias))

    return conv


conv1d = _conv(1, F.conv1d)
conv2d = _conv(2, F.conv2d)
conv3d = _conv(3, F.conv3d)


def _tuple(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _padded(
    x: Tensor, padding: str | int | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the input and the zeros that are still to be added at both ends of each dimension."""
    if padding == "valid":
        return x, (0,) * len(kernel)
    if padding != "same":
        return x, _tuple(padding, len(kernel))  # type: ignore[arg-type]
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    pads = [p for total in reversed(totals) for p in (total // 2, total - total // 2)]
    return F.pad(x, pads), (0,) * len(kernel)
