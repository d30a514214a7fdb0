"""Recurrent layers by torch's kernels of cells: on a CPU by twins that the dispatcher takes for them.

On a CUDA device the kernels are compared with the twins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import cross_entropy, equal, norms_found, step
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.clipping import LEAN, FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import recurrent
from tacit.clipping.per_example.recurrent import Cell, Fused, Weights, previous_of
from tacit.clipping.reference import ReferenceEngine

Cells = dict[str, Any]
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAYERS = pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])


def with_biases(a: Tensor, z: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> tuple[Tensor, Tensor]:
    return (a if b_ih is None else a + b_ih), (z if b_hh is None else z + b_hh)


def lstm_cell(
    a: Tensor, z: Tensor, c: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, n, o = sum(with_biases(a, z, b_ih, b_hh)).chunk(4, 1)  # type: ignore[union-attr]
    i, f, n, o = i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid()
    after = f * c + i * n
    return o * after.tanh(), after, torch.cat([i, f, n, o], 1)


def lstm_cell_back(
    dh: Tensor, dc: Tensor, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, None]:
    assert not has_bias
    i, f, n, o = gates.chunk(4, 1)
    squashed = after.tanh()
    dc = dc + dh * o * (1 - squashed**2)
    of_i, of_f, of_n = dc * n * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - n**2)
    return torch.cat([of_i, of_f, of_n, dh * squashed * o * (1 - o)], 1), dc * f, None


def gru_cell(
    a: Tensor, z: Tensor, h: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    (a_r, a_u, a_n), (z_r, z_u, z_n) = (t.chunk(3, 1) for t in with_biases(a, z, b_ih, b_hh))
    r, u = (a_r + z_r).sigmoid(), (a_u + z_u).sigmoid()
    n = (a_n + r * z_n).tanh()
    return n + u * (h - n), torch.cat([r, u, n, h, z_n], 1)


def gru_cell_back(
    dh: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    assert not has_bias
    r, u, n, h, z_n = kept.chunk(5, 1)
    of_n = dh * (1 - u) * (1 - n**2)
    of_r, of_u = of_n * z_n * r * (1 - r), dh * (h - n) * u * (1 - u)
    return torch.cat([of_r, of_u, of_n], 1), torch.cat([of_r, of_u, of_n * r], 1), dh * u, None, None


TWINS: Cells = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_back,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_back,
}


@pytest.fixture(scope="module")
def twins() -> Iterator[None]:
    """The twins are the operations' kernels on a CPU, which has none: torch checks their signature."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, twin in TWINS.items():
            library.impl(name, twin, "CPU")
        yield


@pytest.fixture
def taken(twins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "takes_fused", lambda x: True)


def numbers(*shape: int) -> Tensor:
    return (0.5 * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def by_cells(cell: Cell, x: Tensor, first: tuple[Tensor, ...], weights: Weights) -> Tensor:
    """Step by step, as the equations say, watched by autograd."""
    state, outputs = first, []
    for x_t in x.unbind(1):
        a = F.linear(x_t, weights.w_ih, weights.b_ih)
        state = cell(a, F.linear(state[0], weights.w_hh, weights.b_hh), state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state[1:]], dim=1)


@pytest.mark.parametrize(
    ("fused", "cell", "gates", "states"),
    [(recurrent.FUSED_LSTM, recurrent.lstm_cell, 4, 2), (recurrent.FUSED_GRU, recurrent.gru_cell, 3, 1)],
    ids=["lstm", "gru"],
)
@given(
    rows=st.integers(1, 4), steps=st.integers(1, 20), inputs=st.integers(1, 4), units=st.integers(1, 4),
    biases=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_all_gradients_are_those_of_autograd(
    twins: None, fused: Fused, cell: Cell, gates: int, states: int,
    rows: int, steps: int, inputs: int, units: int, biases: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    width = gates * units
    shapes = [(width, inputs), (width, units), *([(width,)] * 2 if biases else [])]
    weights = Weights(*(numbers(*shape) for shape in shapes))
    x, first = numbers(rows, steps, inputs), tuple(numbers(rows, units) for _ in range(states))
    wanted = by_cells(cell, x, first, weights)
    g = torch.randn_like(wanted)
    before = g.clone()
    with torch.no_grad():
        found, kept = fused.run(x, first, weights)
        pulled = fused.pull(first, weights, kept, g)
        sums = [
            torch.einsum("btp,btd->pd", pulled.a, x),
            torch.einsum("btp,btd->pd", pulled.z, previous_of(first[0], found[:, :steps])),
            pulled.a.sum((0, 1)),
            pulled.z.sum((0, 1)),
        ]
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(g, before), "autograd's own gradient is not written to"
    present = [w for w in weights if w is not None]
    truth = torch.autograd.grad(wanted, [*present, x, *first], g)
    ours = (*sums[: len(present)], pulled.a @ weights.w_ih, *pulled.state)
    for one, other in zip(ours, truth, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


class Net(nn.Module):
    """Two layers in both directions, whose last states are read too."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU], units: int = 4) -> None:
        super().__init__()
        self.layers = layer(3, units, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * units, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.layers(x)
        ends = last[0] + last[1] if isinstance(last, tuple) else last
        found: Tensor = self.head(outputs.mean(1)) + ends.sum((0, 2))[:, None]
        return found


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 5, 3, dtype=torch.float64, generator=generator), torch.arange(n) % 2


@pytest.mark.untraced
@LAYERS
def test_the_engine_with_them_equals_the_reference(layer: type[nn.LSTM | nn.GRU], taken: None) -> None:
    model = Net(layer).double()
    for views in (1, 2):
        wanted, _ = step(ReferenceEngine(model, cross_entropy, FlatClipping(0.1), views=views), *batch())
        for options in ({}, {"budget": LEAN}):
            engine = FastEngine(model, cross_entropy, FlatClipping(0.1), views=views, **options)
            equal(step(engine, *batch())[0], wanted, rtol=1e-9)
            assert engine.route == "fast"


@pytest.mark.untraced
@LAYERS
def test_one_record_moves_the_sum_by_no_more_than_the_bound(
    layer: type[nn.LSTM | nn.GRU], taken: None
) -> None:
    model = Net(layer)
    x, y = batch()
    x = 20 * x.float()

    def total(*rows: Tensor) -> Tensor:
        found, _ = step(FastEngine(model, cross_entropy, FlatClipping(0.1)), *rows, dtype=torch.float64)
        return torch.cat([t.flatten() for t in found.values()])

    whole = total(x, y)
    for i in range(len(y)):
        rest = torch.arange(len(y)) != i
        assert float((whole - total(x[rest], y[rest])).norm()) <= 0.1 * (1 + 1e-5)


class Counted(TorchDispatchMode):
    """Counts operations but for views, and what a product or sum adds to, which a library copies first."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments):
            self.found[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("fused", "forward", "backward"), [(recurrent.FUSED_LSTM, 2, 2), (recurrent.FUSED_GRU, 2, 3)]
)
def test_a_time_step_takes_two_launches_forward_and_two_or_three_backward(
    twins: None, fused: Fused, forward: int, backward: int
) -> None:
    gates = 4 if fused is recurrent.FUSED_LSTM else 3
    shapes = [(8 * gates, 3), (8 * gates, 8), (8 * gates,), (8 * gates,)]
    weights = Weights(*(torch.randn(*shape) for shape in shapes))
    first = (torch.zeros(5, 8),) * (2 if fused is recurrent.FUSED_LSTM else 1)
    counts = []
    for steps in (10, 20):
        with Counted() as there:
            found, kept = fused.run(torch.randn(5, steps, 3), first, weights)
        with Counted() as back:
            fused.pull(first, weights, kept, torch.ones_like(found))
        counts.append((there.found.total(), back.found.total()))
        assert there.found.keys().isdisjoint({"add", "addmm"})
        assert "addmm" not in back.found, "which copies what it adds to"
    (there_10, back_10), (there_20, back_20) = counts
    assert (there_20 - there_10, back_20 - back_10) == (10 * forward, 10 * backward)


@pytest.mark.cuda
@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_equal_their_twins(dtype: torch.dtype) -> None:
    """The inputs of a cell need not lie in a row."""

    def same(name: str, *args: Any) -> tuple[Any, ...]:
        found = getattr(torch.ops.aten, name)(*args)
        for one, other in zip(found, TWINS[name](*args), strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        return tuple(found)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device="cuda")

    for biases in ((), (some(48), some(48))):
        a, z, c = some(5, 3, 48)[:, 1], some(5, 48), some(5, 12)
        _, after, gates = same("_thnn_fused_lstm_cell", a, z, c, *biases)
        same("_thnn_fused_lstm_cell_backward_impl", some(5, 2, 12)[:, 1], some(5, 12), c, after, gates, False)
        _, kept = same("_thnn_fused_gru_cell", a[:, :36], z[:, :36], c, *(b[:36] for b in biases))
        same("_thnn_fused_gru_cell_backward", some(5, 2, 12)[:, 1], kept, False)


@pytest.mark.cuda
@CUDA
@pytest.mark.untraced
@LAYERS
def test_cuda_equals_the_cpu(layer: type[nn.LSTM | nn.GRU]) -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(layer).double(), batch()
    wanted, _ = step(FastEngine(model, cross_entropy, FlatClipping(0.1)), x, y)
    norms = norms_found(FastEngine(model, cross_entropy, FlatClipping(0.1)), x, y)
    there = FastEngine(model.cuda(), cross_entropy, FlatClipping(0.1))
    sums = {name: torch.zeros_like(p) for name, p in there.parameters.items()}
    bound = torch.full((1,), 0.1, dtype=torch.float64, device="cuda")
    found = there.add_clipped_sum(sums, (x.cuda(), y.cuda()), torch.ones(6, dtype=torch.bool).cuda(), bound)
    equal({name: total.cpu() for name, total in sums.items()}, wanted, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.raw_norms[:, 0].cpu(), norms)
