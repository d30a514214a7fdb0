"""LSTM and GRU on CUDA devices, with two kernel launches per time step forward and two or three backward.

Letters: B rows; T time steps; d inputs; H hidden units; G gates (3 or 4).

A step is too small to keep a device busy, so launches dominate its time. One is the product with W_hh. The
other is torch's cell kernel, which takes both products and both biases, and returns the gates that its
backward kernel reads. W_ih multiplies the inputs of all time steps at once, and the gradients of both weights
are computed for all steps at once too. Time is the first dimension, so that each launch reads contiguous
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example.recurrent_scan import Pulled, State, Weights

Cache: TypeAlias = tuple[Tensor, ...]
"""The tensors of each time step that the backward pass reads."""


@final
@dataclass(frozen=True)
class Fused:
    """A fused ``Run`` that also returns tensors for the backward pass, and a ``Pull`` that reads them."""

    run: Callable[[Tensor, State, Weights], tuple[Tensor, Cache]]
    pull: Callable[[State, Weights, Cache, Tensor], Pulled]


def takes(x: Tensor) -> bool:
    """Return whether torch has the kernels on the device of x."""
    return x.is_cuda


def _run_lstm(x: Tensor, first: State, weights: Weights) -> tuple[Tensor, Cache]:
    cell, to_gates, (h, c) = torch.ops.aten._thnn_fused_lstm_cell, weights.w_hh.T, first
    outputs: list[Tensor] = []
    cache: list[Tensor] = []
    for a in _of_inputs(x, weights):
        h, c, gates = cell(a, h @ to_gates, c, weights.b_ih, weights.b_hh)
        outputs.append(h)
        cache += (gates, c)
    return torch.stack([*outputs, c], dim=1), tuple(cache)


def _pull_lstm(first: State, weights: Weights, cache: Cache, g: Tensor) -> Pulled:
    back, cells = torch.ops.aten._thnn_fused_lstm_cell_backward_impl, (first[1], *cache[1::2])
    *before, dh, dc = g.transpose(0, 1).clone(memory_format=torch.contiguous_format).unbind(0)
    steps: list[Tensor] = []
    for t, gates in reversed(list(enumerate(cache[::2]))):
        of_gates, dc, _ = back(dh, dc, cells[t], cells[t + 1], gates, False)
        steps.append(of_gates)
        dh = before[t - 1].addmm_(of_gates, weights.w_hh) if t else of_gates @ weights.w_hh
    gradients = torch.stack(steps[::-1], dim=1)
    return Pulled(gradients, gradients, (dh, dc))


def _run_gru(x: Tensor, first: State, weights: Weights) -> tuple[Tensor, Cache]:
    cell, to_gates, (h,) = torch.ops.aten._thnn_fused_gru_cell, weights.w_hh.T, first
    outputs: list[Tensor] = []
    cache: list[Tensor] = []
    for a in _of_inputs(x, weights):
        h, gates = cell(a, h @ to_gates, h, weights.b_ih, weights.b_hh)
        outputs.append(h)
        cache.append(gates)
    return torch.stack(outputs, dim=1), tuple(cache)


def _pull_gru(first: State, weights: Weights, cache: Cache, g: Tensor) -> Pulled:
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


lstm = Fused(_run_lstm, _pull_lstm)
gru = Fused(_run_gru, _pull_gru)
