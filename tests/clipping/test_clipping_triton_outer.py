"""The Triton kernels against gradients formed in float64; the bound on rounding against tensor cores.

They run on a CUDA device where there is one, else in Triton's interpreter where Triton is installed
(tests/native/test_native_interpreter.py), else not at all.  Letters: as in ``triton_outer``.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import linear, triton_kernels, triton_outer
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import FlatClipping

CUDA = torch.cuda.is_available()
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = INSTALLED and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA and not INTERPRETED else "cpu"
needs_a_device = pytest.mark.skipif(
    not (CUDA or INTERPRETED), reason="no CUDA device; not in the interpreter"
)
needs_cuda = pytest.mark.skipif(not CUDA or INTERPRETED, reason="no CUDA device")
DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
FORMS = {"ghost": triton_outer._ghost_norms, "direct": triton_outer._direct_norms}
U = 2.0**-24


@pytest.mark.skipif(not INSTALLED or INTERPRETED, reason="Triton is not installed, or does not compile")
def test_no_kernel_is_compiled_anew_for_another_number_of_records() -> None:
    for kernel, names in ((triton_kernels.contract, ["n", "parts"]), (triton_kernels.weigh, ["n"])):
        assert [each.name for each in kernel.params if each.do_not_specialize] == names


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def formed(left: Tensor, right: Tensor) -> Tensor:
    """The gradients themselves, (n, p, d)."""
    return torch.einsum("ntp,ntd->npd", left.double().cpu(), right.double().cpu())


def true_squares(left: Tensor, right: Tensor) -> Tensor:
    return formed(left, right).square().sum((1, 2))


def lengths(left: Tensor, right: Tensor) -> Tensor:
    """S, (n,)."""
    sizes: Tensor = left.double().norm(dim=2) * right.double().norm(dim=2)
    return sizes.sum(1).cpu()


def run(form: str, left: Tensor, right: Tensor) -> Tensor:
    return FORMS[form](left.to(DEVICE), right.to(DEVICE)).double().cpu()


# --- the kernels -----------------------------------------------------------------------------------------


@needs_a_device
@pytest.mark.parametrize("form", FORMS)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 90), st.integers(1, 150), st.integers(1, 150)),
    dtype=st.sampled_from(DTYPES),
    sizes=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
    mean=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_norms_are_those_of_the_formed_gradients(
    form: str,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    sizes: tuple[int, int],
    mean: float,
    seed: int,
) -> None:
    n, T, p, d = shape
    left = ((normal(n, T, p, seed=seed) + mean) * 2.0 ** sizes[0]).to(dtype)
    right = ((normal(n, T, d, seed=seed + 1) + mean) * 2.0 ** sizes[1]).to(dtype)
    got, truth, S = run(form, left, right), true_squares(left, right), lengths(left, right)
    assert (got >= truth).all()
    assert (got <= truth + 1e-4 * S * S).all()


SEVERAL_TILES = [(3, 130, 20, 30), (3, 70, 129, 20), (3, 70, 20, 129), (2, 65, 130, 140)]


@needs_a_device
@pytest.mark.parametrize("shape", SEVERAL_TILES, ids=str)
def test_every_tile_is_in_its_place(shape: tuple[int, int, int, int]) -> None:
    """Positions are alike, so that all pairs of them count: tiles off the diagonal, too."""
    n, T, p, d = shape
    left, right = 1 + normal(n, T, p), 1 + normal(n, T, d, seed=1)
    truth = formed(left, right)
    for form in FORMS:
        assert torch.allclose(run(form, left, right), truth.square().sum((1, 2)), rtol=1e-3)
    got = triton_outer._contracted(left.to(DEVICE), right.to(DEVICE), torch.ones(1, device=DEVICE), 1)
    assert torch.allclose(got.double().cpu(), truth, rtol=1e-4, atol=1e-2)


@needs_a_device
def test_the_form_with_fewer_operations_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FORMS:
        result = torch.tensor([float(len(name))], device=DEVICE)
        monkeypatch.setattr(triton_outer, f"_{name}_norms", lambda left, right, result=result: result)
    for T, width, name in [(4, 30, "ghost"), (300, 3, "direct")]:
        x = normal(1, T, width).to(DEVICE)
        assert triton_outer.squared_norms(x, x).item() == len(name)


@needs_a_device
@pytest.mark.parametrize("shape", [(2, 5, 20, 30), (2, 200, 3, 4)], ids=["ghost", "direct"])
def test_any_strides_and_two_dtypes(shape: tuple[int, int, int, int]) -> None:
    n, T, p, d = shape
    turned = normal(n, p, T).transpose(1, 2).to(DEVICE)
    one_for_all = normal(1, 1, d).to(DEVICE).expand(n, T, d)
    inner = normal(T, n, 2 * d).to(DEVICE).transpose(0, 1)[:, :, :d]
    for left, right in [(turned, one_for_all), (turned, inner), (turned.half(), inner)]:
        got, S = triton_outer.squared_norms(left, right), lengths(left, right)
        assert got.dtype == torch.float32
        assert torch.allclose(
            got.double().cpu(), true_squares(left, right), rtol=1e-5, atol=1e-4 * float(S.max()) ** 2
        )


@needs_a_device
@pytest.mark.parametrize("bad", [0.0, math.inf, math.nan])
@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (8, 512), (21, 1500), (5, 0)], ids=str)
def test_weighted_rows_are_added_and_a_factor_of_zero_skips_its_row(
    shape: tuple[int, int], bad: float
) -> None:
    rows, factors, before = normal(*shape), normal(shape[0], seed=1), normal(shape[1], seed=2)
    factors[0] = 0.0
    wanted = before.double() + factors.double() @ rows.double()
    rows[0] = bad
    total = before.clone().to(DEVICE)
    triton_outer.add_weighted_rows(total, rows.to(DEVICE), factors.to(DEVICE))
    torch.testing.assert_close(total.cpu().double(), wanted, rtol=1e-5, atol=1e-5)
    spread = torch.zeros(shape[1], 2, device=DEVICE)[:, 0]
    wide = torch.zeros(shape[1], device=DEVICE, dtype=torch.float64)
    for other in (spread, wide):
        triton_outer.add_weighted_rows(other, rows.to(DEVICE), factors.to(DEVICE))
        torch.testing.assert_close(other.cpu().double(), wanted - before, rtol=1e-5, atol=1e-5)


@needs_a_device
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)], ids=str)
def test_nothing_has_norm_zero(shape: tuple[int, int, int, int]) -> None:
    n, T, p, d = shape
    left, right = torch.zeros(n, T, p, device=DEVICE), torch.zeros(n, T, d, device=DEVICE)
    assert triton_outer.squared_norms(left, right).tolist() == [0.0] * n


@needs_a_device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e30])
def test_a_record_that_is_not_finite_says_so_and_no_other(form: str, bad: float) -> None:
    left, right = normal(3, 20, 17), normal(3, 20, 18, seed=1)
    before = run(form, left, right).float()
    left[1, 7, 3], right[1, 7, 5] = bad, -1e30
    after = run(form, left, right).float()
    assert after.isfinite().tolist() == [True, False, True]
    assert torch.equal(after[[0, 2]], before[[0, 2]])


# --- gradients, and their weighted sum -------------------------------------------------------------------


@needs_a_device
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 90), st.integers(1, 140), st.integers(1, 140)),
    dtype=st.sampled_from(DTYPES),
    parts=st.integers(1, 5),
)
@settings(max_examples=8, deadline=None)
def test_sums_are_those_of_the_formed_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype, parts: int
) -> None:
    n, T, p, d = shape
    left, right, factors = normal(n, T, p).to(dtype), normal(n, T, d, seed=1).to(dtype), normal(n, seed=2)
    truth = formed(left, right) * factors.double()[:, None, None]
    got = triton_outer._contracted(left.to(DEVICE), right.to(DEVICE), factors.to(DEVICE), parts).cpu()
    atol = 1e-4 * T**0.5
    assert torch.allclose(got.double().sum(0), truth.sum(0), rtol=1e-4, atol=atol)
    if parts > 1 and n > 1:
        assert torch.allclose(got[1].double(), truth[1::parts].sum(0), rtol=1e-4, atol=atol)


@needs_a_device
def test_gradients_and_weighted_sum_in_16_bits() -> None:
    left, right, factors = normal(3, 70, 129).half(), normal(3, 70, 40, seed=1).half(), normal(3, seed=2)
    there = left.to(DEVICE), right.to(DEVICE)
    truth = formed(left, right)
    gradients = triton_outer.gradients(*there)
    assert gradients.dtype == torch.float32
    assert torch.allclose(gradients.double().cpu(), truth, rtol=1e-5, atol=1e-4)
    total = triton_outer.weighted_sums(*there, factors.to(DEVICE), 1)[0].double().cpu()
    assert torch.allclose(total, torch.einsum("n,npd->pd", factors.double(), truth), rtol=1e-5, atol=1e-4)


@needs_a_device
def test_layers_side_by_side_have_a_sum_each() -> None:
    left, right, factors = normal(6, 40, 33).half(), normal(6, 40, 20, seed=1).half(), normal(3, seed=2)
    got = triton_outer.weighted_sums(left.to(DEVICE), right.to(DEVICE), factors.to(DEVICE), 2).double().cpu()
    truth = torch.einsum("n,lnpd->lpd", factors.double(), formed(left, right).view(2, 3, 33, 20))
    assert torch.allclose(got, truth, rtol=1e-5, atol=1e-4)


@needs_a_device
def test_factors_are_not_rounded_to_16_bits() -> None:
    """Positions that cancel still cancel when they are weighted."""
    a, b = (normal(1, 30, 40, seed=seed).mul(50).round() for seed in (0, 1))
    left, right = torch.cat([a, b, -a - b], 1).half(), torch.ones(1, 90, 50).half()
    factor = torch.tensor([1 / 3])
    total = triton_outer.weighted_sums(left.to(DEVICE), right.to(DEVICE), factor.to(DEVICE), 1)
    assert total.abs().max() < 1e-3
    assert formed((left.float() * factor).half(), right).abs().max() > 1e-2, "as rounded numbers do not"


@needs_a_device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
def test_a_record_of_factor_zero_adds_nothing() -> None:
    left, right = normal(3, 5, 6).half().to(DEVICE), normal(3, 5, 7, seed=1).half().to(DEVICE)
    factors = torch.tensor([0.5, 0.0, 2.0], device=DEVICE)
    before = triton_outer.weighted_sums(left, right, factors, 1)
    left[1] = math.inf
    assert torch.equal(triton_outer.weighted_sums(left, right, factors, 1), before)


# --- positions that cancel -------------------------------------------------------------------------------


def cancelling(S: float, n: int = 6) -> tuple[Tensor, Tensor]:
    """Records whose positions cancel in pairs but for a gradient of norm 100."""
    g, x, delta = normal(n, 48, 40), normal(n, 48, 50, seed=1), normal(n, 48, 50, seed=2)
    delta *= 100 / formed(g, delta).norm(dim=(1, 2)).float()[:, None, None]
    x *= S / 2 / lengths(g, x).float()[:, None, None]
    return torch.cat([g, -g], 1), torch.cat([x + delta, x], 1)


def released(form: str, left: Tensor, right: Tensor) -> float:
    """Largest norm of a record's clipped gradient, summed in float32 as the sum of a batch is, at C = 1."""
    norms = run(form, left, right).sqrt()
    factors = (1 / norms.clamp(min=1.0)).float()
    totals = left.transpose(1, 2) @ (right * factors[:, None, None])
    return float(totals.double().norm(dim=(1, 2)).max())


@needs_a_device
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("S", [1e3, 1e4, 1e5, 1e6, 1e7, 1e9])
def test_cancelling_positions_release_no_more_than_the_bound(form: str, S: float) -> None:
    assert released(form, *cancelling(S)) <= 1 + 1e-4


@needs_a_device
def test_without_the_bound_on_rounding_they_release_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_outer, "_rounding", lambda dtype, terms: 0.0)
    assert max(released("ghost", *cancelling(S)) for S in (1e5, 1e6, 1e7)) > 2


@needs_a_device
@pytest.mark.parametrize("form", FORMS)
def test_what_underflow_takes_is_counted(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of 1e-24 are zero in float32, their products with 1e16 are not."""
    left, right = torch.full((1, 40, 20), 1e-24), torch.full((1, 40, 20), 1e16)
    truth = true_squares(left, right).item()
    assert run(form, left, right).item() >= truth
    monkeypatch.setattr(triton_outer, "FLOOR", 0.0)
    assert form == "direct" or run(form, left, right).item() < truth


# --- the bound on rounding -------------------------------------------------------------------------------


def cut(x: float, quantum: float) -> float:
    return math.trunc(x / quantum) * quantum


def tensor_core(products: Sequence[float], k: int) -> float:
    """The sum of exact products as the least precise tensor core makes it: k at a time, aligned, cut off."""
    total = 0.0
    for start in range(0, len(products), k):
        terms = [total, *products[start : start + k]]
        largest = max(abs(term) for term in terms)
        if largest == 0:
            continue
        total = sum(cut(term, 2.0 ** (math.frexp(largest)[1] - 24)) for term in terms)
        total = cut(total, 2.0 ** (math.frexp(total)[1] - 24))
    return total


def in_chains(products: Sequence[float], depth: int, k: int) -> float:
    """Chains of ``depth`` terms, each from zero, added in float32."""
    total = torch.zeros((), dtype=torch.float32)
    for start in range(0, len(products), depth):
        total = total + torch.tensor(tensor_core(products[start : start + depth], k), dtype=torch.float32)
    return float(total)


def hard(width: int) -> Iterator[float]:
    """One large term, then terms that are cut off to nothing: the worst that alignment can do."""
    for i in range(width):
        yield 1.0 if i % 64 == 0 else 2.0**-23 * (1 - 2.0**-8)


@given(
    width=st.integers(1, 300),
    k=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 999),
    spread=st.integers(0, 12),
    positive=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_tensor_cores_round_by_less_than_the_bound(
    width: int, k: int, seed: int, spread: int, positive: bool
) -> None:
    factors = normal(2, width, seed=seed) * 2.0 ** (spread * normal(2, width, seed=seed + 1000))
    products = factors.bfloat16().double().prod(0)
    if positive:
        products = products.abs()
    depth = triton_outer.DEPTH[torch.bfloat16]
    error = abs(in_chains(products.tolist(), depth, k) - math.fsum(products.tolist()))
    assert error <= triton_outer._rounding(torch.bfloat16, width) * products.abs().sum().item()


def test_the_bound_is_needed_for_the_worst_terms_and_holds_for_them() -> None:
    depth = triton_outer.DEPTH[torch.bfloat16]
    products = list(hard(512))
    error = abs(in_chains(products, depth, 4) - math.fsum(products)) / math.fsum(products)
    assert error <= triton_outer._rounding(torch.bfloat16, 512)
    assert error > triton_outer._rounding(torch.bfloat16, 512) / 2
    assert error > triton_outer._rounding(torch.float32, 512), "that of float32 would be too small"


def test_one_chain_of_all_terms_rounds_by_more_and_has_a_bound_of_its_own() -> None:
    products = [1.0] + [2.0**-23 * (1 - 2.0**-8)] * 2047
    error = abs(tensor_core(products, 4) - math.fsum(products)) / math.fsum(products)
    assert error > 5 * triton_outer._rounding(torch.bfloat16, 2048)
    assert error <= triton_outer._chained(torch.bfloat16, 2048)
    assert error > triton_outer._chained(torch.bfloat16, 2048) / 3


@given(
    width=st.integers(1, 300),
    k=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 999),
    spread=st.integers(0, 12),
)
@settings(max_examples=100, deadline=None)
def test_a_chain_rounds_by_less_than_its_bound(width: int, k: int, seed: int, spread: int) -> None:
    factors = normal(2, width, seed=seed) * 2.0 ** (spread * normal(2, width, seed=seed + 1000))
    products = factors.bfloat16().double().prod(0)
    error = abs(tensor_core(products.tolist(), k) - math.fsum(products.tolist()))
    assert error <= triton_outer._chained(torch.bfloat16, width) * products.abs().sum().item()


@needs_a_device
@pytest.mark.parametrize("form", FORMS)
def test_norms_allow_for_the_chains_of_the_weighted_sum(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms include an allowance for the rounding error of the weighted sum."""
    left, right = normal(2, 90, 20).half().to(DEVICE), normal(2, 90, 24, seed=1).half().to(DEVICE)
    S = lengths(left.cpu(), right.cpu()).float()
    allowed = run(form, left, right).sqrt().cpu()
    monkeypatch.setattr(triton_outer, "_chained", lambda dtype, terms: 0.0)
    off = allowed - run(form, left, right).sqrt().cpu()
    assert (off >= 0.9 * 2.5 * 90 * U * S).all()


# --- where they are taken --------------------------------------------------------------------------------


def test_they_are_not_taken_on_the_cpu() -> None:
    assert not triton_outer.takes(torch.ones(1, 2, 3), torch.ones(1, 2, 3))


@needs_a_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slack", [0.0, 100.0], ids=["ghost", "kept"])
def test_uses_of_a_linear_map_take_them(
    dtype: torch.dtype, slack: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_outer, "takes", lambda left, right: True)
    left, right = normal(3, 20, 30).to(dtype), normal(3, 20, 40, seed=1).to(dtype)
    use, factors = linear.outer(left.to(DEVICE), right.to(DEVICE), slack), normal(3, seed=2)
    accumulator = torch.ones(30, 40, device=DEVICE)
    use.add_weighted(accumulator, factors.to(DEVICE))
    truth = formed(left, right)
    assert torch.allclose(use.squared_norms().double().cpu(), truth.square().sum((1, 2)), rtol=1e-3)
    assert torch.allclose(use.gradients(1, 3).double().cpu(), truth[1:3], rtol=1e-4, atol=1e-4)
    total = 1 + torch.einsum("n,npd->pd", factors.double(), truth)
    assert torch.allclose(accumulator.double().cpu(), total, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    """Tokens (B, T) to the losses of (B,) labels; the widest map is taken by ``ghost``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.wide, self.narrow = nn.Linear(16, 200), nn.Linear(200, 24)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 300)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.narrow(torch.tanh(self.wide(self.embedding(tokens))))))
        return y.mean(1)


def clipped_sum(
    kind: type[GradientEngine], device: str, tokens: Tensor, labels: Tensor, autocast: bool
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Net().to(device)

    def losses(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            y = model(tokens)
        return F.cross_entropy(y.float(), labels, reduction="none")

    engine = kind(model, losses, FlatClipping(0.1))
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    mask = torch.ones(len(tokens), dtype=torch.bool, device=device)
    engine.add_clipped_sum(
        sums, (tokens.to(device), labels.to(device)), mask, torch.full((1,), 0.1, device=device)
    )
    assert not isinstance(engine, FastEngine) or engine.route == "fast"
    return {name: total.cpu() for name, total in sums.items()}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return float(torch.cat([(a[name] - b[name]).flatten() for name in a]).norm())


def tokens_and_labels(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (n, 6), generator=generator)
    return tokens, torch.randint(300, (n,), generator=generator)


@pytest.mark.skipif(not INTERPRETED, reason="not in the interpreter")
def test_the_fast_engine_with_them_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def takes(left: Tensor, right: Tensor) -> bool:
        seen.append(left.shape)
        return True

    monkeypatch.setattr(triton_outer, "takes", takes)
    batch = tokens_and_labels(4)
    here = clipped_sum(FastEngine, "cpu", *batch, autocast=False)
    assert (4, 6, 300) in seen
    reference = clipped_sum(ReferenceEngine, "cpu", *batch, autocast=False)
    assert difference(here, reference) < 1e-4 * 0.4


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuda_equals_the_cpu(dtype: torch.dtype) -> None:
    left, right = normal(3, 70, 300).to(dtype), normal(3, 70, 400, seed=1).to(dtype)
    assert triton_outer.takes(left.cuda(), right.cuda())
    assert triton_outer.takes_16_bits(left.cuda(), right.cuda()) == (dtype != torch.float32)
    here = linear.Outer(left, right, 0.0).squared_norms()
    there = linear.Outer(left.cuda(), right.cuda(), 0.0).squared_norms().cpu()
    assert torch.allclose(here, there, rtol=3e-3)


@pytest.mark.cuda
@needs_cuda
def test_wide_numbers_and_other_devices_are_left_to_torch() -> None:
    wide = torch.ones(1, 2, 3, device="cuda", dtype=torch.float64)
    assert not triton_outer.takes(wide, wide)
    assert not triton_outer.takes(torch.ones(1, 2, 3), torch.ones(1, 2, 3))


@pytest.mark.cuda
@needs_cuda
def test_the_fast_engine_on_cuda_equals_the_cpu() -> None:
    batch = tokens_and_labels(8)
    here = clipped_sum(FastEngine, "cpu", *batch, autocast=False)
    assert difference(here, clipped_sum(FastEngine, "cuda", *batch, autocast=False)) < 1e-3 * 0.8
    assert difference(here, clipped_sum(FastEngine, "cuda", *batch, autocast=True)) < 3e-2 * 0.8


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_one_record_changes_the_sum_on_cuda_by_no_more_than_the_bound(autocast: bool) -> None:
    tokens, labels = tokens_and_labels(8)
    whole = clipped_sum(FastEngine, "cuda", tokens, labels, autocast)
    for i in range(8):
        rest = torch.arange(8) != i
        without = clipped_sum(FastEngine, "cuda", tokens[rest], labels[rest], autocast)
        # In 16 bits, products in the forward pass may round differently in batches of different sizes.
        assert difference(whole, without) <= 0.1 * (1 + (2e-2 if autocast else 1e-4))


# --- what the compiler makes of them ---------------------------------------------------------------------


def compiled(kernel: Any, dtype: str, capability: int) -> Any:
    """Compile for a device that need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"left": f"*{dtype}", "right": f"*{dtype}", "sums": "*fp64", "spreads": "*fp64"}
    types |= {"factors": "*fp32"} | ({"sums": "*fp32"} if "factors" in kernel.arg_names else {})
    types |= {"left_floor": "fp32", "right_floor": "fp32", "TILE": "constexpr", "DEPTH": "constexpr"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {"TILE": 64, "DEPTH": 32 if dtype == "fp32" else 64})
    return triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm


@pytest.mark.skipif(not INSTALLED or INTERPRETED, reason="Triton is not installed, or interprets")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["ghost", "direct", "contract"])
def test_no_tf32_and_every_chain_starts_from_zero(name: str, dtype: str, capability: int) -> None:
    code = compiled(getattr(triton_kernels, name), dtype, capability)
    assert "tf32" not in code["ptx"]
    assert ".ftz" not in code["ptx"]
    lines = code["ttgir"].splitlines()
    zero = {line.split("=")[0].strip() for line in lines if "arith.constant dense<0.000000e+00>" in line}
    dots = [line for line in lines if re.search(r"= (tt\.dot|ttng\.warp_group_dot) ", line)]
    assert len(dots) == (2 if name == "ghost" else 1)
    carried = dict(re.findall(r"(%\w+) = (%[\w#]+)", " ".join(line for line in lines if "scf.for" in line)))
    for line in dots:
        accumulator = line.split("dot ")[1].split(",")[2].split()[0]
        assert accumulator in zero or (name == "contract" and carried.get(accumulator) in zero), line
