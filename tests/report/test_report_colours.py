"""Figures are read in grey and without red or green: what is told apart in one differs in more than its hue.

Two lines may have one dash and one marker, two areas one hatch, only if their lightness differs, and if their
colours are far apart for eyes without the cones for green (deuteranopia) and for red (protanopia), by the
matrices of Machado, Oliveira and Fernandes (2009) at full severity.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as N
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from experiments import (
    abadi_cifar10,
    abadi_composition,
    abadi_mnist,
    attribute_inversion,
    clipping,
    correlated_noise,
    names_memorisation,
    scattering,
    shokri,
    stored_rows,
    tables,
    tempered_sigmoids,
)
from experiments.base import Request, Row
from experiments.scaling import figure as scaling_figure
from tacit.accounting import account
from tacit.events import Gaussian
from tacit.report import evaluation_charts as column_charts
from tacit.report import plots
from tacit.report.canvas import BLUE, GREEN, ORANGE, PALE, line_style, new_figure
from tacit.report.risk import risk_sheet
from tacit.training.loop import MetricsRow as Metrics

ROOT = Path(__file__).parent.parent.parent
LIGHTER, FURTHER = 10.0, 12.0  # of L* from 0 to 100, and of the distance in L*a*b*: 2.3 can just be seen
LINES = 20.0  # of L*: what is thin needs more
STYLE = (ROOT / "src/tacit/report/templates/colours.css").read_text(encoding="utf-8")
EYES = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], LUMINANCE, [0.0193339, 0.1191920, 0.9503041]])
WHITE = TO_XYZ.sum(axis=1)


def linear(colour: Any) -> np.ndarray:
    """The light of a colour of sRGB, (3,)."""
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Light as CIE L*a*b*, (3,)."""
    t = TO_XYZ @ np.clip(light, 0.0, 1.0) / WHITE
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def alike(first: Any, second: Any, lighter: float = LIGHTER) -> list[str]:
    """List the eyes that cannot distinguish two colours."""
    one, two = linear(first), linear(second)
    found = ["grey"] if abs(lab(one)[0] - lab(two)[0]) < lighter else []
    for eye, matrix in EYES.items():
        if np.linalg.norm(lab(np.array(matrix) @ one) - lab(np.array(matrix) @ two)) < FURTHER:
            found.append(eye)
    return found


def looks(axes: Axes) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """Yield each drawn thing: its name, its look without the colour, and the colour."""
    for line in axes.get_lines():
        dash = line._unscaled_dash_pattern  # type: ignore[attr-defined]  # in multiples of the width
        yield str(line.get_label()), ("line", str(dash), str(line.get_marker())), to_hex(line.get_color())
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            first = bars.patches[0]
            yield str(bars.get_label()), ("bars", first.get_hatch() or ""), to_hex(first.get_facecolor())
    for patch in axes.patches:
        if isinstance(patch, StepPatch) and patch.get_fill():
            yield str(patch.get_label()), ("steps", patch.get_hatch()), to_hex(patch.get_facecolor())


def confused(figure: Figure) -> list[str]:
    """The pairs that some eye takes for one. Lines of one look without names belong together."""
    found = []
    for axes in figure.axes:
        for (one, kind, first), (two, other, second) in itertools.combinations(looks(axes), 2):
            together = first == second and "_" in (one[0], two[0])
            lighter = LINES if kind[0] == "line" else LIGHTER
            if kind == other and not together and (eyes := alike(first, second, lighter)):
                found.append(f"{axes.get_title()}: {one} and {two}, {first} and {second}, {eyes}")
    return found


# --- the measure -------------------------------------------------------------------------------------------


def test_lightness_and_distance_are_those_of_known_colours() -> None:
    assert lab(linear("white")) == pytest.approx([100.0, 0.0, 0.0], abs=0.01)
    assert lab(linear("#777777"))[0] == pytest.approx(50.03, abs=0.05)
    assert lab(linear("red")) == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    for matrix in EYES.values():
        assert np.sum(matrix, axis=1) == pytest.approx(1.0, abs=1e-5)  # greys stay what they are


@pytest.mark.parametrize(
    ("first", "second", "who"),
    [
        ("#b0483c", "#6b7a2c", {"grey", "deuteranopia"}),
        ("#75682a", "#6b7a2c", {"grey", "deuteranopia", "protanopia"}),
        ("#c8551b", "#2d7d46", {"grey"}),  # what the reports had
        ("#1f5fa8", "#666666", {"grey"}),
    ],
)
def test_a_planted_bad_palette_is_found(first: str, second: str, who: set[str]) -> None:
    assert set(alike(first, second)) == who
    figure = new_figure(3.0, 2.0)
    axes = figure.add_subplot()
    axes.plot([0, 1], color=first)
    axes.plot([1, 0], color=second)
    assert len(confused(figure)) == 1
    axes.get_lines()[1].set_linestyle("--")
    assert not confused(figure)
    axes.bar([0, 1], [1, 1], color=first)
    axes.bar([2, 3], [1, 1], color=second)
    assert len(confused(figure)) == 1


# --- the figures -------------------------------------------------------------------------------------------


def test_the_colours_of_figures() -> None:
    for first, second in itertools.combinations((BLUE, ORANGE, GREEN, PALE), 2):
        assert alike(first, second) == []
    figure = new_figure(3.0, 2.0)
    axes = figure.add_subplot()
    for number in range(8):
        axes.plot([0, number], **line_style(number))
    assert confused(figure) == []


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_colours_of_pages(theme: int) -> None:
    """Each colour of charts, bars and dots has a contrast of three to one on the paper."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    found = {name: both[theme] for name, *both in pairs}
    for first, second in itertools.combinations(("one", "two", "three", "shut"), 2):
        assert alike(found[first], found[second]) == [], (first, second)
    paper = LUMINANCE @ linear(found["paper"])
    for name in ("one", "two", "three", "shut"):
        low, high = sorted((paper, LUMINANCE @ linear(found[name])))
        assert (high + 0.05) / (low + 0.05) >= 3.0, name


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Figure]:
    """The figures that are written, instead of files."""
    found: list[Figure] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))
    return found


def test_figures_of_a_run(drawn: list[Figure]) -> None:
    curve = account(Gaussian(1.0), adjacency="add-remove")
    rows = [Metrics(k, epsilon=0.1 * k, loss=2.0 / k, test_score=0.1 * k, test_loss=None) for k in (1, 2, 3)]
    plots.plot_progress(rows, Path("progress.png"), baseline=0.1)
    plots.plot_privacy_curve(curve, 1e-5, Path("privacy.png"))
    plots.draw_risk(risk_sheet(curve, delta=1e-5, unit="image"), Path("risk.png"))
    assert len(drawn) == 3
    assert [confused(figure) for figure in drawn] == [[]] * 3


def test_the_figure_of_columns(drawn: list[Figure]) -> None:
    """Eight classes, as many as are drawn; a page's chart of a number with a missing cell."""
    y = [[-1.0 * k, 1.0 * k] for k in range(8)]
    number = {"column": "age", "kind": "number", "x": [0.0, 1.0], "y": y, "importance": [1.0] * 8}
    city = {"column": "city", "kind": "category", "x": ["a", "b"], "y": y, "importance": [1.0] * 8}
    number["missing"] = city["other"] = [0.5] * 8
    for names, of in (([*"abcdefgh"], "logits"), (["a"], "log odds")):
        column_charts.plot_columns(
            {"of": of, "outputs": names, "columns": [number, city]}, Path("columns.png")
        )
    assert len(drawn) == 2
    assert [confused(figure) for figure in drawn] == [[], []]


def test_figures_of_a_plan(drawn: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    """With plans made up for the purpose: to find real ones takes seconds."""
    options = [N(batch_size=2**k, total_noise=2.0**-k, steps=9, noise_multiplier=1.0) for k in range(5)]
    question = N(budget_in_words="ε = 1", epsilon=1.0, flops=1e9, records=9, delta=1e-5)
    advice: Any = N(question=question, recommended=options[2], options=options, floor=0.05)
    plots.plot_advice(advice, Path("batches.png"))
    best = N(loss=2.0, model_size=1e6, batch_size=8, steps=9)
    points = [N(flops=10.0**k, loss=2.0, model_size=1e6) for k in range(7, 12)]
    monkeypatch.setattr(scaling_figure, "loss_over_compute", lambda *_, **__: points)
    monkeypatch.setattr(scaling_figure, "without_privacy", lambda *_: best)
    monkeypatch.setattr(scaling_figure, "replace", lambda *_, **__: None)
    advice = N(question=question, best=best, law=None)
    scaling_figure.plot_language_model(advice, Path("compute.png"), epsilons=(0.1, 0.2, 0.5, 2.0, 4.0))
    assert len(drawn) == 2
    assert [confused(figure) for figure in drawn] == [[], []]


def test_the_figure_of_a_price_by_every_method(drawn: list[Figure]) -> None:
    lines = {f"method {number}": np.arange(1.0, 4.0) + number for number in range(8)}
    pricing: Any = N(epsilon=1.0, delta=0.1, best=N(method="method 3"))
    rates = np.linspace(0.0, 1.0, 3)
    over = plots.Drawing(pricing, (1, 2, 3), "steps", lines, rates, lines, rates, 1 - rates)
    plots.draw_pricing(over, Path("price.png"))
    assert len(drawn) == 1
    assert confused(drawn[0]) == []


def results(name: str) -> list[Row]:
    """The committed rows of an experiment; JSON has no infinite epsilon."""
    data = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return [
        Row(**row | {"epsilon": math.inf if row["epsilon"] is None else row["epsilon"]})
        for row in data["rows"]
    ]


def digits(rows: list[Row]) -> tuple[str, ...]:
    return tuple(str(k) for k in range(len(rows[0].details["per_class"])))


def ways(rows: list[Row]) -> Any:
    labels = dict.fromkeys(row.model.removeprefix("logistic, ") for row in rows)
    return tuple(N(label=label, stream="stream" in label) for label in labels)


EXPERIMENTS: dict[str, Callable[[list[Row], Request], None]] = {
    "abadi-cifar10": abadi_cifar10._draw,
    "abadi-composition": lambda rows, request: abadi_composition._draw(request),
    "abadi-mnist": abadi_mnist._draw,
    "attribute-inversion": attribute_inversion._draw,
    "clipping": clipping._draw,
    "correlated-noise": lambda rows, request: correlated_noise._draw(rows, ways(rows), request),
    "names-memorisation": names_memorisation._draw,
    "scattering-mnist": lambda rows, request: scattering._draw(rows, "mnist", request),
    "shokri": shokri._draw,
    "stored-rows": stored_rows._draw,
    "tables": tables._draw,
    "tempered-sigmoids": lambda rows, request: tempered_sigmoids._draw(rows, digits(rows), request),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_of_experiments(
    name: str, drawn: list[Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abadi_composition, "epsilon_schedule", lambda *_, **__: [1.0] * 41)
    EXPERIMENTS[name](results(name), Request(tmp_path))
    assert len(drawn) == 1
    assert confused(drawn[0]) == []


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("figures")


@pytest.mark.parametrize("name", ["papers", "tables", "public-models", "step", "accountants"])
def test_charts_of_the_results(name: str, figures: ModuleType) -> None:
    drawn = figures.CHARTS[name]().figure
    assert confused(drawn) == []
    text = (ROOT / "docs" / "pictures" / f"results-{name}.svg").read_text(encoding="utf-8")
    assert "light-dark(" in text
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", text.split("</style>")[1])) == set()
