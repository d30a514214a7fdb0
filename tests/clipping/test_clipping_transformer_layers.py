"""Linear maps, normalisations and tables: every form against a loop of gradients, and under cancellation.

Letters: n records; T positions of a record; d inputs; p outputs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Batch, Loss, Of, double, equals_a_loop, one_or_two_views, sums_of, waves
from torch import Tensor, nn

from tacit.clipping import FAST, FlatClipping, MemoryBudget
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import embedding, linear
from tacit.clipping.per_example.linear import Outer, outer
from tacit.clipping.per_example.use import Kept

C = 0.3


def same(model: nn.Module, loss: Loss, batch: Batch, views: int = 1, budget: MemoryBudget = FAST) -> None:
    equals_a_loop(FastEngine(model, loss, FlatClipping(C), views=views, budget=budget), *batch)


def mapped(d: int, p: int, *, bias: bool, way_in: str, way_out: str) -> nn.Module:
    """A linear layer on an input that lies in memory in some way, whose output is read in some way."""

    def forward(m: Any, x: Tensor) -> Any:
        x = m.first(x).tanh()
        match way_in:
            case "transposed":
                x = x.transpose(1, -1).contiguous().transpose(1, -1)
            case "strided":
                x = torch.stack([x, x], dim=-1)[..., 0]
        y = m.layer(x)
        match way_out:
            case "transposed":
                y = y.transpose(1, -1).contiguous()
            case "mean":
                y = y.mean(tuple(range(1, y.dim())), keepdim=True)
            case "in place":
                y = y.tanh_()
        return y

    return Of(forward, first=nn.Linear(d, d), layer=nn.Linear(d, p, bias=bias)).double()


@pytest.mark.untraced
@settings(max_examples=30, deadline=None)
@given(
    between=st.lists(st.integers(1, 4), max_size=3),
    d=st.integers(1, 6),
    p=st.integers(1, 6),
    bias=st.booleans(),
    way_in=st.sampled_from(["plain", "transposed", "strided"]),
    way_out=st.sampled_from(["plain", "transposed", "mean", "in place"]),
    slack=st.sampled_from([0.0, 2.0, 1e9]),
    views=st.sampled_from([1, 2]),
)
def test_linear_maps_equal_the_loop(
    between: list[int], d: int, p: int, bias: bool, way_in: str, way_out: str, slack: float, views: int
) -> None:
    torch.manual_seed(0)
    model = mapped(d, p, bias=bias, way_in=way_in, way_out=way_out)
    same(model, waves, (double(4, *between, d),), views, MemoryBudget(linear_slack=slack))


@pytest.mark.parametrize("slack", [0.0, 1e9], ids=["ghost", "kept"])
def test_logits_with_the_classes_in_the_second_dimension(slack: float) -> None:
    T, classes = linear.LOOP_FROM + 1, 7
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, classes)).double()
    x, y = double(3, T, 3), torch.randint(0, classes, (3, T))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)

    same(model, loss, (x, y), budget=MemoryBudget(linear_slack=slack))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["layer", "layer without bias", "rms", "narrow"]),
    between=st.lists(st.integers(1, 9), max_size=2),
    normal=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    views=st.sampled_from([1, 2]),
)
def test_normalisations_equal_the_loop(kind: str, between: list[int], normal: list[int], views: int) -> None:
    torch.manual_seed(0)
    layer = nn.RMSNorm(normal) if kind == "rms" else nn.LayerNorm(normal, bias=kind == "layer")
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = double(4, *between, *normal)
    if kind == "narrow":
        x = x.transpose(-1, 1).contiguous().transpose(-1, 1)
    same(nn.Sequential(layer, nn.Tanh(), nn.Linear(normal[-1], 2)).double(), waves, (x,), views)


@one_or_two_views
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_equal_the_loop(mode: str, padding_idx: int | None, views: int) -> None:
    """Bags of numbers, weighted or not, and a layer behind them."""

    def forward(m: Any, ids: Tensor, weights: Tensor) -> Any:
        return m.layer(m.table(ids, per_sample_weights=weights if mode == "sum" else None))

    ids = torch.randint(0, 6, (6, 5))
    ids[2] = 2 if padding_idx == 2 else 5  # a bag of nothing but padding
    table = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding_idx)
    same(Of(forward, table=table, layer=nn.Linear(3, 2)).double(), waves, (ids, double(6, 5)), views)


def test_what_is_kept_is_no_larger_than_the_slack_allows() -> None:
    for T, p, d in ((128, 256, 256), (128, 1024, 256), (64, 1024, 256), (128, 8000, 256), (2048, 8000, 256)):
        left, right = torch.randn(1, 1, 1).expand(1, T, p), torch.randn(1, 1, 1).expand(1, T, d)
        for slack in (0.0, 1.0, 2.0):
            kept = isinstance(Outer(left, right, slack).settled(), Kept)
            assert kept == (p * d <= slack * T * (p + d))
    assert isinstance(outer(torch.ones(3, 1, 2), torch.ones(3, 1, 2), 2.0), Outer)  # T = 1 is never formed


def test_a_weight_from_the_record_is_its_own() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.cat([F.linear(r[None], m.maker(r[None]), m.bias) for r in x])

    model = Of(forward, maker=nn.Linear(3, 3), bias=nn.Parameter(torch.zeros(1)))
    same(model.double(), waves, (double(4, 3),))


def largest_release(T: int, d: int, p: int, spread: float) -> float:
    """The largest clipped sum, over C, of single records whose positions cancel in pairs but for a part."""
    model, worst = nn.Linear(d, p, bias=False), 0.0

    def along(model: nn.Module, x: Tensor, directions: Tensor) -> Tensor:
        out: Tensor = (model(x) * directions).sum((1, 2))
        return out - out.detach()  # rounding of the loss itself is no matter

    for seed in range(4):
        torch.manual_seed(seed)
        draw = torch.rand if seed % 2 else torch.randn
        up, at = draw(1, T // 2, p), draw(1, T // 2, d)
        directions = torch.cat([up, -up], dim=1)
        x = torch.cat([at, at + 10.0 ** -(3 + seed) * torch.randn(1, T // 2, d)], dim=1)
        x *= spread * C / (x.norm(dim=2) * directions.norm(dim=2)).sum()
        engine = FastEngine(model, along, FlatClipping(C), budget=MemoryBudget(linear_slack=0.0))
        found = sums_of(engine, x, directions, dtype=torch.float32)["weight"]
        worst = max(worst, float(found.double().norm()) / C)
    return worst


CANCELLING = [
    (T, d, p, S) for T, d, p in ((2, 1024, 64), (16, 64, 768), (130, 48, 40)) for S in (1e3, 1e5, 1e7)
]


@pytest.mark.parametrize(("T", "d", "p", "spread"), CANCELLING)
def test_cancelling_positions_stay_within_the_bound(T: int, d: int, p: int, spread: float) -> None:
    assert largest_release(T, d, p, spread) <= 1 + 1e-4


def test_without_the_allowance_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "cancellation", lambda dtype, length: 0.0)
    assert max(largest_release(*case) for case in CANCELLING) > 2.0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31))
def test_pairs_are_those_of_the_definition(n: int, T: int, V: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(V, (n, T), generator=generator)
    g = torch.randn(n, T, 3, generator=generator, dtype=torch.float64)
    wanted = torch.einsum("ntv,ntd->nvd", F.one_hot(numbers, V).double(), g)
    torch.testing.assert_close(embedding.Lookup(numbers, g, V).gradients(0, n), wanted)
    record, number, place = embedding._pairs(numbers)
    assert len(record) == len(number) == len(place) == n * T


@pytest.mark.parametrize("padding", [None, 2])
def test_a_table_that_all_records_read_alike(padding: int | None) -> None:
    """As positions: no loop over records, nothing of (n, V, d), and rows that are read twice are summed."""
    numbers = torch.tensor([[0, 2, 5, 0]])

    model = Of(
        lambda m, x: m.last(torch.tanh(x + m.places(numbers))),
        places=nn.Embedding(6, 3, padding_idx=padding),
        last=nn.Linear(3, 1),
    )
    same(model.double(), waves, (double(5, 4, 3),))
