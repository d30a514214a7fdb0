"""Discrete-time survival models: a logistic hazard for each declared time bin.

A model outputs the log odds of hazards relative to 1 / (2 K) in each bin.  Otherwise a network that starts
near zero would begin with hazards of one half, and learn little but the constants.

Letters: n records; f inputs; K bins, which contain their lower edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.models.additive import InPhases, Planned
from tacit.models.networks import Logistic

_SHARE = 0.05  # of the steps, which release the ends of records by bin
_LEAST_HAZARD, _LARGEST_HAZARD = 1e-3, 0.9


def watched_and_ended(targets: Tensor, edges: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return for each record and bin whether the record was at risk, and whether its event was in the bin.

    A censored record is at risk in the bins whose middle it reached.

    Shapes: ``targets`` (n, 2) are times and events, 0 or 1; the results are (n, K) zeros and ones.

    >>> watched, ended = watched_and_ended(torch.tensor([[5.0, 1.0], [5.0, 0.0]]), (0.0, 4.0, 8.0))
    >>> watched.tolist(), ended.tolist()
    ([[1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]])
    """
    times, events = targets[..., :1], targets[..., 1:]
    ends = torch.tensor(edges, dtype=targets.dtype, device=targets.device)
    lower, middle = ends[:-1], (ends[:-1] + ends[1:]) / 2
    # a record censored exactly in the middle of a bin was watched for half of it
    watched = (times > torch.where(events > 0, lower, middle)) | ((events > 0) & (times == lower))
    numbers = watched.to(targets.dtype)
    return numbers, events * (numbers - F.pad(numbers[..., 1:], (0, 1)))


def survival_loss(edges: Sequence[float]) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return the negative log-likelihood of a record, the sum of the logistic losses of its bins at risk.

    The loss maps a model of (n, K) outputs, (n, ...) inputs, and (n, 2) times and events to (n,).
    """

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        watched, ended = watched_and_ended(targets, edges)
        if isinstance(model, LinearHazard):
            losses: Tensor = model.losses(inputs, watched, ended)
            return losses
        return _sum_at_risk(model(inputs), watched, ended)

    return loss


def _sum_at_risk(outputs: Tensor, watched: Tensor, ended: Tensor) -> Tensor:
    logits = outputs + _start(outputs.shape[-1])
    each = F.binary_cross_entropy_with_logits(logits, ended, reduction="none")
    return (each * watched).sum(-1)


def _start(bins: int) -> float:
    return -math.log(2 * bins - 1)


def survival_of(outputs: Tensor) -> Tensor:
    """Return the probability of surviving beyond each bin, (n, K), from a model's outputs (n, K).

    >>> survival_of(torch.zeros(1, 2)).tolist()
    [[0.75, 0.5625]]
    """
    logits = outputs.double() + _start(outputs.shape[-1])
    return F.logsigmoid(-logits).cumsum(-1).exp()


def mean_time(survival: Tensor, edges: Sequence[float]) -> Tensor:
    """Return the mean time until the event or the last edge, whichever comes first, (n,).

    It is the area under the curve through the points of (n, K) ``survival`` at the upper edges.

    >>> mean_time(torch.tensor([[0.5, 0.0]]), (0.0, 1.0, 2.0)).tolist()
    [1.0]
    """
    whole = torch.cat([torch.ones_like(survival[..., :1]), survival], dim=-1)
    return edges[0] + torch.trapezoid(whole, torch.tensor(edges, dtype=survival.dtype), dim=-1)


class LinearHazard(InPhases):
    """A linear model of the log odds of hazards: one constant for each bin, and slopes shared by all bins.

    The first steps release the number of records that ended in each bin, by an event or not, for the K
    baseline hazards.  The other steps learn the slopes and one constant.  Separate slopes for each bin would
    need K times as many weights; on two tables their noise outweighed their gain.

    **Guarantee**

    * In the first steps, the gradient of a record's loss is -C times a one-hot code of its bin and event, of
      norm at most C.  In the other steps it is that of the likelihood.  All these gradients are clipped,
      released and accounted for as usual.  The baseline is read from released weights.

    Shapes: :meth:`forward` maps (n, ...) inputs to (n, K) outputs.

    >>> model = LinearHazard(3, 20)
    >>> model(torch.ones(2, 3)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 20]), 44)
    """

    phase_of = MappingProxyType({"layer": 1, "about_ends": 0})
    norm: Tensor
    least: Tensor

    def __init__(self, inputs: int, bins: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.layer = Logistic(inputs, 1, normalise=normalise)
        self.about_ends = nn.Linear(2 * bins, 1, bias=False)  # C times the shares of events, then of others
        for weights in self.parameters():
            nn.init.zeros_(weights)
        self.register_buffer("phase", torch.ones(()))  # 0 for the ends, 1 for the layer
        self.register_buffer("norm", torch.ones(()))
        self.register_buffer("least", torch.tensor(_LEAST_HAZARD))

    def for_plan(self, plan: Planned) -> None:
        """Read the clipping norm and the smallest share above the noise from a plan."""
        self.norm.fill_(plan.clipping.norm)
        noise = plan.gradient_noise_multiplier / plan.expected_batch_size / math.sqrt(_first(plan.steps))
        self.least.fill_(min(max(_LEAST_HAZARD, noise), 0.5))

    def baseline(self) -> Tensor:
        """Return the hazard of each bin, (K,), according to the weights of the first steps."""
        events, others = (self.about_ends.weight.detach()[0] / self.norm).chunk(2)
        at_risk = (events + others).flip(0).cumsum(0).flip(0)
        hazards = events.clamp_min(self.least / len(events)) / at_risk.clamp_min(
            self.least * math.sqrt(2 * len(events))
        )
        return hazards.clamp(_LEAST_HAZARD, _LARGEST_HAZARD)

    def forward(self, inputs: Tensor) -> Tensor:
        baseline = torch.logit(self.baseline())
        outputs: Tensor = self.layer(inputs) + baseline - _start(len(baseline))
        return outputs

    def losses(self, inputs: Tensor, watched: Tensor, ended: Tensor) -> Tensor:
        """Return the losses (n,) of the step's phase, from (n, K) bins at risk and bins with the event."""
        last = watched - F.pad(watched[..., 1:], (0, 1))
        ends = -self.norm * self.about_ends(torch.cat([ended, last - ended], dim=-1)).squeeze(-1)
        likelihood = _sum_at_risk(self(inputs), watched, ended)
        return torch.where(self.phase == 0, ends - ends.detach() + likelihood.detach(), likelihood)

    def part_of(self, step: int, steps: int) -> tuple[int, Mapping[int, float]]:
        """Return the phase of a step, 0 for the counts and 1 for the layer, and the first's learning rate."""
        first = _first(steps)
        return int(step >= first), {0: 1 / first}


def _first(steps: int) -> int:
    return max(1, round(steps * _SHARE))
