"""What each record alone would answer where Python asks about a batch.

Letters: n records; B rows.

A branch that a whole batch takes, as in ``if x.isnan().any()``, may be another one than its records would
take alone, and then one record decides how all others are computed.  If each record alone gives the answer of
the batch, so does every part of the batch.  That is known of what selects, such as any, all, max and min, and
of what is computed from one selected number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ANSWERS", "BELOW", "BY_KEYS", "CHECKING", "DRAWING", "LISTING", "SILENT", "UNIFORM", "Answers"]

ANSWERS = frozenset(
    {Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero, Tensor.__contains__, Tensor.__float__, Tensor.item}
    | {torch.equal, Tensor.equal, torch.allclose, Tensor.allclose}
)
"""Operations by which Python reads a truth or a number."""
LISTING = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.new}
    | {torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.sparse_csr_tensor}
    | {torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor}
)
"""Operations that make a tensor of what Python gives them, such as a list of numbers."""
SILENT = LISTING | {
    *(torch.tensor_split, Tensor.tensor_split, Tensor.data_ptr, Tensor.storage, Tensor._typed_storage),
    *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage),
    *(Tensor.__repr__, Tensor.__format__, Tensor.__complex__, Tensor.apply_, Tensor.map_),
    *(Tensor.__int__, Tensor.__index__),
}
"""Operations by which Python reads a tensor without an operation that provenance could see."""
CHECKING = frozenset({F.gaussian_nll_loss, F.one_hot, torch.multinomial, Tensor.multinomial})
"""Operations that read values only to raise an error for some."""
DRAWING = frozenset({torch.rand, torch.randint, torch.randn, torch.randperm, torch.bernoulli})
"""Operations that make tensors of random numbers."""
UNIFORM = frozenset({torch.rand})
"""Operations that draw numbers in [0, 1)."""
BELOW = frozenset({torch.lt, torch.ge, Tensor.lt, Tensor.ge, Tensor.__lt__, Tensor.__ge__})
"""Whether numbers are below a bound, or not."""
BY_KEYS = frozenset({Tensor.__getitem__, Tensor.__setitem__})
"""Operations that look numbers up, or put them, by keys."""


def _most(rows: Tensor) -> Tensor:
    return rows.amax(1) if rows.shape[1] else rows.new_zeros(len(rows))


def _least(rows: Tensor) -> Tensor:
    return rows.amin(1) if rows.shape[1] else rows.new_zeros(len(rows))


_SELECTING: Mapping[Any, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys((torch.any, Tensor.any, torch._is_any_true), lambda rows: rows.any(1)),
    **dict.fromkeys((torch.all, Tensor.all, torch._is_all_true), lambda rows: rows.all(1)),
    **dict.fromkeys((torch.max, Tensor.max, torch.amax, Tensor.amax), _most),
    **dict.fromkeys((torch.min, Tensor.min, torch.amin, Tensor.amin), _least),
}
_COUNTING = frozenset({torch.sum, Tensor.sum})
_SUMMING = _COUNTING | {torch.mean, Tensor.mean}
_OF_KIND = frozenset({torch.isnan, torch.isfinite, torch.isinf, Tensor.isnan, Tensor.isfinite, Tensor.isinf})
_EQUAL = frozenset({torch.eq, Tensor.eq, Tensor.__eq__})
_OF_ONE = frozenset(
    {
        torch.gt,
        torch.ge,
        torch.lt,
        torch.le,
        torch.eq,
        torch.ne,
        torch.logical_not,
        torch.isnan,
        torch.isfinite,
    }
    | {Tensor.gt, Tensor.ge, Tensor.lt, Tensor.le, Tensor.eq, Tensor.ne, Tensor.logical_not}
    | {Tensor.__gt__, Tensor.__ge__, Tensor.__lt__, Tensor.__le__, Tensor.__eq__, Tensor.__ne__}
    | {Tensor.__invert__, Tensor.isnan, Tensor.isfinite, torch.abs, Tensor.abs, torch.neg, Tensor.neg}
)


@dataclass(frozen=True)
class _Number:
    """A number of the batch, what ``each`` (n,) record alone would have there, and if rows are in order.

    ``counted``: of how many numbers it says how many are true, or None.  ``summed``: of a sum it is known
    that it is finite, whatever part of the batch is summed, and no more.
    """

    tensor: Tensor
    version: int
    each: Tensor
    by_row: bool
    counted: int | None = None
    summed: bool = False


@final
class Answers:
    """The answers of the ``n`` records of a batch, for what was computed of all of them.

    ``by_row``: whether the rows of a tensor are those of the records, in their order.
    """

    def __init__(self, n: int, by_row: Callable[[Tensor], bool]) -> None:
        self._n, self._by_row = n, by_row
        self._numbers: dict[int, _Number] = {}

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Keep what each record alone would give, if that is known."""
        if not isinstance(result, Tensor) or result.dim() > 0 or not args or not isinstance(args[0], Tensor):
            return
        if torch._C._functorch.maybe_current_level() is not None:
            return  # a transform, in which a tensor is one of many
        first, version = args[0], result._version
        alone = len(args) == 1 and not kwargs
        known = self._known(first)
        others = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, Tensor)]
        if alone and self._has_rows(first) and func in _SELECTING:
            each = _SELECTING[func](self._of_records(first))
            self._numbers[id(result)] = _Number(result, version, each, self._by_row(first))
        elif alone and self._has_rows(first) and func in _COUNTING and first.dtype == torch.bool:
            each, count = self._of_records(first).sum(1), first.numel()
            self._numbers[id(result)] = _Number(result, version, each, self._by_row(first), count)
        elif alone and func in _SUMMING and _adds_up(first):
            each = first.new_zeros(self._n, dtype=torch.float32)
            self._numbers[id(result)] = _Number(result, version, each, True, summed=True)
        elif known is None or others or (known.summed and func not in _OF_KIND):
            return
        elif known.counted is not None and func in _EQUAL and known.counted in args[1:]:
            each = known.each == known.counted // self._n  # all, by another name
            self._numbers[id(result)] = _Number(result, version, each, known.by_row)
        elif func in _OF_ONE | _OF_KIND and (
            known.counted is None or args[1:] == (0,)
        ):  # or any, by its name
            each = func(known.each, *args[1:], **kwargs)
            self._numbers[id(result)] = _Number(result, version, each, known.by_row)

    def clear(self) -> None:
        """Let go of all numbers: they may hold on to a graph."""
        self._numbers.clear()

    def disagree(self, func: Callable[..., Any], args: tuple[Any, ...], answer: Any) -> Tensor | None:
        """(n,) bool: which records alone would not give this answer; None if it is not known."""
        if func in (Tensor.__contains__, torch.equal, Tensor.equal):
            one, other = args[:2]
            if not self._has_rows(one) or (isinstance(other, Tensor) and other.shape != one.shape):
                return None
            alike, by_row = self._of_records(one == other), self._by_row(one)
            each = alike.any(1) if func is Tensor.__contains__ else alike.all(1)
        elif (known := self._known(args[0])) is not None and known.counted is None and not known.summed:
            each, by_row = known.each, known.by_row
        else:
            return None
        return torch.ne(each, answer) if by_row else None

    def _known(self, tensor: Tensor) -> _Number | None:
        found = self._numbers.get(id(tensor))
        return found if found is not None and found.version == tensor._version else None

    def _has_rows(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.dim() > 0 and len(tensor) % self._n == 0

    def _of_records(self, tensor: Tensor) -> Tensor:
        """(n, numbers of a record)."""
        return tensor.detach().reshape(self._n, tensor.numel() // self._n)


def _adds_up(tensor: Tensor) -> bool:
    """Whether all parts of the numbers of a tensor have finite sums."""
    if not tensor.is_floating_point():
        return False
    return float(tensor.detach().double().abs().sum()) < torch.finfo(tensor.dtype).max / 2
