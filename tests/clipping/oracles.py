"""The clipped sum by its definition, by an engine, and how far one record moves it.

Letters: C the threshold; i the record that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine

__all__ = ["Loss", "clipped_sum", "definition", "moved_by"]

Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]


def definition(model: nn.Module, loss: Loss, batch: Batch, C: float, views: int = 1) -> Tensor:
    """The clipped sum by one backward pass of autograd for each record, all parameters in a row."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for start in range(0, len(batch[0]), views):
        losses = loss(model, *(t[start : start + views] for t in batch))
        gradients = torch.autograd.grad(losses.mean(), parameters, allow_unused=True, materialize_grads=True)
        g = torch.cat([part.flatten() for part in gradients]).double()
        total += g * min(1.0, C / max(float(g.norm()), 1e-300))
    return total


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
