"""A private linear model on fixed features of norm 1, which gives the best CIFAR-10 and MNIST rows.

Every run learns the mean of the features with differential privacy and subtracts it, then trains a linear
model with full-batch steps.  The epsilon of the row includes both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from experiments.base import Repeats, Request, Setting, repeat
from experiments.dp_mean import DPMean, fit_dp_mean
from tacit.datasets import Dataset, TensorPair
from tacit.events import Gaussian
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.training import Evaluation

_CHUNK = 4096
_BIAS = 0.1  # a constant feature in place of a bias, small against the norm 1 of the others


@dataclass(frozen=True)
class Recipe:
    """A recipe for epsilons up to ``upto``; ``mean_noise`` is sigma of the private mean, None for no mean."""

    upto: float
    mean_noise: float | None
    setting: Setting


def repeat_linear(title: str, request: Request, data: Dataset, recipe: Recipe, epsilon: float) -> Repeats:
    """Repeat private training on ``data``, whose inputs are (n, d) rows of norm 1."""
    preparation = [] if recipe.mean_noise is None else [Gaussian(recipe.mean_noise)]
    plan = recipe.setting.plan(data, epsilon, preparation=preparation)
    return repeat(title, request, plan, partial(_once, data, plan, recipe, request.device))


def _once(data: Dataset, plan: Plan, recipe: Recipe, device: str, _: int) -> Evaluation:
    mean = None
    if recipe.mean_noise is not None:
        generator = Generator.from_os()

        def noise(shape: tuple[int, ...], std: float) -> Tensor:
            return gaussian(
                generator, shape, std=std, step=0, purpose=Purpose.PREPARATION, dtype=torch.float64
            )

        mean = fit_dp_mean(
            data.train.inputs, expected=plan.records, noise_multiplier=recipe.mean_noise, gaussian=noise
        )
    train, test = (TensorPair(_centred(pair.inputs, mean), pair.targets) for pair in (data.train, data.test))
    model = nn.Linear(train.inputs.shape[1], len(data.classes), bias=False)
    nn.init.zeros_(model.weight)
    centred = replace(data, train=train, test=test)
    return recipe.setting.fit(model.to(device), centred, plan, physical_batch_size=4096)


def _centred(rows: Tensor, mean: DPMean | None) -> Tensor:
    """Return (n, d) rows minus their mean, with a constant feature, as one (n, d + 1) float32 tensor."""
    out = torch.full((len(rows), rows.shape[1] + 1), _BIAS, device=rows.device)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK].float()
        out[start : start + _CHUNK, :-1] = part if mean is None else mean.centre(part)
    return out


def choose(recipes: tuple[Recipe, ...], epsilon: float) -> Recipe:
    """Return the first recipe whose ``upto`` is at least ``epsilon``."""
    return next(recipe for recipe in recipes if epsilon <= recipe.upto)


UNLIMITED = math.inf
