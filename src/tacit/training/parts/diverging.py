"""When does training make no sense any more? When weights are NaN, or the noisy loss stays at its bound.

Both are read off what steps release, weights and noisy losses, so it costs no privacy to say so.  That single
records have a gradient of NaN is not said: it would tell something of these records.  They add nothing to a
step (:mod:`tacit.clipping.engine`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import final

import torch
from torch import nn

from tacit.errors import Diverged, LossWarning
from tacit.plan import Plan
from tacit.training.ranks.layout import Layout

_AT_BOUND = 0.97  # of the bound: the mean of losses that all lie at it, less what noise may take off
_PRECISION = 0.02  # of the bound: the standard error of the mean that is judged
_SHOWN = 3
_TOGETHER = 10  # steps


def check_weights(
    trained: Mapping[str, nn.Parameter], step: int, optimizer: torch.optim.Optimizer, layout: Layout
) -> None:
    """Refuse to go on with weights that are NaN or infinite: all later gradients would be, and count nothing.

    It checks the first ten steps, and then every tenth, as a small model's step takes little longer.

    Raises:
        Diverged: some weights are; the message names them and the step.
    """
    if step >= _TOGETHER and step % _TOGETHER != _TOGETHER - 1:
        return
    with torch.no_grad():
        weights = [layout.local(weight) for weight in trained.values()]
        device = weights[0].device
        sums = torch.stack([weight.sum(dtype=torch.float32).to(device) for weight in weights])
        layout.add_up(sums)
        if math.isfinite(float(sums.sum())):  # one number to wait for
            return
        counts = torch.stack([(~weight.isfinite()).sum(dtype=torch.float32).to(device) for weight in weights])
        layout.add_up(counts)
        wrong = [name for name, count in zip(trained, counts.tolist(), strict=True) if count]
    if not wrong:  # their sum alone is too large
        return
    rates = ", ".join(
        sorted({f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group})
    )
    when = f"step {step}" if step < _TOGETHER else f"step {step}, or one of the nine before"
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise Diverged(
        f"weights are NaN or infinite after {when}: {', '.join(wrong[:_SHOWN])}{more}. Each later loss "
        "would be NaN, and later steps would spend budget on noise alone, so training ends here; what the "
        "steps so far cost stays spent. The weights of a step are public, so this says nothing of "
        "single records. Go on from an earlier saved state, or begin a new run, with a lower learning rate "
        f"(now {rates or 'not known'}); keep narrow weights (float16) in float32; look for a "
        "division, log or sqrt in the model that may meet zero."
    )


@final
class LossWatch:
    """Says once that the noisy loss stays at the bound of its report: losses are too large, or are NaN.

    It judges the mean of so many steps that its standard error is 2 % of the bound.
    """

    def __init__(self, plan: Plan) -> None:
        self._bound = 0.0 if plan.loss_report is None else plan.loss_report.bound
        batch = plan.expected_batch_size
        noise = (plan.loss_noise or 0.0) / batch
        self._steps = math.ceil((noise**2 + 0.25 / batch) / _PRECISION**2)  # 1/4: of the size of the batch
        self._said = False
        self._count, self._sum = 0, 0.0

    def take(self, loss: float | None) -> None:
        """Take in the noisy loss of a step."""
        if loss is None or self._said:
            return
        self._count, self._sum = self._count + 1, self._sum + loss
        if self._count < self._steps:
            return
        mean, self._count, self._sum = self._sum / self._count, 0, 0.0
        if mean < _AT_BOUND * self._bound:
            return
        self._said = True
        warnings.warn(
            f"the noisy training loss of the last {self._steps} steps lies at its bound, {self._bound:g}: "
            "the losses are larger than that, or they are NaN. A record whose gradient is NaN adds "
            "nothing to a step, so the model may be learning from noise alone. Try model and loss on records "
            "of your own making; look for a division, log or sqrt that may meet zero; lower the learning "
            "rate. If losses are that large, raise the bound: Plan's loss_report=LossReport(bound=...), "
            "which is [privacy] loss_bound in a configuration.",
            LossWarning,
            stacklevel=3,
        )
