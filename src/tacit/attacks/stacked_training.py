"""How are stacked models trained, all at once? By plain SGD, or by DP-SGD with a plan.

Each model has its own training records, shuffles or samples, and noise.  Letters as in
:mod:`tacit.attacks.stacked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.attacks.stacked import StackedModels
from tacit.clipping.rules import AutomaticClipping, FlatClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Adjacency
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan

Bools: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.int64]
Progress: TypeAlias = Callable[[int, int], None]

_MARGIN = 1.0 + 1e-5  # on a norm: more than the rounding error of the sum of its squares in single precision


def train_plainly(
    models: StackedModels,
    inputs: Tensor,
    labels: Tensor,
    trained_on: Bools,
    *,
    learning_rate: float,
    momentum: float,
    batch_size: int,
    epochs: float,
    generators: Sequence[Generator],
    progress: Progress | None = None,
) -> None:
    """SGD without privacy: batches are cut from one shuffled pass after another over a model's own records.

    :param inputs: (n, ...) records; ``labels`` (n,) their classes.
    :param trained_on: (K, n), the records of each model.
    :param epochs: passes, also parts of them; all models take the number of steps that is right on average.
    """
    members = _members(models, inputs, labels, trained_on, generators)
    check_integer("batch_size", batch_size, low=1, high=min(map(len, members)))
    per_epoch = -(-round(sum(map(len, members)) / len(members)) // batch_size)
    steps = max(1, round(check_real("epochs", epochs, low=0.0, open_low=True) * per_epoch))
    streams = [_shuffled(own, batch_size, by) for own, by in zip(members, generators, strict=True)]
    velocity = [torch.zeros_like(p) for p in models.parameters]
    for step in range(steps):
        index = torch.from_numpy(np.stack([next(stream) for stream in streams])).to(inputs.device)
        _descend(
            models, models.mean_gradients(inputs[index], labels[index]), velocity, learning_rate, momentum
        )
        if progress is not None:
            progress(step + 1, steps)


def train_privately(
    models: StackedModels,
    inputs: Tensor,
    labels: Tensor,
    trained_on: Bools,
    plan: Plan,
    *,
    learning_rate: float,
    momentum: float,
    generators: Sequence[Generator],
    progress: Progress | None = None,
) -> None:
    """DP-SGD by ``plan``, as :class:`tacit.training.PrivateSession` would do it K times: same sampler, same
    clipping rule, same noise, same public divisor.

    **Guarantee**

    * Each model is one run of ``plan`` on its own records, with noise and samples from its own generator.
    * What a record adds to a sum is scaled by the plan's clipping rule; one whose gradient is not finite, and
      the padding, add exactly nothing.

    :raises PrivacyRefusal: if the plan has parts that this loop cannot perform.
    """
    _check_plan(plan)
    members = _members(models, inputs, labels, trained_on, generators)
    if plan.adjacency is not Adjacency.ADD_REMOVE and {len(own) for own in members} != {plan.records}:
        raise InvalidInput(
            f"under {plan.adjacency} every model needs the plan's {plan.records} records; got "
            f"{sorted({len(own) for own in members})}."
        )
    rule, device = plan.clipping, inputs.device
    thresholds = rule.initial_thresholds(["all"])
    limits = torch.tensor(thresholds, dtype=torch.float64, device=device)
    std = plan.gradient_noise_multiplier * rule.sensitivity(thresholds)
    velocity = [torch.zeros_like(p) for p in models.parameters]

    def factors(norms: Tensor) -> Tensor:
        return rule.factors(norms.double()[:, None] * _MARGIN, limits)[:, 0].to(norms)

    for step in range(plan.steps):
        drawn = [
            own[plan.sampling.indices(by, step, len(own))]
            for own, by in zip(members, generators, strict=True)
        ]
        index, mask = (torch.from_numpy(part).to(device) for part in _padded(drawn))
        sums = models.clipped_sums(inputs[index], labels[index], mask, factors)
        for position, total in enumerate(sums):
            total += _noise(generators, total, std, step, position)
            total /= plan.expected_batch_size
        _descend(models, sums, velocity, learning_rate, momentum)
        if progress is not None:
            progress(step + 1, plan.steps)


def _check_plan(plan: Plan) -> None:
    wrong = {
        "clipping": not isinstance(plan.clipping, FlatClipping | AutomaticClipping),
        "views": plan.views != 1,
        "correlated noise": plan.correlation is not None,
        "loss_report": plan.loss_report is not None,
        "preparation": bool(plan.preparation),
    }
    asked = [name for name, refused in wrong.items() if refused]
    if asked:
        raise PrivacyRefusal(
            f"models trained at once support flat and automatic clipping of one view; this plan also has "
            f"{', '.join(asked)}. Train with a PrivateSession each, through tacit.attacks.shadows.one_by_one."
        )


def _members(
    models: StackedModels, inputs: Tensor, labels: Tensor, trained_on: Bools, generators: Sequence[Generator]
) -> list[Indices]:
    """The positions of each model's records."""
    if trained_on.dtype != np.bool_ or trained_on.shape != (models.count, len(inputs)):
        raise InvalidInput(
            f"trained_on must hold one boolean for each of {models.count} models and {len(inputs)} records; "
            f"got {trained_on.dtype} of shape {trained_on.shape}."
        )
    if len(labels) != len(inputs) or len(generators) != models.count:
        raise InvalidInput(
            f"{len(inputs)} records need as many labels, {models.count} models as many generators; got "
            f"{len(labels)} and {len(generators)}."
        )
    if not trained_on.any(axis=1).all():
        raise InvalidInput("a model without a single training record cannot be trained.")
    return [np.flatnonzero(row) for row in trained_on]


def _shuffled(own: Indices, batch_size: int, generator: Generator) -> Iterator[Indices]:
    """Batches of one size, across the borders of shuffled passes."""
    left, turn = own[:0], 0
    while True:
        while len(left) < batch_size:
            rng = generator.numpy(purpose=Purpose.SAMPLING, step=turn)
            left, turn = np.concatenate([left, rng.permutation(own)]), turn + 1
        yield left[:batch_size]
        left = left[batch_size:]


def _padded(drawn: list[Indices]) -> tuple[Indices, Bools]:
    """(K, B) indices, and which of them are no padding; B is the largest number drawn, at least 1."""
    longest = max(1, *map(len, drawn))
    index = np.zeros((len(drawn), longest), dtype=np.int64)
    mask = np.arange(longest) < np.array([[len(part)] for part in drawn])
    index[mask] = np.concatenate(drawn)
    return index, mask


def _noise(generators: Sequence[Generator], like: Tensor, std: float, step: int, position: int) -> Tensor:
    """N(0, std^2) of the shape (K, ...) of ``like``, model by model, at the addresses of a session."""
    shape = tuple(like.shape[1:])
    return torch.stack(
        [gaussian(by, shape, std=std, step=step, index=position, device=like.device) for by in generators]
    )


def _descend(
    models: StackedModels,
    gradients: list[Tensor],
    velocity: list[Tensor],
    learning_rate: float,
    momentum: float,
) -> None:
    """SGD with momentum as torch has it: v <- momentum v + g, w <- w - learning_rate v."""
    check_real("learning_rate", learning_rate, low=0.0, open_low=True)
    check_real("momentum", momentum, low=0.0, high=1.0, open_high=True)
    for weights, gradient, v in zip(models.parameters, gradients, velocity, strict=True):
        v.mul_(momentum).add_(gradient)
        weights.sub_(v, alpha=learning_rate)
