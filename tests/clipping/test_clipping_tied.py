"""A table that is the head as well: its norm without gradients per record, also where both uses cancel."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Of, clipped_sum, equals_a_loop, step
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import parameter

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
