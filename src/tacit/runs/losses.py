"""Which loss does a run minimise? One loss per record, by the kind of its data."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.datasets import Dataset
from tacit.losses import classification, masked
from tacit.runs.checks import check_class_weights, check_loss


def losses_of(
    data: Dataset, name: str | None = None, class_weights: Mapping[str, float] | None = None
) -> PerExampleLoss:
    """One loss per record: cross-entropy for classes, -log p of a record of text, else squared error.

    Of text in tokens it is the mean of -log p over the tokens of the record.

    Args:
        name: that of the configuration, ``[training] loss``; "causal" is the mean per character of text.
        class_weights: declared weights of the losses of some classes; 1 for the others.

    Raises:
        InvalidInput: the loss of that name, or a weight, does not fit the data.
    """
    check_loss(name, _targets(data))
    check_class_weights(class_weights or {}, data.classes)
    if class_weights:
        return classification(weight=[class_weights.get(name, 1.0) for name in data.classes])
    if data.vocabulary:
        return masked()
    if data.alphabet:
        return text_loss if name is None else masked()  # the targets are shifted already
    return _classification_loss if data.classes else _regression_loss


def _targets(data: Dataset) -> str:
    if data.tokens:
        return "tokens" if data.vocabulary else "characters"
    return "classes" if data.classes else "numbers"


def _classification_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def text_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """-log p of each record, in nats: (n, L) and (n, L) to (n,); targets of -100 cost nothing."""
    each = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).sum(dim=1)


def _regression_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    residual: Tensor = model(inputs).reshape(targets.shape) - targets
    return residual.square().reshape(len(targets), -1).mean(1)
