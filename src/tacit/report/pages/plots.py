"""Pictures of a run: score and epsilon by step, the confusion matrix, and the privacy curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.accounting import PrivacyCurve
from tacit.report.pages.canvas import BLUE, GREY, ORANGE, new_figure, save_figure
from tacit.rounding import round_up
from tacit.training.loop import MetricsRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOT_PRIVATE = "NOT PRIVATE: fixed test key"
_MOST_CLASSES = 30  # the most classes in the picture of a confusion matrix


def plot_progress(
    rows: Sequence[MetricsRow],
    path: Path,
    *,
    score: str = "test accuracy",
    figure: str = "test_score",
    error: float = 0.0,
    within: tuple[float, float] = (-math.inf, math.inf),
    baseline: float | None = None,
    known: str = "",
    loss_baseline: float | None = None,
    private: bool = True,
) -> None:
    """Draw the score in an upper chart and epsilon in a lower one, both against the steps.

    If there are fewer than two scores, the upper chart shows the noisy training loss. The vertical axis has
    room for four standard errors, so that a line which moves only by chance looks flat. A band shows two
    standard errors to each side.

    Args:
        rows: the rows of the metrics.
        path: the path of the PNG.
        score: the name of the score on the axis.
        figure: the column of the metrics that has the score.
        error: the standard error of a score. The row of a loss has the standard error of that loss.
        within: the range of possible scores.
        baseline: the score of a constant answer, shown as a dashed line.
        known: the qualifier of a baseline that is not exact, such as "at least".
        loss_baseline: the loss of equal probabilities for all classes, shown as a dashed line in a chart of
            the loss.
        private: False marks the picture as one of a run with a fixed test key.
    """
    picture = new_figure(height=4.8)
    upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    spent = [(0, 0.0), *((row.steps, row.epsilon) for row in rows)]
    scored = _points(rows, figure, lambda _: error)
    losses = _points(rows, "loss", lambda row: row.loss_std or 0.0)
    answer = f"constant answer: {known}".removesuffix(" ")
    if len(scored) < 2 <= len(losses):
        scored, score, baseline, answer = losses, "noisy training loss", loss_baseline, "equal probabilities:"
        within = (-math.inf, math.inf)
    _line(upper, [point[:2] for point in scored], score, BLUE, f"{scored[-1][1]:.3f}" if scored else "")
    if baseline is not None and math.isfinite(baseline):
        apart = [abs(point[1] - baseline) for point in scored]
        _constant(upper, baseline, answer, at_end=bool(apart) and apart[-1] > apart[0])
    _give_room(upper, scored, within, baseline)
    _line(lower, spent, "ε spent", ORANGE, round_up(spent[-1][1], 3))
    lower.set(xlabel="steps", xlim=(0, None), ylim=(0, None))
    last = rows[-1].steps if rows else 0
    picture.suptitle(f"Score and cost over {last} {'step' if last == 1 else 'steps'}", fontsize=11)
    _mark(upper, private)
    save_figure(picture, path)


_Point = tuple[int, float, float]
"""The number of steps, a value after these steps, and its standard error."""


def _points(rows: Sequence[MetricsRow], figure: str, error: Callable[[MetricsRow], float]) -> list[_Point]:
    values = ((row, getattr(row, figure)) for row in rows)
    return [(row.steps, value, error(row)) for row, value in values if value is not None]


def _give_room(
    axes: Axes, points: Sequence[_Point], within: tuple[float, float], baseline: float | None
) -> None:
    """Draw a band of two standard errors, and set axis limits at least four standard errors from the line."""
    finite = [point for point in points if math.isfinite(point[1]) and point[2] > 0.0]
    if not finite:
        return
    steps = [point[0] for point in finite]
    low = [max(within[0], value - 2 * error) for _, value, error in finite]
    high = [min(within[1], value + 2 * error) for _, value, error in finite]
    axes.fill_between(steps, low, high, color=BLUE, alpha=0.12, linewidth=0)
    room = 4 * min(error for _, _, error in finite)
    values = [value for _, value, _ in finite]
    ends = [min(*low, min(values) - room), max(*high, max(values) + room)]
    if baseline is not None and math.isfinite(baseline):
        ends = [min(ends[0], baseline), max(ends[1], baseline)]
    margin = 0.08 * (ends[1] - ends[0])
    edge = 0.02 * (within[1] - within[0]) if all(map(math.isfinite, within)) else margin
    axes.set_ylim(max(ends[0] - margin, within[0] - edge), min(ends[1] + margin, within[1] + edge))


def _line(axes: Axes, points: Sequence[tuple[int, float]], name: str, colour: str, label: str) -> None:
    """Draw a line, and write its last value in the margin, where the text covers nothing."""
    axes.set_ylabel(name, color=colour)
    axes.grid(alpha=0.25)
    axes.margins(x=0.02, y=0.1)
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3)
        axes.annotate(
            label, (1, points[-1][1]), xycoords=("axes fraction", "data"), xytext=(6, 0), color=colour,
            textcoords="offset points", va="center", annotation_clip=False,
        )  # fmt: skip


def _constant(axes: Axes, value: float, answer: str, *, at_end: bool) -> None:
    """Draw the line of a baseline, with its name above its right end (``at_end``) or its left end."""
    axes.axhline(value, color=GREY, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"{answer} {value:.3f}",
        (0.98 if at_end else 0.02, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=GREY,
        fontsize=9,
        va="bottom",
        ha="right" if at_end else "left",
    )


def plot_confusion(data: Mapping[str, Any], path: Path) -> bool:
    """Draw the confusion matrix of a run. Rows are true classes, and a cell's shade is its share of the row.

    Args:
        data: the result of :func:`tacit.report.evaluated.evaluation_data`.
        path: the path of the PNG.

    Returns:
        True if the picture was drawn. There must be an exact matrix of at most 30 classes.
    """
    matrix = data.get("confusion_matrix")
    if not matrix or len(matrix) > _MOST_CLASSES:
        return False
    counts = np.array(matrix)
    names = [one["class"] if len(one["class"]) <= 14 else f"{one['class'][:13]}…" for one in data["classes"]]
    names = [name.replace("$", r"\$") for name in names]  # which would begin a formula in matplotlib
    side = 2.6 + 0.42 * len(names)
    figure = new_figure(width=max(4.6, side + 0.8), height=max(3.8, side))
    axes = figure.add_subplot()
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for (true, predicted), count in np.ndenumerate(counts):
        colour = "white" if shares[true, predicted] > 0.55 else "black"
        axes.text(predicted, true, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0)
    axes.set_yticks(
        range(len(names)),
        [f"{name}  ({one['records']:,})" for name, one in zip(names, data["classes"], strict=True)],
    )
    axes.set(xlabel="predicted class", ylabel="true class (test records)")
    axes.set_title(
        f"accuracy {data['score']:.3f}, constant answer {data['baseline']['score']:.3f}", fontsize=10
    )
    _mark(axes, data["private"])
    save_figure(figure, path)
    return True


def plot_privacy_curve(curve: PrivacyCurve, delta: float, path: Path, *, private: bool = True) -> None:
    """Draw ε as a function of δ. The guarantee holds at every point of the line."""
    figure = new_figure()
    axes = figure.add_subplot()
    deltas = np.logspace(np.log10(max(delta * 1e-5, 1e-12)), -1, 25)
    epsilons = curve.epsilon(deltas)
    epsilon = curve.epsilon(delta)
    top = 1.15 * float(np.max(epsilons, where=np.isfinite(epsilons), initial=epsilon))
    axes.plot(deltas, epsilons, color=BLUE)
    axes.fill_between(deltas, epsilons, top, color=BLUE, alpha=0.10, linewidth=0)
    axes.plot([delta], [epsilon], "o", color=ORANGE)
    axes.annotate(f"stated: ε = {round_up(epsilon)}, δ = {delta:g}", (delta, epsilon), xytext=(8, 8),
                  textcoords="offset points", color=ORANGE)  # fmt: skip
    axes.text(
        0.97, 0.93, "the promise holds here", transform=axes.transAxes, ha="right", va="top", color=BLUE
    )
    axes.text(0.03, 0.05, "nothing is promised here", transform=axes.transAxes, color=GREY)
    axes.set(xscale="log", xlim=(deltas[0], deltas[-1]), ylim=(0, top if top > 0 else 1))
    axes.set(xlabel="δ (smaller is more private)", ylabel="ε (smaller is more private)")
    axes.set_title("The whole privacy guarantee of the run", fontsize=11)
    axes.grid(alpha=0.25)
    _mark(axes, private)
    save_figure(figure, path)


def _mark(axes: Axes, private: bool) -> None:
    if not private:
        axes.text(0.5, 0.5, _NOT_PRIVATE, transform=axes.transAxes, ha="center", color="red", alpha=0.6,
                  fontsize=16, fontweight="bold")  # fmt: skip
