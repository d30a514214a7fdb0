"""Rows in the second dimension, (T, B, ...), as torch has them by default in its recurrent layers and others.

Operations of such a model on single positions are done with the rows first, and turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["rows_first"]


class _Recorder(Protocol):
    """What knows which tensors are private."""

    rows: int

    def owns(self, tensor: Tensor | None) -> bool:
        """Whether it is private."""

    def derive(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Carry out what reads no record."""


_LOOKED_UP = frozenset({F.embedding})
_MAPS = frozenset(
    {F.linear, F.layer_norm, F.rms_norm, torch.matmul, Tensor.matmul, Tensor.__matmul__} | _LOOKED_UP
)
"""Operations on each position of their first operand."""
_ELEMENTWISE = frozenset(
    {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.mul, Tensor.mul, Tensor.__mul__}
    | {Tensor.__rmul__, torch.sub, Tensor.sub, Tensor.__sub__, torch.rsub, Tensor.__rsub__}
)
"""Operations of rows and a parameter, in any order, that is broadcast along them."""


def rows_first(recorder: _Recorder, func: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...] | None:
    """The arguments with the rows in the first dimension; None if they are not in the second."""
    if func in _MAPS and args:
        x, *others = args
        dimensions = 2 if func in _LOOKED_UP else 3
        matrix = not others or not isinstance(others[0], Tensor) or others[0].dim() <= 2
        return (x.transpose(0, 1), *others) if matrix and _is_second(recorder, x, dimensions) else None
    if func not in _ELEMENTWISE or len(args) != 2:
        return None
    a, b = args
    x, w = (b, a) if recorder.owns(a) else (a, b)
    if not _is_second(recorder, x, 3) or not recorder.owns(w) or w.dim() > x.dim():
        return None
    if w.dim() >= x.dim() - 1:  # it has a dimension for the rows, which must be 1
        w = recorder.derive(_turned, w, x.dim())
    x = x.transpose(0, 1)
    return (w, x) if recorder.owns(a) else (x, w)


def _is_second(recorder: _Recorder, x: Any, dimensions: int) -> bool:
    rows = (
        isinstance(x, Tensor)
        and not recorder.owns(x)
        and x.dim() >= dimensions
        and x.shape[1] == recorder.rows
    )
    return bool(rows)


def _turned(w: Tensor, dimensions: int) -> Tensor:
    return w.view(*[1] * (dimensions - w.dim()), *w.shape).transpose(0, 1)
