"""Convolutions in 1, 2 and 3 dimensions, and transposed ones: any stride, dilation and groups.

Letters: n records; B = n K rows; C input channels; P outputs; c = C / groups; k kernel positions (all
dimensions); D = c k; T output positions; S input positions; s... the spatial dimensions.
"""

# The gradient of a row is G = sum_t g_t patch_t^T, (P, D).  For padding modes other than zeros, torch calls
# ``F.pad`` before the convolution. A transposed convolution is the adjoint of a convolution in its input, so
# its weight gradient is that of a convolution with x and g exchanged.
#
# **Norms.** The shapes and :class:`~tacit.clipping.memory.MemoryBudget` decide, in this order:
#
# * G is *kept* if P D <= C S + P T, as it then takes no more memory than x and g, which are freed in
#   exchange. If only P D <= slack (C S + P T), it is kept if all G fit into ``small_bytes``, and else formed
#   twice.
# * *Ghost* norms are used if they take less work than the P D T products of forming G, and groups = K = 1.
# * Otherwise G is kept if all G fit into the cache, or without native kernels into ``small_bytes``. Else it
#   is formed *twice*, for the norms and for the sum, a record or a chunk at a time. Both results are bitwise
#   equal, so positions that cancel do no harm, as with kept gradients.
#
# Ghost norms are larger than exact ones, by a bound on rounding. Whether they are used never depends on the
# number of records: else one more record would change how all others are clipped.
#
# After ghost norms the sum is one weight gradient of the whole batch, with x or g scaled by the factors.
#
# **Forming** G, in the order of preference:
#
# * *native*: a C++ kernel that never stores patches, for float32 on a CPU and groups = 1.
# * *depthwise*: a C++ kernel with a channel in each lane, for float32 on a CPU and one channel in each group.
# * *patches*: products of matrices, if groups = 1 and (C <= 4 or T < 100).
# * *fold*: one convolution whose groups are the rows, and whose weight gradient is (B P, c, k).
#
# **Input gradients** are torch's, except with a stride, for which oneDNN is slow. A native kernel computes
# those or, for kernels of size 1, a matrix product whose columns are spread by the stride.
#
# Measured, in ms on two cores of an AMD EPYC 9004 (plain training of the whole batch, then each form):
#
# ====================  ====  =====  ======  =======  ====  =====  ============
# layer                    B  plain  native  patches  fold  ghost  native ghost
# ====================  ====  =====  ======  =======  ====  =====  ============
# 1-16 k8 s2, T 196      512    1.7     1.5        7    14      -             -
# 16-32 k4 s2, T 25      512    2.4     1.8        5    17     25             3
# 3-32 k3, T 1024        256     18       5       14    45      -             -
# 32-32 k3, T 1024       256     56      26      141    43      -             -
# 32-64 k3, T 256        256     14      13       31    22    120            15
# 64-64 k3, T 256        256     26      25      113    37    130            18
# 64-128 k3, T 64        256     12      13       42    24     12             3
# 128-128 k3, T 64       256     23      25       96   137     13             4
# ====================  ====  =====  ======  =======  ====  =====  ============
#
# Input gradients of 512 and 64 rows (oneDNN, native): 16-32 k4 s2 3.3, 1.7; 32-64 k3 s2 5.7, 4.3; 32-64 k1 s2
# 3.5, 1.5; 64-128 k1 s2 1.5, 0.6; of 3x3 kernels without a stride oneDNN is faster.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.memory import MemoryBudget
from tacit.clipping.per_example import convolution_forms
from tacit.clipping.per_example.convolution_forms import (
    CACHE_BYTES,
    Geometry,
    depthwise,
    fold,
    from_patches,
    ghost_squared_norms,
    is_thinned,
    thinned_input_gradient,
    weight_gradient,
)
from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.triton_outer import takes_16_bits
from tacit.clipping.per_example.use import (
    Handler,
    Kept,
    Recorder,
    SourceUse,
    Use,
    chunks,
    narrowed,
    over_views,
    widened,
    widened_type,
)

# Per-record weight gradients of convolutions on CUDA devices, computed as those of a linear map on patches.
#
# Letters: n records of K views; B = n K rows; C input channels; P outputs; k kernel positions (all
# dimensions); D = C k; T output positions per row and m = K T per record; s... the spatial dimensions.
#
# A device multiplies matrices much faster than it runs a convolution for each record. The gradient of a
# record is G = sum_t g_t patch_t^T, (P, D), where patch_t is the input of output position t.
# ``linear.Outer`` computes it, and its norms on tensor cores, with a bound on their rounding.
#
# G is kept if it takes at most ``MemoryBudget.convolution_slack`` times the memory of x and g, which are
# freed in exchange. Patches are formed for as many records at once as fit in ``MemoryBudget.pass_bytes``.


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
        # the Triton kernels do
        self.skips_zeros = self._kept.skips_zeros if self._kept else takes_16_bits(self._x, self._g)

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
        if self._kept is not None:
            return self._kept.squared_norms()
        return torch.cat([part.squared_norms() for _, _, part in self._outers()])

    def gradients(self, start: int, stop: int) -> Tensor:
        if self._kept is not None:
            rows = self._kept.gradients(start, stop)
        else:
            rows = self._outer(start, stop, in_order=False).gradients(0, stop - start)
        return rows.reshape(-1, *self._shape)

    def of(self, records: Tensor) -> Use:
        if self._kept is not None:
            return Kept(self.gradients(0, len(records))[records])
        rows = records.repeat_interleave(self._views)
        return Patched(self._x[rows], self._g[rows], self._geometry, self._views, self._budget)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
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


FEW_CHANNELS = 4
FOLD_FROM = 100
ELEMENT = 64
"""The number of multiplications in a matrix product that take the time of one addition in memory."""
NATIVE_ELEMENT = 4
"""The same number in the native kernel, which stays in the cache, for both orders of a pair of positions."""


@final
class _Convolution(Use):
    """Per-record weight gradients from inputs x (B, C, s...) and output gradients g (B, P, s...)."""

    def __init__(self, x: Tensor, g: Tensor, geometry: Geometry, views: int, budget: MemoryBudget) -> None:
        self._x, self._g, self._geometry, self._views = widened(x), widened(g), geometry, views
        n, size = len(x) // views, g.shape[1] * x.shape[1] // geometry.groups * prod(geometry.kernel)
        self._budget = budget
        self._chunks = chunks(n, size * self._g.element_size() * views, budget.chunk_bytes)
        self._native = convolution_forms.native_available(self._x, self._g, geometry)
        by_patches = x.shape[1] <= FEW_CHANNELS or prod(g.shape[2:]) < FOLD_FROM
        self._channels_last = self._native or (geometry.groups == 1 and by_patches)
        keep, ghost = _choice(self._x, self._g, geometry, views, budget, fast_twice=self._native)
        self._ghost = ghost
        self.sums_what_it_forms = not ghost  # the single sum after ghost norms rounds differently
        self._kept: tuple[Kept, Tensor] | None = None  # with the squared norms
        if keep:
            self._kept = self._formed(0, n)
            self._x = self._g = self._g.new_empty(0)  # so that both can be freed

    def squared_norms(self) -> Tensor:
        if self._kept is not None:
            return self._kept[1]
        if self._ghost:
            native = self._native and self._x.dim() <= 4
            norms = convolution_forms.native_ghost_squared_norms if native else ghost_squared_norms
            return norms(self._x, self._g, self._geometry)
        if self._native:
            return convolution_forms.native_squared_norms(self._x, self._g, self._geometry, self._views)
        return torch.cat([self._formed(a, b)[1] for a, b in self._chunks])

    def gradients(self, start: int, stop: int) -> Tensor:
        if self._kept is not None:
            return self._ordered(self._kept[0].gradients(start, stop), 2)
        return self._ordered(self._formed(start, stop)[0].gradients(0, stop - start), 2)

    def of(self, records: Tensor) -> Use:
        if self._kept is not None:
            return Kept(self.gradients(0, len(records))[records])
        rows = records.repeat_interleave(self._views)
        return _Convolution(self._x[rows], self._g[rows], self._geometry, self._views, self._budget)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        if self._ghost:
            accumulator.add_(self._contracted(factors.to(self._g.dtype), tuple(accumulator.shape)))
        elif self._channels_last:
            sizes = accumulator.movedim(1, -1).shape
            accumulator.add_(self._ordered(self._summed(accumulator.new_zeros(sizes), factors), 1))
        else:
            self._summed(accumulator, factors)

    def _summed(self, total: Tensor, factors: Tensor) -> Tensor:
        """Add sum_i factors_i G_i, in the layout in which G is formed, and return the total."""
        if self._kept is not None:
            self._kept[0].add_weighted(total, factors)
        elif self._native:
            total += convolution_forms.native_weighted_sum(
                self._x, self._g, self._geometry, self._views, factors
            )
        else:
            for a, b in self._chunks:
                self._formed(a, b)[0].add_weighted(total, factors[a:b])
        return total

    def _formed(self, start: int, stop: int) -> tuple[Kept, Tensor]:
        """Return G_i, (m, P, c, k...), or (m, P, k..., C) if ``_channels_last``, and |G_i|^2, (m,)."""
        rows = slice(start * self._views, stop * self._views)
        x, g = self._x[rows], self._g[rows]
        if self._native:
            gradients, squares = convolution_forms.native_formed(x, g, self._geometry, self._views)
            return Kept(gradients), squares
        if convolution_forms.is_depthwise(x, g, self._geometry):
            form = depthwise
        else:
            form = from_patches if self._channels_last else fold
        use = Kept(over_views(form(x, g, self._geometry), self._views))
        return use, use.squared_norms()

    def _ordered(self, formed: Tensor, dim: int) -> Tensor:
        """Return formed gradients with the channels at ``dim``."""
        return formed.movedim(-1, dim) if self._channels_last else formed

    def _contracted(self, factors: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return sum_i factors_i G_i from one pass over all rows; K = 1."""
        x, g, weights = self._x, self._g, factors.view(-1, *[1] * (self._g.dim() - 1))
        scaled = (x * weights, g) if x.numel() < g.numel() else (x, g * weights)
        return weight_gradient(*scaled, shape, self._geometry)


def _choice(
    x: Tensor, g: Tensor, geometry: Geometry, views: int, budget: MemoryBudget, *, fast_twice: bool
) -> tuple[bool, bool]:
    """Return whether G is kept and, if it is not, whether norms are ghost norms.

    Ghost norms are larger than exact ones, by a bound on rounding. So the choice of ghost norms must not
    depend on the number of records: one more record would change how all others are clipped.
    """
    P, T, D = g.shape[1], prod(g.shape[2:]), x.shape[1] // geometry.groups * prod(geometry.kernel)
    work, replaced = P * D * T, views * (prod(x.shape[1:]) + P * T)
    ghost = _ghost_work(x, g, geometry, native=fast_twice) if geometry.groups == views == 1 else 2 * work
    within = budget.convolution_slack * replaced >= P * D
    if not within and ghost < work:
        return False, True
    most = budget.small_bytes if within or not fast_twice else min(CACHE_BYTES, budget.small_bytes)
    fits = len(x) // views * P * D * g.element_size() <= most
    return fits or (within and replaced >= P * D), False


def _strides(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Return whether to compute the input gradient here: with a stride, it takes half of oneDNN's time."""
    fits = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and x.dtype == weight.dtype
    fixed = not weight.requires_grad and (bias is None or not bias.requires_grad)
    ours = convolution_forms.native_available(x, weight, geometry) or is_thinned(geometry)
    return fits and fixed and ours and max(geometry.stride) > 1


def _input_gradient(x: Tensor, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x (B, C, s...) if :func:`_strides` is true."""
    if convolution_forms.native_available(x, g, geometry):
        return convolution_forms.native_input_gradient(x, g, weight, geometry)
    return thinned_input_gradient(x, g, weight, geometry)


def _ghost_work(x: Tensor, g: Tensor, geometry: Geometry, *, native: bool) -> int:
    """Return the approximate number of products in a row's ghost norm, to compare with P D T."""
    C, P, S, T = x.shape[1], g.shape[1], prod(x.shape[2:]), prod(g.shape[2:])
    if native and x.dim() <= 4:
        return S * S * C + T * T * P + NATIVE_ELEMENT * prod(geometry.kernel) * T * T
    sizes = [size + 2 * pad for size, pad in zip(x.shape[2:], geometry.padding, strict=True)]
    elements = prod(sizes) ** 2
    for i, kernel in enumerate(geometry.kernel):
        sizes[i] = g.shape[2 + i]
        elements += kernel * prod(sizes) ** 2
    return S * S * C + T * T * P + ELEMENT * elements


def _conv(dimensions: int, operation: Any) -> Handler:

    def conv(
        recorder: Recorder,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Tensor:
        kernel, apart = tuple(weight.shape[2:]), _tuple(dilation, dimensions)
        x, zeros = _padded(narrowed(input), padding, kernel, apart)
        geometry = Geometry(kernel, _tuple(stride, dimensions), zeros, apart, groups)
        W, b = narrowed(recorder.plain(weight)), recorder.plain(bias)
        b = None if b is None else narrowed(b)
        if x.is_cpu:
            W = W.contiguous()
            if not groups == x.shape[1] > 1:
                # a channels-last input without such an output would cost more copies than this;
                # a depthwise convolution has such an output
                x = x.contiguous()

        def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            return operation(x, W, b, geometry.stride, zeros, apart, groups), (x,)

        def backward(
            g: Tensor, needed: Sequence[bool], x: Tensor
        ) -> tuple[list[Tensor | None], Iterator[SourceUse]]:
            return [_input_gradient(x, g, W, geometry) if needed[0] else None], uses(g, x)

        def uses(g: Tensor, x: Tensor) -> Iterator[SourceUse]:
            if recorder.owns(weight):
                yield weight, _convolution(x, g, geometry, recorder)
            if bias is not None and recorder.owns(bias):
                yield bias, _bias(recorder, g)

        if _strides(x, W, b, geometry):
            return recorder.function(forward, backward, inputs=(x,), sources=(weight, bias))
        return recorder.tap(forward(x)[0], uses, saved=(x,), sources=(weight, bias))

    return conv


def _conv_transpose(dimensions: int, operation: Any) -> Handler:
    """Return the rule for ``F.conv_transpose1d``, ``F.conv_transpose2d`` or ``F.conv_transpose3d``."""

    def conv_transpose(
        recorder: Recorder,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        dilation: int | tuple[int, ...] = 1,
    ) -> Tensor:
        kernel, steps = tuple(weight.shape[2:]), _tuple(stride, dimensions)
        apart, cut = _tuple(dilation, dimensions), _tuple(padding, dimensions)
        y = operation(
            input, recorder.plain(weight), recorder.plain(bias), steps, cut,
            _tuple(output_padding, dimensions),
            groups, apart,
        )  # fmt: skip
        geometry = Geometry(kernel, steps, (0,) * dimensions, apart, groups)

        def uses(g: Tensor, x: Tensor) -> Iterator[SourceUse]:
            if recorder.owns(weight):
                whole = _uncut(g, tuple(x.shape[2:]), geometry, cut)
                yield weight, _convolution(whole, x, geometry, recorder)
            if bias is not None and recorder.owns(bias):
                yield bias, _bias(recorder, g)

        return recorder.tap(y, uses, saved=(input,), sources=(weight, bias))

    return conv_transpose


conv1d = _conv(1, F.conv1d)
conv2d = _conv(2, F.conv2d)
conv3d = _conv(3, F.conv3d)
conv_transpose1d = _conv_transpose(1, F.conv_transpose1d)
conv_transpose2d = _conv_transpose(2, F.conv_transpose2d)
conv_transpose3d = _conv_transpose(3, F.conv_transpose3d)


def _convolution(x: Tensor, g: Tensor, geometry: Geometry, recorder: Recorder) -> Use:
    """Return the use of a weight, which on a CUDA device works by patches."""
    by_patches = x.is_cuda and geometry.groups == 1
    return (Patched if by_patches else _Convolution)(x, g, geometry, recorder.views, recorder.budget)


def _bias(recorder: Recorder, g: Tensor) -> Kept:
    return Kept(over_views(widened(g).flatten(2).sum(2), recorder.views))


def _tuple(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _padded(
    x: Tensor, padding: str | int | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the input, and the number of zeros still to be added at both ends of each dimension."""
    if padding == "valid":
        return x, (0,) * len(kernel)
    if padding != "same":
        return x, _tuple(padding, len(kernel))  # type: ignore[arg-type]
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    pads = [p for total in reversed(totals) for p in (total // 2, total - total // 2)]
    return F.pad(x, pads), (0,) * len(kernel)


def _uncut(g: Tensor, places: tuple[int, ...], geometry: Geometry, cut: tuple[int, ...]) -> Tensor:
    """Pad g (B, C, s...) of a transposed convolution to the output's size before ``cut`` removed margins.

    The margins have no gradient. With ``output_padding``, the margin at the end is smaller.
    """
    whole = [
        (place - 1) * stride + (kernel - 1) * dilation + 1
        for place, stride, kernel, dilation in zip(
            places, geometry.stride, geometry.kernel, geometry.dilation, strict=True
        )
    ]
    sizes = zip(whole, g.shape[2:], cut, strict=True)
    return F.pad(g, [p for size, have, c in reversed(list(sizes)) for p in (c, size - have - c)])
