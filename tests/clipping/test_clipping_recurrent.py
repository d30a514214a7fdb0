"""Recurrent layers: what is found over time is what autograd finds, and goes through the engine.

Also by torch's fused kernels of cells: on a CPU by twins that the dispatcher takes for them; on a CUDA device
the kernels are compared with the twins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Batch,
    Of,
    Watched,
    cross_entropy,
    double,
    equal,
    equals_a_loop,
    most_moved,
    norms_found,
    one_or_two_views,
    step,
)
from torch import Tensor, nn

from tacit.clipping import FAST, LEAN, FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import recurrent
from tacit.clipping.per_example.recurrent import Cell, Fused, Pull, Pulled, Run, Weights, previous_of

Cells = dict[str, Any]
Layer = type[nn.LSTM | nn.GRU | nn.RNN]
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAYERS = pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
RULE = FlatClipping(0.1)


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


class Kind(NamedTuple):
    gates: int
    states: int
    cell: Cell
    run: Run
    pull: Pull
    fused: Fused | None = None


KINDS = {
    "tanh": Kind(1, 1, recurrent.tanh_cell, recurrent.run_tanh, recurrent.pull_tanh),
    "relu": Kind(1, 1, recurrent.relu_cell, recurrent.run_relu, recurrent.pull_relu),
    "gru": Kind(3, 1, recurrent.gru_cell, recurrent.run_gru, recurrent.pull_gru, recurrent.FUSED_GRU),
    "lstm": Kind(4, 2, recurrent.lstm_cell, recurrent.run_lstm, recurrent.pull_lstm, recurrent.FUSED_LSTM),
}


def numbers(*shape: int) -> Tensor:
    return (0.5 * double(*shape)).requires_grad_()


def by_cells(cell: Cell, x: Tensor, first: Batch, weights: Weights) -> Tensor:
    """Step by step, as the equations say, watched by autograd."""
    state, outputs = first, []
    for x_t in x.unbind(1):
        a = F.linear(x_t, weights.w_ih, weights.b_ih)
        state = cell(a, F.linear(state[0], weights.w_hh, weights.b_hh), state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state[1:]], dim=1)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4), steps=st.integers(1, 20), inputs=st.integers(1, 4), units=st.integers(1, 4),
    biases=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_all_gradients_are_those_of_autograd(
    twins: None, name: str, rows: int, steps: int, inputs: int, units: int, biases: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    kind = KINDS[name]
    width = kind.gates * units
    shapes = [(width, inputs), (width, units), *([(width,)] * 2 if biases else [])]
    weights = Weights(*(numbers(*shape) for shape in shapes))
    x, first = numbers(rows, steps, inputs), tuple(numbers(rows, units) for _ in range(kind.states))
    wanted = by_cells(kind.cell, x, first, weights)
    g = torch.randn_like(wanted)
    before = g.clone()
    present = [w for w in weights if w is not None]
    truth = torch.autograd.grad(wanted, [*present, x, *first], g)
    previous = previous_of(first[0], wanted[:, :steps]).detach()

    def check(found: Tensor, pulled: Pulled) -> None:
        equal(found, wanted, 1e-9, 1e-12)
        sums = [
            torch.einsum("btp,btd->pd", pulled.a, x),
            torch.einsum("btp,btd->pd", pulled.z, previous),
            pulled.a.sum((0, 1)),
            pulled.z.sum((0, 1)),
        ]
        ours = (*sums[: len(present)], pulled.a @ weights.w_ih, *pulled.state)
        for one, other in zip(ours, truth, strict=True):
            equal(one, other, 1e-9, 1e-11)

    with torch.no_grad():
        found = kind.run(x, first, weights)
        pulled = kind.pull(x, first, weights, found, g)
        check(found, pulled)
        check(recurrent._cells(kind.cell, x, first, weights), pulled)
        if kind.fused is not None:
            found, kept = kind.fused.run(x, first, weights)
            check(found, kind.fused.pull(first, weights, kept, g))
    assert torch.equal(g, before), "autograd's own gradient is not written to"


@pytest.mark.parametrize("name", KINDS)
def test_vanished_gradients_leave_no_numbers_that_are_slow(name: str) -> None:
    """A gradient over 200 steps falls far below the range of float32; the first ones are zero."""
    kind = KINDS[name]
    units, steps = 8, 200
    w_ih, w_hh = 0.1 * torch.randn(kind.gates * units, 3), 0.1 * torch.randn(kind.gates * units, units)
    x, first = torch.randn(5, steps, 3), tuple(torch.zeros(5, units) for _ in range(kind.states))
    found = kind.run(x, first, Weights(w_ih, w_hh))
    g = torch.zeros_like(found)
    g[:, steps - 1] = 1.0
    pulled = kind.pull(x, first, Weights(w_ih, w_hh), found, g)
    least = torch.finfo(torch.float32).tiny ** 0.5
    assert not ((pulled.z != 0) & (pulled.z.abs() < least)).any()
    for gradient in (pulled.a, pulled.z):
        assert not gradient[:, 0].any()
        assert gradient[:, -1].any()


def translation(layer: Layer, batch_first: bool = True) -> nn.Module:
    """An encoder whose last state the decoder begins with, and whose last cell is read."""

    def forward(m: Any, x: Tensor) -> Any:
        x = x if batch_first else x.transpose(0, 1)
        outputs, last = m.decoder(x.flip(1 if batch_first else 0), m.encoder(x)[1])
        last = last[-1] if isinstance(last, tuple) else last
        return m.head(outputs.mean(1 if batch_first else 0) + last[0])

    encoder, decoder = (layer(3, 4, batch_first=batch_first) for _ in range(2))
    return Of(forward, encoder=encoder, decoder=decoder, head=nn.Linear(4, 2))


def both_directions(layer: Layer) -> nn.Module:
    """Two layers in both directions, whose last states are read too."""

    def forward(m: Any, x: Tensor) -> Any:
        outputs, last = m.layers(x)
        ends = last[0] + last[1] if isinstance(last, tuple) else last
        return m.head(outputs.mean(1)) + ends.sum((0, 2))[:, None]

    layers = layer(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    return Of(forward, layers=layers, head=nn.Linear(8, 2))


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(6) % 2


@pytest.mark.untraced
@one_or_two_views
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_states_that_depend_on_the_records(layer: Layer, batch_first: bool, views: int) -> None:
    model = translation(layer, batch_first).double()
    for budget in (FAST, LEAN):
        equals_a_loop(FastEngine(model, cross_entropy, RULE, views=views, budget=budget), *batch())


@pytest.mark.untraced
@one_or_two_views
@LAYERS
def test_fused_kernels_equal_the_loop_and_are_bounded(
    twins: None, layer: Layer, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "takes_fused", lambda x: True)
    model, (x, y) = both_directions(layer).double(), batch()
    for budget in (FAST, LEAN):
        equals_a_loop(FastEngine(model, cross_entropy, RULE, views=views, budget=budget), x, y)
    narrow = FastEngine(model.float(), cross_entropy, RULE, views=views)
    assert most_moved(narrow, 20 * x.float(), y) <= 1 + 1e-5


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_autocast_and_narrow_types_compute_in_single_precision(layer: Layer) -> None:
    model, (x, y) = translation(layer), batch()

    def in_bfloat16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x).float(), y, reduction="none")

    try:
        in_bfloat16(model, x.float(), y)
    except RuntimeError:
        pytest.skip("torch itself has no such layer in 16 bits on this processor")
    engines = [FastEngine(model, loss, RULE) for loss in (cross_entropy, in_bfloat16)]
    wanted, found = (torch.cat([t.flatten() for t in step(e, x.float(), y)[0].values()]) for e in engines)
    assert {engine.route for engine in engines} == {"fast"}
    assert float((found - wanted).norm()) < 0.03 * float(wanted.norm())


def noted(names: list[str]) -> Watched:
    """Note operations but for views, and what a product or sum adds to, which a library copies first."""

    def note(func: Any, args: Any, found: Any) -> None:
        aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        if all(alias.is_write for alias in aliases):
            names.append(func._schema.name.removeprefix("aten::"))

    return Watched(note)


@pytest.mark.parametrize(("name", "forward", "backward"), [("lstm", 2, 2), ("gru", 2, 3)])
def test_a_time_step_takes_two_launches_forward_and_two_or_three_backward(
    twins: None, name: str, forward: int, backward: int
) -> None:
    kind, counts = KINDS[name], []
    fused, width = kind.fused, 8 * kind.gates
    assert fused is not None
    weights = Weights(*(torch.randn(*shape) for shape in [(width, 3), (width, 8), (width,), (width,)]))
    first = (torch.zeros(5, 8),) * kind.states
    for steps in (10, 20):
        there, back = list[str](), list[str]()
        with noted(there):
            found, kept = fused.run(torch.randn(5, steps, 3), first, weights)
        with noted(back):
            fused.pull(first, weights, kept, torch.ones_like(found))
        counts.append(torch.tensor([len(there), len(back)]))
        assert not {"add", "addmm"} & {*there}
        assert "addmm" not in back, "which copies what it adds to"
    assert (counts[1] - counts[0]).tolist() == [10 * forward, 10 * backward]


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
                equal(one, other, 1e-5, 1e-5)
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
def test_cuda_equals_the_cpu(layer: Layer) -> None:
    model, (x, y) = both_directions(layer).double(), batch()
    here = FastEngine(model, cross_entropy, RULE)
    wanted, norms = step(here, x, y)[0], norms_found(here, x, y)
    there = FastEngine(model.cuda(), cross_entropy, RULE)
    found, seen = step(there, x.cuda(), y.cuda())
    equal({name: total.cpu() for name, total in found.items()}, wanted, rtol=1e-8, atol=1e-10)
    equal(seen.raw_norms[:, 0].cpu(), norms, rtol=1e-8)
