"""The tasks of a model: targets to predict from a record.  A new kind of target is one class.

Letters: n records, K classes, L characters or tokens of a record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.datasets import Dataset, TensorPair
from tacit.losses import classification, masked, multilabel
from tacit.runs.kinds.source import check_class_weights, check_loss
from tacit.training.evaluation import Evaluation


class Task(ABC):
    """The learning of the targets of ``data``: outputs, loss, baseline and words."""

    targets: ClassVar[str]  # the targets in messages
    name: ClassVar[str]  # the task in the file of a model

    def __init__(self, data: Dataset) -> None:
        self.data = data

    @property
    def outputs(self) -> int:
        """The number of outputs for a record, or for each character of text."""
        return math.prod(self.data.train.targets.shape[1:])

    @abstractmethod
    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        """Return the loss; ``name`` is that of ``[training] loss``, which fits the task."""

    @abstractmethod
    def baseline(self) -> tuple[float, str, str]:
        """Return a constant answer's public score, its description, and its certainty.

        The certainty is "at least" or "assumed".  Nothing is counted from records.
        """

    def uninformed_loss(self) -> float | None:
        """Return the loss of a model that predicts equal probabilities; None if it is not public."""
        return None

    def expected_shape(self, records: int) -> tuple[int, ...]:
        """Return the shape of the outputs of a model for this number of records."""
        return (records, self.outputs)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        """Return whether outputs have the expected shape; here, in any form of the same size."""
        return math.prod(shape) == math.prod(self.expected_shape(records))

    def evaluated(self, pair: TensorPair) -> TensorPair:
        """Convert records and targets to the form that :func:`tacit.evaluate` needs."""
        return pair

    def in_words(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation, with the words of the task for its measure."""
        return evaluation


@final
class Numbers(Task):
    """One number or several, scaled to [-1, 1]; the loss is the mean squared error."""

    targets = name = "numbers"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return _squared_error

    def baseline(self) -> tuple[float, str, str]:
        # The variance of the uniform distribution on [-1, 1].
        words = "a constant answer in the middle of the bounds, if targets are uniform between them"
        return 1.0 / 3.0, words, "assumed"


@final
class Labels(Task):
    """Labels, of which any number may be true; the loss is the mean of their cross-entropies."""

    targets = name = "labels"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return multilabel()

    def baseline(self) -> tuple[float, str, str]:
        return 0.5, "a constant answer, if each label is as often true as false", "at least"

    def uninformed_loss(self) -> float | None:
        return math.log(2)

    def evaluated(self, pair: TensorPair) -> TensorPair:
        return TensorPair(pair.inputs, pair.targets.bool())


@final
class Classes(Task):
    """One of K classes; the loss is the cross-entropy, times the declared weight of the class."""

    targets = name = "classes"

    @property
    def outputs(self) -> int:
        return len(self.data.classes)

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        if class_weights:
            return classification(weight=[class_weights.get(each, 1.0) for each in self.data.classes])
        return _cross_entropy

    def baseline(self) -> tuple[float, str, str]:
        # The most common class has at least 1/K of the records; its true share is not public.
        return (
            1.0 / self.outputs,
            f"a constant answer, if all {self.outputs} classes are equally common",
            "at least",
        )

    def uninformed_loss(self) -> float | None:
        return math.log(self.outputs)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        return shape == self.expected_shape(records)


class Characters(Task):
    """The next character at each place of a text; the loss is -log p of the record, or its mean."""

    targets, name = "characters", "text"

    @property
    def outputs(self) -> int:
        return self.data.tokens  # characters include the end of a line

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return text_loss if name is None else masked()  # the targets are shifted already

    def baseline(self) -> tuple[float, str, str]:
        words = f"a constant answer, if all {self.outputs} {self.targets} are equally common"
        return 1.0 / self.outputs, words, "at least"

    def expected_shape(self, records: int) -> tuple[int, ...]:
        return (records, *self.data.input_shape, self.outputs)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        return shape == self.expected_shape(records)


@final
class Tokens(Characters):
    """The next token at each place of a document; the loss is the mean of -log p over the record."""

    targets = "tokens"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return masked()

    def uninformed_loss(self) -> float | None:
        return math.log(self.outputs)

    def in_words(self, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, measure=evaluation.measure.replace("per character", "per token"))


def task_of(data: Dataset) -> Task:
    """Return the task that the targets of a data set set."""
    kinds: tuple[tuple[object, type[Task]], ...] = (
        (data.vocabulary, Tokens),
        (data.alphabet, Characters),
        (data.labels, Labels),
        (data.classes, Classes),
    )
    return next((kind for present, kind in kinds if present), Numbers)(data)


def losses_of(
    data: Dataset, name: str | None = None, class_weights: Mapping[str, float] | None = None
) -> PerExampleLoss:
    """Return the per-example loss of the data's task.

    Args:
        name: the value of ``[training] loss``; "causal" averages the loss of text over its characters.
        class_weights: declared weights for the losses of some classes; other classes have weight 1.
    """
    task = task_of(data)
    check_loss(name, task.targets)
    check_class_weights(class_weights or {}, data.classes)
    return task.loss(name, class_weights or {})


def _squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    residual: Tensor = model(inputs).reshape(targets.shape) - targets
    return residual.square().reshape(len(targets), -1).mean(1)


def _cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def text_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return -log p of each record in nats: (n, L) and (n, L) to (n,); targets of -100 are ignored."""
    each = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).sum(dim=1)
