"""The metrics of a run: their writers, and the evaluation as JSON, page and figures."""

# Guarantee:
# * A tracker gets the lines of metrics, the parameters and the statement; it gets no step, model or record.
# * Nothing about the machine, its memory, the source code or the console is recorded, except the time of each
#   line of metrics.

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from tacit.accounting import account
from tacit.datasets import Dataset
from tacit.errors import needed
from tacit.files import write_atomically
from tacit.plan import Plan
from tacit.report.evaluation import by_column, evaluation_data, evaluation_page, is_ranked
from tacit.report.evaluation_charts import plot_columns
from tacit.report.plots import plot_confusion, plot_privacy_curve, plot_progress
from tacit.rounding import shown_epsilon
from tacit.runs.config import Config
from tacit.runs.model import task_of
from tacit.sampling import FullBatch
from tacit.training.evaluation import Evaluation, auc_deviation
from tacit.training.groups import by_group
from tacit.training.loop import MetricsRow
from tacit.training.session import PrivateSession

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
    kinds: tuple[type[Tracker], ...] = (TensorBoardWatcher, MLflowWatcher, WandbWatcher)
    enabled = [kind for kind in kinds if getattr(config.run, kind.extra)]
    for kind in enabled:
        kind.installed()
    return enabled


def public_parameters(config: Config) -> dict[str, str | float]:
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float) else str(value)
        for section in _PUBLIC
        for name, value in getattr(config, section).model_dump(exclude_none=True).items()
    }


DATA, PAGE = "evaluation.json", "evaluation.html"
PICTURES = ("progress.png", "privacy.png", "confusion.png", "columns.png")

_IN_INTERVAL = 1.96  # standard deviations on each side of a noisy score in its interval
_SHORT = 18  # the most characters of a class name in a picture
_UNDECLARED = (
    " This is an assumption. For imbalanced classes, declare the baseline's score as [privacy] "
    "test_baseline; otherwise a useless model looks useful."
)


def figures_of(
    evaluation: Evaluation,
    config: Config,
    plan: Plan,
    data: Dataset,
    model: nn.Module,
    *,
    private: bool,
    loss_remark: str = "",
) -> dict[str, Any]:
    """Return the evaluation of a run, in the form of :func:`tacit.report.evaluation.evaluation_data`.

    ``loss_remark`` is a remark on the training loss.

    **Guarantee**

    * For a noisy score, the result depends only on that score, on the released model and on public facts:
      the configuration, the plan, and the declared classes, columns, alphabet and bounds.
    """
    words = certainty = ""
    if evaluation.interval is not None:
        baseline, words, certainty = _public_baseline(config, data)
        evaluation = replace(evaluation, baseline=baseline)
    figures = evaluation_data(
        evaluation,
        classes=data.classes or data.labels,
        targets=() if data.encoder is None else data.encoder.target_names,
        baseline=words,
        known=certainty,
        settings=_settings(config, plan),
        private=private,
        reference=config.privacy.reference_score,
        loss_remark=loss_remark,
    )
    if words and config.privacy.test_baseline is None and not figures["useless"]:
        figures["verdict"] += _UNDECLARED
    if groups := config.groups(data.encoder, data.test.inputs.numpy()):
        compared = by_group(evaluation, groups, target_bounds=data.target_bounds)
        worse = compared.pop("sentences")
        figures["verdict"] = " ".join([figures["verdict"], *worse])
        figures |= compared | {"served_worse": worse}
    columns = None if data.encoder is None else by_column(model, data.encoder)
    return figures if columns is None else figures | {"by_column": columns}


def _public_baseline(config: Config, data: Dataset) -> tuple[float, str, str]:
    """Return the baseline's public score, its description, and its certainty ("" if declared)."""
    if config.privacy.test_baseline is not None:
        return config.privacy.test_baseline, "the baseline that [privacy] test_baseline declares", ""
    return task_of(data).baseline()


def _settings(config: Config, plan: Plan) -> dict[str, str]:
    settings = {"epsilon": shown_epsilon(plan.epsilon)}
    if config.data.database is not None:  # its one release has no settings
        return settings
    settings |= {
        "steps": f"{plan.steps:,}",
        "learning_rate": f"{config.optimizer.learning_rate:g}",
    }
    if not isinstance(plan.sampling, FullBatch):
        settings["batch_size"] = f"{plan.expected_batch_size:,.0f} of {plan.records:,} records"
    return settings


def drawn_score(figures: Mapping[str, Any], tested: int) -> dict[str, Any]:
    """Return the score and its standard error as arguments of :func:`tacit.report.plots.plot_progress`.

    If one of two classes is rare, the score is the AUC, since accuracy stays at that of the majority class.
    """
    baseline = figures["baseline"]
    share = figures["measure"].startswith(("accuracy", "mean AUC", "preference", "concordance"))
    drawing = {
        "score": f"test {figures['measure']}",
        "baseline": baseline["score"],
        "known": baseline.get("known", ""),
        "within": (0.0, 1.0) if share else (-math.inf, math.inf),
    }
    if figures["interval"] is not None:
        low, high = figures["interval"]
        return drawing | {"error": (high - low) / (2 * _IN_INTERVAL)}
    if "survival" in figures:
        return drawing | {"error": 1 / (3 * math.sqrt(max(1, figures["survival"]["events"])))}
    if "labels" in figures:  # the deviation of a mean is at most the mean of the deviations
        ranked = [one for one in figures["labels"] if one["auc"] is not None]
        errors = [auc_deviation(one["records"] - one["positives"], one["positives"]) for one in ranked]
        return drawing | {"error": sum(errors) / max(1, len(errors))}
    if is_ranked(figures):
        error = auc_deviation(*(one["records"] for one in figures["classes"]))
        name = figures["positive_class"]
        auc = {"score": f"test AUC of “{name[:_SHORT]}”", "figure": "test_auc", "baseline": 0.5}
        return drawing | auc | {"error": error, "within": (0.0, 1.0)}
    worst = 0.5 if share else 0.77  # for R²: 2 R (1 - R²) is at most 0.77
    return drawing | {"error": worst / math.sqrt(max(1, tested))}


def write_evaluation(data: dict[str, Any], guarantee: dict[str, Any], folder: Path) -> tuple[str, ...]:
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / DATA, lambda file: file.write(text.encode()))
    page = evaluation_page(data, title=folder.name, guarantee=guarantee)
    write_atomically(folder / PAGE, lambda file: file.write(page.encode()))
    return (PAGE,)


def draw_run(
    figures: dict[str, Any], rows: list[MetricsRow], session: PrivateSession, data: Dataset, folder: Path
) -> tuple[str, ...]:
    plan, private, paths = session.plan, session.private, [folder / name for name in PICTURES]
    drawing = drawn_score(figures, len(data.test.targets))
    plot_progress(rows, paths[0], **drawing, loss_baseline=task_of(data).uninformed_loss(), private=private)
    curve = account(plan.event_after(session.steps_done), adjacency=plan.adjacency)
    plot_privacy_curve(curve, plan.delta, paths[1], private=private)
    matrix = plot_confusion(figures, paths[2])
    columns = "by_column" in figures and plot_columns(figures["by_column"], paths[3], private=private)
    return (*PICTURES[:2], *PICTURES[2:3] * matrix, *PICTURES[3:] * columns)
