"""Pictures of a guarantee, and of the cost of an event.

Letters: f(a) is the least false-negative rate at false-positive rate a. The evidence is u = Phi^-1(1 - a).
"""

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
from tacit.report.pages.canvas import GREY, ORANGE, line_style, new_figure, save_figure
from tacit.report.pages.run_page import draw_worlds
from tacit.report.pricing import Pricing, no_progress
from tacit.report.risk import RiskSheet, two_worlds
from tacit.rounding import round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Array: TypeAlias = NDArray[np.float64]

_EPSILONS = (np.inf, 10.0, 1.0, 0.1)
_SIDE = 48


def draw_risk(sheet: RiskSheet, path: Path) -> None:
    """Draw the sheet into the file ``path``. The ending of its name gives the format."""
    figure = new_figure(10.5, 7.2)
    figure.suptitle(
        f"One {sheet.unit}: (ε, δ) = ({round_up(sheet.epsilon, 3)}, {sheet.delta:g}), {sheet.curve.adjacency}"
    )
    halves = figure.add_gridspec(2, 1, height_ratios=(1.6, 1.0))
    above, below = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    left, right = above.subplots(1, 2)
    _draw_worlds(left, sheet)
    _draw_found(right, sheet)
    below.suptitle(
        "The effect of ε on one number: each pixel, between 0 and 1, with Laplace noise of scale 1/ε.\n"
        f"Here the unit is one pixel; for the whole picture of {_SIDE * _SIDE} pixels ε is {_SIDE * _SIDE} "
        "times as large.",
        fontsize=9,
    )
    for axes, epsilon in zip(below.subplots(1, len(_EPSILONS)), _EPSILONS, strict=True):
        axes.imshow(pixel_noise(_face(), epsilon), cmap="gray", vmin=0.0, vmax=1.0)
        axes.set_title("no noise, ε = ∞" if np.isinf(epsilon) else f"ε = {epsilon:g} per pixel", fontsize=9)
        axes.set_axis_off()
    save_figure(figure, path)


def pixel_noise(picture: Array, epsilon: float) -> Array:
    """Return ``picture``, with values in [0, 1], plus Laplace noise of scale 1 / epsilon.

    The result is an illustration and is not safe to release, because the seed is fixed.

    >>> float(pixel_noise(np.full((2, 2), 0.5), np.inf)[0, 0])
    0.5
    """
    noise = np.random.default_rng(0).laplace(size=picture.shape)  # a fixed seed, so that pictures reproduce
    return np.clip(picture + noise / epsilon, 0.0, 1.0)


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


def _face() -> Array:
    """Draw the face of no real person as an array (48, 48) of values in [0, 1]."""
    y, x = np.mgrid[-1.0 : 1.0 : _SIDE * 1j, -1.0 : 1.0 : _SIDE * 1j]

    def disc(cx: float, cy: float, rx: float, ry: float) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1.0
        return inside

    picture = np.full(x.shape, 0.15)
    picture[disc(0.0, 0.0, 0.72, 0.9)] = 0.8
    picture[disc(0.0, -0.75, 0.72, 0.3)] = 0.3
    for side in (-1.0, 1.0):
        picture[disc(0.28 * side, -0.15, 0.13, 0.09)] = 0.1
    picture[disc(0.0, 0.15, 0.07, 0.16)] = 0.62
    picture[disc(0.0, 0.42, 0.34, 0.2) & ~disc(0.0, 0.34, 0.36, 0.2)] = 0.25
    return picture


_POINTS, _DELTAS, _RATES = 13, 25, 81
_REPEATS = 64


@dataclass(frozen=True)
class Drawing:
    """The curves of the picture.

    Attributes:
        pricing: the event and its cost.
        counts: the numbers of repetitions.
        count_label: the label of their axis.
        over_counts: for each method, epsilon at the ``counts``.
        deltas: the values of delta.
        profile: for each method, epsilon at the ``deltas``.
        rates: false-positive rates.
        false_negatives: f at the ``rates``.
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
    """Compute the curves of the picture. ``progress`` is called with (title, done, total)."""
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
        axes.annotate(f"ε = {round_up(pricing.epsilon)}", (pricing.epsilon, pricing.delta), xytext=(-8, -4),
                      textcoords="offset points", ha="right", va="top")  # fmt: skip
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
