"""``grouped_mm`` for mixtures of experts: rows sorted by expert, each times its expert's matrix.

Letters: n records; S rows per record; E experts; d inputs; p outputs.

G_e = sum_s x_s g_s^T over the rows of expert e, so |G|^2 = sum_{s,u} (x_s . x_u)(g_s . g_u) over pairs of
rows of the same expert. For products the rows of all records are sorted by expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example.linear import GRAM_NUMBERS, _gram, _spread
from tacit.clipping.per_example.recorder import Recorder
from tacit.clipping.per_example.use import Use, cancellation, widened

OPERATION: Any = getattr(torch, "_grouped_mm", None)
"""The operation behind ``F.grouped_mm``, or None if this version of torch lacks it."""


@final
class Grouped(Use):
    """Gradients (E, d, p) from x (n, S, d), g (n, S, p) and each row's expert (n, S), where E means none."""

    def __init__(self, x: Tensor, g: Tensor, expert: Tensor, experts: int) -> None:
        self._x, self._g, self._expert, self._experts = x, g, expert, experts

    def squared_norms(self) -> Tensor:
        """Return |G_i|^2, (n,), rounded up as ghost norms of linear maps are."""
        m = max(1, GRAM_NUMBERS // max(1, self._x.shape[1] ** 2))
        squares, kappa = [], cancellation(torch.float32, max(self._x.shape[2], self._g.shape[2]))
        for start in range(0, len(self._x), m):
            x, g, expert = (t[start : start + m] for t in (self._x, self._g, self._expert))
            x, g = widened(x), widened(g)
            of_x, of_g = _gram(x, x), _gram(g, g)
            S = _spread(of_x, of_g, x, g)
            pairs = of_x.mul_(of_g).mul_(expert[:, :, None] == expert[:, None])
            squares.append(pairs.sum((1, 2)).clamp_(min=0.0).addcmul_(S, S, value=kappa))
        return torch.cat(squares)

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return G_i, (m, E, d, p)."""
        x, g, expert = (t[start:stop] for t in (self._x, self._g, self._expert))
        one_hot = widened(F.one_hot(expert, self._experts + 1)[:, :, :-1].to(x.dtype))
        return torch.einsum("mse,msd,msp->medp", one_hot, widened(x), widened(g))

    def of(self, records: Tensor) -> Grouped:
        """Return the use of those records alone."""
        return Grouped(self._x[records], self._g[records], self._expert[records], self._experts)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i G_i, (E, d, p), by one product."""
        order, ends = _by_expert(self._expert, self._experts)
        x, g = widened(self._x), widened(self._g) * factors[:, None, None]
        accumulator.add_(OPERATION(x.flatten(0, 1)[order].T, g.flatten(0, 1)[order].to(x), offs=ends))


def _by_expert(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return an order of all rows by expert, and the end of each expert's rows in it."""
    inorder, order = expert.flatten().sort(stable=True)
    ends = torch.searchsorted(inorder, torch.arange(experts, device=inorder.device), right=True)
    return order, ends.to(torch.int32)


def grouped_mm(recorder: Recorder, x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Return (n, S, p) from x (n, S, d), a private weight (E, d, p), and the ends of experts' rows (n, E)."""
    W, E, S = recorder.plain(weight), len(weight), x.shape[1]
    places = torch.arange(S, dtype=offs.dtype, device=offs.device).expand(len(x), S)
    expert = torch.searchsorted(offs.contiguous(), places.contiguous(), right=True)
    order, ends = _by_expert(expert, E)

    def product(rows: Tensor, matrices: Tensor) -> Tensor:
        output = OPERATION(rows.flatten(0, 1)[order], matrices, offs=ends)
        back = torch.empty_like(output).index_copy_(0, order, output)
        return back.view(*rows.shape[:2], -1).masked_fill_((expert == E)[:, :, None], 0.0)

    def backward(g: Tensor, needed: Sequence[bool], x: Tensor) -> Any:
        g = g.masked_fill((expert == E)[:, :, None], 0.0)
        of_x = product(g, W.transpose(1, 2)) if needed[0] else None
        return (of_x,), [(weight, Grouped(x, g, expert, E))]

    return recorder.function(lambda x: (product(x, W), (x,)), backward, inputs=(x,), sources=(weight,))
