"""Linear maps, normalisations and tables: every form against a loop of gradients, and under cancellation.

Letters: n records; T positions of a record; d inputs; p outputs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Batch,
    Loss,
    Of,
    Shape,
    clipped_sum,
    double,
    equal,
    equals_a_loop,
    one_or_two_views,
    step,
    sums_of,
    waves,
)
from torch import Tensor, nn

from tacit.clipping import FAST, FlatClipping, MemoryBudget
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import embedding, linear, parameter, use
from tacit.clipping.per_example.linear import Outer, outer
from tacit.clipping.per_example.use import Kept, cancellation

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
    for weights in layer.parameters():
        nn.init.normal_(weights)
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


def no_guard(left: Tensor, right: Tensor) -> Tensor:
    grams = (left @ left.transpose(1, 2)) * (right @ right.transpose(1, 2))
    return grams.sum((1, 2)).clamp(min=0.0)


@pytest.mark.parametrize(
    ("name", "bug"), [("cancellation", lambda dtype, length: 0.0), ("ghost_squared_norms", no_guard)]
)
def test_planted_bug_norms_without_their_allowance(
    name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, name, bug)
    assert max(largest_release(*case) for case in CANCELLING) > 1.1


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


# --- norms from Gram matrices -------------------------------------------------------------------------------


def stored(x: Tensor, positions_last: bool) -> Tensor:
    """The same values, with the positions next to each other in memory if so asked."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if positions_last else x


def by_definition(left: Tensor, right: Tensor) -> Tensor:
    """|G_i|^2 + kappa S_i^2 record by record, G formed and S a sum over positions; in float64."""
    kappa = cancellation(left.dtype, max(left.shape[2], right.shape[2]))
    found = []
    for l, r in zip(left.double(), right.double(), strict=True):  # noqa: E741
        S = sum(float(l[t].norm() * r[t].norm()) for t in range(len(l)))
        found.append(float((l.T @ r).square().sum()) + kappa * S**2)
    return torch.tensor(found, dtype=torch.float64)


@given(
    st.integers(1, 4), st.sampled_from([1, 2, 7, 63, 64, 65, 128, 200]), st.integers(1, 5), st.integers(1, 5),
    st.booleans(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([1, linear.GRAM_NUMBERS]),
)  # fmt: skip
def test_norms_are_those_of_the_gradients(
    n: int, T: int, p: int, d: int, positions_last: bool, dtype: torch.dtype, at_once: int
) -> None:
    """Also record by record, as where Gram matrices are large."""
    made = torch.Generator().manual_seed(1000 * T + 10 * p + d)
    left, right = (torch.randn(n, T, k, generator=made, dtype=torch.float64).to(dtype) for k in (p, d))
    left = left * torch.logspace(-3, 3, T, dtype=dtype)[:, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "GRAM_NUMBERS", at_once)
        found = linear.ghost_squared_norms(stored(left, positions_last), right)
    assert found.dtype == dtype
    close = 1e-9 if dtype == torch.float64 else 1e-4
    equal(found.double(), by_definition(left, right), close, 0)


@pytest.mark.parametrize("T", [2, 64, 130])
def test_positions_that_cancel_leave_the_allowance(T: int) -> None:
    """G is 0 and S is not: what is left is kappa S^2, however the positions are spread over blocks."""
    x, g = torch.randn(3, T // 2, 6), torch.randn(3, T // 2, 5)
    left, right = torch.cat([g, -g], 1), torch.cat([x, x], 1)
    found, wanted = linear.ghost_squared_norms(left, right).double(), by_definition(left, right)
    assert bool((found >= 0.999 * wanted).all())


def test_squares_that_underflow_are_allowed_for() -> None:
    left, right = torch.full((1, 2, 3), 1e-30), torch.full((1, 2, 3), 1e15)
    assert float(linear.ghost_squared_norms(left, right)) > 0


@pytest.mark.parametrize("shape", [(2, 8), (3, 5, 7), (16,), (4, 2, 4)])
def test_a_weighted_sum_in_parts_is_the_same(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.Generator().manual_seed(0)
    G = torch.randn(5, *shape, generator=made, dtype=torch.float64)
    factors, noise = (
        torch.rand(5, generator=made, dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
    )
    wanted = 1.0 + sum(c * g for c, g in zip(factors, G, strict=True))
    transposed = G.transpose(0, -1).contiguous().transpose(0, -1)
    for split in (0, use.SPLIT_FROM):
        monkeypatch.setattr(use, "SPLIT_FROM", split)
        for gradients in (G, transposed):
            found = noise.clone()
            use.Kept(gradients).add_weighted(found, factors)
            torch.testing.assert_close(found, wanted)


# --- a table that is the head as well -----------------------------------------------------------------------

V, d = 40, 24  # so large that no gradient of this size is kept at a few positions


def tied(again: bool = False, padding: int | None = None) -> nn.Module:
    """Numbers looked up in a table, through a layer, and scored by the same table; maybe twice."""

    def forward(m: Any, ids: Tensor) -> Any:
        h = m.middle(m.table(ids)).tanh()
        if again:
            h = h + m.table((m.head(h).argmax(-1) + ids) % V)
        return m.head(h) + (m.head(h.flip(1)) if again else 0)

    head, table = nn.Linear(d, V), nn.Embedding(V, d, padding_idx=padding)
    head.weight = table.weight
    return Of(forward, table=table, middle=nn.Linear(d, d), head=head)


def table_alone() -> nn.Module:
    model = tied()
    for name, p in model.named_parameters():
        p.requires_grad_(name == "table.weight")
    return model


def losses(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).transpose(1, 2), ids.roll(1, 1), reduction="none").sum(1)


@pytest.mark.untraced
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 3),
    T=st.integers(1, 4),
    views=st.sampled_from([1, 2]),
    again=st.booleans(),
    padding=st.sampled_from([None, 3, -1]),
    products=st.sampled_from([1, 10, 2**20]),
    seed=st.integers(0, 2**20),
)
def test_the_sum_is_that_of_the_loop(
    n: int, T: int, views: int, again: bool, padding: int | None, products: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = tied(again, padding).double()
    ids = torch.randint(0, V, (n * views, T))
    ids[0, 0] = 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter, "PRODUCTS", products)
        equals_a_loop(FastEngine(model, losses, FlatClipping(1.0), views=views), ids)


def test_without_the_cross_term_the_bound_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares alone miss what both uses have in common."""

    def alike(m: Any, ids: Tensor) -> Any:
        return 10 * (m.head(m.table(ids)) * F.one_hot(ids, V)).sum((1, 2))

    model, ids = table_alone(), torch.full((1, 1), 5)

    def factor() -> float:
        return float(clipped_sum(FastEngine(model, alike, FlatClipping(1.0)), ids).norm())

    assert factor() == pytest.approx(1.0, rel=1e-5)
    monkeypatch.setattr(parameter, "_cross", lambda left, right, numbers, e: torch.zeros(len(left)))
    assert factor() == pytest.approx(math.sqrt(2), rel=1e-5)


def largest_of_cancelling_uses(size: float) -> float:
    """Table and head get gradients of opposite sign that leave a small remainder, wrong in its digits."""
    torch.manual_seed(0)
    ids = torch.arange(8)[:, None]

    def cancelling(m: Any, ids: Tensor) -> Any:
        fixed = m.table.weight.detach()[ids]
        rest = m.head(fixed + 1e-6 * torch.randn_like(fixed)).gather(2, ids[..., None]).squeeze(2)
        return size * (rest - (m.table(ids) * fixed).sum(2)).sum(1)

    engine = FastEngine(table_alone(), cancelling, FlatClipping(1.0))
    return max(float(step(engine, row[None])[0]["table.weight"].double().norm()) for row in ids)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_uses_that_cancel_in_float32_stay_within_the_bound(size: float) -> None:
    assert largest_of_cancelling_uses(size) <= 1.0


def test_without_the_allowance_uses_that_cancel_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter, "row_squares", lambda x: x.new_zeros(x.shape[:-1]))
    assert largest_of_cancelling_uses(1e6) > 1.1
