"""The charts of an evaluation, for its page, and of each column's effect, all on one scale."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.report.canvas import (
    BLUE,
    CHART_WIDTH,
    ORANGE,
    PALE,
    cut,
    label_of,
    line_style,
    new_chart,
    new_figure,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Data = Mapping[str, Any]

_DASHED: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.4}
_FAINTEST = 0.08  # the least opacity of a cell with records


def charts_of(data: Data) -> dict[str, Axes]:
    """Draw the charts for which ``data`` has figures, and return them by name."""
    charts: dict[str, Axes] = {}
    if curves := data.get("curves"):
        charts["roc"] = _roc(curves)
        charts["precision-recall"] = _precision_recall(curves, data["classes"])
    if reliability := data.get("calibration"):
        charts["calibration"] = _calibration(reliability, of_class=data.get("positive_class"))
    for number, error in enumerate(data.get("errors", ())):
        if cells := error.get("cells"):
            charts[f"cells-{number}"] = _cells(cells, error["target"])
    if survival := data.get("survival"):
        charts["survival"] = _survival(survival)
    for number, column in enumerate(data.get("by_group", ())):
        charts[f"groups-{number}"] = _groups([row for row in column["groups"] if row["error"] is not None])
    return charts


def _groups(rows: Sequence[Data]) -> Axes:
    axes = new_chart("error", "", title="Error by group", size=(CHART_WIDTH, 1.2 + _ROW * len(rows)))
    for place, row in enumerate(rows):
        low, high = row["error_interval"]
        axes.plot([low, row["error"], high], [place] * 3, color=BLUE, marker="o", markevery=[1])
    axes.set_yticks(range(len(rows)), [label_of(row["group"]) for row in rows])
    axes.invert_yaxis()
    return axes


def _survival(survival: Data) -> Axes:
    axes = new_chart("time", "share without the event", title="Survival")
    axes.plot(survival["edges"], survival["observed"], color=ORANGE, label="test records (Kaplan-Meier)")
    axes.plot(survival["edges"], survival["predicted"], color=BLUE, label="mean of the predictions")
    axes.set_ylim(0.0, 1.02)
    axes.legend(loc="best")
    return axes


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
        axes.plot(*lines[0], color=BLUE, label=f"“{cut(curves[0]['positive'], 24)}”")
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
        held = [np.asarray(p)[np.searchsorted(r, grid).clip(max=len(r) - 1)] for r, p in lines]
        mean = np.mean(held, axis=0)
        axes.plot(grid, mean, color=BLUE, label="mean of the classes", **style)
    else:
        axes.plot(*lines[0], color=BLUE, label=f"“{cut(curves[0]['positive'], 24)}”", **style)
        share = next(one["records"] for one in classes if one["class"] == curves[0]["positive"]) / total
        axes.plot([0.0, 1.0], [share, share], **_DASHED, label="guessing")
    axes.legend(loc="best")
    return axes


def _calibration(calibration: Data, *, of_class: str | None) -> Axes:
    """Draw shares with intervals against probabilities, on axes that end where the bins end."""
    name = "the answer" if of_class is None else f"“{cut(of_class, 24)}”"
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
    from matplotlib.patches import Rectangle

    axes = new_chart(f"predicted {target}", f"true {target}", title=f"Predicted and true {target}")
    edges, records = np.array(cells["edges"]), np.array(cells["records"])
    shades = records / max(1, records.max())
    for row, column in zip(*np.nonzero(records), strict=True):
        sides = np.diff(edges)[[column, row]]
        opacity = _FAINTEST + (0.85 - _FAINTEST) * shades[row, column]
        axes.add_patch(Rectangle((edges[column], edges[row]), *sides, color=BLUE, alpha=opacity, linewidth=0))
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


def _rates(x: str, y: str, title: str) -> Axes:
    axes = new_chart(x, y, title=title)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.02))
    return axes


_MOST_COLUMNS = 12
_MOST_OUTPUTS = 8  # the most outputs in one chart
_MOST_VALUES = 10  # the most values of a category in one chart
_MARKERS = "os^DvP*<"
_ZERO: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.0}
_WIDTH, _HEIGHT, _ROW = 3.6, 2.6, 0.25  # in inches; the last is the height of one value of a category
_KINDS = {"numbers": "target", "logits": "class", "log odds": "label"}
_NAMES = {"log odds": "log odds", "logits": "logit"}
_ZERO_IS = "0 is the mean over a column's values, or its range."
_NOISE = "This includes the noise of training: bends of a few bins may be noise."


@dataclass(frozen=True)
class Panels:
    """The charts that share one scale, most important column first; ``rest`` names the columns left out.

    All classes or labels share a scale. Targets of a regression have different units, so each has a scale.
    """

    data: Data
    outputs: tuple[int, ...]
    columns: tuple[Data, ...]
    rest: tuple[str, ...]

    @property
    def axis(self) -> str:
        """The label of the scale."""
        return (
            f"added to {label_of(self.names[0])}" if self.data["of"] == "numbers" else _NAMES[self.data["of"]]
        )

    @property
    def adds_to(self) -> str:
        """The quantity that the curves are added to, in words."""
        outputs, scale = self.data["outputs"], self.data["of"]
        name = f"“{label_of(outputs[0])}”" if len(outputs) == 1 else f"each {_KINDS[scale]}"
        return name if scale == "numbers" else f"the {_NAMES[scale]} of {name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(self.data["outputs"][place] for place in self.outputs)

    @property
    def limits(self) -> tuple[float, float]:
        """The two ends of the scale. It includes everything that is drawn."""
        values = [0.0]
        for column in self.columns:
            for place in self.outputs:
                values += column["y"][place]
                values += [column[kind][place] for kind in ("other", "missing") if kind in column]
        margin = 0.06 * (max(values) - min(values)) or 1.0
        return min(values) - margin, max(values) + margin


def panels_of(data: Data) -> list[Panels]:
    """Group the charts of these data by scale; with more than eight classes or labels, there are none."""
    places = range(len(data["outputs"]))
    groups = [(place,) for place in places] if data["of"] == "numbers" else [tuple(places)]
    panels = []
    for group in groups:
        if len(group) > _MOST_OUTPUTS:
            continue
        ranked = sorted(data["columns"], key=lambda one: -max(one["importance"][place] for place in group))
        rest = tuple(column["column"] for column in ranked[_MOST_COLUMNS:])
        panels.append(Panels(data, group, tuple(ranked[:_MOST_COLUMNS]), rest))
    return panels


def charts_of_columns(panels: Panels) -> dict[str, Axes]:
    """Draw a small chart for each column, and return the charts by column name."""
    charts = {}
    for column in panels.columns:
        height = _HEIGHT
        if column["kind"] == "category":
            height = 0.9 + _ROW * len(_values(column, panels.outputs))
        charts[column["column"]] = axes = new_chart("", "", title=column["column"], size=(_WIDTH, height))
        _draw(axes, column, panels)
    return charts


def legend_of(panels: Panels) -> Axes | None:
    """Draw a legend of the outputs as a separate chart, if there are several outputs."""
    if len(panels.outputs) == 1:
        return None
    rows = -(-len(panels.outputs) // 2)
    axes = new_chart("", "", title="the lines", size=(CHART_WIDTH, 0.2 + 0.3 * rows))
    axes.set_axis_off()
    _legend(axes, panels)
    axes.legend(loc="center", ncols=2)
    return axes


def plot_columns(data: Data, path: Path, *, private: bool = True) -> bool:
    """Draw the charts of all panels as one figure, and return whether there was something to draw."""
    pairs = [(panels, column) for panels in panels_of(data) for column in panels.columns]
    if not pairs:
        return False
    across = min(3, len(pairs))
    down = -(-len(pairs) // across)
    figure = new_figure(_WIDTH * across, 0.8 + 2.9 * down)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid[len(pairs) :]:
        axes.set_axis_off()
    for axes, (panels, column) in zip(grid, pairs, strict=False):
        _draw(axes, column, panels)
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=8)
        axes.set_title(label_of(column["column"]), fontsize=10)
    first = pairs[0][0]
    if len(first.outputs) > 1:
        _legend(grid[0], first)
        handles = grid[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=min(4, len(first.outputs)))
    marked = "" if private else "NOT PRIVATE: fixed test key. "
    figure.suptitle(f"{marked}The effect of each column on {first.adds_to}\n{_ZERO_IS} {_NOISE}", fontsize=9)
    save_figure(figure, path)
    return True


def _legend(axes: Axes, panels: Panels) -> None:
    for number, name in enumerate(panels.names):
        axes.plot([], [], label=label_of(name), marker=_MARKERS[number], **line_style(number))


# --- one column ---------------------------------------------------------------------------------------------


def _draw(axes: Axes, column: Data, panels: Panels) -> None:
    if column["kind"] == "category":
        axes.set(xlabel=panels.axis, xlim=panels.limits)
        axes.axvline(0.0, **_ZERO)
        axes.locator_params(axis="x", nbins=3)
        _draw_values(axes, column, panels.outputs)
    else:
        axes.set(ylabel=panels.axis, ylim=panels.limits)
        axes.axhline(0.0, **_ZERO)
        _draw_line(axes, column, panels.outputs)


def _draw_values(axes: Axes, column: Data, outputs: Sequence[int]) -> None:
    """Draw a bar for each value, or marks if there are several outputs. Undeclared values have pale bars."""
    values = _values(column, outputs)
    places, declared = range(len(values)), len(values) - ("other" in column) - ("missing" in column)
    if len(outputs) == 1:
        for part, colour in ((slice(declared), BLUE), (slice(declared, None), PALE)):
            axes.barh(places[part], [added[0] for _, added in values[part]], 0.6, color=colour)
    else:
        for number in range(len(outputs)):
            marks = [added[number] for _, added in values]
            axes.plot(marks, places, **_mark(number))
    axes.set_yticks(places, [label_of(name) for name, _ in values])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_axisbelow(True)
    axes.grid(False, axis="y")


def _mark(number: int) -> dict[str, Any]:
    return line_style(number) | {"linestyle": "", "marker": _MARKERS[number]}


def _values(column: Data, outputs: Sequence[int]) -> list[tuple[str, list[float]]]:
    """Return the ten values with the largest effects, and the effects of undeclared and missing cells."""
    values = [(name, [column["y"][k][at] for k in outputs]) for at, name in enumerate(column["x"])]
    far = sorted((max(map(abs, added)) for _, added in values), reverse=True)[:_MOST_VALUES][-1]
    largest = [one for one in values if max(map(abs, one[1])) >= far][:_MOST_VALUES]
    return largest + [
        (name, [column[name][k] for k in outputs]) for name in ("other", "missing") if name in column
    ]


def _draw_line(axes: Axes, column: Data, outputs: Sequence[int]) -> None:
    """Draw a line for each output, and to the right of the lines a mark for missing cells."""
    x = [*_positions(column)]
    for number, place in enumerate(outputs):
        axes.plot(x, column["y"][place], **line_style(number))
    if "missing" in column:
        at, words = (x[-1] + share * (x[-1] - x[0]) for share in (0.08, 0.14))
        for number, place in enumerate(outputs):
            mark = _mark(number) if len(outputs) > 1 else {"color": ORANGE, "linestyle": "", "marker": "D"}
            axes.plot([at], [column["missing"][place]], **mark)
        axes.text(words, 0.5, "missing", transform=axes.get_xaxis_transform(), rotation=90, va="center")
    if column["kind"] == "number":
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:g}"
        )
    else:
        from matplotlib import dates

        locator: Any = dates.AutoDateLocator(minticks=2, maxticks=4)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _positions(column: Data) -> Iterator[Any]:
    for x in column["x"]:
        yield x if column["kind"] == "number" else dt.datetime.fromisoformat(x)
