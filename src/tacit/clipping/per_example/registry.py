"""The rules for operations under vmap, and the adapters that pass records to them.

Letters: n records; k rows of one record in this operation; B = n k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from tacit.clipping.isolation.reasons import NotCarried
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import (
    affine,
    attention,
    convolution,
    embedding,
    experts,
    group_norm,
    linear,
    recurrent,
    recurrent_scan,
)
from tacit.clipping.per_example.pooling import FASTER
from tacit.clipping.per_example.recorder import NoRule, Recorder


def _contains(tensor: Tensor, element: Any) -> bool:
    """Return ``element in tensor``."""
    return bool((tensor == element).any())


def _equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002
    return input.shape == other.shape and bool((input == other).all())


def _all_close(
    input: Tensor,  # noqa: A002
    other: Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    close = (input == other) | ((input - other).abs() <= atol + rtol * other.abs()) & other.isfinite()
    return bool((close | input.isnan() & other.isnan() if equal_nan else close).all())


def _to_list(tensor: Tensor) -> Any:
    return tensor.item() if tensor.dim() == 0 else [_to_list(each) for each in tensor.unbind()]


ASKED: dict[Any, Callable[..., Any]] = {
    Tensor.__contains__: _contains,
    Tensor.tolist: _to_list,
    **dict.fromkeys((torch.equal, Tensor.equal), _equal),
    **dict.fromkeys((torch.allclose, Tensor.allclose), _all_close),
    **dict.fromkeys((torch.is_nonzero, Tensor.is_nonzero), bool),
}
"""Operations that read values, rewritten with ``bool`` and ``item``."""


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
            return NotImplemented
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            single = maps and x.dim() == 3 and x.shape[1] == 1
            try:
                output = handler(Recorder(of, 1), x.squeeze(1) if single else x, *args, **kwargs)
            except NoRule:
                return NotImplemented
            output = output.unsqueeze(1) if single else output
        return of.batched(output)

    return rule


def _rows_first(handler: Any, dimensions: int = 0) -> Callable[..., Any]:
    """Return a rule for ``f(x, *weights)`` in which x is rows (k, C, s...), or one row (C, s...)."""

    def rule(of: Pass, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not _combines(of, input, (*args, *kwargs.values())):
            return NotImplemented
        one = dimensions and input.dim() == dimensions - 1
        if not one and (input.dim() < 2 or (dimensions and input.dim() != dimensions)):
            return NotImplemented
        k = 1 if one else input.shape[0]
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            try:
                output = handler(Recorder(of, k), x if one else x.flatten(0, 1), *args, **kwargs)
            except NoRule:
                return NotImplemented
            output = output if one else output.view(of.n, k, *output.shape[1:])
        return of.batched(output)

    return rule


def _addmm(of: Pass, input: Any, mat1: Any, mat2: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = linear.addmm
    if not of.is_batched(mat1) or not _without_records(of, input, mat2) or not of.owns(mat2):
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        try:
            output = handler(Recorder(of, 1), input, of.physical(mat1), mat2, **kwargs)
        except NoRule:
            return NotImplemented
    return of.batched(output)


def _embedding(of: Pass, input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = embedding.embedding
    if not of.is_batched(input) or not of.owns(weight):
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        numbers = of.physical(input)
        try:
            output = handler(Recorder(of, 1), numbers, weight, *args, **kwargs)
        except NoRule:
            return NotImplemented
    return of.batched(output)


def _grouped_mm(of: Pass, input: Any, weight: Any, *args: Any, offs: Any = None, **kwargs: Any) -> Any:  # noqa: A002
    unlike = any(value is not None for value in (*args, *kwargs.values()))  # a bias or a type
    if unlike or not isinstance(offs, Tensor) or not of.is_batched(input, offs):
        return NotImplemented
    if not of.owns(weight) or (input.dim(), weight.dim(), offs.dim()) != (2, 3, 1):
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        output = experts.grouped_mm(Recorder(of, 1), of.physical(input), weight, of.physical(offs))
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
        return NotImplemented
    with of:
        return input.squeeze([dim for dim in range(1, input.dim()) if input.shape[dim] == 1])


def _recurrent(handler: Any, states: int) -> Callable[..., Any]:
    """Return a rule for ``torch.lstm`` and the like; rows are dimension 1, or 0 if ``batch_first``."""

    def rule(of: Pass, input: Any, hx: Any, params: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not isinstance(params, list | tuple) or not of.is_batched(input) or input.dim() != 3:
            return NotImplemented
        first = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        batch_first = args[-1] if len(args) == 6 else kwargs.get("batch_first", False)
        at = 0 if batch_first else 1
        k = input.shape[at]
        if of.group is not None and any(isinstance(arg, float) and arg for arg in (*args, *kwargs.values())):
            if of.group.exact:
                raise NotCarried("dropout within a recurrent layer, after which Python reads values")
            of.drawn_at_once = True
        if not _without_records(of, *params) or any(s.dim() != 3 for s in first):
            return NotImplemented
        first = tuple(map(of.lent, first))

        def joined(t: Tensor, at: int) -> Tensor:
            return of.physical(t, at).flatten(at, at + 1)  # (T, n, k, d): n before k

        def apart(t: Tensor, at: int) -> Tensor:
            return of.batched(t.view(*t.shape[:at], of.n, k, *t.shape[at + 1 :]), at)

        with temporarily_pop_interpreter_stack():
            state = [joined(s, 1) for s in first]
            try:
                output = handler(
                    Recorder(of, k),
                    joined(input, at),
                    state[0] if states == 1 else tuple(state),
                    params,
                    *args,
                    **kwargs,
                )
            except NoRule:
                return NotImplemented
        return (apart(output[0], at), *(apart(s, 1) for s in output[1:]))

    return rule


def _decomposed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that replaces an operation by others, each of which the pass sees."""

    def rule(of: Pass, *args: Any, **kwargs: Any) -> Any:
        with of:
            return function(*args, **kwargs)

    return rule


def _pool(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Run max pooling by the fast kernel, on the rows of all records at once."""
    if not of.is_batched(input) or input.dim() != 4:
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        x = of.physical(input)
        output = FASTER[F.max_pool2d](x.flatten(0, 1), *args, **kwargs)
        if not isinstance(output, Tensor):
            return NotImplemented
        output = output.view(*x.shape[:2], *output.shape[1:])
    return of.batched(output)


def _rows_alike(function: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
    """Return a rule for an operation on rows (k, C, s...), which torch can batch but vmap would loop over."""

    def rule(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not of.is_batched(input) or input.dim() != dimensions:
            return NotImplemented
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            output = function(x.flatten(0, 1), *args, **kwargs)
            output = output.view(*x.shape[:2], *output.shape[1:])
        return of.batched(output)

    return rule


def _scatter(of: Pass, input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Run ``x.scatter_(dim, index, number)`` by ``scatter``, for which vmap has a rule."""
    value = args[0] if len(args) == 1 else kwargs.get("value")
    if not isinstance(value, int | float) or kwargs.keys() - {"value"} or not of.is_batched(input):
        return NotImplemented
    return input.copy_(input.scatter(dim, index, value))


def _cell(cell: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.lstm_cell`` or the like, written with linear maps."""

    def single(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:  # noqa: A002
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        after = cell(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return after if len(after) > 1 else after[0]

    return single


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: _any_position(linear.linear, maps=True),
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm),
        _any_position(linear.matmul, maps=True),
    ),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    F.embedding: _embedding,
    F.embedding_bag: _decomposed(_embedding_bag),
    experts.OPERATION: _grouped_mm,
    **dict.fromkeys((torch.squeeze, Tensor.squeeze), _squeeze),
    F.conv1d: _rows_first(convolution.conv1d, 3),
    F.conv2d: _rows_first(convolution.conv2d, 4),
    F.conv3d: _rows_first(convolution.conv3d, 5),
    F.conv_transpose1d: _rows_first(convolution.conv_transpose1d, 3),
    F.conv_transpose2d: _rows_first(convolution.conv_transpose2d, 4),
    F.conv_transpose3d: _rows_first(convolution.conv_transpose3d, 5),
    F.layer_norm: _any_position(affine.layer_norm),
    F.group_norm: _rows_first(group_norm.group_norm),
    F.instance_norm: _rows_first(group_norm.instance_norm),
    F.batch_norm: _rows_first(affine.batch_norm),
    F.scaled_dot_product_attention: attention.attend,
    F.multi_head_attention_forward: _decomposed(attention.multi_head),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _pool),
    **dict.fromkeys(
        (F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d), _rows_alike(F.adaptive_avg_pool1d, 3)
    ),
    F.adaptive_avg_pool2d: _rows_alike(F.adaptive_avg_pool2d, 4),
    F.adaptive_avg_pool3d: _rows_alike(F.adaptive_avg_pool3d, 5),
    Tensor.scatter_: _scatter,
    **{func: _decomposed(in_other_words) for func, in_other_words in ASKED.items()},
    torch.lstm_cell: _decomposed(_cell(recurrent_scan.lstm)),
    torch.gru_cell: _decomposed(_cell(recurrent_scan.gru)),
    torch.rnn_tanh_cell: _decomposed(_cell(recurrent_scan.tanh)),
    torch.rnn_relu_cell: _decomposed(_cell(recurrent_scan.relu)),
    torch.lstm: _recurrent(recurrent.lstm, 2),
    torch.gru: _recurrent(recurrent.gru, 1),
    torch.rnn_tanh: _recurrent(recurrent.rnn_tanh, 1),
    torch.rnn_relu: _recurrent(recurrent.rnn_relu, 1),
}
