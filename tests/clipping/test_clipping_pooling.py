"""Max pooling with the channels side by side: torch's values and gradients to the last bit, ties included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Of, cross_entropy, double, equals_a_loop, step
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import registry
from tacit.clipping.reference import ReferenceEngine


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take small inputs too, in parts of a few rows; give the numbers of rows that were pooled."""
    seen: list[int] = []
    original = registry._side_by_side

    def counted(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        seen.append(len(x))
        return original(x, settings)

    monkeypatch.setattr(registry, "NUMBERS", 1)
    monkeypatch.setattr(registry, "CACHE_BYTES", 12_000)
    monkeypatch.setattr(registry, "_side_by_side", counted)
    return seen


def pair(low: int, high: int) -> st.SearchStrategy[Any]:
    numbers = st.integers(low, high)
    return numbers | st.tuples(numbers, numbers) | st.lists(numbers, min_size=2, max_size=2)


def picture(seed: int, B: int, C: int, size: tuple[int, int], content: str) -> Tensor:
    torch.manual_seed(seed)
    x = torch.randn(B, C, *size)
    if content == "ties":
        return x.round()
    if content == "not finite":
        strange = torch.tensor([torch.nan, torch.inf, -torch.inf])
        return torch.where(torch.rand_like(x) < 0.3, strange[torch.randint(3, x.shape)], x)
    return x


@given(
    seed=st.integers(0, 2**20), B=st.integers(1, 9), C=st.integers(8, 17),
    size=st.tuples(st.integers(7, 11), st.integers(7, 11)), kernel=pair(2, 3), padding=pair(0, 1),
    stride=st.none() | pair(1, 3), dilation=pair(1, 2), ceil=st.booleans(),
    content=st.sampled_from(["plain", "ties", "not finite"]),
)  # fmt: skip
def test_values_and_gradients_are_torchs_own(
    seed: int, B: int, C: int, size: tuple[int, int], kernel: Any, padding: Any, stride: Any, dilation: Any,
    ceil: bool, content: str,
) -> None:  # fmt: skip
    x = picture(seed, B, C, size, content)
    ours, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = registry.max_pool2d(ours, kernel, stride, padding, dilation, ceil)
    wanted = F.max_pool2d(torchs, kernel, stride, padding, dilation, ceil)
    assert found.shape == wanted.shape
    assert found.is_contiguous()
    assert torch.equal(found.nan_to_num(nan=123.0), wanted.nan_to_num(nan=123.0))
    g = torch.randn_like(wanted)
    (of_ours,), (of_torchs,) = torch.autograd.grad(found, ours, g), torch.autograd.grad(wanted, torchs, g)
    assert torch.equal(of_ours, of_torchs)


def test_large_inputs_are_pooled_in_parts(in_parts: list[int]) -> None:
    registry.max_pool2d(torch.randn(10, 8, 9, 9), 2)
    assert in_parts == [4, 4, 2]


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 7, 6, 6),
        torch.randn(8, 6, 6),
        double(4, 8, 6, 6),
        torch.randn(4, 8, 6, 6).to(torch.bfloat16),
        torch.randn(4, 8, 6, 6).contiguous(memory_format=torch.channels_last),
        torch.randn(4, 8, 12, 6)[:, :, ::2],
        torch.randn(0, 8, 6, 6),
    ],
    ids=["few channels", "no batch", "double", "narrow", "channels last", "strided", "empty"],
)
def test_other_inputs_are_left_to_torch(x: Tensor, in_parts: list[int]) -> None:
    assert torch.equal(registry.max_pool2d(x, 2), F.max_pool2d(x, 2))
    assert in_parts == []


def test_indices_are_left_to_torch(in_parts: list[int]) -> None:
    x = torch.randn(4, 8, 6, 6)
    for found, wanted in zip(
        registry.max_pool2d(x, 2, return_indices=True), F.max_pool2d(x, 2, return_indices=True), strict=True
    ):
        assert torch.equal(found, wanted)
    assert in_parts == []


def test_wrong_arguments_end_as_in_torch() -> None:
    x = torch.randn(4, 8, 6, 6)
    for arguments in ((9,), (2, 0), (2, 1, 2)):
        with pytest.raises(RuntimeError) as wanted:
            F.max_pool2d(x, *arguments)
        with pytest.raises(RuntimeError) as found:
            registry.max_pool2d(x, *arguments)
        assert str(found.value) == str(wanted.value)


def test_the_gradient_has_a_gradient() -> None:
    x = torch.randn(3, 8, 5, 5, requires_grad=True)
    weights = torch.randn(3, 8, 2, 2, requires_grad=True)
    rows = []
    for pool in (registry.max_pool2d, F.max_pool2d):
        (g,) = torch.autograd.grad((pool(x, 2) * weights).sum(), x, create_graph=True)
        rows.append(torch.autograd.grad(g.square().sum(), weights)[0])
    assert torch.equal(*rows)


def test_under_vmap_it_is_torchs() -> None:
    x = torch.randn(3, 2, 8, 6, 6)
    assert torch.equal(
        torch.func.vmap(lambda one: registry.max_pool2d(one, 2))(x),
        torch.func.vmap(lambda one: F.max_pool2d(one, 2))(x),
    )


def test_the_engine_pools_this_way(in_parts: list[int]) -> None:
    """Both ways in which a model asks for it."""
    model = Of(
        lambda m, x: m.head(torch.max_pool2d(m.second(m.first(x)).tanh(), 2).flatten(1)),
        first=nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        second=nn.Conv2d(8, 9, 3),
        head=nn.Linear(9 * 4, 3),
    )
    batch = torch.randn(6, 1, 10, 10), torch.arange(6) % 3
    step(ReferenceEngine(model, cross_entropy, FlatClipping(0.1)), *batch)
    assert not in_parts
    equals_a_loop(FastEngine(model, cross_entropy, FlatClipping(0.1)), *batch, rtol=1e-4, atol=1e-6)
    assert in_parts


@given(
    k=st.integers(1, 4), rows=st.integers(1, 3), h=st.integers(1, 6), w=st.integers(1, 6),
    more=st.integers(0, 1), padding=st.integers(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_means_are_those_of_torch(
    k: int, rows: int, h: int, w: int, more: int, padding: int, seed: int
) -> None:
    """Also with a remainder or a margin, which torch's own function takes."""
    torch.manual_seed(seed)
    ours = torch.randn(rows, 8, h * k + more, w * k, requires_grad=True)
    torchs = ours.detach().clone().requires_grad_()
    padding = min(padding, k // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "NUMBERS", 0)
        found = registry.avg_pool2d(ours, k, None, padding)
    wanted = F.avg_pool2d(torchs, k, None, padding)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    g = torch.randn_like(wanted)
    of_ours, of_torchs = torch.autograd.grad(found, ours, g), torch.autograd.grad(wanted, torchs, g)
    torch.testing.assert_close(of_ours, of_torchs, rtol=1e-5, atol=1e-6)
