"""The evaluation of a run: metrics compared with a constant answer's, as JSON, page and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from tacit.accounting import account
from tacit.datasets import Dataset
from tacit.files import write_atomically
from tacit.plan import Plan
from tacit.report.evaluation import by_column, evaluation_data, evaluation_page, is_ranked
from tacit.report.evaluation_charts import plot_columns
from tacit.report.plots import plot_confusion, plot_privacy_curve, plot_progress
from tacit.rounding import round_up
from tacit.runs.config import Config
from tacit.runs.tasks import task_of
from tacit.sampling import FullBatch
from tacit.training.evaluation import Evaluation, auc_deviation
from tacit.training.loop import MetricsRow
from tacit.training.session import PrivateSession

DATA, PAGE = "evaluation.json", "evaluation.html"
PICTURES = ("progress.png", "privacy.png", "confusion.png", "columns.png")

_IN_INTERVAL = 1.96  # standard deviations on each side of a noisy score in its interval
_SHORT = 18  # the most characters of a class name in a picture
_UNDECLARED = (
    " This is an assumption. If a constant answer is known to score higher, as the most common class of an "
    "imbalanced table does, declare its score as [privacy] test_baseline. Otherwise a useless model looks "
    "useful."
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
    columns = None if data.encoder is None else by_column(model, data.encoder)
    return figures if columns is None else figures | {"by_column": columns}


def _public_baseline(config: Config, data: Dataset) -> tuple[float, str, str]:
    """Return a constant answer's public score, its description, and its certainty ("" if declared)."""
    if config.privacy.test_baseline is not None:
        return config.privacy.test_baseline, "a constant answer, as [privacy] test_baseline declares", ""
    return task_of(data).baseline()


def _settings(config: Config, plan: Plan) -> dict[str, str]:
    settings = {
        "epsilon": round_up(plan.epsilon, 3),
        "steps": f"{plan.steps:,}",
        "learning_rate": f"{config.optimizer.learning_rate:g}",
    }
    if not isinstance(plan.sampling, FullBatch):
        settings["batch_size"] = f"{plan.expected_batch_size:,.0f} of {plan.records:,} records"
    return settings


def drawn_score(figures: Mapping[str, Any], tested: int) -> dict[str, Any]:
    """Return the score and its standard error as arguments of :func:`tacit.report.plots.plot_progress`.

    If one of two classes is rare, the score is the AUC, since accuracy stays at that of a constant answer.

    Args:
        tested: the number of test records, which is not used for a noisy score.
    """
    baseline = figures["baseline"]
    share = figures["measure"].startswith(("accuracy", "mean AUC"))
    drawing = {
        "score": f"test {figures['measure']}",
        "baseline": baseline["score"],
        "known": baseline.get("known", ""),
        "within": (0.0, 1.0) if share else (-math.inf, math.inf),
    }
    if figures["interval"] is not None:
        low, high = figures["interval"]
        return drawing | {"error": (high - low) / (2 * _IN_INTERVAL)}
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


def write_evaluation(data: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Write the evaluation as JSON, then as a page, and return the name of the page."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / DATA, lambda file: file.write(text.encode()))
    page = evaluation_page(data, title=folder.name)
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
