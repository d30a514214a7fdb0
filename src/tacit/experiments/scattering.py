"""Scattering features and a linear model or a small network (Tramèr and Boneh, 2011.11660).

The features are fixed filters, so they cost no privacy; normalisation is per picture, and for CIFAR-10
whitening is by public pictures, so they cost none either; there the mean that is subtracted is private and
paid for.  Sampling is real Poisson sampling or full batch, never shuffled batches priced as
such.  The network is for 28x28 pictures; on CIFAR-10's it takes hours without a GPU and is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tacit.datasets import Dataset, TensorPair, load
from tacit.experiments.base import Request, Row, Setting, percent, repeat, write_results
from tacit.experiments.linear_on_features import UNLIMITED, Recipe, choose, repeat_linear
from tacit.experiments.public_rows import public_pictures, scattering_rows
from tacit.models import scattering_cnn, scattering_features, scattering_linear
from tacit.plan import Plan
from tacit.report.pages.plots import BLUE, GREY, ORANGE, new_figure, save_figure
from tacit.training import Evaluation

__all__ = ["run"]

_NAME = "scattering"
_PUBLISHED = {"mnist": 0.987, "fashion-mnist": 0.897, "cifar10": 0.67}
_LINEAR_28 = Setting(4096, 586, 8.0, 0.9, 0.1, 0.95)  # as published, and weights averaged
_CNN_28 = Setting(4096, 250, 2.0, 0.9, 0.1, 0.9)
_WHITENED_32 = (Recipe(UNLIMITED, 20.0, Setting(None, 40, 60.0, 0.9, 1.0)),)
_NOTES = (
    "settings were chosen on the last part of the training images, by runs on the others that are not part "
    "of the stated epsilon",
)


def run(request: Request) -> list[Row]:
    """Rows for the linear model and the network, and ``scattering-<dataset>.png``."""
    name = request.choose_dataset(tuple(_PUBLISHED))
    data = load(name)
    epsilons = request.choose_epsilons((1.0, 3.0))
    notes = [*_NOTES, f"data: {data.source}"]
    rows: list[Row] = []
    found = (
        _whitened(data, epsilons, request, notes) if name == "cifar10" else _on_maps(data, epsilons, request)
    )
    for row in found:
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
        yield repeats.row(_NAME, data.name, "scattering + linear", public_data=source)


def _on_maps(data: Dataset, epsilons: tuple[float, ...], request: Request) -> Iterator[Row]:
    maps, shape = _maps(data, request)
    kinds: tuple[tuple[str, Callable[..., nn.Module], Setting], ...] = (
        ("linear", scattering_linear, _LINEAR_28),
        ("CNN", scattering_cnn, _CNN_28),
    )
    for kind, make, setting in kinds:
        model = partial(make, input_shape=shape, classes=len(data.classes))
        for epsilon in epsilons:
            plan = setting.plan(maps, epsilon)
            once = partial(_once, model, maps, plan, setting, request.device)
            found = repeat(f"{data.name}, ε = {epsilon:g}, {kind}", request, plan, once)
            yield found.row(_NAME, data.name, f"scattering + {kind}")


def _once(
    make: Callable[[], nn.Module], data: Dataset, plan: Plan, setting: Setting, device: str, _: int
) -> Evaluation:
    return setting.fit(nn.Sequential(_AsFloat32(), make()).to(device), data, plan)


def _maps(data: Dataset, request: Request) -> tuple[Dataset, tuple[int, int, int]]:
    """The same data set with scattering features (float16) in place of pictures, and their shape."""
    parts = []
    for part, pair in (("train", data.train), ("test", data.test)):
        progress = partial(request.listener, f"scattering features, {part}")
        pictures = pair.inputs.to(request.device)
        features = scattering_features(pictures, dtype=torch.float16, progress=progress)
        parts.append(TensorPair(features, pair.targets))
    channels, height, width = parts[0].inputs.shape[1:]
    return replace(data, train=parts[0], test=parts[1]), (channels, height, width)


class _AsFloat32(nn.Module):
    """Features are kept in half the memory and computed with in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()


def _draw(rows: list[Row], name: str, request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    for kind, colour in (("linear", BLUE), ("CNN", ORANGE)):
        mine = [row for row in rows if row.model.endswith(kind)]
        if not mine:
            continue
        axes.errorbar(
            [row.epsilon for row in mine],
            [percent(row.accuracy_mean) for row in mine],
            yerr=[percent(row.accuracy_std) for row in mine],
            marker="o",
            capsize=3,
            color=colour,
            label=f"scattering + {kind}",
        )
    axes.plot([3.0], [percent(_PUBLISHED[name])], "x", color=GREY, label="published, linear, ε = 3")
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel(f"test accuracy on {name}, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}-{name}.png")
