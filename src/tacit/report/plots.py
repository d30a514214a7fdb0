"""Figures of a run, of the choice of its plan, of its guarantee, and of the cost of an event.

Letters: f(a) is the least false-negative rate at false-positive rate a. The evidence is u = Phi^-1(1 - a).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import PrivacyCurve, account
from tacit.events import Event, Repeat
from tacit.planner import PlanAdvice
from tacit.planner.advice import NEAR_FLOOR
from tacit.report.canvas import BLUE, GREY, ORANGE, label_of, line_style, new_figure, save_figure
from tacit.report.pricing import Pricing, no_progress
from tacit.report.risk import RiskSheet, two_worlds
from tacit.report.run_page import draw_worlds
from tacit.rounding import counted, shown_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tacit.training.loop import MetricsRow


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
    standard errors to each side. ``within`` is the range of possible scores.
    """
    picture = new_figure(height=4.8)
    upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    spent = [(0, 0.0), *((row.steps, row.epsilon) for row in rows)]
    scored = _points(rows, figure, lambda _: error)
    losses = _points(rows, "loss", lambda row: row.loss_std or 0.0)
    answer = f"baseline: {known}".removesuffix(" ")
    if len(scored) < 2 <= len(losses):
        scored, score, baseline, answer = losses, "noisy training loss", loss_baseline, "equal probabilities:"
        within = (-math.inf, math.inf)
    _line(upper, [point[:2] for point in scored], score, BLUE, f"{scored[-1][1]:.3f}" if scored else "")
    if baseline is not None and math.isfinite(baseline):
        apart = [abs(point[1] - baseline) for point in scored]
        _constant(upper, baseline, answer, at_end=bool(apart) and apart[-1] > apart[0])
    _give_room(upper, scored, within, baseline)
    _line(lower, spent, "ε spent", ORANGE, shown_epsilon(spent[-1][1]))
    lower.set(xlabel="steps", xlim=(0, None), ylim=(0, None))
    last = rows[-1].steps if rows else 0
    picture.suptitle(f"Score and cost over {counted(last, 'step')}", fontsize=11)
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
    """Draw the confusion matrix, if there is an exact one of at most 30 classes, and return whether there is.

    Rows are true classes, and a cell's shade is its share of the row.
    """
    matrix = data.get("confusion_matrix")
    if not matrix or len(matrix) > _MOST_CLASSES:
        return False
    counts = np.array(matrix)
    names = [label_of(one["class"], 14) for one in data["classes"]]
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
        f"accuracy {data['score']:.3f}, majority class {data['baseline']['score']:.3f}", fontsize=10
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
    axes.annotate(f"stated: ε = {shown_epsilon(epsilon)}, δ = {delta:g}", (delta, epsilon), xytext=(8, 8),
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


def plot_advice(advice: PlanAdvice, path: Path) -> None:
    """Draw total noise against batch size, with the recommended batch size.

    A line shows the floor, the total noise of full batches, and a band shows the values near it.
    """
    question, best = advice.question, advice.recommended
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    options = sorted(advice.options, key=lambda option: option.batch_size)
    sizes = [option.batch_size for option in options]
    axes.loglog(sizes, [option.total_noise for option in options], color=BLUE, marker="o", markersize=4)
    axes.axhline(advice.floor, color=GREY, linewidth=1)
    axes.axhspan(advice.floor, (1 + NEAR_FLOOR) * advice.floor, color=GREY, alpha=0.15, linewidth=0)
    across = axes.get_yaxis_transform()
    axes.text(0.02, advice.floor, "full batch", transform=across, va="top", color=GREY, fontsize=9)
    axes.plot([best.batch_size], [best.total_noise], "o", color=ORANGE)
    label = f"batches of {best.batch_size:,}\n{best.steps:,} steps, σ = {best.noise_multiplier:.3g}"
    axes.text(0.97, 0.95, label, transform=axes.transAxes, ha="right", va="top", color=ORANGE)
    axes.set_ylim(bottom=0.8 * min(advice.floor, *(option.total_noise for option in options)))
    axes.set(xlabel="batch size B", ylabel="total noise σ / (B √T), in clipping norms")
    axes.set_title(f"Total noise by batch size at {question.budget_in_words}", fontsize=11)
    axes.grid(alpha=0.25, which="both")
    save_figure(figure, path)


Array: TypeAlias = NDArray[np.float64]


def draw_risk(sheet: RiskSheet, path: Path) -> None:
    """Draw the sheet into the file ``path``. The ending of its name gives the format."""
    figure = new_figure(10.5, 4.4)
    figure.suptitle(
        f"One {sheet.unit}: (ε, δ) = ({shown_epsilon(sheet.epsilon)}, {sheet.delta:g}), "
        f"{sheet.curve.adjacency}"
    )
    left, right = figure.subplots(1, 2)
    _draw_worlds(left, sheet)
    _draw_found(right, sheet)
    save_figure(figure, path)


def _draw_worlds(axes: Axes, sheet: RiskSheet) -> None:
    bins = np.linspace(-4.0, 8.0, 49)
    without, with_it = two_worlds(sheet.curve, bins)
    draw_worlds(axes, {"evidence": bins, "without": without, "with": with_it}, sheet.unit)
    axes.set(
        xlabel="strength of an attacker's best evidence",
        ylabel="times in 100",
        title=f"Two worlds: guessed right {100 * sheet.guess.at_most:.1f} times in 100",
    )
    axes.legend(frameon=False)


def _draw_found(axes: Axes, sheet: RiskSheet) -> None:
    rates = np.logspace(-5, 0, 61)
    bound = 1.0 - np.asarray(sheet.curve.false_negative_rate(rates))
    axes.fill_between(rates, bound, 1.0, color=GREY, alpha=0.25, label="no attack gets here")
    axes.plot(rates, bound, color=ORANGE, label="limit for every attack")
    axes.plot(rates, rates, color=GREY, linestyle="--", label="guessing")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1e-5, 1.0),
        ylim=(1e-5, 1.0),
        xlabel="share of others falsely accused",
        ylabel="share of members found",
        title="The most that an attacker can find",
    )
    axes.legend(frameon=False, loc="lower right")


_POINTS, _DELTAS, _RATES = 13, 25, 81
_REPEATS = 64


@dataclass(frozen=True)
class Drawing:
    """The curves of the figure: for each method, epsilon at ``counts`` repetitions and at ``deltas``.

    ``false_negatives`` are f at the false-positive ``rates``.
    """

    pricing: Pricing
    counts: tuple[int, ...]
    count_label: str
    over_counts: dict[str, Array]
    deltas: Array
    profile: dict[str, Array]
    rates: Array
    false_negatives: Array


def prepare_drawing(pricing: Pricing, progress: Callable[[str, int, int], object] = no_progress) -> Drawing:
    """Compute the curves of the figure. ``progress`` is called with (title, done, total)."""
    inner, counts, count_label = _unit(pricing.event)
    done, total = 0, len(pricing.curves) * (len(counts) + 1) + 1
    over_counts: dict[str, Array] = {}
    profile: dict[str, Array] = {}
    deltas = np.logspace(math.log10(max(pricing.delta * 1e-3, 1e-15)), math.log10(0.5), _DELTAS)
    for curve in pricing.curves:
        line = []
        for count in counts:
            progress("drawing", done, total)
            priced = account(Repeat(inner, count), adjacency=pricing.adjacency, method=curve.method)
            line.append(priced.epsilon(pricing.delta))
            done += 1
        over_counts[curve.method] = np.array(line)
        profile[curve.method] = curve.epsilon(deltas)
        done += 1
    progress("drawing", done, total)
    rates = np.linspace(0.0, 1.0, _RATES) ** 2  # denser at small false-positive rates
    false_negatives = pricing.best.false_negative_rate(rates)
    progress("drawing", total, total)
    return Drawing(pricing, counts, count_label, over_counts, deltas, profile, rates, false_negatives)


def _unit(event: Event) -> tuple[Event, tuple[int, ...], str]:
    """Return the event to repeat, the numbers of repetitions, and the axis label for these numbers."""
    inner, most, label = (
        (event.event, event.count, "steps")
        if isinstance(event, Repeat) and event.count > 1
        else (event, _REPEATS, "times the whole event")
    )
    counts = sorted({max(1, round(count)) for count in np.geomspace(max(1.0, most / 1000), most, _POINTS)})
    return inner, tuple(counts), label


def draw_pricing(drawing: Drawing, path: Path) -> None:
    """Draw the three panels side by side. The ending of the file's name gives the format."""
    figure = new_figure(12.6, 4.1)
    over_counts, profile, trade_off = figure.subplots(1, 3)
    _draw_counts(over_counts, drawing)
    _draw_profile(profile, drawing)
    _draw_trade_off(trade_off, drawing)
    if len(drawing.profile) > 1:
        lines = over_counts.get_lines()
        figure.legend(lines, [*drawing.over_counts], loc="outside lower center", ncols=len(lines))
    save_figure(figure, path)


def _draw_counts(axes: Axes, drawing: Drawing) -> None:
    for number, (name, line) in enumerate(drawing.over_counts.items()):
        _finite_line(axes, drawing.counts, line, number, name)
    axes.set(xscale="log", xlabel=drawing.count_label, ylabel="ε (smaller is more private)")
    axes.set_title(f"Cost at δ = {drawing.pricing.delta:g}", fontsize=11)
    finite = np.concatenate([line[np.isfinite(line) & (line > 0)] for line in drawing.over_counts.values()])
    if finite.size and finite.max() > 0:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _draw_profile(axes: Axes, drawing: Drawing) -> None:
    pricing = drawing.pricing
    for number, (name, line) in enumerate(drawing.profile.items()):
        _finite_line(axes, line, drawing.deltas, number, name)
    if math.isfinite(pricing.epsilon):
        axes.plot([pricing.epsilon], [pricing.delta], "o", color="black", zorder=5)
        axes.annotate(f"ε = {shown_epsilon(pricing.epsilon)}", (pricing.epsilon, pricing.delta),
                      xytext=(-8, -4), textcoords="offset points", ha="right", va="top")  # fmt: skip
    axes.set(yscale="log", xlabel="ε", ylabel="δ (smaller is more private)")
    axes.set_xlim(left=0.0)
    axes.set_title("Every pair (ε, δ) that it satisfies", fontsize=11)
    axes.grid(alpha=0.25)


def _draw_trade_off(axes: Axes, drawing: Drawing) -> None:
    style = line_style([*drawing.profile].index(drawing.pricing.best.method))
    colour = style["color"]
    axes.plot(drawing.rates, drawing.false_negatives, **style)
    axes.fill_between(drawing.rates, drawing.false_negatives, color=colour, alpha=0.10, linewidth=0)
    axes.plot([0, 1], [1, 0], color=GREY, linewidth=0.8, linestyle=(0, (2, 5)))
    axes.text(0.98, 0.96, "dotted: a blind guess\nshaded: no test gets here", transform=axes.transAxes,
              ha="right", va="top", fontsize=9, color="#444444")  # fmt: skip
    axes.set(xlabel="non-members accused (false positives)", ylabel="members missed (false negatives)")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title("The limits of a test for membership", fontsize=11)
    axes.grid(alpha=0.25)


def _finite_line(axes: Axes, x: Sequence[int] | Array, y: Array, number: int, name: str) -> None:
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    finite = np.isfinite(first) & np.isfinite(second)
    axes.plot(first[finite], second[finite], **line_style(number), label=name)
