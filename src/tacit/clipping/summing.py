"""The fast engine's work after a pass: norms and clipped sums from the recorded uses of parameters.

Letters: n records; K views; G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine, PerExampleLoss
from tacit.clipping.memory import MemoryBudget
from tacit.clipping.passes import Passes, keep_memory
from tacit.clipping.per_example.parameter import Gradient, Recorded, gradients_of
from tacit.clipping.per_example.together import Several, together
from tacit.clipping.rules import ClippingRule


class SummingEngine(GradientEngine):
    """An engine whose passes record the uses of parameters."""

    def __init__(
        self,
        model: nn.Module,
        per_example_loss: PerExampleLoss,
        rule: ClippingRule,
        *,
        views: int,
        budget: MemoryBudget,
    ) -> None:
        super().__init__(model, per_example_loss, rule, views=views)
        self.budget = budget
        keep_memory(budget.pass_bytes)
        self._small_first = sorted(self.names, key=lambda name: self.parameters[name].numel())
        parameter_bytes = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self._cuts = Passes(budget.pass_bytes, parameter_bytes, views, self.measured)

    def _add_from(
        self,
        run: Recorded,
        accumulator: Mapping[str, Tensor],
        n: int,
        thresholds: Tensor,
        scale: float,
    ) -> Tensor:
        """Add the clipped sum of n records from the recorded uses of a pass; return the (n, G) norms.

        Records whose norms are not finite are left out, as 0 * inf is NaN. The pass is not repeated without
        them: it would draw new dropout masks, under which other records may be finite.

        The tensors that a parameter's sum needs are freed before the next buffer is looked up, and small
        parameters come first. Buffers that are created on demand thus reuse the memory of the activations.
        """
        gradients = gradients_of(self.parameters, run)
        several = [together(gradients, group) for group in self.groups]
        norms = self._norms(gradients, several, n, thresholds)
        finite_norms = norms
        if _skip_zeros(
            [*gradients.values(), *chain.from_iterable(several)]
        ):  # then nothing waits for the device
            finite_norms = norms = norms.where(_finite(norms)[:, None], torch.inf)
        elif not _all_finite(norms):
            finite = _finite(norms)
            finite_norms, norms[~finite] = norms[finite], torch.inf
            if len(finite_norms) == 0:
                return norms
            gradients = {name: gradients.pop(name).of(finite) for name in list(gradients)}
            several = [[one.of(finite) for one in of_group] for of_group in several]
        factors = self._factors(finite_norms, thresholds, scale).unbind(1)
        self._add_each(gradients, several, accumulator, factors)
        return norms

    def _add_each(
        self,
        gradients: dict[str, Gradient],
        several: list[list[Several]],
        accumulator: Mapping[str, Tensor],
        factors: Sequence[Tensor],
    ) -> None:
        """Add the sums, weighted by each group's (n,) ``factors``; empty ``gradients`` and ``several``."""
        number = _group_index(self.groups)
        for some, of_group in zip(several, factors, strict=True):
            while some:
                some.pop().add_weighted(partial(self._buffer, accumulator), of_group)
        for name in self._small_first:
            gradient = gradients.pop(name, None)
            if gradient is not None and gradient.used:
                gradient.add_weighted(self._buffer(accumulator, name), factors[number[name]])

    def _norms(
        self, gradients: Mapping[str, Gradient], several: Sequence[list[Several]], n: int, thresholds: Tensor
    ) -> Tensor:
        """Return the (n, G) norms in the data type of the thresholds."""
        squares = []
        for group, some in zip(self.groups, several, strict=True):
            used = [one.squared_norms() for one in some]
            apart = [gradients[name] for name in group if name in gradients]
            used += [gradient.squared_norms(n) for gradient in apart if gradient.used]
            total = torch.stack(used).sum(0, dtype=thresholds.dtype) if used else thresholds.new_zeros(n)
            squares.append(total)
        return torch.stack(squares, 1).sqrt_()


def _skip_zeros(gradients: Iterable[Gradient | Several]) -> bool:
    return all(one.skips_zeros for one in gradients)


def _all_finite(norms: Tensor) -> bool:
    """Return whether all norms are finite; to save time, check each only if their sum is not finite."""
    return float(norms.sum()) < torch.inf or bool(_finite(norms).all())


def _finite(norms: Tensor) -> Tensor:
    """Return (n,) bool: whether all of a record's (n, G) norms, which are never negative, are finite."""
    return (norms < torch.inf).all(1)


def _group_index(groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the index of the group that each name belongs to."""
    return {name: number for number, group in enumerate(groups) for name in group}
