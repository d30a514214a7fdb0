"""Convolutions and group norms against a loop of one backward pass per record, in every form and layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Maker,
    Of,
    Shape,
    called,
    double,
    equal,
    equals_a_loop,
    loop,
    one_or_two_views,
    running,
    step,
    waves,
)
from torch import Tensor, nn

from tacit import native
from tacit.clipping import FAST, LEAN, FlatClipping, MemoryBudget
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import convolution, convolution_forms, normalisation
from tacit.clipping.per_example.convolution import Patched
from tacit.clipping.per_example.convolution_forms import Geometry
from tacit.clipping.per_example.use import Use

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
FORMS = ("kept", "twice", "ghost")
PYTHON_OR_NATIVE = pytest.mark.parametrize("kernels", ["0", "1"], ids=["python", "native"], indirect=True)
needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"{native.why_not()}")


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_NATIVE", request.param)


@dataclass(frozen=True)
class Setting:
    """One convolution: channels per group, outputs per group, the size of the input, and its geometry."""

    channels: int
    outputs: int
    size: Shape
    geometry: Geometry

    def tensors(self, rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return x (rows, C, s...) and g (rows, P, s...)."""
        generator = torch.Generator().manual_seed(0)
        groups = self.geometry.groups
        x = torch.randn(rows, groups * self.channels, *self.size, generator=generator, dtype=dtype)
        weight = x.new_zeros(groups * self.outputs, self.channels, *self.geometry.kernel)
        return x, torch.randn(self.forward(x, weight).shape, generator=generator, dtype=dtype)

    def forward(self, x: Tensor, weight: Tensor) -> Any:
        """The convolution itself."""
        g = self.geometry
        return CONVOLUTIONS[len(self.size) - 1](x, weight, None, g.stride, g.padding, g.dilation, g.groups)

    def oracle(self, x: Tensor, g: Tensor, views: int) -> Tensor:
        """Gradients of each record, (n, P, c, k...), one backward pass each."""
        shape = (self.geometry.groups * self.outputs, self.channels, *self.geometry.kernel)
        weight = x.new_zeros(shape, requires_grad=True)
        found = []
        for i in range(0, len(x), views):
            rows = slice(i, i + views)
            found.append(torch.autograd.grad(self.forward(x[rows], weight), weight, g[rows])[0])
        return torch.stack(found)


def square(
    channels: int, outputs: int, *size: int, kernel: int = 3, stride: int = 1, padding: int = 1
) -> Setting:
    """A kernel of 3, and the rest the same along each dimension."""

    def along(number: int) -> Shape:
        return (number,) * len(size)

    return Setting(channels, outputs, size, Geometry(along(3), along(stride), along(padding), along(1), 1))


FACTORS = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
"""Of three records, of which one adds nothing."""


@st.composite
def geometries(draw: st.DrawFn, groups: int = 3, dimensions: int = 3) -> Setting:
    """Any convolution whose output has at least one position, in at most ``most`` dimensions."""
    dimensions = draw(st.integers(1, dimensions))
    each = st.tuples(*[st.integers(1, 3)] * dimensions)
    kernel, stride, dilation = draw(each), draw(each), draw(each)
    padding = draw(st.tuples(*[st.integers(0, 2)] * dimensions))
    spare = draw(st.tuples(*[st.integers(0, 4)] * dimensions))
    size = tuple(
        max(1, (k - 1) * d + 1 - 2 * p) + more
        for k, d, p, more in zip(kernel, dilation, padding, spare, strict=True)
    )
    geometry = Geometry(kernel, stride, padding, dilation, draw(st.integers(1, groups)))
    return Setting(draw(st.integers(1, 6)), draw(st.integers(1, 9)), size, geometry)


@contextmanager
def forced(form: str, fold_from: float = 100) -> Iterator[None]:
    """Make every convolution take a form: kept, twice or ghost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_choice", lambda *_, **__: (form == "kept", form == "ghost"))
        patch.setattr(convolution, "FOLD_FROM", fold_from)
        patch.setattr(convolution, "chunks", lambda n, *_: [(i, min(i + 2, n)) for i in range(0, n, 2)])
        patch.setattr(convolution, "FEW_CHANNELS", 0 if fold_from == 0 else convolution.FEW_CHANNELS)
        yield


@settings(max_examples=60, deadline=None)
@given(geometries(), st.sampled_from(FORMS), st.sampled_from([0, 1e9]), st.integers(1, 2))
def test_every_form_is_a_loop_of_backward_passes(
    setting: Setting, form: str, fold_from: float, views: int
) -> None:
    if form == "ghost" and (setting.geometry.groups > 1 or views > 1):
        form = "twice"  # as in the rule
    x, g = setting.tensors(3 * views)
    wanted = setting.oracle(x, g, views)
    with forced(form, fold_from):
        use = convolution._Convolution(x, g, setting.geometry, views, FAST)
        norms = use.squared_norms()
        total = torch.ones_like(wanted[0])
        use.add_weighted(total, FACTORS)
        equal(norms, wanted.flatten(1).square().sum(1))
        equal(use.gradients(1, 3), wanted[1:3])
    equal(total, 1 + torch.tensordot(FACTORS, wanted, dims=1))


@settings(max_examples=60, deadline=None)
@given(geometries(), st.sampled_from([0.0, 1e9]), st.sampled_from([1, 1 << 30]), st.integers(1, 2))
def test_patches_are_a_loop_of_backward_passes(
    setting: Setting, slack: float, pass_bytes: int, views: int
) -> None:
    setting = replace(setting, geometry=replace(setting.geometry, groups=1))
    x, g = setting.tensors(3 * views)
    wanted = setting.oracle(x, g, views)
    budget = MemoryBudget(convolution_slack=slack, pass_bytes=pass_bytes)
    some, whole = torch.tensor([True, False, True]), Patched(x, g, setting.geometry, views, budget)
    cases: list[tuple[Use, Tensor, Tensor]] = [
        (whole, wanted, FACTORS),
        (whole.of(some), wanted[some], FACTORS[some]),
    ]
    for use, of, by in cases:
        equal(use.squared_norms(), of.flatten(1).square().sum(1))
        equal(use.gradients(1, len(of)), of[1:])
        last = torch.ones_like(wanted[0].movedim(1, -1), memory_format=torch.contiguous_format).movedim(-1, 1)
        for total in (torch.ones_like(wanted[0]), last):
            use.add_weighted(total, by)
            equal(total, 1 + torch.tensordot(by, of, dims=1))


levels, some_threads = st.integers(0, 2), st.sampled_from([1, 2, 5])


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(geometries(groups=1), st.integers(1, 2), levels, some_threads)
def test_the_kernel_is_its_twin(setting: Setting, views: int, level: int, threads: int) -> None:
    x, g = setting.tensors(3 * views, torch.float32)
    wanted = setting.oracle(x.double(), g.double(), views).movedim(2, -1)
    factors = FACTORS.float()
    with running(level, threads):
        gradients, squares = convolution_forms.native_formed(x, g, setting.geometry, views)
        again = convolution_forms.native_squared_norms(x, g, setting.geometry, views)
        total = convolution_forms.native_weighted_sum(x, g, setting.geometry, views, factors)
    equal(gradients.double(), wanted, 1e-5, 1e-5)
    equal(squares, gradients.flatten(1).square().sum(1), 1e-6, 1e-30)
    assert torch.equal(squares, again)
    equal(total, torch.tensordot(factors, gradients, dims=1), 1e-5, 1e-5)


@needs_kernels
def test_the_kernel_gives_the_same_bits_however_it_is_asked() -> None:
    setting = square(33, 17, 150)
    x, g = setting.tensors(7, torch.float32)
    first, squares = convolution_forms.native_formed(x, g, setting.geometry, 1)
    one = convolution_forms.native_formed(x[4:5], g[4:5], setting.geometry, 1)
    alone = convolution_forms.native_weighted_sum(x, g, setting.geometry, 1, torch.eye(7)[4])
    assert torch.equal(first[4:5], one[0])
    assert torch.equal(squares[4:5], one[1])
    assert torch.equal(first[4], alone)


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(geometries(groups=1, dimensions=2), levels, some_threads)
def test_the_kernel_of_ghost_norms_is_its_twin(setting: Setting, level: int, threads: int) -> None:
    x, g = setting.tensors(3, torch.float32)
    wanted = setting.oracle(x.double(), g.double(), 1).flatten(1).square().sum(1)
    with running(level, threads):
        found = convolution_forms.native_ghost_squared_norms(x, g, setting.geometry)
    twin = convolution_forms.ghost_squared_norms(x, g, setting.geometry)
    largest = math.prod(setting.geometry.kernel) * (x.flatten(1).norm(dim=1) * g.flatten(1).norm(dim=1)) ** 2
    assert ((found - twin).abs() <= 1e-6 * largest).all()  # positions may cancel
    assert (found >= wanted).all()


@needs_kernels
@pytest.mark.parametrize("level", [0, 1, 2])
def test_ghost_norms_of_wide_layers_of_real_shapes(level: int) -> None:
    """Lines of several registers, lines shorter than one, more channels than a block, and strides."""
    for setting in (square(33, 17, 9, 21), square(40, 70, 7, 7), square(5, 6, 12, 40, stride=2)):
        x, g = setting.tensors(3, torch.float32)
        wanted = setting.oracle(x.double(), g.double(), 1).flatten(1).square().sum(1)
        with running(level, 2):
            found = convolution_forms.native_ghost_squared_norms(x, g.mT.contiguous().mT, setting.geometry)
        twin = convolution_forms.ghost_squared_norms(x, g, setting.geometry)
        equal(found, twin, 1e-5, 0.0)
        equal(found.double(), wanted, 1e-3, 0.0)
        assert (found > wanted).all()


@needs_kernels
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_ghost_norms_of_what_is_not_finite_are_not_finite(value: float) -> None:
    """So that the record is dropped, and no other."""
    setting = square(3, 4, 5, 6)
    for place in (0, 1):
        tensors = setting.tensors(3, torch.float32)
        tensors[place][1, 0, 2, 3] = value
        found = convolution_forms.native_ghost_squared_norms(*tensors, setting.geometry)
        assert found.isfinite().tolist() == [True, False, True]


def input_oracle(setting: Setting, x: Tensor, g: Tensor, weight: Tensor) -> Any:
    """The gradient of the input as autograd has it."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(setting.forward(x, weight), x, g)[0]


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(geometries(groups=1), levels, some_threads)
def test_the_kernel_of_input_gradients_is_that_of_torch(setting: Setting, level: int, threads: int) -> None:
    x, g = setting.tensors(3)
    weight = double(setting.outputs, setting.channels, *setting.geometry.kernel)
    wanted = input_oracle(setting, x, g, weight)
    with running(level, threads):
        found = convolution_forms.native_input_gradient(
            x.float(), g.float(), weight.float(), setting.geometry
        )
    equal(found.double(), wanted, 1e-5, 1e-4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=3))
def test_input_gradients_of_a_kernel_of_1(dimensions: list[tuple[int, int]]) -> None:
    size, stride = zip(*dimensions, strict=True)
    ones, nones = (1,) * len(size), (0,) * len(size)
    setting = Setting(3, 4, size, Geometry(ones, stride, nones, ones, 1))
    x, g = setting.tensors(2)
    weight = double(4, 3, *ones)
    assert convolution_forms.is_thinned(setting.geometry)
    found = convolution_forms.thinned_input_gradient(x, g, weight, setting.geometry)
    equal(found, input_oracle(setting, x, g, weight), 1e-12, 1e-12)


@PYTHON_OR_NATIVE
def test_strided_layers_below_others(kernels: None) -> None:
    """The input gradient of a strided layer reaches the layers before it, also if one is frozen."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 8, 4, stride=2, padding=1), nn.Tanh(),
        nn.Conv2d(8, 6, 2, stride=(1, 2)), nn.Tanh(), nn.Conv2d(6, 5, 1, stride=2),
    )  # fmt: skip
    model[2].bias.requires_grad_(False)
    equals_a_loop(
        FastEngine(model, waves, FlatClipping(1e6)), torch.randn(4, 2, 12, 12), rtol=1e-4, atol=1e-5
    )


@needs_kernels
def test_lines_longer_than_a_block_and_inputs_in_any_layout() -> None:
    setting = Setting(5, 9, (6, 300), Geometry((2, 3), (2, 1), (0, 1), (1, 2), 1))
    x, g = setting.tensors(2, torch.float32)
    wanted = setting.oracle(x.double(), g.double(), 1).movedim(2, -1)
    for left, right in product((x, x.to(memory_format=torch.channels_last)), (g, g.mT.contiguous().mT)):
        found, _ = convolution_forms.native_formed(left, right, setting.geometry, 1)
        equal(found.double(), wanted, 1e-5, 1e-4)


def test_norms_of_tiny_gradients_are_not_lost() -> None:
    """Squares that underflow: a record of norm 1e-25 must not count as 0, in any form."""
    setting = square(2, 3, 5, 5)
    x, g = setting.tensors(2, torch.float32)
    x, g = x * 1e-12, g * 1e-13
    wanted = setting.oracle(x.double(), g.double(), 1).flatten(1).norm(dim=1)
    for form in ("kept", "twice"):
        with forced(form):
            found = convolution._Convolution(x, g, setting.geometry, 1, FAST).squared_norms().sqrt()
        assert (found >= 0.99 * wanted).all()


@PYTHON_OR_NATIVE
def test_ghost_norms_allow_for_squares_that_underflow(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """|x|^2 is lost in float32 where g makes up for it: the norm is 1e-4, and must not count as less."""
    setting = square(2, 3, 5, 5)
    x, g = setting.tensors(4, torch.float32)
    for small, large in ((x * 1e-23, g * 1e18), (x * 1e18, g * 1e-23)):
        wanted = setting.oracle(small.double(), large.double(), 1).flatten(1).norm(dim=1)
        with forced("ghost"):
            found = convolution._Convolution(small, large, setting.geometry, 1, FAST).squared_norms().sqrt()
        assert (found.double() >= 0.99 * wanted).all()


CANCELLING = square(4, 4, 12, 12, padding=0)


def cancelling(size: float) -> tuple[Tensor, Tensor]:
    """Positions that add up to about ``size`` and cancel to 1e-4 of it: g sums to 0, x is nearly constant."""
    x, g = CANCELLING.tensors(50, torch.float32)
    x = 1 + 1e-4 * x
    g = size * (g - g.mean((2, 3), keepdim=True)) / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1) / 100
    return x, g


def largest_contribution(form: str, size: float) -> float:
    """The largest |factor_i G_i| that reaches the sum, at C = 1."""
    x, g = cancelling(size)
    with forced(form):
        use = convolution._Convolution(x, g, CANCELLING.geometry, 1, FAST)
        norms = use.squared_norms().sqrt() * (1 + 64 * torch.finfo(torch.float32).eps)
        factors = (1 / norms).clamp(max=1.0)
        largest = 0.0
        for i in range(len(x)):
            total = torch.zeros(4, 4, 3, 3)
            use.add_weighted(total, factors * torch.eye(len(x))[i])
            largest = max(largest, float(total.double().norm()))
    return largest


@PYTHON_OR_NATIVE
@pytest.mark.parametrize("form", FORMS)
def test_positions_that_cancel_are_bounded(kernels: None, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1e3, 1e5, 1e7):
        assert largest_contribution(form, size) <= 1 + 1e-4


@PYTHON_OR_NATIVE
def test_ghost_norms_without_their_allowance_are_not(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_forms, "cancellation", lambda dtype, length: 0.0)
    assert largest_contribution("ghost", 1e7) > 1.1


def layer(shape: Shape, budget: MemoryBudget, kernels: bool, rows: int = 256) -> str:
    """The form for (C, P, size, kernel, stride, padding)."""
    C, P, size, kernel, stride, padding = shape
    x = torch.empty(rows, C, size, size, device="meta")
    places = (size + 2 * padding - kernel) // stride + 1
    g = torch.empty(rows, P, places, places, device="meta")
    geometry = Geometry((kernel,) * 2, (stride,) * 2, (padding,) * 2, (1, 1), 1)
    keep, ghost = convolution._choice(x, g, geometry, 1, budget, fast_twice=kernels)
    return "kept" if keep else "ghost" if ghost else "twice"


@pytest.mark.parametrize(
    ("shape", "python", "kernels", "lean"),
    [
        ((1, 16, 28, 8, 2, 3), "kept", "kept", "kept"),
        ((16, 32, 13, 4, 2, 0), "kept", "twice", "twice"),
        ((3, 32, 32, 3, 1, 1), "kept", "kept", "kept"),
        ((32, 32, 32, 3, 1, 1), "kept", "kept", "kept"),
        ((64, 64, 16, 3, 1, 1), "twice", "twice", "twice"),
        ((64, 128, 8, 3, 1, 1), "ghost", "ghost", "ghost"),
        ((128, 128, 8, 3, 1, 1), "ghost", "ghost", "ghost"),
        ((256, 512, 4, 3, 1, 1), "ghost", "ghost", "ghost"),
        ((512, 512, 7, 1, 1, 0), "ghost", "ghost", "ghost"),
    ],
    ids=str,
)
def test_the_rule(shape: Shape, python: str, kernels: str, lean: str) -> None:
    assert layer(shape, FAST, kernels=False) == python
    assert layer(shape, FAST, kernels=True) == kernels
    assert layer(shape, LEAN, kernels=True) == lean


def test_fewer_rows_may_keep_more_than_they_replace() -> None:
    assert layer((64, 64, 16, 3, 1, 1), FAST, kernels=True, rows=64) == "kept"
    assert layer((64, 64, 16, 3, 1, 1), LEAN, kernels=True, rows=64) == "twice"


def formatted() -> nn.Module:
    """A network in channels_last."""
    inside = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 5, 2, stride=2))
    inside = inside.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Of(lambda m, x: m.inside(x.contiguous(memory_format=torch.channels_last)), inside=inside)


def up(dimensions: int, **options: object) -> Maker:
    """A transposed convolution of 4 to 6 channels."""
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return lambda: kinds[dimensions - 1](4, 6, **options)  # type: ignore[arg-type]


MODELS: dict[str, tuple[Maker, Shape]] = {
    "one position": (lambda: nn.Conv2d(3, 4, 5), (3, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (4, 6, 6)),
    "kernel of 1": (lambda: nn.Conv2d(3, 4, 1, stride=2, bias=False), (3, 6, 6)),
    "unread end": (lambda: nn.Conv1d(3, 4, 2, stride=3), (3, 10)),
    "circular, dilated": (lambda: nn.Conv1d(3, 4, 3, dilation=2, padding=2, padding_mode="circular"), (3, 8)),
    "reflect, 3-D": (lambda: nn.Conv3d(2, 3, 2, padding=1, padding_mode="reflect"), (2, 3, 4, 3)),
    "same, uneven ends": (lambda: nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(1, 2)), (2, 5, 9)),
    "channels_last": (formatted, (3, 9, 9)),
    "transposed input": (called(lambda m, x: m[0](x.mT), lambda: nn.Conv2d(3, 4, 3, padding=1)), (3, 5, 4)),
    "up 1-D": (up(1, kernel_size=3, stride=2, padding=1, output_padding=1), (4, 7)),
    "up 2-D": (up(2, kernel_size=(3, 2), stride=(2, 3), dilation=(2, 1), bias=False), (4, 4, 5)),
    "up 2-D, groups": (up(2, kernel_size=3, groups=2, padding=2, stride=2), (4, 5, 5)),
    "up, much output padding": (up(1, kernel_size=3, dilation=4, output_padding=3, padding=1), (4, 6)),
    "up 3-D": (up(3, kernel_size=2, stride=2, padding=1), (4, 3, 2, 3)),
    "up, one position": (up(2, kernel_size=3), (4, 1, 1)),
    "group norm, no space": (lambda: nn.GroupNorm(2, 6), (6,)),
    "group norm, 3-D": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.GroupNorm(4, 4)), (2, 3, 4, 5)),
    "norm, deep": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(4, 4), nn.Tanh(), nn.InstanceNorm2d(4, affine=True)
        ),
        (3, 6, 7),
    ),
}  # fmt: skip


@pytest.mark.thorough(cases="values")
@one_or_two_views
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_layers_are_a_loop_of_backward_passes(name: str, form: str, views: int) -> None:
    make, shape = MODELS[name]
    model = make().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    if form == "ghost" and (views > 1 or "groups" in name or name == "depthwise"):
        form = "twice"
    with forced(form):
        equals_a_loop(FastEngine(model, waves, FlatClipping(0.3), views=views), double(4 * views, *shape))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("most", [1, 4, 5, 8, 9])
def test_group_norms_of_more_groups_than_a_device_takes_at_once(
    most: int, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five rows of two groups, in parts of 1, 2 and 4 rows; the first layer's input needs no gradient."""
    model = nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh(), nn.GroupNorm(2, 4)).double()
    model[0].requires_grad_(not frozen)
    x = double(5, 4, 3)
    found = []
    for groups in (most, 65_535):
        monkeypatch.setattr(normalisation, "MOST_GROUPS", groups)
        engine = FastEngine(model, waves, FlatClipping(0.3))
        found.append(step(engine, x)[0])
        assert engine.route == "fast"
    equal(found[0], found[1], rtol=1e-12, atol=1e-14)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_group_norms_of_many_records_on_cuda() -> None:
    """More groups in a batch than the second dimension of a grid holds."""
    model, x = nn.GroupNorm(16, 16).cuda(), torch.randn(5000, 16, 2, device="cuda")
    engine = FastEngine(model, lambda model, x: model(x).sin().flatten(1).sum(1), FlatClipping(1.0))
    total, _ = step(engine, x)
    assert engine.route == "fast"
    assert all(bool(value.isfinite().all()) for value in total.values())


@pytest.mark.untraced
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from(["both", "weight", "bias"]), st.integers(1, 2), st.booleans(),
)  # fmt: skip
def test_group_norms_of_any_shape(
    groups: int, per_group: int, size: list[int], trained: str, views: int, first: bool
) -> None:
    """With an input that needs a gradient or none, and with either parameter frozen."""
    torch.manual_seed(0)
    C = groups * per_group
    norm = nn.GroupNorm(groups, C).double()
    model = norm if first else nn.Sequential(nn.Conv1d(C, C, 1).double(), nn.Tanh(), norm)
    x = 1 + double(3 * views, C, math.prod(size) + 1)
    norm.weight.requires_grad_(trained != "bias")
    norm.bias.requires_grad_(trained != "weight")
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    engine = FastEngine(model, waves, FlatClipping(1e6), views=views)
    found, seen = step(engine, x)
    assert engine.route == "fast"
    wanted, norms = loop(model, waves, (x,), 1e6, views)
    equal(found, wanted, rtol=0, atol=1e-10)
    equal(seen.raw_norms**2, norms**2)


@given(
    shape=st.tuples(
        st.sampled_from([1, 3, 16, 64, 128]), st.sampled_from([8, 32, 64, 128]), st.integers(4, 32),
        st.integers(1, 4), st.integers(1, 2), st.integers(0, 2),
    ),
    rows=st.integers(1, 20_000), kernels=st.booleans(), slack=st.sampled_from([0.0, 1.0, 1.5, 1.7]),
    small=st.sampled_from([0, 2**20, 2**25]),
)  # fmt: skip
def test_one_record_more_does_not_turn_exact_norms_into_ghost_norms(
    shape: Shape, rows: int, kernels: bool, slack: float, small: int
) -> None:
    """Else all records are clipped to something else because of one, and the sum changes by more than C."""
    budget = MemoryBudget(convolution_slack=slack, small_bytes=small)
    kinds = {layer(shape, budget, kernels, n) == "ghost" for n in (1, rows, 10**6)}
    assert len(kinds) == 1
