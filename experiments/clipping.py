"""The effect of the clipping norm: too small, too large, and adaptive to the median (1905.03871).

A fixed clipping norm far below the gradients makes the steps too short, and one far above adds too much
noise. The adaptive rule finds the median from both sides.  The epsilon includes the noisy count that it
needs.
"""

from __future__ import annotations

from experiments.base import NO_SEARCH, Request, Row, Setting, percent, repeat, write_results
from experiments.standard import load
from tacit.clipping.rules import AdaptiveClipping, ClippingRule, FlatClipping
from tacit.datasets import Dataset
from tacit.models import MLP
from tacit.report.canvas import BLUE, GREY, ORANGE, new_figure, save_figure
from tacit.training import Evaluation, PrivateSession

_NAME = "clipping"
_NORMS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_STARTS = (0.001, 100.0)
_SETTING = Setting(2000, 150, learning_rate=0.5, momentum=0.9, clipping_norm=1.0)


def run(request: Request) -> list[Row]:
    """Return a row per rule, and draw ``clipping.png``: accuracy over the norm, and adaptive thresholds."""
    name = request.choose_dataset(("mnist", "fashion-mnist"))
    data = load(name)
    rows: list[Row] = []
    for epsilon in request.choose_epsilons((3.0,)):
        rules: list[tuple[str, ClippingRule]] = [(f"fixed {norm:g}", FlatClipping(norm)) for norm in _NORMS]
        rules += [(f"median, from {c:g}", AdaptiveClipping(c, learning_rate=0.3)) for c in _STARTS]
        for label, rule in rules:
            rows.append(_repeat(request, data, name, epsilon, label, rule))
    _draw(rows, request)
    write_results(_NAME, rows, request, notes=["learning rate and batch size are the same for all rules"])
    return rows


def _repeat(
    request: Request, data: Dataset, name: str, epsilon: float, label: str, rule: ClippingRule
) -> Row:
    plan = _SETTING.plan(data, epsilon, clipping=rule)
    path: list[float] = []

    def watch(session: PrivateSession) -> None:
        path.append(session.thresholds[0])

    def once(number: int) -> Evaluation:
        model = MLP(28 * 28, len(data.classes), hidden=(64,), activation="tanh").to(request.device)
        return _SETTING.fit(model, data, plan, watcher=watch if number == 0 else None)

    found = repeat(f"ε = {epsilon:g}, {label}", request, plan, once)
    return found.row(
        _NAME,
        name,
        f"MLP 784-64-10, {label}",
        selection=NO_SEARCH,
        rule=label,
        thresholds=path[:: _every(plan.steps)],
    )


def _every(steps: int) -> int:
    """Return the number of steps between two thresholds in a row's details."""
    return max(1, steps // 50)


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    fixed = [row for row in rows if row.details["rule"].startswith("fixed")]
    accuracies = [percent(row.accuracy_mean) for row in fixed]
    left.plot([float(row.details["rule"].split()[1]) for row in fixed], accuracies, "o-", color=GREY)
    colours = (BLUE, ORANGE)
    adaptive = [row for row in rows if row.details["rule"].startswith("median")]
    for row, colour in zip(adaptive, colours, strict=False):
        label = row.details["rule"]
        left.axhline(percent(row.accuracy_mean), color=colour, linestyle="--", label=label)
        thresholds, every = row.details["thresholds"], _every(row.details["steps"])
        right.plot([1 + every * k for k in range(len(thresholds))], thresholds, color=colour, label=label)
    left.set_xscale("log")
    left.set_xlabel("fixed clipping norm")
    left.set_ylabel("test accuracy, %")
    left.legend(fontsize=8)
    right.set_yscale("log")
    right.set_xlabel("steps")
    right.set_ylabel("threshold")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
