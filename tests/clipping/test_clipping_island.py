"""Operations without a rule: fast by the record's own rows, or to the reference engine; right in both."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import HANDLERS, FastEngine
from tacit.clipping.layers.island import island
from tacit.clipping.layers.tape import Tape, Unseen

C = 0.3
Function = Callable[[nn.Parameter, Tensor], Tensor]


class Model(nn.Module):
    """A linear layer, and a function of a parameter and of its output."""

    def __init__(self, function: Function, *shape: int) -> None:
        super().__init__()
        self.layer, self.weight, self.function = nn.Linear(4, 4), nn.Parameter(torch.rand(*shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.weight, self.layer(x).tanh())


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).flatten(1)
    weights = torch.linspace(0.2, 1.0, out.shape[1], dtype=out.dtype)
    return (out * weights).sum(1) + out.square().mean(1)


def loop(model: nn.Module, x: Tensor, views: int) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for record in x.view(-1, views, *x.shape[1:]):
        gradients = torch.autograd.grad(losses(model, record).mean(), list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, g in zip(total, gradients, strict=True):
            total[name] += min(1.0, C / norm) * g
    return total


def add(engine: FastEngine, x: Tensor) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    present = torch.ones(len(x) // engine.views, dtype=torch.bool)
    engine.add_clipped_sum(sums, (x,), present, torch.tensor([C], dtype=torch.float64))
    return sums


def learned_bias(w: nn.Parameter, h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], w)[:, 0]


ALONE: dict[str, tuple[Function, tuple[int, ...]]] = {
    "einsum": (lambda w, h: torch.einsum("btd,hde->bthe", h, w), (2, 4, 3)),
    "divided": (lambda w, h: h / (1 + w), (4,)),
    "mask token": (lambda w, h: torch.where(h > 0.2, h, w), (4,)),
    "attention with a learned bias": (learned_bias, (5, 5)),
    "read twice": (lambda w, h: torch.addcmul(h, w, w), (4,)),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("function", "shape"), ALONE.values(), ids=ALONE)
def test_operations_on_rows_are_fast_and_right(
    function: Function, shape: tuple[int, ...], views: int
) -> None:
    torch.manual_seed(0)
    model, x = Model(function, *shape).double(), torch.randn(4 * views, 5, 4, dtype=torch.float64)
    engine = FastEngine(model, losses, FlatClipping(C), views=views)
    found = add(engine, x)
    assert engine.route == "fast"
    for name, value in loop(model, x, views).items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


ELSEWHERE: dict[str, tuple[Function, tuple[int, ...]]] = {
    "in place": (lambda w, h: h.clone().div_(1 + w), (4,)),
    "time first": (lambda w, h: (h.transpose(0, 1) / (1 + w)).transpose(0, 1), (4,)),
    "written into rows": (lambda w, h: h.clone().index_fill_(1, torch.tensor([0]), 0.0) / (1 + w), (4,)),
}


@pytest.mark.parametrize(("function", "shape"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_operations_are_right(function: Function, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for n in (4, 5):
        model, x = Model(function, *shape).double(), torch.randn(n, 5, 4, dtype=torch.float64)
        found = add(FastEngine(model, losses, FlatClipping(C)), x)
        for name, value in loop(model, x, 1).items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def squared_norms(function: Function, w: nn.Parameter, x: Tensor) -> Tensor:
    tape = Tape([w], [], HANDLERS, rows=len(x), views=1)
    y = island(tape, function, "function", (w, x), {})
    tape.start_backward()
    y.sin().sum().backward()  # type: ignore[no-untyped-call]
    return tape.uses[id(w)][0].squared_norms()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda w, h: (h - h.mean(0)) * w, "other values for a record alone"),
        (lambda w, h: h[torch.nonzero(h[:, 0, 0] < 9).squeeze(1)] * w, "cannot be carried out by record"),
        (lambda w, h: (h * w).sum(0), "other than rows"),
    ],
    ids=["centred", "counted", "summed"],
)
def test_operations_that_are_not_of_single_rows_are_seen(function: Function, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Unseen, match=message):
        squared_norms(function, nn.Parameter(torch.rand(4)), torch.randn(6, 5, 4))
