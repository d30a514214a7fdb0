"""Random numbers of records that give Python several numbers: right coins, and each record has its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine

Forward = Callable[[nn.Module, Tensor], Tensor]


def norms_and_losses(engine: FastEngine, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    _, found = step(engine, x)
    return found.raw_norms[:, 0], found.raw_losses


def toss(m: nn.Module, x: Tensor) -> Tensor:
    """1 where a layer is left out, as one time in two."""
    left_out = bool(torch.rand([]) < 0.5)
    return torch.as_tensor(m(x).sum(1) * 0 + float(left_out))


def test_coins_have_the_right_law_in_a_batch() -> None:
    """Had groups tossed anew, both would have been 1 in 0.375 of the times, as they keep what agrees."""
    engine = FastEngine(nn.Linear(3, 3), toss, FlatClipping(1.0))
    x, tosses = torch.randn(2, 3), 300
    coins = torch.stack([norms_and_losses(engine, x, seed)[1] for seed in range(tosses)])
    assert engine.route == "fast"
    assert (coins.mean(0) - 0.5).abs().max() < 3.5 * (0.25 / tosses) ** 0.5
    assert abs(float(coins.prod(1).mean()) - 0.25) < 3.5 * (0.1875 / tosses) ** 0.5


def layer_dropout(m: nn.Module, x: Tensor) -> Tensor:
    x = m(x)
    for _ in range(3):
        if torch.rand([]) >= 0.5:
            x = x + F.dropout(m(x).tanh(), 0.2)
        x = F.dropout(x + 0.1 * torch.randn_like(x), 0.2)
    return x


def told_by_value(m: nn.Module, x: Tensor) -> Tensor:
    h = F.dropout(m(x), 0.5)
    h = torch.stack([row + torch.randn_like(row) if row.sum() > 0 else row for row in h])
    h = F.dropout(h, 0.5, inplace=True) + torch.empty_like(h).uniform_()
    return h + h.new_empty(h.shape).bernoulli_(0.5)


def attention_after_coin(m: nn.Module, x: Tensor) -> Tensor:
    x = m(x)
    if torch.rand([]) >= 0.5:
        x = m(x)
    h = x.view(-1, 1, 8, 1)
    h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.3, is_causal=True)
    h = F.scaled_dot_product_attention(h, h, h, torch.rand(8, 8) < 0.5, dropout_p=0.3, scale=0.7)
    return h.flatten(1)


def attention_before_coin(m: nn.Module, x: Tensor) -> Tensor:
    """Attention whose kernel draws for the records of a pass, until Python reads a value after it."""
    h = m(x).view(-1, 1, 8, 1)
    h = F.scaled_dot_product_attention(h, h.sin(), h, dropout_p=0.3).flatten(1)
    return torch.stack([m(row) if row.sum() > 0 else row for row in h])


def checkpointed(m: nn.Module, x: Tensor) -> Tensor:
    def inside(x: Tensor) -> Tensor:
        kept = torch.rand([]) >= 0.5
        x = F.dropout(m(x), 0.3) if kept else F.dropout(x, 0.2)
        return F.dropout(x, 0.3)

    return torch.as_tensor(m(checkpoint(inside, m(x), use_reentrant=False)))


def of_weights(m: nn.Module, x: Tensor) -> Tensor:
    """Each record drops out other weights."""
    h = F.linear(x, F.dropout(m.weight, 0.5))  # type: ignore[arg-type]
    return h.relu() if torch.rand([]) < 0.3 else h


DRAWN: dict[str, Forward] = {
    "layer dropout": layer_dropout,
    "by a value": told_by_value,
    "attention": attention_after_coin,
    "attention before": attention_before_coin,
    "checkpoint": checkpointed,
    "dropout of weights": of_weights,
}


@pytest.mark.parametrize("forward", DRAWN.values(), ids=DRAWN)
def test_what_a_record_draws_depends_on_no_other(forward: Forward) -> None:
    engine = FastEngine(
        nn.Linear(8, 8).double(), lambda m, x: forward(m, x).square().sum(1), FlatClipping(1.0)
    )
    x = torch.randn(6, 8, dtype=torch.float64)
    norms_and_losses(engine, x, 0)
    moved = 0
    for seed in range(1, 6):
        norms, losses = norms_and_losses(engine, x, seed)
        other = torch.cat([x[:2], 5 * x[2:3].flip(1), x[3:]])
        others_norms, others_losses = norms_and_losses(engine, other, seed)
        apart = torch.arange(6) != 2
        torch.testing.assert_close(others_norms[apart], norms[apart], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(others_losses[apart], losses[apart], rtol=1e-12, atol=1e-14)
        moved += int(others_losses[2] != losses[2])
    assert engine.route == "fast"
    assert moved >= 4


def test_records_draw_apart_and_steps_too() -> None:
    """Six records that are the same have six losses, of which those of the next step are none."""
    engine = FastEngine(
        nn.Linear(8, 8).double(), lambda m, x: layer_dropout(m, x).square().sum(1), FlatClipping(1.0)
    )
    x = torch.ones(6, 8, dtype=torch.float64)
    first, second = norms_and_losses(engine, x, 0)[1], norms_and_losses(engine, x, 1)[1]
    assert len(set(torch.cat([first, second]).tolist())) == 12
    torch.manual_seed(0)
    steps = [step(engine, x)[1].raw_losses for _ in "123"]
    assert len(set(torch.cat(steps).tolist())) == 18


@pytest.mark.parametrize("views", [1, 2])
def test_gradients_are_those_of_what_was_drawn(views: int) -> None:
    """The coin and the mask after it are the same when a checkpoint recomputes them."""

    def loss(m: nn.Linear, x: Tensor) -> Tensor:
        def inside(h: Tensor) -> Tensor:
            kept = torch.rand([]) >= 0.5
            return F.dropout(h, 0.5) if kept else F.dropout(h, 0.25)

        return torch.as_tensor(checkpoint(inside, x * m.weight[0], use_reentrant=False)).sum(1)

    model = nn.Linear(8, 1, bias=False).double()
    engine = FastEngine(model, loss, FlatClipping(1e6), views=views)
    nn.init.ones_(model.weight)
    x = torch.randint(1, 4, (5 * views, 8)).double()
    for seed in range(4):
        torch.manual_seed(seed)
        sums, found = step(engine, x)
        total = float(sums["weight"].sum())  # as the loss is linear in the weights, which are 1
        assert abs(total - float(found.raw_losses.sum())) < 1e-6 * abs(total)
    assert engine.route == "fast"


RNN: dict[str, tuple[Forward, str]] = {
    "before": (lambda m, x: m(x)[0] if x[0, 0, 0] > 0 else m(-x)[0], "fast"),
    "behind": (
        lambda m, x: torch.as_tensor(m(x)[0]) * (2 if torch.rand([]) < 0.5 else 1),
        "record by record: dropout within a recurrent layer, after which Python reads values",
    ),
}


@pytest.mark.parametrize(("forward", "route"), RNN.values(), ids=RNN)
def test_recurrent_layers_drop_out_for_the_records_of_a_pass(forward: Forward, route: str) -> None:
    """So a number that Python is given behind them would be that of other draws."""

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([forward(m, row[None]).square().sum((1, 2)) for row in x])

    engine = FastEngine(nn.LSTM(3, 3, 2, dropout=0.5, batch_first=True), loss, FlatClipping(1.0))
    norms_and_losses(engine, torch.randn(4, 5, 3), 0)
    assert engine.route == route


def test_a_step_that_is_done_again_is_the_same() -> None:
    """Though what is learned of a model in the first one, as when Python asks, is known in the second."""
    x = torch.randn(6, 8, dtype=torch.float64)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        h = F.dropout(x, 0.5)
        if engine.measured.get("now"):  # not before the second step
            h = attention_before_coin(m, h)
        return torch.as_tensor(m(h)).square().sum(1)

    model, found = nn.Linear(8, 8).double(), []
    measured: dict[str, int] = {}
    for _ in range(2):
        engine = FastEngine(model, loss, FlatClipping(1.0))
        engine.measured.update(measured)
        norms_and_losses(engine, x, 0)
        engine.measured["now"] = 1
        found.append(norms_and_losses(engine, x, 1)[0])
        measured = dict(engine.measured)
        assert engine.route == "fast"
    assert torch.equal(*found)
    assert measured["groups of records"] == 2
