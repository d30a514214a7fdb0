"""Group and instance normalisation: input gradient and per-row scale and bias gradients from one call.

Letters: B = n K rows, n records of K views; C channels; S positions in space; G groups.

In z = (x - mean) / std every row is normalised alone. So B rows of C channels in G groups are equivalent to
one row of B C channels in B G groups with the scale gamma repeated B times. The ordinary backward pass of
that row (Wu and He, 1803.08494, equation 7) gives d gamma and d beta for each of the B C channels. These are
the rows' gradients sum_s g z and sum_s g, at the cost of one batch gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from tacit.clipping.per_example.affine import batch_norm
from tacit.clipping.per_example.recorder import NoRule, Recorder
from tacit.clipping.per_example.use import Kept, Use, over_views, widened

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
    ) -> tuple[list[Tensor | None], Iterator[tuple[Tensor, Use]]]:
        rows = max(1, MOST_GROUPS // groups)
        some = [slice(a, a + rows) for a in range(0, B, rows)]
        parts = [_by_row(g[part], x[part], mean[part], rstd[part], scale, needed[0]) for part in some]
        gradients = parts[0] if len(parts) == 1 else [torch.cat(same) for same in zip(*parts, strict=True)]
        *inputs, scales, shifts = gradients
        return [inputs[0].view_as(x) if inputs else None], uses(scales, shifts)

    def uses(scales: Tensor, shifts: Tensor) -> Iterator[tuple[Tensor, Use]]:
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
    """Return the type of torch's result, also for narrow types; ``autocast`` is only a key of the cache."""
    del autocast
    return torch.group_norm(torch.zeros(1, 1, 1, dtype=dtype, device=device), 1).dtype
