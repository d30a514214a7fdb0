"""How Python is given numbers of records in other words than ``bool`` and ``item``, and what that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _contains(tensor: Tensor, element: Any) -> bool:
    """``element in tensor``."""
    return bool((tensor == element).any())


def _equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002
    return input.shape == other.shape and bool((input == other).all())


def _all_close(
    input: Tensor,  # noqa: A002
    other: Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    close = (input == other) | ((input - other).abs() <= atol + rtol * other.abs()) & other.isfinite()
    return bool((close | input.isnan() & other.isnan() if equal_nan else close).all())


def _to_list(tensor: Tensor) -> Any:
    return tensor.item() if tensor.dim() == 0 else [_to_list(each) for each in tensor.unbind()]


ASKED: dict[Any, Callable[..., Any]] = {
    Tensor.__contains__: _contains,
    Tensor.tolist: _to_list,
    **dict.fromkeys((torch.equal, Tensor.equal), _equal),
    **dict.fromkeys((torch.allclose, Tensor.allclose), _all_close),
    **dict.fromkeys((torch.is_nonzero, Tensor.is_nonzero), bool),
}
"""By operation, the same in operations of which ``bool`` and ``item`` ask for a number."""
