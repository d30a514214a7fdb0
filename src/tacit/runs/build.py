"""From a configuration to the plan, the data, the model and the session that it describes."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit import models
from tacit.datasets import Dataset, TensorPair, load, load_image_folder, load_table, load_text
from tacit.datasets.tables import parse_schema
from tacit.errors import InvalidInput, TacitError
from tacit.models.scattering import scattering_features
from tacit.noise.generator import Generator, Purpose
from tacit.plan import LossReport, Plan, ScoreReport
from tacit.runs.canaries import draw_canaries, with_canaries
from tacit.runs.charging import check_test_records
from tacit.runs.config import Config, DataSection, ModelSection, OptimizerSection, TrainingSection
from tacit.runs.losses import losses_of
from tacit.sampling import FullBatch, Sampling, ShuffledBatches
from tacit.training.audit_slots import AuditSlots
from tacit.training.augmentation import FlipAndCrop
from tacit.training.evaluation import evaluation_mode
from tacit.training.ledger_charges import StepCharges
from tacit.training.records import as_records
from tacit.training.session import PrivateSession

__all__ = [
    "Progress",
    "load_data",
    "make_plan",
    "make_session",
    "new_model",
    "new_optimizer",
    "prepared_data",
    "session_on",
]

_SOURCES = ("name", "table", "images", "text")
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_WITH_MOMENTUM = ("sgd", "rmsprop")

Progress = Callable[[str, int, int], None]


def make_session(
    config: Config,
    *,
    plan: Plan | None = None,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
    progress: Progress | None = None,
) -> tuple[Dataset, PrivateSession]:
    """The data and the session that a configuration describes.

    Args:
        plan: the configuration's, if it has been made already.
        charges: what the run charges to a ledger; the configuration alone charges nothing.
        generator: where the noise comes from; a fresh one, or that of the charges, where there are any.
        progress: told of long preparations, as (title, done, total).
    """
    plan = make_plan(config) if plan is None else plan
    _device(config.run.device)
    generator = _generator(generator, charges)
    canaries = draw_canaries(config, generator)
    data = prepared_data(config, progress)
    if canaries and charges is not None:  # beside what is planted, the ledger would not know them again
        charges.recognise(as_records(data.train).content)
    if charges is not None:
        check_test_records(data, plan, charges)
    trained_on = with_canaries(data, canaries)
    return data, session_on(config, trained_on, plan, charges=charges, generator=generator)


def _generator(given: Generator | None, charges: StepCharges | None) -> Generator:
    """The one that is given, else that of the charges, else a fresh one."""
    if given is not None:
        return given
    return Generator.from_os() if charges is None else charges.generator


def prepared_data(config: Config, progress: Progress | None = None) -> Dataset:
    """The data that the configuration names, with the features that it asks for."""
    return _features(config, load_data(config, progress), progress)


def session_on(
    config: Config,
    data: Dataset,
    plan: Plan,
    *,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
) -> PrivateSession:
    """A session of the configuration's model and settings on ``data.train`` by ``plan``."""
    generator = _generator(generator, charges)
    model = new_model(config, data, generator)
    session = PrivateSession(
        model,
        new_optimizer(config, model),
        data.train,
        plan,
        loss=losses_of(data),
        engine=config.training.engine,
        physical_batch_size=config.training.physical_batch_size,
        augmentation=_augmentation(config.training, data.input_shape),
        ema_decay=config.training.ema_decay,
        audit=AuditSlots(config.audit.slots) if config.audit.slots else None,
        charges=charges,
        generator=generator,
    )
    _check_shapes(config.model, model, data)
    return session


def new_model(config: Config, data: Dataset, generator: Generator) -> nn.Module:
    """The configuration's model on its device, with the weights that the generator's key starts from."""
    return _model(config.model, data, generator).to(_device(config.run.device))


def new_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The configuration's optimizer of the weights of ``model``."""
    return _optimizer(config.optimizer, model)


def make_plan(config: Config) -> Plan:
    """The plan that the configuration describes."""
    privacy, training = config.privacy, config.training
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        raise InvalidInput(
            "[privacy] needs epsilon, or noise_multiplier, or both (epsilon is then the limit)."
        )
    if (training.epochs is None) == (training.steps is None):
        got = "neither" if training.steps is None else "both"
        raise InvalidInput(f"[training] needs exactly one of epochs and steps; got {got}.")
    batch = None if training.batch_size == "full" else training.batch_size
    sampling: Sampling | None = None
    if privacy.sampling == "shuffled" and batch is not None:
        sampling = ShuffledBatches(batch, privacy.records)
    elif privacy.sampling == "full" or privacy.sampling == "shuffled":
        sampling, batch = FullBatch(), None
    common: dict[str, Any] = {
        "delta": privacy.delta,
        "records": privacy.records,
        "clipping": privacy.rule(),
        "adjacency": privacy.adjacency,
        "unit": privacy.unit,
        "batch_size": batch,
        "epochs": training.epochs,
        "steps": training.steps,
        "sampling": sampling,
        "views": training.views,
        "loss_report": LossReport(privacy.loss_bound) if privacy.report_loss else None,
        "score_report": None if privacy.test_noise is None else ScoreReport(privacy.test_noise),
        "allow_large_delta": privacy.allow_large_delta,
    }
    if privacy.noise_multiplier is not None:
        return Plan.with_noise(
            noise_multiplier=privacy.noise_multiplier, epsilon_budget=privacy.epsilon, **common
        )
    return Plan.calibrate(epsilon=cast(float, privacy.epsilon), **common)


def load_data(config: Config, progress: Progress | None = None) -> Dataset:
    """The data that the configuration names, before any features are made of it."""
    section, unit = config.data, config.privacy.unit
    given = [name for name in _SOURCES if getattr(section, name) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"[data] needs exactly one of {', '.join(_SOURCES)}; got {', '.join(given) or 'none of them'}."
        )
    if section.text is not None:
        return _load_text(section, unit)
    if section.table is not None:
        if section.target is None:
            raise InvalidInput("[data] target is missing: the column to be predicted.")
        return load_table(
            Path(section.table),
            target=section.target,
            schema=parse_schema(section.columns),
            test_fraction=section.test_fraction,
            test_path=None if section.test_table is None else Path(section.test_table),
            missing=section.missing,
            unit=unit,
        )
    if section.images is not None:
        if len(section.size) != 2:
            raise InvalidInput("[data] size = [height, width] is needed for images, in pixels.")
        return load_image_folder(
            Path(section.images),
            size=(section.size[0], section.size[1]),
            classes=tuple(section.classes),
            colours=section.colours,
            test_fraction=section.test_fraction,
            unit=unit,
            progress=None if progress is None else partial(progress, "reading pictures"),
        )
    folder = None if section.folder is None else Path(section.folder)
    return load(str(section.name), folder=folder, download=section.download)


def _load_text(section: DataSection, unit: str) -> Dataset:
    if section.alphabet is None or section.longest is None:
        raise InvalidInput(
            "[data] text needs alphabet, every character that a line may hold, and longest, the most "
            "characters of a line. Declare what is known without the data."
        )
    return load_text(
        Path(str(section.text)),
        alphabet=section.alphabet,
        longest=section.longest,
        test_fraction=section.test_fraction,
        test_path=None if section.test_text is None else Path(section.test_text),
        unit=unit,
    )


def _features(config: Config, data: Dataset, progress: Progress | None) -> Dataset:
    """Scattering features in place of pictures, where asked for: fixed filters, so they cost nothing."""
    if config.data.features == "raw":
        return data
    parts = []
    for title, pair in (("features of train", data.train), ("features of test", data.test)):
        callback = None if progress is None else partial(progress, title)
        parts.append(TensorPair(scattering_features(pair.inputs, progress=callback), pair.targets))
    return replace(data, train=parts[0], test=parts[1], source=f"{data.source}; scattering features")


def _augmentation(training: TrainingSection, shape: tuple[int, ...]) -> FlipAndCrop | None:
    if training.views == 1:
        return None
    if len(shape) != 3:
        raise InvalidInput(
            f"[training] views = {training.views} makes flipped and shifted copies, which needs pictures "
            f"(channels, height, width); the records have shape {shape}. Take views = 1."
        )
    if training.crop_padding >= min(shape[1:]):
        raise InvalidInput(
            f"[training] crop_padding = {training.crop_padding} must be below the height and width of the "
            f"pictures, {shape[1]} and {shape[2]}."
        )
    return FlipAndCrop(training.crop_padding)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0]
        raise InvalidInput(f'[run] device = "{name}" cannot be used: {reason} "cpu" always works.') from None


def _outputs(data: Dataset) -> int:
    if data.alphabet:
        return 1 + len(data.alphabet)
    return len(data.classes) or math.prod(data.train.targets.shape[1:])


def _model(section: ModelSection, data: Dataset, generator: Generator) -> nn.Module:
    """The model, initialised from the run's own key so that a resumed run starts from the same weights."""
    if (section.name is None) == (section.factory is None):
        got = "neither" if section.name is None else "both"
        raise InvalidInput(f"[model] needs exactly one of name and factory; got {got}.")
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if section.factory is not None:
            model = _from_factory(section, data.input_shape, _outputs(data))
        else:
            model = models.build(
                cast(str, section.name),
                input_shape=data.input_shape,
                classes=_outputs(data),
                activation=section.activation,
                temper=section.temper,
                hidden=section.hidden,
                groups=section.groups,
                normalise=section.normalise,
            )
    return models.make_private_ready(model) if section.make_private_ready else model


def _from_factory(section: ModelSection, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    reference = section.factory or ""
    unused = [name for name in _BUILT_IN_OPTIONS if getattr(section, name) is not None]
    if unused:
        raise InvalidInput(
            f"[model] {', '.join(unused)} would not reach the factory {reference}: such settings are for "
            "models by name. Set them inside the function."
        )
    factory = _import_factory(reference)
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


_BUILT_IN_OPTIONS = ("activation", "temper", "hidden", "groups", "normalise")


def _import_factory(reference: str) -> Callable[..., object]:
    module_name, _, function = reference.partition(":")
    wanted = 'It must be "module:function", with the module in the current folder or installed.'
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), function or "model")
    except Exception as problem:  # the user's own code may raise anything
        raise InvalidInput(
            f'[model] factory = "{reference}" cannot be imported: {_where(problem)}. {wanted}'
        ) from problem
    finally:
        sys.path.pop(0)
    if not callable(factory):
        raise InvalidInput(f'[model] factory = "{reference}" is not a function. {wanted}')
    return cast("Callable[..., object]", factory)


def _where(problem: BaseException) -> str:
    """What went wrong, and the line of the user's code at which it did."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = f"{type(problem).__name__}: {problem}".strip().rstrip(".")
    if trace is None or trace.tb_frame.f_code.co_filename.startswith("<") or isinstance(problem, ImportError):
        return text
    return f"{text} ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"


def _check_shapes(section: ModelSection, model: nn.Module, data: Dataset) -> None:
    """Try the model on two records of zeros, public ones, so that a misfit shows before the first step."""
    name = f"[model] {section.name or section.factory}"
    kind = data.train.inputs.dtype if data.alphabet else torch.float32
    zeros = torch.zeros((2, *data.input_shape), dtype=kind, device=next(model.parameters()).device)
    try:
        with torch.random.fork_rng(), evaluation_mode(model), torch.no_grad():
            found = model(zeros)
    except Exception as problem:  # the user's own code may raise anything
        reason = str(problem).strip().partition("\n")[0].rstrip(".")
        raise InvalidInput(
            f"{name} does not work on a batch of records of shape {data.input_shape}: "
            f"{type(problem).__name__}: {reason}. Make the model fit the records."
        ) from problem
    wanted = (2, *data.input_shape, _outputs(data)) if data.alphabet else (2, _outputs(data))
    shape = tuple(found.shape) if isinstance(found, Tensor) else None
    numbers = not data.classes and not data.alphabet
    fits = shape == wanted or (numbers and shape is not None and math.prod(shape) == math.prod(wanted))
    if not fits:
        got = f"shape {shape}" if shape is not None else type(found).__name__
        kinds = {bool(data.classes): "classes", bool(data.alphabet): "characters", numbers: "numbers"}
        purpose = f"{wanted[-1]} {kinds[True]} to be predicted"
        raise InvalidInput(
            f"{name} must turn 2 records into shape {wanted}, for {purpose}; it gave {got}. "
            "Change the last layer of the model, or the declared classes."
        )


def _optimizer(section: OptimizerSection, model: nn.Module) -> torch.optim.Optimizer:
    settings: dict[str, float] = {"lr": section.learning_rate, "weight_decay": section.weight_decay}
    if section.name in _WITH_MOMENTUM:
        settings["momentum"] = section.momentum
    elif section.momentum:
        raise InvalidInput(f"[optimizer] {section.name} has no momentum; it goes with sgd and rmsprop.")
    try:
        return _OPTIMIZERS[section.name]([p for p in model.parameters() if p.requires_grad], **settings)
    except ValueError as problem:
        raise InvalidInput(f"[optimizer] {problem}.") from None
