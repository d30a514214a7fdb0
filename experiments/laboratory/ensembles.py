"""Many small models with stacked weights, trained together to serve as shadow models or attacked models.

Each weight tensor contains the weights of all K models, so that a step of all models is a few batched matrix
products.  Each model has its own training records, shuffles or samples, and noise.  :class:`MLPEnsemble`
computes the gradients explicitly.  :func:`train_plainly` is SGD without privacy, and :func:`train_privately`
is DP-SGD with a plan.

Letters: K models, n records, B records in a step (padded if models draw different numbers of records),
c classes, l layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.clipping.rules import AutomaticClipping, FlatClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer, check_real
from tacit.events import Adjacency
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan

Bools: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.int64]
Factors: TypeAlias = Callable[[Tensor], Tensor]

_CHUNK = 2048  # the most records scored at once
_MARGIN = 1.0 + 1e-5  # a factor for norms that exceeds the rounding error of a sum of squares in float32


@final
class MLPEnsemble:
    """K networks of linear layers with activations between them, trained on cross-entropy.

    ``parameters`` has one (K, ...) tensor for each weight or bias, in the order of a single module.  Training
    changes them in place.

    With h_l the input of layer l and delta_l the gradient at its output, a record's gradient is
    h_l (x) delta_l for the weights and delta_l for the bias.  Its squared norm is

        sum_l (|h_l|^2 + 1) |delta_l|^2    (Goodfellow 2015, 1510.01799, section 4)

    and scaling delta_l clips the gradient.  Weights are initialised like those of ``torch.nn.Linear``.

    Args:
        sizes: the numbers of inputs, hidden units and classes, such as (196, 64, 10).
        activation: "tanh" or "relu".
        generators: one generator for each model, which draws its initial weights.

    >>> models = MLPEnsemble((4, 8, 3), "tanh", [Generator.from_os(), Generator.from_os()])
    >>> models.logits(torch.zeros(5, 4)).shape
    (2, 5, 3)
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        generators: Sequence[Generator],
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(sizes) < 2 or not generators:
            raise InvalidInput(
                f"sizes must be layer widths, from inputs to classes; got {sizes} and "
                f"{len(generators)} generators. Give at least two sizes, and one generator for each model."
            )
        self._activation = check_in("activation", activation, ("tanh", "relu"))
        self.parameters: list[Tensor] = []
        for layer, (rows, columns) in enumerate(zip(sizes[1:], sizes[:-1], strict=True)):
            bound = 1.0 / check_integer("sizes", columns, low=1) ** 0.5
            draws = np.stack(
                [
                    generator.numpy(purpose=Purpose.INITIALISATION, step=0, index=layer).uniform(
                        -bound, bound, rows * (columns + 1)
                    )
                    for generator in generators
                ]
            )
            weights = torch.from_numpy(draws.astype(np.float32)).to(device)
            self.parameters.append(weights[:, rows:].reshape(-1, rows, columns).contiguous())
            self.parameters.append(weights[:, :rows].contiguous())

    @property
    def count(self) -> int:
        """K, the number of models."""
        return len(self.parameters[0])

    def logits(self, inputs: Tensor) -> NDArray[np.float32]:
        """Compute the logits (K, n, c) of all models on the (n, ...) ``inputs``."""
        with torch.no_grad():
            parts = [
                self._forward(part.flatten(1).expand(self.count, -1, -1))[-1].cpu().numpy()
                for part in torch.split(inputs, _CHUNK)
            ]
        return np.concatenate(parts, axis=1)

    def mean_gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Compute (K, ...) gradients of each model's mean loss on (K, B, ...) inputs and (K, B) labels."""
        h, delta = self._backward(inputs.flatten(2), labels)
        return [total / labels.shape[1] for total in self._sums(h, delta)]

    def clipped_sums(self, inputs: Tensor, labels: Tensor, mask: Tensor, factors: Factors) -> list[Tensor]:
        """Sum the gradients of a step's records, each times its clipping factor, to (K, ...) tensors.

        Args:
            mask: (K, B) booleans.  They are False for padding, which adds exactly 0 whatever its values.
            factors: a function from (m,) gradient norms to (m,) factors.  It maps norms that are not finite
                to 0.
        """
        h, delta = self._backward(inputs.flatten(2), labels)
        squares = sum((x.square().sum(2) + 1.0) * d.square().sum(2) for x, d in zip(h, delta, strict=True))
        assert isinstance(squares, Tensor)
        factor = factors(squares.sqrt().flatten()).reshape(mask.shape)
        unused = (~mask | (factor == 0.0))[..., None]  # zero times infinity would not be zero
        h = [x.masked_fill(unused, 0.0) for x in h]
        return self._sums(h, [(d * factor[..., None]).masked_fill(unused, 0.0) for d in delta])

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """Compute the inputs of all layers and the logits, each of shape (K, B, units)."""
        values = [inputs]
        for layer in range(0, len(self.parameters), 2):
            weight, bias = self.parameters[layer : layer + 2]
            z = torch.baddbmm(bias[:, None], values[-1], weight.transpose(1, 2))
            last = layer + 2 == len(self.parameters)
            values.append(z if last else torch.tanh(z) if self._activation == "tanh" else torch.relu(z))
        return values

    def _backward(self, inputs: Tensor, labels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Compute h and delta of every layer for the loss of each single record."""
        *h, logits = self._forward(inputs)
        top = torch.softmax(logits, 2)
        top.scatter_add_(2, labels[..., None], top.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1))
        return h, self._downwards(h, top)

    def _downwards(self, h: list[Tensor], top: Tensor) -> list[Tensor]:
        """Compute delta of every layer from ``top``, the delta of the last layer, of shape (K, B, c)."""
        delta = [top]
        for layer in range(len(h) - 1, 0, -1):
            below = torch.bmm(delta[0], self.parameters[2 * layer])
            slope = 1.0 - h[layer].square() if self._activation == "tanh" else (h[layer] > 0.0).to(below)
            delta.insert(0, below * slope)
        return delta

    @staticmethod
    def _sums(h: list[Tensor], delta: list[Tensor]) -> list[Tensor]:
        sums = []
        for x, d in zip(h, delta, strict=True):
            sums += [torch.bmm(d.transpose(1, 2), x), d.sum(1)]
        return sums


def train_plainly(
    models: MLPEnsemble,
    inputs: Tensor,
    labels: Tensor,
    trained_on: Bools,
    *,
    learning_rate: float,
    momentum: float,
    batch_size: int,
    epochs: float,
    generators: Sequence[Generator],
) -> None:
    """Train by SGD without privacy, on batches from successive shuffled passes over each model's records.

    Args:
        inputs: (n, ...) records.
        labels: (n,) classes of the records.
        trained_on: (K, n) booleans, which say the training records of each model.
        epochs: the number of passes, which may be fractional.  All models take the same number of steps,
            which is that of a model with the mean number of records.
    """
    members = _members(models, inputs, labels, trained_on, generators)
    check_integer("batch_size", batch_size, low=1, high=min(map(len, members)))
    per_epoch = -(-round(sum(map(len, members)) / len(members)) // batch_size)
    steps = max(1, round(check_real("epochs", epochs, low=0.0, open_low=True) * per_epoch))
    streams = [_shuffled(own, batch_size, by) for own, by in zip(members, generators, strict=True)]
    velocity = [torch.zeros_like(p) for p in models.parameters]
    for _ in range(steps):
        index = torch.from_numpy(np.stack([next(stream) for stream in streams])).to(inputs.device)
        _descend(
            models, models.mean_gradients(inputs[index], labels[index]), velocity, learning_rate, momentum
        )


def train_privately(
    models: MLPEnsemble,
    inputs: Tensor,
    labels: Tensor,
    trained_on: Bools,
    plan: Plan,
    *,
    learning_rate: float,
    momentum: float,
    generators: Sequence[Generator],
) -> None:
    """Train by DP-SGD with ``plan``, like K runs of :class:`tacit.training.PrivateSession`.

    The sampler, clipping rule, noise and public divisor are the same.

    **Guarantee**

    * Each model is one run of ``plan`` on its own records, with noise and samples from its own generator.
    * The plan's clipping rule scales each record's gradient in a sum.  Padding, and gradients that are not
      finite, add exactly 0.

    Raises:
        PrivacyRefusal: if the plan has features that this loop does not support.
    """
    _check_plan(plan)
    members = _members(models, inputs, labels, trained_on, generators)
    if plan.adjacency is not Adjacency.ADD_REMOVE and {len(own) for own in members} != {plan.records}:
        raise InvalidInput(
            f"under {plan.adjacency} every model must train on {plan.records} records, as in the plan; "
            f"got {sorted({len(own) for own in members})}."
        )
    rule, device = plan.clipping, inputs.device
    thresholds = rule.initial_thresholds(["all"])
    limits = torch.tensor(thresholds, dtype=torch.float64, device=device)
    std = plan.gradient_noise_multiplier * rule.sensitivity(thresholds)
    velocity = [torch.zeros_like(p) for p in models.parameters]

    def factors(norms: Tensor) -> Tensor:
        return rule.factors(norms.double()[:, None] * _MARGIN, limits)[:, 0].to(norms)

    for step in range(plan.steps):
        samples = [
            own[plan.sampling.indices(by, step, len(own))]
            for own, by in zip(members, generators, strict=True)
        ]
        index, mask = (torch.from_numpy(part).to(device) for part in _padded(samples))
        sums = models.clipped_sums(inputs[index], labels[index], mask, factors)
        for position, total in enumerate(sums):
            total += _noise(generators, total, std, step, position)
            total /= plan.expected_batch_size
        _descend(models, sums, velocity, learning_rate, momentum)


def _check_plan(plan: Plan) -> None:
    wrong = {
        f"{type(plan.clipping).__name__}": not isinstance(plan.clipping, FlatClipping | AutomaticClipping),
        "views": plan.views != 1,
        "correlated noise": plan.correlation is not None,
        "loss_report": plan.loss_report is not None,
        "preparation": bool(plan.preparation),
    }
    parts = [name for name, refused in wrong.items() if refused]
    if parts:
        raise PrivacyRefusal(
            f"stacked models cannot train with {', '.join(parts)}. They support flat or automatic clipping, "
            "with one view of each record. Train each model with a PrivateSession of its own."
        )


def _members(
    models: MLPEnsemble, inputs: Tensor, labels: Tensor, trained_on: Bools, generators: Sequence[Generator]
) -> list[Indices]:
    """Check the arguments, and return the indices of each model's records."""
    if trained_on.dtype != np.bool_ or trained_on.shape != (models.count, len(inputs)):
        raise InvalidInput(
            f"trained_on must be a table of booleans; got {trained_on.dtype} of shape {trained_on.shape} for "
            f"{models.count} models and {len(inputs)} records."
        )
    if len(labels) != len(inputs) or len(generators) != models.count:
        raise InvalidInput(
            f"labels and generators must fit records and models; got {len(labels)} labels for {len(inputs)} "
            f"records and {len(generators)} generators for {models.count} models."
        )
    if not trained_on.any(axis=1).all():
        raise InvalidInput("a model without a single training record cannot be trained.")
    return [np.flatnonzero(row) for row in trained_on]


def _shuffled(own: Indices, batch_size: int, generator: Generator) -> Iterator[Indices]:
    """Yield batches of equal size from successive shuffled passes.  A batch may span two passes."""
    left, turn = own[:0], 0
    while True:
        while len(left) < batch_size:
            rng = generator.numpy(purpose=Purpose.SAMPLING, step=turn)
            left, turn = np.concatenate([left, rng.permutation(own)]), turn + 1
        yield left[:batch_size]
        left = left[batch_size:]


def _padded(samples: list[Indices]) -> tuple[Indices, Bools]:
    """Pad samples to (K, B) indices, and return them with a mask of the entries that are not padding.

    B is the size of the largest sample, or 1 if all are empty.
    """
    longest = max(1, *map(len, samples))
    index = np.zeros((len(samples), longest), dtype=np.int64)
    mask = np.arange(longest) < np.array([[len(part)] for part in samples])
    index[mask] = np.concatenate(samples)
    return index, mask


def _noise(generators: Sequence[Generator], like: Tensor, std: float, step: int, position: int) -> Tensor:
    """Draw N(0, std^2) of the shape (K, ...) of ``like``.

    The step and position are those of a session's noise, so that equal generators give equal noise.
    """
    shape = tuple(like.shape[1:])
    return torch.stack(
        [gaussian(by, shape, std=std, step=step, index=position, device=like.device) for by in generators]
    )


def _descend(
    models: MLPEnsemble,
    gradients: list[Tensor],
    velocity: list[Tensor],
    learning_rate: float,
    momentum: float,
) -> None:
    """Make a step of SGD with momentum as in torch: v <- momentum v + g, w <- w - learning_rate v."""
    check_real("learning_rate", learning_rate, low=0.0, open_low=True)
    check_real("momentum", momentum, low=0.0, high=1.0, open_high=True)
    for weights, gradient, v in zip(models.parameters, gradients, velocity, strict=True):
        v.mul_(momentum).add_(gradient)
        weights.sub_(v, alpha=learning_rate)
