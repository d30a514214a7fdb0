"""Models in double precision, though they name single precision by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.clipping.per_example.order import DRAWING, FACTORIES

__all__ = ["InDouble"]


@final
class InDouble(TorchFunctionMode):
    """Within it double precision takes the place of single: as a dtype, in ``float()``, where none is named.

    >>> with InDouble():
    ...     torch.zeros(2).dtype, torch.ones(2).to(torch.float32).dtype, torch.arange(2).dtype
    (torch.float64, torch.float64, torch.int64)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = {name: _double(value) for name, value in (kwargs or {}).items()}
        called = Tensor.double if func is Tensor.float else func
        result = called(*map(_double, args), **named)
        made = func in FACTORIES or func in DRAWING
        return result.double() if made and result.dtype == torch.float32 else result


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
