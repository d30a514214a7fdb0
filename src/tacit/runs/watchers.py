"""Who writes the metrics of a run? A CSV file and, where configured, TensorBoard, MLflow, Weights & Biases.

They contain nothing without noise: epsilon is public, the loss is noisy and accounted for, test figures are
of the test records.  Trackers also get public parameters and, at the end, the privacy statement.

**Guarantee**

* A tracker gets the lines of metrics, the parameters and the statement; it sees no step, model or record.
* Nothing of the machine, its memory, the source or the console is recorded; the times of lines are.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import MissingExtra
from tacit.files import write_atomically
from tacit.runs.config import Config
from tacit.training.loop import MetricsRow

_FIGURES = ("epsilon", "loss", "test_score", "test_loss", "loss_std", "test_auc")
_PUBLIC = (
    "model",
    "privacy",
    "optimizer",
    "training",
)  # sections; others name files, ledgers and their users
_PROJECT = "tacit"
_PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "TensorBoard"),
    "mlflow": ("mlflow", "MLflow"),
    "wandb": ("wandb", "Weights & Biases"),
}
"""By setting of ``[run]`` and extra: what is imported, and what it is called."""

Parameters = Mapping[str, str | float]


class CsvWatcher:
    """``metrics.csv``, complete at any moment: each line of metrics writes it anew."""

    def __init__(self, path: Path, rows: list[MetricsRow]) -> None:
        self._path = path
        self._rows = list(rows)
        self._write()

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: lines are written per row."""

    def on_row(self, row: MetricsRow) -> None:
        """Write the file anew with one line more."""
        self._rows.append(row)
        self._write()

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, ("steps", *_FIGURES), lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(row) for row in self._rows)
        write_atomically(self._path, lambda file: file.write(text.getvalue().encode()))


class Tracker(ABC):
    """A watcher that gives the figures of a run to an experiment tracker."""

    kept = False
    """Whether the run has left its statement."""

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:  # noqa: B027 - of the protocol
        """Nothing: figures are written per row."""

    def on_row(self, row: MetricsRow) -> None:
        """Give the figures of a row."""
        found = {name: getattr(row, name) for name in _FIGURES}
        self.log(row.steps, {name: value for name, value in found.items() if value is not None})

    def keep(self, statement: Path) -> None:
        """Store the privacy statement of the finished run."""
        self.store(statement)
        self.kept = True

    @abstractmethod
    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        """Give figures after so many steps."""

    @abstractmethod
    def store(self, path: Path) -> None:
        """Store a file."""

    @abstractmethod
    def close(self) -> None:
        """End the tracked run."""


class TensorBoardWatcher(Tracker):
    """The figures in a folder ``tensorboard``; removes those past ``steps_done``, of a run cut short."""

    def __init__(self, folder: Path, steps_done: int, parameters: Parameters | None = None) -> None:
        package = _package("tensorboard")
        purge = steps_done + 1 if steps_done else None
        self._writer = package.SummaryWriter(str(folder), purge_step=purge)
        if parameters:
            text = "\n".join(f"    {name} = {value}" for name, value in parameters.items())
            self._writer.add_text("parameters", text)

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, steps)
        self._writer.flush()

    def store(self, path: Path) -> None:
        """Write the file as text."""
        lines = path.read_text(encoding="utf-8").splitlines()
        self._writer.add_text(path.stem, "\n".join(f"    {line}" for line in lines))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class MLflowWatcher(Tracker):
    """A run of MLflow, on the server of ``MLFLOW_TRACKING_URI`` or in the file ``mlflow.db`` of ``folder``.

    Args:
        folder: of the run, whose name the tracked run gets.
        rows: the lines of metrics so far, of a run that is resumed: each start is a tracked run of its own.
        parameters: what to say of the run beside its figures: public facts alone.

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(
        self, folder: Path, rows: Sequence[MetricsRow] = (), parameters: Parameters | None = None
    ) -> None:
        self._mlflow = _package("mlflow")
        server = os.environ.get("MLFLOW_TRACKING_URI")
        local = folder.absolute()
        self._client = self._mlflow.MlflowClient(tracking_uri=server or f"sqlite:///{local / 'mlflow.db'}")
        experiment = self._client.get_experiment_by_name(_PROJECT)
        if experiment is not None:
            number = experiment.experiment_id
        else:
            where = {} if server else {"artifact_location": (local / "mlflow").as_uri()}
            number = self._client.create_experiment(_PROJECT, **where)
        self._run = self._client.create_run(number, run_name=folder.name).info.run_id
        said = [self._mlflow.entities.Param(name, str(value)) for name, value in (parameters or {}).items()]
        self._client.log_batch(self._run, params=said)
        for row in rows:
            self.on_row(row)

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        """Give metrics, in one message."""
        now = int(time.time() * 1000)
        given = [self._mlflow.entities.Metric(name, value, now, steps) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=given)

    def store(self, path: Path) -> None:
        """Give an artefact."""
        self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        """End the tracked run: finished, or killed before its end."""
        self._client.set_terminated(self._run, "FINISHED" if self.kept else "KILLED")


class WandbWatcher(Tracker):
    """An offline run of Weights & Biases in ``folder``; ``wandb sync`` sends it when you say so.

    Args:
        folder: of the run, whose name the tracked run gets.
        rows: the lines of metrics so far, of a run that is resumed: each start is a tracked run of its own.
        parameters: what to say of the run beside its figures: public facts alone.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(
        self, folder: Path, rows: Sequence[MetricsRow] = (), parameters: Parameters | None = None
    ) -> None:
        self._wandb = _package("wandb")
        settings = self._wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = self._wandb.init(
            project=_PROJECT,
            name=folder.name,
            dir=str(folder),
            mode="offline",
            config=dict(parameters or {}),
            settings=settings,
        )
        for row in rows:
            self.on_row(row)

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        """Give metrics."""
        self._run.log(dict(figures), step=steps)

    def store(self, path: Path) -> None:
        """Give an artefact."""
        artefact = self._wandb.Artifact(path.stem, type="privacy-statement")
        artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def close(self) -> None:
        """End the tracked run: well, or before its end."""
        self._run.finish(exit_code=0 if self.kept else 1)


def trackers(config: Config, folder: Path, rows: Sequence[MetricsRow], steps_done: int) -> Iterator[Tracker]:
    """The trackers that a configuration asks for, each begun when it is asked for."""
    said = public_parameters(config)
    if config.run.tensorboard:
        yield TensorBoardWatcher(folder / "tensorboard", steps_done, said)
    if config.run.mlflow:
        yield MLflowWatcher(folder, rows, said)
    if config.run.wandb:
        yield WandbWatcher(folder, rows, said)


def public_parameters(config: Config) -> dict[str, str | float]:
    """The settings of a run that trackers get: of model, privacy, optimizer and training, without blanks."""
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float) else str(value)
        for section in _PUBLIC
        for name, value in getattr(config, section).model_dump(exclude_none=True).items()
    }


def check_trackers(config: Config) -> None:
    """Refuse a run whose trackers are not installed, before anything is written.

    Raises:
        MissingExtra: with the command that installs the package.
    """
    for name in _PACKAGES:
        if getattr(config.run, name):
            _package(name)


def _package(name: str) -> Any:
    module, called = _PACKAGES[name]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(name, name, f"logging to {called}") from None
