"""Joining of equal layers, so that one call computes norms or sums of several parameters' gradients.

In a model with many small layers, calls take more time than the arithmetic. So tensors of uses with equal
shapes are stacked, and each call serves all of them. Large tensors stay separate, as copying them takes more
time than it saves (:func:`tacit.clipping.per_example.use.stackable`).

Letters: n records; L layers; P numbers of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from tacit.clipping.per_example.linear import Outer
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.use import Kept, stackable


class Several(Protocol):
    """Gradients of several parameters of one group, with joint norms and sums."""

    @property
    def skips_zeros(self) -> bool:
        """Whether a record whose factor is 0 adds nothing, even if its gradient is infinite or NaN."""

    def squared_norms(self) -> Tensor:
        """Return the sum of their squared norms, (n,)."""

    def of(self, records: Tensor) -> Several:
        """Return the gradients of some records, (n,) bool."""

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        """Add sum_i factors_i g_i of each parameter to the buffer of its name, in place."""


def together(gradients: dict[str, Gradient], names: Sequence[str]) -> list[Several]:
    """Join the gradients of equal or small parameters with these names; remove them from ``gradients``.

    For unformed gradients that have no equal, choose the form that they have alone.
    """
    several: list[Several] = list(_stacks(gradients, names))
    for name in names:
        if name in gradients:
            gradients[name].settle()
    small = _joined(gradients, names)
    return several if small is None else [*several, small]


def _stacks(gradients: dict[str, Gradient], names: Sequence[str]) -> Iterator[_Stack]:
    """Stack equal linear maps, a limited number at a time, and free the tensors that a stack copies."""
    for alike in _alike(gradients, names):
        most = stackable(alike[0][1].left, alike[0][1].right)
        while min(most, len(alike)) > 1:
            of, uses = zip(*alike[:most], strict=True)
            del alike[:most]
            left, right = torch.cat([use.left for use in uses]), torch.cat([use.right for use in uses])
            stack = Outer(left, right, uses[0].slack)
            for name in of:
                del gradients[name]
            del uses
            yield _Stack(of, stack.settled())


def _alike(gradients: Mapping[str, Gradient], names: Sequence[str]) -> list[list[tuple[str, Outer]]]:
    """Return the linear maps that are their weight's only use, grouped by their key."""
    groups: dict[Hashable, list[tuple[str, Outer]]] = {}
    for name in names:
        use = gradients[name].alone if name in gradients else None
        if isinstance(use, Outer):
            groups.setdefault(use.alike, []).append((name, use))
    return list(groups.values())


@final
class _Stack:
    """Gradients of L parameters of one shape, as a use of L n records."""

    def __init__(self, names: Sequence[str], use: Kept | Outer) -> None:
        self._names, self._use = names, use

    @property
    def skips_zeros(self) -> bool:
        return self._use.skips_zeros

    def squared_norms(self) -> Tensor:
        return self._use.squared_norms().view(len(self._names), -1).sum(0)

    def of(self, records: Tensor) -> _Stack:
        return _Stack(self._names, self._use.of(records.repeat(len(self._names))))

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        buffers = [buffer(name) for name in self._names]
        self._use.add_weighted_each(buffers, factors.to(buffers[0].dtype))


@final
class _Joined:
    """Small gradients of several parameters side by side, (n, P)."""

    def __init__(self, names: Sequence[str], rows: Sequence[Tensor]) -> None:
        self._names, self._sizes = names, [part.shape[1] for part in rows]
        self._kept = Kept(torch.cat(list(rows), 1))

    @property
    def skips_zeros(self) -> bool:
        return self._kept.skips_zeros

    def squared_norms(self) -> Tensor:
        return self._kept.squared_norms()

    def of(self, records: Tensor) -> _Joined:
        return _Joined(self._names, self._kept.rows[records].split_with_sizes(self._sizes, 1))

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        """Join the buffers, which contain noise, add the sum, and copy back."""
        buffers = [buffer(name) for name in self._names]
        total = torch.cat([b.reshape(-1) for b in buffers])
        self._kept.add_weighted(total, factors.to(total.dtype))
        parts = zip(total.split_with_sizes(self._sizes), buffers, strict=True)
        torch._foreach_copy_(buffers, [part if b.dim() == 1 else part.view_as(b) for part, b in parts])


def _joined(gradients: dict[str, Gradient], names: Sequence[str]) -> _Joined | None:
    """Join the small gradients of those names if there are two or more; remove them from ``gradients``."""
    small = {name: use for name in names if name in gradients and (use := gradients[name].small) is not None}
    if len(small) < 2:
        return None
    for name in small:
        del gradients[name]
    return _Joined(list(small), [use.rows for use in small.values()])
