"""What did a run reach and spend over its steps, and what is its privacy curve? Pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.accounting import PrivacyCurve
from tacit.errors import MissingExtra
from tacit.report.rounding import round_up
from tacit.training.files import write_atomically
from tacit.training.loop import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["new_figure", "plot_privacy_curve", "plot_progress", "save_figure"]

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8551b", "#2d7d46", "#666666"
_NOT_PRIVATE = "NOT PRIVATE: fixed test key"


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure without a window system."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "a plot") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=130)


def save_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` as PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, lambda file: file.write(buffer.getvalue()))


def plot_progress(
    rows: Sequence[Row], path: Path, *, score: str = "test accuracy", private: bool = True
) -> None:
    """Score above, epsilon below, over the same steps.

    Where there is one score at most, the noisy training loss is above.
    """
    figure = new_figure(height=4.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    spent = [(0, 0.0), *((row.steps, row.epsilon) for row in rows)]
    scored = [(row.steps, row.test_score) for row in rows if row.test_score is not None]
    losses = [(row.steps, row.loss) for row in rows if row.loss is not None]
    if len(scored) < 2 <= len(losses):
        scored, score = losses, "noisy training loss"
    _line(upper, scored, score, BLUE, f"{scored[-1][1]:.3f}" if scored else "")
    _line(lower, spent, "ε spent", ORANGE, round_up(spent[-1][1], 3))
    lower.set_ylim(bottom=0)
    lower.set_xlabel("steps")
    lower.set_xlim(left=0)
    last = rows[-1].steps if rows else 0
    figure.suptitle(f"What {last} steps reached, and what they cost", fontsize=11)
    _mark(upper, private)
    save_figure(figure, path)


def _line(axes: Axes, points: Sequence[tuple[int, float]], name: str, colour: str, label: str) -> None:
    """A line with its last value in the margin beside it, where it covers nothing."""
    axes.set_ylabel(name, color=colour)
    axes.grid(alpha=0.25)
    axes.margins(x=0.02, y=0.1)
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3)
        axes.annotate(
            label, (1, points[-1][1]), xycoords=("axes fraction", "data"), xytext=(6, 0), color=colour,
            textcoords="offset points", va="center", annotation_clip=False,
        )  # fmt: skip


def plot_privacy_curve(curve: PrivacyCurve, delta: float, path: Path, *, private: bool = True) -> None:
    """ε as a function of δ: the guarantee holds at every point of the line, not at one alone."""
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
    axes.set_xscale("log")
    axes.set_xlim(deltas[0], deltas[-1])
    axes.set_ylim(0, top if top > 0 else 1)
    axes.set_xlabel("δ (smaller is more private)")
    axes.set_ylabel("ε (smaller is more private)")
    axes.set_title("The whole privacy guarantee of the run", fontsize=11)
    axes.grid(alpha=0.25)
    _mark(axes, private)
    save_figure(figure, path)


def _mark(axes: Axes, private: bool) -> None:
    if not private:
        axes.text(0.5, 0.5, _NOT_PRIVATE, transform=axes.transAxes, ha="center", color="red", alpha=0.6,
                  fontsize=16, fontweight="bold")  # fmt: skip
