"""The model, optimizer and loss that a configuration describes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from tacit import models
from tacit.clipping.engine import PerExampleLoss
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, TacitError
from tacit.models.additive import Calibrated, InPhases, StandardLinear, standard_loss
from tacit.noise.generator import Generator, Purpose
from tacit.runs.checks import importing_from_here
from tacit.runs.config import Config
from tacit.runs.sections import LINEAR, ModelSection
from tacit.runs.tasks import Characters, Classes, Numbers, Tokens, losses_of, task_of
from tacit.training.evaluation import evaluation_mode

Factory: TypeAlias = Callable[[tuple[int, ...], int], nn.Module]
"""A user's own function that makes a module, given the shape of one record and the number of outputs."""


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def new_model(config: Config, data: Dataset, generator: Generator) -> nn.Module:
    """Make the configuration's model on its device, with initial weights from the generator's key.

    A resumed run therefore starts from the same weights.
    """
    task = task_of(data)
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if config.pretrained:
            from tacit.runs.public_model import new_public_model  # imports transformers

            model = new_public_model(config, data, task.outputs)
        elif config.model.huggingface is not None:
            from tacit.runs.language_model import build_language_model  # imports transformers

            model = build_language_model(config.model, config.lora, data.input_shape[0])
        else:
            numbers = isinstance(task, Numbers)
            model = build_model(config.model, data.input_shape, task.outputs, numbers=numbers)
    return model.to(device_of(config.run.device))


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
    """Return whether a weight is in the head of a public model and the head has its own learning rate."""
    return rate is not None and name.startswith("head.")


def begin_step(
    config: Config, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int
) -> None:
    """Set the learning rates of a step, if they change during the run.

    Args:
        step: the step's number, from 0.
        steps: the number of steps of the run.
    """
    section = config.optimizer
    if isinstance(model, InPhases):
        model.begin_step(optimizer, step, steps)
    elif section.falling:
        share = min(1.0, 2.0 * (1.0 - step / steps))
        rates = (section.learning_rate, section.head_learning_rate or section.learning_rate)
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = share * rate


def device_of(name: str, setting: str = "[run] device") -> torch.device:
    """Return the device of that name."""
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0]
        raise InvalidInput(f'{setting} = "{name}" cannot be used: {reason} "cpu" always works.') from None


def check_shapes(section: ModelSection, model: nn.Module, data: Dataset) -> None:
    """Check the model's output shape on two records of zeros before the first step."""
    task = task_of(data)
    if isinstance(task, Tokens):
        from tacit.runs.language_model import check_language_model

        check_language_model(model, data)
        return
    name = f"[model] {section.name or section.factory or section.public}"
    kind = data.train.inputs.dtype if isinstance(task, Characters) else torch.float32
    zeros = torch.zeros((2, *data.input_shape), dtype=kind, device=next(model.parameters()).device)
    try:
        with torch.random.fork_rng(), evaluation_mode(model), torch.no_grad():
            outputs = model(zeros)
    except Exception as problem:  # the user's own code may raise anything
        reason = str(problem).strip().partition("\n")[0].rstrip(".")
        raise InvalidInput(
            f"{name} does not work on records of shape {data.input_shape}: {type(problem).__name__}: "
            f"{reason}. Make the model fit the records."
        ) from problem
    expected = task.expected_shape(2)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else None
    if shape is None or not task.fits(shape, 2):
        got = f"shape {shape}" if shape is not None else type(outputs).__name__
        purpose = f"{expected[-1]} {task.targets} to be predicted"
        raise InvalidInput(
            f"{name} must turn 2 records into shape {expected}, for {purpose}; it gave {got}. "
            "Change the last layer of the model, or the declared classes."
        )


def build_model(
    section: ModelSection,
    input_shape: tuple[int, ...],
    outputs: int,
    factory: Factory | None = None,
    *,
    numbers: bool = False,
) -> nn.Module:
    """Build the model of a section, with weights from torch's own generator.

    Args:
        factory: the function to call in place of the one that the section names.
        numbers: whether the targets are numbers; a linear model then also learns their mean and spread.
    """
    if numbers and section.name in LINEAR:
        return StandardLinear(math.prod(input_shape), outputs)
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
            "The function must take these two arguments and return a torch module."
        ) from problem
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"[model] {reference}(input_shape, outputs) must return a torch module; it returned "
            f"{type(model).__name__} {str(model)[:80]!r}."
        )
    return model


def import_factory(reference: str) -> Factory:
    """Import the function at "module:function", from the current folder or Python's path."""
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
    """Return the loss of :func:`losses_of`, or that of a :class:`StandardLinear` model."""
    losses = losses_of(data, config.training.loss, config.training.class_weights)
    return standard_loss if isinstance(model, StandardLinear) else losses
