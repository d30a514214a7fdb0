"""The C++ kernels of recurrent and linear layers, depthwise convolutions and embeddings, and their twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import clipped_sum, running, sums_of
from torch import Tensor, nn

from tacit import native
from tacit.clipping import FAST, FlatClipping
from tacit.clipping.engine import ROUNDING
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import convolution, convolution_forms, linear, native_outer, recurrent
from tacit.clipping.per_example.convolution_forms import Geometry
from tacit.clipping.per_example.embedding import Lookup
from tacit.clipping.per_example.recurrent import Pull, Run, Weights
from tacit.clipping.per_example.use import cancellation
from tacit.clipping.reference import ReferenceEngine

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"{native.why_not()}")
LEVELS, THREADS = st.integers(0, 2), st.sampled_from([1, 2, 5])


class Twin(NamedTuple):
    gates: int
    states: int
    run: Run
    pull: Pull

    def weights(self, inputs: int, units: int, scale: float, *, biases: bool = False) -> Weights:
        width = self.gates * units
        shapes = [(width, inputs), (width, units), *([(width,)] * 2 if biases else [])]
        return Weights(*(scale * torch.randn(*shape) for shape in shapes))

    def first(self, rows: int, units: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(rows, units) for _ in range(self.states))


TWINS = {
    "gru": Twin(3, 1, recurrent.run_gru, recurrent.pull_gru),
    "lstm": Twin(4, 2, recurrent.run_lstm, recurrent.pull_lstm),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70), steps=st.integers(1, 9), inputs=st.integers(1, 4), units=st.integers(1, 37),
    biases=st.booleans(), level=LEVELS, threads=THREADS, seed=st.integers(0, 99),
)  # fmt: skip
def test_a_recurrent_layer_is_its_twin(
    twin: Twin,
    rows: int,
    steps: int,
    inputs: int,
    units: int,
    biases: bool,
    level: int,
    threads: int,
    seed: int,
) -> None:
    """In float32, to a few units of rounding in each step; the twin computes in float64."""
    torch.manual_seed(seed)
    weights = twin.weights(inputs, units, 0.5, biases=biases)
    x, first = torch.randn(rows, steps, inputs), twin.first(rows, units)
    wide = Weights(*(w.double() for w in weights if w is not None))
    wide_first = tuple(state.double() for state in first)
    wanted = twin.run(x.double(), wide_first, wide)
    g = torch.randn(wanted.shape[1], rows, units).transpose(0, 1)  # as that of an output with the steps first
    pulled = twin.pull(x.double(), wide_first, wide, wanted, g.double())

    with running(level, threads):
        found, cache = recurrent.NATIVE.run(x, first, weights)
        gradients = recurrent.NATIVE.pull(first, weights, cache, g)

    pairs = [(found, wanted), (gradients.a, pulled.a), (gradients.z, pulled.z)]
    for one, other in [*pairs, *zip(gradients.state, pulled.state, strict=True)]:
        assert float((one - other).abs().max()) <= 3e-6 * steps * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_a_row_with_nan_leaves_the_other_rows_alone(twin: Twin) -> None:
    weights, x, first = twin.weights(3, 5, 1.0), torch.randn(9, 4, 3), twin.first(9, 5)
    wanted, cache = recurrent.NATIVE.run(x, first, weights)
    gradients = recurrent.NATIVE.pull(first, weights, cache, torch.ones_like(wanted))

    x[4, 2] = torch.nan
    found, cache = recurrent.NATIVE.run(x, first, weights)
    broken = recurrent.NATIVE.pull(first, weights, cache, torch.ones_like(wanted))

    others = torch.arange(9) != 4
    assert torch.equal(found[others], wanted[others])
    assert torch.equal(broken.z[others], gradients.z[others])
    assert bool(found[4, 3].isnan().all())
    assert bool(broken.z[4].isnan().any())


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_gradients_that_vanish_become_zero(twin: Twin) -> None:
    """Over 200 steps they fall far below the range of float32, where products take ten times as long."""
    weights, x, first = twin.weights(3, 8, 0.1), torch.randn(5, 200, 3), twin.first(5, 8)
    found, cache = recurrent.NATIVE.run(x, first, weights)
    g = torch.zeros_like(found)
    g[:, 199] = 1.0
    z = recurrent.NATIVE.pull(first, weights, cache, g).z
    assert not ((z != 0) & (z.abs() < torch.finfo(torch.float32).tiny ** 0.5)).any()
    assert not z[:, 0].any()
    assert z[:, -1].any()


def sides(n: int, T: int, p: int, d: int, *, apart: bool) -> tuple[Tensor, Tensor]:
    """Sides of linear maps, with gaps in memory if so asked, and positions that partly cancel."""
    left, right = torch.randn(n, T, p), torch.randn(n, T, d)
    first, second = slice(T // 2), slice(T // 2, T // 2 * 2)
    left[:, second] = 0.1 * left[:, second] - left[:, first]
    right[:, second] = right[:, first]
    if apart:
        return left.repeat_interleave(2, 2)[:, :, ::2], right.transpose(0, 1).contiguous().transpose(0, 1)
    return left, right


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(1, 5), T=st.sampled_from([1, 2, 3, 4, 5, 8, 15, 127, 128, 129, 300]),
    p=st.sampled_from([1, 3, 7, 8, 9, 16, 31, 64, 530]), d=st.sampled_from([1, 2, 15, 16, 17, 48, 64, 100]),
    apart=st.booleans(), level=LEVELS, threads=THREADS, seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernels_of_linear_maps_are_the_definition(
    n: int, T: int, p: int, d: int, apart: bool, level: int, threads: int, seed: int
) -> None:
    """Sums are added to what there is, a record has the same numbers alone, and norms are rounded up."""
    torch.manual_seed(seed)
    left, right = sides(n, T, p, d, apart=apart)
    factors, before = torch.rand(n), torch.randn(p, d)
    wanted = left.double().mT @ right.double()
    lengths = left.double().norm(dim=2) * right.double().norm(dim=2)  # (n, T)
    kappa = cancellation(torch.float32, max(p, d))

    with running(level, threads):
        gradients = native_outer.gradients(left, right)
        alone = native_outer.gradients(left[n - 1 :], right[n - 1 :])
        squares = native_outer.squared_norms(left, right, kappa).double()
        total = before.clone()
        native_outer.add_weighted(total, left, right, factors)

    assert bool(((gradients - wanted).abs() <= 1e-6 * lengths.sum(1)[:, None, None]).all())
    assert torch.equal(alone[0], gradients[n - 1])
    summed = before + (factors[:, None, None] * wanted).sum(0)
    torch.testing.assert_close(total.double(), summed.double(), rtol=1e-5, atol=2e-6 * float(lengths.sum()))

    exact = wanted.flatten(1).square().sum(1)
    allowed = kappa * lengths.sum(1).square()
    assert bool((squares >= exact + 0.8 * allowed).all())
    assert bool((squares <= exact + 1.2 * allowed + 1e-30).all())


@pytest.mark.parametrize("lanes", [1, 8, 16, 32])
@pytest.mark.parametrize("level", [1, 2])
def test_inner_products_of_long_rows_do_not_fall_short(lanes: int, level: int) -> None:
    """A few ones, and small numbers whose squares a sum would lose next to them."""
    eps = float(torch.finfo(torch.float32).eps)
    row = torch.full((linear.GRAM_DEPTH,), (0.99 * 0.5 * eps) ** 0.5)
    row[:lanes] = 1.0
    left, right = torch.zeros(1, 2, len(row)), torch.zeros(1, 2, len(row))
    left[0, 1] = right[0, 1] = row
    with running(level, 1):
        found = native_outer.squared_norms(left, right, cancellation(torch.float32, len(row)))
    exact = float(row.double().square().sum()) ** 2
    assert float(found) ** 0.5 >= (1 - 0.5 * ROUNDING * eps) * exact**0.5


def test_norms_of_linear_maps_that_are_not_finite_are_not_finite() -> None:
    """So that the record is dropped, and no other; squares that underflow are allowed for."""
    for place in (0, 1):
        tensors = sides(3, 5, 40, 50, apart=False)
        tensors[place][1, 2, 3] = torch.nan if place else torch.inf
        assert native_outer.squared_norms(*tensors, 1e-6).isfinite().tolist() == [True, False, True]
        gradients = native_outer.gradients(*tensors)
        assert gradients.isfinite().flatten(1).all(1).tolist() == [True, False, True]
    tiny, large = torch.full((1, 2, 64), 1e-30), torch.full((1, 2, 64), 1e15)
    assert float(native_outer.squared_norms(tiny, large, cancellation(torch.float32, 64))) > 0


def test_kernels_take_the_same_maps_for_any_number_of_records() -> None:
    """As one more record must not change how all others are rounded; the rest is left to torch."""
    left, right = sides(3, 16, 24, 40, apart=False)
    library = native.library()
    assert library is not None
    if library.tacit_convolution_level() > 0:
        assert native_outer.takes(left, right)
        assert native_outer.takes(left[:1], right[:1])
        assert linear._takes_native(left, right) is not linear._is_intel()
    assert not native_outer.takes(left.double(), right.double())
    assert not native_outer.takes(left[:, :1], right[:, :1])
    assert not native_outer.takes(left[:, :2, :4], right[:, :2, :4])
    assert not linear._takes_native(left.mT.contiguous().mT, right)
    with running(0, 1):
        assert not native_outer.takes(left, right)


def mapped(linear_slack: float) -> float:
    """The largest difference between the fast engine and a loop, for maps at several positions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40))
    x, y = torch.randn(5, 16, 24), torch.randint(0, 40, (5, 16))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).mT, y, reduction="none").sum(1)

    fast = FastEngine(model, loss, FlatClipping(0.5), budget=replace(FAST, linear_slack=linear_slack))
    slow = ReferenceEngine(model, loss, FlatClipping(0.5))
    found, wanted = (
        torch.cat([part.flatten() for part in sums_of(engine, x, y, dtype=torch.float32).values()])
        for engine in (fast, slow)
    )
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("slack", [0.0, 10.0])
def test_maps_at_several_positions_are_a_loop(slack: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Gram matrices and from gradients that are kept, on any processor."""
    monkeypatch.setattr(linear, "_is_intel", lambda: False)
    assert mapped(slack) < 1e-4


def _turned_records(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda left, *others: real(left.flip(0), *others)


def _turned_factors(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda total, left, right, factors: real(total, left, right, factors.flip(0))


@pytest.mark.parametrize(
    ("name", "bug", "slack"),
    [
        ("gradients", _turned_records, 10.0), ("squared_norms", _turned_records, 0.0),
        ("add_weighted", _turned_factors, 0.0),
    ],
)  # fmt: skip
def test_planted_bugs_in_the_kernels_of_linear_maps(
    name: str, bug: Callable[..., Any], slack: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_is_intel", lambda: False)
    monkeypatch.setattr(native_outer, name, bug(getattr(native_outer, name)))
    assert mapped(slack) > 1e-3


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[Tensor, Tensor, Geometry]:
    """The inputs, output gradients and settings of a depthwise convolution in up to three dimensions."""
    torch.manual_seed(draw(st.integers(0, 99)))
    dimensions, channels = draw(st.integers(1, 3)), draw(st.integers(2, 37))
    each = st.tuples(*[st.integers(1, 3)] * dimensions)
    kernel, stride, dilation = [*draw(each)], draw(each), draw(each)
    kernel[-1] = draw(st.integers(1, 19))  # more than one pass over a line of the kernel
    padding = draw(st.tuples(*[st.integers(0, 2)] * dimensions))
    spare = draw(st.tuples(*[st.integers(0, 4)] * dimensions))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [max(1, span - 2 * p) + more for span, p, more in zip(spans, padding, spare, strict=True)]
    x = torch.randn(draw(st.integers(1, 4)), channels, *sizes)
    places = [
        (size + 2 * p - span) // step + 1
        for size, p, span, step in zip(sizes, padding, spans, stride, strict=True)
    ]
    g = torch.randn(len(x), channels, *places)
    return x, g, Geometry(tuple(kernel), stride, padding, dilation, channels)


def last(x: Tensor) -> Tensor:
    """The same numbers, with the channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@settings(max_examples=80, deadline=None)
@given(depthwise(), st.booleans(), st.booleans(), LEVELS, THREADS)
def test_depthwise_gradients_are_their_twin(
    of: tuple[Tensor, Tensor, Geometry], x_last: bool, g_last: bool, level: int, threads: int
) -> None:
    x, g, geometry = of
    wanted = convolution_forms.fold(x.double(), g.double(), geometry)
    with running(level, threads):
        found = convolution_forms.depthwise(last(x) if x_last else x, last(g) if g_last else g, geometry)
    scale = prod(g.shape[2:]) ** 0.5
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6 * scale)


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 5), T=st.integers(1, 40), V=st.integers(1, 12), d=st.integers(1, 9),
    layout=st.sampled_from(["rows", "one for all positions", "positions first"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_sums_of_an_embedding_are_their_twin(n: int, T: int, V: int, d: int, layout: str, seed: int) -> None:
    torch.manual_seed(seed)
    numbers, factors = torch.randint(V, (n, T)), torch.rand(n)
    g = torch.randn(n, T, d)
    if layout == "one for all positions":
        g = torch.randn(n, 1, d).expand(n, T, d)
    elif layout == "positions first":
        g = torch.randn(T, n, d).transpose(0, 1)
    use, twin = Lookup(numbers, g, V), Lookup(numbers, g.double(), V)
    if layout == "one for all positions":  # by counts: the kernel, and its form in Python
        counted = Lookup(numbers, g[:, :1].double().expand(n, T, d), V)
        total, wanted = torch.zeros(2, V, d, dtype=torch.float64)
        counted.add_weighted(total, factors.double())
        twin.add_weighted(wanted, factors.double())
        torch.testing.assert_close(counted.squared_norms(), twin.squared_norms(), rtol=1e-12, atol=0)
        torch.testing.assert_close(total, wanted, rtol=1e-12, atol=1e-12)

    sums = torch.zeros(V, d), torch.zeros(V, d, dtype=torch.float64)
    use.add_weighted(sums[0], factors)
    twin.add_weighted(sums[1], factors.double())

    assert len(use._summed[0]) == len({(i, v) for i, row in enumerate(numbers.tolist()) for v in row})
    torch.testing.assert_close(use.squared_norms().double(), twin.squared_norms(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(use.gradients(0, n).double(), twin.gradients(0, n), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums[0].double(), sums[1], rtol=1e-5, atol=1e-5)


def test_positions_of_a_number_that_cancel_leave_nothing() -> None:
    """Norm and sum come from the same sums, so what one record adds is as long as its norm says."""
    g = torch.tensor([[[1e8], [3.0], [-1e8]]])
    use = Lookup(torch.tensor([[4, 1, 4]]), g, 6)
    total = torch.zeros(6, 1)
    use.add_weighted(total, torch.ones(1))
    assert total.flatten().tolist() == [0.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    assert float(use.squared_norms()) == pytest.approx(9.0)


class Net(nn.Module):
    """A depthwise convolution in both orders of memory, and a recurrent layer over its positions."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(6, 6, 5, padding=2, groups=6)
        self.layer = layer(6, 7, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(x) + self.depthwise(x.to(memory_format=torch.channels_last))
        outputs = self.layer(h.flatten(2).transpose(1, 2))[0]
        return torch.as_tensor(self.head(outputs.mean(1)))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("views", [1, 2])
def test_a_model_with_these_layers_is_a_loop(layer: type[nn.LSTM | nn.GRU], views: int) -> None:
    torch.manual_seed(0)
    model = Net(layer)
    x, y = torch.randn(4 * views, 6, 4, 4), torch.randint(0, 3, (4 * views,))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    sums = [
        clipped_sum(make(model, loss, FlatClipping(0.05), views=views), x, y)
        for make in (FastEngine, ReferenceEngine)
    ]
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)


def test_the_kernel_forms_depthwise_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are those of the sum, bit for bit, so that norm and sum are of one gradient."""
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 8)
    x, g = torch.randn(5, 8, 6, 6), torch.randn(5, 8, 6, 6)
    monkeypatch.setattr(convolution, "fold", None)
    use = convolution._Convolution(x, g, geometry, 1, FAST)
    formed = convolution_forms.depthwise(x, g, geometry)
    assert torch.equal(use.gradients(0, 5), formed)
    torch.testing.assert_close(use.squared_norms(), formed.flatten(1).square().sum(1), rtol=1e-6, atol=0)


class Adapted(nn.Module):
    """Large frozen layers, one of which sees only data, with adapters beside them as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256, bias=False)
        self.down, self.up = nn.Linear(256, 4, bias=False), nn.Linear(4, 256)
        for layer in (self.first, self.second):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x), inplace=True)
        h = h + self.up(self.down(h))
        return torch.as_tensor(self.second(h).tanh_().mean(1))


@pytest.mark.parametrize("views", [1, 2])
def test_large_frozen_layers_are_a_loop(views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Adapted(), torch.randn(6 * views, 80, 256)
    taken: list[bool] = []
    of_onednn = linear._for_onednn

    def noted(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
        taken.append(of_onednn(x, W, b))
        return taken[-1]

    monkeypatch.setattr(linear, "_for_onednn", noted)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.as_tensor(model(x).square().sum(1))

    sums = [
        clipped_sum(make(model, loss, FlatClipping(0.05), views=views), x)
        for make in (FastEngine, ReferenceEngine)
    ]
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)
    assert any(taken) or linear._is_intel() or not linear._has_onednn()
