"""The charts of ``docs/results.md``: SVG whose colours follow the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appendix import OURS, PLAIN, PUBLISHED, load, measured, trained
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from tacit.report.canvas import BLUE, CHART_WIDTH, GREEN, ORANGE, PALE, THEME, new_chart, to_svg

__all__ = ["CHARTS", "FOLDER", "best", "write"]

FOLDER = Path(__file__).parent / "pictures"
INK = next(colour for colour, name in THEME.items() if name == "ink")
LOOKS: dict[str, dict[str, Any]] = {
    "Tacit": {"color": BLUE, "marker": "o", "markersize": 8},
    "Opacus": {"color": ORANGE, "marker": "s", "markersize": 7},
    "Opake": {"color": GREEN, "marker": "^", "markersize": 8},
    "torch.func": {"color": PALE, "marker": "D", "markersize": 6},
}


def write() -> None:
    """Write all charts."""
    for name, draw in CHARTS.items():
        (FOLDER / f"results-{name}.svg").write_text(to_svg(draw(), alone=True) + "\n", encoding="utf-8")


def papers() -> Axes:
    """Draw test errors on MNIST and CIFAR-10 by epsilon, ours and published ones."""
    axes = new_chart(
        "ε", "test error, %", size=(CHART_WIDTH, 5.6),
        title="Test errors on MNIST and CIFAR-10: Tacit and published results",
    )  # fmt: skip
    ours: dict[tuple[str, float], float] = {}
    for row in (row for name in OURS for row in trained(name)):
        key = row["dataset"], round(row["epsilon"], 1)
        ours[key] = min(100 - 100 * row["accuracy_mean"], ours.get(key, 100.0))
    published = load(PUBLISHED)
    known = [(row["epsilon"], 100 - row["accuracy"]) for row in published if "disputed" not in row]
    disputed = [(row["epsilon"], 100 - row["accuracy"]) for row in published if "disputed" in row]
    _dots(axes, "published", known, color=ORANGE, marker="s", markersize=7)
    _dots(axes, "published, disputed", disputed, color=PALE, marker="D", markersize=6)
    _dots(axes, "Tacit", [(epsilon, error) for (_, epsilon), error in ours.items()], **LOOKS["Tacit"])
    axes.set(xscale="log", yscale="log", ylim=(0.9, 70))
    _ticks(axes, "x", (0.5, 1, 2, 3, 4, 8))
    _ticks(axes, "y", (1, 2, 5, 10, 20, 50))
    for name, error in (("CIFAR-10", 46), ("MNIST", 13)):
        axes.text(0.5, error, name, fontsize=13, color=INK)
    _legend(axes, 3)
    return axes


def tables() -> Axes:
    """Draw each table's score at epsilon 1: ours, boosting's and diffprivlib's."""
    axes = new_chart(
        "AUC, or R² of a regression", "", title="Scores on twenty tables at ε = 1", size=(CHART_WIDTH, 8.0)
    )
    by = {(row["dataset"], row["model"], row["epsilon"]): row["accuracy_mean"] for row in trained("tables")}
    score = {name: mean for (name, model, epsilon), mean in by.items() if (model, epsilon) == (OUR_MODEL, 1)}
    names = sorted(score, key=lambda name: score[name])
    looks: tuple[tuple[str, float | None, dict[str, Any]], ...] = (
        ("diffprivlib, linear", 1.0, LOOKS["Opake"]),
        ("InterpretML, DP-EBM", 1.0, LOOKS["Opacus"]),
        ("our model without DP", None, LOOKS["torch.func"]),
        (OUR_MODEL, 1.0, LOOKS["Tacit"]),
    )
    for model, epsilon, look in looks:
        points = [(by.get((name, model, epsilon), math.nan), row) for row, name in enumerate(names)]
        _dots(axes, model, [(x if math.isnan(x) else max(0.0, x), y) for x, y in points], **look)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(-0.03, 1.03)
    _legend(axes, 2)
    return axes


def public_models() -> Axes:
    """Draw accuracies of heads on public models by epsilon, and without privacy."""
    axes = new_chart("ε", "test accuracy, %", title="Private heads on frozen public models, by ε")
    rows = trained("public-models")
    for (data, label), look in zip(HEADS.items(), LOOKS.values(), strict=False):
        mine = [row for row in rows if row["dataset"] == data]
        points = [(row["epsilon"], 100 * row["accuracy_mean"]) for row in mine if row["epsilon"]]
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.5, **look)
        for row in mine:
            if row["epsilon"] is None:
                dash = {"color": look["color"], "linestyle": "--" if data == "imdb" else ":"}
                name = f"{label.partition(',')[0]}, without privacy"
                axes.axhline(100 * row["accuracy_mean"], label=name, linewidth=1.5, **dash)
    axes.set(xscale="log")
    _ticks(axes, "x", (1, 2, 3, 5, 8))
    _legend(axes, 2)
    return axes


def step() -> Axes:
    """Draw the time of a step of each library at its best, on each workload, over the plain step."""
    axes = new_chart(
        "time of a private step / plain step", "", size=(CHART_WIDTH, 8.0),
        title="Time of a private step of Tacit, Opacus, Opake and torch.func over a plain step",
    )  # fmt: skip
    rows = [row for name in ("step", "step_library", "step_common") for row in measured(name)["timings"]]
    names = list(dict.fromkeys(row["workload"] for row in rows))[::-1]
    for library, look in LOOKS.items():
        found = {name: best(rows, name, library) for name in names}
        points = [(found[name], y) for y, name in enumerate(names)]
        _dots(axes, library, points, zorder=3 if library == "Tacit" else 2, **look)
    axes.axvline(1.0, color=PALE, linewidth=1.2, zorder=1)
    axes.set(xscale="log")
    _ticks(axes, "x", (0.5, 1, 2, 5, 10, 20, 50, 100))
    axes.set_yticks(range(len(names)), names)
    _legend(axes, 4)
    return axes


def accountants() -> Axes:
    """Draw the time of an answer of each accountant, for three tasks."""
    title = "Time of an answer of Tacit and other accountants"
    axes = new_chart("time of an answer, ms", "", title=title)
    rows = measured("accounting")["timings"]
    names = list(dict.fromkeys(row["contestant"] for row in rows))[::-1]
    for (task, label), look in zip(TASKS.items(), LOOKS.values(), strict=False):
        found = {row["contestant"]: row["milliseconds"] for row in rows if row["task"] == task}
        points = [(found[name] or math.nan, y) for y, name in enumerate(names)]
        _dots(axes, label, points, **look)
    axes.set(xscale="log")
    _ticks(axes, "x", (0.1, 1, 10, 100, 1000, 10_000))
    axes.set_yticks(range(len(names)), names)
    _legend(axes, 3)
    return axes


def best(rows: list[dict[str, Any]], workload: str, library: str) -> float:
    """Return the least ratio of a library's engines on a workload; Tacit has its default settings."""
    mine = [row for row in rows if row["workload"] == workload and row["ratio"] is not None]
    ours = [row["ratio"] for row in mine if row["engine"] == library == "Tacit"]
    theirs = [row["ratio"] for row in mine if row["engine"].partition(",")[0] == library != PLAIN]
    return min(ours or theirs, default=math.nan)


def _dots(axes: Axes, label: str, points: list[tuple[float, float]], **look: Any) -> None:
    axes.plot(*zip(*points, strict=True), label=label, linestyle="", **look)


def _legend(axes: Axes, columns: int) -> None:
    """Put the legend above the axes, in the colours of the theme."""
    look: dict[str, Any] = {"labelcolor": INK, "facecolor": "none", "edgecolor": "none", "fontsize": 12}
    axes.figure.legend(loc="outside upper center", ncols=columns, **look)  # type: ignore[union-attr]
    axes.legend([], [], frameon=False)


def _ticks(axes: Axes, name: str, places: tuple[float, ...]) -> None:
    axes.set(**{f"{name}ticks": places, f"{name}ticklabels": [f"{place:,g}" for place in places]})
    getattr(axes, f"{name}axis").set_minor_locator(NullLocator())


OUR_MODEL = "Tacit, default"
HEADS = {
    "imdb": "IMDB, MiniLM",
    "cifar10": "CIFAR-10, MobileNetV2",
    "cifar10-both": "the same and dead leaves",
}
TASKS = {
    "epsilon, sigma = 1": "ε of a run",
    "noise for epsilon = 2": "noise for an ε",
    "epsilon per step, sigma = 1": "ε after each step",
}
CHARTS: dict[str, Callable[[], Axes]] = {
    "papers": papers,
    "tables": tables,
    "public-models": public_models,
    "step": step,
    "accountants": accountants,
}
"""The charts by name."""
