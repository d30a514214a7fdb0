"""What does an event cost? A picture: epsilon over the steps, the privacy profile, the trade-off curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import account
from tacit.events import Event, Repeat
from tacit.report.pages.canvas import GREY, empty_figure, line_style, write_figure
from tacit.report.pricing import Pricing, no_progress
from tacit.rounding import round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array: TypeAlias = NDArray[np.float64]

_POINTS, _DELTAS, _RATES = 13, 25, 81
_REPEATS = 64


@dataclass(frozen=True)
class Drawing:
    """The lines of the picture: by method epsilon at ``counts`` and at ``deltas``; f at ``rates``."""

    pricing: Pricing
    counts: tuple[int, ...]
    counted: str
    over_counts: dict[str, Array]
    deltas: Array
    profile: dict[str, Array]
    rates: Array
    missed: Array


def prepare_drawing(pricing: Pricing, progress: Callable[[str, int, int], object] = no_progress) -> Drawing:
    """Compute the lines; ``progress`` is called with (title, done, total)."""
    inner, counts, counted = _unit(pricing.event)
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
    rates = np.linspace(0.0, 1.0, _RATES) ** 2  # denser where few are accused
    missed = pricing.best.false_negative_rate(rates)
    progress("drawing", total, total)
    return Drawing(pricing, counts, counted, over_counts, deltas, profile, rates, missed)


def _unit(event: Event) -> tuple[Event, tuple[int, ...], str]:
    """The part that is repeated, how often, and its name: the steps of a repetition, else the whole event."""
    inner, most, counted = (
        (event.event, event.count, "steps")
        if isinstance(event, Repeat) and event.count > 1
        else (event, _REPEATS, "times the whole event")
    )
    counts = sorted({max(1, round(count)) for count in np.geomspace(max(1.0, most / 1000), most, _POINTS)})
    return inner, tuple(counts), counted


def draw_pricing(drawing: Drawing, path: Path) -> None:
    """Draw the three panels side by side; the kind of file follows from the name."""
    figure = empty_figure(12.6, 4.1)
    over_counts, profile, trade_off = figure.subplots(1, 3)
    _draw_counts(over_counts, drawing)
    _draw_profile(profile, drawing)
    _draw_trade_off(trade_off, drawing)
    if len(drawing.profile) > 1:
        lines = over_counts.get_lines()
        figure.legend(lines, [*drawing.over_counts], loc="outside lower center", ncols=len(lines))
    write_figure(figure, path)


def _draw_counts(axes: Axes, drawing: Drawing) -> None:
    for number, (name, line) in enumerate(drawing.over_counts.items()):
        _finite_line(axes, drawing.counts, line, number, name)
    axes.set(xscale="log", xlabel=drawing.counted, ylabel="ε (smaller is more private)")
    axes.set_title(f"What it costs, at δ = {drawing.pricing.delta:g}", fontsize=11)
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
        axes.annotate(f"ε = {round_up(pricing.epsilon)}", (pricing.epsilon, pricing.delta), xytext=(-8, -4),
                      textcoords="offset points", ha="right", va="top")  # fmt: skip
    axes.set(yscale="log", xlabel="ε", ylabel="δ (smaller is more private)")
    axes.set_xlim(left=0.0)
    axes.set_title("Every pair (ε, δ) that it satisfies", fontsize=11)
    axes.grid(alpha=0.25)


def _draw_trade_off(axes: Axes, drawing: Drawing) -> None:
    style = line_style([*drawing.profile].index(drawing.pricing.best.method))
    colour = style["color"]
    axes.plot(drawing.rates, drawing.missed, **style)
    axes.fill_between(drawing.rates, drawing.missed, color=colour, alpha=0.10, linewidth=0)
    axes.plot([0, 1], [1, 0], color=GREY, linewidth=0.8, linestyle=(0, (2, 5)))
    axes.text(0.98, 0.96, "dotted: a blind guess\nshaded: no test gets here", transform=axes.transAxes,
              ha="right", va="top", fontsize=9, color="#444444")  # fmt: skip
    axes.set(xlabel="non-members accused (false positives)", ylabel="members missed (false negatives)")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title("What a test for membership can do", fontsize=11)
    axes.grid(alpha=0.25)


def _finite_line(axes: Axes, x: Sequence[int] | Array, y: Array, number: int, name: str) -> None:
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    seen = np.isfinite(first) & np.isfinite(second)
    axes.plot(first[seen], second[seen], **line_style(number), label=name)
