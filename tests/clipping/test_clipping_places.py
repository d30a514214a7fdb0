"""A record's gradient depends neither on its place in the batch nor on the number of other records.

Where one record is left out, those behind it move up by one: what goes by places would move all of them.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from oracles import Loss, clipped_sum, definition
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.errors import UnsupportedModel

C = 0.5


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.positions = nn.Embedding(64, 4)
        self.free = nn.Parameter(torch.zeros(64, 1, 4))
        nn.init.zeros_(self.positions.weight)
        steps = torch.arange(64.0)[:, None, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        self.register_buffer("waves", steps.sin(), persistent=False)


def head(m: Tables, h: Tensor) -> Tensor:
    return torch.as_tensor(m.last(m.first(h).tanh().mean(1)).logsumexp(1))


def own_noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


MIXES, SEED = "a record's loss in a batch differs", "sets a seed"
BY_PLACE: dict[str, tuple[Loss, str]] = {
    "waves along the batch": (lambda m, x: head(m, x + m.waves[: len(x)]), MIXES),
    "weights by thirds": (lambda m, x: head(m, x) * (1 + torch.arange(len(x)) % 3), MIXES),
    "waves, and dropout": (lambda m, x: head(m, F.dropout(x, 0.3) + m.waves[: len(x)]), MIXES),
    "waves, and noise": (lambda m, x: head(m, x + torch.randn_like(x) + m.waves[: len(x)]), MIXES),
    "waves, and noise in place": (
        lambda m, x: head(m, x * torch.empty(len(x), 1, 1).bernoulli_(0.5) + m.waves[: len(x)]),
        MIXES,
    ),
    "waves, and steps of noise": (
        lambda m, x: head(m, x + m.waves[torch.randint(0, 9, (len(x),))] + m.waves[: len(x)]),
        MIXES,
    ),
    "waves, and attention": (
        lambda m, x: head(m, F.scaled_dot_product_attention(x, x, x, dropout_p=0.1) + m.waves[: len(x)]),
        MIXES,
    ),
    "a small part": (lambda m, x: head(m, x) + 0.1 / len(x) * x.sum((1, 2)), MIXES),
    "a sum of squares": (lambda m, x: head(m, x) * len(x) ** -0.5, MIXES),
    "the same noise, and dropout": (lambda m, x: head(m, F.dropout(x, 0.3) + own_noise(x)), SEED),
}
"""The coupling table (``couplings_of_values.py``) has more."""
OF_RECORDS: dict[str, Loss] = {
    "a table along the batch": lambda m, x: head(m, x + m.positions(torch.arange(len(x)))[:, None]),
    "a parameter along the batch": lambda m, x: head(m, x + m.free[: len(x)]),
    "a scale along the batch": lambda m, x: head(m, x * (1 + m.free[: len(x)])),
    "a divisor above 16 records": lambda m, x: head(m, x) * min(1.0, 16 / len(x)),
    "a divisor in steps of 32": lambda m, x: head(m, x) / -(-len(x) // 32),
    "waves along positions": lambda m, x: head(m, x + m.waves[: x.shape[1]].transpose(0, 1)),
    "one of each record": lambda m, x: m.first(x)[torch.arange(len(x)), x.argmax(1)[:, 0]].square().sum(1),
    "states of zeros": lambda m, x: head(m, x + torch.zeros(len(x), 1, 4)),
    "large terms that cancel": lambda m, x: head(m, (x + 1e4) - 1e4),
}
"""Tables of zeros, and what only sets in with many records: trained as if each record were alone."""


def engine_of(loss: Loss) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Tables(), loss, FlatClipping(C))


def records(n: int = 12) -> Tensor:
    return torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize(("loss", "message"), BY_PLACE.values(), ids=BY_PLACE)
@pytest.mark.parametrize("n", [2, 3, 12])
def test_losses_by_place_are_refused(loss: Loss, message: str, n: int) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        clipped_sum(engine_of(loss), records(n), C=C)


@pytest.mark.parametrize("loss", OF_RECORDS.values(), ids=OF_RECORDS)
@pytest.mark.parametrize("n", [5, 40])
def test_others_are_those_of_records_alone(loss: Loss, n: int) -> None:
    engine, x = engine_of(loss), records(n)
    wanted = definition(engine.model, loss, (x,), C)
    torch.testing.assert_close(clipped_sum(engine, x, C=C), wanted, rtol=1e-4, atol=1e-5)
    moved = clipped_sum(engine, x, C=C) - clipped_sum(engine, x[1:], C=C)
    assert float(moved.norm()) <= C * (1 + 1e-4)
    assert engine.route == "fast"


@pytest.mark.parametrize("T", [11, 12, 77, 1003])
def test_tables_that_a_loss_holds_are_tables_whatever_their_length(T: int) -> None:
    table = torch.randn(T, 1, 4)
    engine = engine_of(lambda m, x: head(m, x + table[x[:, 0, 0].abs().long() % T]))
    for n in (12, 13, 18):
        clipped_sum(engine, records(n), C=C)
        assert engine.route == "fast"
