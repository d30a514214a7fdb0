"""Weights computed by weight norm: w_o = s_o v_o with s_o = g_o / |v_o|, for each row o of a weight (O, ...).

Both torch functions named ``weight_norm`` compute w with the same operation. Its node in autograd's graph
refers to v and g.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class WeightNorm:
    """The two tensors from which weight norm computes a weight.

    Attributes:
        directions: v (O, ...).
        magnitudes: g (O, 1, ...).
    """

    directions: Tensor
    magnitudes: Tensor

    @cached_property
    def _sizes(self) -> Tensor:
        rows = self.directions.detach().flatten(1)
        sizes: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return sizes

    @cached_property
    def unit(self) -> Tensor:
        """The unit rows u = v / |v|, (O, N)."""
        rows = self.directions.detach().flatten(1)
        return rows / self._sizes.to(rows.dtype)[:, None]

    def exact_unit(self) -> Tensor:
        """Return u in double precision."""
        rows = self.directions.detach().flatten(1).double()
        sizes: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / sizes

    @cached_property
    def scale(self) -> Tensor:
        """The scales s = g / |v|, (O,)."""
        return (self.magnitudes.detach().flatten() / self._sizes).to(self.directions.dtype)

    def scaled(self, dots: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b from ``dots``, which is x U^T, (n, O)."""
        magnitudes = self.magnitudes.detach().view(1, -1)
        return dots * magnitudes if bias is None else torch.addcmul(bias, dots, magnitudes)


def weight_norm_of(source: Tensor) -> WeightNorm | None:
    """Return v and g of a weight, if weight norm computed it from two parameters; one may be frozen."""
    node: Any = source.grad_fn
    if type(node).__name__ != "WeightNormInterfaceBackward0" or source._backward_hooks:
        return None
    before = [node_before for node_before, _ in node.next_functions]  # None for a frozen one
    leaves = [getattr(one, "variable", None) for one in before]
    direct = all(one is None or leaf is not None for one, leaf in zip(before, leaves, strict=True))
    if not direct or leaves[0] is leaves[1] or node._saved_dim != 0 or source.dim() < 2 or not source.is_cpu:
        return None
    v, g = (
        value if leaf is None else leaf
        for value, leaf in zip((node._saved_v, node._saved_g), leaves, strict=True)
    )
    return WeightNorm(v, g)
