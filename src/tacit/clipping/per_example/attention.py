"""Attention: torch's kernel on all records at once, and multi-head attention by linear maps.

Letters: n records; k rows of a record; L query positions; S key positions; E model width; H heads; e = E / H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from tacit.clipping.isolation.reasons import NoRule, NotCarried
from tacit.clipping.isolation.under_vmap import Pass


def attend(
    of: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Run ``F.scaled_dot_product_attention`` by torch's kernel on all records at once."""
    tensors = query, key, value, attn_mask
    if not dropout_p and not any(t is not None and of.is_batched(t) for t in tensors):
        return of.derive(F.scaled_dot_product_attention, (*tensors, 0.0, is_causal), options)
    query, key, value, attn_mask = map(of.lent, tensors)
    if not (query.dim() == key.dim() == value.dim() >= 3):
        raise NoRule
    if attn_mask is not None and attn_mask.dim() > query.dim():
        raise NoRule
    own = attn_mask is not None and of.is_batched(attn_mask)
    with temporarily_pop_interpreter_stack():
        q, k, v = (of.physical(t) for t in (query, key, value))
        mask = attn_mask
        if mask is not None and own:
            missing = query.dim() - mask.dim()
            mask = of.physical(mask)
            mask = mask.view(of.n, *[1] * missing, *mask.shape[1:])
        output = _attended(q, k, v, mask, dropout_p, is_causal, options)
    return of.batched(output)


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    options: dict[str, Any],
) -> Tensor:
    """Run the kernel on (n, k, H, L, e), with n and k joined, as it takes four dimensions."""
    if q.dim() != 5 or k.dim() != 5 or q.shape[:2] != k.shape[:2]:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **options)
    n, rows = q.shape[:2]
    if mask is not None and mask.dim() == 5:
        mask = mask.expand(n, rows, *mask.shape[2:]).flatten(0, 1)
    elif mask is not None and mask.dim() == 4 and rows > 1 and mask.shape[0] > 1:
        mask = mask.repeat(n, 1, 1, 1)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    output = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **options)
    return output.view(n, rows, *output.shape[1:])


def multi_head(
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
    """Run ``F.multi_head_attention_forward`` by linear maps; queries (L, k, E), keys and values (S, k, .)."""
    if add_zero_attn or any(t is not None for t in (bias_k, bias_v, static_k, static_v)):
        raise NotCarried("attention with added or static keys has no rule")
    if query.dim() != 3 or query.shape[2] != embed_dim_to_check or (is_causal and attn_mask is None):
        raise NotCarried("attention has arguments that do not fit")
    own = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (in_proj_weight,)
    projected = _projected(query, key, value, own, in_proj_bias)
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).permute(1, 2, 0, 3) for t in projected)  # (k, H, ., e)
    mask = _mask(attn_mask, key_padding_mask, q, k)
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
    """Return queries, keys and values, from three linear maps or one joint map."""
    weights = [weight for weight in own if weight is not None]
    if len(weights) == 1:
        if query is key and key is value:
            return F.linear(query, weights[0], bias).chunk(3, dim=2)
        weights = list(weights[0].chunk(3))
    biases = [None, None, None] if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _mask(attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the sum of masks (L, S) and (k, S), which is added to the scores (k, H, L, S)."""
    K, H, L, S = *q.shape[:3], k.shape[2]
    total = None
    if attn is not None:
        total = _additive(attn, q)
        total = total.view(K, H, L, S) if total.dim() == 3 else total
    if padding is not None:
        missing = _additive(padding, q).view(K, 1, 1, S)
        total = missing if total is None else total + missing
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask that can be added to scores, with -inf where a boolean mask is True."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(mask, -torch.inf)
