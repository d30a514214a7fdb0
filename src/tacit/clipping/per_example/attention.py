"""Multi-head attention, rebuilt from linear layers and scaled dot-product attention.

Letters: B rows; L query positions; S key positions; E model width; H heads; e = E / H.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example.affine import add
from tacit.clipping.per_example.linear import linear
from tacit.clipping.per_example.recorder import Recorder, Unseen

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]


def multi_head_attention_forward(
    recorder: Recorder,
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
    """``F.multi_head_attention_forward``: (L, B, E) queries, (S, B, .) keys and values."""
    if add_zero_attn or any(t is not None for t in (bias_k, bias_v, static_k, static_v)):
        raise Unseen("operation 'multi_head_attention_forward' with added or static keys")
    if recorder.owns(attn_mask) or recorder.owns(key_padding_mask):
        raise Unseen("operation 'multi_head_attention_forward' with a learned mask")
    if query.dim() != 3 or query.shape[2] != embed_dim_to_check or (is_causal and attn_mask is None):
        raise Unseen("operation 'multi_head_attention_forward' with arguments that do not fit")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    projected = _projections(recorder, (query, key, value), in_proj_weight, in_proj_bias, separate)
    q, k, v = (t.view(*t.shape[:2], num_heads, -1).transpose(1, 2) for t in projected)  # (B, H, L or S, e)
    mask = _mask(attn_mask, key_padding_mask, q, k)
    dropout = dropout_p if training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)  # (B, H, L, S)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    out = linear(recorder, mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return out.transpose(0, 1), weights


def scaled_dot_product_attention(
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """``F.scaled_dot_product_attention`` with a mask that is learned, as biases of relative positions are."""
    given = (query, key, value)
    if attn_mask is None or not recorder.owns(attn_mask) or any(map(recorder.owns, given)):
        result: Tensor = recorder.without_rule(
            F.scaled_dot_product_attention, (*given, attn_mask, *args), options
        )
        return result
    of_rows = attn_mask.new_zeros(len(query), *[1] * (query.dim() - 1))
    return F.scaled_dot_product_attention(*given, add(recorder, of_rows, attn_mask), *args, **options)


def _projections(
    recorder: Recorder,
    inputs: tuple[Tensor, Tensor, Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, ...] | None,
) -> list[Tensor]:
    """Return queries, keys and values (B, L or S, E): one linear layer if all read the same input."""
    query, key, value = inputs
    if separate is None and query is key and key is value:
        assert weight is not None
        return list(linear(recorder, query.transpose(0, 1), weight, bias).chunk(3, dim=2))
    blocks = separate if separate is not None else _blocks(recorder, weight)
    biases = _blocks(recorder, bias)
    return [
        linear(recorder, x.transpose(0, 1), w, b)
        for x, w, b in zip(inputs, blocks, biases, strict=True)
        if w is not None
    ]


def _blocks(recorder: Recorder, joined: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the three row blocks of a joined parameter, as sources derived from it."""
    if joined is None:
        return None, None, None
    blocks: tuple[Tensor, ...] = recorder.derive(torch.chunk, joined, 3)
    return blocks


def _mask(attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return what is added to the scores, broadcast to (B, H, L, S), from masks (L, S) and (B, S)."""
    B, H, L, S = *q.shape[:3], k.shape[2]
    total = None
    if attn is not None:
        total = _additive(attn, q)
        total = total.view(B, H, L, S) if total.dim() == 3 else total
    if padding is not None:
        missing = _additive(padding, q).view(B, 1, 1, S)
        total = missing if total is None else total + missing
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask to add: -inf where a boolean mask is True."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(mask, -torch.inf)
