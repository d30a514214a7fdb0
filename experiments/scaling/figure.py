"""The picture of a plan for a language model: expected loss and model size over compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.scaling.advice import loss_over_compute, without_privacy
from experiments.scaling.answer import LanguageModelAdvice
from experiments.scaling.law import Floats, parameters
from tacit.report.canvas import GREY, line_style, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_BUDGETS = 25  # points of each line, one for each compute budget
_AROUND = (1e-2, 1e2)  # the range of compute budgets, as multiples of the budget in the question

Progress = Callable[[str, int, int], None]


def plot_language_model(
    advice: LanguageModelAdvice,
    path: Path,
    *,
    epsilons: Sequence[float] = (),
    progress: Progress | None = None,
) -> None:
    """Draw the expected loss and the best model size against compute, with one line for each epsilon.

    Args:
        advice: the recommendation.
        path: the path of the picture. The ending of the file's name gives the format.
        epsilons: values of epsilon to compare with the question's; by default a quarter of it and four times
            as much.
        progress: called with (title, done, total).

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidInput: the name of the file does not end in a known format, or an epsilon is out of range.
    """
    question, best = advice.question, advice.best
    report = progress or (lambda _title, _done, _total: None)
    figure = new_figure(9.0, 4.0)
    losses, sizes = figure.subplots(1, 2)
    compared = sorted({question.epsilon, *(epsilons or (question.epsilon / 4, 4 * question.epsilon))})
    flops = question.flops * np.geomspace(*_AROUND, _BUDGETS)
    for done, epsilon in enumerate(compared):
        report("drawing", done, len(compared))
        points = loss_over_compute(question, advice.law, epsilon=epsilon, flops=flops)
        style: dict[str, Any] = {
            **line_style(done),
            "linewidth": 2.2 if epsilon == question.epsilon else 1.3,
            "label": f"ε = {epsilon:g}",
        }
        at = [point.flops for point in points]
        losses.semilogx(at, [point.loss for point in points], **style)
        sizes.loglog(at, [point.model_size for point in points], **style)
    report("drawing", len(compared), len(compared))
    _without_privacy(advice, losses, sizes, flops)
    losses.plot([question.flops], [best.loss], "ok", markersize=5, zorder=5)
    sizes.plot([question.flops], [best.model_size], "ok", markersize=5, zorder=5)
    losses.set_title("expected loss, nats a token", fontsize=10)
    sizes.set_title("model size, parameters", fontsize=10)
    for axes in (losses, sizes):
        axes.set(xlabel="compute for training, FLOPs", xlim=(flops[0], flops[-1]))
        axes.grid(alpha=0.25, which="major")
    losses.legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"{question.records:,} records, δ = {question.delta:g}; the dot: {parameters(best.model_size)} "
        f"parameters, batches of {best.batch_size:,}, {best.steps:,} steps",
        fontsize=10,
    )
    save_figure(figure, path)


def _without_privacy(advice: LanguageModelAdvice, losses: Axes, sizes: Axes, flops: Floats) -> None:
    """Draw the best model size without privacy, and its loss at the budgets that the scaling law covers."""
    style: dict[str, Any] = {
        "color": GREY,
        "linestyle": (0, (6, 2, 1, 2, 1, 2)),
        "linewidth": 1.3,
        "label": "without privacy",
    }
    optima = [
        (budget, without_privacy(replace(advice.question, flops=float(budget)), advice.law))
        for budget in flops
    ]
    sizes.loglog(flops, [other.model_size for _, other in optima], **style)
    losses_of = [(budget, other.loss) for budget, other in optima if other.loss is not None]
    losses.semilogx([budget for budget, _ in losses_of], [loss for _, loss in losses_of], **style)
