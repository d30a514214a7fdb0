"""Writers of a run's metrics: a CSV file and, if configured, TensorBoard, MLflow or Weights & Biases.

**Guarantee**

* A tracker gets the lines of metrics, the parameters and the statement; it gets no step, model or record.
* Nothing about the machine, its memory, the source code or the console is recorded, except the time of each
  line of metrics.
"""

from __future__ import annotations

import csv
import io
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tacit.errors import needed
from tacit.files import write_atomically
from tacit.runs.config import Config
from tacit.training.loop import MetricsRow

_FIGURES = ("epsilon", "loss", "test_score", "test_loss", "loss_std", "test_auc")
_PUBLIC = (
    "model",
    "privacy",
    "optimizer",
    "training",
)  # other sections name files, ledgers and their users
_PROJECT = "tacit"

Parameters = Mapping[str, str | float]


class CsvWatcher:
    """A writer of ``metrics.csv``, which is replaced for each new line, so that it is always complete."""

    def __init__(self, path: Path, rows: list[MetricsRow]) -> None:
        self._path = path
        self._rows = list(rows)
        self._write()

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        pass

    def on_row(self, row: MetricsRow) -> None:
        self._rows.append(row)
        self._write()

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, ("steps", *_FIGURES), lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(row) for row in self._rows)
        write_atomically(self._path, lambda file: file.write(text.getvalue().encode()))


class Tracker(ABC):
    """A watcher that sends the metrics of a run to an experiment tracker.

    Args:
        folder: the folder of the run; the tracked run gets its name.
        rows: the lines of metrics so far, if the run is resumed.
        parameters: public settings of the run, in addition to its metrics.
    """

    extra: ClassVar[str]
    module: ClassVar[str]
    title: ClassVar[str]
    continues: ClassVar[bool] = False
    """Whether a resumed run continues its former tracked run, instead of starting a new one."""
    stored = False
    """Whether the run has stored its statement."""

    def __init__(
        self, folder: Path, rows: Sequence[MetricsRow] = (), parameters: Parameters | None = None
    ) -> None:
        self._package = self.installed()
        self.begin(folder, rows[-1].steps if rows else 0, parameters or {})
        for row in () if self.continues else rows:
            self.on_row(row)

    @classmethod
    def installed(cls) -> Any:
        return needed(cls.module, cls.extra, f"logging to {cls.title}", package=cls.extra)

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:  # noqa: B027 - of the protocol
        pass

    def on_row(self, row: MetricsRow) -> None:
        figures = {name: getattr(row, name) for name in _FIGURES}
        self.log(row.steps, {name: value for name, value in figures.items() if value is not None})

    def keep(self, statement: Path) -> None:
        self.store(statement)
        self.stored = True

    @abstractmethod
    def begin(self, folder: Path, steps: int, parameters: Parameters) -> None:
        """Begin the tracked run; for a resumed run, metrics up to ``steps`` exist already."""

    @abstractmethod
    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        """Log metrics after this number of steps."""

    @abstractmethod
    def store(self, path: Path) -> None:
        """Store a file."""

    @abstractmethod
    def close(self) -> None:
        """End the tracked run: as finished if the statement was stored, else as interrupted."""


class TensorBoardWatcher(Tracker):
    """A tracker in the folder ``tensorboard``; a resumed run replaces metrics after its resume state."""

    extra, module, title = "tensorboard", "torch.utils.tensorboard", "TensorBoard"
    continues = True

    def begin(self, folder: Path, steps: int, parameters: Parameters) -> None:
        where = folder / "tensorboard"
        purge = steps + 1 if where.exists() else None
        self._writer = self._package.SummaryWriter(str(where), purge_step=purge)
        if parameters:
            self._say("parameters", [f"{name} = {value}" for name, value in parameters.items()])

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, steps)
        self._writer.flush()

    def store(self, path: Path) -> None:
        self._say(path.stem, path.read_text(encoding="utf-8").splitlines())

    def _say(self, name: str, lines: Sequence[str]) -> None:
        self._writer.add_text(name, "\n".join(f"    {line}" for line in lines))

    def close(self) -> None:
        self._writer.close()


class MLflowWatcher(Tracker):
    """A tracker by MLflow, on the server at ``MLFLOW_TRACKING_URI``, else in ``mlflow.db`` in the folder."""

    extra, module, title = "mlflow", "mlflow", "MLflow"

    def begin(self, folder: Path, steps: int, parameters: Parameters) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        local = folder.absolute()
        self._client = self._package.MlflowClient(tracking_uri=server or f"sqlite:///{local / 'mlflow.db'}")
        experiment = self._client.get_experiment_by_name(_PROJECT)
        if experiment is not None:
            number = experiment.experiment_id
        else:
            where = {} if server else {"artifact_location": (local / "mlflow").as_uri()}
            number = self._client.create_experiment(_PROJECT, **where)
        self._run = self._client.create_run(number, run_name=folder.name).info.run_id
        params = [self._package.entities.Param(name, str(value)) for name, value in parameters.items()]
        self._client.log_batch(self._run, params=params)

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._package.entities.Metric(name, value, now, steps) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def store(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        self._client.set_terminated(self._run, "FINISHED" if self.stored else "KILLED")


class WandbWatcher(Tracker):
    """A tracker by Weights & Biases, offline in the run's folder; ``wandb sync`` uploads it."""

    extra, module, title = "wandb", "wandb", "Weights & Biases"

    def begin(self, folder: Path, steps: int, parameters: Parameters) -> None:
        settings = self._package.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = self._package.init(
            project=_PROJECT,
            name=folder.name,
            dir=str(folder),
            mode="offline",
            config=dict(parameters),
            settings=settings,
        )

    def log(self, steps: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=steps)

    def store(self, path: Path) -> None:
        artefact = self._package.Artifact(path.stem, type="privacy-statement")
        artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def close(self) -> None:
        self._run.finish(exit_code=0 if self.stored else 1)


def trackers(config: Config) -> list[type[Tracker]]:
    """Return the trackers that a configuration asks for."""
    kinds: tuple[type[Tracker], ...] = (TensorBoardWatcher, MLflowWatcher, WandbWatcher)
    enabled = [kind for kind in kinds if getattr(config.run, kind.extra)]
    for kind in enabled:
        kind.installed()
    return enabled


def public_parameters(config: Config) -> dict[str, str | float]:
    """Return the settings that trackers get: all set values of model, privacy, optimizer and training."""
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float) else str(value)
        for section in _PUBLIC
        for name, value in getattr(config, section).model_dump(exclude_none=True).items()
    }
