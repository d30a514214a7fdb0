"""Parameters that act element by element: scales and biases, alone or after a normalisation.

Letters: n records; B = n K rows; s... the other dimensions of an activation; C channels (dimension 1).
"""

# If y = f(x, w) with w broadcast over x, the gradient of a row is g * df/dw, summed over the dimensions that
# w was broadcast along.  It has the shape of the parameter, so it is formed and kept.  A normalisation layer
# is its normalisation without parameters, which autograd differentiates, followed by a scale and a bias.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.isolation.reasons import NoRule
from tacit.clipping.per_example.use import Kept, Recorder, SourceUse, over_positions, over_views, widened


def layer_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Run ``F.layer_norm``; the backward pass normalises the input again for the scale's gradient."""
    shape = list(normalized_shape)
    if widened(input) is not input:  # narrow types: the scale's gradient needs the forward pass's rounding
        return _affine(recorder, F.layer_norm(input, shape, eps=eps), weight, bias)
    scale, shift = recorder.plain(weight), recorder.plain(bias)

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, mean, rstd = torch.native_layer_norm(x, shape, scale, shift, eps)
        return y, (x, mean, rstd)

    def backward(
        g: Tensor, needed: Sequence[bool], x: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[tuple[Tensor | None], list[SourceUse]]:
        gradients = torch.ops.aten.native_layer_norm_backward(
            g, x, shape, mean, rstd, scale, shift, [needed[0], False, False]
        )
        return (gradients[0],), list(uses(g, x, mean, rstd))

    def uses(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Iterator[SourceUse]:
        at = recorder.of.n, -1, *shape  # all positions of a record on one axis
        g, x = g.reshape(at), x.reshape(at)
        mean, rstd = mean.reshape(*at[:2], *[1] * len(shape)), rstd.reshape(*at[:2], *[1] * len(shape))
        if weight is not None and recorder.owns(weight):
            yield weight, recorder.late(_of_scale, g, x, mean, rstd)
        if bias is not None and recorder.owns(bias):
            yield bias, recorder.late(_of_shift, g)

    return recorder.function(forward, backward, inputs=(input,), sources=(weight, bias))


def batch_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Run ``F.batch_norm`` with fixed statistics; in training mode, vmap normalises each record alone."""
    if training:
        raise NoRule
    normal = F.batch_norm(input, running_mean, running_var, None, None, training, momentum, eps)
    return _affine(recorder, normal, weight, bias, channels=True)


def _affine(
    recorder: Recorder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    channels: bool = False,
) -> Tensor:
    """Return x * weight + bias, (B, s...); parameters have shape (C,) or that of the last dimensions."""

    def spread(parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        plain = recorder.plain(parameter)
        return plain.view(-1, *[1] * (x.dim() - 2)) if channels else plain

    scale, shift = spread(weight), spread(bias)
    y = x * scale if scale is not None else x.clone()
    if shift is not None:
        y = y + shift

    def uses(g: Tensor, x: Tensor) -> Iterator[SourceUse]:
        if weight is not None and scale is not None and recorder.owns(weight):
            yield weight, _kept(recorder, g * x, scale.shape, weight)
        if bias is not None and shift is not None and recorder.owns(bias):
            yield bias, _kept(recorder, g, shift.shape, bias)

    return recorder.tap(y, uses, saved=(x,), sources=(weight, bias))


def _of_scale(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Return the gradients of a scale, from g and x (N, T, s...), and mean and rstd (N, T, 1...)."""
    return _of_shift((x - mean).mul_(rstd).mul_(g))


def _of_shift(g: Tensor) -> Tensor:
    """Return the gradients of a shift, from g (N, T, s...)."""
    return over_positions(g.flatten(2)).view(len(g), *g.shape[2:])


def _kept(recorder: Recorder, elementwise: Tensor, shape: torch.Size, parameter: Tensor) -> Kept:
    """Return the gradients of a parameter that was broadcast over (B, s...), in the view ``shape``."""
    per_row = _summed_to(elementwise, shape).reshape(-1, *parameter.shape)
    return Kept(over_views(per_row, recorder.views))


def _summed_to(elementwise: Tensor, shape: torch.Size) -> Tensor:
    """Widen (B, s...) and sum it over the dimensions after the first along which ``shape`` was broadcast."""
    new = elementwise.dim() - len(shape)
    if new > 1 and shape and 1 not in shape:  # as in layers, only the last dimensions have parameters
        rest = elementwise.shape[new:]
        return over_positions(elementwise.flatten(new).flatten(1, new - 1)).view(-1, *rest)
    repeated = [new + i for i, size in enumerate(shape) if size == 1 and new + i > 0]
    over = [*range(1, new), *repeated]
    wide = widened(elementwise)
    return wide.sum(over) if over else wide


# Group and instance normalisation: input gradient and per-row scale and bias gradients from one call.
#
# Letters: B = n K rows, n records of K views; C channels; S positions in space; G groups.
#
# In z = (x - mean) / std every row is normalised alone. So B rows of C channels in G groups are equivalent
# to one row of B C channels in B G groups with the scale gamma repeated B times. The ordinary backward pass
# of that row (Wu and He, 1803.08494, equation 7) gives d gamma and d beta for each of the B C channels.
# These are the rows' gradients sum_s g z and sum_s g, at the cost of one batch gradient.


MOST_GROUPS = 65_535
"""The most groups per row in CUDA's backward pass, where they are the second dimension of the grid."""


def group_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Run ``F.group_norm`` on (B, C, ...)."""
    return _normalised(recorder, input, num_groups, weight, bias, eps)


def instance_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Run ``F.instance_norm`` on (B, C, ...), with one group per channel or with fixed statistics."""
    if not use_input_stats:
        return batch_norm(recorder, input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise NoRule
    return _normalised(recorder, input, input.shape[1], weight, bias, eps)


def _normalised(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Return z * weight + bias, computed in float32 or wider; the parameters are (C,)."""
    (B, C), S = input.shape[:2], input[0, 0].numel()
    x = widened(input).contiguous()
    scale, shift = (None if p is None else recorder.plain(p).to(x.dtype) for p in (weight, bias))

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, mean, rstd = torch.native_group_norm(x, scale, shift, B, C, S, groups, eps)
        return y, (x, mean, rstd)

    def backward(
        g: Tensor, needed: tuple[bool, ...], x: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[list[Tensor | None], Iterator[SourceUse]]:
        rows = max(1, MOST_GROUPS // groups)
        some = [slice(a, a + rows) for a in range(0, B, rows)]
        parts = [_by_row(g[part], x[part], mean[part], rstd[part], scale, needed[0]) for part in some]
        gradients = parts[0] if len(parts) == 1 else [torch.cat(same) for same in zip(*parts, strict=True)]
        *inputs, scales, shifts = gradients
        return [inputs[0].view_as(x) if inputs else None], uses(scales, shifts)

    def uses(scales: Tensor, shifts: Tensor) -> Iterator[SourceUse]:
        for parameter, per_row in ((weight, scales), (bias, shifts)):
            if parameter is not None and recorder.owns(parameter):
                yield parameter, Kept(over_views(per_row, recorder.views))

    y = recorder.function(forward, backward, inputs=(x,), sources=(weight, bias))
    if x is input and not torch.is_autocast_enabled(x.device.type):
        return y
    device = x.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return y.to(_result_type(input.dtype, device, autocast))


def _by_row(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, scale: Tensor | None, input_too: bool
) -> list[Tensor]:
    """Return gradients of the input (B, C, S), if ``input_too``, and of scale and shift per row, (B, C)."""
    (B, C), S, groups = x.shape[:2], x[0, 0].numel(), mean.shape[1]
    repeated = None if scale is None else scale.repeat(B)
    gx, scales, shifts = torch.ops.aten.native_group_norm_backward(
        g.reshape(1, B * C, S), x.reshape(1, B * C, S), mean.reshape(1, -1), rstd.reshape(1, -1), repeated,
        1, B * C, S, B * groups, [input_too, True, True],
    )  # fmt: skip
    return [*([gx.view(B, C, S)] if input_too else []), scales.view(B, C), shifts.view(B, C)]


@lru_cache(maxsize=16)
def _result_type(dtype: torch.dtype, device: str, autocast: torch.dtype | None) -> torch.dtype:
    del autocast
    return torch.group_norm(torch.zeros(1, 1, 1, dtype=dtype, device=device), 1).dtype
