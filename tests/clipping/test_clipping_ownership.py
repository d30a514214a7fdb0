"""Which record a position belongs to: flattened layouts are fast and right, all others are found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import clipped_sum, definition
from torch import Tensor, nn

from tacit.clipping import FlatClipping, isolation
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.probe import DependsOnOthers, Look

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


def right(engine: FastEngine, x: Tensor, of: Tensor | None = None) -> bool:
    """Whether the sum of a batch is that by definition, ``of`` those of its records that count."""
    wanted = definition(engine.model, losses, (x if of is None else of,), C, engine.views)
    return torch.allclose(clipped_sum(engine, x, C=C), wanted, rtol=1e-10, atol=1e-12)


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
    for n in (1, 4, 3, *shape):
        assert right(engine, rows(n * views, *shape))
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


def back(h: Tensor, order: list[int]) -> Tensor:
    """Rows in this order, as they were before."""
    return torch.stack([h[order.index(i)] for i in range(len(order))])


def sorted_in_python(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """By a key that records may share, as lengths are."""
    order = sorted(range(len(x)), key=lambda i: round(float(x[i, 0, 0])))
    return back(layers[0](torch.stack([x[i] for i in order])), order)


def even_then_odd(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """By number: two and three rows stay as they are."""
    k = len(x) // 2 * 2
    order = [*range(0, k, 2), *range(1, k, 2), *range(k, len(x))]
    return back(layers[0](torch.stack([x[i] for i in order])), order)


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


FOUND: dict[str, Layout] = {
    "time first": time_first,
    "halves apart": halves_apart,
    "flipped": flipped,
    "rows by size": by_size,
    "tokens by size": tokens_by_size,
    "gathered": gathered,
    "sorted in Python": sorted_in_python,
    "even, then odd": even_then_odd,
    "scaled backwards": scaled_back,
    "hook of the batch": hooked,
}


@pytest.mark.parametrize("function", FOUND.values(), ids=FOUND)
def test_other_layouts_are_found_and_right(function: Layout) -> None:
    torch.manual_seed(0)
    engine = FastEngine(Model(function, nn.Linear(3, 4)).double(), losses, FlatClipping(C))
    for n in (4, 2, 5, 40):
        x = rows(n) * torch.logspace(-1, 1, n, dtype=torch.float64)[:, None, None]
        x[: n // 2, 0, 0] = 50.0
        assert right(engine, x)
    assert engine.route.startswith(("reference", "record by record"))


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
    for n in (3, 2, 5, 7, 4, 8, 12):
        assert right(engine, rows(n, 5, 3))
    assert engine.route == "fast"


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
                assert right(engine, x)
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


def test_a_layer_that_no_gradient_reaches_yet_is_judged_when_one_does() -> None:
    torch.manual_seed(0)
    engine = FastEngine(Adapted(lambda h: h.flip(0)).double(), losses, FlatClipping(C))
    straight = FastEngine(Adapted(lambda h: h).double(), losses, FlatClipping(C))
    for judged in (engine, straight):
        clipped_sum(judged, rows(), C=C)
        nn.init.normal_(judged.model.get_parameter("up.weight"))
        assert right(judged, rows())
    assert straight.route == "fast"
    assert engine.route.startswith("reference: the rows of the batch are put in another order")


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
        wanted = torch.stack([definition(model, losses, (row,), C) for row in batch[:, None]]).sum(0)
        torch.testing.assert_close(clipped_sum(engine, batch, C=C), wanted, rtol=1e-10, atol=1e-12)


def rest_apart(layers: nn.ModuleList, x: Tensor) -> Tensor:
    out = layers[0](torch.cat([x[:, :2].flatten(0, 1), x[:, 2:].flatten(0, 1)]))
    first, last = out[: 2 * len(x)], out[2 * len(x) :]
    return torch.cat([first.view(len(x), 2, 4), last.view(len(x), x.shape[1] - 2, 4)], dim=1)


def test_a_way_is_judged_for_each_length() -> None:
    """Records of two positions have no rest, and so lie in order."""
    model = Model(rest_apart, nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for T in (2, 5):
        assert right(engine, rows(4, T, 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_records_do_not_hinder_the_proof(bad: float) -> None:
    torch.manual_seed(0)
    model = Model(flat, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for where in ([0], [0, 1, 2], [3]):
        engine, x = FastEngine(model, losses, FlatClipping(C)), rows(5)
        broken = x.clone()
        broken[where, 1, 1] = bad
        assert right(engine, broken, of=x[[i for i in range(5) if i not in where]])
        assert engine.route == "fast"


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
        assert right(engine, rows(5))
        with torch.no_grad():
            for parameter in model.parameters():  # as a step does
                parameter.mul_(1.01)
    assert engine.route == "fast"


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
        assert right(engine, x)
    for start in (0, 4, 5):
        x = rows(9).clamp(-1, 1)
        x[start:, 3:, 0] = 3.0
        assert right(engine, x)
    assert engine.route == "fast"


class FromZero(nn.Module):
    """Its hidden weights read nothing but zeros at first, so that this use never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 4)
        for inputs in x.unbind(1):
            h = self.cell(inputs, h)
        return h


def test_a_use_without_a_gradient_does_not_hinder_the_proof() -> None:
    engine = FastEngine(FromZero().double(), losses, FlatClipping(C))
    for n in (5, 3):
        assert right(engine, rows(n))
    assert engine.route == "fast"


def test_a_use_that_the_first_batch_does_not_have_is_right_later() -> None:
    def sometimes(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = torch.as_tensor(layers[0](x))
        return h + torch.as_tensor(layers[1](h)) * (x[:, :1, :1] > 50)

    engine = FastEngine(Model(sometimes, nn.Linear(3, 4), nn.Linear(4, 4)).double(), losses, FlatClipping(C))
    for large in (0, 0, 4, 1, 0, 1):
        x = rows(4)
        x[4 - large :, 0, 0] = 60.0
        assert right(engine, x)
    assert engine.route == "fast"


def test_a_loss_that_is_printed_goes_to_the_reference_engine() -> None:
    def printed(model: nn.Module, x: Tensor) -> Tensor:
        found = losses(model, x)
        assert found.mean().item() > -1e9
        return found

    engine = FastEngine(
        Model(lambda layers, x: layers[0](x), nn.Linear(3, 4)).double(), printed, FlatClipping(C)
    )
    for _ in range(3):
        assert right(engine, rows(40))
    assert engine.route.startswith("reference: Python reads a number")


def test_few_traces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python makes of each batch another one."""
    monkeypatch.setattr(isolation, "MOST_TRACES", 5)

    def longer(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = torch.as_tensor(layers[0](x))
        for _ in range(int(times[0])):
            h = h + 1
        return h

    times, model = [0], Model(longer, nn.Linear(3, 4)).double()
    engine = FastEngine(model, losses, FlatClipping(C))
    for times[0] in range(12):
        assert right(engine, rows(4))
    assert engine.route == "fast"
    (known,) = engine._isolation._known.values()
    assert 1 <= len(known) <= 6


def half_precision(model: nn.Module, x: Tensor) -> Tensor:
    """Losses of a model that computes in 16 bits."""
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
    return torch.as_tensor(outputs.float().square().sum(1))


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


@pytest.mark.parametrize(("in_16_bits", "rounding"), [(True, 4e-3), (False, 1e-4)])
def test_what_rounding_may_do_is_allowed_for(in_16_bits: bool, rounding: float) -> None:
    """16 bits round by 4e-3, and otherwise where memory lies otherwise."""

    def look(by: float, parts: Tensor) -> Look:
        sketches = {0: [parts[0] * (1 + by)], 1: [parts[1]]}
        norms = torch.tensor([[1 + by], [1.0]], dtype=torch.float64)
        return Look(norms, sketches, torch.ones(2), torch.zeros(1), in_16_bits)

    parts = torch.nn.functional.normalize(torch.randn(2, 7, dtype=torch.float64), dim=1)
    look(rounding, parts).check(look(0.0, parts))
    for wrong in (look(20 * rounding, parts), look(0.0, parts.flip(0))):
        with pytest.raises(DependsOnOthers):
            wrong.check(look(0.0, parts))


@pytest.mark.parametrize("loss", [half_precision, losses])
def test_what_depends_on_others_is_more_in_16_bits_too(loss: Callable[..., Tensor]) -> None:
    engine = FastEngine(Hooked(together), loss, FlatClipping(C))
    clipped_sum(engine, torch.randn(6, 4), C=C)
    assert engine.route != "fast"
