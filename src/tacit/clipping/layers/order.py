"""Operations after which the rows of a batch may no longer be where their record is.

Letters: B rows; L positions that lead a tensor, L / B of them to a row; m positions that are looked up.

The engine proves on a few records that the rows of a record stay together on their way through the model.
That holds for all records if neither shapes nor order depend on what they contain.  The operations here
are those by which they can: each has a function of B and its own arguments that says why, or None.

And it holds on the way that those few took.  A model can take another where Python asks what is in a tensor,
as ``if`` does; so what it was answered is part of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["ANSWERS", "WATCHED", "Watch", "keeps_owners"]

Watch: TypeAlias = Callable[..., str | None]
"""``(B, *arguments)`` of the operation to why rows may be elsewhere afterwards, or None."""

MASKED = "positions are chosen by a mask"
MOVED = "the rows of the batch are put in another order"
COUNTED = "the number of positions follows their content"
READ = "whole numbers are read out of a tensor"


def keeps_owners(index: Tensor, L: int, rows: int) -> bool:
    """Whether a look-up of ``index`` in L leading positions of ``rows`` rows gives each row its own.

    >>> keeps_owners(torch.tensor([1, 0, 3, 2]), 4, 2), keeps_owners(torch.tensor([2, 1, 0, 3]), 4, 2)
    (True, False)
    """
    m = index.numel()
    if m == 0 or m % rows or L % rows:
        return False
    owners = index.flatten().remainder(L).div(L // rows, rounding_mode="floor")
    return torch.equal(owners, torch.arange(m, device=index.device).div(m // rows, rounding_mode="floor"))


def _is_mask(key: Any) -> bool:
    return isinstance(key, Tensor) and key.dim() > 0 and key.dtype in (torch.bool, torch.uint8)


def _looked_up(rows: int, tensor: Tensor, key: Any) -> str | None:
    index = torch.as_tensor(key) if isinstance(key, list) else key
    if not isinstance(index, Tensor) or index.dim() == 0 or tensor.dim() == 0 or len(tensor) % rows:
        return None
    if not tensor.requires_grad and len(tensor) != index.numel():
        return None  # a table of numbers, such as angles of positions, rather than rows in another order
    return None if keeps_owners(index, len(tensor), rows) else MOVED


def _getitem(rows: int, tensor: Tensor, key: Any) -> str | None:
    keys = key if isinstance(key, tuple) else (key,)
    leading = keys if keys and keys[0] is Ellipsis else keys[:1]
    return MASKED if any(_is_mask(k) for k in leading) else _looked_up(rows, tensor, *keys[:1] or (None,))


def _setitem(rows: int, tensor: Tensor, key: Any, value: Any) -> str | None:
    del value
    first = key[0] if isinstance(key, tuple) and key else key
    return None if _is_mask(first) else _looked_up(rows, tensor, first)


def _index_select(rows: int, input: Tensor, dim: int, index: Tensor) -> str | None:  # noqa: A002
    return None if dim % input.dim() else _looked_up(rows, input, index)


def _along(rows: int, input: Tensor, dim: Any = None, *_: Any, **__: Any) -> str | None:  # noqa: A002
    first = isinstance(dim, int) and input.dim() > 0 and dim % input.dim() == 0
    return MOVED if first and len(input) % rows == 0 else None


def _along_second(rows: int, input: Tensor, _: Any, dim: Any = None, *__: Any, **___: Any) -> str | None:  # noqa: A002
    return _along(rows, input, dim)


def _whole(rows: int, tensor: Tensor) -> str | None:
    del rows
    return None if tensor.is_floating_point() or tensor.dtype == torch.bool else READ


def _always(why: str) -> Watch:
    def watch(*_: Any, **__: Any) -> str:
        return why

    return watch


WATCHED: Mapping[Any, Watch] = {
    Tensor.__getitem__: _getitem,
    Tensor.__setitem__: _setitem,
    **dict.fromkeys((torch.index_select, Tensor.index_select), _index_select),
    **dict.fromkeys((torch.gather, Tensor.gather, torch.sort, Tensor.sort), _along),
    **dict.fromkeys((torch.scatter, Tensor.scatter, Tensor.scatter_), _along),
    **dict.fromkeys((torch.scatter_add, Tensor.scatter_add, Tensor.scatter_add_), _along),
    **dict.fromkeys((torch.index_add, Tensor.index_add, Tensor.index_add_), _along),
    **dict.fromkeys((torch.index_copy, Tensor.index_copy, Tensor.index_copy_), _along),
    **dict.fromkeys((torch.topk, Tensor.topk, torch.take_along_dim, Tensor.take_along_dim), _along_second),
    **dict.fromkeys((torch.msort, Tensor.msort, torch.take, Tensor.take), _always(MOVED)),
    **dict.fromkeys((torch.index_put, Tensor.index_put, Tensor.index_put_), _always(MOVED)),
    **dict.fromkeys((torch.masked_scatter, Tensor.masked_scatter, Tensor.masked_scatter_), _always(MOVED)),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _always(MASKED)),
    **dict.fromkeys((torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere), _always(COUNTED)),
    **dict.fromkeys((torch.unique, Tensor.unique, torch.unique_consecutive), _always(COUNTED)),
    **dict.fromkeys((Tensor.tolist, Tensor.numpy), _always(READ)),
    **dict.fromkeys((Tensor.item, Tensor.__int__, Tensor.__index__), _whole),
}
ANSWERS = frozenset(
    {Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero, Tensor.__contains__, Tensor.__float__, Tensor.item}
    | {torch.equal, Tensor.equal, torch.allclose, Tensor.allclose}
)
"""Operations that tell Python a truth or a number."""
