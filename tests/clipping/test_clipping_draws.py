"""Random numbers: each record's own are its own; those that all records have in common, none's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import op_table
from tacit.clipping.isolation.call import Call
from tacit.clipping.isolation.op_table import is_draw
from tacit.clipping.isolation.randomness import RepeatedDraws
from tacit.errors import UnsupportedModel

C = 0.5
Loss = Callable[..., Tensor]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.4)
        self.register_buffer("base", torch.ones(3, 6), persistent=False)


def head(m: Two, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    return torch.as_tensor(m.last(m.first(x).tanh() * scale).logsumexp(-1).mean(1))


def rate_of(bound: float) -> Loss:
    """A layer that is left out at this rate, for all records at once."""

    def loss(m: Two, x: Tensor) -> Tensor:
        skipped = torch.rand([]) < bound
        return head(m, x, 0.5) if skipped else head(m, x)

    return loss


OWN: dict[str, Loss] = {
    "dropout": lambda m, x: head(m, F.dropout(x, 0.3)),
    "noise": lambda m, x: head(m, x + torch.randn_like(x)),
    "noise by sizes": lambda m, x: head(m, x + torch.randn(len(x), 5, 4)),
    "paths left out": lambda m, x: head(m, x, x.new_empty(len(x), 1, 1).bernoulli_(0.8).div_(0.8)),
    "none left out": lambda m, x: head(m, x, torch.empty(1, 1, 1).bernoulli_(1.0)),
    "rate of nothing": rate_of(0.0),
    "rate of all": rate_of(1),
    "positions in a random order": lambda m, x: head(
        m, x.gather(1, torch.rand(len(x), 5).argsort(1)[:, :3, None].expand(-1, -1, 4))
    ),
    "second dimension": lambda m, x: head(m, (x.transpose(0, 1) + torch.rand(5, len(x), 4)).transpose(0, 1)),
    "flattened": lambda m, x: head(m, (x.flatten(0, 1) + torch.rand(5 * len(x), 4)).view(-1, 5, 4)),
    "choices": lambda m, x: head(m, x, torch.multinomial(x[:, 0].exp(), 2).float().mean(1)[:, None, None]),
    "constants as well": lambda m, x: head(m, F.dropout(torch.cat([x, x.new_ones(len(x), 1, 4)], 1), 0.3)),
    "recurrent": lambda m, x: torch.as_tensor(m.lstm(x.transpose(0, 1))[0].square().mean((0, 2))),
}
IN_COMMON: dict[str, Loss] = {
    "one number": lambda m, x: head(m, x, torch.rand(())),
    "a number for each channel": lambda m, x: head(m, x, torch.rand(6)),
    "a number for each position": lambda m, x: head(m, x + torch.rand(5, 1)),
    "as many as rows are tried": lambda m, x: head(m, x) * torch.rand_like(m.base).sum(),
    "in place": lambda m, x: head(m, x, torch.empty(1, 1, 1).bernoulli_(0.5)),
    "an order of positions": lambda m, x: head(m, x, torch.randperm(6) + 1.0),
    "an order of rows": lambda m, x: head(m, x, torch.randperm(len(x))[:, None, None] + 1.0),
    "rows drawn together": lambda m, x: head(
        m, x, torch.multinomial(torch.ones(len(x)), len(x))[:, None, None] + 1.0
    ),
    "weights that add up to one": lambda m, x: (
        head(m, x) * torch.distributions.Dirichlet(torch.ones(len(x))).sample()
    ),
    "weights left out": lambda m, x: (
        F.linear(m.first(x).tanh(), F.dropout(m.last.weight, 0.3)).logsumexp(-1).mean(1)
    ),
    "noise on weights": lambda m, x: (
        F.linear(m.first(x).tanh(), m.last.weight + torch.randn_like(m.last.weight)).logsumexp(-1).mean(1)
    ),
    "a row's number for all": lambda m, x: head(m, x, torch.rand(len(x))[0]),
    "the largest of all": lambda m, x: head(m, x, torch.rand(len(x), 1, 1).amax()),
    "a layer left out": rate_of(0.5),
    "a layer left out now and then": rate_of(1e-9),
    "a rate of rows": lambda m, x: head(m, x, 0.5 if (torch.rand(len(x)) < 1e-9).any() else 1.0),
    "a random length": lambda m, x: head(m, x[:, : int(torch.randint(2, 6, ()))]),
}


class SeededBackward(torch.autograd.Function):
    """Gradients are multiplied by numbers that are the same in each backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return g * torch.randn(len(g), 1, 1)


class OwnGenerator(SeededBackward):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.randn(len(g), 1, 1, generator=torch.Generator().manual_seed(0))


def seeded(kind: type[SeededBackward], rate: float) -> Loss:
    def loss(m: Two, x: Tensor) -> Tensor:
        h = kind.apply(m.first(F.dropout(x, rate)).tanh())  # type: ignore[no-untyped-call]
        return torch.as_tensor(100 * m.last(h).logsumexp(-1).mean(1))

    return loss


SEEDED = {
    f"{kind.__name__}, {rate}": seeded(kind, rate)
    for kind in (SeededBackward, OwnGenerator)
    for rate in (0, 0.3)
}
IN_COMMON |= SEEDED


def engine_of(loss: Loss) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Two(), loss, FlatClipping(C))


def sums(engine: FastEngine, *parts: Tensor) -> Tensor:
    buffers = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    for x in parts:
        engine.add_clipped_sum(buffers, (x,), None, torch.tensor([C]))
    return torch.cat([buffer.flatten() for buffer in buffers.values()])


def records(n: int = 16) -> Tensor:
    return torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("loss", OWN.values(), ids=OWN)
def test_what_each_record_draws_is_fast(loss: Loss) -> None:
    engine = engine_of(loss)
    sums(engine, records())
    assert engine.route == "fast"


@pytest.mark.parametrize("loss", IN_COMMON.values(), ids=IN_COMMON)
@pytest.mark.parametrize("n", [3, 16])
def test_what_all_have_in_common_is_drawn_for_each(loss: Loss, n: int) -> None:
    engine = engine_of(loss)
    sums(engine, records(n))
    assert engine.route != "fast"


def test_without_it_one_record_moves_others_to_another_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two microbatches of at most 8, each with its own sign."""
    x = records(16)
    x[0, 0, 0], x[8, 0, 0] = -1.0, 1.0

    def loss(m: Two, x: Tensor) -> Tensor:
        return head(m, x) * x[:, 0, 0].sign() * torch.rand(()).sub(0.5).sign()

    def difference() -> tuple[float, str]:
        engine = engine_of(loss)
        torch.manual_seed(seed)
        whole = sums(engine, x[:8], x[8:])
        torch.manual_seed(seed)
        return float((whole - sums(engine, x[1:9], x[9:])).norm()) / C, engine.route

    signs = []
    for seed in range(8):
        torch.manual_seed(seed)
        signs.append(bool((torch.rand(2) > 0.5).sum() == 1))
    seed = signs.index(True)
    assert difference()[1].startswith("reference: records mix in random numbers")
    monkeypatch.setattr(op_table, "is_draw", lambda _: False)
    found, route = difference()
    assert route == "fast"
    assert found > 2


def test_a_seed_in_the_backward_pass_gives_no_record_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    x = records(16)

    def difference() -> float:
        engine = engine_of(SEEDED["SeededBackward, 0"])
        return float((sums(engine, x) - sums(engine, x[1:])).norm()) / C

    assert difference() <= 1 + 1e-4
    monkeypatch.setattr(op_table, "_is_seeded_anew", lambda *_: False)
    assert difference() > 1.3


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python", "NumPy"])
def test_random_numbers_from_elsewhere_are_refused(draw: Callable[[], float]) -> None:
    def loss(m: Two, x: Tensor) -> Tensor:
        return head(m, x, draw())

    with pytest.raises(UnsupportedModel, match="Draw by torch, for each record"):
        sums(engine_of(loss), records())


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sizes": lambda x: torch.randn(len(x), 4),
    "a size": lambda x: torch.rand((len(x), 4)),
    "a size by name": lambda x: torch.rand(size=(len(x), 4)),
    "whole numbers": lambda x: torch.randint(0, 99, (len(x), 4)),
    "like": lambda x: torch.randn_like(x),
    "in place": lambda x: torch.empty(len(x), 1).exponential_(),
    "by a mean": lambda x: torch.normal(torch.zeros(len(x), 4), torch.ones(4)),
    "of weights": lambda x: torch.multinomial(torch.ones(len(x), 9), 3),
    "of weights for all": lambda x: torch.multinomial(torch.ones(9), 3).expand(len(x), 3),
    "numbers for all": lambda x: x * torch.rand(4),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout by name": lambda x: F.dropout(input=x, p=0.5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0],
    "recurrent": lambda x: nn.LSTM(4, 3, 2, dropout=0.5)(x[None])[0][0],
    "attention layer": lambda x: nn.MultiheadAttention(4, 2, dropout=0.5)(x[None], x[None], x[None])[0][0],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("rows", [1, 2])
def test_repeated_draws_are_the_same_for_all_rows(draw: Callable[[Tensor], Tensor], rows: int) -> None:
    x = torch.ones(6, 4)
    torch.manual_seed(0)
    with RepeatedDraws(rows):
        found = draw(x)
    for first in range(rows, 6, rows):
        torch.testing.assert_close(found[first : first + rows], found[:rows])


@pytest.mark.parametrize(("place", "drawn"), [(0, True), (1, True), (2, False), (3, False)])
def test_what_attention_keeps_of_a_generator_is_no_random_number(place: int, drawn: bool) -> None:
    """On a device: the output, sums, and by what the backward pass drops the same."""
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    q = torch.zeros(2, 1, 3, 4)
    call = Call(
        attention, (q, q, q, None, True, 0.1), {}, {id(q): None}, set(), torch.arange(2), 2, lambda _: 2, 0
    )
    call.place = place
    assert is_draw(call) is drawn
