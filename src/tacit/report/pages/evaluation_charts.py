"""The charts of an evaluation: ROC, precision and recall, calibration, and predicted against true values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.report.pages.canvas import BLUE, ORANGE, PALE, new_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

_DASHED: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.4}
_FAINTEST = 0.08  # the least opacity of a cell with records


def charts_of(data: Data) -> dict[str, Axes]:
    """Draw the charts for which ``data`` has figures, and return them by name.

    Args:
        data: the result of :func:`tacit.report.evaluated.evaluation_data`.
    """
    charts: dict[str, Axes] = {}
    if curves := data.get("curves"):
        charts["roc"] = _roc(curves)
        charts["precision-recall"] = _precision_recall(curves, data["classes"])
    if reliability := data.get("calibration"):
        charts["calibration"] = _calibration(reliability, of_class=data.get("positive_class"))
    for number, error in enumerate(data.get("errors", ())):
        if cells := error.get("cells"):
            charts[f"cells-{number}"] = _cells(cells, error["target"])
    return charts


def _roc(curves: Sequence[Data]) -> Axes:
    axes = _rates("false alarms (share of the others)", "found (share of the class)", "ROC")
    grid = np.linspace(0.0, 1.0, 201)
    lines = [(one["curve"]["false_positive_rate"], one["curve"]["recall"]) for one in curves]
    for line in lines[:-1] if len(lines) > 1 else ():
        axes.plot(*line, color=PALE, linewidth=1.0)
    if len(lines) > 1:
        axes.plot(*lines[-1], color=PALE, linewidth=1.0, label="each class against the others")
        mean = np.mean([np.interp(grid, *line) for line in lines], axis=0)
        axes.plot([0.0, *grid], [0.0, *mean], color=BLUE, label="mean of the classes")
    else:
        axes.plot(*lines[0], color=BLUE, label=_quoted(curves[0]["positive"]))
    axes.plot([0.0, 1.0], [0.0, 1.0], **_DASHED, label="guessing")
    axes.legend(loc="lower right")
    return axes


def _precision_recall(curves: Sequence[Data], classes: Sequence[Data]) -> Axes:
    axes = _rates(
        "recall: found (share of the class)", "precision (share of those found)", "Precision, recall"
    )
    grid, total = np.linspace(0.01, 1.0, 100), sum(one["records"] for one in classes)
    # From one point to the next, the curve has the precision of the next, as in average precision. The first
    # point calls no record positive and has no precision.
    lines = [(one["curve"]["recall"], [one["curve"]["precision"][1], *one["curve"]["precision"][1:]])
             for one in curves]  # fmt: skip
    style: dict[str, Any] = {"drawstyle": "steps-pre"}
    if len(lines) > 1:
        for number, line in enumerate(lines):
            label: dict[str, Any] = {} if number else {"label": "each class against the others"}
            axes.plot(*line, color=PALE, linewidth=1.0, **style, **label)
        mean = np.mean([_held(grid, *line) for line in lines], axis=0)
        axes.plot(grid, mean, color=BLUE, label="mean of the classes", **style)
    else:
        axes.plot(*lines[0], color=BLUE, label=_quoted(curves[0]["positive"]), **style)
        share = next(one["records"] for one in classes if one["class"] == curves[0]["positive"]) / total
        axes.plot([0.0, 1.0], [share, share], **_DASHED, label="guessing")
    axes.legend(loc="best")
    return axes


def _held(grid: Any, recall: Sequence[float], precision: Sequence[float]) -> Any:
    """Return the precision at each recall of the grid, taken from the curve's next point."""
    return np.asarray(precision)[np.searchsorted(recall, grid).clip(max=len(recall) - 1)]


def _calibration(calibration: Data, *, of_class: str | None) -> Axes:
    """Draw shares with intervals against probabilities, on axes that end where the bins end."""
    name = "the answer" if of_class is None else _quoted(of_class)
    happened = "the share that is right" if of_class is None else f"share of {name}"
    axes = _rates(f"probability that the model gives {name}", happened, "Calibration")
    axes.plot([0.0, 1.0], [0.0, 1.0], **_DASHED, label="perfect calibration")
    x, y = ([one[key] for one in calibration["bins"]] for key in ("probability", "share"))
    ends = np.array([one["interval"] for one in calibration["bins"]]).reshape(-1, 2).T
    axes.errorbar(
        x,
        y,
        np.abs(ends - y),
        color=BLUE,
        marker="o",
        capsize=3,
        label="a bin of records, with 95 % interval",
    )
    largest = min(1.0, 1.1 * max([*x, *ends[1]], default=1.0))
    axes.set(xlim=(0.0, largest), ylim=(0.0, 1.02 * largest))
    axes.legend(loc="best")
    return axes


def _cells(cells: Data, target: str) -> Axes:
    """Draw cells of predicted and true values, shaded by record count, and each column's mean true value."""
    axes = new_chart(f"predicted {target}", f"true {target}", title=f"Predicted and true {target}")
    edges, records = np.array(cells["edges"]), np.array(cells["records"])
    shades = records / max(1, records.max())
    for row, column in zip(*np.nonzero(records), strict=True):
        axes.add_patch(_rectangle(edges, row, column, _FAINTEST + (0.85 - _FAINTEST) * shades[row, column]))
    axes.plot(edges[[0, -1]], edges[[0, -1]], **_DASHED, label="prediction = truth")
    columns = [one for one in cells["residuals"] if one["mean"] is not None]
    middle = np.array([(edges[one["column"]] + edges[one["column"] + 1]) / 2 for one in columns])
    mean, std = (np.array([one[key] for one in columns]) for key in ("mean", "std"))
    axes.errorbar(
        middle, middle + mean, std, color=ORANGE, marker="o", markersize=4, linewidth=1.2, capsize=3,
        label="mean true value, ± standard deviation",
    )  # fmt: skip
    axes.set(xlim=edges[[0, -1]], ylim=edges[[0, -1]])
    axes.legend(loc="upper left")
    return axes


def _rectangle(edges: Any, row: int, column: int, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    corner, sides = (edges[column], edges[row]), np.diff(edges)[[column, row]]
    return Rectangle(corner, *sides, color=BLUE, alpha=alpha, linewidth=0)


def _rates(x: str, y: str, title: str) -> Axes:
    axes = new_chart(x, y, title=title)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.02))
    return axes


def _quoted(name: str) -> str:
    return f"“{name}”" if len(name) <= 24 else f"“{name[:23]}…”"
