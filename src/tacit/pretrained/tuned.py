"""The trainable parts of a public model: a head on its features, and optionally LoRA or all weights.

LoRA: Hu et al., 2106.09685; privately, Yu et al., 2110.06500 and Li et al., 2110.05679.

Letters: n records; d features; c ordinary columns; k outputs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import InvalidInput, needed
from tacit.pretrained.base import Pretrained


@final
class UnitLength(nn.Module):
    """Scales inputs (n, d + c): the d features to length 1, and each of the c columns by 1 / sqrt(c).

    So a record's features have length 1 for any public model, and its c columns, each in [-1, 1], together
    have length at most 1.

    >>> UnitLength(2)(torch.tensor([[3.0, 4.0, -1.0]]))
    tensor([[ 0.6000,  0.8000, -1.0000]])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scaled (n, d + c) features."""
        features, columns = inputs[:, : self.features], inputs[:, self.features :]
        scale = math.sqrt(max(1, columns.shape[1]))
        return torch.cat([F.normalize(features, dim=1), columns / scale], dim=1)


@final
class Head(nn.Sequential):
    """A linear layer, initialised to 0, on features of length 1: (n, d + c) to (n, k).

    >>> Head(384, 2)(torch.ones(5, 384)).shape
    torch.Size([5, 2])
    """

    def __init__(self, features: int, outputs: int, *, columns: int = 0) -> None:
        layer = nn.Linear(features + columns, outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        super().__init__(UnitLength(features), layer)


@final
class TunedModel(nn.Module):
    """A public model with a head, which maps records and their c ordinary columns to (n, k) outputs.

    Without gradients, :meth:`Pretrained.embed` computes the features, as this takes little memory.
    """

    def __init__(self, encoder: Pretrained, head: Head, columns: int = 0) -> None:
        super().__init__()
        self.encoder, self.head, self.columns = encoder, head, columns

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, k) outputs of (n, ...) records."""
        records = inputs[:, : inputs.shape[1] - self.columns] if self.columns else inputs
        followed = torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None
        by_parts = not torch.is_grad_enabled() and not followed
        features = self.encoder.embed(records) if by_parts else self.encoder(records)
        if self.columns:
            features = torch.cat([features, inputs[:, inputs.shape[1] - self.columns :]], dim=1)
        outputs: Tensor = self.head(features)
        return outputs


def with_lora(
    model: TunedModel, *, rank: int, alpha: float, targets: Sequence[str], blocks: Sequence[int] = ()
) -> TunedModel:
    """Add LoRA to the body. LoRA and the head are trained; the body's weights stay fixed.

    Args:
        model: the model to change.
        rank: the rank r of each update B A, which is initially 0.
        alpha: a number; each update is multiplied by alpha / r.
        targets: the layers that get an update, by the last part of their names, such as "query".
        blocks: the numbers of the transformer blocks whose layers get an update; all blocks if empty.

    Raises:
        InvalidInput: if the body cannot be tuned, or has no such layer.
        MissingExtra: if peft is not installed.
    """
    peft = needed("peft", "lora", '[model] tune = "lora"')
    layers = {name.rpartition(".")[2]: layer for name, layer in _body(model).named_modules()}
    for target in targets:
        if target not in layers:
            linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
            raise InvalidInput(
                f'[lora] targets: the public model has no layer "{target}"; it has {", ".join(linear[:8])}.'
            )
    transposed = {type(layers[target]).__name__ == "Conv1D" for target in targets}
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets),
        layers_to_transform=list(blocks) or None,
        fan_in_fan_out=transposed == {True},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft and transformers, about each other
        model.encoder.body = peft.get_peft_model(_body(model), settings)
    return model


def with_all_weights(model: TunedModel) -> TunedModel:
    """Make the body's weights trainable too.

    Raises:
        InvalidInput: if the body cannot be tuned.
    """
    _body(model).requires_grad_(True)
    return model


def merged(model: TunedModel) -> TunedModel:
    """Merge LoRA into the weights that it updates, and freeze them, so that the model does not need peft."""
    merge: Any = getattr(model.encoder.body, "merge_and_unload", None)
    if merge is not None:
        model.encoder.body = merge()
    model.encoder.requires_grad_(False)
    return model


def _body(model: TunedModel) -> nn.Module:
    body = model.encoder.body
    if not model.encoder.tunable:
        raise InvalidInput(
            '[model] tune must be "head" for a .pt2 or .onnx file: its weights cannot be trained. For "lora" '
            'or "full", give a file of weights instead, and name its network with [model] architecture.'
        )
    return body
