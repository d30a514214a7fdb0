"""Losses, the clipped sum by its definition and by an engine, and how far one record moves it.

Letters: C the threshold; i the record that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine, RawStatistics
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.plan import Plan
from tacit.training import PrivateSession

both = pytest.mark.parametrize("kind", [FastEngine, ReferenceEngine])
Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def waves(model: nn.Module, *batch: Tensor) -> Tensor:
    """A loss whose gradient has another size and direction at each number of the output, and in each row."""
    result = model(*batch)
    out: Tensor = (result[0] if isinstance(result, tuple) else result).flatten(1)
    weights = torch.linspace(0.2, 1.0, out.shape[1], dtype=out.dtype, device=out.device)
    return (out * weights).sum(1).sin() + (out**2).mean(1)


def by_definition(
    model: nn.Module, loss: Loss, batch: Batch, C: float, views: int = 1, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """The clipped sum by one backward pass of autograd for each record, by name."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=dtype) for name, p in parameters.items()}
    for start in range(0, len(batch[0]), views):
        losses = loss(model, *(t[start : start + views] for t in batch))
        gradients = torch.autograd.grad(
            losses.mean(), list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        norm = float(torch.cat([g.flatten().double() for g in gradients]).norm())
        for name, g in zip(parameters, gradients, strict=True):
            total[name] += g.to(dtype) * min(1.0, C / max(norm, 1e-300))
    return total


def definition(model: nn.Module, loss: Loss, batch: Batch, C: float, views: int = 1) -> Tensor:
    """The same, all parameters in a row."""
    return torch.cat([g.flatten() for g in by_definition(model, loss, batch, C, views).values()])


def step(
    engine: GradientEngine,
    *batch: Tensor,
    mask: Tensor | None = None,
    into: dict[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[dict[str, Tensor], RawStatistics]:
    """The clipped sums of a batch by an engine, by name, in the parameters' own types, and its statistics."""
    if into is None:
        into = {name: torch.zeros_like(p, dtype=dtype) for name, p in engine.parameters.items()}
    C = torch.tensor(engine.rule.initial_thresholds(engine.names), dtype=torch.float64)
    return into, engine.add_clipped_sum(into, batch, mask, C)


def sums_of(engine: GradientEngine, *batch: Tensor, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The clipped sum by an engine, by name."""
    return step(engine, *batch, dtype=dtype)[0]


def norms_found(engine: GradientEngine, *batch: Tensor) -> Tensor:
    """(n,) norms by an engine."""
    return step(engine, *batch)[1].raw_norms[:, 0]


def equal(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.to(found[name]), rtol=rtol, atol=atol, msg=name)


def clipped_sum(engine: GradientEngine, *batch: Tensor, C: float) -> Tensor:
    """The same by an engine, in the parameters' order."""
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, batch, None, torch.tensor([C], dtype=torch.float64))
    return torch.cat([value.flatten() for value in sums.values()])


def plan(records: int, **changes: Any) -> Plan:
    """A plan for a session of a test."""
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 2, "clipping": 1.0}
    return Plan.with_noise(records=records, adjacency="add-remove", unit="row", **(settings | changes))


def run(session: PrivateSession) -> None:
    """All steps of a session."""
    for batch in session.batches():
        session.step(batch)


class OwnRule(torch.autograd.Function):
    """The identity for one record; the rules for vmap of its kinds are given all records."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0]


def moved_by(
    make: Callable[[], nn.Module],
    loss: Loss,
    batches: Sequence[Batch],
    i: int,
    C: float,
    *,
    kind: type[GradientEngine] = FastEngine,
    changed: int = -1,
) -> float:
    """By how many C record i of the ``changed`` batch moves the sums of a run, from it to the last."""
    found = []
    for without in (False, True):
        torch.manual_seed(1)
        engine = kind(make(), loss, FlatClipping(C))
        sums = []
        for number, batch in enumerate(batches):
            if without and number == changed % len(batches):
                batch = tuple(torch.cat([t[:i], t[i + 1 :]]) for t in batch)
            sums.append(clipped_sum(engine, *batch, C=C))
        found.append(torch.cat(sums[changed % len(batches) :]))
    return float((found[0] - found[1]).norm()) / C
