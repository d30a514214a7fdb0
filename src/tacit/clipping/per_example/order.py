"""Operations after which the rows of a batch may no longer be where their record is.

Letters: B rows; L positions that lead a tensor, L / B of them to a row; m positions that are looked up.

The engine proves on a few records that the rows of a record stay together on their way through the model,
and that no other record's numbers reach them (``isolation/provenance.py``).  That holds for all batches if
neither shapes nor order depend on what is in them, or on how many records there are.  The operations here are
those by which they can: each has a function of B and its own arguments that says why, or None.

And it holds on the way that those few took.  A model can take another where Python asks what is in a tensor,
as ``if`` does; so what it was answered is part of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ANSWERS",
    "BELOW",
    "BY_KEYS",
    "CONTENT",
    "LISTING",
    "MOVED",
    "REFUSING",
    "SILENT",
    "WATCHED",
    "Watch",
    "follows_content",
    "keeps_owners",
    "moves_second",
]

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
    if not isinstance(index, Tensor) or tensor.dim() == 0 or len(tensor) % rows:
        return None
    if index.dim() == 0:
        return READ
    return None if keeps_owners(index, len(tensor), rows) else MOVED


def _getitem(rows: int, tensor: Tensor, key: Any) -> str | None:
    keys = key if isinstance(key, tuple) else (key,)
    leading = keys if keys and keys[0] is Ellipsis else keys[:1]
    if any(isinstance(end, Tensor) for k in leading if isinstance(k, slice) for end in (k.start, k.stop)):
        return READ
    return MASKED if any(_is_mask(k) for k in leading) else _looked_up(rows, tensor, *keys[:1] or (None,))


def _setitem(rows: int, tensor: Tensor, key: Any, value: Any) -> str | None:
    del value
    first = key[0] if isinstance(key, tuple) and key else key
    return None if _is_mask(first) else _looked_up(rows, tensor, first)


def _index_select(rows: int, input: Tensor, dim: int, index: Tensor) -> str | None:  # noqa: A002
    return None if dim % input.dim() else _looked_up(rows, input, index)


def _index_put(rows: int, input: Tensor, indices: Sequence[Any], *_: Any, **__: Any) -> str | None:  # noqa: A002
    return _setitem(rows, input, tuple(indices), None)


def _along(rows: int, input: Tensor, dim: Any = -1, *_: Any, **__: Any) -> str | None:  # noqa: A002
    first = isinstance(dim, int) and input.dim() > 0 and dim % input.dim() == 0
    return MOVED if first and len(input) % rows == 0 else None


def _take_along(rows: int, input: Tensor, indices: Any = None, dim: Any = None) -> str | None:  # noqa: A002
    del indices
    return MOVED if dim is None else _along(rows, input, dim)


def _places(rows: int, *values: Any, **others: Any) -> str | None:
    del rows
    return None if len(values) + len(others) > 1 else COUNTED


def moves_second(rows: int, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether rows in the second dimension may be in another order afterwards."""
    tensor = args[0] if args else None
    if not isinstance(tensor, Tensor) or tensor.dim() < 2 or tensor.shape[1] != rows:
        return False
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        second = args[1][1] if isinstance(args[1], tuple) and len(args[1]) > 1 else None
        return isinstance(second, Tensor) and not keeps_owners(second, rows, rows)
    if WATCHED[func] not in (_along, _take_along, _index_select):
        return False
    place = 2 if WATCHED[func] is _take_along else 1
    dim = kwargs.get("dim", args[place] if len(args) > place else -1)
    return isinstance(dim, int) and dim % tensor.dim() == 1


def _classes(rows: int, tensor: Tensor, num_classes: int = -1) -> str | None:
    del rows, tensor
    return COUNTED if num_classes < 0 else None


def _repeated(rows: int, tensor: Tensor, repeats: Any = None, *_: Any, **__: Any) -> str | None:
    del rows, tensor
    return None if isinstance(repeats, int) else COUNTED


def _item(rows: int, tensor: Tensor) -> str | None:
    del rows
    return None if tensor.is_floating_point() or tensor.dtype == torch.bool else READ


def follows_content(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the result's shape can follow what is in the arguments' tensors, or Python is told of it."""
    if func in _SIZED:
        return any(isinstance(value, Tensor) for value in (*args, *kwargs.values()))
    if func in _BY_ARGUMENTS:
        return WATCHED[func](0, *args, **kwargs) is not None
    if func not in BY_KEYS:
        return func in ANSWERS or func in _TOLD
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    ends = (end for k in keys if isinstance(k, slice) for end in (k.start, k.stop, k.step))
    return any(map(_is_mask, keys)) or any(isinstance(end, Tensor) for end in ends)


def _always(why: str) -> Watch:
    def watch(*_: Any, **__: Any) -> str:
        return why

    watch.why = why  # type: ignore[attr-defined]
    return watch


_TOLD: Mapping[Any, Watch] = {
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _always(MASKED)),
    **dict.fromkeys((torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere), _always(COUNTED)),
    **dict.fromkeys((torch.unique, Tensor.unique, torch.unique_consecutive), _always(COUNTED)),
    **dict.fromkeys((torch.bincount, Tensor.bincount, Tensor.unique_consecutive), _always(COUNTED)),
    **dict.fromkeys((Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__), _always(READ)),
    **dict.fromkeys((Tensor.__repr__, Tensor.__format__, Tensor.__complex__), _always(READ)),
    **dict.fromkeys((Tensor.apply_, Tensor.map_, Tensor.untyped_storage), _always(READ)),
    **dict.fromkeys((Tensor.__int__, Tensor.__index__), _always(READ)),
}
"""Operations that tell Python of a tensor, or whose result has as many positions as its content says."""
WATCHED: Mapping[Any, Watch] = {
    Tensor.__getitem__: _getitem,
    Tensor.__setitem__: _setitem,
    **dict.fromkeys((torch.index_select, Tensor.index_select), _index_select),
    **dict.fromkeys((torch.gather, Tensor.gather), _along),
    **dict.fromkeys((torch.scatter, Tensor.scatter, Tensor.scatter_), _along),
    **dict.fromkeys((torch.scatter_add, Tensor.scatter_add, Tensor.scatter_add_), _along),
    **dict.fromkeys((torch.scatter_reduce, Tensor.scatter_reduce, Tensor.scatter_reduce_), _along),
    **dict.fromkeys((torch.index_add, Tensor.index_add, Tensor.index_add_), _along),
    **dict.fromkeys((torch.index_copy, Tensor.index_copy, Tensor.index_copy_), _along),
    **dict.fromkeys((torch.index_reduce, Tensor.index_reduce, Tensor.index_reduce_), _along),
    **dict.fromkeys((torch.index_put, Tensor.index_put, Tensor.index_put_), _index_put),
    **dict.fromkeys((torch.take_along_dim, Tensor.take_along_dim), _take_along),
    **_TOLD,
    **dict.fromkeys((torch.where, Tensor.where), _places),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), _repeated),
    F.one_hot: _classes,
    Tensor.item: _item,
}
ANSWERS = frozenset(
    {Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero, Tensor.__contains__, Tensor.__float__, Tensor.item}
    | {torch.equal, Tensor.equal, torch.allclose, Tensor.allclose}
)
"""Operations that tell Python a truth or a number."""
LISTING = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.new}
    | {torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.sparse_csr_tensor}
    | {torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor}
)
"""Operations that make a tensor of what Python gives them, such as a list of numbers."""
SILENT = (
    _TOLD.keys()
    | LISTING
    | {torch.tensor_split, Tensor.tensor_split}
    | {Tensor.data_ptr, Tensor.storage, Tensor._typed_storage}
)
"""Operations that tell Python of a tensor, or read it, without an operation that could be followed."""
REFUSING = frozenset({F.gaussian_nll_loss, F.one_hot, torch.multinomial, Tensor.multinomial})
"""Operations that look at numbers only to raise an error for some."""
FACTORIES = frozenset(
    {
        torch.arange,
        torch.empty,
        torch.eye,
        torch.full,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.tensor,
    }
    | {torch.tril_indices, torch.triu_indices, torch.zeros}
)
"""Operations that make tensors of what Python gives them."""
DRAWING = frozenset({torch.rand, torch.randint, torch.randn, torch.randperm})
"""Operations that make tensors of random numbers."""
BELOW = frozenset({torch.lt, torch.ge, Tensor.lt, Tensor.ge, Tensor.__lt__, Tensor.__ge__})
"""Whether numbers are below a bound, or not."""
_SIZED = FACTORIES - {torch.tensor}
_BY_ARGUMENTS = frozenset(
    {torch.where, Tensor.where, torch.repeat_interleave, Tensor.repeat_interleave, F.one_hot}
)
BY_KEYS = frozenset({Tensor.__getitem__, Tensor.__setitem__})
"""Operations that look numbers up, or put them, by keys."""
CONTENT = _SIZED | _BY_ARGUMENTS | ANSWERS | SILENT | BY_KEYS
"""Operations whose result's shape, or what Python is told by them, may follow what is in tensors."""
