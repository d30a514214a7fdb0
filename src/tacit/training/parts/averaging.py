"""How are weights averaged? By an exponential moving average of released ones, free as post-processing."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tacit.errors import check_integer, check_real


class AveragedWeights:
    """``w <- m w + (1 - m) w_t`` with ``m = min(decay, (1 + t) / (10 + t))`` (De et al., 2204.13650, 3.3).

    The average starts counting at step ``start``; until then it is a copy of the latest weights.

    **Guarantee**

    * It is a function of the released weights alone, so it costs nothing and the same statement covers it.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 0.0)
    >>> average = AveragedWeights(model, decay=0.9)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> average.update(model, steps_done=1)  # early on, the last weights count for more
    >>> round(average.applied_to(model).weight.item(), 3)
    0.818
    """

    def __init__(self, model: nn.Module, decay: float, start: int = 0) -> None:
        self.decay = check_real("ema decay", decay, low=0.0, high=1.0, open_high=True)
        self.start = check_integer("ema start", start, low=0)
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def update(self, model: nn.Module, steps_done: int) -> None:
        """Take in the weights after ``steps_done`` steps."""
        counted = max(0, steps_done - self.start)
        momentum = min(self.decay, (1 + counted) / (10 + counted)) if counted else 0.0
        current = dict(model.named_parameters())
        with torch.no_grad():
            for name, average in self.weights.items():
                average.mul_(momentum).add_(current[name], alpha=1 - momentum)

    def applied_to(self, model: nn.Module) -> nn.Module:
        """A copy of ``model`` with the averaged weights; the model itself stays as it is."""
        averaged = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in averaged.named_parameters():
                if name in self.weights:
                    parameter.copy_(self.weights[name])
        return averaged

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Restore saved weights."""
        for name, average in self.weights.items():
            average.copy_(weights[name])
