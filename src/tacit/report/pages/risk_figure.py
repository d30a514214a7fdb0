"""What does a guarantee look like? Two worlds, what an attacker finds, and one picture under noise.

Letters: f(a) the least false-negative rate at false-positive rate a; u the evidence, Phi^-1(1 - a).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.accounting import PrivacyCurve
from tacit.report.pages.canvas import BLUE, GREY, ORANGE, empty_figure, write_figure
from tacit.report.risk import RiskSheet
from tacit.rounding import round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array: TypeAlias = NDArray[np.float64]

_EPSILONS = (np.inf, 10.0, 1.0, 0.1)
_SIDE = 48


def draw_risk(sheet: RiskSheet, path: Path) -> None:
    """Draw the sheet into ``path``, whose suffix is the kind of file."""
    figure = empty_figure(10.5, 7.2)
    figure.suptitle(
        f"One {sheet.unit}: (ε, δ) = ({round_up(sheet.epsilon, 3)}, {sheet.delta:g}), {sheet.curve.adjacency}"
    )
    halves = figure.add_gridspec(2, 1, height_ratios=(1.6, 1.0))
    above, below = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    left, right = above.subplots(1, 2)
    _draw_worlds(left, sheet)
    _draw_found(right, sheet)
    below.suptitle(
        "What ε does to one number: each pixel, between 0 and 1, with Laplace noise of scale 1/ε.\n"
        f"Here the unit is one pixel; for the whole picture of {_SIDE * _SIDE} pixels ε is {_SIDE * _SIDE} "
        "times as large.",
        fontsize=9,
    )
    for axes, epsilon in zip(below.subplots(1, len(_EPSILONS)), _EPSILONS, strict=True):
        axes.imshow(pixel_noise(_face(), epsilon), cmap="gray", vmin=0.0, vmax=1.0)
        axes.set_title("no noise, ε = ∞" if np.isinf(epsilon) else f"ε = {epsilon:g} per pixel", fontsize=9)
        axes.set_axis_off()
    write_figure(figure, path)


def two_worlds(curve: PrivacyCurve, bins: Array) -> tuple[Array, Array]:
    """How often the best test's evidence falls into each of the ``bins`` (n + 1,): (n,) without, (n,) with.

    The evidence u is scaled so that without the unit it is a bell curve, P(evidence > u) = Phi(-u); with it,
    P(evidence > u) = 1 - f(Phi(-u)), which for Gaussian DP is a bell curve moved by mu.

    >>> from tacit.accounting import account
    >>> from tacit.events import Gaussian
    >>> curve = account(Gaussian(1.0), adjacency="add-remove")
    >>> without, with_it = two_worlds(curve, np.array([-9.0, 1.0, 9.0]))
    >>> without.round(4).tolist(), with_it.round(4).tolist()  # N(0, 1) and N(1, 1)
    ([0.8413, 0.1587], [0.5, 0.5])
    """
    rates = ndtr(-bins)
    beyond = 1.0 - np.asarray(curve.false_negative_rate(rates))
    return -np.diff(rates), -np.diff(beyond)


def pixel_noise(picture: Array, epsilon: float) -> Array:
    """``picture``, values in [0, 1], with Laplace noise of scale 1 / epsilon on each value; not for release.

    >>> float(pixel_noise(np.full((2, 2), 0.5), np.inf)[0, 0])
    0.5
    """
    noise = np.random.default_rng(0).laplace(size=picture.shape)  # a drawing of noise, the same every time
    return np.clip(picture + noise / epsilon, 0.0, 1.0)


def _draw_worlds(axes: Axes, sheet: RiskSheet) -> None:
    bins = np.linspace(-4.0, 8.0, 49)
    without, with_it = two_worlds(sheet.curve, bins)
    for heights, colour, label in (
        (without, BLUE, f"without this {sheet.unit}"),
        (with_it, ORANGE, f"with this {sheet.unit}"),
    ):
        axes.stairs(100.0 * heights, bins, fill=True, alpha=0.35, color=colour, label=label)
        axes.stairs(100.0 * heights, bins, color=colour)
    axes.set(
        xlabel="evidence that an attacker has, at best",
        ylabel="times of 100",
        title=f"Two worlds: guessed right {100 * sheet.guess.at_most:.1f} times of 100",
        xlim=(-4.0, 8.0),
        ylim=(0.0, None),
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
        title="What an attacker can find, at most",
    )
    axes.legend(frameon=False, loc="lower right")


def _face() -> Array:
    """A drawn face, (48, 48) in [0, 1], of no person."""
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
