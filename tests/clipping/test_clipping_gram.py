"""Norms from Gram matrices, against the per-record gradients themselves: value, allowance and layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import equal
from torch import Tensor

from tacit.clipping.per_example import linear, use
from tacit.clipping.per_example.use import cancellation


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
def test_a_weighted_sum_in_parts_is_the_same(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
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
