"""CIFAR-10 with features from public pictures, which extends Abadi et al. (CCS 2016), section 5.3.

The paper trains convolutional layers on CIFAR-100 and the other layers privately.  Here features are learnt
from public pictures without labels (:mod:`experiments.public_rows`), and a linear model on them is trained
privately.  The rows name the public pictures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from experiments.base import Request, Row, Setting, percent, write_results
from experiments.linear_on_features import Recipe, repeat_linear
from experiments.public_rows import photo_rows, public_pictures
from experiments.standard import load
from tacit.datasets import Dataset
from tacit.report.canvas import BLUE, GREY, new_figure, save_figure

_NAME = "abadi-cifar10"
_PUBLISHED = {2.0: 0.67, 4.0: 0.70, 8.0: 0.73}


@dataclass(frozen=True)
class Choice:
    """The settings chosen for epsilons up to ``upto``.

    ``directions``, ``floor``, ``power`` and ``cosines`` are arguments of :func:`photo_rows`.  With more
    noise, random cosines get a smaller share.
    """

    upto: float
    directions: int
    floor: int
    power: float
    learning_rate: float
    cosines: float = 0.33
    steps: int = 80
    clipping_norm: float = 0.5

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the linear model."""
        setting = Setting(None, self.steps, self.learning_rate, 0.9, self.clipping_norm, 0.9)
        return Recipe(self.upto, 20.0, setting)

    def rows(self, records: Dataset, public: Tensor, request: Request) -> Dataset:
        """Return the records with features as inputs."""
        return photo_rows(
            records,
            public,
            request,
            directions=self.directions,
            floor=self.floor,
            power=self.power,
            cosines=self.cosines,
        )


CHOSEN = tuple(
    Choice(upto, directions=2000, floor=100, power=0.35, learning_rate=rate, cosines=cosines)
    for upto, rate, cosines in (
        (1.0, 30.0, 0.2),
        (2.0, 65.0, 0.33),
        (3.0, 80.0, 0.33),
        (math.inf, 240.0, 0.33),
    )
)
_NOTES = (
    "epsilon includes the private mean of the features; filters and whitening come from public pictures",
    "settings were chosen on the last 5,000 of the training images, by runs on the others that are not part "
    "of the stated epsilon",
)
_SELECTION = (
    "the last 5,000 training images, training on the others; of test figures those of the settings of "
    "2026-11-21 and 2026-11-26 had been seen"
)


def run(request: Request) -> list[Row]:
    """Return a row per epsilon, and draw ``abadi-cifar10.png`` with the published results next to ours."""
    name = request.choose_dataset(("cifar10",))
    source, pictures = public_pictures()
    records = load(name)
    notes = (*_NOTES, f"public pictures: {source}", f"data: {records.source}")
    rows = []
    for epsilon in request.choose_epsilons((1.0, 2.0, 3.0, 8.0)):
        choice = next(choice for choice in CHOSEN if epsilon <= choice.upto)
        data = choice.rows(records, pictures, request)
        found = repeat_linear(f"{name}, ε = {epsilon:g}", request, data, choice.recipe, epsilon)
        rows.append(
            found.row(
                _NAME,
                name,
                "public patches and scattering, cosines, linear",
                selection=_SELECTION,
                public_data=source,
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
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
