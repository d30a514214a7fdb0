"""CIFAR-10 with a convolutional layer from public pictures (Abadi et al., CCS 2016, section 5.3, taken on).

The paper trains convolutional layers on CIFAR-100 and the rest privately.  Here the first layer is learnt
from public pictures without labels (:mod:`tacit.experiments.public_rows`), joined to scattering features, and
a linear model on top is trained privately.  The rows say which pictures.
"""

from __future__ import annotations

from tacit.datasets import load
from tacit.experiments.base import Request, Row, Setting, percent, write_results
from tacit.experiments.linear_on_features import UNLIMITED, Recipe, choose, repeat_linear
from tacit.experiments.public_rows import both_rows, public_pictures
from tacit.report.pages.canvas import BLUE, GREY
from tacit.report.pages.plots import new_figure, save_figure

__all__ = ["run"]

_NAME = "abadi-cifar10"
_PUBLISHED = {2.0: 0.67, 4.0: 0.70, 8.0: 0.73}
_RECIPES = (
    Recipe(3.0, 20.0, Setting(None, 40, learning_rate=50.0, momentum=0.9, clipping_norm=1.0, ema_decay=0.9)),
    Recipe(5.0, 20.0, Setting(None, 40, learning_rate=80.0, momentum=0.9, clipping_norm=1.0, ema_decay=0.9)),
    Recipe(
        UNLIMITED,
        20.0,
        Setting(None, 40, learning_rate=120.0, momentum=0.9, clipping_norm=1.0, ema_decay=0.9),
    ),
)
_NOTES = (
    "epsilon includes the private mean of the features; the filters come from public pictures",
    "settings were chosen on the last 5,000 of the training images, by runs on the others that are not part "
    "of the stated epsilon",
)


_SELECTION = "the last 5,000 training images"


def run(request: Request) -> list[Row]:
    """One row per epsilon, and ``abadi-cifar10.png`` with the published figures beside ours."""
    name = request.choose_dataset(("cifar10",))
    source, pictures = public_pictures()
    records = load(name)
    data = both_rows(records, pictures, request)
    notes = (*_NOTES, f"public pictures: {source}", f"data: {records.source}")
    rows = []
    for epsilon in request.choose_epsilons(tuple(_PUBLISHED)):
        recipe = choose(_RECIPES, epsilon)
        found = repeat_linear(f"{name}, ε = {epsilon:g}", request, data, recipe, epsilon)
        rows.append(
            found.row(
                _NAME, name, "public patches and scattering, linear", selection=_SELECTION, public_data=source
            )
        )
        write_results(_NAME, rows, request, notes=notes)
    _draw(rows, request)
    return rows


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    axes.errorbar(
        [row.epsilon for row in rows],
        [percent(row.accuracy_mean) for row in rows],
        yerr=[percent(row.accuracy_std) for row in rows],
        marker="o",
        capsize=3,
        color=BLUE,
        label="Tacit, ε by PLD",
    )
    published = [percent(value) for value in _PUBLISHED.values()]
    axes.plot(list(_PUBLISHED), published, "x--", color=GREY, label="Abadi et al., 2016, CIFAR-100 layers")
    axes.set_xscale("log")
    axes.set_xticks([2, 4, 8], ["2", "4", "8"])
    axes.minorticks_off()
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
