"""Per-record weight gradients of convolutions on CUDA devices, computed as those of a linear map on patches.

Letters: n records of K views; B = n K rows; C input channels; P outputs; k kernel positions (all dimensions);
D = C k; T output positions per row and m = K T per record; s... the spatial dimensions.

A device multiplies matrices much faster than it runs a convolution for each record. The gradient of a record
is G = sum_t g_t patch_t^T, (P, D), where patch_t is the input of output position t. ``linear.Outer`` computes
it, and its norms on tensor cores, with a bound on their rounding.

G is kept if it takes at most ``MemoryBudget.convolution_slack`` times the memory of x and g, which are freed
in exchange. Patches are formed for as many records at once as fit in ``MemoryBudget.pass_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.memory import MemoryBudget
from tacit.clipping.per_example.convolution_forms import Geometry
from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.triton_outer import takes_16_bits
from tacit.clipping.per_example.use import Kept, Use, chunks, widened_type


@final
class Patched(Use):
    """Per-record weight gradients from inputs x (B, C, s...) and output gradients g (B, P, s...)."""

    def __init__(self, x: Tensor, g: Tensor, geometry: Geometry, views: int, budget: MemoryBudget) -> None:
        self._x, self._g, self._geometry, self._views = x.to(g.dtype), g, geometry, views
        self._budget = budget
        self._kept: Kept | None = None
        P, D, T = g.shape[1], x.shape[1] * prod(geometry.kernel), prod(g.shape[2:])
        self._shape = (P, x.shape[1], *geometry.kernel)
        self._chunks = chunks(len(x) // views, views * T * D * g.element_size(), budget.pass_bytes)
        replaced = views * (prod(x.shape[1:]) + P * T) * g.element_size()
        if P * D * widened_type(g.dtype).itemsize <= budget.convolution_slack * replaced:
            parts = [part.gradients(0, b - a) for a, b, part in self._outers(in_order=False)]
            self._kept = Kept(parts[0] if len(parts) == 1 else torch.cat(parts))
            self._x = self._g = g.new_empty(0)  # so that both can be freed

    def _outers(self, *, in_order: bool = True) -> Iterator[tuple[int, int, Outer]]:
        """Yield the records a to b - 1 as a linear map at (b - a, m) positions."""
        for a, b in self._chunks:
            yield a, b, self._outer(a, b, in_order=in_order)

    def _outer(self, start: int, stop: int, *, in_order: bool) -> Outer:
        """Return the linear map of some records; with ``in_order``, positions are contiguous in memory.

        The Triton kernels read that layout faster, and the products that form G the other one.
        """
        rows = slice(start * self._views, stop * self._views)
        patches = _patches(self._x[rows], self._g.shape[2:], self._geometry, in_order=in_order)
        g = _positions(self._g[rows].flatten(2).transpose(1, 2), self._views)
        return Outer(g.contiguous() if in_order else g, _positions(patches, self._views), 0.0)

    def squared_norms(self) -> Tensor:
        """Return |G_i|^2, (n,)."""
        if self._kept is not None:
            return self._kept.squared_norms()
        return torch.cat([part.squared_norms() for _, _, part in self._outers()])

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return G_i summed over the views of each record, (m, P, C, k...)."""
        if self._kept is not None:
            rows = self._kept.gradients(start, stop)
        else:
            rows = self._outer(start, stop, in_order=False).gradients(0, stop - start)
        return rows.reshape(-1, *self._shape)

    def of(self, records: Tensor) -> Use:
        """Return the use of those records alone."""
        if self._kept is not None:
            return Kept(self.gradients(0, len(records))[records])
        rows = records.repeat_interleave(self._views)
        return Patched(self._x[rows], self._g[rows], self._geometry, self._views, self._budget)

    @property
    def skips_zeros(self) -> bool:
        """Whether the kept gradients, or else the Triton kernel for 16-bit numbers, skip zero factors."""
        return self._kept.skips_zeros if self._kept is not None else takes_16_bits(self._x, self._g)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i G_i."""
        if self._kept is not None:
            self._kept.add_weighted(accumulator, factors)
            return
        in_order = accumulator.is_contiguous()  # false for a weight with its channels last
        total = accumulator if in_order else accumulator.new_zeros(self._shape)
        for a, b, part in self._outers():
            part.add_weighted(total.view(len(total), -1), factors[a:b])
        if not in_order:
            accumulator.add_(total)


def _positions(x: Tensor, views: int) -> Tensor:
    """Return (B, T, width) as (n, m, width): all positions of a record on one axis."""
    return x if views == 1 else x.reshape(len(x) // views, -1, x.shape[2])


def _patches(x: Tensor, places: torch.Size, geometry: Geometry, *, in_order: bool) -> Tensor:
    """Return the patch of each output position, (B, T, D), with D numbers in the order of the weight's."""
    pads = [p for size in reversed(geometry.padding) for p in (size, size)]
    x = (F.pad(x, pads) if any(pads) else x).contiguous()
    row, channel, *steps = x.stride()
    apart = [step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)]
    along = [step * stride for step, stride in zip(steps, geometry.stride, strict=True)]
    B, C = x.shape[:2]
    if in_order:
        windows = x.as_strided((B, *places, C, *geometry.kernel), (row, *along, channel, *apart))
        return windows.reshape(B, prod(places), -1)
    windows = x.as_strided((B, C, *geometry.kernel, *places), (row, channel, *apart, *along))
    return windows.reshape(B, -1, prod(places)).transpose(1, 2)
