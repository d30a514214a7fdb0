"""One run from its configuration to its folder: data, model, plan, session, loop, statement, pictures.

The folder of a run::

    model.safetensors     the weights, to be released
    config.toml           the configuration, as it was given
    statement.txt, .json  what is guaranteed, and what is not
    metrics.csv           steps, epsilon, noisy loss, test figures
    progress.png          test score and epsilon over the steps
    privacy.png           epsilon as a function of delta
    private/resume.pt     the state to go on from, WITH THE KEY OF THE NOISE: never release it
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit import models
from tacit.datasets import Dataset, TensorPair, load, load_image_folder, load_table
from tacit.datasets.tables import parse_schema
from tacit.errors import InvalidInput
from tacit.models.scattering import scattering_features
from tacit.noise.generator import Generator, Purpose
from tacit.plan import LossReport, Plan
from tacit.report.plots import plot_privacy_curve, plot_progress
from tacit.report.statement import Statement, make_statement
from tacit.runs.config import Config, ModelSection, OptimizerSection, read_config
from tacit.sampling import FullBatch, Sampling, ShuffledBatches
from tacit.training.augmentation import FlipAndCrop
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.files import write_atomically
from tacit.training.loop import History, Row, Watcher, train
from tacit.training.session import PrivateSession

__all__ = ["Outcome", "Run", "load_data", "make_plan", "make_session", "prepare", "resume_state"]

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


@dataclass(frozen=True)
class Outcome:
    """What a finished run has: ``rows`` of metrics, the last ``evaluation``, the ``statement``."""

    folder: Path
    rows: list[Row]
    evaluation: Evaluation
    statement: Statement


@dataclass(frozen=True)
class Run:
    """A run that is ready to start: everything in it was checked."""

    config: Config
    config_text: str
    folder: Path
    data: Dataset
    session: PrivateSession
    history: History

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.session.plan

    def start(
        self, watchers: tuple[Watcher, ...] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Outcome | None:
        """Train to the end of the plan and write the folder; None if ``should_stop`` ended it early.

        An early end, a crash or a full disk leaves the last resume state in place;
        ``prepare(..., resume=True)`` goes on from there.
        """
        state = resume_state(self.folder)
        if self.config.run.tensorboard:
            watchers = (*watchers, _TensorBoard(self.folder, self.session.steps_done))
        write_atomically(self.folder / "config.toml", lambda file: file.write(self.config_text.encode()))
        self.session.save(state, extra=self.history.to_plain())
        history = train(
            self.session,
            evaluate=self._evaluate,
            rows=self.config.run.rows,
            watchers=(*watchers, _Csv(self.folder / "metrics.csv", self.history.rows)),
            checkpoint=state,
            checkpoint_every=self.config.run.checkpoint_every,
            history=self.history,
            should_stop=should_stop,
        )
        return None if self.session.steps_done < self.plan.steps else self._finish(history.rows)

    def _evaluate(self, model: nn.Module) -> Evaluation:
        return evaluate(model, *self.data.test)

    def _finish(self, rows: list[Row]) -> Outcome:
        session, plan = self.session, self.plan
        model = session.current_model
        statement = make_statement(
            plan,
            steps_done=session.steps_done,
            randomness=session.randomness,
            private=session.private,
            data_source=self.data.source,
            model=_model_line(self.config.model, model),
            notes=self.config.notes,
        )
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        _save_weights(weights, self.folder / "model.safetensors")
        for name, text in (("statement.txt", statement.to_text()), ("statement.json", statement.to_json())):
            write_atomically(self.folder / name, _writer(text))
        score = "test accuracy" if self.data.classes else "test R²"
        plot_progress(rows, self.folder / "progress.png", score=score)
        plot_privacy_curve(plan.curve, plan.delta, self.folder / "privacy.png")
        return Outcome(self.folder, rows, self._evaluate(model), statement)


def resume_state(folder: Path) -> Path:
    """Where the resume state of a run lies."""
    return folder / "private" / "resume.pt"


def prepare(
    path: Path | str,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    generator: Generator | None = None,
    progress: Progress | None = None,
) -> Run:
    """Read a configuration and get everything ready; nothing is computed from the data before noise.

    Args:
        path: the TOML file.
        out: the folder of the run; otherwise the configuration's, or ``runs/<name of the file>``.
        resume: go on with the run in that folder.
        generator: only for tests, from :mod:`tacit.testing`.
        progress: told of long preparations, as (title, done, total).

    Raises:
        InvalidInput: a mistake in the configuration or the data; a folder that holds a run already.
        PrivacyRefusal: the plan or the model cannot be accounted for.
    """
    path = Path(path)
    config = read_config(path)
    folder = Path(out or config.run.out or Path("runs") / path.stem)
    _check_folder(folder, resume)
    data, session = make_session(config, generator=generator, progress=progress)
    history = History()
    if resume:
        history = History.from_plain(session.load(resume_state(folder)))
    return Run(config, path.read_text(encoding="utf-8"), folder, data, session, history)


def make_session(
    config: Config, *, generator: Generator | None = None, progress: Progress | None = None
) -> tuple[Dataset, PrivateSession]:
    """The data and the session that a configuration describes; ``generator`` is for tests only.

    ``progress(title, done, total)`` is told of long preparations.
    """
    plan = make_plan(config)
    data = _features(config, load_data(config), progress)
    generator = Generator.from_os() if generator is None else generator
    model = _model(config.model, data, generator).to(config.run.device)
    session = PrivateSession(
        model,
        _optimizer(config.optimizer, model),
        data.train,
        plan,
        loss=_classification_loss if data.classes else _regression_loss,
        engine=config.training.engine,
        physical_batch_size=config.training.physical_batch_size,
        augmentation=FlipAndCrop(config.training.crop_padding) if plan.views > 1 else None,
        ema_decay=config.training.ema_decay,
        generator=generator,
    )
    return data, session


def make_plan(config: Config) -> Plan:
    """The plan that the configuration describes."""
    privacy, training = config.privacy, config.training
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
        "allow_large_delta": privacy.allow_large_delta,
    }
    if privacy.noise_multiplier is not None:
        return Plan.with_noise(
            noise_multiplier=privacy.noise_multiplier, epsilon_budget=privacy.epsilon, **common
        )
    if privacy.epsilon is None:
        raise InvalidInput(
            "[privacy] needs epsilon, or noise_multiplier, or both (epsilon is then the limit)."
        )
    return Plan.calibrate(epsilon=privacy.epsilon, **common)


def load_data(config: Config) -> Dataset:
    """The data that the configuration names, before any features are made of it."""
    section, unit = config.data, config.privacy.unit
    given = [name for name in ("name", "table", "images") if getattr(section, name) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"[data] needs exactly one of name, table and images; got {', '.join(given) or 'none of them'}."
        )
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
        )
    folder = None if section.folder is None else Path(section.folder)
    return load(str(section.name), folder=folder, download=section.download)


def _features(config: Config, data: Dataset, progress: Progress | None) -> Dataset:
    """Scattering features in place of pictures, where asked for: fixed filters, so they cost nothing."""
    if config.data.features == "raw":
        return data
    parts = []
    for title, pair in (("features of train", data.train), ("features of test", data.test)):
        callback = None if progress is None else partial(progress, title)
        parts.append(TensorPair(scattering_features(pair.inputs, progress=callback), pair.targets))
    return replace(data, train=parts[0], test=parts[1], source=f"{data.source}; scattering features")


def _classification_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def _regression_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    residual: Tensor = model(inputs).reshape(targets.shape) - targets
    return residual.square().reshape(len(targets), -1).mean(1)


def _model(section: ModelSection, data: Dataset, generator: Generator) -> nn.Module:
    """The model, initialised from the run's own key so that a resumed run starts from the same weights."""
    if (section.name is None) == (section.factory is None):
        raise InvalidInput("[model] needs exactly one of name and factory.")
    outputs = len(data.classes) or math.prod(data.train.targets.shape[1:])
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if section.factory is not None:
            model = _from_factory(section.factory, data.input_shape, outputs)
        else:
            model = models.build(
                cast(str, section.name),
                input_shape=data.input_shape,
                classes=outputs,
                activation=section.activation,
                temper=section.temper,
                hidden=section.hidden,
                groups=section.groups,
                normalise=section.normalise,
            )
    return models.make_private_ready(model) if section.make_private_ready else model


def _from_factory(reference: str, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    module_name, _, function = reference.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), function or "model")
    except (ImportError, AttributeError) as problem:
        raise InvalidInput(
            f'[model] factory = "{reference}" cannot be imported: {problem}. It must be "module:function", '
            "with the module in the current folder or installed."
        ) from None
    finally:
        sys.path.pop(0)
    model = factory(input_shape, outputs)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{reference}(input_shape, outputs) must return a torch module; got {model!r}.")
    return model


def _optimizer(section: OptimizerSection, model: nn.Module) -> torch.optim.Optimizer:
    settings: dict[str, float] = {"lr": section.learning_rate, "weight_decay": section.weight_decay}
    if section.name in _WITH_MOMENTUM:
        settings["momentum"] = section.momentum
    elif section.momentum:
        raise InvalidInput(f"[optimizer] {section.name} has no momentum; it goes with sgd and rmsprop.")
    try:
        return _OPTIMIZERS[section.name]([p for p in model.parameters() if p.requires_grad], **settings)
    except ValueError as problem:
        raise InvalidInput(f"[optimizer] {problem}") from None


def _check_folder(folder: Path, resume: bool) -> None:
    state = resume_state(folder)
    if resume and not state.exists():
        raise InvalidInput(f"there is no run to resume in {folder}: {state} does not exist.")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise InvalidInput(
            f"the folder {folder} is not empty. Go on with the run in it by --resume, or choose another "
            "folder with --out."
        )


def _model_line(section: ModelSection, model: nn.Module) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    return f"{section.name or section.factory}, {parameters:,} parameters"


def _writer(text: str) -> Callable[[IO[bytes]], object]:
    return lambda file: file.write(text.encode())


def _save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """safetensors refuses tensors that share memory, as tied weights do: each name gets its own copy."""
    save_file({name: tensor.clone() for name, tensor in weights.items()}, path)


class _Csv:
    """``metrics.csv``: nothing un-noised from the private records is in it."""

    _FIELDS = ("steps", "epsilon", "loss", "test_score", "test_loss")

    def __init__(self, path: Path, rows: list[Row]) -> None:
        self._path = path
        self._rows = list(rows)

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: lines are written per row."""

    def on_row(self, row: Row) -> None:
        """Write the file anew with one line more."""
        self._rows.append(row)
        text = io.StringIO()
        writer = csv.DictWriter(text, self._FIELDS)
        writer.writeheader()
        writer.writerows(vars(item) for item in self._rows)
        write_atomically(self._path, lambda file: file.write(text.getvalue().encode()))


class _TensorBoard:
    """The same figures for TensorBoard."""

    def __init__(self, folder: Path, steps_done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            from tacit.errors import MissingExtra

            raise MissingExtra("tensorboard", "tensorboard", "logging to TensorBoard") from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=steps_done + 1)

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: figures are written per row."""

    def on_row(self, row: Row) -> None:
        """Write the figures of a row."""
        for name in ("epsilon", "loss", "test_score", "test_loss"):
            value = getattr(row, name)
            if value is not None:
                self._writer.add_scalar(name, value, row.steps)
        self._writer.flush()
