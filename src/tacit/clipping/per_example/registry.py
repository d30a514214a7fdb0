"""Which operations have a rule of their own, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example import (
    affine,
    attention,
    convolution,
    einsum,
    embedding,
    group_norm,
    linear,
    recurrent,
)
from tacit.clipping.per_example.recorder import Handler

__all__ = ["HANDLERS"]

HANDLERS: Mapping[Any, Handler] = {
    F.linear: linear.linear,
    F.conv1d: convolution.conv1d,
    F.conv2d: convolution.conv2d,
    F.conv3d: convolution.conv3d,
    F.conv_transpose1d: convolution.conv_transpose1d,
    F.conv_transpose2d: convolution.conv_transpose2d,
    F.conv_transpose3d: convolution.conv_transpose3d,
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm), einsum.matmul),
    **dict.fromkeys((torch.mv, Tensor.mv), einsum.matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm), linear.addmm),
    F.embedding: embedding.embedding,
    F.embedding_bag: embedding.embedding_bag,
    F.layer_norm: affine.layer_norm,
    F.rms_norm: affine.rms_norm,
    F.group_norm: group_norm.group_norm,
    F.instance_norm: group_norm.instance_norm,
    F.batch_norm: affine.batch_norm,
    F.prelu: affine.prelu,
    torch.where: affine.where,
    Tensor.where: affine.where_of,
    **dict.fromkeys((torch.masked_fill, Tensor.masked_fill), affine.masked_fill),
    Tensor.expand: affine.expand,
    Tensor.expand_as: affine.expand_as,
    **dict.fromkeys((torch.broadcast_to, Tensor.broadcast_to), affine.broadcast_to),
    Tensor.repeat: affine.repeat,
    **dict.fromkeys((torch.tile, Tensor.tile), affine.tile),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), affine.repeat_interleave),
    **dict.fromkeys((Tensor.to, Tensor.type_as), affine.to),
    torch.einsum: einsum.einsum,
    **dict.fromkeys((F.bilinear, torch.bilinear), einsum.bilinear),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), affine.add),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), affine.mul),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), affine.sub),
    **dict.fromkeys((torch.rsub, Tensor.__rsub__), affine.rsub),
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), affine.add_in_place),
    **dict.fromkeys((Tensor.mul_, Tensor.__imul__), affine.mul_in_place),
    **dict.fromkeys((Tensor.sub_, Tensor.__isub__), affine.sub_in_place),
    F.multi_head_attention_forward: attention.multi_head_attention_forward,
    F.scaled_dot_product_attention: attention.scaled_dot_product_attention,
    torch.lstm: recurrent.lstm,
    torch.gru: recurrent.gru,
    torch.rnn_tanh: recurrent.rnn_tanh,
    torch.rnn_relu: recurrent.rnn_relu,
    torch.lstm_cell: recurrent.lstm_cell,
    torch.gru_cell: recurrent.gru_cell,
    torch.rnn_tanh_cell: recurrent.rnn_tanh_cell,
    torch.rnn_relu_cell: recurrent.rnn_relu_cell,
}
