"""How well a model does on records that it was not trained on.

The numbers say something about the test records; the run's guarantee covers the training records alone,
and the statement says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import InvalidInput

__all__ = ["Evaluation", "evaluate", "evaluation_mode"]

_ROWS = 1024
_PADDING = -100  # a target that is none, as in torch


@dataclass(frozen=True)
class Evaluation:
    """``score`` is accuracy for classes and for the characters of text, R^2 for numbers; ``loss`` the mean
    cross-entropy, of text per character, or squared error.

    ``per_class``: accuracy per class, (classes,), empty for regression and text; ``measure``: what the score
    is, in words.
    """

    score: float
    loss: float
    per_class: tuple[float, ...]
    measure: str = "accuracy"


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> Evaluation:
    """Evaluate on ``inputs`` (n, ...) and ``targets``: (n,) int64 classes, or (n, k) or (n,) numbers.

    Of text both are (n, L) int64, the model gives (n, L, V), and targets of -100 are left out.

    The model is in evaluation mode meanwhile, and all its parts in their old modes afterwards.
    """
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise InvalidInput(
            f"need as many targets as inputs, at least one; got {len(targets)} and {len(inputs)}."
        )
    if targets.ndim == 2 and not targets.is_floating_point():
        return _evaluate_text(model, inputs, targets)
    outputs = _outputs(model, inputs)
    if targets.is_floating_point():
        residual = (outputs.reshape(targets.shape) - targets).double().square()
        spread = (targets - targets.mean(0)).double().square().sum()
        return Evaluation(float(1 - residual.sum() / spread), float(residual.mean()), (), "R²")
    right = (outputs.argmax(1) == targets).double()
    classes = range(outputs.shape[1])
    return Evaluation(
        score=float(right.mean()),
        loss=float(F.cross_entropy(outputs, targets)),
        per_class=tuple(
            float(right[targets == c].mean()) if bool((targets == c).any()) else 0.0 for c in classes
        ),
    )


def _evaluate_text(model: nn.Module, inputs: Tensor, targets: Tensor) -> Evaluation:
    """Part by part: the logits of all characters together would not fit into memory."""
    right, loss = 0, 0.0
    for part, following in zip(torch.split(inputs, _ROWS), torch.split(targets, _ROWS), strict=True):
        logits, wanted = _outputs(model, part).flatten(0, 1), following.flatten()
        right += int((logits.argmax(1) == wanted).sum())
        loss += float(F.cross_entropy(logits, wanted, ignore_index=_PADDING, reduction="sum"))
    characters = int((targets != _PADDING).sum())
    return Evaluation(right / characters, loss / characters, (), "accuracy per character")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, then every module back in its own: a part that is frozen in it must stay so."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad():
        return torch.cat([model(part.to(device)).float().cpu() for part in torch.split(inputs, _ROWS)])
