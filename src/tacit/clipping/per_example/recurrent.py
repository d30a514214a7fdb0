"""RNN, LSTM and GRU.

Letters: B rows; T time steps; d inputs; H hidden units; G gates (1, 3 or 4).
"""

# ``recurrent_scan.py`` computes the gradients of a_t = W_ih x_t + b_ih and of z_t = W_hh h_{t-1} + b_hh for
# all steps. Given these, W_ih and W_hh are treated like weights of linear layers at T positions.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import Array, c_int64
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import native
from tacit.clipping.isolation.reasons import NoRule
from tacit.clipping.per_example.linear import outer, product
from tacit.clipping.per_example.use import Handler, Kept, Recorder, SourceUse, over_positions, widened

# RNN, LSTM and GRU over time, forward and backward, with few operations per time step.
#
# Letters: B rows; T time steps; d inputs; H hidden units; G gates (1, 3 or 4).
#
# A step computes the next state from a_t = W_ih x_t + b_ih and z_t = W_hh h_{t-1} + b_hh, both (B, G H).
# Autograd would record and differentiate each operation of each step. But torch runs the forward pass in
# one call, and afterwards all h_t are known. So two products give a_t and z_t for all steps, and the gates
# and their derivatives are computed for all steps at once. Only these gradients are computed step by step,
# from the last step to the first::
#
#     gradient of z_t = factor_t * gradient of h_t          (of c_t too, in an LSTM)
#     gradient of h_{t-1} = W_hh^T gradient of z_t + ...
#
# Rows are the first dimension, so that the results of a record are contiguous.


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


def tanh_cell(a: Tensor, z: Tensor, state: State) -> State:
    del state
    return ((a + z).tanh(),)


def relu_cell(a: Tensor, z: Tensor, state: State) -> State:
    del state
    return ((a + z).relu(),)


def lstm_cell(a: Tensor, z: Tensor, state: State) -> State:
    i, f, g, o = (a + z).chunk(4, dim=1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(a: Tensor, z: Tensor, state: State) -> State:
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
    return _run(torch.rnn_tanh, tanh_cell, x, first, weights)


def run_relu(x: Tensor, first: State, weights: Weights) -> Tensor:
    return _run(torch.rnn_relu, relu_cell, x, first, weights)


def run_gru(x: Tensor, first: State, weights: Weights) -> Tensor:
    return _run(torch.gru, gru_cell, x, first, weights)


def _run(
    fused: Callable[..., tuple[Tensor, Tensor]], cell: Cell, x: Tensor, first: State, weights: Weights
) -> Tensor:
    if not x.is_cpu:
        return _cells(cell, x, first, weights)
    return fused(x, first[0][None], *_one_layer(weights))[0]


def run_lstm(x: Tensor, first: State, weights: Weights) -> Tensor:
    if not x.is_cpu:
        return _cells(lstm_cell, x, first, weights)
    outputs, _, last = torch.lstm(x, [state[None] for state in first], *_one_layer(weights))
    return torch.cat([outputs, last.transpose(0, 1)], dim=1)


def _one_layer(weights: Weights) -> tuple[list[Tensor], bool, int, float, bool, bool, bool]:
    """Return the arguments weights, has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    return [w for w in weights if w is not None], weights.b_ih is not None, 1, 0.0, False, False, True


def pull_tanh(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
    del x, first
    return _pull_plain(1 - outputs.square(), weights.w_hh, g)


def pull_relu(x: Tensor, first: State, weights: Weights, outputs: Tensor, g: Tensor) -> Pulled:
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


# LSTM and GRU on CUDA devices, with two kernel launches per time step forward and two or three backward.
#
# Letters: B rows; T time steps; d inputs; H hidden units; G gates (3 or 4).
#
# A step is too small to keep a device busy, so launches dominate its time. One is the product with W_hh.
# The other is torch's cell kernel, which takes both products and both biases, and returns the gates that
# its backward kernel reads. W_ih multiplies the inputs of all time steps at once, and the gradients of both
# weights are computed for all steps at once too. Time is the first dimension, so that each launch reads
# contiguous memory.


Cache: TypeAlias = tuple[Tensor, ...]
"""The tensors of each time step that the backward pass reads."""


@final
@dataclass(frozen=True)
class Fused:
    """A fused ``Run`` that also returns tensors for the backward pass, and a ``Pull`` that reads them."""

    run: Callable[[Tensor, State, Weights], tuple[Tensor, Cache]]
    pull: Callable[[State, Weights, Cache, Tensor], Pulled]


def takes_fused(x: Tensor) -> bool:
    """Return whether torch has the kernels on the device of x."""
    return x.is_cuda


def _run_fused_lstm(x: Tensor, first: State, weights: Weights) -> tuple[Tensor, Cache]:
    cell, to_gates, (h, c) = torch.ops.aten._thnn_fused_lstm_cell, weights.w_hh.T, first
    outputs: list[Tensor] = []
    cache: list[Tensor] = []
    for a in _of_inputs(x, weights):
        h, c, gates = cell(a, h @ to_gates, c, weights.b_ih, weights.b_hh)
        outputs.append(h)
        cache += (gates, c)
    return torch.stack([*outputs, c], dim=1), tuple(cache)


def _pull_fused_lstm(first: State, weights: Weights, cache: Cache, g: Tensor) -> Pulled:
    back, cells = torch.ops.aten._thnn_fused_lstm_cell_backward_impl, (first[1], *cache[1::2])
    *before, dh, dc = g.transpose(0, 1).clone(memory_format=torch.contiguous_format).unbind(0)
    steps: list[Tensor] = []
    for t, gates in reversed(list(enumerate(cache[::2]))):
        of_gates, dc, _ = back(dh, dc, cells[t], cells[t + 1], gates, False)
        steps.append(of_gates)
        dh = before[t - 1].addmm_(of_gates, weights.w_hh) if t else of_gates @ weights.w_hh
    gradients = torch.stack(steps[::-1], dim=1)
    return Pulled(gradients, gradients, (dh, dc))


def _run_fused_gru(x: Tensor, first: State, weights: Weights) -> tuple[Tensor, Cache]:
    cell, to_gates, (h,) = torch.ops.aten._thnn_fused_gru_cell, weights.w_hh.T, first
    outputs: list[Tensor] = []
    cache: list[Tensor] = []
    for a in _of_inputs(x, weights):
        h, gates = cell(a, h @ to_gates, h, weights.b_ih, weights.b_hh)
        outputs.append(h)
        cache.append(gates)
    return torch.stack(outputs, dim=1), tuple(cache)


def _pull_fused_gru(first: State, weights: Weights, cache: Cache, g: Tensor) -> Pulled:
    del first
    back = torch.ops.aten._thnn_fused_gru_cell_backward
    *before, dh = g.unbind(1)
    steps: list[tuple[Tensor, Tensor]] = []
    for t, gates in reversed(list(enumerate(cache))):
        of_a, of_z, dh, *_ = back(dh, gates, False)
        steps.append((of_a, of_z))
        dh.addmm_(of_z, weights.w_hh)
        if t:
            dh.add_(before[t - 1])
    of_a, of_z = (torch.stack(side, dim=1) for side in zip(*steps[::-1], strict=True))
    return Pulled(of_a, of_z, (dh,))


def _of_inputs(x: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    """Return W_ih x_t for all time steps, each (B, G H)."""
    return F.linear(x.transpose(0, 1).contiguous(), weights.w_ih).unbind(0)


FUSED_LSTM = Fused(_run_fused_lstm, _pull_fused_lstm)
FUSED_GRU = Fused(_run_fused_gru, _pull_fused_gru)

# LSTM and GRU on a CPU in float32, with one call of a C++ kernel forward and one backward.
#
# The gates are kept from the forward pass, as torch's own layer does, instead of being computed again.


def takes_native(x: Tensor) -> bool:
    """Return whether the kernels were built, and take the device and type of x."""
    return x.is_cpu and x.dtype == torch.float32 and native.library() is not None


def _run_native(x: Tensor, first: State, weights: Weights) -> tuple[Tensor, Cache]:
    library = native.library()
    assert library is not None
    B, T = x.shape[:2]
    H = weights.w_hh.shape[1]
    is_lstm = len(first) == 2

    # An LSTM adds both biases before its gates; a GRU multiplies one of them by its reset gate.
    bias = weights.b_ih
    of_z = None
    if is_lstm and bias is not None and weights.b_hh is not None:
        bias = bias + weights.b_hh
    elif weights.b_hh is not None:
        of_z = weights.b_hh.contiguous()
    gates = product(x, weights.w_ih, bias)

    # held in variables until the kernel has read them
    before = first[0].contiguous()
    columns = weights.w_hh.T.contiguous()
    hidden = x.new_empty(B, T + 1 if is_lstm else T, H)
    cells = torch.empty_like(hidden)
    if is_lstm:
        cells[:, 0] = first[1]
    library.tacit_recurrent(
        _layer(B, T, weights.w_hh), before.data_ptr(), columns.data_ptr(),
        None if of_z is None else of_z.data_ptr(), gates.data_ptr(),
        cells.data_ptr(), hidden.data_ptr(), torch.get_num_threads(), library.tacit_convolution_level(),
    )  # fmt: skip
    if is_lstm:
        hidden[:, T] = cells[:, T]
    return hidden, (gates, cells, hidden)


def _pull_native(first: State, weights: Weights, cache: Cache, g: Tensor) -> Pulled:
    library = native.library()
    assert library is not None
    gates, cells, hidden = cache
    B, T = gates.shape[:2]
    H = weights.w_hh.shape[1]
    is_lstm = len(first) == 2
    of_z = torch.empty_like(gates)
    of_a = of_z if is_lstm else torch.empty_like(gates)
    dh = g.new_zeros(B, H)
    dc = g[:, T].clone() if is_lstm else g.new_empty(0)
    rows = weights.w_hh.contiguous()
    before = first[0].contiguous()
    g = g.contiguous()
    library.tacit_recurrent_back(
        _layer(B, T, weights.w_hh), before.data_ptr(), rows.data_ptr(),
        gates.data_ptr(), cells.data_ptr(), hidden.data_ptr(), g.data_ptr(), dh.data_ptr(), dc.data_ptr(),
        of_a.data_ptr(), of_z.data_ptr(), torch.get_num_threads(),
        library.tacit_convolution_level(),
    )  # fmt: skip
    return Pulled(of_a, of_z, (dh, dc) if is_lstm else (dh,))


def _layer(rows: int, steps: int, w_hh: Tensor) -> Array[c_int64]:
    units = w_hh.shape[1]
    return (c_int64 * 4)(rows, steps, units, len(w_hh) // units)


NATIVE = Fused(_run_native, _pull_native)


@final
@dataclass(frozen=True)
class _Kind:
    """The functions of one layer in one direction, its number of states, and its kernels for CUDA devices."""

    run: Run
    pull: Pull
    states: int = 1
    fused: Fused | None = None
    """The kernels of CUDA devices."""
    native: Fused | None = None

    def kernels(self, x: Tensor) -> Fused | None:
        if self.fused is not None and takes_fused(x):
            return self.fused
        return self.native if self.native is not None and takes_native(x) else None


def _direction(
    recorder: Recorder, kind: _Kind, x: Tensor, first: State, weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, State]:
    """Run one layer in one direction over x (B, T, d); return all h (B, T, H) and the last state."""
    sources = (*weights, None, None) if len(weights) == 2 else tuple(weights)
    plain = Weights(*(widened(recorder.plain(w)) for w in weights))

    def forward(x: Tensor, *first: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, *first_ = map(widened, (x, *first))
        cache: tuple[Tensor, ...] = ()
        with torch.autocast(x.device.type, enabled=False):
            kernels = kind.kernels(x)
            if kernels is not None:
                hidden, cache = kernels.run(x, tuple(first_), plain)
            else:
                hidden = kind.run(x, tuple(first_), plain)
        return hidden, (hidden, x, *first_, *cache)

    def backward(
        g: Tensor, needed: tuple[bool, ...], hidden: Tensor, x: Tensor, *tensors: Tensor
    ) -> tuple[list[Tensor | None], list[SourceUse]]:
        first, cache = tensors[: kind.states], tensors[kind.states :]
        kernels = kind.kernels(x) if cache else None
        if kernels is not None:
            pulled = kernels.pull(first, plain, cache, g)
        else:
            pulled = kind.pull(x, first, plain, hidden, g)
        previous = previous_of(first[0], hidden[:, : x.shape[1]])
        of_x = product(pulled.a, plain.w_ih.T) if needed[0] else None
        return [of_x, *pulled.state], list(_uses(recorder, sources, pulled, x, previous))

    hidden = recorder.function(
        forward, backward, inputs=(x.flip(1) if reverse else x, *first), sources=sources
    )
    T = x.shape[1]
    outputs = hidden[:, :T] if kind.states == 2 else hidden[:, :T].clone()  # may then change in place
    return outputs.flip(1) if reverse else outputs, (outputs[:, -1], *hidden[:, T:].unbind(1))


def _uses(
    recorder: Recorder, sources: Sequence[Tensor | None], pulled: Pulled, x: Tensor, previous: Tensor
) -> Iterator[SourceUse]:
    """Yield the uses of both weights, (G H, d) and (G H, H), and of both biases."""
    of_a = recorder.positions(pulled.a)
    of_z = of_a if pulled.z is pulled.a else recorder.positions(pulled.z)
    for source, left, right in zip(sources[:2], (of_a, of_z), (x, previous), strict=True):
        if source is not None and recorder.owns(source):
            yield source, outer(left, recorder.positions(right), recorder.budget.linear_slack)
    sums = over_positions(of_a)
    for source, left in zip(sources[2:], (of_a, of_z), strict=True):
        if source is not None and recorder.owns(source):
            yield source, Kept(sums if left is of_a else over_positions(left))


def _layers(kind: _Kind) -> Handler:

    def layers(
        recorder: Recorder,
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
            raise NoRule  # packed sequences or projections
        first = (hx,) if isinstance(hx, Tensor) else hx
        x = input if batch_first else input.transpose(0, 1)
        last: list[State] = []
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                weights = params[k * per_scan : (k + 1) * per_scan]
                h, end = _direction(recorder, kind, x, tuple(s[k] for s in first), weights, direction == 1)
                outputs.append(h)
                last.append(end)
            x = outputs[0] if directions == 1 else torch.cat(outputs, dim=2)
            if layer < num_layers - 1:
                x = F.dropout(x, dropout, train)
        ends = tuple(torch.stack([end[i] for end in last]) for i in range(kind.states))
        dtype = _result_type(input)
        return tuple(t.to(dtype) for t in (x if batch_first else x.transpose(0, 1), *ends))

    return layers


def _result_type(x: Tensor) -> torch.dtype:
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


lstm = _layers(_Kind(run_lstm, pull_lstm, 2, FUSED_LSTM, NATIVE))
gru = _layers(_Kind(run_gru, pull_gru, fused=FUSED_GRU, native=NATIVE))
rnn_tanh = _layers(_Kind(run_tanh, pull_tanh))
rnn_relu = _layers(_Kind(run_relu, pull_relu))
