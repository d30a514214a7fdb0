"""Random numbers: each record draws its own, of torch's generator; others are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from couplings_of_steps import backwards, by_own_generator, seeded
from oracles import Change, Loss, clipped_sum, each, equal, is_refused, norms_found, plan
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit import PrivateSession
from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine, Microbatches
from tacit.clipping.isolation.randomness import WithoutDraws

C = 0.5


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.4)
        self.queries = nn.Parameter(torch.randn(1, 5, 4))
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.register_buffer("base", torch.ones(3, 6), persistent=False)


def head(m: Two, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    found: Tensor = m.last(m.first(x).tanh() * scale)
    return found.logsumexp(-1).mean(1)


def layer_dropout(m: Two, x: Tensor) -> Tensor:
    """One coin decides in Python, for all records of a pass."""
    return head(m, x, 0.5) if torch.rand([]) < 0.5 else head(m, x)


def layer_dropout_by_masks(m: Two, x: Tensor) -> Tensor:
    return head(m, x, torch.where(torch.rand([]) < 0.5, 0.5, 1.0))


def queries_in_place(m: Two, x: Tensor) -> Tensor:
    queries = m.queries.expand(len(x), -1, -1).clone()
    return head(m, x + F.dropout(queries, 0.5, inplace=True))


def queries_by_attention(m: Two, x: Tensor) -> Tensor:
    """Learned queries attend to each other, with dropout, before they see a record, as in DETR."""
    queries = m.queries.expand(len(x), -1, -1)
    return head(m, x + m.attention(queries, queries, queries, need_weights=False)[0])


def part_in_place(m: Two, x: Tensor) -> Tensor:
    noise = torch.zeros(5, 4)
    noise[0].normal_()
    return head(m, x + noise)


def shown_to_numpy(m: Two, x: Tensor) -> Tensor:
    noise = torch.zeros(5, 4)
    seen = noise.numpy()
    return head(m, x + noise.normal_() + len(seen))


OWN: dict[str, Loss] = {
    "dropout": lambda m, x: head(m, F.dropout(x, 0.3)),
    "noise": lambda m, x: head(m, x + torch.randn_like(x)),
    "noise by sizes": lambda m, x: head(m, x + torch.randn(len(x), 5, 4)),
    "paths left out": lambda m, x: head(m, x, x.new_empty(len(x), 1, 1).exponential_()),
    "positions in a random order": lambda m, x: head(
        m, x.gather(1, torch.rand(len(x), 5).argsort(1)[:, :3, None].expand(-1, -1, 4)) + torch.rand(3, 1)
    ),
    "second dimension": lambda m, x: head(m, (x.transpose(0, 1) + torch.rand(5, len(x), 4)).transpose(0, 1)),
    "flattened": lambda m, x: head(m, (x.flatten(0, 1) + torch.rand(5 * len(x), 4)).view(-1, 5, 4)),
    "constants as well": lambda m, x: head(m, F.dropout(torch.cat([x, x.new_ones(len(x), 1, 4)], 1), 0.3)),
    "recurrent": lambda m, x: torch.as_tensor(m.lstm(x.transpose(0, 1))[0].square().mean((0, 2))),
    "attention": lambda m, x: head(m, F.scaled_dot_product_attention(x, x.sin(), x, dropout_p=0.3)),
    "a distribution": lambda m, x: head(m, torch.distributions.Normal(x, 0.1).rsample()),
    "Laplace": lambda m, x: head(m, torch.distributions.Laplace(x, 0.1).rsample()),
    "MultivariateNormal": lambda m, x: head(
        m, torch.distributions.MultivariateNormal(x, torch.eye(4)).rsample()
    ),
    "a distribution of parameters": lambda m, x: head(
        m, x + torch.distributions.Normal(m.queries, 0.1).rsample()
    ),
    "Gumbel softmax": lambda m, x: head(m, F.gumbel_softmax(x, 0.5)),
    "Gumbel softmax of parameters": lambda m, x: head(m, x + F.gumbel_softmax(m.queries, 0.5)),
    "a new tensor": lambda m, x: head(m, x + torch.zeros(5, 4).normal_()),
    "a new tensor by nn.init": lambda m, x: head(m, x + nn.init.normal_(torch.empty(5, 4))),
    "queries by attention": queries_by_attention,
    "part of a new tensor": part_in_place,
    "a new tensor that NumPy sees": shown_to_numpy,
    "a number for each channel": lambda m, x: head(m, x, torch.rand(6)),
    "a number for each position": lambda m, x: head(m, x + torch.rand(5, 1)),
    "in the shape of a buffer": lambda m, x: head(m, x) * torch.rand_like(m.base).sum(),
    "weights left out": lambda m, x: (
        F.linear(m.first(x).tanh(), F.dropout(m.last.weight, 0.3)).logsumexp(-1).mean(1)
    ),
    "noise on weights": lambda m, x: (
        F.linear(m.first(x).tanh(), m.last.weight + torch.randn_like(m.last.weight)).logsumexp(-1).mean(1)
    ),
    "a row's number for all": lambda m, x: head(m, x, torch.rand(len(x))[0]),
    "the largest of all": lambda m, x: head(m, x, torch.rand(len(x), 1, 1).amax()),
}
"""All numbers of a record are other ones than those of its copy."""
FEW: dict[str, Loss] = {
    "choices": lambda m, x: head(m, x, torch.multinomial(x[:, 0].exp(), 2).float().mean(1)[:, None, None]),
    "in place": lambda m, x: head(m, x, torch.empty(1, 1, 1).bernoulli_(0.5)),
    "queries in place": queries_in_place,
    "Gumbel softmax, one of several": lambda m, x: head(m, F.gumbel_softmax(x, 0.5, hard=True)),
    "an order of positions": lambda m, x: head(m, x, torch.randperm(6) + 1.0),
    "a layer left out for some records": lambda m, x: head(
        m, x, torch.where(torch.rand(len(x), 1, 1) < 0.5, 0.5, 1.0)
    ),
}
"""There are only a few numbers to draw."""
CERTAIN: dict[str, Loss] = {
    "none left out": lambda m, x: head(m, x, torch.empty(1, 1, 1).bernoulli_(1.0)),
    "weights that add up to one": lambda m, x: (
        head(m, x) * torch.distributions.Dirichlet(torch.ones(len(x))).sample()
    ),
}
"""A record alone has nothing to draw."""
COINS: dict[str, Loss] = {
    "a layer left out": layer_dropout,
    "a layer left out by a mask": layer_dropout_by_masks,
    "a random length": lambda m, x: head(m, x[:, : int(torch.randint(2, 6, ()))]),
    "a random scale": lambda m, x: head(m, x, float(torch.randn(size=()))),
}
"""A draw without dimensions is one for all records, which Python may read, as in a plain batch."""
UNSUPPORTED = {
    "weights that add up to one": "_Dirichlet, a torch.autograd.Function, is called without",
    "a new tensor by nn.init": "a function such as nn.init.normal_ draws in place into",
    "part of a new tensor": "normal_ writes in place into a view",
    "a new tensor that NumPy sees": "normal_ writes in place into a view",
}
"""What vmap does not support, and how the reason of the refusal begins."""


def engine_of(loss: Loss) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Two(), loss, FlatClipping(C))


def records(n: int = 16) -> Tensor:
    return torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [*OWN, *FEW, *CERTAIN])
def test_each_record_draws_its_own(name: str) -> None:
    """Copies of one record have as many norms as there are numbers to draw."""
    engine, x = engine_of((OWN | FEW | CERTAIN)[name]), records(1).expand(16, 5, 4)
    if name in UNSUPPORTED:
        is_refused(UNSUPPORTED[name], engine, x)
        return

    norms = norms_found(engine, x)
    several = len(set(norms.tolist()))
    assert several == 16 if name in OWN else several > 1 if name in FEW else several == 1


@each("loss", COINS)
def test_a_draw_without_dimensions_is_one_for_all_records(loss: Loss) -> None:
    """It differs from step to step, and does not depend on the number of records that draw before it."""

    def dropped(m: Two, x: Tensor) -> Tensor:
        return loss(m, x * F.dropout(torch.ones_like(x), 1e-9))

    engine = engine_of(dropped)
    found = []
    for n in (16, 5, 16):
        torch.manual_seed(4)
        found.append(norms_found(engine, records(1).expand(n, 5, 4)))
    assert len(set(found[0].tolist())) == 1
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][:5], found[1])
    others = {float(norms_found(engine, records(1))[0]) for _ in range(20)}
    assert len(others) > 1


def test_all_passes_of_a_step_have_the_same_coin_however_many_records_draw() -> None:
    coins: list[float] = []

    def loss(m: Two, x: Tensor) -> Tensor:
        coins.append(float(torch.rand([])))
        return head(m, F.dropout(x, 0.3))

    engine = engine_of(loss)
    norms_found(engine, records(2))
    found = []
    for n in (6, 9):
        engine._cuts = Microbatches(1, 0, 1, engine.measured)
        engine.expected = 3  # as many passes
        torch.manual_seed(4)
        coins.clear()
        norms_found(engine, records(n))
        found.append(list(coins))
    assert found[0] == found[1]
    assert len(found[0]) == 3
    assert len(set(found[0])) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_record_that_moves_others_to_another_pass_moves_the_sum_by_no_more_than_c(seed: int) -> None:
    """Without the last record, the others are divided over the passes in another way."""

    def signed(m: Two, x: Tensor) -> Tensor:
        return head(m, x) * (torch.rand([]) - 0.5).sign()

    engine = engine_of(signed)
    engine.expected = 6
    engine._cuts = Microbatches(1, 0, 1, engine.measured)
    sums = []
    for x in (records(24), records(24)[:-1]):
        torch.manual_seed(seed)
        sums.append(clipped_sum(engine, x))
    assert float((sums[0] - sums[1]).norm()) <= C * (1 + 1e-4)


def test_all_physical_batches_of_a_step_have_the_same_coin() -> None:
    coins: list[float] = []

    def loss(m: Two, x: Tensor) -> Tensor:
        coins.append(float(torch.rand([])))
        return head(m, x)

    torch.manual_seed(0)
    net = Two()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session = PrivateSession(
        net, optimizer, (records(12),), plan(12, steps=4), loss=loss, physical_batch_size=4
    )
    of_steps = []
    for ticket in session.batches():
        coins.clear()
        session.step(ticket)
        of_steps.append(coins[-3:])
    assert all(len(set(of_step)) == 1 for of_step in of_steps)
    assert len({of_step[0] for of_step in of_steps}) == 4


def test_a_draw_of_a_record_that_python_reads_is_refused() -> None:
    def loss(m: Two, x: Tensor) -> Tensor:
        return head(m, x, 0.5 if torch.bernoulli(torch.tensor(0.5)) else 1.0)

    is_refused(r"hands a record's value to Python.*torch\.where", engine_of(loss), records())


def coin_in_a_checkpoint(m: Two, x: Tensor) -> Any:
    return checkpoint(layer_dropout, m, x, use_reentrant=False)


def test_a_coin_in_a_checkpoint_which_runs_twice_is_refused() -> None:
    is_refused("hands a record's value to Python", engine_of(coin_in_a_checkpoint), records())


def inside(m: Two, x: Tensor) -> Any:
    h = F.dropout(m.first(x), 0.3)
    h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.3) + 0.1 * torch.randn_like(h)
    return m.last(F.dropout(h, 0.5, inplace=True)).logsumexp(-1).mean(1)


DEPENDING: dict[str, Loss] = {
    "all": inside,
    "within a checkpoint": lambda m, x: torch.as_tensor(checkpoint(inside, m, x, use_reentrant=False)),
    "weights": OWN["weights left out"],
    "a layer left out": layer_dropout_by_masks,
}


@each("loss", DEPENDING)
def test_what_a_record_draws_depends_on_no_other(loss: Loss) -> None:
    engine, x = engine_of(loss), records(6)
    other = torch.cat([x[:2], 5 * x[2:3].flip(1), x[3:]])
    norms_found(engine, x)
    found = []
    for batch in (x, other):
        torch.manual_seed(3)
        found.append(norms_found(engine, batch))
    apart = torch.arange(6) != 2
    equal(found[0][apart], found[1][apart], 1e-5, 0.0)
    assert found[0][2] != found[1][2]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_physical_batches_change_nothing_but_what_is_drawn(rate: float) -> None:
    """Without random numbers a sum does not depend on the split; what a record draws goes by its place.

    So a resume state names the physical batch size, and a session with another one refuses it.
    """
    x, found = records(8), []
    for parts in ([x], [x[:4], x[4:]]):
        engine = engine_of(lambda m, x: head(m, F.dropout(x, rate)))
        norms_found(engine, x)
        torch.manual_seed(3)
        found.append(torch.cat([norms_found(engine, part) for part in parts]))
    assert torch.allclose(found[0], found[1], rtol=1e-5) == (rate == 0.0)


def test_no_tensor_from_outside_the_pass_gets_a_copy_for_each_record() -> None:
    outside = torch.ones(5, 4)
    engine = engine_of(lambda m, x: head(m, x + outside.bernoulli_(1.0)))
    is_refused("bernoulli_ writes in place into a tensor from outside", engine, records())
    assert outside.tolist() == [[1.0] * 4] * 5


def test_an_order_of_records_is_refused() -> None:
    engine = engine_of(lambda m, x: head(m, x, torch.randperm(len(x))[:, None, None] + 1.0))
    is_refused("mixes records", engine, records())


@pytest.mark.parametrize("backward", [seeded, by_own_generator])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_seed_in_the_backward_pass_gives_no_record_its_place(
    backward: Callable[[Any, Tensor], Tensor], rate: float
) -> None:
    def loss(m: Two, x: Tensor) -> Any:
        h = backwards(backward)(m.first(F.dropout(x, rate)).tanh())
        return 100 * m.last(h).logsumexp(-1).mean(1)

    engine = engine_of(loss)
    is_refused("sets a seed or uses its own generator", engine, records())


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python", "NumPy"])
def test_random_numbers_from_elsewhere_are_refused(draw: Callable[[], float]) -> None:
    is_refused("Draw with torch for each record", engine_of(lambda m, x: head(m, x, draw())), records())


LSTM, ATTENTION = nn.LSTM(4, 3, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5)
DRAWS: dict[str, Change] = {
    "sizes": lambda x: torch.randn(len(x), 4) + torch.rand(size=(len(x), 4)),
    "whole numbers": lambda x: torch.randint(0, 99, (len(x), 4)),
    "like": lambda x: torch.randn_like(x) + torch.rand_like(x),
    "in place": lambda x: torch.empty(len(x), 1).exponential_() + torch.empty(len(x), 1).cauchy_(),
    "by a mean": lambda x: torch.normal(torch.zeros(len(x), 4), torch.ones(4)),
    "of weights": lambda x: torch.multinomial(torch.ones(len(x), 9), 3),
    "an order": lambda x: x * torch.randperm(4),
    "dropout": lambda x: F.dropout(x, 0.5) + F.dropout(input=x, p=0.5) + F.alpha_dropout(x, 0.5, True),
    "slopes": lambda x: F.rrelu(-x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0],
    "recurrent": lambda x: LSTM(x[None])[0][0],
    "attention layer": lambda x: ATTENTION(x[None], x[None], x[None])[0][0],
}


@each("draw", DRAWS)
def test_what_is_judged_draws_no_random_numbers(draw: Change) -> None:
    with WithoutDraws():
        assert torch.equal(draw(torch.ones(6, 4)), draw(torch.ones(6, 4)))
