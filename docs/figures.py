"""Charts for docs/results.md from the JSON of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from tacit.report.canvas import line_style, new_figure, save_figure

__all__ = ["PLAIN", "scaling", "steps"]

PLAIN = "plain PyTorch"
# Each library has a hatch, and its engines differ in lightness, so that they also differ in grey.
LOOKS = {
    "plain PyTorch, contiguous": ("#777777", "..."),
    "plain PyTorch, channels_last": ("#aaaaaa", "..."),
    "plain PyTorch, our passes and pools": ("#444444", "..."),
    "Tacit": ("#0b3f78", ""),
    "Tacit, lean": ("#3d85c6", ""),
    "Tacit, sleeping threads": ("#5d4a99", "---"),
    "Tacit, no compiler": ("#6fa8dc", ""),
    "Tacit, reference": ("#cfe2f3", ""),
    "Opacus, hooks": ("#8a4500", "///"),
    "Opacus, functorch": ("#d0702a", "///"),
    "Opacus, ew": ("#f0a860", "///"),
    "Opacus, ghost": ("#fbdcc0", "///"),
    "Opake": ("#6b2f7a", "|||"),
    "Opake, microbatches of 16": ("#d3a9de", "|||"),
    "torch.func": ("#999999", "xxx"),
    "fastDP, MixOpt": ("#38761d", "\\\\\\"),
    "fastDP, ghost": ("#93c47d", "\\\\\\"),
}


def steps(data: dict[str, Any], path: Path) -> None:
    """Draw bars of each engine's time and memory on each workload, as multiples of the plain step."""
    figure = new_figure(10.0, 4.2)
    time, *others = figure.subplots(1, 2 if data["memory"] else 1, squeeze=False)[0]
    times = [row for row in data["timings"] if row["failure"] is None]
    _bars(time, {(row["workload"], row["engine"]): row["ratio"] for row in times})
    base = {row["workload"]: row["working_set"] for row in data["memory"] if row["engine"] == PLAIN}
    held = {
        (row["workload"], row["engine"]): row["working_set"] / base[row["workload"]] for row in data["memory"]
    }
    time.set_title("time of a step")
    for memory in others:
        _bars(memory, held)
        memory.set_title("working set of a step")
    time.set_ylabel("multiple of plain PyTorch")
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    save_figure(figure, path)


def _bars(axes: Axes, values: dict[tuple[str, str], float]) -> None:
    workloads = list(dict.fromkeys(workload for workload, _ in values))
    found = {engine for _, engine in values}
    engines = [engine for engine in LOOKS if engine in found]
    width = 0.85 / max(1, len(engines))
    for position, engine in enumerate(engines):
        places = [
            k + width * (position - (len(engines) - 1) / 2)
            for k, workload in enumerate(workloads)
            if (workload, engine) in values
        ]
        heights = [values[w, engine] for w in workloads if (w, engine) in values]
        # Bars start at 1, the plain step, on a logarithmic axis; bars below 1 are better than plain.
        colour, hatch = LOOKS[engine]
        ink = "black" if sum(to_rgb(colour)) > 1.2 else "white"  # the colour of the hatch
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": ink, "linewidth": 0, "label": engine}
        axes.bar(places, [h - 1.0 for h in heights], width, bottom=1.0, **look)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    top, bottom = 1.3 * max(values.values(), default=1.0), 0.9 * min(values.values(), default=1.0)
    round_ones = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200)
    ticks = [tick for tick in round_ones if bottom <= tick <= top]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_xticks(range(len(workloads)), [name.replace(" ", "\n") for name in workloads])
    axes.spines[["top", "right"]].set_visible(False)


def scaling(data: dict[str, Any], path: Path) -> None:
    """Draw the ratio to the plain step along each axis, weak series above strong ones."""
    panels = list(dict.fromkeys((p["kind"], p["axis"]) for p in data["points"]))
    columns = max((sum(kind == k for k, _ in panels) for kind in ("weak", "strong")), default=1)
    figure = new_figure(3.0 * columns, 5.2)
    grid = figure.subplots(2, columns, squeeze=False, sharey=True)
    for axes in grid.flat:
        axes.set_visible(False)
    for row, kind in enumerate(("weak", "strong")):
        for column, axis in enumerate(axis for k, axis in panels if k == kind):
            axes = grid[row, column]
            axes.set_visible(True)
            _lines(axes, [p for p in data["points"] if (p["kind"], p["axis"]) == (kind, axis)])
            axes.set_xlabel(f"{axis} ({kind})")
        grid[row, 0].set_ylabel("multiple of plain PyTorch")
    save_figure(figure, path)


def _lines(axes: Axes, points: list[dict[str, Any]]) -> None:
    for number, series in enumerate(dict.fromkeys(p["series"] for p in points)):
        mine = [p for p in points if p["series"] == series]
        places = [p["value"] for p in mine]
        look = line_style(number)
        axes.plot(places, [p["ratio"] for p in mine], marker="o", markersize=3, label=series, **look)
        band = [p["ratio_low"] for p in mine], [p["ratio_high"] for p in mine]
        axes.fill_between(places, *band, alpha=0.2, color=look["color"], linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(1.3, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0.5)
    axes.legend(frameon=False, fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
