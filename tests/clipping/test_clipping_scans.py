"""Recurrent layers: what is found over time is what autograd finds, and goes through the engine."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import cross_entropy, equal, step
from torch import Tensor, nn

from tacit.clipping import LEAN, FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import recurrent
from tacit.clipping.per_example.recurrent import Cell, Pull, Run, Weights, previous_of
from tacit.clipping.reference import ReferenceEngine


class Kind(NamedTuple):
    gates: int
    states: int
    cell: Cell
    run: Run
    pull: Pull


KINDS = {
    "tanh": Kind(1, 1, recurrent.tanh_cell, recurrent.run_tanh, recurrent.pull_tanh),
    "relu": Kind(1, 1, recurrent.relu_cell, recurrent.run_relu, recurrent.pull_relu),
    "gru": Kind(3, 1, recurrent.gru_cell, recurrent.run_gru, recurrent.pull_gru),
    "lstm": Kind(4, 2, recurrent.lstm_cell, recurrent.run_lstm, recurrent.pull_lstm),
}


def numbers(*shape: int) -> Tensor:
    return (0.5 * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def by_cells(kind: Kind, x: Tensor, first: tuple[Tensor, ...], weights: Weights) -> Tensor:
    """Step by step, as the equations say, watched by autograd."""
    state, outputs = first, []
    for t in range(x.shape[1]):
        a = F.linear(x[:, t], weights.w_ih, weights.b_ih)
        state = kind.cell(a, F.linear(state[0], weights.w_hh, weights.b_hh), state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state[1:]], dim=1)


@pytest.mark.parametrize("name", KINDS)
@given(
    rows=st.integers(1, 4), steps=st.integers(1, 20), inputs=st.integers(1, 4), units=st.integers(1, 4),
    biases=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_all_gradients_are_those_of_autograd(
    name: str, rows: int, steps: int, inputs: int, units: int, biases: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    kind = KINDS[name]
    width = kind.gates * units
    shapes = [(width, inputs), (width, units), *([(width,)] * 2 if biases else [])]
    weights = Weights(*(numbers(*shape) for shape in shapes))
    x, first = numbers(rows, steps, inputs), tuple(numbers(rows, units) for _ in range(kind.states))
    wanted = by_cells(kind, x, first, weights)
    with torch.no_grad():
        found = kind.run(x, first, weights)
        stepwise = recurrent._cells(kind.cell, x, first, weights)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert torch.allclose(stepwise, wanted, rtol=1e-9, atol=1e-12)

    g = torch.randn_like(wanted)
    present = [w for w in weights if w is not None]
    *of_weights, of_x = torch.autograd.grad(wanted, [*present, x], g, retain_graph=True)
    of_first = torch.autograd.grad(wanted, first, g)
    with torch.no_grad():
        pulled = kind.pull(x, first, weights, found, g)
        previous = previous_of(first[0], found[:, :steps])
        sums = [
            torch.einsum("btp,btd->pd", pulled.a, x),
            torch.einsum("btp,btd->pd", pulled.z, previous),
            pulled.a.sum((0, 1)),
            pulled.z.sum((0, 1)),
        ]
        assert torch.allclose(pulled.a @ weights.w_ih, of_x, rtol=1e-9, atol=1e-12)
    for one, other in zip((*sums[: len(present)], *pulled.state), (*of_weights, *of_first), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


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


class Translation(nn.Module):
    """An encoder whose last state the decoder begins with, and whose last cell is read."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU | nn.RNN], *, batch_first: bool = True) -> None:
        super().__init__()
        self.encoder = layer(3, 4, batch_first=batch_first)
        self.decoder = layer(3, 4, batch_first=batch_first)
        self.head = nn.Linear(4, 2)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        _, state = self.encoder(x)
        outputs, last = self.decoder(x.flip(1 if self.batch_first else 0), state)
        last = last[-1] if isinstance(last, tuple) else last
        found: Tensor = self.head(outputs.mean(1 if self.batch_first else 0) + last[0])
        return found


def clipped(
    engine: type[FastEngine | ReferenceEngine], model: nn.Module, *batch: Tensor, **options: object
) -> dict[str, Tensor]:
    one = engine(model, cross_entropy, FlatClipping(0.1), **options)  # type: ignore[arg-type]
    found, _ = step(one, *batch)
    assert one.route == ("fast" if engine is FastEngine else "reference")
    return found


@pytest.mark.untraced
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_states_that_depend_on_the_records(layer: type[nn.LSTM | nn.GRU | nn.RNN], batch_first: bool) -> None:
    model = Translation(layer, batch_first=batch_first).double()
    batch = torch.randn(6, 5, 3, dtype=torch.float64), torch.arange(6) % 2
    wanted = clipped(ReferenceEngine, model, *batch)
    for options in ({}, {"budget": LEAN}):
        equal(clipped(FastEngine, model, *batch, **options), wanted, rtol=0)
    if batch_first:
        wanted = clipped(ReferenceEngine, model, *batch, views=2)
        equal(clipped(FastEngine, model, *batch, views=2), wanted, rtol=0)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_autocast_and_narrow_types_compute_in_single_precision(
    layer: type[nn.LSTM | nn.GRU | nn.RNN],
) -> None:
    model, x, y = Translation(layer), torch.randn(6, 5, 3), torch.arange(6) % 2
    try:
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
    except RuntimeError:
        pytest.skip("torch itself has no such layer in 16 bits on this processor")
    wanted = clipped(FastEngine, model, x, y)

    def in_bfloat16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x).float(), y, reduction="none")

    engine = FastEngine(model, in_bfloat16, FlatClipping(0.1))
    found, _ = step(engine, x, y)
    assert engine.route == "fast"
    total = sum(float(t.square().sum()) for t in wanted.values()) ** 0.5
    off = sum(float((found[name] - other).square().sum()) for name, other in wanted.items())
    assert off**0.5 < 0.03 * total
