"""Pictures of a run: what was reached and spent over the steps, and the whole privacy curve."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.accounting import PrivacyCurve
from tacit.errors import MissingExtra
from tacit.training.files import write_atomically
from tacit.training.loop import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure", "plot_privacy_curve", "plot_progress", "save_figure"]

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8551b", "#2d7d46", "#666666"


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure that no window system knows of."""
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


def plot_progress(rows: Sequence[Row], path: Path, *, score: str = "test accuracy") -> None:
    """Score and epsilon over the steps, on two axes of one picture."""
    figure = new_figure()
    left = figure.add_subplot()
    right = left.twinx()
    steps = [row.steps for row in rows]
    scored = [(row.steps, row.test_score) for row in rows if row.test_score is not None]
    if scored:
        left.plot(*zip(*scored, strict=True), color=BLUE, marker="o", markersize=3)
        left.annotate(f"{scored[-1][1]:.3f}", scored[-1], xytext=(-4, 6), textcoords="offset points",
                      ha="right", color=BLUE)  # fmt: skip
    right.plot(steps, [row.epsilon for row in rows], color=ORANGE)
    left.set_xlabel("steps")
    left.set_ylabel(score, color=BLUE)
    right.set_ylabel("ε spent", color=ORANGE)
    right.set_ylim(bottom=0)
    left.grid(alpha=0.25)
    save_figure(figure, path)


def plot_privacy_curve(curve: PrivacyCurve, delta: float, path: Path) -> None:
    """ε as a function of δ: the guarantee holds at every point of the line, not at one alone."""
    figure = new_figure()
    axes = figure.add_subplot()
    deltas = np.logspace(np.log10(max(delta * 1e-5, 1e-12)), -1, 40)
    axes.plot(deltas, curve.epsilon(deltas), color=BLUE)
    epsilon = curve.epsilon(delta)
    axes.plot([delta], [epsilon], "o", color=ORANGE)
    axes.annotate(f"stated: ε = {epsilon:.3g}, δ = {delta:g}", (delta, epsilon), xytext=(8, 8),
                  textcoords="offset points", color=ORANGE)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("δ")
    axes.set_ylabel("ε(δ)")
    axes.set_ylim(bottom=0)
    axes.set_title("Below the line nothing is promised; on and above it the run is (ε, δ)-DP", fontsize=9)
    axes.grid(alpha=0.25)
    save_figure(figure, path)
