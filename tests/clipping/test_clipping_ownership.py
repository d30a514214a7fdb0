"""Which record a position belongs to: flattened layouts are fast and right, all others are found."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import probe
from tacit.clipping.isolation.tolerance import Tolerance
from tacit.clipping.per_example import recorder
from tacit.clipping.per_example.order import keeps_owners
from tacit.errors import UnsupportedModel

C = 0.3
Layout = Callable[[nn.ModuleList, Tensor], Tensor]


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


class Model(nn.Module):
    """Some layers, and a function of them and of the batch."""

    def __init__(self, function: Layout, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    """One loss for each row of the output, (B, ...)."""
    out: Tensor = model(x)
    weights = torch.linspace(0.2, 1.0, out[0].numel(), dtype=out.dtype)
    return (out.flatten(1) * weights).sum(1).sin() + (out.flatten(1) ** 2).mean(1)


def oracle(model: nn.Module, x: Tensor, views: int = 1) -> dict[str, Tensor]:
    """The clipped sum by one backward pass per record."""
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


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return all(torch.allclose(found[name], value, rtol=1e-10, atol=1e-12) for name, value in wanted.items())


def rows(n: int = 4, *shape: int) -> Tensor:
    return torch.randn(n, *(shape or (5, 3)), dtype=torch.float64)


def product(layers: nn.ModuleList, x: Tensor) -> Tensor:
    weight, bias = layers[0].parameters()
    flat = torch.addmm(bias, x.view(-1, x.shape[-1]), weight.T)
    return flat.view(*x.shape[:-1], flat.shape[-1])


def flat(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h = x.flatten(0, 1)
    for layer in layers:
        h = layer(h)
    return h.view(*x.shape[:2], *h.shape[1:])


def looked_up(layers: nn.ModuleList, x: Tensor) -> Tensor:
    within = torch.arange(x.shape[1]).flip(0) + x.shape[1] * torch.arange(len(x))[:, None]
    return layers[0](x.flatten(0, 1)[within.flatten()]).view(*x.shape[:2], -1)  # type: ignore[no-any-return]


FLATTENED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Model(flat, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (5, 3)),
    "addmm": (lambda: Model(product, nn.Linear(3, 4)), (5, 3)),
    "one position": (lambda: Model(flat, nn.Linear(3, 4)), (1, 3)),
    "layer norm": (lambda: Model(flat, nn.Linear(3, 4), nn.LayerNorm(4), nn.PReLU()), (5, 3)),
    "frames": (
        lambda: Model(flat, nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 1, 2)),
        (3, 2, 5, 4),
    ),
    "cells": (lambda: Model(flat, nn.GRUCell(3, 4)), (5, 3)),
    "looked up within a record": (lambda: Model(looked_up, nn.Linear(3, 4)), (5, 3)),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("make", "shape"), FLATTENED.values(), ids=FLATTENED)
def test_positions_in_the_first_dimension_are_fast_and_right(
    make: Callable[[], nn.Module], shape: tuple[int, ...], views: int
) -> None:
    torch.manual_seed(0)
    model = make().double()
    engine = FastEngine(model, losses, FlatClipping(C), views=views)
    for n in (1, 4, 3):
        x = rows(n * views, *shape)
        assert same(add(engine, x), oracle(model, x, views))
    assert engine.route == "fast"


def time_first(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h = layers[0](x.transpose(0, 1).flatten(0, 1))
    return h.view(x.shape[1], len(x), -1).transpose(0, 1)  # type: ignore[no-any-return]


def halves_apart(layers: nn.ModuleList, x: Tensor) -> Tensor:
    first, last = layers[0](torch.cat([x[:, :2].flatten(0, 1), x[:, 2:4].flatten(0, 1)])).chunk(2)
    return torch.cat([first.view(len(x), 2, -1), last.view(len(x), 2, -1)], dim=1)


def flipped(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x.flatten(0, 1).flip(0)).flip(0).view(*x.shape[:2], -1)  # type: ignore[no-any-return]


def by_size(layers: nn.ModuleList, x: Tensor) -> Tensor:
    order = x.sum((1, 2)).argsort()
    h = layers[0](torch.stack([x[i] for i in order.tolist()]))
    return h[order.argsort()]  # type: ignore[no-any-return]


def tokens_by_size(layers: nn.ModuleList, x: Tensor) -> Tensor:
    tokens = x.flatten(0, 1)
    order = tokens.sum(1).argsort()
    out = tokens.new_zeros(len(tokens), 4).index_copy(0, order, layers[0](tokens[order]))
    return out.view(*x.shape[:2], -1)


def gathered(layers: nn.ModuleList, x: Tensor) -> Tensor:
    order = x[:, 0, 0].argsort()
    index = order[:, None, None].expand_as(x)
    return layers[0](x.gather(0, index))[order.argsort()]  # type: ignore[no-any-return]


FOUND: dict[str, Layout] = {
    "time first": time_first,
    "halves apart": halves_apart,
    "flipped": flipped,
    "rows by size": by_size,
    "tokens by size": tokens_by_size,
    "gathered": gathered,
}


@pytest.mark.parametrize("function", FOUND.values(), ids=FOUND)
def test_other_layouts_are_found_and_right(function: Layout) -> None:
    torch.manual_seed(0)
    model = Model(function, nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for n in (4, 2, 5):
        x = rows(n)
        assert same(add(engine, x), oracle(model, x))
    assert engine.route.startswith("reference")


class Tabled(nn.Module):
    """Reads tables that are made in its forward pass, and one that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.grid = nn.Linear(3, 4), torch.rand(8, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.linspace(-1.0, 1.0, 12, dtype=x.dtype).view(4, 3)
        near = self.grid[(x[:, 0, :1] > 0).long() + torch.arange(4)]  # (B, 4, 3)
        return torch.as_tensor(self.layer(x[:, :4] + near) + self.layer(places) + self.layer(self.grid[:4]))


def test_tables_are_known_by_what_they_are_made_of() -> None:
    model = Tabled().double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for n in (3, 2, 5, 7):
        x = rows(n)
        assert same(add(engine, x), oracle(model, x))
    assert engine.route == "fast"


def written_to(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """A table no more: the number of the batch is in it."""
    grid = torch.zeros(2, 2)
    grid.view(4)[:1].copy_(x.max().float())
    h: Tensor = layers[0](x)
    return torch.as_tensor(layers[1](h.roll(1, 0) if grid[0, 0] > 50 else h))


def times_a_number(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """What is derived from a parameter and a number of the batch."""
    h: Tensor = layers[0](x)
    norm = layers[0].get_parameter("weight").norm()
    return torch.as_tensor(layers[1](h.roll(1, 0) if norm * 0 + x.max() > 50 else h))


def by_digits(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return torch.as_tensor(layers[1](h.roll(1, 0) if float(f"{x.max():.3f}") > 50 else h))


def by_whole(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return torch.as_tensor(layers[1](h.roll(1, 0) if int(x.max()) > 50 else h))


def by_array(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return torch.as_tensor(layers[1](h.roll(1, 0) if np.asarray(x).max() > 50 else h))


def by_place(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return torch.as_tensor(layers[1](h.roll(1, 0) if len(torch.where(x.flatten() > 50)[0]) else h))


def by_key(layers: nn.ModuleList, x: Tensor) -> Tensor:
    order = x.amax((1, 2)).gt(50).long().argsort(stable=True)
    h: Tensor = layers[0](torch.stack([x[k] for k in order]))
    return torch.as_tensor(layers[1](torch.stack([h[k] for k in order.argsort()])))


def by_bound(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Rows are cut where a number of the batch says, put together the other way round, and back."""
    cut = x.amax((1, 2)).gt(50).long().sum()
    h: Tensor = layers[0](torch.cat([x[cut:], x[:cut]]))
    return torch.as_tensor(layers[1](torch.cat([h[len(h) - cut :], h[: len(h) - cut]])))


ASKED = [written_to, times_a_number, by_digits, by_whole, by_array, by_place, by_key, by_bound]


@pytest.mark.usefixtures("unfollowed")
@pytest.mark.parametrize("function", ASKED)
def test_no_number_of_a_batch_leads_a_model_elsewhere_unseen(
    function: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adds_up() -> bool:
        torch.manual_seed(0)
        model = Model(function, nn.Linear(3, 4), nn.Linear(4, 2)).double()
        engine = FastEngine(model, losses, FlatClipping(C))
        x, large = rows(9), rows(1) * 100
        add(engine, x)
        with_large, without = add(engine, large), add(engine, x)
        both = {name: with_large[name] + without[name] for name in without}
        batches = [torch.cat([x[:place], large, x[place:]]) for place in (0, 4, 9)]
        return all(same(add(engine, batch), both) for batch in batches)

    monkeypatch.setattr(FastEngine, "_look_again", lambda *_: None)  # which would refuse some of them
    assert adds_up()
    monkeypatch.setattr(recorder, "ANSWERS", frozenset())
    monkeypatch.setattr(recorder, "WATCHED", {})
    assert not adds_up(), "else this shows nothing"


@pytest.mark.usefixtures("unfollowed")
def test_a_record_larger_than_all_before_is_looked_at_anew() -> None:
    model = Model(lambda layers, x: layers[1](rolled_by_where(layers, x)), nn.Linear(3, 4), nn.Linear(4, 2))
    engine, x = FastEngine(model.double(), losses, FlatClipping(C)), rows(9)
    for _ in range(4):
        add(engine, x)  # the fourth is looked at again in any case
    x[5] *= 100
    with pytest.raises(UnsupportedModel, match="do not release"):
        add(engine, x)


GONE = 9.0
"""Marks positions that are left out: not 0, so that records of zeros have all."""


def packed(layers: nn.ModuleList, x: Tensor) -> Tensor:
    kept = x[..., 0] != GONE
    out = x.new_zeros(*x.shape[:2], 4)
    out[kept] = layers[0](x[kept])
    return out


def sliced(layers: nn.ModuleList, x: Tensor) -> Tensor:
    lengths = (x[..., 0] != GONE).sum(1).tolist()
    h = layers[0](torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)]))
    return torch.stack([F.pad(part, (0, 0, 0, x.shape[1] - len(part))) for part in h.split(lengths)])


@pytest.mark.parametrize("function", [packed, sliced])
def test_packed_positions_are_not_taken_for_flattened_ones(function: Layout) -> None:
    """As many positions as records of equal length have, once from equal and once from unequal lengths."""
    torch.manual_seed(0)
    model = Model(function, nn.Linear(3, 4, bias=False)).double()
    for lengths in ([2, 2, 2, 2], [1, 1, 1, 1]):
        engine = FastEngine(model, losses, FlatClipping(C))
        for uneven in (0, 1):
            x = rows(4)
            for row, length in zip(x, [lengths[0] - uneven, *lengths[1:3], lengths[3] + uneven], strict=True):
                row[length:] = GONE
            if lengths[0] > uneven:
                assert same(add(engine, x), oracle(model, x))
        assert engine.route.startswith("reference")


class Adapted(nn.Module):
    """A low-rank adapter that starts at zero, on rows in another order."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.up.weight)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.order(self.down(self.order(x)))) + x.sum((1, 2))[:, None, None]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("unfollowed")
def test_a_layer_that_no_gradient_reaches_yet_is_judged_when_one_does() -> None:
    torch.manual_seed(0)
    engine = FastEngine(Adapted(lambda h: h.flip(0)).double(), losses, FlatClipping(C))
    straight = FastEngine(Adapted(lambda h: h).double(), losses, FlatClipping(C))
    for judged in (engine, straight):
        add(judged, rows())
        nn.init.normal_(judged.model.get_parameter("up.weight"))
        x = rows()
        assert same(add(judged, x), oracle(judged.model, x))
    assert straight.route == "fast"
    assert engine.route.startswith("record by record: the model does not keep the rows")


def test_a_use_that_only_other_records_have_is_taken_in_parts() -> None:
    """The few records of the proof give the second layer no gradient; the last one does."""

    def gated(layers: nn.ModuleList, x: Tensor) -> Tensor:
        open_ = (x[:, 0, 0] > 100).to(x.dtype)[:, None, None]
        return layers[0](x) + open_ * layers[1](x.flip(0)).flip(0)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Model(gated, nn.Linear(3, 4), nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    x = rows(6)
    x[5, 0, 0] = 101.0
    for batch in (x, rows(6), x):
        wanted = {k: torch.zeros_like(v) for k, v in model.named_parameters()}
        for row in batch[:, None]:
            gradients = torch.autograd.grad(losses(model, row), list(model.parameters()))
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
            for name, g in zip(wanted, gradients, strict=True):
                wanted[name] += min(1.0, C / norm) * g
        assert same(add(engine, batch), wanted)


def rest_apart(layers: nn.ModuleList, x: Tensor) -> Tensor:
    out = layers[0](torch.cat([x[:, :2].flatten(0, 1), x[:, 2:].flatten(0, 1)]))
    first, last = out[: 2 * len(x)], out[2 * len(x) :]
    return torch.cat([first.view(len(x), 2, 4), last.view(len(x), x.shape[1] - 2, 4)], dim=1)


def test_a_way_is_judged_for_each_length() -> None:
    """Records of two positions have no rest, and so lie in order."""
    model = Model(rest_apart, nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for T in (2, 5):
        x = rows(4, T, 3)
        assert same(add(engine, x), oracle(model, x))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_records_do_not_hinder_the_proof(bad: float) -> None:
    torch.manual_seed(0)
    model = Model(flat, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for where in ([0], [0, 1, 2], [3]):
        engine, x = FastEngine(model, losses, FlatClipping(C)), rows(5)
        broken = x.clone()
        broken[where, 1, 1] = bad
        keep = [i for i in range(5) if i not in where]
        assert same(add(engine, broken), oracle(model, x[keep]))
        assert engine.route == "fast"


@pytest.mark.usefixtures("unfollowed")
def test_without_the_proof_other_layouts_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "owned_uses", lambda probe, j, n: set(range(len(list(probe.all_uses())))))
    monkeypatch.setattr(Tolerance, "check_each", lambda *_: True)
    monkeypatch.setattr(Tolerance, "check_norms", lambda *_: True)
    for function in (time_first, halves_apart):
        model, x = Model(function, nn.Linear(3, 4)).double(), rows()
        engine = FastEngine(model, losses, FlatClipping(C))
        assert not same(add(engine, x), oracle(model, x))
        assert engine.route == "fast"


@pytest.mark.usefixtures("unfollowed")
def test_without_the_watch_packed_positions_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "WATCHED", {})
    for function in (packed, sliced):
        with pytest.raises(AssertionError):
            test_packed_positions_are_not_taken_for_flattened_ones(function)


@settings(max_examples=60, deadline=None)
@given(
    index=st.lists(st.integers(-12, 11), max_size=12), rows=st.sampled_from([1, 2, 3, 4, 6]), L=st.just(12)
)
def test_lookups_are_judged_by_their_owners(index: list[int], rows: int, L: int) -> None:
    each, k = len(index) // rows, L // rows
    wanted = len(index) > 0 and len(index) % rows == 0
    wanted = wanted and all(i % L // k == place // each for place, i in enumerate(index))
    assert keeps_owners(torch.tensor(index, dtype=torch.int64), L, rows) == wanted


def back(h: Tensor, order: list[int]) -> Tensor:
    """Rows in this order, as they were before."""
    return torch.stack([h[order.index(i)] for i in range(len(order))])


def sorted_in_python(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """By a key that three records may share, as lengths are."""
    order = sorted(range(len(x)), key=lambda i: round(float(x[i, 0, 0])))
    h: Tensor = layers[0](torch.stack([x[i] for i in order]))
    return back(h, order)


def even_then_odd(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """By number: two and three rows stay as they are."""
    k = len(x) // 2 * 2
    order = [*range(0, k, 2), *range(1, k, 2), *range(k, len(x))]
    h: Tensor = layers[0](torch.stack([x[i] for i in order]))
    return back(h, order)


def scaled_back(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Gradients divided by what was computed of the whole batch; the losses are those of each record."""
    h: Tensor = layers[0](x)
    values = h.detach()
    return torch.add(values, (h - values) / values.norm())


def hooked(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    if h.requires_grad:
        norm = h.detach().norm()
        h.register_hook(lambda g: g / norm)  # type: ignore[no-untyped-call]
    return h


@pytest.mark.untraced
@pytest.mark.usefixtures("unfollowed")
@pytest.mark.parametrize("function", [sorted_in_python, even_then_odd, scaled_back, hooked])
@pytest.mark.parametrize("n", [4, 9, 40])
def test_what_three_records_do_not_show_goes_record_by_record(
    function: Callable[[nn.ModuleList, Tensor], Tensor], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_a_head(layers: nn.ModuleList, x: Tensor) -> Tensor:
        head: nn.Module = layers[1]
        return torch.as_tensor(head(function(layers, x)))

    def engine_sum() -> tuple[str, bool]:
        torch.manual_seed(0)
        model, x = Model(then_a_head, nn.Linear(3, 4), nn.Linear(4, 2)).double(), rows(n)
        x *= torch.logspace(-1, 1, n)[:, None, None]
        x[:, 0, 0] = torch.tensor([50.0] * 3 + [float(n - i) for i in range(3, n)])
        engine = FastEngine(model, losses, FlatClipping(C))
        found = add(engine, x)
        return engine.route, same(found, oracle(model, x))

    route, right = engine_sum()
    assert right
    assert route.startswith("record by record")
    monkeypatch.setattr(Tolerance, "check_each", lambda *_: True)
    monkeypatch.setattr(Tolerance, "check_norms", lambda *_: True)
    monkeypatch.setattr(recorder, "ANSWERS", frozenset())
    assert engine_sum() == ("fast", False), "else this shows nothing"


def rolled_by_truth(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return h.roll(1, 0) if x.max() > 50 else h


def rolled_by_number(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return h.roll(1, 0) if x.max().item() > 50 else h


def rolled_by_where(layers: nn.ModuleList, x: Tensor) -> Tensor:
    h: Tensor = layers[0](x)
    return torch.where(x.max() > 50, h.roll(1, 0), h)


def back_by_truth(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Its losses are those of each record; its gradients are clipped together where they are large."""

    def clipped(g: Tensor) -> Tensor:
        return g / g.norm() if g.norm() > 50 else g

    h: Tensor = layers[0](x)
    if h.requires_grad:
        h.register_hook(clipped)  # type: ignore[no-untyped-call]
    return h * torch.where(x.abs().amax((1, 2), keepdim=True) > 50, 1000.0, 1.0)


def adds_up_beside_a_large_record(function: Callable[[nn.ModuleList, Tensor], Tensor], n: int) -> bool:
    """Whether the sum of n records and a large one, anywhere among them, is always that of both parts."""
    model = Model(lambda layers, x: layers[1](function(layers, x)), nn.Linear(3, 4), nn.Linear(4, 2)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    x, large = rows(n), rows(1) * 100
    assert same(add(engine, x), oracle(model, x))
    assert engine.route == "fast" or function in (rolled_by_number, back_by_truth)
    with_large, without = add(engine, large), add(engine, x)
    both = {name: with_large[name] + without[name] for name in without}
    places = range(0, n + 1, 4)
    return all(same(add(engine, torch.cat([x[:place], large, x[place:]])), both) for place in places)


@pytest.mark.untraced
@pytest.mark.usefixtures("unfollowed")
@pytest.mark.parametrize("function", [rolled_by_truth, rolled_by_number, back_by_truth])
@pytest.mark.parametrize("n", [5, 40])
def test_what_one_large_record_moves_a_model_to_is_not_believed(
    function: Callable[[nn.ModuleList, Tensor], Tensor], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FastEngine, "_look_again", lambda *_: None)  # which would refuse some of them
    assert adds_up_beside_a_large_record(function, n)
    monkeypatch.setattr(recorder, "ANSWERS", frozenset())
    assert not adds_up_beside_a_large_record(function, n), "else this shows nothing"


@pytest.mark.usefixtures("unfollowed")
@pytest.mark.parametrize("place", [8, 21])
def test_an_extreme_record_is_among_those_that_a_way_is_judged_by(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine_sum() -> tuple[str, bool]:
        torch.manual_seed(0)
        layers = nn.Linear(3, 4), nn.Linear(4, 2)
        model = Model(lambda layers, x: layers[1](rolled_by_where(layers, x)), *layers).double()
        engine, x = FastEngine(model, losses, FlatClipping(C)), rows(40)
        x[place] *= 100
        monkeypatch.setattr(
            "tacit.clipping.isolation.mixing.mixing_probe", lambda *_, **__: True
        )  # sees the losses
        return engine.route, same(add(engine, x), oracle(model, x))

    assert engine_sum()[1]
    monkeypatch.setattr(
        probe.Ownership,
        "refuse_what_hangs_on_others",
        lambda of, _, doubt: (of._shown_apart.add(doubt.way), of._followed.add(doubt.path)),
    )
    assert not engine_sum()[1], "else this shows nothing"


def test_questions_with_the_same_answer_do_not_slow_a_model_down() -> None:
    def asked(layers: nn.ModuleList, x: Tensor) -> Tensor:
        if not x.isfinite().all() or bool(x.isnan().any().item()) or 3.0e300 in x:
            raise ValueError("no such record")
        with torch.no_grad():
            norms = [float(p.square().sum()) + p.norm().item() for p in layers.parameters()]
        h: Tensor = layers[0](x) / (1.0 + layers[0].get_parameter("weight").detach().norm().item())
        return torch.as_tensor(layers[1](h) / sum(norms))

    model = Model(asked, nn.Linear(3, 4), nn.Linear(4, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for _ in range(4):
        x = rows(5)
        assert same(add(engine, x), oracle(model, x))
        with torch.no_grad():
            for parameter in model.parameters():  # as a step does
                parameter.mul_(1.01)
    assert engine.route == "fast"
    assert sum(name.startswith("way") for name in engine.measured) == 1


def test_a_condition_is_judged_on_each_of_its_sides() -> None:
    """As where a mask is left out if it hides nothing: that hangs on all records, and alters none."""

    def masked(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h, shown = torch.as_tensor(layers[0](x)), x[:, :, :1] < 2
        return h if shown.all() else h * shown

    model = Model(masked, nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for some in (False, True, False, True):
        x = rows(9).clamp(-1, 1)
        x[5:, 3:, 0] = 3.0 if some else 0.0
        assert same(add(engine, x), oracle(model, x))
    ways = sum(name.startswith("way") for name in engine.measured)
    for start in (0, 4, 5):
        x = rows(9).clamp(-1, 1)
        x[start:, 3:, 0] = 3.0
        assert same(add(engine, x), oracle(model, x))
    assert ways == sum(name.startswith("way") for name in engine.measured) == 2
    assert engine.route == "fast"


class FromZero(nn.Module):
    """Its hidden weights read nothing but zeros at first, so that this use never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.forwards = nn.RNNCell(3, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        object.__setattr__(self, "forwards", self.forwards + 1)
        h = x.new_zeros(len(x), 4)
        for inputs in x.unbind(1):
            h = self.cell(inputs, h)
        return h


def test_a_use_without_a_gradient_does_not_hinder_the_proof() -> None:
    model = FromZero().double()
    engine, counts = FastEngine(model, losses, FlatClipping(C)), []
    for _ in range(9):
        x, before = rows(5), model.forwards
        assert same(add(engine, x), oracle(model, x))
        counts.append(model.forwards - before - len(x))
    assert engine.route == "fast"
    assert [batch for batch, count in enumerate(counts, 1) if count > 1] == [1, 4]


def test_what_is_proven_grows_where_it_does_not_suffice() -> None:
    """By a use that no record of the first batch has a gradient in; not where a process only looks again."""

    def sometimes(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = torch.as_tensor(layers[0](x))
        return h + torch.as_tensor(layers[1](h)) * (x[:, :1, :1] > 50)

    model = Model(sometimes, nn.Linear(3, 4), nn.Linear(4, 4)).double()
    engine, proven = FastEngine(model, losses, FlatClipping(C)), []
    for large in (0, 0, 4, 1, 0, 1):
        x = rows(4)
        x[4 - large :, 0, 0] = 60.0
        assert same(add(engine, x), oracle(model, x))
        proven.append([bits for name, bits in engine.measured.items() if name.startswith("way")])
    assert proven[0] == proven[1] != proven[2] == proven[5]
    assert all(before[0] & after[0] == before[0] for before, after in pairwise(proven))
    way = next(name for name in engine.measured if name.startswith("way"))
    for known, large in ((proven[0], 0), (proven[2], 4)):
        resumed = FastEngine(model, losses, FlatClipping(C))
        resumed.measured.update(engine.measured | {way: known[0]})
        x = rows(4)
        x[4 - large :, 0, 0] = 60.0
        add(resumed, x)
        assert resumed.measured[way] == known[0]


def test_numbers_that_differ_send_each_record_alone_at_once() -> None:
    """As of a loss that is printed: halves would hardly be told the same number; nothing is kept."""
    forwards = []

    def printed(model: nn.Module, x: Tensor) -> Tensor:
        forwards.append(len(x))
        found = losses(model, x)
        assert found.mean().item() > -1e9
        return found

    model = Model(lambda layers, x: layers[0](x), nn.Linear(3, 4)).double()
    engine = FastEngine(model, printed, FlatClipping(C))
    for _ in range(3):
        x = rows(40)
        forwards.clear()
        assert same(add(engine, x), oracle(model, x))
    assert forwards.count(1) == 40
    assert len(forwards) < 50
    assert engine.route.startswith("record by record: an if")


def test_few_ways_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records have another length in each step."""
    monkeypatch.setattr(probe, "MOST_WAYS", 5)
    model = Model(lambda layers, x: layers[0](x), nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for length in range(1, 13):
        x = torch.randn(4, length, 3, dtype=torch.float64)
        assert same(add(engine, x), oracle(model, x))
    assert engine.route == "fast"
    assert 1 <= sum(name.startswith("way") for name in engine.measured) <= 5


def half_precision(model: nn.Module, x: Tensor) -> Tensor:
    """Losses of a model that computes in 16 bits."""
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
    return torch.as_tensor(outputs.float().square().sum(1))


def rounded_once(part: float) -> Callable[[Tensor], Tensor]:
    """A hook that changes the gradients of one pass in three by a part of themselves, as rounding might."""
    calls = 0

    def hook(g: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return g * (1 + part * (calls % 3 == 0))

    return hook


class Hooked(nn.Module):
    def __init__(self, hook: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.hook = hook

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h.register_hook(self.hook)
        return self.last(h)  # type: ignore[no-any-return]


def together(g: Tensor) -> Tensor:
    """By the largest of all."""
    return g / g.abs().amax() * 1e-2


@pytest.mark.parametrize(("loss", "allowed"), [(half_precision, 5e-3), (losses, 1e-4)])
def test_what_rounding_may_do_ends_no_run(loss: Callable[..., Tensor], allowed: float) -> None:
    """16 bits round by 4e-3, and otherwise where memory lies otherwise."""
    torch.manual_seed(0)
    engine, x = FastEngine(Hooked(rounded_once(allowed)), loss, FlatClipping(C)), torch.randn(6, 4)
    for _ in range(17):
        add(engine, x)
    assert engine.route == "fast"


@pytest.mark.usefixtures("unfollowed")
@pytest.mark.parametrize("loss", [half_precision, losses])
def test_what_hangs_on_others_is_more_in_16_bits_too(loss: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    engine, x = FastEngine(Hooked(together), loss, FlatClipping(C)), torch.randn(6, 4)
    add(engine, x)
    assert engine.route != "fast"
