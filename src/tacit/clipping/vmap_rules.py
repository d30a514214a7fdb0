"""Which operations have a rule under vmap, and how the records come to it.

Letters: n records; k rows of one record in this operation; B = n k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from tacit.clipping.per_example import (
    affine,
    attention,
    convolution,
    embedding,
    group_norm,
    linear,
    recurrent,
    recurrent_scan,
)
from tacit.clipping.per_example.pooling import FASTER
from tacit.clipping.per_example.recorder import Unseen
from tacit.clipping.under_vmap import NotCarried, Pass
from tacit.clipping.vmap_asked import ASKED
from tacit.clipping.vmap_draws import attended_by_parts
from tacit.clipping.vmap_rows import Rows

__all__ = ["RULES"]


def _free(of: Pass, *tensors: Tensor | None) -> bool:
    """Whether these have no record: they are sources, constants or not there."""
    return all(t is None or not of.is_batched(t) for t in tensors)


def _anywhere(handler: Any) -> Callable[..., Any]:
    """A rule for ``f(x, *weights)`` in which all dimensions of x but the last are positions of the record."""

    def rule(of: Pass, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if not isinstance(input, Tensor) or not of.is_batched(input) or not _free(of, *tensors):
            return NotImplemented
        if not any(map(of.owns, tensors)):
            return NotImplemented
        with temporarily_pop_interpreter_stack():
            try:
                found = handler(Rows(of, 1), of.physical(input), *args, **kwargs)
            except Unseen:
                return NotImplemented
        return of.batched(found)

    return rule


def _rows_first(handler: Any, dimensions: int = 0) -> Callable[..., Any]:
    """A rule for ``f(x, *weights)`` whose x (k, C, s...) has rows, or is one row, (C, s...)."""

    def rule(of: Pass, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if not isinstance(input, Tensor) or not of.is_batched(input) or not _free(of, *tensors):
            return NotImplemented
        if not any(map(of.owns, tensors)):
            return NotImplemented
        one = dimensions and input.dim() == dimensions - 1
        if not one and (input.dim() < 2 or (dimensions and input.dim() != dimensions)):
            return NotImplemented
        k = 1 if one else input.shape[0]
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            try:
                found = handler(Rows(of, k), x if one else x.flatten(0, 1), *args, **kwargs)
            except Unseen:
                return NotImplemented
            found = found if one else found.view(of.n, k, *found.shape[1:])
        return of.batched(found)

    return rule


def _addmm(of: Pass, input: Any, mat1: Any, mat2: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = linear.addmm
    if not of.is_batched(mat1) or not _free(of, input, mat2) or not of.owns(mat2):
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        try:
            found = handler(Rows(of, 1), input, of.physical(mat1), mat2, **kwargs)
        except Unseen:
            return NotImplemented
    return of.batched(found)


def _embedding(of: Pass, input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    handler: Any = embedding.embedding
    if not of.is_batched(input) or not of.owns(weight):
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        numbers = of.physical(input)
        try:
            found = handler(Rows(of, 1), numbers, weight, *args, **kwargs)
        except Unseen:
            return NotImplemented
    return of.batched(found)


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
    """``F.embedding_bag`` of bags of one size, (k, L) numbers: their rows of the table, then sum or mean."""
    del norm_type, sparse, include_last_offset  # of which one goes with max_norm, the others with offsets
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
    """``x.squeeze()``, which leaves the rows of one record what it leaves those of a batch of several."""
    if dims or kwargs or not of.is_batched(input) or input.dim() == 0 or input.shape[0] != 1:
        return NotImplemented
    with of:
        return input.squeeze([dim for dim in range(1, input.dim()) if input.shape[dim] == 1])


def _attend(
    of: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """``F.scaled_dot_product_attention`` by torch's own kernel on all records at once."""
    if of.owns(attn_mask):
        attn_mask = of.lent(attn_mask)
    if dropout_p and of.group is not None:
        if of.group.exact:
            with of:
                return attended_by_parts(query, key, value, attn_mask, dropout_p, is_causal, **options)
        of.drawn_at_once = True
    if not of.is_batched(query, key, value) or not (query.dim() == key.dim() == value.dim() >= 3):
        return NotImplemented
    if attn_mask is not None and attn_mask.dim() > query.dim():
        return NotImplemented
    own = attn_mask is not None and of.is_batched(attn_mask)
    with temporarily_pop_interpreter_stack():
        q, k, v = (of.physical(t) for t in (query, key, value))
        mask = attn_mask
        if mask is not None and own:
            missing = query.dim() - mask.dim()
            mask = of.physical(mask)
            mask = mask.view(of.n, *[1] * missing, *mask.shape[1:])
        found = _attended(q, k, v, mask, dropout_p, is_causal, options)
    return of.batched(found)


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    options: dict[str, Any],
) -> Tensor:
    """Join the records and their rows, (n, k, H, L, e), as kernels take four dimensions."""
    if q.dim() != 5 or k.dim() != 5 or q.shape[:2] != k.shape[:2]:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **options)
    n, rows = q.shape[:2]
    if mask is not None and mask.dim() == 5:
        mask = mask.expand(n, rows, *mask.shape[2:]).flatten(0, 1)
    elif mask is not None and mask.dim() == 4 and rows > 1 and mask.shape[0] > 1:
        mask = mask.repeat(n, 1, 1, 1)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **options)
    return found.view(n, rows, *found.shape[1:])


def _recurrent(handler: Any, states: int) -> Callable[..., Any]:
    """A rule for ``torch.lstm`` and the like: rows are second, (T, k, d), or first."""

    def rule(of: Pass, input: Any, hx: Any, params: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not isinstance(params, list | tuple) or not of.is_batched(input) or input.dim() != 3:
            return NotImplemented
        first = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        batch_first = args[-1] if len(args) == 6 else kwargs.get("batch_first", False)
        at = 0 if batch_first else 1
        k = input.shape[at]
        if of.group is not None and any(isinstance(arg, float) and arg for arg in (*args, *kwargs.values())):
            if of.group.exact:
                raise NotCarried("dropout within a recurrent layer, behind which Python reads numbers")
            of.drawn_at_once = True
        if not _free(of, *params) or any(of.owns(s) or s.dim() != 3 for s in first):
            return NotImplemented

        def joined(t: Tensor, at: int) -> Tensor:
            return of.physical(t, at).flatten(at, at + 1)  # (T, n, k, d): n before k

        def apart(t: Tensor, at: int) -> Tensor:
            return of.batched(t.view(*t.shape[:at], of.n, k, *t.shape[at + 1 :]), at)

        with temporarily_pop_interpreter_stack():
            state = [joined(s, 1) for s in first]
            try:
                found = handler(
                    Rows(of, k),
                    joined(input, at),
                    state[0] if states == 1 else tuple(state),
                    params,
                    *args,
                    **kwargs,
                )
            except Unseen:
                return NotImplemented
        return (apart(found[0], at), *(apart(s, 1) for s in found[1:]))

    return rule


def _decomposed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that is the operation by others, each of which the pass sees."""

    def rule(of: Pass, *args: Any, **kwargs: Any) -> Any:
        with of:
            return function(*args, **kwargs)

    return rule


def _pool(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Max pooling by the quick kernel that has one for all rows."""
    if not of.is_batched(input) or input.dim() != 4:
        return NotImplemented
    with temporarily_pop_interpreter_stack():
        x = of.physical(input)
        found = FASTER[F.max_pool2d](x.flatten(0, 1), *args, **kwargs)
        if not isinstance(found, Tensor):
            return NotImplemented
        found = found.view(*x.shape[:2], *found.shape[1:])
    return of.batched(found)


def _rows_alike(function: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
    """A rule for what torch computes of each row (C, s...) by itself, (k, C, s...), and vmap by a loop."""

    def rule(of: Pass, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not of.is_batched(input) or input.dim() != dimensions:
            return NotImplemented
        with temporarily_pop_interpreter_stack():
            x = of.physical(input)
            found = function(x.flatten(0, 1), *args, **kwargs)
            found = found.view(*x.shape[:2], *found.shape[1:])
        return of.batched(found)

    return rule


def _scatter(of: Pass, input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """``x.scatter_(dim, index, number)``, for which vmap has a rule where it is not in place."""
    value = args[0] if len(args) == 1 else kwargs.get("value")
    if not isinstance(value, int | float) or kwargs.keys() - {"value"} or not of.is_batched(input):
        return NotImplemented
    return input.copy_(input.scatter(dim, index, value))


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``F.multi_head_attention_forward`` by linear maps: (L, k, E) queries, (S, k, .) keys and values."""
    if add_zero_attn or any(t is not None for t in (bias_k, bias_v, static_k, static_v)):
        raise NotCarried("attention with added or static keys has no rule")
    if query.dim() != 3 or query.shape[2] != embed_dim_to_check or (is_causal and attn_mask is None):
        raise NotCarried("attention has arguments that do not fit")
    own = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (in_proj_weight,)
    projected = _projected(query, key, value, own, in_proj_bias)
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).permute(1, 2, 0, 3) for t in projected)  # (k, H, ., e)
    mask = attention._mask(attn_mask, key_padding_mask, q, k)
    dropout = dropout_p if training else 0.0
    weights: Tensor | None = None
    if need_weights:
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        each = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        mixed = each @ v
        weights = each.mean(1) if average_attn_weights else each
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    out = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    return out, weights


def _projected(
    query: Tensor, key: Tensor, value: Tensor, own: Sequence[Tensor | None], bias: Tensor | None
) -> Sequence[Tensor]:
    """Queries, keys and values behind their linear maps, of which there are three, or one for all."""
    weights = [weight for weight in own if weight is not None]
    if len(weights) == 1:
        if query is key and key is value:
            return F.linear(query, weights[0], bias).chunk(3, dim=2)
        weights = list(weights[0].chunk(3))
    biases = [None, None, None] if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _cell(cell: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.lstm_cell`` and the like by linear maps."""

    def single(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:  # noqa: A002
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        after = cell(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return after if len(after) > 1 else after[0]

    return single


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: _anywhere(linear.linear),
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm), _anywhere(linear.matmul)
    ),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    F.embedding: _embedding,
    F.embedding_bag: _decomposed(_embedding_bag),
    **dict.fromkeys((torch.squeeze, Tensor.squeeze), _squeeze),
    F.conv1d: _rows_first(convolution.conv1d, 3),
    F.conv2d: _rows_first(convolution.conv2d, 4),
    F.conv3d: _rows_first(convolution.conv3d, 5),
    F.conv_transpose1d: _rows_first(convolution.conv_transpose1d, 3),
    F.conv_transpose2d: _rows_first(convolution.conv_transpose2d, 4),
    F.conv_transpose3d: _rows_first(convolution.conv_transpose3d, 5),
    F.layer_norm: _anywhere(affine.layer_norm),
    F.group_norm: _rows_first(group_norm.group_norm),
    F.instance_norm: _rows_first(group_norm.instance_norm),
    F.batch_norm: _rows_first(affine.batch_norm),
    F.scaled_dot_product_attention: _attend,
    F.multi_head_attention_forward: _decomposed(_multi_head),
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
