"""The start of most tests of training: a plan, losses, steps, and the weights after them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from regression import Recorder
from torch import Tensor, nn

from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.noise.gaussian import StepNoise
from tacit.plan import Plan
from tacit.testing import seeded_generator
from tacit.training import PrivateSession
from tacit.training.step import StepReport

Run = TypeVar("Run", bound=PrivateSession)


def a_plan(**changes: Any) -> Plan:
    """Return a plan of 12 steps of 20 out of 60 records, at noise multiplier 1 and clipping norm 0.5."""
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


def table(
    count: int = 60, columns: int = 4, classes: int = 2, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return numbers (n, d) and classes (n,), drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, columns, generator=generator, dtype=dtype)
    return x, torch.randint(0, classes, (count,), generator=generator)


def network(*widths: int, seed: int = 1) -> nn.Module:
    """Return linear layers with tanh between them, or one alone; torch's generator stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(i, o) for i, o in itertools.pairwise(widths)]
    between = [part for layer in layers for part in (layer, nn.Tanh())]
    return layers[0] if len(layers) == 1 else nn.Sequential(*between[:-1])


def a_session(
    net: nn.Module, data: Any, plan: Plan, *, lr: float = 0.5, momentum: float = 0.0, **settings: Any
) -> PrivateSession:
    """Return a session by gradient descent, with cross entropies and a fixed key; ``settings`` may differ."""
    optimizer = settings.pop("optimizer", None)
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    settings = {"loss": losses, "generator": seeded_generator(8), **settings}
    return PrivateSession(net, optimizer, data, plan, **settings)


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions release their sums without noise."""
    monkeypatch.setattr(StepNoise, "fill_each", lambda noise, outs: [out.zero_() for out in outs.values()])


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return (n,) cross entropies."""
    return F.cross_entropy(model(x), y, reduction="none")


def sums_of(run: PrivateSession, steps: int | None = None) -> list[Tensor]:
    """Return the sums (P,) that the steps released, before the divisor; the session has a ``Recorder``."""
    return recorded(finish(run, steps))


def recorded(run: PrivateSession) -> list[Tensor]:
    """Return the sums of the steps that are done."""
    assert isinstance(run.optimizer, Recorder)
    flat = [torch.cat([g.flatten() for g in step if g is not None]) for step in run.optimizer.steps]
    return [run.plan.expected_batch_size * step for step in flat]


def one_step(run: PrivateSession) -> StepReport:
    """Take the next step."""
    return run.step(next(run.batches()))


def a_ledger(place: Path | str = "sqlite://", dataset: str = "rows", **policy: Any) -> Ledger:
    """Return a new ledger with a data set of rows, and a budget of 50."""
    ledger = Ledger.create(place)
    budget = RenyiBudget(epsilon=50.0, delta=1e-3)
    settings = {"unit": "row", "adjacency": "add-remove", "budget": budget, **policy}
    ledger.open_dataset(dataset, Policy(**settings))
    return ledger


def finish(run: Run, steps: int | None = None) -> Run:
    """Take the steps that are left, or those up to a number."""
    for ticket in run.batches():
        run.step(ticket)
        if run.steps_done == steps:
            break
    return run


def weights(net: nn.Module | PrivateSession) -> Tensor:
    """Return all weights (P,) of a model, or of the model of a session."""
    model = net.model if isinstance(net, PrivateSession) else net
    return torch.cat([p.detach().flatten() for p in model.parameters()])
