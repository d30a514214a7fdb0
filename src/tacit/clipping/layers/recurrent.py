"""RNN, LSTM and GRU, whole or as cells, by their own scan over time.

Letters: B rows; T time steps; d inputs; H hidden units; G gates (1, 3 or 4).

A step computes from a_t = W_ih x_t + b_ih and z_t = W_hh h_{t-1} + b_hh, both (B, G H), the next state.
The inputs are one linear layer over all T.  For the hidden part z_t gets a zero added, whose gradient is
that of z_t; with h_0 ... h_{T-1} it makes W_hh a linear layer over T positions too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.linear import linear, outer
from tacit.clipping.layers.tape import Handler, Tape, Unseen
from tacit.clipping.layers.use import Kept, Use, widened

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"]

State: TypeAlias = tuple[Tensor, ...]
"""(h,) or, for LSTM, (h, c), each (B, H)."""
Cell: TypeAlias = Callable[[Tensor, Tensor, State], State]
"""a, z (B, G H) and the state to the next state."""


def _tanh(a: Tensor, z: Tensor, state: State) -> State:
    del state
    return ((a + z).tanh(),)


def _relu(a: Tensor, z: Tensor, state: State) -> State:
    del state
    return ((a + z).relu(),)


def _lstm(a: Tensor, z: Tensor, state: State) -> State:
    i, f, g, o = (a + z).chunk(4, dim=1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(a: Tensor, z: Tensor, state: State) -> State:
    a_r, a_u, a_n = a.chunk(3, dim=1)
    z_r, z_u, z_n = z.chunk(3, dim=1)
    reset, update = (a_r + z_r).sigmoid(), (a_u + z_u).sigmoid()
    new = (a_n + reset * z_n).tanh()
    return ((1 - update) * new + update * state[0],)


def _scan(
    tape: Tape, cell: Cell, x: Tensor, state: State, weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, State]:
    """Run one layer in one direction over x (B, T, d); return all h (B, T, H) and the last state."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:] if len(weights) == 4 else (None, None)
    inputs = linear(tape, x, w_ih, b_ih).unbind(1)  # T of (B, G H)
    previous: list[Tensor] = []

    def uses(g: Tensor) -> Iterator[tuple[Tensor, Use]]:
        left = tape.positions(g)
        if tape.owns(w_hh):
            yield (
                w_hh,
                outer(left, tape.positions(torch.stack(previous, dim=1).detach()), tape.budget.linear_slack),
            )
        if b_hh is not None and tape.owns(b_hh):
            yield b_hh, Kept(widened(left).sum(1))

    zeros = x.new_zeros(len(x), len(inputs), len(w_hh))
    slots = tape.tap("recurrence", zeros, uses, saved=(), sources=(w_hh, b_hh)).unbind(1)
    outputs: list[Tensor] = []
    times = range(len(inputs))
    for t in reversed(times) if reverse else times:
        hidden = F.linear(state[0], tape.plain(w_hh), tape.plain(b_hh)) + slots[len(outputs)]
        previous.append(state[0])
        state = cell(inputs[t], hidden, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs, dim=1), state


def _layers(operation: str, cell: Cell, states: int) -> Handler:
    """Return the recording form of ``torch.lstm`` and the like, for a state of ``states`` tensors."""

    def layers(
        tape: Tape,
        input: Tensor,  # noqa: A002
        hx: Tensor | tuple[Tensor, ...],
        params: object,
        has_biases: object,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool | None = None,
    ) -> tuple[Tensor, ...]:
        directions = 2 if bidirectional else 1
        per_scan = 4 if has_biases is True else 2
        if not isinstance(params, list | tuple) or len(params) != num_layers * directions * per_scan:
            raise Unseen(f"operation {operation!r} with packed sequences or projections")
        first = (hx,) if isinstance(hx, Tensor) else hx
        if any(tape.owns(s) for s in first):
            raise Unseen(f"operation {operation!r} with a learned initial state")
        x = input if batch_first else input.transpose(0, 1)
        tape = tape.of_rows(operation, x, 3)
        last: list[State] = []
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                weights = params[k * per_scan : (k + 1) * per_scan]
                h, end = _scan(tape, cell, x, tuple(s[k] for s in first), weights, direction == 1)
                outputs.append(h)
                last.append(end)
            x = torch.cat(outputs, dim=2)
            if layer < num_layers - 1:
                x = F.dropout(x, dropout, train)
        ends = tuple(torch.stack([end[i] for end in last]) for i in range(states))
        return (x if batch_first else x.transpose(0, 1), *ends)

    return layers


def _single(operation: str, cell: Cell) -> Handler:
    """Return the recording form of ``torch.lstm_cell`` and the like."""

    def single(
        tape: Tape,
        input: Tensor,  # noqa: A002
        hx: Tensor | tuple[Tensor, ...],
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor | State:
        tape = tape.of_rows(operation, input, 2)
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if any(tape.owns(s) for s in state):
            raise Unseen(f"operation {operation!r} with a learned initial state")
        a, z = linear(tape, input, w_ih, b_ih), linear(tape, state[0], w_hh, b_hh)
        after = cell(a, z, state)
        return after if len(after) > 1 else after[0]

    return single


lstm = _layers("lstm", _lstm, 2)
gru = _layers("gru", _gru, 1)
rnn_tanh = _layers("rnn_tanh", _tanh, 1)
rnn_relu = _layers("rnn_relu", _relu, 1)
lstm_cell = _single("lstm_cell", _lstm)
gru_cell = _single("gru_cell", _gru)
rnn_tanh_cell = _single("rnn_tanh_cell", _tanh)
rnn_relu_cell = _single("rnn_relu_cell", _relu)
