"""The clipped sum by its definition, by an engine, and how far one record moves it.

Letters: C the threshold; i the record that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine

__all__ = ["Loss", "by_definition", "clipped_sum", "definition", "equal", "moved_by", "sums_of"]

Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]


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


def sums_of(engine: GradientEngine, *batch: Tensor, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The clipped sum by an engine, by name."""
    sums = {name: torch.zeros_like(p, dtype=dtype) for name, p in engine.parameters.items()}
    C = torch.tensor(engine.rule.initial_thresholds(engine.names), dtype=torch.float64)
    engine.add_clipped_sum(sums, batch, None, C)
    return sums


def equal(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.to(found[name]), rtol=rtol, atol=atol, msg=name)


def clipped_sum(engine: GradientEngine, *batch: Tensor, C: float) -> Tensor:
    """The same by an engine."""
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, batch, None, torch.tensor([C], dtype=torch.float64))
    return torch.cat([value.flatten() for value in sums.values()])


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
