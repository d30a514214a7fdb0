"""A record's gradient is the same in whatever place of the batch it lies.

Where one record is left out, those behind it move up by one: what goes by places moves all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import Isolation
from tacit.errors import UnsupportedModel

C = 0.5
Loss = Callable[..., Tensor]


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


def seeded_noise(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.randn_like(x)


BY_PLACE: dict[str, Loss] = {
    "waves along the batch": lambda m, x: head(m, x + m.waves[: len(x)]),
    "weights that alternate": lambda m, x: head(m, x) * (-1.0) ** torch.arange(len(x)),
    "weights by thirds": lambda m, x: head(m, x) * (1 + torch.arange(len(x)) % 3),
    "the last record": lambda m, x: head(m, x) * (1 + (torch.arange(len(x)) == len(x) - 1)),
    "an even number": lambda m, x: head(m, x) * (2 - len(x) % 2),
    "waves, and dropout": lambda m, x: head(m, F.dropout(x, 0.3) + m.waves[: len(x)]),
    "waves, and noise": lambda m, x: head(m, x + torch.randn_like(x) + m.waves[: len(x)]),
    "waves, and noise in place": lambda m, x: head(
        m, x * torch.empty(len(x), 1, 1).bernoulli_(0.5) + m.waves[: len(x)]
    ),
    "waves, and steps of noise": lambda m, x: head(
        m, x + m.waves[torch.randint(0, 9, (len(x),))] + m.waves[: len(x)]
    ),
    "the same noise each time": lambda m, x: head(
        m, x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    ),
    "the same noise, and dropout": lambda m, x: head(
        m, F.dropout(x, 0.3) + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    ),
    "noise that is seeded": lambda m, x: head(m, x + seeded_noise(x)),
    "waves, and gammas": lambda m, x: head(
        m, x * torch.distributions.Beta(1.0, 2.0).sample((len(x), 1, 1)) + m.waves[: len(x)]
    ),
    "waves, and attention": lambda m, x: head(
        m, F.scaled_dot_product_attention(x, x, x, dropout_p=0.1) + m.waves[: len(x)]
    ),
}
TRAINED: dict[str, Loss] = {
    "a table along the batch": lambda m, x: head(m, x + m.positions(torch.arange(len(x)))[:, None]),
    "a parameter along the batch": lambda m, x: head(m, x + m.free[: len(x)]),
    "a scale along the batch": lambda m, x: head(m, x * (1 + m.free[: len(x)])),
    "a table, and dropout": lambda m, x: head(
        m, F.dropout(x, 0.3) + m.positions(torch.arange(len(x)))[:, None]
    ),
}
"""Tables of zeros: losses are the same everywhere, gradients are not."""
PLACELESS: dict[str, Loss] = {
    "waves along positions": lambda m, x: head(m, x + m.waves[: x.shape[1]].transpose(0, 1)),
    "rows chosen by number": lambda m, x: torch.as_tensor(
        m.first(x)[torch.arange(len(x)), x.argmax(1)[:, 0]].square().sum(1)
    ),
    "states of zeros": lambda m, x: head(m, x + torch.zeros(len(x), 1, 4)),
    "noise of their own": lambda m, x: head(m, x + torch.randn_like(x)),
    "large terms that cancel": lambda m, x: head(m, (x + 1e4) - 1e4),
}


def sums(engine: FastEngine, x: Tensor) -> Tensor:
    buffers = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(buffers, (x,), None, torch.tensor([C]))
    return torch.cat([buffer.flatten() for buffer in buffers.values()])


def engine_of(loss: Loss) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(Tables(), loss, FlatClipping(C))


def records(n: int = 12) -> Tensor:
    return torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("loss", BY_PLACE.values(), ids=BY_PLACE)
@pytest.mark.parametrize("n", [5, 12])
def test_losses_by_place_are_refused(loss: Loss, n: int) -> None:
    with pytest.raises(UnsupportedModel, match="left out, by its place"):
        sums(engine_of(loss), records(n))


@pytest.mark.parametrize("loss", BY_PLACE.values(), ids=BY_PLACE)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_losses_by_place_are_refused_in_small_batches(loss: Loss, n: int) -> None:
    with pytest.raises(UnsupportedModel, match="left out, by its place"):
        sums(engine_of(loss), records(n))


@pytest.mark.parametrize("loss", TRAINED.values(), ids=TRAINED)
def test_gradients_by_place_are_of_records_alone(loss: Loss) -> None:
    engine, x = engine_of(loss), records()
    torch.manual_seed(2)
    found = sums(engine, x)
    assert engine.route != "fast"
    torch.manual_seed(2)
    if "dropout" not in str(loss.__code__.co_names):
        alone = torch.stack([sums(engine_of(loss), row[None]) for row in x]).sum(0)
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", PLACELESS.values(), ids=PLACELESS)
def test_what_does_not_go_by_places_is_fast(loss: Loss) -> None:
    engine = engine_of(loss)
    sums(engine, records())
    assert engine.route == "fast"


@pytest.mark.parametrize("losses", [True, False], ids=["by losses", "by gradients"])
def test_without_the_probe_one_record_moves_all(losses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isolation, "_probe_place", lambda _, trace, batch: setattr(trace, "up_to", None))

    def signed(m: Tables, x: Tensor) -> Tensor:
        return TRAINED["a table along the batch"](m, x) * 100 * x[:, 0, 0].sign()

    engine = engine_of(BY_PLACE["weights that alternate"] if losses else TRAINED["a table along the batch"])
    if not losses:
        model = engine.model.requires_grad_(False)
        model.get_submodule("positions").requires_grad_(True)
        engine = FastEngine(model, signed, FlatClipping(C))
    x = records()
    whole, without = sums(engine, x), sums(engine, x[1:])
    assert engine.route == "fast"
    assert float((whole - without).norm()) > 1.5 * C


def test_a_divisor_that_sets_in_with_more_records_is_seen_then() -> None:
    engine, x = engine_of(lambda m, x: head(m, x) * min(1.0, 16 / len(x))), records(20)
    sums(engine, x[:12])
    with pytest.raises(UnsupportedModel, match="do not release what they trained"):
        sums(engine, x)


@pytest.mark.parametrize("T", [11, 12, 36, 77, 1003])
def test_tables_that_a_loss_holds_are_tables_whatever_their_length(T: int) -> None:
    table = torch.randn(T, 1, 4)
    engine = engine_of(lambda m, x: head(m, x + table[x[:, 0, 0].abs().long() % T]))
    for n in (12, 13, 18):
        sums(engine, records(n))
        assert engine.route == "fast"
