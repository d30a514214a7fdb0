"""Exact scores of a model on test records, and of a majority-class baseline.

Letters: n records, k labels.
"""

# They reveal something about the test records, which the run's guarantee does not cover, and the statement
# says so.  If these records belong to the data set of a ledger, use :func:`tacit.training.score_held_out`.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from tacit.clipping.fast import outputs_alone
from tacit.errors import InvalidInput
from tacit.losses import logits_of
from tacit.training.tensors import (
    as_for_zeros,
    cast_numbers,
    check_classes,
    floating_type,
    tensor_of,
    without_numbers,
)


def roc_auc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Compute the area under the ROC curve; ties count as half.

    >>> roc_auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    count = int(positive.sum())
    negatives = len(positive) - count
    if count == 0 or negatives == 0:
        return None
    below = rankdata(scores)[positive].sum() - count * (count + 1) / 2
    return float(below / (count * negatives))


def auc_deviation(negatives: int, positives: int) -> float:
    """Compute the standard deviation of the AUC of uninformative scores (Mann and Whitney 1947).

    >>> round(auc_deviation(50, 50), 3)
    0.058
    """
    return math.sqrt((negatives + positives + 1) / (12 * negatives * positives))


def auc_spread(auc: float, negatives: int, positives: int) -> float:
    """Compute the standard deviation of an AUC over samples (Hanley and McNeil 1982, Radiology 143(1)).

    >>> round(auc_spread(0.5, 50, 50), 3), round(auc_spread(0.8, 900, 13), 3)
    (0.058, 0.074)
    """
    both_positive, both_negative = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (both_positive - auc**2)
    variance += (negatives - 1) * (both_negative - auc**2)
    return math.sqrt(variance / (positives * negatives))


def average_precision(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Compute the mean precision over all thresholds, weighted by the recall that each adds."""
    count = int(positive.sum())
    if count == 0 or count == len(positive):
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last of tied scores
    hits = np.cumsum(positive[order])[ends]
    return float(np.sum(np.diff(hits, prepend=0) / count * hits / (ends + 1)))


@dataclass(frozen=True)
class LabelFigures:
    """The counts and the AUC of one of k labels; a logit of at least 0 predicts the label.

    ``auc`` is None if all records have the label, if none has it, or if an output is not finite.
    """

    positives: int
    negatives: int
    true_positives: int
    false_positives: int
    auc: float | None

    @property
    def share(self) -> float:
        return self.positives / (self.positives + self.negatives)

    @property
    def recall(self) -> float | None:
        """The share of records with the label that are predicted to have it; None if there are none."""
        return self.true_positives / self.positives if self.positives else None

    @property
    def precision(self) -> float | None:
        """The share of records predicted to have the label that have it; None if there are none."""
        predictions = self.true_positives + self.false_positives
        return self.true_positives / predictions if predictions else None

    @property
    def accuracy(self) -> float:
        return (self.true_positives + self.negatives - self.false_positives) / (
            self.positives + self.negatives
        )

    @property
    def constant_accuracy(self) -> float:
        """The accuracy of the majority class."""
        return max(self.share, 1.0 - self.share)


def label_figures(logits: Tensor, labels: Tensor) -> tuple[LabelFigures, ...]:
    """Compute the metrics of each label, from (n, k) float32 ``logits`` and (n, k) bool ``labels``."""
    ranked = bool(logits.isfinite().all())
    return tuple(
        LabelFigures(
            positives=int(true.sum()),
            negatives=int((~true).sum()),
            true_positives=int((true & (own >= 0)).sum()),
            false_positives=int((~true & (own >= 0)).sum()),
            auc=roc_auc(own.double().numpy(), true.numpy()) if ranked else None,
        )
        for own, true in zip(logits.T, labels.T, strict=True)
    )


_ROWS = 1024
_MOST_NUMBERS = 1 << 26  # the most outputs for text in memory at once
_MOST_CLASSES = 200  # rows and columns of the largest confusion matrix
_PADDING = -100  # the target of positions that do not count, as ``ignore_index`` in torch


@dataclass(frozen=True)
class TargetErrors:
    """Errors in one target of a regression, in its own units if :func:`evaluate` got its bounds."""

    mean_absolute: float
    root_mean_squared: float
    constant_mean_absolute: float
    constant_root_mean_squared: float


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's outputs for n test records, and the true targets.  Tacit never writes them to a file.

    For classes, ``outputs`` are (n, classes) logits and ``truth`` is (n,).  For numbers, both are (n,
    targets), scaled to [-1, 1] from ``bounds``.  For text, ``outputs`` (n, 2) are the number of correct
    characters and the summed loss, and ``truth`` (n,) is the number of characters.
    """

    outputs: NDArray[Any]
    truth: NDArray[Any]
    bounds: tuple[tuple[float, float], ...] = ()

    def in_units(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return numeric outputs and truth in the targets' own units; unchanged if no bounds are known."""
        low, high = np.array(self.bounds or ((-1.0, 1.0),), dtype=np.float64).T
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        return middle + half * self.outputs, middle + half * self.truth


@dataclass(frozen=True)
class PairFigures:
    """Metrics of a model, and of the public model that it began with, on pairs of answers.

    ``count`` is the number of pairs. ``margin`` is the mean difference of the implicit rewards, beta log(p /
    p of the public model), between chosen and rejected answer. ``by_probability`` and
    ``reference_by_probability`` are the shares of pairs in which the chosen answer is more probable under the
    model and under the public model.
    """

    count: int
    margin: float
    by_probability: float
    reference_by_probability: float


@dataclass(frozen=True)
class SurvivalFigures:
    """Metrics of a survival model, and the Kaplan-Meier curve of the test records.

    ``brier`` and ``constant_brier`` are integrated Brier scores; the smaller, the better.  ``predicted`` and
    ``observed`` are the model's mean survival curve and the Kaplan-Meier curve, at the ``edges`` of the bins.
    """

    records: int
    events: int
    brier: float
    constant_brier: float
    edges: tuple[float, ...]
    predicted: tuple[float, ...]
    observed: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model on test records.

    :func:`evaluate` computes them exactly.  :func:`score_held_out` releases a noisy score; its ``baseline``
    is public or None, and the other exact metrics are missing.

    Attributes:
        score: the main metric, named by ``measure``.  Classes and text: the accuracy.  Numbers: R².  Labels:
            the mean AUC over the labels with both positive and negative records, or NaN without such labels.
            Preferences: the share of pairs in which the chosen answer has the larger reward.  Survival: the
            concordance (:func:`tacit.training.survival.concordance`).
        loss: the mean squared error for numbers, and the mean cross-entropy for classes, labels and text.
        per_class: the recall of each class, (classes,); 0 without records.
        measure: the name of the score, such as "accuracy".
        interval: for a noisy score, (low, high), which contains the exact score in 95 % of releases.
        noise: for a noisy score, the standard deviation of the noise, in records.
        steps: for a noisy score, the number of training steps before the release.
        baseline: the score of always predicting ``constant`` or, for numbers, the mean target; 0.5 for
            labels, preferences and survival.
        constant: the majority class or token; None for other targets.
        constant_loss: for text, the unigram entropy in nats: the loss of the best fixed distribution.
        records, predicted: for classes, how many records each class has, and how many are predicted as it.
        confusion: ``confusion[i][j]`` is the number of records of class i that are predicted as class j;
            empty for more than 200 classes.
        balanced: the mean recall of the classes that have records.
        auc, average_precision: for two classes, the area under the ROC curve and the average precision; the
            second class is positive.  None if a class has no records or an output is not finite.
        errors: for numbers, the mean absolute and root mean squared error of each target.
        labels: for labels, the counts and the AUC of each label.
        pairs: for preferences, a comparison with the public model that training began with.
        survival: for survival, the Brier scores and curves.
        not_finite: the number of records with NaN or infinite outputs.
        groups: for a noisy score by group, one dictionary per column: its name (``by``), the ``names`` of its
            groups, their noisy ``sums`` (:func:`tallies`), and the standard deviation of the ``noise``.
        answers: the model's outputs and the true targets.
    """

    score: float
    loss: float | None
    per_class: tuple[float, ...]
    measure: str = "accuracy"
    interval: tuple[float, float] | None = None
    noise: float | None = None
    steps: int | None = None
    baseline: float | None = None
    constant: int | None = None
    constant_loss: float | None = None
    records: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    balanced: float | None = None
    auc: float | None = None
    average_precision: float | None = None
    errors: tuple[TargetErrors, ...] = ()
    labels: tuple[LabelFigures, ...] = ()
    pairs: PairFigures | None = None
    survival: SurvivalFigures | None = None
    not_finite: int = 0
    groups: tuple[Mapping[str, Any], ...] = ()
    answers: Answers | None = field(default=None, compare=False, repr=False)


def evaluate(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, target_bounds: Sequence[tuple[float, float]] = ()
) -> Evaluation:
    """Evaluate a model on test records, exactly and without privacy.

    The model is in evaluation mode during the call.

    Args:
        model: the model.  It may return an object with ``logits``.  For text, it returns (n, L, V) logits.
        inputs: the inputs of the n test records, (n, ...).  For text, (n, L) int64.
        targets: classes, (n,) int64; numbers, (n,) or (n, k) floats; labels, (n, k) bool; or text, (n, L)
            int64 with -100 at positions to ignore.
        target_bounds: for numbers that you scaled to [-1, 1], the original (low, high) of each target.  The
            errors are then in original units.

    >>> model = nn.Linear(1, 2)  # predicts class 0 for every record
    >>> _ = model.weight.data.zero_(), model.bias.data.copy_(torch.tensor([1.0, 0.0]))
    >>> scores = evaluate(model, torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))
    >>> scores.score, scores.baseline, scores.balanced, scores.confusion
    (0.75, 0.75, 0.5, ((3, 0), (1, 0)))
    """
    inputs, targets = _pair(model, inputs, targets)
    if targets.ndim == 2 and not targets.is_floating_point() and targets.dtype is not torch.bool:
        return _evaluate_text(model, inputs, targets)
    outputs = outputs_of(model, inputs)
    if targets.dtype is torch.bool:
        _check_shape(outputs, targets, fits=targets.ndim == 2 and outputs.numel() == targets.numel())
        return _evaluate_labels(outputs.reshape(targets.shape), targets)
    if targets.is_floating_point():
        _check_shape(outputs, targets, fits=outputs.numel() == targets.numel())
        return _evaluate_numbers(outputs.reshape(targets.shape), targets.float(), target_bounds)
    _check_shape(outputs, targets, fits=outputs.ndim == 2 and len(outputs) == len(targets))
    check_classes(targets, outputs.shape[1])
    return _evaluate_classes(outputs, targets)


def _check_shape(outputs: Tensor, targets: Tensor, *, fits: bool) -> None:
    if not fits:
        kinds = "numbers, of the same shape" if targets.is_floating_point() else "(n, classes)"
        kinds = "(n, k) logits for (n, k) labels" if targets.dtype is torch.bool else kinds
        raise InvalidInput(
            f"the model must return {kinds}; got outputs of shape {tuple(outputs.shape)} for targets of "
            f"shape {tuple(targets.shape)} and type {str(targets.dtype).removeprefix('torch.')}. Integer "
            "targets are classes, floats are numbers, and bools are labels. For classes, use targets.long()."
        )


def _evaluate_classes(outputs: Tensor, targets: Tensor) -> Evaluation:
    classes, answers = outputs.shape[1], outputs.argmax(1)
    right = torch.bincount(targets[answers == targets], minlength=classes)
    records = torch.bincount(targets, minlength=classes)
    recall = right.double() / records.clamp(min=1)
    finite = outputs.isfinite().all(1)
    auc = precision = None
    confusion: tuple[tuple[int, ...], ...] = ()  # by true class (rows) and predicted class (columns)
    if classes <= _MOST_CLASSES:
        counts = torch.bincount(targets * classes + answers, minlength=classes * classes)
        confusion = tuple(tuple(row) for row in counts.reshape(classes, classes).tolist())
    if classes == 2 and bool(finite.all()):
        ranked, positive = (outputs[:, 1].double() - outputs[:, 0].double()).numpy(), targets.numpy() == 1
        auc, precision = roc_auc(ranked, positive), average_precision(ranked, positive)
    return Evaluation(
        score=float((answers == targets).double().mean()),
        loss=float(F.cross_entropy(outputs, targets)),
        per_class=tuple(recall.tolist()),
        baseline=float(records.max()) / len(targets),
        constant=int(records.argmax()),
        records=tuple(records.tolist()),
        predicted=tuple(torch.bincount(answers, minlength=classes).tolist()),
        confusion=confusion,
        balanced=float(recall[records > 0].mean()),
        auc=auc,
        average_precision=precision,
        not_finite=int((~finite).sum()),
        answers=Answers(outputs.numpy(), targets.numpy()),
    )


def _evaluate_labels(outputs: Tensor, targets: Tensor) -> Evaluation:
    finite = outputs.isfinite().all(1)
    labels = label_figures(outputs, targets)
    aucs = [one.auc for one in labels if one.auc is not None]
    return Evaluation(
        score=sum(aucs) / len(aucs) if aucs else math.nan,
        loss=float(F.binary_cross_entropy_with_logits(outputs, targets.float())),
        per_class=(),
        measure="mean AUC of the labels",
        baseline=0.5,
        labels=labels,
        not_finite=int((~finite).sum()),
    )


def _evaluate_numbers(outputs: Tensor, targets: Tensor, bounds: Sequence[tuple[float, float]]) -> Evaluation:
    """Evaluate outputs against targets of the same shape, (n, k) or (n,); one R² covers all targets."""
    residual = (outputs - targets).double().reshape(len(targets), -1)
    spread = (targets - targets.mean(0)).double().reshape(len(targets), -1)
    if bounds and len(bounds) != residual.shape[1]:
        raise InvalidInput(
            f"target_bounds must have one pair for each of the {residual.shape[1]} targets; "
            f"got {len(bounds)}."
        )
    units = [(high - low) / 2.0 for low, high in bounds] or [1.0] * residual.shape[1]
    return Evaluation(
        score=float(1 - residual.square().sum() / spread.square().sum()),
        loss=float(residual.square().mean()),
        per_class=(),
        measure="R²",
        baseline=0.0,
        errors=tuple(
            TargetErrors(*_errors(residual[:, k], unit), *_errors(spread[:, k], unit))
            for k, unit in enumerate(units)
        ),
        not_finite=int((~residual.isfinite()).any(1).sum()),
        answers=Answers(
            outputs.double().reshape(len(targets), -1).numpy(),
            targets.double().reshape(len(targets), -1).numpy(),
            tuple(bounds),
        ),
    )


def _errors(differences: Tensor, unit: float) -> tuple[float, float]:
    return unit * float(differences.abs().mean()), unit * float(differences.square().mean().sqrt())


def _rows_at_once(model: nn.Module, inputs: Tensor) -> int:
    return min(_ROWS, max(1, _MOST_NUMBERS // outputs_of(model, inputs[:1]).numel()))


def _evaluate_text(model: nn.Module, inputs: Tensor, targets: Tensor) -> Evaluation:
    """Evaluate text in parts, because the logits of all characters at once would not fit into memory."""
    sums, not_finite = [], 0
    rows = _rows_at_once(model, inputs)
    for part, following in zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True):
        outputs = outputs_of(model, part)
        logits, truth = outputs.flatten(0, 1), following.flatten()
        check_classes(truth, logits.shape[1], padding=_PADDING)
        losses = F.cross_entropy(logits, truth, ignore_index=_PADDING, reduction="none")
        right = logits.argmax(1) == truth
        sums.append(torch.stack([right, losses], dim=1).double().reshape(*following.shape, 2).sum(1))
        not_finite += int((~outputs.isfinite()).flatten(1).any(1).sum())
    counts = torch.bincount(targets[targets != _PADDING])
    characters = int(counts.sum())
    answers = Answers(torch.cat(sums).numpy(), (targets != _PADDING).sum(1).numpy())
    score, loss = (answers.outputs.sum(0) / characters).tolist()
    return Evaluation(
        score,
        loss,
        (),
        "accuracy per character",
        baseline=float(counts.max()) / characters,
        constant=int(counts.argmax()),
        constant_loss=float(torch.special.entr(counts.double() / characters).sum()),
        not_finite=not_finite,
        answers=answers,
    )


def answer_probabilities(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities (n, k) of the k answers to each of n prompts, (n, k, L) each.

    They are sums over the targets other than -100.
    """
    answers, following = inputs.flatten(0, 1), targets.flatten(0, 1)
    rows = _rows_at_once(model, answers)
    sums = [
        -F.cross_entropy(
            outputs_of(model, part).transpose(1, 2), truth, ignore_index=_PADDING, reduction="none"
        ).sum(1)
        for part, truth in zip(torch.split(answers, rows), torch.split(following, rows), strict=True)
    ]
    return torch.cat(sums).reshape(inputs.shape[:2])


def evaluate_pairs(own: Tensor, reference: Tensor, beta: float) -> Evaluation:
    """Evaluate preferences from the log-probabilities (n, 2) of chosen and rejected answers.

    ``own`` are those of the model, ``reference`` those of the public model that it began with. A pair with
    equal rewards counts as half.

    >>> own = torch.tensor([[-1.0, -3.0], [-2.0, -2.0]])
    >>> evaluate_pairs(own, torch.tensor([[-2.0, -1.0], [-2.0, -2.0]]), 0.1).score
    0.75
    """
    margins = beta * (own - reference).double() @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    return Evaluation(
        score=_share_above(margins),
        loss=float(-F.logsigmoid(margins).mean()),
        per_class=(),
        measure="preference accuracy",
        baseline=0.5,
        pairs=PairFigures(
            len(margins),
            float(margins.mean()),
            _share_above(own[:, 0] - own[:, 1]),
            _share_above(reference[:, 0] - reference[:, 1]),
        ),
        not_finite=int((~own.isfinite()).any(1).sum()),
    )


def _share_above(margins: Tensor) -> float:
    return float((margins.sign().double().mean() + 1) / 2)


def record_scores(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Score the model on each record, (n,) in [0, 1]; the arguments are those of :func:`evaluate`.

    For a class, 1 if it is right.  For labels and text, the share of right labels or characters.  For
    numbers, one minus a quarter of the mean squared error, clamped to [-1, 1].  For NaN outputs, 0.

    **Guarantee**

    * A record's score depends on no other record: the model gets one at a time, isolated as in training,
      because in a batch the rounding of its outputs depends on the number of records.
    """
    return _each_alone(model, inputs, targets, _score_of).nan_to_num(0.0).clamp(0.0, 1.0)


def record_tallies(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return :func:`tallies` of a model; as :func:`record_scores`, a row depends on no other record."""
    return _each_alone(model, inputs, targets, lambda *pair: tallies(*pair)[0])


def _each_alone(
    model: nn.Module, inputs: Tensor, targets: Tensor, figures: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    inputs, targets = _pair(model, inputs, targets)
    device, floating = _device(model), floating_type(model)
    sample = cast_numbers(inputs[:2], floating)

    def output_of(row: Tensor) -> Tensor:
        return logits_of(model(row))

    with evaluation_mode(model), without_numbers(), as_for_zeros(model, sample):
        rows = (cast_numbers(row, floating).to(device) for row in torch.split(inputs, 1))
        outputs = outputs_alone(model, output_of, rows)
        found = [
            figures(output.float().cpu(), target)
            for output, target in zip(outputs, torch.split(targets, 1), strict=True)
        ]
    return torch.stack(found)


def tallies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return what each record adds to the sums of its group, (n, D) float64.

    Two classes, D = 5: a 1 for (true class, predicted class), in the order 00, 01, 10, 11; then the
    probability of the second class, less one half.  Several classes, D = 3: a 1 if the answer is wrong, a 1
    if it is right, and its probability less one half.  One number in [-1, 1], D = 3: a quarter of the squared
    error, its difference from 1, and a quarter of the error, of predictions in [-1, 1].

    **Guarantee**

    * A row depends on that record alone.  Its entries but the last are not negative and have a sum of at most
      1, and the last is at most one half in size, whatever the model answers.

    >>> tallies(torch.tensor([[0.0, 0.0], [9.0, -9.0]]), torch.tensor([0, 1])).round(decimals=3).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, -0.5]]
    """
    if targets.is_floating_point():
        truth = targets.double().flatten().clamp(-1.0, 1.0)
        error = (outputs.double().flatten().clamp(-1.0, 1.0) - truth).nan_to_num(2.0)
        return torch.stack([error.square() / 4.0, 1.0 - error.square() / 4.0, error / 4.0], dim=1)
    answers, chances = outputs.argmax(1), outputs.double().softmax(1)
    two = outputs.shape[1] == 2
    cells = F.one_hot(2 * targets + answers, 4) if two else F.one_hot((answers == targets).long(), 2)
    lean = ((chances[:, 1] if two else chances.amax(1)) - 0.5).nan_to_num(0.0)
    return torch.cat([cells, lean[:, None]], dim=1)


def _score_of(output: Tensor, target: Tensor) -> Tensor:
    """Score one record; its ``output`` and ``target`` have a leading axis of one."""
    if target.is_floating_point():
        errors = output.reshape(target.shape).clamp(-1.0, 1.0) - target.clamp(-1.0, 1.0)
        return 1.0 - errors.double().square().mean() / 4.0
    if target.dtype is torch.bool:
        return ((output.reshape(target.shape) >= 0) == target).double().mean()
    if target.ndim == 1:
        return (output.argmax(1) == target).double().mean()
    scored = target != _PADDING
    right = ((output.argmax(2) == target) & scored).sum().double()
    return right / scored.sum().clamp(min=1)


def measure_of(targets: Tensor) -> tuple[str, Callable[[float], float]]:
    """Return the name of the metric of :func:`record_scores`, and a function from the mean score to it."""
    if targets.is_floating_point():
        return "mean squared error of targets in [-1, 1]", lambda share: 4.0 * (1.0 - share)
    if targets.dtype is torch.bool:
        return "accuracy per label", lambda share: share
    if targets.ndim == 1:
        return "accuracy", lambda share: share
    return "accuracy per character, all records weighted equally", lambda share: share


def _pair(model: object, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Check inputs and targets, and cast the targets as in training; inputs are cast later, in parts."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    pair = [tensor_of(inputs, "inputs"), cast_numbers(tensor_of(targets, "targets"), floating_type(model))]
    rows = [len(part) if part.ndim else 0 for part in pair]
    if rows[0] == 0 or rows[0] != rows[1]:
        raise InvalidInput(f"give as many targets as inputs, at least one; got {rows[1]} and {rows[0]}.")
    return pair[0], pair[1]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    device, floating = _device(model), floating_type(model)
    sample = cast_numbers(inputs[:2], floating)
    with evaluation_mode(model), torch.no_grad(), without_numbers(), as_for_zeros(model, sample):
        parts = (
            logits_of(model(cast_numbers(part, floating).to(device))) for part in torch.split(inputs, _ROWS)
        )
        return torch.cat([part.float().cpu() for part in parts])


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
