"""Random numbers: each record draws its own, of torch's generator; others are refused.

``test_clipping_vmap_draws.py`` has records that give Python numbers of what they drew.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from couplings_of_steps import Mixing, OwnGenerator, SeededBackward
from oracles import Loss, clipped_sum, norms_found
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.randomness import WithoutDraws
from tacit.errors import UnsupportedModel

C = 0.5


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.4)
        self.register_buffer("base", torch.ones(3, 6), persistent=False)


def head(m: Two, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    return torch.as_tensor(m.last(m.first(x).tanh() * scale).logsumexp(-1).mean(1))


def rate_of(bound: float) -> Loss:
    """A layer that is left out at this rate."""

    def loss(m: Two, x: Tensor) -> Tensor:
        skipped = torch.rand([]) < bound
        return head(m, x, 0.5) if skipped else head(m, x)

    return loss


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
    "one number": lambda m, x: head(m, x, torch.rand(())),
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
    "an order of positions": lambda m, x: head(m, x, torch.randperm(6) + 1.0),
    "a layer left out": rate_of(0.5),
    "a random length": lambda m, x: head(m, x[:, : int(torch.randint(2, 6, ()))]),
}
"""There are only a few numbers to draw."""
CERTAIN: dict[str, Loss] = {
    "none left out": lambda m, x: head(m, x, torch.empty(1, 1, 1).bernoulli_(1.0)),
    "rate of nothing": rate_of(0.0),
    "rate of all": rate_of(1),
    "weights that add up to one": lambda m, x: (
        head(m, x) * torch.distributions.Dirichlet(torch.ones(len(x))).sample()
    ),
}
"""A record alone has nothing to draw."""
SLOW = {"a distribution", "in place", "none left out", "weights that add up to one"}
"""Draws in place into a constant, and an autograd Function, which vmap does not carry."""


def engine_of(loss: Loss) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Two(), loss, FlatClipping(C))


def records(n: int = 16) -> Tensor:
    return torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [*OWN, *FEW, *CERTAIN])
def test_each_record_draws_its_own(name: str) -> None:
    """Copies of one record have as many norms as there are numbers to draw."""
    engine, x = engine_of((OWN | FEW | CERTAIN)[name]), records(1).expand(16, 5, 4)
    norms = norms_found(engine, x)
    assert engine.route.startswith("record by record: " if name in SLOW else "fast")
    several = len(set(norms.tolist()))
    assert several == 16 if name in OWN else several > 1 if name in FEW else several == 1


def test_an_order_of_records_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="mixes records"):
        clipped_sum(
            engine_of(lambda m, x: head(m, x, torch.randperm(len(x))[:, None, None] + 1.0)), records(), C=C
        )


@pytest.mark.parametrize("kind", [SeededBackward, OwnGenerator])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_seed_in_the_backward_pass_gives_no_record_its_place(kind: type[Mixing], rate: float) -> None:
    def loss(m: Two, x: Tensor) -> Tensor:
        h = kind.apply(m.first(F.dropout(x, rate)).tanh())  # type: ignore[no-untyped-call]
        return torch.as_tensor(100 * m.last(h).logsumexp(-1).mean(1))

    with pytest.raises(UnsupportedModel, match="sets a seed or uses a separate generator"):
        clipped_sum(engine_of(loss), records(), C=C)


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python", "NumPy"])
def test_random_numbers_from_elsewhere_are_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(UnsupportedModel, match="Draw with torch, for each record"):
        clipped_sum(engine_of(lambda m, x: head(m, x, draw())), records(), C=C)


LSTM, ATTENTION = nn.LSTM(4, 3, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5)
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
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


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_judged_draws_no_random_numbers(draw: Callable[[Tensor], Tensor]) -> None:
    with WithoutDraws():
        assert torch.equal(draw(torch.ones(6, 4)), draw(torch.ones(6, 4)))
