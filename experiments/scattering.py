"""Scattering features and a linear model (Tramèr and Boneh, 2011.11660).

The features are outputs of fixed filters, compressed by square roots and whitened by public pictures, which
come from a random process (dead leaves), so they cost no privacy.  For CIFAR-10 a private mean is subtracted,
and epsilon includes its cost.  Batches are Poisson samples or full batches, never shuffled batches that are
accounted for as Poisson samples.  The paper's network on these features is not run; ``experiments/LOG.md``
says why.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.base import Request, Row, Setting, percent, write_results
from experiments.linear_on_features import UNLIMITED, Recipe, choose, repeat_linear
from experiments.public_rows import grey_rows, public_pictures, scattering_rows
from experiments.standard import load
from tacit.datasets import Dataset
from tacit.report.canvas import BLUE, GREY, new_figure, save_figure

_NAME = "scattering"
_PUBLISHED = {"mnist": 0.987, "fashion-mnist": 0.897, "cifar10": 0.67}
GREY_28 = (
    Recipe(1.0, None, Setting(4096, 300, 32.0, 0.9, 0.1)),
    Recipe(2.0, None, Setting(4096, 600, 32.0, 0.9, 0.1)),
    Recipe(UNLIMITED, None, Setting(4096, 1000, 32.0, 0.9, 0.1)),
)
"""The recipes by epsilon: with less noise, more steps help."""
_WHITENED_32 = (Recipe(UNLIMITED, 20.0, Setting(None, 40, 60.0, 0.9, 1.0)),)
_SELECTION = "the last 10,000 training images, training on the others; no test figure seen before"
_SELECTION_32 = "the last 5,000 training images, training on the others"
_NOTES = ("runs that chose the settings are not part of the stated epsilon",)


def run(request: Request) -> list[Row]:
    """Return rows for the linear model, and draw ``scattering-<dataset>.png``."""
    name = request.choose_dataset(tuple(_PUBLISHED))
    data = load(name)
    epsilons = request.choose_epsilons((1.0, 2.0, 3.0))
    notes = [*_NOTES, f"data: {data.source}"]
    rows: list[Row] = []
    found = _whitened if name == "cifar10" else _of_grey_pictures
    for row in found(data, epsilons, request, notes):
        rows.append(row)
        write_results(f"{_NAME}-{name}", rows, request, notes=notes)
    _draw(rows, name, request)
    return rows


def _whitened(
    data: Dataset, epsilons: tuple[float, ...], request: Request, notes: list[str]
) -> Iterator[Row]:
    source, pictures = public_pictures()
    notes.append(
        f"scattering + linear: whitened by {source}; epsilon includes the private mean of the features"
    )
    rows = scattering_rows(data, pictures, request)
    for epsilon in epsilons:
        title = f"{data.name}, ε = {epsilon:g}, linear"
        repeats = repeat_linear(title, request, rows, choose(_WHITENED_32, epsilon), epsilon)
        yield repeats.row(
            _NAME, data.name, "scattering + linear", public_data=source, selection=_SELECTION_32
        )


def _of_grey_pictures(
    data: Dataset, epsilons: tuple[float, ...], request: Request, notes: list[str]
) -> Iterator[Row]:
    notes.append("whitened by dead leaves, a random process; the mean of the features is not subtracted")
    rows = grey_rows(data, request)
    for epsilon in epsilons:
        title = f"{data.name}, ε = {epsilon:g}, linear"
        found = repeat_linear(title, request, rows, choose(GREY_28, epsilon), epsilon)
        yield found.row(_NAME, data.name, "whitened scattering + linear", selection=_SELECTION)


def _draw(rows: list[Row], name: str, request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    axes.errorbar(
        [row.epsilon for row in rows],
        [percent(row.accuracy_mean) for row in rows],
        yerr=[percent(row.accuracy_std) for row in rows],
        marker="o",
        capsize=3,
        color=BLUE,
        label="scattering + linear",
    )
    axes.plot([3.0], [percent(_PUBLISHED[name])], "x", color=GREY, label="published, linear, ε = 3")
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel(f"test accuracy on {name}, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}-{name}.png")
