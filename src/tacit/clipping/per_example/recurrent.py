"""RNN, LSTM and GRU.

Letters: B rows; T time steps; d inputs; H hidden units; G gates (1, 3 or 4).

``recurrent_scan.py`` computes the gradients of a_t = W_ih x_t + b_ih and of z_t = W_hh h_{t-1} + b_hh for all
steps. Given these, W_ih and W_hh are treated like weights of linear layers at T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example import recurrent_fused, recurrent_scan
from tacit.clipping.per_example.linear import outer
from tacit.clipping.per_example.recorder import Handler, NoRule, Recorder
from tacit.clipping.per_example.recurrent_fused import Fused
from tacit.clipping.per_example.recurrent_scan import Pull, Pulled, Run, State, Weights, previous_of
from tacit.clipping.per_example.use import Kept, Use, over_positions, widened


@final
@dataclass(frozen=True)
class _Kind:
    """The functions of one layer in one direction, its number of states, and its kernels for CUDA devices."""

    run: Run
    pull: Pull
    states: int = 1
    fused: Fused | None = None


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
            if kind.fused is not None and recurrent_fused.takes(x):
                hidden, cache = kind.fused.run(x, tuple(first_), plain)
            else:
                hidden = kind.run(x, tuple(first_), plain)
        return hidden, (hidden, x, *first_, *cache)

    def backward(
        g: Tensor, needed: tuple[bool, ...], hidden: Tensor, x: Tensor, *tensors: Tensor
    ) -> tuple[list[Tensor | None], list[tuple[Tensor, Use]]]:
        first, cache = tensors[: kind.states], tensors[kind.states :]
        if kind.fused is not None and cache:
            pulled = kind.fused.pull(first, plain, cache, g)
        else:
            pulled = kind.pull(x, first, plain, hidden, g)
        previous = previous_of(first[0], hidden[:, : x.shape[1]])
        of_x = pulled.a @ plain.w_ih if needed[0] else None
        return [of_x, *pulled.state], list(_uses(recorder, sources, pulled, x, previous))

    hidden = recorder.function(
        forward, backward, inputs=(x.flip(1) if reverse else x, *first), sources=sources
    )
    T = x.shape[1]
    outputs = hidden[:, :T] if kind.states == 2 else hidden[:, :T].clone()  # may then change in place
    return outputs.flip(1) if reverse else outputs, (outputs[:, -1], *hidden[:, T:].unbind(1))


def _uses(
    recorder: Recorder, sources: Sequence[Tensor | None], pulled: Pulled, x: Tensor, previous: Tensor
) -> Iterator[tuple[Tensor, Use]]:
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
    """Return the rule for ``torch.lstm`` and the like."""

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
    """Return the type of torch's result."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


lstm = _layers(_Kind(recurrent_scan.run_lstm, recurrent_scan.pull_lstm, 2, recurrent_fused.lstm))
gru = _layers(_Kind(recurrent_scan.run_gru, recurrent_scan.pull_gru, fused=recurrent_fused.gru))
rnn_tanh = _layers(_Kind(recurrent_scan.run_tanh, recurrent_scan.pull_tanh))
rnn_relu = _layers(_Kind(recurrent_scan.run_relu, recurrent_scan.pull_relu))
