"""A net whose passes are captured, and steps of it with CUDA graphs and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import captured
from tacit.clipping.engine import RawStatistics
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import FlatClipping

SIZES = [18, 17, 18, 17, 18, 17]
"""Of batches that are padded alike, of which the third is captured."""
GRAPHS, PLAIN = "fast, by CUDA graphs", "fast, without CUDA graphs: "
C, SCALE = 0.5, 0.1


class Net(nn.Module):
    """Two maps of a sequence, attention between them, dropout; numbers and tensors that a user may change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.LayerNorm(4), nn.Linear(4, 3)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("shift", torch.full((4,), 0.1))
        self.table, self.rate, self.times = torch.ones(4), 1.0, 1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.first(self.drop(x)).chunk(3, -1)
        y = self.norm(F.scaled_dot_product_attention(q, k, v)) * self.table + self.shift
        return torch.as_tensor(self.last(self.drop(y)).mean(1) * (self.rate * self.times))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def batch(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, 6, generator=draws), torch.randint(3, (n,), generator=draws)


def make(of: Callable[..., Tensor] = loss, model: nn.Module | None = None) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Net() if model is None else model, of, FlatClipping(C))


def step(
    engine: FastEngine,
    rows: tuple[Tensor, ...],
    seed: int = 7,
    into: Mapping[str, Tensor] | None = None,
    threshold: float = C,
    scale: float = SCALE,
) -> tuple[Mapping[str, Tensor], RawStatistics]:
    """One step, with its own random numbers, as a session takes it."""
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()} if into is None else into
    torch.manual_seed(seed)
    return sums, engine.add_clipped_sum(sums, rows, None, torch.tensor([threshold]), scale=scale)


def warm(engine: FastEngine) -> FastEngine:
    """Take steps until there is a graph."""
    for number, n in enumerate(SIZES[:3]):
        step(engine, batch(n, number))
    assert engine.route == GRAPHS
    return engine


def plainly(engine: FastEngine, *args: Any, **kwargs: Any) -> tuple[Mapping[str, Tensor], RawStatistics]:
    """The same step without graphs, by a new engine."""
    other = FastEngine(engine.model, engine.per_example_loss, engine.rule, views=engine.views)
    other._captured._give_up(captured._NotCaptured("for comparison"))
    return step(other, *args, **kwargs)


def check(engine: FastEngine, *args: Any, **kwargs: Any) -> None:
    """The next step is, to the last bit, what it is without graphs, and so are later random numbers."""
    sums, raw = step(engine, *args, **kwargs)
    later = torch.get_rng_state()
    wanted, plain = plainly(engine, *args, **kwargs)
    assert torch.equal(later, torch.get_rng_state())
    for name, total in wanted.items():
        torch.testing.assert_close(sums[name], total, rtol=0, atol=0, msg=name)
    torch.testing.assert_close(raw.raw_norms, plain.raw_norms, rtol=0, atol=0)
    torch.testing.assert_close(raw.raw_losses, plain.raw_losses, rtol=0, atol=0)
