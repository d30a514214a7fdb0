"""RNN, LSTM and GRU over time, forward and backward, with few operations per time step.

Letters: B rows; T time steps; d inputs; H hidden units; G gates (1, 3 or 4).

A step computes the next state from a_t = W_ih x_t + b_ih and z_t = W_hh h_{t-1} + b_hh, both (B, G H).
Autograd would record and differentiate each operation of each step. But torch runs the forward pass in one
call, and afterwards all h_t are known. So two products give a_t and z_t for all steps, and the gates and
their derivatives are computed for all steps at once. Only these gradients are computed step by step, from the
last step to the first::

    gradient of z_t = factor_t * gradient of h_t          (of c_t too, in an LSTM)
    gradient of h_{t-1} = W_hh^T gradient of z_t + ...

Rows are the first dimension, so that the results of a record are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

State: TypeAlias = tuple[Tensor, ...]
"""(h,) or, for LSTM, (h, c), each (B, H)."""
Cell: TypeAlias = Callable[[Tensor, Tensor, State], State]
"""A function of a, z (B, G H) and the state that returns the next state."""


class Weights(NamedTuple):
    """The weights of one layer in one direction: (G H, d), (G H, H) and biases (G H,)."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None


class Pulled(NamedTuple):
    """The gradients of all a_t and z_t, (B, T, G H), and of the first state."""

    a: Tensor
    z: Tensor
    state: State


Run: TypeAlias = Callable[[Tensor, State, Weights], Tensor]
"""Maps x (B, T, d) and the first state to h_1 ... h_T, (B, T, H); for LSTM, c_T follows at T + 1."""
Pull: TypeAlias = Callable[[Tensor, State, Weights, Tensor, Tensor], Pulled]
"""Computes the gradients of a ``Run``, from its arguments, its result and the result's gradient."""


def tanh(a: Tensor, z: Tensor, state: State) -> State:
    """Return the next state of an RNN."""
    del state
    return ((a + z).tanh(),)


def relu(a: Tensor, z: Tensor, state: State) -> State:
    """Return the next state of an RNN with ReLU."""
    del state
    return ((a + z).relu(),)


def lstm(a: Tensor, z: Tensor, state: State) -> State:
    """Return the next state of an LSTM."""
    i, f, g, o = (a + z).chunk(4, dim=1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(a: Tensor, z: Tensor, state: State) -> State:
    """Return the next state of a GRU."""
    a_r, a_u, a_n = a.chunk(3, dim=1)
    z_r, z_u, z_n = z.chunk(3, dim=1)
    reset, update = (a_r + z_r).sigmoid(), (a_u + z_u).sigmoid()
    new = (a_n + reset * z_n).tanh()
    return ((1 - update) * new + update * state[0],)


def _cells(cell: Cell, x: Tensor, first: State, weights: Weights) -> Tensor:
    """Run step by step, for devices whose fused layers need the weights of all layers in one block."""
    outputs, state = [], first
    for a in F.linear(x, weights.w_ih, weights.b_ih).unbind(1):
        state = cell(a, F.linear(state[0], weights.w_hh, weights.b_hh), state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state[1:]], dim=1)


def run_tanh(x: Tensor, first: State, weights: Weights) -> Tensor:
    """Run one layer of an RNN in one direction."""
    return _run(torch.rnn_tanh, tanh, x, first, weights)


def run_relu(x: Tensor, first: State, weights: Weights) -> Tensor:
    """Run one layer of an RNN with ReLU in one direction."""
    return _run(torch.rnn_relu, relu, x, first, weights)


def run_gru(x: Tensor, first: State, weights: Weights) -> Tensor:
    """Run one layer of a GRU in one direction."""
    return _run(torch.gru, gru, x, first, weights)


def _run(
    fused: Callable[..., tuple[Tensor, Tensor]], cell: Cell, x: Tensor, first: State, weights: Weights
) -> Tensor:
    if not x.is_cpu:
        return _cells(cell, x, first, weights)
    return fused(x, first[0][None], *_one_layer(weights))[0]


def run_lstm(x: Tensor, first: State, weights: Weights) -> Tensor:
    """Run one layer of an LSTM in one direction."""
    if not x.is_cpu:
        return _cells(lstm, x, first, weights)
    outputs, _, last = torch.lstm(x, [state[None] for state in first], *_one_layer(weights))
    return torch.cat([outputs, last.transpose(0, 1)], dim=1)


def _one_layer(weights: Weights) -> tuple[list[Tensor], bool, int, float, bool, bool, bool]:
    """Return the arguments weights, has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    return [w for w in weights if w is not None], weights.b_ih is not None, 1, 0.0, False, False, True


def pull_tanh(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
    """Return the gradients of an RNN."""
    del x, first
    return _pull_plain(1 - outputs.square(), weights.w_hh, g)


def pull_relu(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
    """Return the gradients of an RNN with ReLU."""
    del x, first
    return _pull_plain((outputs > 0).to(outputs.dtype), weights.w_hh, g)


def _pull_plain(factors: Tensor, w_hh: Tensor, g: Tensor) -> Pulled:
    """Return gradients; compute them in place in ``factors``, the derivatives of the activation."""
    before, of_z = _steps_before(g), factors.unbind(1)
    dh = g[:, -1]
    for t in reversed(range(len(of_z))):
        dh = _back(before[t], _without_traces(of_z[t].mul_(dh)), w_hh)
    return Pulled(factors, factors, (dh,))


def pull_gru(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
    """Return the gradients of a GRU."""
    (B, T, H), previous = outputs.shape, previous_of(first[0], outputs)
    a = F.linear(x, weights.w_ih, weights.b_ih).view(B, T, 3, H)
    z = F.linear(previous, weights.w_hh, weights.b_hh).view(B, T, 3, H)
    r, u = a[:, :, :2].add_(z[:, :, :2]).sigmoid_().unbind(2)
    n = a[:, :, 2].addcmul_(r, z[:, :, 2]).tanh_()
    to_n = aten.tanh_backward(1 - u, n)  # from h_t to a_n
    factors = torch.empty_like(a)
    aten.sigmoid_backward.grad_input(to_n * z[:, :, 2], r, grad_input=factors[:, :, 0])
    aten.sigmoid_backward.grad_input(previous - n, u, grad_input=factors[:, :, 1])
    torch.mul(to_n, r, out=factors[:, :, 2])
    of_z, flat = factors.unbind(1), factors.flatten(2).unbind(1)
    before, keeps, reached = _steps_before(g), u.unbind(1), torch.empty_like(to_n)
    dh = g[:, -1]
    for t, here in reversed(list(enumerate(reached.unbind(1)))):
        here.copy_(dh)
        of_z[t].mul_(dh[:, None])
        dh = _back(before[t], _without_traces(flat[t]), weights.w_hh).addcmul_(
            _without_traces(here), keeps[t]
        )
    of_a = factors.clone()
    torch.mul(to_n, reached, out=of_a[:, :, 2])
    return Pulled(of_a.flatten(2), factors.flatten(2), (dh,))


def pull_lstm(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
    """Return the gradients of an LSTM."""
    previous = previous_of(first[0], outputs[:, :-1])
    gates = F.linear(x, weights.w_ih, weights.b_ih).add_(F.linear(previous, weights.w_hh, weights.b_hh))
    gates = gates.view(*gates.shape[:2], 4, -1)
    i, f, n, o = gates.unbind(2)
    gates[:, :, :2].sigmoid_()
    n.tanh_()
    o.sigmoid_()
    c = _carried(i * n, f, first[1])
    squashed = c[:, 1:].tanh()
    through = aten.tanh_backward(o, squashed)  # from h_t to c_t
    factors = torch.empty_like(gates)
    of_i, of_f, of_n, of_o = factors.unbind(2)
    aten.sigmoid_backward.grad_input(n, i, grad_input=of_i)
    aten.sigmoid_backward.grad_input(c[:, :-1], f, grad_input=of_f)
    aten.tanh_backward.grad_input(i, n, grad_input=of_n)
    aten.sigmoid_backward.grad_input(squashed, o, grad_input=of_o)
    from_c, from_h, flat = factors[:, :, :3].unbind(1), of_o.unbind(1), factors.flatten(2).unbind(1)
    before, throughs, keeps = _steps_before(g[:, :-1]), through.unbind(1), f.unbind(1)
    dh, dc = g[:, -2], g[:, -1].clone()
    for t in reversed(range(len(flat))):
        _without_traces(dc.addcmul_(dh, throughs[t]))
        from_c[t].mul_(dc[:, None])
        from_h[t].mul_(dh)
        dc.mul_(keeps[t])
        dh = _back(before[t], _without_traces(flat[t]), weights.w_hh)
    gradients = factors.flatten(2)
    return Pulled(gradients, gradients, (dh, dc))


def _carried(new: Tensor, keep: Tensor, first: Tensor) -> Tensor:
    """Return c_0 ... c_T, (B, T + 1, H), where c_t = keep_t c_{t-1} + new_t."""
    cells = torch.cat([first[:, None], new], dim=1)
    c = cells.unbind(1)
    for t, share in enumerate(keep.unbind(1)):
        c[t + 1].addcmul_(share, c[t])
    return cells


def previous_of(first: Tensor, outputs: Tensor) -> Tensor:
    """Return h_0 ... h_{T-1}, (B, T, H)."""
    return torch.cat([first[:, None], outputs[:, :-1]], dim=1)


def _steps_before(g: Tensor) -> list[Tensor | None]:
    """Return for each t the gradient of the layer's output h_{t-1}; None for h_0, which is no output."""
    return [None, *g[:, :-1].unbind(1)]


def _back(g: Tensor | None, of_z: Tensor, w_hh: Tensor) -> Tensor:
    """Return the gradient of h_{t-1}: its gradient g as an output, plus the gradient through z_t."""
    return of_z @ w_hh if g is None else torch.addmm(g, of_z, w_hh)


def _without_traces(gradient: Tensor) -> Tensor:
    """Set values to 0, in place, if their squares would underflow; norms allow for that.

    Over many steps gradients shrink to subnormal numbers, whose products take up to ten times as long on a
    CPU.
    """
    if not gradient.is_cpu:
        return gradient
    least = float(torch.finfo(gradient.dtype).tiny) ** 0.5
    result: Tensor = aten.hardshrink.out(gradient, least, out=gradient)
    return result
