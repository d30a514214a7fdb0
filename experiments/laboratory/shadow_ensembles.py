"""Training of several shadow models at the same time, if the result is the same as for one after the other.

This holds for logistic regressions and perceptrons under SGD, as in :mod:`experiments.laboratory.ensembles`.
Modules without weights before the first layer, such as a normalisation of each record, are applied to the
records in advance.

Letters: K models, n records, c classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.laboratory.ensembles import MLPEnsemble, train_plainly, train_privately
from tacit.audits.attacks import Bools, TrainGroup
from tacit.clipping.rules import AutomaticClipping, FlatClipping
from tacit.datasets import Dataset, TensorPair
from tacit.events import Adjacency
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.config import Config
from tacit.runs.learners import new_model
from tacit.runs.model import is_calibrated
from tacit.sampling import FullBatch

_MOST = 8  # models that are trained at the same time; an interruption loses them
_VALUES = 2**26  # numbers in the inputs of one step, over all models
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


@dataclass(frozen=True, eq=False)
class Perceptron:
    """A perceptron: a module ``before`` without weights, then ``layers`` with ``activation`` between them."""

    before: nn.Sequential
    layers: tuple[nn.Linear, ...]
    activation: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of inputs, hidden units and classes."""
        return (self.layers[0].in_features, *(layer.out_features for layer in self.layers))


@dataclass(frozen=True)
class AtOnce:
    """A function ``train`` from (K, n) membership masks to (K, n, c) logits, for up to ``models`` models."""

    train: TrainGroup
    models: int


def perceptron_of(model: nn.Module) -> Perceptron | None:
    """Return the parts of ``model`` if it is a perceptron and all its weights are trained, else None.

    >>> found = perceptron_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    >>> found.sizes, found.activation
    ((4, 3, 2), 'tanh')
    >>> perceptron_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))) is None
    True
    """
    if not isinstance(model, nn.Sequential) or not all(p.requires_grad for p in model.parameters()):
        return None
    parts = list(model)
    first = next((i for i, part in enumerate(parts) if isinstance(part, nn.Linear)), len(parts))
    before, layers, between = parts[:first], parts[first::2], parts[first + 1 :: 2]
    linear = tuple(layer for layer in layers if type(layer) is nn.Linear and layer.bias is not None)
    kinds = {type(part) for part in between}
    fits = (
        len(linear) == len(layers) == len(between) + 1
        and all(type(part) in (nn.Flatten, nn.LayerNorm) and not list(part.parameters()) for part in before)
        and len(kinds) <= 1
        and kinds <= set(_ACTIVATIONS)
    )
    if not fits:
        return None
    return Perceptron(nn.Sequential(*before), linear, _ACTIVATIONS[kinds.pop()] if kinds else "tanh")


def at_once(config: Config, data: Dataset, plan: Plan, pool: TensorPair, *, private: bool) -> AtOnce | None:
    """Return a function that trains several shadow models at a time; None if that is not supported.

    Args:
        plan: the plan of one shadow model, on half of the records of the ``pool``.
        private: whether to train privately by ``plan``; else, for as many steps without clipping and noise.
    """
    network = perceptron_of(new_model(config, data, Generator.from_os()))
    optimizer = config.optimizer
    fits = (
        len(data.classes) > 0
        and optimizer.name == "sgd"
        and optimizer.weight_decay == 0.0
        and config.training.ema_decay is None
        and not config.training.class_weights
        and not (private and is_calibrated(config, data))
        and not (private and not _private_fits(plan, len(pool.inputs)))
    )
    if network is None or not fits:
        return None
    device = network.layers[0].weight.device
    with torch.no_grad():
        inputs = network.before(pool.inputs.to(device))
    labels = pool.targets.to(device)
    batch = len(inputs) // 2 if isinstance(plan.sampling, FullBatch) else round(plan.expected_batch_size)

    def train(trained_on: Bools) -> NDArray[np.float32]:
        generators = [Generator.from_os() for _ in trained_on]
        models = _started(config, data, network, generators)
        if private:
            train_privately(
                models, inputs, labels, trained_on, _gradients_alone(plan), generators=generators,
                learning_rate=optimizer.learning_rate, momentum=optimizer.momentum,
            )  # fmt: skip
        else:
            size = min(max(1, batch), int(trained_on.sum(axis=1).min()))
            per_pass = math.ceil(round(trained_on.sum() / len(trained_on)) / size)
            train_plainly(
                models, inputs, labels, trained_on, generators=generators,
                learning_rate=optimizer.learning_rate, momentum=optimizer.momentum,
                batch_size=size, epochs=plan.steps / per_pass,
            )  # fmt: skip
        return models.logits(inputs)

    return AtOnce(train, min(_MOST, max(1, _VALUES // (max(1, batch) * max(network.sizes)))))


def _private_fits(plan: Plan, records: int) -> bool:
    """Return whether stacked models support all parts of the plan."""
    return (
        isinstance(plan.clipping, FlatClipping | AutomaticClipping)
        and plan.views == 1
        and plan.correlation is None
        and not plan.preparation
        and (plan.adjacency is Adjacency.ADD_REMOVE or records % 2 == 0)
    )


def _gradients_alone(plan: Plan) -> Plan:
    """Return the plan without the loss report, with the same noise on the gradients."""
    return replace(plan, loss_report=None, noise_multiplier=plan.gradient_noise_multiplier)


def _started(config: Config, data: Dataset, network: Perceptron, generators: list[Generator]) -> MLPEnsemble:
    """Make stacked models with initial weights drawn like the run's."""
    device = network.layers[0].weight.device
    models = MLPEnsemble(network.sizes, network.activation, generators, device=device)
    for place, generator in enumerate(generators):
        own = perceptron_of(new_model(config, data, generator))
        assert own is not None
        weights: list[Tensor] = [part for layer in own.layers for part in (layer.weight, layer.bias)]
        for stacked, start in zip(models.parameters, weights, strict=True):
            stacked[place] = start.detach()
    return models
