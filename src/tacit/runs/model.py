"""The task of a run, with its loss, and the model and optimizer that the configuration describes.

Letters: n records, K classes, L characters or tokens of a record.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import models
from tacit.clipping.engine import PerExampleLoss
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.text import PADDING
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, reason_of
from tacit.files import write_atomically
from tacit.losses import classification, masked, multilabel, preference
from tacit.models.additive import Calibrated, InPhases, LeastSquaresHead, StandardLinear, standard_loss
from tacit.models.survival import LinearHazard, survival_loss
from tacit.report.model_card import CardFacts
from tacit.report.statement import Statement
from tacit.runs.checks import importing_from_here
from tacit.runs.config import Config
from tacit.runs.kinds.source import check_class_weights, check_loss
from tacit.runs.sections import LEAST_SQUARES, LINEAR, ModelSection
from tacit.training.evaluation import Evaluation, evaluate, evaluation_mode
from tacit.training.survival import evaluate_survival


class Task(ABC):
    """The learning of the targets of ``data``: outputs, loss, baseline and words."""

    targets: ClassVar[str]  # the targets in messages
    name: ClassVar[str]  # the task in the file of a model

    def __init__(self, data: Dataset) -> None:
        self.data = data

    @property
    def outputs(self) -> int:
        return math.prod(self.data.train.targets.shape[1:])

    @abstractmethod
    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        """Return the loss; ``name`` is that of ``[training] loss``, which fits the task."""

    @abstractmethod
    def baseline(self) -> tuple[float, str, str]:
        """Return the baseline's public score, its description, and its certainty.

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

    def evaluate(self, model: nn.Module, records: TensorPair) -> Evaluation:
        """Evaluate a model exactly."""
        bounds = self.data.target_bounds
        return self.in_words(evaluate(model, *self.evaluated(records), target_bounds=bounds))

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
        words = "the middle of the bounds, if targets are uniform between them"
        return 1.0 / 3.0, words, "assumed"


@final
class Survival(Task):
    """The time until an event; the loss is the negative log-likelihood of the hazards in the bins at risk."""

    targets = name = "survival"

    @property
    def outputs(self) -> int:
        return len(self.data.time_edges) - 1

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return survival_loss(self.data.time_edges)

    def baseline(self) -> tuple[float, str, str]:
        return 0.5, "guessing", ""

    def evaluate(self, model: nn.Module, records: TensorPair) -> Evaluation:
        return evaluate_survival(model, *records, time_edges=self.data.time_edges)


@final
class Labels(Task):
    """Labels, of which any number may be true; the loss is the mean of their cross-entropies."""

    targets = name = "labels"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return multilabel()

    def baseline(self) -> tuple[float, str, str]:
        return 0.5, "the baseline, if each label is as often true as false", "at least"

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
            f"the majority class, if all {self.outputs} classes are equally common",
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
        words = f"the baseline, if all {self.outputs} {self.targets} are equally common"
        return 1.0 / self.outputs, words, "at least"

    def expected_shape(self, records: int) -> tuple[int, ...]:
        return (records, *self.data.input_shape, self.outputs)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        return shape == self.expected_shape(records)


class Tokens(Characters):
    """The next token at each place of a document; the loss is the mean of -log p over the record."""

    targets = "tokens"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return masked()

    def uninformed_loss(self) -> float | None:
        return math.log(self.outputs)

    def in_words(self, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, measure=evaluation.measure.replace("per character", "per token"))


@final
class Preferences(Tokens):
    """The better of two answers; the loss is that of DPO, in comparison with a public model."""

    targets = "pairs"

    def loss(self, name: str | None, class_weights: Mapping[str, float]) -> PerExampleLoss:
        return self.compared(None, beta=0.1)

    def compared(self, reference: nn.Module | None, beta: float) -> PerExampleLoss:
        """Return the loss against a frozen model, or against the model itself without its adapters."""
        of_pairs = preference(beta, reference=reference)

        def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
            learned = F.pad(targets[..., :-1] != PADDING, (1, 0))  # a target is the token that follows
            return of_pairs(model, input_ids=inputs, completion_mask=learned)

        return loss

    def uninformed_loss(self) -> float | None:
        return math.log(2)


def task_of(data: Dataset) -> Task:
    kinds: tuple[tuple[object, type[Task]], ...] = (
        (data.vocabulary and len(data.input_shape) == 2, Preferences),
        (data.vocabulary, Tokens),
        (data.alphabet, Characters),
        (data.time_edges, Survival),
        (data.labels, Labels),
        (data.classes, Classes),
    )
    return next((kind for present, kind in kinds if present), Numbers)(data)


def losses_of(
    data: Dataset, name: str | None = None, class_weights: Mapping[str, float] | None = None
) -> PerExampleLoss:
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


Factory: TypeAlias = Callable[[tuple[int, ...], int], nn.Module]
"""A user's own function that makes a module, given the shape of one record and the number of outputs."""


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}


def is_calibrated(config: Config, data: Dataset) -> bool:
    """Return whether the run's last steps bring the mean probabilities to the shares of the classes.

    Averaged weights and other optimizers than SGD would not take these steps as they are meant.
    """
    plain_steps = config.optimizer.name == "sgd" and config.training.ema_decay is None
    return config.model.name in LINEAR and isinstance(task_of(data), Classes) and plain_steps


def in_training(config: Config, data: Dataset, model: nn.Module) -> nn.Module:
    """Return the module that the session trains; :func:`tacit.models.additive.released` is its inverse."""
    if isinstance(model, nn.Sequential) and is_calibrated(config, data):
        return Calibrated(model, len(data.classes)).to(next(model.parameters()).device)
    return model


def new_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    section = config.optimizer
    settings: dict[str, float] = {"lr": section.learning_rate, "weight_decay": section.weight_decay}
    if section.momentum:
        settings["momentum"] = section.momentum
    if isinstance(model, InPhases):
        return _OPTIMIZERS[section.name](model.groups(), **settings)
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    rate = section.head_learning_rate
    groups: list[dict[str, Any]] = [{"params": [p for name, p in parameters if not _of_head(name, rate)]}]
    if of_head := [p for name, p in parameters if _of_head(name, rate)]:
        groups.append({"params": of_head, "lr": rate})
    try:
        return _OPTIMIZERS[section.name](groups, **settings)
    except ValueError as problem:
        raise InvalidInput(f"[optimizer] {problem}.") from None


def _of_head(name: str, rate: float | None) -> bool:
    return rate is not None and name.startswith("head.")


def begin_step(
    config: Config, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int
) -> None:
    section = config.optimizer
    if isinstance(model, InPhases):
        model.begin_step(optimizer, step, steps)
    elif section.falling:
        share = min(1.0, 2.0 * (1.0 - step / steps))
        rates = (section.learning_rate, section.head_learning_rate or section.learning_rate)
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = share * rate


def device_of(name: str, setting: str = "[run] device") -> torch.device:
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0]
        raise InvalidInput(
            f'{setting} = "{name}" cannot be used: {reason} Set device = "cpu", which always works.'
        ) from None


def build_model(
    section: ModelSection,
    input_shape: tuple[int, ...],
    outputs: int,
    factory: Factory | None = None,
    *,
    task: str = "",
) -> nn.Module:
    """Build the model of a section for a task, by name, with weights from torch's own generator."""
    if section.name == LEAST_SQUARES:
        zeros = torch.zeros(outputs, math.prod(input_shape) + 1)
        return LeastSquaresHead(zeros, normalise=task == "classes", constant=1.0)
    linear = {"numbers": StandardLinear, "survival": LinearHazard}.get(task)
    if linear is not None and section.name in LINEAR:
        return linear(math.prod(input_shape), outputs)
    if section.factory is not None:
        model = _from_factory(section, input_shape, outputs, factory)
    else:
        model = models.build(
            cast(str, section.name),
            input_shape=input_shape,
            classes=outputs,
            activation=section.activation,
            temper=section.temper,
            hidden=section.hidden,
            groups=section.groups,
            normalise=section.normalise,
        )
    return models.make_private_ready(model) if section.make_private_ready else model


def _from_factory(
    section: ModelSection, input_shape: tuple[int, ...], outputs: int, factory: Factory | None
) -> nn.Module:
    reference = section.factory or ""
    factory = import_factory(reference) if factory is None else factory
    try:
        model = factory(input_shape, outputs)
    except TacitError:
        raise
    except Exception as problem:  # the user's own code may raise anything
        raise InvalidInput(
            f"[model] {reference}(input_shape={input_shape}, outputs={outputs}) failed: {_where(problem)}. "
            "Correct the function; it must take these two arguments and return a torch module."
        ) from problem
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"[model] {reference}(input_shape, outputs) must return a torch module; it returned "
            f"{type(model).__name__} {str(model)[:80]!r}."
        )
    return model


def import_factory(reference: str) -> Factory:
    module_name, _, function = reference.partition(":")
    form = 'It must be "module:function", with the module in the current folder or installed.'
    try:
        with importing_from_here():
            factory = getattr(importlib.import_module(module_name), function or "model")
    except Exception as problem:  # the user's own code may raise anything
        raise InvalidInput(
            f'[model] factory = "{reference}" cannot be imported: {_where(problem)}. {form}'
        ) from problem
    if not callable(factory):
        raise InvalidInput(f'[model] factory = "{reference}" is not a function. {form}')
    return cast("Factory", factory)


def _where(problem: BaseException) -> str:
    """Describe the error, and the line of the user's code that raised it."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = f"{type(problem).__name__}: {problem}".strip().rstrip(".")
    if trace is None or trace.tb_frame.f_code.co_filename.startswith("<") or isinstance(problem, ImportError):
        return text
    return f"{text} ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"


def training_loss(config: Config, model: nn.Module, data: Dataset) -> PerExampleLoss:
    """Return the loss of a run; ``model`` has not been trained yet."""
    task = task_of(data)
    if isinstance(task, Preferences):
        reference = None
        if config.lora.rank is None:
            reference = copy.deepcopy(model).eval().requires_grad_(False)
        return task.compared(reference, config.training.beta)
    losses = losses_of(data, config.training.loss, config.training.class_weights)
    return standard_loss if isinstance(model, StandardLinear) else losses


class Learner(ABC):
    """A kind of model, which is made, checked, stated, saved and loaded here.  A new kind is one class."""

    used_by: ClassVar[str | None] = None
    """How to use the model, if ``tacit predict`` does not support it."""

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self.data = config, data

    @abstractmethod
    def build(self) -> nn.Module:
        """Make the model; its initial weights come from torch's own generator."""

    def check(self, model: nn.Module) -> None:
        # Check the model's output shape on two records of zeros before the first step.
        section = self.config.model
        task = task_of(self.data)
        name = f"[model] {section.name or section.factory or section.public}"
        kind = self.data.train.inputs.dtype if isinstance(task, Characters) else torch.float32
        zeros = torch.zeros((2, *self.data.input_shape), dtype=kind, device=next(model.parameters()).device)
        try:
            with torch.random.fork_rng(), evaluation_mode(model), torch.no_grad():
                outputs = model(zeros)
        except Exception as problem:  # the user's own code may raise anything
            reason = str(problem).strip().partition("\n")[0].rstrip(".")
            raise InvalidInput(
                f"{name} does not work on records of shape {self.data.input_shape}: "
                f"{type(problem).__name__}: {reason}. Adapt the model's input to the records."
            ) from problem
        expected = task.expected_shape(2)
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else None
        if shape is None or not task.fits(shape, 2):
            got = f"shape {shape}" if shape is not None else type(outputs).__name__
            purpose = f"{expected[-1]} {task.targets} to be predicted"
            raise InvalidInput(
                f"{name} must return shape {expected} for 2 records, for {purpose}; got {got}. Change the "
                "model's last layer, or the declared classes."
            )

    def begin(self, folder: Path, *, resumed: bool) -> None:  # noqa: B027 - a network begins from nothing
        """Write facts that must be saved before the first step; for a resumed run, compare them instead."""

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate the model exactly on the test records."""
        return task_of(self.data).evaluate(model, self.data.test)

    def compared(self, model: nn.Module, *, exact: bool) -> dict[str, Any]:
        """Return figures of the public model that the run began with, for the evaluation.

        Only with ``exact`` may they depend on the test records.
        """
        return {}

    @abstractmethod
    def stated(self, model: nn.Module) -> dict[str, Any]:
        """Return arguments of ``make_statement`` about the model, including ``notes``."""

    @abstractmethod
    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        pass

    @abstractmethod
    def trained(self, folder: Path) -> nn.Module:
        """Load the trained module again, as the run in ``folder`` trained it."""

    @abstractmethod
    def card_facts(self, statement: Statement) -> CardFacts:
        pass


def begin_from(path: Path, own: Mapping[str, Any], model: str | None, *, resumed: bool) -> None:
    """Write the digests of the public files that a run begins with; for a resumed run, compare them."""
    if not resumed:
        write_atomically(path, lambda file: file.write((json.dumps(own, indent=1) + "\n").encode()))
        return

    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{path}, which identifies the run's public model, cannot be read: {reason_of(problem)}. Restore "
            "the file, or start a new run with --out."
        ) from None
    changed = [name for name in own if "sha256" in name and before.get(name) != own[name]]
    if changed:
        raise PrivacyRefusal(
            f"{model} is not the public model of this run: {', '.join(changed)} differ from {path}. Restore "
            "the files, or start a new run with --out."
        )
