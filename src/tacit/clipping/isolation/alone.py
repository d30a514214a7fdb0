"""One record as a batch of one row, for loops over records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


def squeezed(rows: Tensor) -> Tensor:
    """Return ``rows.squeeze()``, but keep the first dimension, as in a batch of several rows.

    >>> squeezed(torch.zeros(1, 1, 3)).shape
    torch.Size([1, 3])
    """
    return rows.squeeze([dim for dim in range(1, rows.dim()) if rows.shape[dim] == 1])


@final
class OneRow(TorchFunctionMode):
    """Lets ``x.squeeze()`` keep the first dimension of what is computed from the rows of a record."""

    def __init__(self, rows: Iterable[Tensor]) -> None:
        super().__init__()
        self._of_record = {id(t): t for t in rows}  # with the tensors, so that no other gets their ids

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        of_record = any(id(value) in self._of_record for value in tree_leaves((args, kwargs)))
        whole = func in (torch.squeeze, Tensor.squeeze) and len(args) == 1 and not kwargs
        if whole and of_record and args[0].dim() > 0 and args[0].shape[0] == 1:
            result = squeezed(args[0])
        else:
            result = func(*args, **(kwargs or {}))
        if of_record:
            self._of_record |= {id(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
        return result
