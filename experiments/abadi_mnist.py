"""MNIST as in Abadi et al. (CCS 2016), section 5.2: DP-PCA to 60 dimensions, one hidden layer of 1,000.

Every run learns the projection with differential privacy, and the epsilon of a row includes its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from experiments.base import Request, Row, Setting, percent, repeat, write_results
from experiments.standard import load
from tacit.datasets import Dataset, TensorPair
from tacit.events import Gaussian
from tacit.models import MLP
from tacit.models.dp_pca import fit_dp_pca
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.report.canvas import BLUE, GREY, new_figure, save_figure
from tacit.training import Evaluation

_NAME = "abadi-mnist"
_COMPONENTS, _HIDDEN = 60, 1000
_PUBLISHED = {0.5: 0.90, 2.0: 0.95, 8.0: 0.97}


@dataclass(frozen=True)
class Recipe:
    """A recipe for epsilons up to ``upto``; ``pca_noise`` is the sigma of DP-PCA."""

    upto: float
    pca_noise: float
    whitened: bool
    setting: Setting

    def plan(self, data: Dataset, epsilon: float) -> Plan:
        """Return the plan of one run, with the cost of DP-PCA."""
        return self.setting.plan(data, epsilon, preparation=[Gaussian(self.pca_noise)])


_RECIPES = (
    Recipe(1.0, 16.0, True, Setting(10_000, 60, 2.4, 0.9, 1.0, 0.9)),
    Recipe(4.0, 13.0, True, Setting(40_000, 200, 2.0, 0.9, 1.0, 0.985)),
    Recipe(float("inf"), 4.0, True, Setting(20_000, 300, 3.0, 0.9, 1.0, 0.98)),
)


_SELECTION = "the last 10,000 training images; test figures of other settings seen before"


def run(request: Request) -> list[Row]:
    """Return a row per epsilon, and draw ``abadi-mnist.png`` with the published results next to ours."""
    name = request.choose_dataset(("mnist", "fashion-mnist"))
    data = load(name)
    rows = []
    for epsilon in request.choose_epsilons(tuple(_PUBLISHED)):
        recipe = next(item for item in _RECIPES if epsilon <= item.upto)
        plan = recipe.plan(data, epsilon)
        fit = partial(once, data, plan, recipe, request.device)
        found = repeat(f"{name}, ε = {epsilon:g}", request, plan, fit)
        model = f"DP-PCA({_COMPONENTS}), {_HIDDEN} hidden"
        rows.append(
            found.row(
                _NAME, name, model, selection=_SELECTION, pca_noise=recipe.pca_noise, whitened=recipe.whitened
            )
        )
        write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


_NOTES = (
    "epsilon includes DP-PCA",
    "settings were chosen on the last 10,000 of the training images, by runs on the others that are not "
    "part of the stated epsilon",
)


def once(data: Dataset, plan: Plan, recipe: Recipe, device: str, _: int) -> Evaluation:
    """Perform one run: DP-PCA, then training of the network on its coordinates."""
    generator = Generator.from_os()

    def noise(shape: tuple[int, ...], std: float) -> Tensor:
        return gaussian(generator, shape, std=std, step=0, purpose=Purpose.PREPARATION, dtype=torch.float64)

    rows = data.train.inputs.flatten(1)
    pca = fit_dp_pca(rows, components=_COMPONENTS, noise_multiplier=recipe.pca_noise, gaussian=noise)
    coordinates = pca.whiten if recipe.whitened else pca.transform
    train, test = (
        TensorPair(_project(coordinates(pair.inputs)), pair.targets) for pair in (data.train, data.test)
    )
    model = MLP(_COMPONENTS, len(data.classes), hidden=(_HIDDEN,), activation="relu")
    last = model[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)  # training would first have to unlearn random ones
    return recipe.setting.fit(model.to(device), replace(data, train=train, test=test), plan)


def _project(coordinates: Tensor) -> Tensor:
    """Scale each record independently to mean 0 and variance 1 over its components."""
    return torch.nn.functional.layer_norm(coordinates, coordinates.shape[1:])


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    epsilons = [row.epsilon for row in rows]
    means = [percent(row.accuracy_mean) for row in rows]
    errors = [percent(row.accuracy_std) for row in rows]
    axes.errorbar(epsilons, means, yerr=errors, marker="o", color=BLUE, capsize=3, label="Tacit, ε by PLD")
    axes.plot(
        list(_PUBLISHED),
        [100 * v for v in _PUBLISHED.values()],
        "x--",
        color=GREY,
        label="Abadi et al., 2016",
    )
    axes.set_xscale("log")
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
