"""Records made to be measured too short: what single precision loses must not become their privilege."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Batch, Maker, Of, Shape, clipped_sum, double, step
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tacit import native
from tacit.clipping import LEAN
from tacit.clipping.engine import ROUNDING, GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import convolution_forms
from tacit.clipping.per_example.convolution_forms import Geometry
from tacit.clipping.per_example.use import row_squares
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)

EPS = float(torch.finfo(torch.float32).eps)
LANES = (1, 8, 16, 32, 128)
ENGINES: dict[str, Callable[..., GradientEngine]] = {
    "fast": FastEngine,
    "lean": lambda *args: FastEngine(*args, budget=LEAN),
    "reference": ReferenceEngine,
}


def losing(count: int, lanes: int) -> Any:
    """Return (count,) numbers: a few ones, and small numbers whose squares a sum loses next to them."""
    x = torch.full((count,), (0.99 * 0.5 * EPS) ** 0.5)
    x[:lanes] = 1.0
    return x / lanes**0.5


@pytest.mark.parametrize("count", [1024, 1025, 5000, 2**16, 2**20 + 3])
@pytest.mark.parametrize("apart", [False, True])
def test_norms_of_long_rows_do_not_fall_short(count: int, apart: bool) -> None:
    for lanes in LANES:
        x = losing(count, lanes).repeat(3, 1)
        x = x.T.contiguous().T if apart else x
        short = 1 - row_squares(x).double().sqrt() / x.double().norm(dim=1)
        assert float(short.max()) < 0.6 * ROUNDING * EPS


def test_squares_keep_type_and_shape_and_what_is_not_finite() -> None:
    x = torch.ones(2, 3, 5000)
    x[0, 1, 7], x[1, 2, 4999], x[1, 0] = torch.inf, torch.nan, 3e38
    found = row_squares(x)
    assert found.shape == (2, 3)
    assert found.dtype == torch.float32
    assert found[0, 1] == torch.inf
    assert found[1, 2].isnan()
    assert found[1, 0] == torch.inf
    assert found[0, 0] == 5000
    assert row_squares(torch.ones(2, 5000, dtype=torch.float64)).dtype == torch.float64
    assert row_squares(torch.ones(0, 5000)).shape == (0,)


def weighted(model: nn.Module, x: Tensor, w: Tensor) -> Any:
    """A loss whose gradient by the output is w."""
    return (model(x) * w).flatten(1).sum(1)


def largest(engine: Callable[..., GradientEngine], model: nn.Module, batch: Batch) -> float:
    """|sum(D) - sum(D without its first record)| / C, on buffers with noise in them.

    The model is tried on ordinary records first: losses that cancel look as if they mixed records.
    """
    made, sums = engine(model, weighted, FlatClipping(1.0)), []
    step(made, *(torch.rand_like(t) if t.is_floating_point() else t for t in batch))
    for start in (0, 1):
        generator = torch.Generator().manual_seed(3)
        noise = {k: torch.randn(p.shape, generator=generator) for k, p in model.named_parameters()}
        found, _ = step(made, *(t[start:] for t in batch), into=noise)
        sums.append(torch.cat([v.double().flatten() for v in found.values()]))
    return float((sums[0] - sums[1]).norm())


def wide(lanes: int) -> tuple[nn.Module, Batch]:
    """The gradient of a record is its row of a million numbers."""
    return nn.Linear(2**20, 1, bias=False), (3 * losing(2**20, lanes).repeat(2, 1), torch.ones(2, 1))


def matrix(layer: nn.Module, lanes: int) -> tuple[nn.Module, Batch]:
    """Positions that are unit vectors make it w, a kept matrix."""
    w = 3 * losing(512 * 512, lanes).view(1, 512, 512).repeat(2, 1, 1)
    return layer, (torch.eye(512).repeat(2, 1, 1), w)


def kept(lanes: int) -> tuple[nn.Module, Batch]:
    return matrix(nn.Linear(512, 512, bias=False), lanes)


def convolution(lanes: int) -> tuple[nn.Module, Batch]:
    return matrix(nn.Conv1d(512, 512, 1, bias=False), lanes)


def looked_up(lanes: int) -> tuple[nn.Module, Batch]:
    """Each number once, in a table of width 1."""
    w = 3 * losing(2**14, lanes).view(1, -1, 1).repeat(2, 1, 1)
    return nn.Embedding(2**14, 1), (torch.arange(2**14).repeat(2, 1), w)


def ghost(lanes: int) -> tuple[nn.Module, Batch]:
    """Two positions of 65,536 numbers, of which no matrix is formed."""
    x, w = losing(2**16, lanes).repeat(2, 2, 1), 3 * losing(64, 1).repeat(2, 2, 1)
    return nn.Linear(2**16, 64, bias=False), (x, w)


@pytest.mark.skipif(native.library() is None, reason="there is no kernel")
@pytest.mark.parametrize(
    ("channels", "kernel", "dilation"),
    [(2**20, 1, 1), (7, 2**15, 2), (24, 2**14, 2), (40, 2**13, 3), (3, 2**16, 1)],
)
def test_norms_of_wide_convolutions_do_not_fall_short(channels: int, kernel: int, dilation: int) -> None:
    """One position sees all of the input, so that it is the gradient: in runs of a line, or of a place."""
    geometry = Geometry((kernel,), (1,), (0,), (dilation,), 1)
    for lanes in LANES:
        seen = losing(channels * kernel, lanes).view(kernel, channels).T
        x = torch.zeros(1, channels, (kernel - 1) * dilation + 1)
        x[0, :, ::dilation] = seen
        square = convolution_forms.native_squared_norms(x, torch.ones(1, 1, 1), geometry, 1)
        short = 1 - float(square) ** 0.5 / float(seen.double().norm())
        assert short < 0.6 * ROUNDING * EPS


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [wide, kept, convolution, looked_up, ghost])
def test_small_numbers_lost_in_a_sum_are_clipped(
    case: Callable[[int], tuple[nn.Module, Batch]], engine: str
) -> None:
    for lanes in LANES:
        assert largest(ENGINES[engine], *case(lanes)) <= 1 + 1e-5


def both_ways(spread: float) -> tuple[nn.Module, Batch]:
    """x W + y W^T from rows (x, y): two uses of W, which cancel where y takes back what x gives."""
    root = spread**0.5
    a, b, small = (F.normalize(torch.randn(3, 24), dim=1) for _ in range(3))
    model = Of(
        lambda m, rows: torch.stack([rows[:, 0] @ m.weight, rows[:, 1] @ m.weight.t()], 1),
        weight=nn.Parameter(torch.randn(24, 24)),
    )
    return model, (
        torch.stack([root * a, root * b], 1),
        torch.stack([root * b, 3 * small / root - root * a], 1),
    )


def equal_numbers(spread: float) -> tuple[nn.Module, Batch]:
    """A number that is looked up 64 times, with gradients that cancel but for a norm of 3."""
    w = spread * torch.randn(3, 32, 16) / 16
    w = torch.cat([w, -w], 1) + 3 * torch.randn(3, 64, 16) / 32
    return nn.Embedding(5, 16), (torch.ones(3, 64, dtype=torch.long), w)


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [both_ways, equal_numbers])
@pytest.mark.parametrize("spread", [1e2, 1e4, 1e5, 1e6, 1e7])
def test_uses_that_cancel_are_clipped(
    case: Callable[[float], tuple[nn.Module, Batch]], spread: float, engine: str
) -> None:
    for _ in range(5):
        assert largest(ENGINES[engine], *case(spread)) <= 1 + 1e-5


def tied() -> nn.Module:
    """A table that is looked up, and that is the last layer as well."""
    weight = nn.Parameter(torch.randn(40, 16))
    return Of(lambda m, numbers: F.linear(F.embedding(numbers, m.weight), m.weight), weight=weight)


SMALLEST: dict[str, ClippingRule] = {
    "flat": FlatClipping(1e-10),
    "per layer": PerLayerClipping(1e-10),
    "automatic": AutomaticClipping(1.0, stability=1e-10),
    "adaptive": AdaptiveClipping(1e-10, low=1e-10),
    "flat 1": FlatClipping(1.0),
}
FORMS: dict[str, tuple[Maker, Shape, Shape]] = {
    "one position": (lambda: nn.Linear(30, 20), (30,), (20,)),
    "kept": (lambda: nn.Linear(8, 4), (12, 8), (12, 4)),
    "ghost": (lambda: nn.Linear(200, 300, bias=False), (3, 200), (3, 300)),
    "weight norm": (lambda: weight_norm(nn.Linear(30, 20)), (30,), (20,)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (3, 9, 9), (4, 7, 7)),
    "ghost convolution": (lambda: nn.Conv2d(64, 64, 3), (64, 4, 4), (64, 2, 2)),
    "look-up": (lambda: nn.Embedding(40, 16), (), (7, 16)),
    "tied": (tied, (), (7, 40)),
}


@pytest.fixture(params=[False, True], ids=["gradual", "flushed"])
def underflow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Underflow to numbers of fewer digits, and at once to 0."""
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.usefixtures("underflow")
@pytest.mark.parametrize("rule", SMALLEST)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_any_size_are_clipped(form: str, rule: str) -> None:
    """The input and the gradient of the output have sizes of their own, and so has their product."""
    make, x_shape, w_shape = FORMS[form]
    model, clipping = make(), SMALLEST[rule]
    engines = [FastEngine(model, weighted, clipping), FastEngine(model, weighted, clipping, budget=LEAN)]
    for engine in engines:
        most = clipping.sensitivity(clipping.initial_thresholds(engine.names)) * (1 + 1e-5)
        for of_x in (-25, -15, 0, 15) if x_shape else (0,):
            x = 10.0**of_x * torch.randn(1, *x_shape) if x_shape else torch.randint(40, (1, 7))
            for of_w in range(-45, 21, 5):
                w = (10.0**of_w * double(1, *w_shape)).float()
                assert float(clipped_sum(engine, x, w).norm()) <= most, (of_x, of_w)
