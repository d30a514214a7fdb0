"""How are many small models trained as one? Their weights are stacked: shadow models, and attacked models.

The weights of K models are in one tensor, so that a step of all of them is a few batched matrix products.
Each model has its own training records, shuffles or samples, and noise; the models share only the arithmetic.
:class:`StackedMLPs` writes the gradients out; :class:`StackedModules` takes any module, by
``torch.func``.

Letters: K models, n records, B records of a step (padded where models draw different numbers), c classes,
l layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from tacit.errors import InvalidInput, check_in, check_integer
from tacit.noise.generator import Generator, Purpose

Factors: TypeAlias = Callable[[Tensor], Tensor]

_CHUNK = 2048  # records scored at once


class StackedModels(ABC):
    """K models of one shape.  ``parameters`` holds one (K, ...) tensor per weight, in the order of a single
    module; training changes them in place."""

    parameters: list[Tensor]

    @property
    def count(self) -> int:
        """K."""
        return len(self.parameters[0])

    @abstractmethod
    def outputs(self, inputs: Tensor) -> Tensor:
        """The logits (K, B, c) of records (B, ...), the same for all models."""

    @abstractmethod
    def mean_gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Gradients (K, ...) of each model's mean loss on (K, B, ...) ``inputs`` and (K, B) ``labels``."""

    @abstractmethod
    def clipped_sums(self, inputs: Tensor, labels: Tensor, mask: Tensor, factors: Factors) -> list[Tensor]:
        """Sums over the records of a step of each one's gradient times its factor; (K, ...) each.

        :param mask: (K, B), false for padding, which adds exactly nothing whatever it holds.
        :param factors: (m,) norms of a record's whole gradient to (m,) factors; 0 where a norm is not finite.
        """

    def logits(self, inputs: Tensor) -> NDArray[np.float32]:
        """The logits (K, n, c) of all models on the (n, ...) ``inputs``."""
        with torch.no_grad():
            starts = range(0, len(inputs), _CHUNK)
            parts = [self.outputs(inputs[start : start + _CHUNK]).cpu().numpy() for start in starts]
        return np.concatenate(parts, axis=1)


@final
class StackedMLPs(StackedModels):
    """K networks: linear layers with an activation after each but the last, trained on cross-entropy.

    With h_l the input of layer l and delta_l the gradient at its output, a record's gradient is
    h_l (x) delta_l for the weights and delta_l for the bias, so that its squared norm is

        sum_l (|h_l|^2 + 1) |delta_l|^2    (Goodfellow 2015, 1510.01799, section 4)

    and scaling delta_l clips it.  Weights start as those of ``torch.nn.Linear``.

    :param sizes: inputs, hidden units, classes: (196, 64, 10).
    :param activation: "tanh" or "relu".
    :param generators: one for each model; its initial weights come from it.

    >>> models = StackedMLPs((4, 8, 3), "tanh", [Generator.from_os(), Generator.from_os()])
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
                f"a network needs sizes from inputs to classes, and a generator each; got {sizes}."
            )
        self._activation = check_in("activation", activation, ("tanh", "relu"))
        self.parameters = []
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

    def outputs(self, inputs: Tensor) -> Tensor:
        """The logits (K, B, c) of records (B, ...)."""
        return self._forward(inputs.flatten(1).expand(self.count, -1, -1))[-1]

    def mean_gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Gradients of each model's mean loss; (K, ...) each."""
        h, delta = self._backward(inputs.flatten(2), labels)
        return [total / labels.shape[1] for total in self._sums(h, delta)]

    def clipped_sums(self, inputs: Tensor, labels: Tensor, mask: Tensor, factors: Factors) -> list[Tensor]:
        """Sums of clipped gradients; (K, ...) each."""
        h, delta = self._backward(inputs.flatten(2), labels)
        squares = sum((x.square().sum(2) + 1.0) * d.square().sum(2) for x, d in zip(h, delta, strict=True))
        assert isinstance(squares, Tensor)
        factor = factors(squares.sqrt().flatten()).reshape(mask.shape)
        unused = (~mask | (factor == 0.0))[..., None]  # zero times infinity would not be zero
        h = [x.masked_fill(unused, 0.0) for x in h]
        return self._sums(h, [(d * factor[..., None]).masked_fill(unused, 0.0) for d in delta])

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """The inputs of all layers, then the logits; (K, B, units) each."""
        values = [inputs]
        for layer in range(0, len(self.parameters), 2):
            weight, bias = self.parameters[layer : layer + 2]
            z = torch.baddbmm(bias[:, None], values[-1], weight.transpose(1, 2))
            last = layer + 2 == len(self.parameters)
            values.append(z if last else torch.tanh(z) if self._activation == "tanh" else torch.relu(z))
        return values

    def _backward(self, inputs: Tensor, labels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """h and delta of every layer, of each record's own loss."""
        *h, logits = self._forward(inputs)
        top = torch.softmax(logits, 2)
        top.scatter_add_(2, labels[..., None], top.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1))
        return h, self._downwards(h, top)

    def _downwards(self, h: list[Tensor], top: Tensor) -> list[Tensor]:
        """delta of every layer from that of the last, (K, B, c)."""
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


@final
class StackedModules(StackedModels):
    """K copies of any module that does not mix records, each with its own weights, by ``torch.func``.

    It holds the gradient of every record of a step at once, K B times the size of the model, under a plan.

    :param make: makes one model, with fresh initial weights.
    :param loss: (B, c) outputs and (B,) labels to (B,) losses; cross-entropy by default.
    :param generators: one for each model; it seeds torch while ``make`` runs.

    :raises InvalidInput: if the model has statistics of its batches, as batch normalisation does.

    >>> models = StackedModules(lambda: nn.Linear(4, 3), [Generator.from_os(), Generator.from_os()])
    >>> models.logits(torch.zeros(5, 4)).shape
    (2, 5, 3)
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        generators: Sequence[Generator],
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        modules = [_made(make, generator).to(device) for generator in generators]
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in modules[0].modules()):
            raise InvalidInput(
                "the model normalises over the batch, so it mixes records and no record has a separate "
                "gradient. Use group normalisation."
            )
        stacked, self._buffers = stack_module_state(modules)
        self._names = list(stacked)
        self.parameters = [stacked[name].detach() for name in self._names]
        self._module = modules[0]
        self._loss = loss or _cross_entropy

    def outputs(self, inputs: Tensor) -> Tensor:
        """The outputs (K, B, c) of records (B, ...)."""
        values: Tensor = vmap(self._call, in_dims=(0, 0, None))(self.parameters, self._buffers, inputs)
        return values

    def mean_gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Gradients of each model's mean loss; (K, ...) each."""

        def mean(weights: list[Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._loss(self._call(weights, buffers, x), y).mean()

        found = vmap(grad(mean), randomness="different")(self.parameters, self._buffers, inputs, labels)
        return list(found)

    def clipped_sums(self, inputs: Tensor, labels: Tensor, mask: Tensor, factors: Factors) -> list[Tensor]:
        """Sums of clipped gradients; (K, ...) each."""

        def single(weights: list[Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._loss(self._call(weights, buffers, x[None]), y[None]).squeeze(0)

        each = vmap(grad(single), in_dims=(None, None, 0, 0), randomness="different")
        per_record = vmap(each, randomness="different")(self.parameters, self._buffers, inputs, labels)
        squares = torch.stack([g.flatten(2).square().sum(2) for g in per_record]).sum(0)  # (K, B)
        factor = factors(squares.sqrt().flatten()).reshape(mask.shape)
        factor = factor.masked_fill(~mask, 0.0)
        return [_weighted_sum(g, factor) for g in per_record]

    def _call(self, weights: list[Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        state = dict(zip(self._names, weights, strict=True)) | buffers
        value: Tensor = functional_call(self._module, state, (inputs,))
        return value


def _weighted_sum(per_record: Tensor, factor: Tensor) -> Tensor:
    """sum_b factor[k, b] per_record[k, b], leaving out factors of 0, even of non-finite gradients."""
    weight = factor.reshape(*factor.shape, *(1,) * (per_record.ndim - 2))
    return (per_record * weight).masked_fill(weight == 0.0, 0.0).sum(1)


def _made(make: Callable[[], nn.Module], generator: Generator) -> nn.Module:
    """A model whose initial weights come from ``generator``; torch's own generator stays unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
        )
        return make()


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")
