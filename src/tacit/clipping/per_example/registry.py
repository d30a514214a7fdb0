"""The rules for operations under vmap, and the adapters that pass records to them.

Letters: n records; k rows of one record in this operation; B = n k.
"""

# The pass calls a rule in place of an operation, ``rule(pass, *args)``. A *source* is a parameter that is
# trained, or what is computed from parameters alone. ``of.physical(x)`` is the tensor with all n records
# behind a batched x, and ``of.batched`` the way back. A *handler* (linear.py, convolution.py, ...) computes
# the operation on physical tensors, and tells its ``Recorder`` how the gradients of each record follow from
# them. ``NoRule`` says that a rule does not take these arguments: then the pass lends each record a copy of
# the source, and autograd computes the gradients.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import _reduction as _Reduction

from tacit.clipping.isolation.randomness import COMPOSED
from tacit.clipping.isolation.reasons import NoRule, NotCarried
from tacit.clipping.isolation.synthetic import squeezed
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import attention, convolution, embedding, linear, normalisation, recurrent
from tacit.clipping.per_example.use import Recorder, applied

# Max pooling of images on a CPU in channels-last layout, as torch is slow in the default layout.
#
# The default kernel reads a window value by value; the channels-last kernel vectorises over channels. Parts
# of the batch are copied to that layout, pooled and copied back while they are in the cache. The maxima are
# the same, and if a window has several, the same one receives the gradient.
#
# Measured, forward and backward, in ms on two cores of an AMD EPYC 9004, float32:
#
# =====================  ======  =====  ====
# input                  window  torch  here
# =====================  ======  =====  ====
# (512, 16, 13, 13)      2 s1     14.6   6.1
# (512, 32, 5, 5)        2 s1      3.1   1.0
# (256, 32, 32, 32)      2 s2     39.0  32.6
# (256, 64, 16, 16)      2 s2     15.4   8.2
# (512, 8, 28, 28)       2 s2     12.4   7.3
# (512, 4, 28, 28)       2 s2      5.9   6.1
# =====================  ======  =====  ====
#
# Letters: B rows; C channels; h x w positions.


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


def avg_pool2d(
    input: Tensor,  # noqa: A002
    kernel_size: Window,
    stride: Window | None = None,
    padding: Window = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Run ``F.avg_pool2d``; squares side by side without a margin in a third of torch's time.

    >>> x = torch.randn(2, 8, 6, 6)
    >>> torch.allclose(avg_pool2d(x, 2), F.avg_pool2d(x, 2), atol=1e-6)
    True
    """
    size = _pair(kernel_size)
    k = size[0]
    side_by_side = size == [k, k] == _pair(size if stride is None else stride) and _pair(padding) == [0, 0]
    whole = input.dim() == 4 and input.shape[2] % k == input.shape[3] % k == 0
    if side_by_side and whole and divisor_override is None and _is_faster(input):
        means: Tensor = _AveragePool.apply(input, k)  # type: ignore[no-untyped-call]
        return means
    return F.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


class _AveragePool(torch.autograd.Function):
    """Means of squares of k x k: rows are added first, so that torch adds long lines."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        ctx.k = k
        rows = sum(x[:, :, i::k] for i in range(1, k)) + x[:, :, ::k]
        total = sum(rows[..., i::k] for i in range(1, k)) + rows[..., ::k]
        return total * k**-2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        k, (B, C, h, w) = ctx.k, g.shape
        line = (g * k**-2).repeat_interleave(k, 3)
        gradient = g.new_empty(B, C, h, k, w * k).copy_(line.unsqueeze(3))
        return gradient.view(B, C, h * k, w * k), None


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


FASTER: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), max_pool2d),
    F.avg_pool2d: avg_pool2d,
}
"""By operation, a faster function with the same results; none of them has parameters."""


def _without_records(of: Pass, *tensors: Tensor | None) -> bool:
    """Return whether these contain no record: they are sources, constants or None."""
    return all(t is None or not of.is_batched(t) for t in tensors)


def _combines(of: Pass, input: Any, arguments: tuple[Any, ...]) -> bool:  # noqa: A002
    """Return whether ``input`` contains a record, and the arguments contain a source but no record."""
    tensors = [t for t in arguments if isinstance(t, Tensor)]
    batched = isinstance(input, Tensor) and of.is_batched(input)
    return batched and _without_records(of, *tensors) and any(map(of.owns, tensors))


def _any_position(handler: Any, *, maps: bool = False) -> Callable[..., Any]:
    """Return a rule for ``f(x, *weights)`` in which all dimensions of x but the last are positions.

    ``maps``: pass a record of one position, (1, d), as a row (d,), which costs less.
    """

    def rule(of: Pass, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not _combines(of, input, (*args, *kwargs.values())):
            raise NoRule
        return _at_positions(of, handler, maps, input, *args, **kwargs)

    return rule


def _at_positions(of: Pass, handler: Any, maps: bool, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
    with temporarily_pop_interpreter_stack():
        x = of.physical(input)
        single = maps and x.dim() == 3 and x.shape[1] == 1
        output = handler(Recorder(of, 1), x.squeeze(1) if single else x, *args, **kwargs)
        return of.batched(output.unsqueeze(1) if single else output)


def _linear(of: Pass, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
    if not of.is_batched(input) or not _without_records(of, weight, bias):
        raise NoRule
    trained = of.owns(weight) or of.owns(bias)
    return _at_positions(of, linear.linear if trained else linear.frozen, trained, input, weight, bias)


def _rows_first(handler: Any, dimensions: int = 0) -> Callable[..., Any]:
    """Return a rule for ``f(x, *weights)`` in which x is rows (k, C, s...), or one row (C, s...).

    ``dimensions``: those of several rows; 0 for any number from 2 up, always of several rows.
    """

    def rule(of: Pass, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not _combines(of, input, (*args, *kwargs.values())):
            raise NoRule
        one = dimensions and input.dim() == dimensions - 1
        if not one and (input.dim() < 2 or (dimensions and input.dim() != dimensions)):
            raise NoRule
        k = 1 if one else input.shape[0]
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            output = handler(Recorder(of, k), x if one else x.flatten(0, 1), *args, **kwargs)
            output = output if one else output.view(of.n, k, *output.shape[1:])
        return of.batched(output)

    return rule


def _addmm(of: Pass, input: Any, mat1: Any, mat2: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = linear.addmm
    if not of.is_batched(mat1) or not _without_records(of, input, mat2) or not of.owns(mat2):
        raise NoRule
    with temporarily_pop_interpreter_stack():
        output = handler(Recorder(of, 1), input, of.physical(mat1), mat2, **kwargs)
    return of.batched(output)


def _embedding(of: Pass, input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = embedding.embedding
    if not of.is_batched(input) or not of.owns(weight):
        raise NoRule
    with temporarily_pop_interpreter_stack():
        numbers = of.physical(input)
        output = handler(Recorder(of, 1), numbers, weight, *args, **kwargs)
    return of.batched(output)


def _grouped_mm(of: Pass, input: Any, weight: Any, *args: Any, offs: Any = None, **kwargs: Any) -> Any:  # noqa: A002
    unlike = any(value is not None for value in (*args, *kwargs.values()))  # a bias or a type
    if unlike or not isinstance(offs, Tensor) or not of.is_batched(input):
        raise NoRule
    if not of.is_batched(offs) or not of.owns(weight) or (input.dim(), weight.dim(), offs.dim()) != (2, 3, 1):
        raise NoRule
    with temporarily_pop_interpreter_stack():
        output = linear.grouped_mm(Recorder(of, 1), of.physical(input), weight, of.physical(offs))
    return of.batched(output)


def _embedding_bag(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Run ``F.embedding_bag`` on bags of one size, (k, L): look up their rows, then sum or average."""
    del norm_type, sparse, include_last_offset  # these only matter with max_norm, p.grad and offsets
    if offsets is not None or mode not in ("sum", "mean") or max_norm is not None or scale_grad_by_freq:
        raise NotCarried("F.embedding_bag has offsets, max_norm, scale_grad_by_freq or mode='max'")
    rows = F.embedding(input, weight, padding_idx)
    shares = torch.ones_like(input, dtype=rows.dtype) if per_sample_weights is None else per_sample_weights
    if padding_idx is not None:
        shares = shares.masked_fill(input == padding_idx % len(weight), 0.0)
    if mode == "mean":
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1.0)
    return (shares[:, :, None] * rows).sum(1)


def _squeeze(of: Pass, input: Tensor, *dims: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Run ``x.squeeze()`` but keep a first dimension of one row, as in a batch of several rows."""
    if dims or kwargs or not of.is_batched(input) or input.dim() == 0 or input.shape[0] != 1:
        raise NoRule
    with of:
        return squeezed(input)


def _recurrent(handler: Any, states: int) -> Callable[..., Any]:
    """Return a rule for ``torch.lstm`` and the like; rows are dimension 1, or 0 if ``batch_first``."""

    def rule(of: Pass, input: Any, hx: Any, params: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not isinstance(params, list | tuple) or not of.is_batched(input) or input.dim() != 3:
            raise NoRule
        first = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        batch_first = args[-1] if len(args) == 6 else kwargs.get("batch_first", False)
        at = 0 if batch_first else 1
        k = input.shape[at]
        if not _without_records(of, *params) or any(s.dim() != 3 for s in first):
            raise NoRule
        first = tuple(map(of.lent, first))

        def joined(t: Tensor, at: int) -> Tensor:
            return of.physical(t, at).flatten(at, at + 1)  # (T, n, k, d): n before k

        def apart(t: Tensor, at: int) -> Tensor:
            return of.batched(t.view(*t.shape[:at], of.n, k, *t.shape[at + 1 :]), at)

        with temporarily_pop_interpreter_stack():
            state = [joined(s, 1) for s in first]
            output = handler(
                Recorder(of, k),
                joined(input, at),
                state[0] if states == 1 else tuple(state),
                params,
                *args,
                **kwargs,
            )
        return (apart(output[0], at), *(apart(s, 1) for s in output[1:]))

    return rule


def _decomposed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that replaces an operation by others, each of which the pass sees."""

    def rule(of: Pass, *args: Any, **kwargs: Any) -> Any:
        with of:
            return function(*args, **kwargs)

    return rule


def _not_nested(of: Pass, *args: Any) -> Any:
    """Tell ``nn.TransformerEncoder`` in evaluation mode to use its padding mask, not nested tensors."""
    if not any(isinstance(t, Tensor) and of.is_batched(t) for t in args):
        raise NoRule
    return False


def _pool(pool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule for a pooling by the fast function, on the rows of all records at once."""

    def rule(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not of.is_batched(input) or input.dim() != 4:
            raise NoRule
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            output = pool(x.flatten(0, 1), *args, **kwargs)
            if not isinstance(output, Tensor):
                raise NoRule
            output = output.view(*x.shape[:2], *output.shape[1:])
        return of.batched(output)

    return rule


def _rows_alike(function: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
    """Return a rule for an operation on rows (k, C, s...), which torch can batch but vmap would loop over."""

    def rule(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not of.is_batched(input) or input.dim() != dimensions:
            raise NoRule
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            output = function(x.flatten(0, 1), *args, **kwargs)
            output = output.view(*x.shape[:2], *output.shape[1:])
        return of.batched(output)

    return rule


def _mean(of: Pass, input: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:  # noqa: A002
    """Run ``x.mean(dim)`` over one dimension, whose gradient is then the same for all, in memory of one."""
    if kwargs or type(dim) is not int or not of.is_batched(input) or not -input.dim() <= dim < input.dim():
        raise NoRule
    with temporarily_pop_interpreter_stack():
        means: Tensor = applied(_Mean)(of.physical(input), dim % input.dim() + 1, keepdim)
    return of.batched(means)


class _Mean(torch.autograd.Function):
    """A mean over a dimension; torch's own backward pass fills a tensor of the input's size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        ctx.shape, ctx.dim, ctx.keepdim = x.shape, dim, keepdim
        return x.mean(dim, keepdim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        g = g / ctx.shape[ctx.dim]
        return (g if ctx.keepdim else g.unsqueeze(ctx.dim)).expand(ctx.shape), None, None


def _losses_alike(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a rule for losses of rows without reduction, as torch decomposes them in Python under vmap."""

    def rule(of: Pass, input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        whole = args or kwargs.get("reduction") != "none" or not isinstance(target, Tensor)
        if whole or not of.is_batched(input) or input.dim() < 2:
            raise NoRule
        weights = [value for value in kwargs.values() if isinstance(value, Tensor)]
        if any(map(of.owns, (target, *weights))) or not _without_records(of, *weights):
            raise NoRule
        with temporarily_pop_interpreter_stack():
            losses = function(of.physical(input).flatten(0, 1), of.physical(target).flatten(0, 1), **kwargs)
            losses = losses.view(of.n, -1, *losses.shape[1:])
        return of.batched(losses)

    return rule


def _scatter(of: Pass, input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Run ``x.scatter_(dim, index, number)`` by ``scatter``, for which vmap has a rule."""
    value = args[0] if len(args) == 1 else kwargs.get("value")
    if not isinstance(value, int | float) or kwargs.keys() - {"value"} or not of.is_batched(input):
        raise NoRule
    return input.copy_(input.scatter(dim, index, value))


def _bilinear(left: Tensor, right: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x_i W_oij y_j; torch has no batching rule for its own kernel."""
    products = torch.einsum("...i,oij,...j->...o", left, weight, right)
    return products if bias is None else products + bias


def _kl_div(
    input: Tensor,  # noqa: A002
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Compute target (log target - input), as torch's kernel has no batching rule."""
    reduction = _by_name(size_average, reduce, reduction)
    if log_target:
        divergence = target.exp() * (target - input)
    else:
        divergence = torch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return divergence.sum() / len(input)
    return _reduced(divergence, reduction)


def _triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute max(0, margin + |a - p| - |a - n|); with ``swap``, n is compared with the nearer of a and p."""
    reduction = _by_name(size_average, reduce, reduction)
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _reduced((margin + near - far).clamp(min=0), reduction)


def _by_name(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return the reduction, which older code gives by two flags."""
    if size_average is None and reduce is None:
        return reduction
    return _Reduction.legacy_get_string(size_average, reduce, emit_warning=False)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def _ctc_loss(
    of: Pass,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Run ``F.ctc_loss`` of log_probs (T, k, C) and targets (k, S) by torch's kernel, on all records."""
    if reduction != "none" or not of.is_batched(log_probs) or log_probs.dim() != 3 or targets.dim() != 2:
        raise NoRule
    lengths = [torch.as_tensor(length) for length in (input_lengths, target_lengths)]
    with temporarily_pop_interpreter_stack():
        of_inputs, of_targets = (of.physical(length).flatten() for length in lengths)
        losses = F.ctc_loss(
            of.physical(log_probs, 1).flatten(1, 2),
            of.physical(targets).flatten(0, 1),
            of_inputs,
            of_targets,
            blank,
            "none",
            zero_infinity,
        )
    return of.batched(losses.view(of.n, -1))


_COINS = 0x636F696E73
"""Makes the seed of shared numbers another one than that of the records' own."""


def _coin(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a rule for a draw of size (): one number for all records, as in a plain batch.

    So Python may read it (``if torch.rand([]) < p: skip the layer``): it is public. It has a generator of its
    own, as the state of torch's depends on the number of records.
    """

    def rule(of: Pass, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        sizes = [value for value in (*args, kwargs.get("size")) if isinstance(value, list | tuple)]
        # a checkpoint runs twice, and would draw another number then
        in_checkpoint = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if in_checkpoint or len(sizes) != 1 or len(sizes[0]) > 0:
            raise NoRule

        if of.coins is None:
            of.coins = torch.Generator().manual_seed(of.shared ^ _COINS)
        with temporarily_pop_interpreter_stack():
            coin = draw(*args, generator=of.coins, device="cpu", **kwargs)
            return coin if device is None else coin.to(device)

    return rule


def _histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002
    """Count as ``torch.histc`` does, for which vmap has no rule; mixtures of experts count tokens by it."""
    if min >= max:  # then the ends of the range would be values of the record
        raise NoRule
    values = input.flatten()
    places = ((values - min) * (bins / (max - min))).long().clamp(max=bins - 1)
    inside = (values >= min) & (values <= max)
    each = (places[:, None] == torch.arange(bins, device=values.device)) & inside[:, None]
    return each.sum(0).to(input.dtype)


def _cell(cell: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.lstm_cell`` or the like, written with linear maps."""

    def single(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:  # noqa: A002
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        after = cell(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return after if len(after) > 1 else after[0]

    return single


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm),
        _any_position(linear.matmul, maps=True),
    ),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    F.embedding: _embedding,
    F.embedding_bag: _decomposed(_embedding_bag),
    linear.OPERATION: _grouped_mm,
    **dict.fromkeys((torch.squeeze, Tensor.squeeze), _squeeze),
    F.conv1d: _rows_first(convolution.conv1d, 3),
    F.conv2d: _rows_first(convolution.conv2d, 4),
    F.conv3d: _rows_first(convolution.conv3d, 5),
    F.conv_transpose1d: _rows_first(convolution.conv_transpose1d, 3),
    F.conv_transpose2d: _rows_first(convolution.conv_transpose2d, 4),
    F.conv_transpose3d: _rows_first(convolution.conv_transpose3d, 5),
    F.layer_norm: _any_position(normalisation.layer_norm),
    F.group_norm: _rows_first(normalisation.group_norm),
    F.instance_norm: _rows_first(normalisation.instance_norm),
    F.batch_norm: _rows_first(normalisation.batch_norm),
    F.scaled_dot_product_attention: attention.attend,
    F.multi_head_attention_forward: _decomposed(attention.multi_head),
    torch._nested_tensor_from_mask_left_aligned: _not_nested,
    **{func: _pool(pool) for func, pool in FASTER.items()},
    **dict.fromkeys(
        (F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d), _rows_alike(F.adaptive_avg_pool1d, 3)
    ),
    F.adaptive_avg_pool2d: _rows_alike(F.adaptive_avg_pool2d, 4),
    F.adaptive_avg_pool3d: _rows_alike(F.adaptive_avg_pool3d, 5),
    **dict.fromkeys((torch.mean, Tensor.mean), _mean),
    **{loss: _losses_alike(loss) for loss in (F.cross_entropy, F.nll_loss)},
    Tensor.scatter_: _scatter,
    **{draw: _coin(draw) for draw in (torch.rand, torch.randn, torch.randint)},
    **{func: _decomposed(in_other_words) for func, in_other_words in COMPOSED.items()},
    F.bilinear: _decomposed(_bilinear),
    F.kl_div: _decomposed(_kl_div),
    F.triplet_margin_loss: _decomposed(_triplet_margin_loss),
    F.ctc_loss: _ctc_loss,
    **dict.fromkeys((torch.histc, Tensor.histc), _decomposed(_histc)),
    torch.lstm_cell: _decomposed(_cell(recurrent.lstm_cell)),
    torch.gru_cell: _decomposed(_cell(recurrent.gru_cell)),
    torch.rnn_tanh_cell: _decomposed(_cell(recurrent.tanh_cell)),
    torch.rnn_relu_cell: _decomposed(_cell(recurrent.relu_cell)),
    torch.lstm: _recurrent(recurrent.lstm, 2),
    torch.gru: _recurrent(recurrent.gru, 1),
    torch.rnn_tanh: _recurrent(recurrent.rnn_tanh, 1),
    torch.rnn_relu: _recurrent(recurrent.rnn_relu, 1),
}
