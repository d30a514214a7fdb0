"""Layouts: in whatever order a model has rows, positions and tables, the sum is that of a loop over records.

Letters: n records; T positions; V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import (
    Maker,
    Of,
    Shape,
    called,
    double,
    each,
    equals_a_loop,
    is_refused,
    most_moved,
    one_or_two_views,
    waves,
)
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine

C, V = 0.3, 11
Layout = Callable[[Any, Tensor], Any]


def engine_of(function: Layout, *layers: Maker, views: int = 1) -> FastEngine:
    return FastEngine(called(function, *layers)().double(), waves, FlatClipping(C), views=views)


def flat(layers: Any, x: Tensor) -> Any:
    h = x.flatten(0, 1)
    for layer in layers:
        h = layer(h)
    return h.view(*x.shape[:2], *h.shape[1:])


def time_first(layers: Any, x: Tensor) -> Any:
    h = layers[0](x.transpose(0, 1).flatten(0, 1))
    return h.view(x.shape[1], len(x), -1).transpose(0, 1)


def by_size(layers: Any, x: Tensor) -> Any:
    order = x.sum((1, 2)).argsort()
    return layers[0](x[order])[order.argsort()]


def tokens_by_size(layers: Any, x: Tensor) -> Any:
    tokens = x.flatten(0, 1)
    order = tokens.sum(1).argsort()
    out = tokens.new_zeros(len(tokens), 4).index_copy(0, order, layers[0](tokens[order]))
    return out.view(*x.shape[:2], -1)


def scaled_back(layers: Any, x: Tensor) -> Any:
    """Gradients divided by what was computed of the whole batch; the losses are those of each record."""
    h = layers[0](x)
    values = h.detach()
    return torch.add(values, (h - values) / values.norm())


def hooked(layers: Any, x: Tensor) -> Any:
    h = layers[0](x)
    if h.requires_grad:
        norm = h.detach().norm()
        h.register_hook(lambda g: g * (norm + g.mean()).sin())
    return h.sin()


def tabled(layers: Any, x: Tensor) -> Any:
    """Reads tables that are made in the forward pass, by constants and by what records say."""
    places = torch.linspace(-1.0, 1.0, 24, dtype=x.dtype).view(8, 3)
    near = places[(x[:, 0, :1] > 0).long() + torch.arange(4)]  # (B, 4, 3)
    return layers[0](x[:, :4] + near) + layers[0](places[:4])


def adapted(layers: Any, x: Tensor) -> Any:
    """A low-rank adapter that no gradient reaches at first, on rows in another order."""
    return layers[1](layers[0](x.flip(0)).flip(0)) + x.sum((1, 2))[:, None, None]


GONE = 9.0
"""Marks positions that are left out: not 0, so that records of zeros have all."""


def packed(layers: Any, x: Tensor) -> Any:
    kept = x[..., 0] != GONE
    out = x.new_zeros(*x.shape[:2], 4)
    out[kept] = layers[0](x[kept])
    return out


def linear() -> nn.Module:
    return nn.Linear(3, 4)


def zeroed() -> nn.Module:
    layer = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def frames() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 1, 2))


def positions() -> nn.Module:
    return nn.Sequential(linear(), nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 2))


LAYOUTS: dict[str, tuple[Layout, list[Maker], Shape]] = {
    "flattened": (flat, [positions], (5, 3)),
    "flattened frames": (flat, [frames], (3, 2, 5, 4)),
    "flattened cells": (flat, [lambda: nn.GRUCell(3, 4)], (5, 3)),
    "time first": (time_first, [linear], (5, 3)),
    "rows by size": (by_size, [linear], (5, 3)),
    "tokens by size": (tokens_by_size, [linear], (5, 3)),
    "scaled backwards": (scaled_back, [linear], (5, 3)),
    "a hook of the batch": (hooked, [linear], (5, 3)),
    "tables": (tabled, [linear], (5, 3)),
    "an adapter that begins at zero": (adapted, [linear, zeroed], (5, 3)),
}


@pytest.mark.thorough(cases="values")
@one_or_two_views
@each("function, layers, shape", LAYOUTS)
def test_layouts_are_fast_and_right(function: Layout, layers: list[Maker], shape: Shape, views: int) -> None:
    """With as many records as some other length, too."""
    engine = engine_of(function, *layers, views=views)
    for n in (1, 2, 3, 5):
        equals_a_loop(engine, double(n * views, *shape))
        for parameter in engine.model.parameters():
            nn.init.normal_(parameter)


def test_packed_positions_are_refused() -> None:
    is_refused("boolean mask depends", engine_of(packed, linear), double(4, 5, 3))


def gated(layers: Any, x: Tensor) -> Any:
    """The second layer reaches the loss of records that are large alone."""
    return layers[0](x) + (x[:, 0, 0] > 50)[:, None, None] * layers[1](x.flip(0)).flip(0)


def test_what_some_batches_have_and_others_do_not_is_right() -> None:
    engine = engine_of(gated, linear, linear)
    for large in (0, 0, 4, 1, 0, 1):
        x = double(4, 5, 3).clamp(-1, 1)
        x[4 - large :, 0, 0] = 60.0
        equals_a_loop(engine, x)


def recurrent(layer: Callable[[int, int], nn.Module], *, mixes: bool = False) -> nn.Module:
    """Time first, as layers are without ``batch_first``."""

    def forward(m: Any, tokens: Tensor) -> Any:
        h = m.table(tokens.t())
        h = m.norm(m.layer(input=h + h.roll(1, 1) if mixes else h)[0])
        h = torch.einsum("tbd,tbd->tbd", h, torch.add(h, other=h).sin())
        return m.head(h * m.scale).permute(1, 2, 0)

    parts = {"table": nn.Embedding(V, 4), "layer": layer(4, 6), "norm": nn.LayerNorm(6)}
    return Of(forward, scale=nn.Parameter(torch.rand(6)), head=nn.Linear(6, V), **parts)


def translator() -> nn.Module:
    def forward(m: Any, tokens: Tensor) -> Any:
        h = m.table(tokens.t()) - m.places[: tokens.shape[1]]
        out = m.layers(h, h.flip(2)) @ m.table.weight.t()
        return (out * (out @ m.pool)[..., None]).permute(1, 2, 0)

    return Of(
        forward,
        table=nn.Embedding(V, 4),
        layers=nn.Transformer(4, 2, 1, 1, 6, dropout=0.0),
        places=nn.Parameter(torch.rand(20, 1, 4)),
        pool=nn.Parameter(torch.rand(V)),
    )


def next_words(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), tokens.roll(1, 1), reduction="none").mean(1)


TIME_FIRST: dict[str, Maker] = {
    "LSTM": lambda: recurrent(nn.LSTM),
    "GRU": lambda: recurrent(nn.GRU),
    "transformer": translator,
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@one_or_two_views
@each("make", TIME_FIRST)
def test_models_with_time_first_are_fast_right_and_bounded(make: Maker, views: int) -> None:
    model = make().double()
    engine = FastEngine(model, next_words, FlatClipping(C), views=views)
    for n, T in ((4, 7), (6, 6), (7, 3)):
        tokens = torch.randint(V, (n * views, T))
        equals_a_loop(engine, tokens)
        assert most_moved(engine, tokens, records=[0]) <= 1 + 1e-9


def test_a_model_with_time_first_that_mixes_records_is_refused() -> None:
    engine = FastEngine(recurrent(nn.GRU, mixes=True).double(), next_words, FlatClipping(C))
    is_refused("mixes records", engine, torch.randint(V, (4, 7)))
