"""Equal layers that are joined: sums and norms are those of the definition, and of each layer alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Of, by_definition, clipped_sum, equal, equals_a_loop, sums_of
from torch import Tensor, nn

from tacit.clipping import FlatClipping, PerLayerClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import linear, parameter, use
from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.use import Kept, Late, Recorder
from tacit.errors import UnsupportedModel

C = 0.5


def blocks(depth: int = 4) -> nn.Module:
    """Layers of two shapes in turn, with norms; the first map of each block is read twice by three."""

    def forward(m: Any, x: Tensor) -> Any:
        for i, (norm, down) in enumerate(zip(m.norms, m.downs, strict=True)):
            z = norm(x)
            x = x + down(torch.tanh(m.ups[2 * i](z)) * torch.sigmoid(m.ups[2 * i + 1](z)))
        return x

    return Of(
        forward,
        norms=nn.ModuleList(nn.LayerNorm(12) for _ in range(depth)),
        ups=nn.ModuleList(nn.Linear(12, 20) for _ in range(2 * depth)),
        downs=nn.ModuleList(nn.Linear(20, 12, bias=i != 1) for i in range(depth)),
    )


def loss(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x)
    return found.square().mean((1, 2))


@pytest.fixture
def engine() -> FastEngine:
    return FastEngine(blocks().double(), loss, FlatClipping(C))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of layers of each stack."""
    found: list[int] = []
    real = parameter._Stack.__init__

    def noted(stack: Any, names: Sequence[str], of: Kept | Outer) -> None:
        found.append(len(names))
        real(stack, names, of)

    monkeypatch.setattr(parameter._Stack, "__init__", noted)
    return found


def records(T: int, n: int = 6) -> Tensor:
    return torch.randn(n, T, 12, generator=torch.Generator().manual_seed(T)).double()


@pytest.mark.parametrize("T", [2, 5, 40])
def test_sums_are_those_of_the_definition(engine: FastEngine, taken: list[int], T: int) -> None:
    """Whether gradients are formed (many positions) or not."""
    equals_a_loop(engine, records(T))
    assert taken.count(8) >= 1
    assert taken.count(4) >= 1


def test_groups_of_parameters_are_not_mixed(engine: FastEngine, taken: list[int]) -> None:
    """Each layer has a separate threshold: no two of a stack may share factors."""
    model, x = engine.model, records(3)
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    bounds = {name: 0.01 * (i + 1) for i, name in enumerate(layers)}
    rule = PerLayerClipping(1.0, tuple(bounds.items()))
    found = sums_of(FastEngine(model, loss, rule), x, dtype=torch.float64)
    assert taken == []
    for layer, bound in bounds.items():
        for name, p in model.named_parameters():
            p.requires_grad_(name.startswith(f"{layer}."))
        wanted = by_definition(model, loss, (x,), bound)
        equal({name: found[name] for name in wanted}, wanted)


def test_a_record_that_is_not_finite_is_left_out_of_each(engine: FastEngine, taken: list[int]) -> None:
    x = records(4)
    rest = torch.cat([x[:2], x[3:]])
    x[2] = torch.inf
    equal(clipped_sum(engine, x), clipped_sum(engine, rest))
    assert taken


def test_few_at_once_are_as_good_as_all(
    engine: FastEngine, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = records(5)
    clipped_sum(engine, x)
    most = max(taken)
    taken.clear()
    monkeypatch.setitem(use.STACKED, "cpu", 3 * 4 * x[..., 0].numel() * 32)
    equals_a_loop(engine, x)
    assert 1 < max(taken) <= 3 < most


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("T", [2, 5])
def test_large_ones_stay_by_themselves(
    engine: FastEngine, taken: list[int], monkeypatch: pytest.MonkeyPatch, T: int, room: int
) -> None:
    """Formed or not, where none or one of them has room."""
    x = records(T)
    monkeypatch.setitem(use.STACKED, "cpu", room * 4 * x[..., 0].numel() * 32)
    equals_a_loop(engine, x)
    assert taken == []


@pytest.mark.parametrize("n", [1, 2, 12])
def test_layers_of_a_usual_width(taken: list[int], n: int) -> None:
    """The layers of BERT-base are stacked for a few records; for more, each is separate and not formed."""
    model = nn.Sequential(nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 768))
    engine = FastEngine(model, loss, FlatClipping(C))
    equals_a_loop(engine, torch.randn(n, 64, 768), rtol=1e-3, atol=1e-6)
    assert taken == {1: [3], 2: [3], 12: []}[n]


def twice() -> nn.Module:
    """Maps that are applied twice, read as a view, and read by a table as well."""

    def forward(m: Any, numbers: Tensor) -> Any:
        x = m.twice(torch.tanh(m.twice(m.table(numbers))))
        return m.head(torch.tanh(F.linear(x, m.viewed.squeeze(0))))

    table, head = nn.Embedding(5, 12), nn.Linear(12, 5, bias=False)
    head.weight = table.weight
    viewed = nn.Parameter(torch.randn(1, 12, 12) / 4)
    return Of(forward, twice=nn.Linear(12, 12, bias=False), viewed=viewed, table=table, head=head)


def test_no_form_depends_on_whether_layers_may_be_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that depends on the number of records, and one more would round the norms of all others up."""
    engine, numbers = FastEngine(twice().double(), loss, FlatClipping(C)), torch.randint(5, (3, 40))
    ghosts: list[int] = []
    real = linear.ghost_squared_norms

    def counted(left: Tensor, right: Tensor) -> Tensor:
        ghosts.append(left.shape[1])
        return real(left, right)

    monkeypatch.setattr(linear, "ghost_squared_norms", counted)
    equals_a_loop(engine, numbers)
    monkeypatch.setitem(use.STACKED, "cpu", 0)
    equals_a_loop(engine, numbers)
    assert ghosts == []


def _layers_turned(patch: pytest.MonkeyPatch) -> None:
    real = parameter._Stack.add_weighted

    def turned(stack: Any, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        stack._names = stack._names[::-1]
        real(stack, buffer, factors)

    patch.setattr(parameter._Stack, "add_weighted", turned)


def _norms_of_the_first(patch: pytest.MonkeyPatch) -> None:
    def first(stack: Any) -> Any:
        return stack._use.squared_norms().view(len(stack._names), -1)[0]

    patch.setattr(parameter._Stack, "squared_norms", first)


def _records_turned(patch: pytest.MonkeyPatch) -> None:
    def form(uses: Sequence[Late]) -> None:
        parts = zip(*(late.parts for late in uses), strict=True)
        rows = uses[0].make(*(torch.stack(tensors, 1).flatten(0, 1) for tensors in parts))
        for late, own in zip(uses, rows.chunk(len(uses)), strict=True):
            late.result = Kept(own)

    for file in ("use", "parameter"):
        patch.setattr(f"tacit.clipping.per_example.{file}.form", form)


@pytest.mark.parametrize("plant", [_layers_turned, _norms_of_the_first, _records_turned])
def test_planted_bugs_are_found(
    engine: FastEngine, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        equals_a_loop(engine, records(5))


# --- what layers in a row read in a narrower type ----------------------------------------------------------


def changed() -> nn.Module:
    """Two maps read the same tensor, which is changed in place between them."""

    def forward(m: Any, x: Tensor) -> Any:
        x = x * 1.0
        y = m.first(x.detach())
        x.mul_(3.0)
        y += m.second(x)
        return y

    return Of(forward, first=nn.Linear(8, 4, bias=False), second=nn.Linear(8, 4, bias=False))


def under_autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = model(x).float()
    return found.square().sum(1)


def test_a_tensor_that_is_changed_is_cast_again() -> None:
    model, x = changed(), torch.randn(5, 8)
    engine = FastEngine(model, under_autocast, FlatClipping(1e9))
    found = sums_of(engine, x, dtype=torch.float64)
    model.zero_grad()
    under_autocast(model, x).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert F.cosine_similarity(found[name].flatten(), p.grad.double().flatten(), dim=0) > 0.999
        assert (found[name].norm() / p.grad.norm()).item() == pytest.approx(1.0, rel=0.02)


def test_a_stale_cast_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(recorder: Recorder, x: Tensor) -> Tensor:
        recorder.of.cast = recorder.of.cast or (x, 0, x.bfloat16())
        return recorder.of.cast[2]

    monkeypatch.setattr(Recorder, "narrowed", stale)
    with pytest.raises((AssertionError, UnsupportedModel)):
        test_a_tensor_that_is_changed_is_cast_again()


def test_what_several_layers_read_is_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cast: list[torch.Size] = []
    real = use.narrowed

    def noted(x: Tensor) -> Tensor:
        cast.append(x.shape)
        return real(x)

    monkeypatch.setattr("tacit.clipping.per_example.use.narrowed", noted)
    torch.manual_seed(0)
    model, x = blocks(depth=2), records(5).float()
    engine = FastEngine(model, lambda m, x: under_autocast(m, x).mean(1), FlatClipping(C))
    sums_of(engine, x, dtype=torch.float64)
    cast.clear()
    sums_of(engine, x, dtype=torch.float64)
    assert len(cast) == 4  # of each block: what both maps of the first kind read, and what the other reads
