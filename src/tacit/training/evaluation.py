"""How good is a model on records that it was not trained on?

The numbers of :func:`evaluate` are exact, and say something about the test records.  The run's guarantee does
not cover these, and the statement says so.  For test records that belong to the data set of a ledger there is
:func:`tacit.training.score_held_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.training.values import check_classes, without_numbers

__all__ = ["Evaluation", "evaluate", "evaluation_mode", "measure_of", "record_scores"]

_ROWS = 1024
_PADDING = -100  # a target to leave out, as in torch


@dataclass(frozen=True)
class Evaluation:
    """``score`` is accuracy for classes and for the characters of text, R^2 for numbers; ``loss`` the mean
    cross-entropy, of text per character, or squared error.

    ``per_class``: accuracy per class, (classes,), empty for regression and text; ``measure``: what the score
    is, in words.

    A noisy score has no loss.  ``noise`` is its standard deviation in records; ``interval`` holds the score
    without noise in 95 % of all releases; ``steps`` is the number of steps done when it was released.
    """

    score: float
    loss: float | None
    per_class: tuple[float, ...]
    measure: str = "accuracy"
    interval: tuple[float, float] | None = None
    noise: float | None = None
    steps: int | None = None


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> Evaluation:
    """Evaluate on ``inputs`` (n, ...) and ``targets``: (n,) int64 classes, or (n, k) or (n,) numbers.

    Of text both are (n, L) int64, the model gives (n, L, V), and targets of -100 are left out.

    Meanwhile the model is in evaluation mode; afterwards every part is in its old mode.
    """
    _check_lengths(inputs, targets)
    if targets.ndim == 2 and not targets.is_floating_point():
        return _evaluate_text(model, inputs, targets)
    outputs = _outputs(model, inputs)
    if targets.is_floating_point():
        residual = (outputs.reshape(targets.shape) - targets).double().square()
        spread = (targets - targets.mean(0)).double().square().sum()
        return Evaluation(float(1 - residual.sum() / spread), float(residual.mean()), (), "R²")
    check_classes(targets, outputs.shape[1])
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
    """In parts: the logits of all characters at once would not fit into memory."""
    right, loss = 0, 0.0
    for part, following in zip(torch.split(inputs, _ROWS), torch.split(targets, _ROWS), strict=True):
        logits, wanted = _outputs(model, part).flatten(0, 1), following.flatten()
        check_classes(wanted, logits.shape[1], padding=_PADDING)
        right += int((logits.argmax(1) == wanted).sum())
        loss += float(F.cross_entropy(logits, wanted, ignore_index=_PADDING, reduction="sum"))
    characters = int((targets != _PADDING).sum())
    return Evaluation(right / characters, loss / characters, (), "accuracy per character")


def record_scores(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) how well the model does on each record, in [0, 1]; arguments as of :func:`evaluate`.

    For classes: 1 if the prediction is right, else 0.  For text: the share of characters that are right.  For
    numbers: one less a quarter of the mean squared error, with outputs and targets clamped to [-1, 1].

    **Guarantee**

    * A record's score depends on no other record.  The model gets each by itself: in a batch, the number of
      other records changes the rounding of its outputs, which can change the larger of two.
    """
    _check_lengths(inputs, targets)
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad(), without_numbers():
        pairs = zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True)
        return torch.stack([_score_of(model(row.to(device)).float().cpu(), target) for row, target in pairs])


def _score_of(output: Tensor, target: Tensor) -> Tensor:
    """The score of one record, whose ``output`` and ``target`` have a leading axis of one."""
    if target.is_floating_point():
        errors = output.reshape(target.shape).clamp(-1.0, 1.0) - target.clamp(-1.0, 1.0)
        return 1.0 - errors.double().square().mean() / 4.0
    if target.ndim == 1:
        return (output.argmax(1) == target).double().mean()
    counted = target != _PADDING
    right = ((output.argmax(2) == target) & counted).sum().double()
    return right / counted.sum().clamp(min=1)


def measure_of(targets: Tensor) -> tuple[str, Callable[[float], float]]:
    """What the mean of :func:`record_scores` is, in words, and how to compute it from that mean."""
    if targets.is_floating_point():
        return "mean squared error of targets in [-1, 1]", lambda share: 4.0 * (1.0 - share)
    if targets.ndim == 1:
        return "accuracy", lambda share: share
    return "accuracy per character, all records alike", lambda share: share


def _check_lengths(inputs: Tensor, targets: Tensor) -> None:
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise InvalidInput(
            f"need as many targets as inputs, at least one; got {len(targets)} and {len(inputs)}."
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is back in its own mode, also one that is frozen in it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad(), without_numbers():
        return torch.cat([model(part.to(device)).float().cpu() for part in torch.split(inputs, _ROWS)])
