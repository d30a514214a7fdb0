"""What each record alone would answer where Python asks about a batch.

Letters: n records; B rows.

A branch that a whole batch takes, as in ``if x.isnan().any()``, may be another one than its records would
take alone, and then one record decides how all others are computed.  If each record alone gives the answer of
the batch, so does every part of the batch.  That is known of what selects, such as any, all, max and min, and
of what is computed from one selected number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

__all__ = ["Answers"]

_SELECTING: Mapping[Any, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys((torch.any, Tensor.any, torch._is_any_true), lambda rows: rows.any(1)),
    **dict.fromkeys((torch.all, Tensor.all, torch._is_all_true), lambda rows: rows.all(1)),
    **dict.fromkeys((torch.max, Tensor.max, torch.amax, Tensor.amax), lambda rows: rows.amax(1)),
    **dict.fromkeys((torch.min, Tensor.min, torch.amin, Tensor.amin), lambda rows: rows.amin(1)),
}
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


@final
class Answers:
    """The answers of the ``n`` records of a batch, for what was computed of all of them."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._each: dict[int, tuple[Tensor, Tensor]] = {}  # of a number: itself, which is kept, and (n,)
        self._counts: dict[int, tuple[Tensor, Tensor, int]] = {}  # of how many are true; and of how many

    def selected_from(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The tensor (B, ...) of whose numbers the operation selects one; None if it does something else."""
        fits = func in _SELECTING and len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        return args[0] if fits and args[0].dim() and len(args[0]) % self._n == 0 and args[0].numel() else None

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Keep what each record alone would give, if that is known."""
        if not isinstance(result, Tensor) or result.dim() > 0:
            return
        if (rows := self.selected_from(func, args, kwargs)) is not None:
            self._each[id(result)] = result, _SELECTING[func](rows.detach().reshape(self._n, -1))
            return
        if func in (torch.sum, Tensor.sum) and len(args) == 1 and not kwargs and args[0].dtype == torch.bool:
            if args[0].dim() and len(args[0]) % self._n == 0:
                rows = args[0].reshape(self._n, args[0].numel() // self._n)
                self._counts[id(result)] = result, rows.sum(1), args[0].numel()
            return
        if func in (torch.eq, Tensor.eq, Tensor.__eq__) and id(args[0]) in self._counts:
            _, counts, whole = self._counts[id(args[0])]
            if args[1] == whole:  # all, by another name
                self._each[id(result)] = result, counts == whole // self._n
            return
        of_one = func in _OF_ONE and id(args[0]) in self._each
        if of_one and not any(isinstance(arg, Tensor) for arg in args[1:]):
            self._each[id(result)] = result, func(self._each[id(args[0])][1], *args[1:], **kwargs)

    def dissent(self, func: Callable[..., Any], args: tuple[Any, ...], answer: Any) -> Tensor | None:
        """(n,) bool: which records alone would not give this answer; None if it is not known."""
        if func in (Tensor.__contains__, torch.equal, Tensor.equal):
            one, other = args[:2]
            unlike = isinstance(other, Tensor) and (not isinstance(one, Tensor) or other.shape != one.shape)
            if (
                unlike
                or not isinstance(one, Tensor)
                or not one.dim()
                or len(one) % self._n
                or not one.numel()
            ):
                return None
            alike = (one == other).reshape(self._n, -1)
            each = alike.any(1) if func is Tensor.__contains__ else alike.all(1)
        elif id(args[0]) in self._each:
            each = self._each[id(args[0])][1]
        else:
            return None
        return torch.ne(each, answer)
