"""Which loss does compute buy under a promise? A picture of a plan for a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.report.pages.canvas import GREY, empty_figure, line_style, write_figure
from tacit.scaling import LanguageModelAdvice, loss_over_compute, without_privacy
from tacit.scaling.law import Floats, parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BUDGETS = 25  # of compute, on each line
_AROUND = (1e-2, 1e2)  # of the compute of the question

Progress = Callable[[str, int, int], None]


def plot_language_model(
    advice: LanguageModelAdvice,
    path: Path,
    *,
    epsilons: Sequence[float] = (),
    progress: Progress | None = None,
) -> None:
    """Expected loss, and the model size that reaches it, over compute: a line for each epsilon.

    Args:
        epsilons: to compare with that of the question; left out, a quarter and four times of it.

    :raises MissingExtra: without matplotlib.
    :raises InvalidInput: the name of the file does not end in a known format, or an epsilon is out of range.
    """
    question, best = advice.question, advice.best
    told = progress or (lambda _title, _done, _total: None)
    figure = empty_figure(9.0, 4.0)
    losses, sizes = figure.subplots(1, 2)
    chosen = sorted({question.epsilon, *(epsilons or (question.epsilon / 4, 4 * question.epsilon))})
    flops = question.flops * np.geomspace(*_AROUND, _BUDGETS)
    for done, epsilon in enumerate(chosen):
        told("drawing", done, len(chosen))
        points = loss_over_compute(question, advice.law, epsilon=epsilon, flops=flops)
        style: dict[str, Any] = {
            **line_style(done),
            "linewidth": 2.2 if epsilon == question.epsilon else 1.3,
            "label": f"ε = {epsilon:g}",
        }
        at = [point.flops for point in points]
        losses.semilogx(at, [point.loss for point in points], **style)
        sizes.loglog(at, [point.model_size for point in points], **style)
    told("drawing", len(chosen), len(chosen))
    _without_privacy(advice, losses, sizes, flops)
    mark: dict[str, Any] = {
        "marker": "o",
        "color": "black",
        "markersize": 5,
        "linestyle": "none",
        "zorder": 5,
    }
    losses.plot([question.flops], [best.loss], **mark)
    sizes.plot([question.flops], [best.model_size], **mark)
    losses.set_title("expected loss, nats a token", fontsize=10)
    sizes.set_title("model size, parameters", fontsize=10)
    for axes in (losses, sizes):
        axes.set_xlabel("compute for training, FLOPs")
        axes.set_xlim(flops[0], flops[-1])
        axes.grid(alpha=0.25, which="major")
    losses.legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"{question.records:,} records, δ = {question.delta:g}; the dot: {parameters(best.model_size)} "
        f"parameters, batches of {best.batch_size:,}, {best.steps:,} steps",
        fontsize=10,
    )
    write_figure(figure, path)


def _without_privacy(advice: LanguageModelAdvice, losses: Axes, sizes: Axes, flops: Floats) -> None:
    """What training without privacy chooses; its loss where the law reaches."""
    style: dict[str, Any] = {
        "color": GREY,
        "linestyle": (0, (6, 2, 1, 2, 1, 2)),
        "linewidth": 1.3,
        "label": "without privacy",
    }
    others = [
        (budget, without_privacy(replace(advice.question, flops=float(budget)), advice.law))
        for budget in flops
    ]
    sizes.loglog(flops, [other.model_size for _, other in others], **style)
    known = [(budget, other.loss) for budget, other in others if other.loss is not None]
    losses.semilogx([budget for budget, _ in known], [loss for _, loss in known], **style)
