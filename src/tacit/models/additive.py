"""Linear models of tables: numbers in bins beside themselves, and targets whose spread is learnt first.

Letters: n records; d columns; f inputs; k targets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tacit.errors import check_integer, check_real
from tacit.models.networks import Logistic

_SHARE = 1 / 11  # of a run's steps, for mean and spread: a twentieth more noise in the others
_LEAST_SPREAD = 0.003  # of targets in [-1, 1]: noise may leave less


class Binned(nn.Module):
    """Each of d columns, and one input more for each of its bins of equal width.

    A linear model of these is a sum of one curve for each column: a generalized additive model (Hastie and
    Tibshirani, 1986).

    Shapes: (n, d) in [-1, 1] to (n, d (bins + 1)).

    >>> Binned(3)(torch.tensor([[-1.0, 0.5]]))
    tensor([[-1.0000,  1.0000,  0.0000,  0.0000,  0.5000,  0.0000,  0.0000,  1.0000]])
    """

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = check_integer("bins", bins, low=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """The columns with their bins; a bin begins at its edge."""
        numbers = ((inputs + 1) / 2 * self.bins).floor().clamp(0, self.bins - 1)
        places = torch.arange(self.bins, device=inputs.device, dtype=inputs.dtype)
        within = (numbers[..., None] == places).to(inputs.dtype)
        return torch.cat([inputs[..., None], within], dim=-1).flatten(1)


class StandardLinear(nn.Module):
    """A linear model of numbers in [-1, 1], which first learns their mean and their spread, then the rest.

    Bounds of a target that are known without the data are wide.  Errors of a model are then far shorter than
    a clipping norm that fits the bounds, and most noise is for nothing.  So the first steps of a run, as
    :meth:`begin_step` divides it, release the means of y and y^2 alone, and the others train on
    (y - mean) / spread.

    Args:
        inputs: f.
        outputs: k.
        clipping_norm: C of the run.

    **Guarantee**

    * A record's loss has the gradient -C (y, y^2) / sqrt(2 k) in the first steps, whose norm is at most C for
      targets in [-1, 1], and the usual one of a squared error in the others.  Both are clipped, released and
      priced as any step; mean and spread come from released weights.

    Shapes: :meth:`forward` takes (n, f) inputs to (n, k) predictions; with (n, k) targets to (n,) losses.

    >>> model = StandardLinear(3, 1)
    >>> model(torch.ones(2, 3)).shape, model(torch.ones(2, 3), torch.ones(2, 1))
    (torch.Size([2, 1]), tensor([0.5000, 0.5000], grad_fn=<AddBackward0>))
    """

    first: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, *, clipping_norm: float = 1.0) -> None:
        super().__init__()
        norm = check_real("clipping_norm", clipping_norm, low=0.0, open_low=True)
        self.register_buffer("scale", torch.tensor(norm / math.sqrt(2 * outputs)))
        self.layer = Logistic(inputs, outputs)
        self.about = nn.Linear(2 * outputs, 1, bias=False)  # C / sqrt(2 k) times the means of y and y^2
        nn.init.zeros_(self.about.weight)
        self.register_buffer("first", torch.ones(()))  # 1 while mean and spread are learnt, then 0

    def mean_and_spread(self) -> tuple[Tensor, Tensor]:
        """(k,) each, by the weights."""
        mean, square = (self.about.weight.detach()[0] / self.scale).chunk(2)
        mean = mean.clamp(-1.0, 1.0)
        return mean, (square - mean.square()).clamp(_LEAST_SPREAD**2, 1.0).sqrt()

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """(n, k) predictions, or with targets (n,) losses."""
        mean, spread = self.mean_and_spread()
        standard = self.layer(inputs)
        if targets is None:
            predictions: Tensor = mean + spread * standard
            return predictions
        y = targets.reshape(standard.shape)
        about = -self.scale * self.about(torch.cat([y, y.square()], dim=-1)).squeeze(-1)
        error = (standard - (y - mean) / spread).square().sum(-1) / 2
        losses: Tensor = self.first * (0.5 + about - about.detach()) + (1 - self.first) * error
        return losses

    def begin_step(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
        """Let a step release mean and spread, or train the rest; ``optimizer`` is by :meth:`groups`.

        Args:
            optimizer: of the run; each group that is at rest has a learning rate of 0.
            step: 0 for the first of ``steps``.
        """
        released = max(1, round(steps * _SHARE))
        self.first.fill_(float(step < released))
        for group in optimizer.param_groups:
            of_spread = group["of_spread"]
            group.setdefault("usual", (group["lr"], group.get("momentum", 0.0)))
            rate, momentum = (1 / released, 0.0) if of_spread else group["usual"]
            active = of_spread == (step < released)
            group["lr"] = rate if active else 0.0
            if "momentum" in group:
                group["momentum"] = momentum if active else 0.0

    def groups(self) -> list[dict[str, object]]:
        """The weights in the groups that :meth:`begin_step` wants of an optimizer."""
        return [
            {"params": list(self.layer.parameters()), "of_spread": False},
            {"params": list(self.about.parameters()), "of_spread": True, "weight_decay": 0.0},
        ]


def standard_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) losses of a :class:`StandardLinear`."""
    losses: Tensor = model(inputs, targets)
    return losses
