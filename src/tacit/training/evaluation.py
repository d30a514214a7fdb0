"""How well a model does on records that it was not trained on.

The numbers say something about the test records; the run's guarantee covers the training records alone,
and the statement says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput

__all__ = ["Evaluation", "evaluate", "evaluation_mode"]

_ROWS = 1024


@dataclass(frozen=True)
class Evaluation:
    """``score`` is accuracy for classes, R^2 for numbers; ``loss`` the mean cross-entropy or squared error.

    ``per_class``: accuracy per class, (classes,), empty for regression.
    """

    score: float
    loss: float
    per_class: tuple[float, ...]


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> Evaluation:
    """Evaluate on ``inputs`` (n, ...) and ``targets``: (n,) int64 classes, or (n, k) or (n,) numbers.

    The model is in evaluation mode meanwhile, and all its parts in their old modes afterwards.
    """
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise InvalidInput(
            f"need as many targets as inputs, at least one; got {len(targets)} and {len(inputs)}."
        )
    outputs = _outputs(model, inputs)
    if targets.is_floating_point():
        residual = (outputs.reshape(targets.shape) - targets).double().square()
        spread = (targets - targets.mean(0)).double().square().sum()
        return Evaluation(float(1 - residual.sum() / spread), float(residual.mean()), ())
    right = (outputs.argmax(1) == targets).double()
    classes = range(outputs.shape[1])
    return Evaluation(
        score=float(right.mean()),
        loss=float(torch.nn.functional.cross_entropy(outputs, targets)),
        per_class=tuple(
            float(right[targets == c].mean()) if bool((targets == c).any()) else 0.0 for c in classes
        ),
    )


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
