"""Products of linear maps by oneDNN: right whatever lies how in memory, and a record's row is its own."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Shape
from torch import Tensor

from tacit.clipping.per_example import linear

LAYOUTS = ("plain", "transposed", "every second", "one row again and again", "one number again and again")
EPS = torch.finfo(torch.float32).eps
IS_INTEL = linear._is_intel  # before ``large_enough`` replaces it


@pytest.fixture(scope="module", autouse=True)
def large_enough() -> Iterator[None]:
    """Leave products to oneDNN on any processor, and small ones too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_is_intel", lambda: False)
        patch.setattr(linear, "ONEDNN_PRODUCTS", 1)
        yield


def numbers(layout: str, rows: int, columns: int) -> Tensor:
    match layout:
        case "transposed":
            return torch.randn(columns, rows).T
        case "every second":
            return torch.randn(2 * rows, 2 * columns)[::2, ::2]
        case "one row again and again":
            return torch.randn(1, columns).expand(rows, columns)
        case "one number again and again":
            return torch.randn(1, 1).expand(rows, columns)
    return torch.randn(rows, columns)


@given(
    n=st.integers(0, 80), d=st.integers(0, 20), p=st.integers(0, 20), seed=st.integers(0, 2**20),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3), has_bias=st.booleans(),
)  # fmt: skip
def test_products_are_right_whatever_the_layout(
    n: int, d: int, p: int, seed: int, layouts: tuple[str, str, str], has_bias: bool
) -> None:
    torch.manual_seed(seed)
    x, W = numbers(layouts[0], n, d), numbers(layouts[1], p, d)
    b = numbers(layouts[2], p, 3)[:, 0] if has_bias else None
    found = linear.product(x, W, b)
    wanted = F.linear(x.double(), W.double(), None if b is None else b.double())
    size = F.linear(x.double().abs(), W.double().abs(), None if b is None else b.double().abs())
    assert found.shape == wanted.shape
    assert bool(((found - wanted).abs() <= 4 * (d + 2) * EPS * size).all())


@pytest.mark.parametrize("shape", [(5, 7, 12), (2, 3, 4, 12)])
def test_products_keep_the_dimensions_between(shape: Shape) -> None:
    x, W = torch.randn(*shape), torch.randn(6, 12)
    torch.testing.assert_close(linear.product(x, W), x @ W.T)
    turned = x.transpose(0, 1)
    torch.testing.assert_close(linear.product(turned, W), turned @ W.T)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_row_breaks_no_other(value: float) -> None:
    x, W = torch.randn(32, 12), torch.randn(6, 12)
    whole = linear.product(x, W)
    broken = x.clone()
    broken[3] = value
    rest = torch.arange(32) != 3
    assert torch.equal(linear.product(broken, W)[rest], whole[rest])


def test_poisson_batches_make_onednn_compile_for_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: set[int] = set()

    def watch(x: Tensor, W: Tensor, b: Tensor | None, *rest: object) -> Tensor:
        sizes.add(len(x))
        return F.linear(x, W, b)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watch)
    monkeypatch.setattr(linear, "_has_onednn", lambda: True)
    W = torch.randn(6, 12)
    for n in range(500, 700):
        x = torch.randn(n, 12)
        torch.testing.assert_close(linear.product(x, W), x @ W.T)
    assert 0 < len(sizes) <= 20
    assert max(sizes) <= 700 * 17 / 16


def test_onednn_is_used_where_it_takes_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def watch(x: Tensor, W: Tensor, b: Tensor | None, *rest: object) -> Tensor:
        asked.append("oneDNN")
        return F.linear(x, W, b)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watch)
    x, W, b = torch.randn(32, 12), torch.randn(6, 12), torch.randn(6)
    with monkeypatch.context() as patch:
        patch.setattr(linear, "ONEDNN_PRODUCTS", 32 * 12 * 6 + 1)
        linear.product(x, W, b)
    assert not asked
    monkeypatch.setattr(linear, "ONEDNN_PRODUCTS", 32 * 12 * 6)
    for rows, weight, bias in (
        (x.double(), W.double(), b.double()), (x.bfloat16(), W.bfloat16(), b.bfloat16()),
        (x.double(), W.double(), None), (x[:0], W, b), (x[:7].repeat(1, 9), W.repeat(1, 9), b),
    ):  # fmt: skip
        linear.product(rows, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear.product(x, W, b).dtype == torch.bfloat16
    with monkeypatch.context() as off:
        off.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
        linear.product(x, W, b)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(linear, "_is_intel", lambda: True)
        linear.product(x, W, b)
    assert not asked
    linear.product(x, W, b)
    assert asked == ["oneDNN"] * linear._has_onednn()


@pytest.mark.parametrize("maker", ["GenuineIntel", "AuthenticAMD"])
def test_the_maker_of_the_processor_is_read(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor: 0\nvendor_id: {maker}\n")
    monkeypatch.setattr(platform, "processor", lambda: f"Family 6, {maker}")
    for is_linux in (True, False):
        monkeypatch.setattr(Path, "exists", lambda path, found=is_linux: found)
        assert IS_INTEL.__wrapped__() == (maker == "GenuineIntel")
