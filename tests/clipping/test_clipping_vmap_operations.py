"""Operations for which torch has no batching rule: rewritten by the engine, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import by_definition, equal, step
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.errors import UnsupportedModel

Forward = Callable[[nn.Module, Tensor], Tensor]
C = 0.5


def scattered(h: Tensor, *value: Any, **named: Any) -> Tensor:
    """Return a mask of the two largest values, like a router."""
    mask = torch.zeros_like(h)
    mask.scatter_(1, h.topk(2, dim=1).indices, *value, **named)
    h = h.sin()  # whose numbers are changed in place, so that no gradient reaches those
    h.scatter_(1, h.argmin(1, keepdim=True), 0.5)
    return h * mask


def images(h: Tensor, dimensions: int) -> Tensor:
    """As a transformer has them, with the channels last in memory."""
    last = torch.stack([h, h.sin()], 2).transpose(1, 2)
    for _ in range(dimensions - 1):
        last = last.unsqueeze(2)
    return last


PLACES = torch.tensor([[0, 2]])
FORWARDS: dict[str, Forward] = {
    "scatter a number": lambda m, x: scattered(m(x), 1),
    "scatter a number by name": lambda m, x: scattered(m(x), value=2.0),
    "scatter at places in common": lambda m, x: m(x).sin().scatter_(1, PLACES.expand(len(x), 2), 3.0),
    "pool 1": lambda m, x: F.adaptive_avg_pool1d(images(m(x), 1), 3),
    "pool 1, to one": lambda m, x: torch.adaptive_avg_pool1d(images(m(x), 1), 1),
    "pool 2": lambda m, x: F.adaptive_avg_pool2d(images(m(x), 2), (1, 2)),
    "pool 2, to one": lambda m, x: F.adaptive_avg_pool2d(images(m(x), 2), 1),
    "pool 3": lambda m, x: F.adaptive_avg_pool3d(images(m(x), 3), (1, 1, 2)),
}


SIZED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nonzero": (lambda h: h * h.nonzero().shape[0], "the size of the result of nonzero depends on"),
    # of records that are alike, for which torch's fallback would give a size
    "counts": (lambda h: torch.bincount((h > 0).long()).sum() * h, "no batching rule for aten::bincount"),
    "repeats": (
        lambda h: h * torch.repeat_interleave(torch.ones(3), (h > 0).long()).sum(),
        "no batching rule for aten::repeat_interleave",
    ),
    "a mask": (
        lambda h: h + h[h > 0].sum(),
        "the size of the result of indexing with a boolean mask depends",
    ),
}


@pytest.mark.parametrize(("function", "reason"), SIZED.values(), ids=SIZED)
def test_results_whose_size_depends_on_values_are_refused(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    engine = FastEngine(
        nn.Linear(3, 3), lambda m, x: torch.stack([function(m(r)) for r in x]).sum(1), FlatClipping(C)
    )
    with pytest.raises(UnsupportedModel, match=reason):
        step(engine, torch.ones(4, 3))


@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_they_are_fast_and_equal_a_loop(forward: Forward) -> None:
    model = nn.Linear(4, 6).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    x[1:3, :2], x[4] = 0.0, x[4, :1]  # of which some are told another thing than others

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        found = forward(m, x).flatten(1)
        return (found * torch.linspace(0.5, 1.0, found.shape[1], dtype=found.dtype)).square().sum(1)

    engine = FastEngine(model, loss, FlatClipping(C))
    equal(step(engine, x)[0], by_definition(model, loss, (x,), C), rtol=1e-10)
    assert engine.route == "fast"
