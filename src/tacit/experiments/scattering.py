"""Scattering features and a linear model or a small network (Tramèr and Boneh, 2011.11660).

The features are fixed filters, so they cost no privacy; normalisation is per picture, so it costs none
either.  Sampling is real Poisson sampling or full batch, never shuffled batches priced as such.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tacit.datasets import Dataset, TensorPair, load
from tacit.experiments.base import Request, Row, Setting, percent, repeat, write_results
from tacit.models import scattering_cnn, scattering_features, scattering_linear
from tacit.plan import Plan
from tacit.report.plots import BLUE, GREY, ORANGE, new_figure, save_figure
from tacit.training import Evaluation

__all__ = ["run"]

_NAME = "scattering"
_PUBLISHED = {"mnist": 0.987, "fashion-mnist": 0.897, "cifar10": 0.67}


_SETTINGS = {
    ("mnist", "linear"): Setting(None, 100, 8.0, 0.9, 0.1, 0.9),
    ("mnist", "CNN"): Setting(4096, 250, 2.0, 0.9, 0.1, 0.9),
    ("cifar10", "linear"): Setting(None, 100, 8.0, 0.9, 0.1, 0.9),
    ("cifar10", "CNN"): Setting(8192, 200, 4.0, 0.9, 0.1, 0.9),
}


def run(request: Request) -> list[Row]:
    """Rows for the linear model and the network, and ``scattering-<dataset>.png``."""
    name = request.choose_dataset(tuple(_PUBLISHED))
    data = features(load(name), request)
    channels, height, width = data.input_shape
    shape = (channels, height, width)
    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": partial(scattering_linear, input_shape=shape, classes=len(data.classes)),
        "CNN": partial(scattering_cnn, input_shape=shape, classes=len(data.classes)),
    }
    rows: list[Row] = []
    for epsilon in request.choose_epsilons((1.0, 3.0)):
        for kind, make in makers.items():
            setting = _SETTINGS["cifar10" if name == "cifar10" else "mnist", kind]
            plan = setting.plan(data, epsilon)
            once = partial(_once, make, data, plan, setting, request.device)
            found = repeat(f"{name}, ε = {epsilon:g}, {kind}", request, plan, once)
            rows.append(found.row(_NAME, name, f"scattering + {kind}"))
            write_results(f"{_NAME}-{name}", rows, request, notes=_NOTES)
    _draw(rows, name, request)
    return rows


_NOTES = (
    "settings were chosen on the last part of the training images, by runs on the others that are not part "
    "of the stated epsilon",
)


def features(data: Dataset, request: Request) -> Dataset:
    """The same data set with scattering features (float16) in place of pictures."""
    parts = []
    for part, pair in (("train", data.train), ("test", data.test)):
        title = f"scattering features, {part}"
        pictures = pair.inputs.to(request.device)
        found = scattering_features(pictures, dtype=torch.float16, progress=partial(request.listener, title))
        parts.append(TensorPair(found, pair.targets))
    return Dataset(data.name, parts[0], parts[1], data.classes, f"{data.source}; scattering", data.unit)


class _AsFloat32(nn.Module):
    """Features are kept in half the memory and computed with in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()


def _once(
    make: Callable[[], nn.Module], data: Dataset, plan: Plan, setting: Setting, device: str, _: int
) -> Evaluation:
    return setting.fit(nn.Sequential(_AsFloat32(), make()).to(device), data, plan)


def _draw(rows: list[Row], name: str, request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    for kind, colour in (("linear", BLUE), ("CNN", ORANGE)):
        mine = [row for row in rows if row.model.endswith(kind)]
        axes.errorbar(
            [row.epsilon for row in mine],
            [percent(row.accuracy_mean) for row in mine],
            yerr=[percent(row.accuracy_std) for row in mine],
            marker="o",
            capsize=3,
            color=colour,
            label=f"scattering + {kind}",
        )
    axes.plot(
        [3.0], [100 * _PUBLISHED[name]], "x", color=GREY, label="scattering + linear, published at ε = 3"
    )
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel(f"test accuracy on {name}, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}-{name}.png")
