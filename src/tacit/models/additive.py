"""Linear models for tables, with binned columns, and with targets that are first standardized privately.

Letters: n records; d columns; f inputs; k targets.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from tacit.clipping.rules import ClippingRule
from tacit.errors import check_integer
from tacit.models.networks import Logistic

_SHARE = 1 / 11  # share of the steps that learn mean and spread; averages of the others get 5 % more noise
_OF_DISTANCE = 1.5  # spread / mean distance: 1.25 for a normal distribution, more for long tails
_LEAST_SPREAD = 0.003  # for targets in [-1, 1]


class Binned(nn.Module):
    """Appends to each of d columns a one-hot code of its bin, among bins of equal width.

    A linear model of these inputs is a sum of one curve per column: a generalized additive model (Hastie and
    Tibshirani, 1986).

    Shapes: (n, d) in [-1, 1] to (n, d (bins + 1)).

    >>> Binned(3)(torch.tensor([[-1.0, 0.5]]))
    tensor([[-1.0000,  1.0000,  0.0000,  0.0000,  0.5000,  0.0000,  0.0000,  1.0000]])
    """

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = check_integer("bins", bins, low=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the columns with the codes of their bins.  Each bin includes its lower edge."""
        numbers = ((inputs + 1) / 2 * self.bins).floor().clamp(0, self.bins - 1)
        places = torch.arange(self.bins, device=inputs.device, dtype=inputs.dtype)
        within = (numbers[..., None] == places).to(inputs.dtype)
        return torch.cat([inputs[..., None], within], dim=-1).flatten(1)


class Planned(Protocol):
    """The attributes of a :class:`tacit.plan.Plan` that the model reads."""

    @property
    def steps(self) -> int: ...
    @property
    def clipping(self) -> ClippingRule: ...
    @property
    def expected_batch_size(self) -> float: ...
    @property
    def gradient_noise_multiplier(self) -> float: ...


class StandardLinear(nn.Module):
    """A linear model of targets in [-1, 1] that first learns their mean and spread, then its weights.

    Bounds of a target that are chosen without the data are wide.  The errors of a model are then far smaller
    than a clipping norm that fits the bounds, and noise in proportion to that norm is wasteful.  Therefore
    the first steps release only the mean of y and the mean distance from it.  The other steps train on
    (y - mean) / spread.  :meth:`begin_step` decides which step does what.

    Args:
        inputs: f, the number of inputs.
        outputs: k, the number of targets.
        normalise: whether to bring each record to mean 0 and variance 1, which costs no privacy.

    **Guarantee**

    * In the first steps, the gradient of a record's loss is -C y / sqrt(k), and then
      -C |y - mean| / (2 sqrt(k)).  Its norm is at most C for targets in [-1, 1].  In the other steps it is
      the gradient of a squared error.  All these gradients are clipped, released and accounted for as usual.
      Mean and spread are read from released weights.

    Shapes: :meth:`forward` maps (n, f) inputs to (n, k) predictions, or with (n, k) targets to (n,) losses.

    >>> model = StandardLinear(3, 1)
    >>> model(torch.ones(2, 3)).shape, model(torch.ones(2, 3), torch.ones(2, 1)).detach()
    (torch.Size([2, 1]), tensor([0.5000, 0.5000]))
    """

    phase: Tensor
    scale: Tensor
    least: Tensor

    def __init__(self, inputs: int, outputs: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.layer = Logistic(inputs, outputs, normalise=normalise)
        self.about_mean = nn.Linear(outputs, 1, bias=False)  # C / sqrt(k) times the mean of y
        self.about_spread = nn.Linear(outputs, 1, bias=False)  # half of that times the mean of |y - mean|
        nn.init.zeros_(self.about_mean.weight)
        nn.init.zeros_(self.about_spread.weight)
        self.register_buffer("phase", torch.zeros(()))  # 0 for the mean, 1 for the spread, 2 for the rest
        self.register_buffer("scale", torch.tensor(1.0 / math.sqrt(outputs)))
        self.register_buffer("least", torch.tensor(_LEAST_SPREAD))

    def for_plan(self, plan: Planned) -> None:
        """Read public facts from a plan: its clipping norm, and the least spread that exceeds its noise."""
        self.scale.fill_(plan.clipping.norm / math.sqrt(self.about_mean.in_features))
        noise = 2 * plan.gradient_noise_multiplier / plan.expected_batch_size
        noise_floor = _OF_DISTANCE * noise / math.sqrt(_steps_of(plan.steps)[1])
        self.least.fill_(min(max(_LEAST_SPREAD, noise_floor), 1.0))

    def mean_and_spread(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the spread of the targets, (k,) each, according to the weights."""
        mean = (self.about_mean.weight.detach()[0] / self.scale).clamp(-1.0, 1.0)
        spread = _OF_DISTANCE * 2 * self.about_spread.weight.detach()[0] / self.scale
        return mean, spread.clamp_min(self.least).clamp_max(1.0)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return (n, k) predictions, or (n,) losses if targets are given."""
        mean, spread = self.mean_and_spread()
        standard = self.layer(inputs)
        if targets is None:
            predictions: Tensor = mean + spread * standard
            return predictions
        y = targets.reshape(standard.shape)
        of_mean = -self.scale * self.about_mean(y).squeeze(-1)
        of_spread = -self.scale / 2 * self.about_spread((y - mean).abs()).squeeze(-1)
        error = (standard - (y - mean) / spread).square().sum(-1) / 2
        begun = torch.where(self.phase == 0, of_mean, of_spread)
        losses: Tensor = torch.where(self.phase == 2, error, 0.5 + begun - begun.detach())
        return losses

    def begin_step(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
        """Decide whether a step releases the mean, releases the spread, or trains the linear layer.

        Args:
            optimizer: the run's optimizer, made from :meth:`groups`.  The learning rates of groups that do
                not train in this step are set to 0.
            step: the step's number, from 0.
            steps: the number of steps of the run.
        """
        mean, spread = _steps_of(steps)
        phase = 0 if step < mean else 1 if step < mean + spread else 2
        self.phase.fill_(float(phase))
        for group in optimizer.param_groups:
            usual = group.setdefault("usual", (group["lr"], group.get("momentum", 0.0)))
            rate, momentum = {0: (1 / mean, 0.0), 1: (1 / spread, 0.0), 2: usual}[group["phase"]]
            group["lr"] = rate if group["phase"] == phase else 0.0
            if "momentum" in group:
                group["momentum"] = momentum if group["phase"] == phase else 0.0

    def groups(self) -> list[dict[str, object]]:
        """Return the parameter groups from which to make the optimizer, as :meth:`begin_step` needs them."""
        return [
            {"params": list(self.layer.parameters()), "phase": 2},
            {"params": list(self.about_mean.parameters()), "phase": 0, "weight_decay": 0.0},
            {"params": list(self.about_spread.parameters()), "phase": 1, "weight_decay": 0.0},
        ]


def _steps_of(steps: int) -> tuple[int, int]:
    """Return how many of a run's steps release the mean, and how many release the spread."""
    both = max(2, round(steps * _SHARE))
    return both - both // 2, both // 2


def standard_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the (n,) losses of a :class:`StandardLinear`."""
    losses: Tensor = model(inputs, targets)
    return losses
