"""Operations without a rule of their own: their per-record gradients by ``vmap``, the rest stays fast.

Letters: n records; m records of a chunk; k rows of a record, views included.

Such an operation is carried out on the batch as it is.  In the backward pass it is carried out once more
on the k rows of each record alone, which must give the same output; its gradient there is the record's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from tacit.clipping.per_example.recorder import Recorder, Unseen
from tacit.clipping.per_example.use import EXACT, Kept, Use, chunks, widened

__all__ = ["vmap_fallback"]


@final
class _Alone(Use):
    """Gradients of one source from ``each(source, *rows)`` on one record's rows; y is that on the batch.

    y, its gradient g and each of ``rows`` are (n, k, ...).  ``most``: bytes of the gradients of a chunk.
    """

    def __init__(
        self,
        each: Callable[..., Tensor],
        source: Tensor,
        y: Tensor,
        g: Tensor,
        rows: tuple[Tensor, ...],
        most: int,
    ) -> None:
        self._each, self._source, self._y, self._g, self._rows = each, source.detach(), y, g, rows
        self._most = most
        self._chunks = chunks(len(g), source.numel() * source.element_size(), most)

    def squared_norms(self) -> Tensor:
        """Return |g_i|^2, (n,), from gradients formed in chunks."""
        return torch.cat([Kept(self.gradients(a, b)).squared_norms() for a, b in self._chunks])

    @property
    def form(self) -> str:
        """They are formed."""
        return EXACT

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return g_i, (m, *shape)."""
        part = slice(start, stop)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")
                own = (self._y[part], self._g[part], *(row[part] for row in self._rows))
                gradients, same = vmap(self._of_one)(*own)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise Unseen("an operation without a rule cannot be carried out by record") from error
        if not bool((same | ~self._y[part].flatten(1).isfinite().all(1)).all()):
            raise Unseen("an operation without a rule gives other values for a record alone")
        return widened(gradients)

    def _of_one(self, y: Tensor, g: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of one record, and whether its output alone is that in the batch."""
        pull: Any
        found, pull = vjp(lambda source: self._each(source, *rows), self._source)[:2]
        return pull(g)[0], (found - y).abs().amax() <= 1e-3 * (1e-3 + y.abs().amax())

    def of(self, records: Tensor) -> _Alone:
        """Return the rows of those records alone."""
        rows = tuple(row[records] for row in self._rows)
        return _Alone(self._each, self._source, self._y[records], self._g[records], rows, self._most)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i g_i from gradients formed in chunks."""
        for a, b in self._chunks:
            accumulator.add_(torch.tensordot(factors[a:b], self.gradients(a, b).to(factors.dtype), dims=1))


def vmap_fallback(
    recorder: Recorder, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Tensor:
    """Carry out ``func``, which reads private tensors and rows of the batch, and record its uses."""
    leaves, form = pytree.tree_flatten((args, dict(kwargs)))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    private = [i for i in tensors if recorder.owns(leaves[i])]
    by_row = [i for i in tensors if i not in private and not recorder.fixed(leaves[i])]
    if any(leaves[i].dim() == 0 or len(leaves[i]) != recorder.rows for i in by_row):
        raise Unseen(f"operation {name!r} has no per-example rule, and reads other than rows of the batch")
    if any(leaves[i].layout != torch.strided for i in tensors):
        raise Unseen(f"operation {name!r} has no per-example rule, and reads sparse tensors")
    recorder.of_rows(name, leaves[by_row[0]], 1)

    def call(now: Mapping[int, Tensor]) -> Any:
        arguments, options = pytree.tree_unflatten([now.get(i, leaf) for i, leaf in enumerate(leaves)], form)
        return func(*arguments, **options)

    values = {i: leaves[i].detach() for i in private}
    y = call(values)
    if not isinstance(y, Tensor) or y.dim() == 0 or len(y) != recorder.rows or not y.is_floating_point():
        raise Unseen(f"operation {name!r} has no per-example rule, and gives other than rows of the batch")

    def uses(g: Tensor, *saved: Tensor) -> Iterator[tuple[Tensor, Use]]:
        n = recorder.rows // recorder.views
        g, y, *rows = (t.reshape(n, -1, *t.shape[1:]) for t in (g, *saved))
        for i in private:

            def each(source: Tensor, *own: Tensor, i: int = i) -> Tensor:
                result: Tensor = call({**values, **dict(zip(by_row, own, strict=True)), i: source})
                return result

            yield leaves[i], _Alone(each, leaves[i], y, g, tuple(rows), recorder.budget.chunk_bytes)

    saved = (y.detach().clone(), *(leaves[i].detach() for i in by_row))
    return recorder.tap(name, y.clone(), uses, saved=saved, sources=tuple(leaves[i] for i in private))
