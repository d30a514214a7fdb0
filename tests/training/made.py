"""What most tests of training begin with: a plan, losses, steps, and the weights after them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from regression import Recorder
from torch import Tensor, nn

from tacit.plan import Plan
from tacit.training import PrivateSession

Run = TypeVar("Run", bound=PrivateSession)


def a_plan(**changes: Any) -> Plan:
    """12 steps of 20 out of 60 records, at noise multiplier 1 and clipping norm 0.5."""
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "records": 60,
        "batch_size": 20,
        "steps": 12,
        "clipping": 0.5,
        "adjacency": "add-remove",
        "unit": "row",
    }
    return Plan.with_noise(**{**settings, **changes})


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(n,) cross entropies."""
    return F.cross_entropy(model(x), y, reduction="none")


def sums_of(run: PrivateSession, steps: int | None = None) -> list[Tensor]:
    """(P,) the sum that each step released, before the divisor, of a session with a ``Recorder``."""
    finish(run, steps)
    assert isinstance(run.optimizer, Recorder)
    flat = [torch.cat([g.flatten() for g in step if g is not None]) for step in run.optimizer.steps]
    return [run.plan.expected_batch_size * step for step in flat]


def finish(run: Run, steps: int | None = None) -> Run:
    """Take the steps that are left, or until so many are done."""
    for ticket in run.batches():
        run.step(ticket)
        if run.steps_done == steps:
            break
    return run


def weights(net: nn.Module | PrivateSession) -> Tensor:
    """(P,) all of a model's, or of the model of a session."""
    model = net.model if isinstance(net, PrivateSession) else net
    return torch.cat([p.detach().flatten() for p in model.parameters()])
