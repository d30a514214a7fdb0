"""Models whose rows lie in the second dimension go fast, are right, and are seen through where they mix."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.errors import UnsupportedModel

C, V = 0.3, 11


class Recurrent(nn.Module):
    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(V, 4), layer(4, 6), nn.Linear(6, V)
        self.norm, self.scale = nn.LayerNorm(6), nn.Parameter(torch.rand(6))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.norm(self.layer(input=self.table(tokens.t()))[0])
        h = torch.einsum("tbd,tbd->tbd", h, torch.add(h, other=h).sin())
        out: Tensor = self.head(h * self.scale)
        return out.permute(1, 2, 0)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(V, 4), nn.Parameter(torch.rand(20, 1, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.shift, self.pool = (
            nn.Linear(4, V),
            nn.Parameter(torch.rand(1, V)),
            nn.Parameter(torch.rand(V)),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens.t()) - self.places[: tokens.shape[1]]
        out: Tensor = self.shift + self.head(self.layers(h))
        return (out * (out @ self.pool)[..., None]).permute(1, 2, 0)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(V, 4), nn.Transformer(4, 2, 1, 1, 6, dropout=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens.t())
        out: Tensor = self.layers(h, h.flip(2)) @ self.table.weight.t()
        return out.permute(1, 2, 0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "encoder": Encoder,
    "transformer": Translator,
}


def losses(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), tokens.roll(1, 1), reduction="none").mean(1)


def clipped(model: nn.Module, tokens: Tensor, views: int) -> dict[str, Tensor]:
    """The definition, record by record, by autograd."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for record in tokens.view(-1, views, tokens.shape[1]):
        gradients = torch.autograd.grad(losses(model, record).mean(), list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, g in zip(total, gradients, strict=True):
            total[name] += min(1.0, C / norm) * g
    return total


def add(engine: FastEngine, tokens: Tensor) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, (tokens,), None, torch.tensor([C], dtype=torch.float64))
    return sums


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("n", "length"), [(4, 7), (5, 6), (4, 8), (6, 6), (7, 3)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_right_and_one_record_moves_them_by_no_more_than_the_bound(
    name: str, n: int, length: int, views: int
) -> None:
    torch.manual_seed(0)
    model, tokens = MODELS[name]().double(), torch.randint(V, (n * views, length))
    engine = FastEngine(model, losses, FlatClipping(C), views=views)
    found = add(engine, tokens)
    assert engine.route == "fast" or n * views == length
    for parameter, value in clipped(model, tokens, views).items():
        torch.testing.assert_close(found[parameter], value, rtol=1e-9, atol=1e-12, msg=parameter)
    without = add(engine, tokens[views:])
    moved = math.sqrt(sum(float((found[key] - without[key]).square().sum()) for key in found))
    assert moved <= C * (1 + 1e-9)


class Mixed(Recurrent):
    """Adds what the record beside it has, where the rows lie."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens.t())
        out: Tensor = self.head(self.layer(h + h.roll(1, 1))[0])
        return out.permute(1, 2, 0)


def test_a_model_that_mixes_records_beside_each_other_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="mix"):
        add(FastEngine(Mixed(nn.GRU).double(), losses, FlatClipping(C)), torch.randint(V, (4, 7)))
