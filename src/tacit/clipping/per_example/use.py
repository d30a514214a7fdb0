"""One use of one parameter in a batch, from which its per-record gradients can be computed.

Letters: n records; m records of a chunk; P numbers of the parameter; T positions per record; d numbers per
position.
"""

# To *form* gradients means to compute and store them in full. Most uses give norms and sums without forming
# them.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, final, overload

import torch
from torch import Tensor

from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import triton_outer

PARTS = 8
"""The number of parts of a weighted sum on a CPU; a product of one row and a matrix uses only one thread."""
SPLIT_FROM = 2**20
"""The least number of values for which splitting a sum saves time."""
BLOCK, STRIDED_BLOCK = 1024, 128
"""Values per block of a norm: of contiguous values, and of strided ones, which are summed in fewer lanes."""
LONG_ROWS, FEW_POSITIONS = 512, 64
"""On a CPU, sums over positions are products with ones for rows this long, or for fewer positions."""
STACKED = {"cpu": 2**22, "cuda": 2**26}
"""By device type, the most bytes, counted as float32, of the tensors of several uses that are stacked."""


class Use(ABC):
    """One use of a parameter, recorded in a backward pass, that gives norms and a weighted sum."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Return |g_i|^2, (n,); only rounding may make it smaller than the true value."""

    @abstractmethod
    def gradients(self, start: int, stop: int) -> Tensor:
        """Return g_i of the records start to stop - 1, (m, *shape)."""

    @abstractmethod
    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i g_i to ``accumulator`` (*shape) in place; ``factors`` (n,)."""

    @abstractmethod
    def of(self, records: Tensor) -> Use:
        """Return the same use of the selected ``records`` alone; ``records``: (n,) bool."""

    skips_zeros = False
    """Whether a record whose factor is 0 adds nothing, even if its gradient is infinite or NaN."""
    sums_what_it_forms = False
    """Whether the weighted sum adds the same numbers that :meth:`gradients` returns."""


@final
class Rows:
    """Rows (n, d) with cached squared norms, which several uses may share."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @cached_property
    def squares(self) -> Tensor:
        """The squared norms |x_i|^2, (n,)."""
        return row_squares(self.rows)


@final
class Kept(Use):
    """Per-record gradients (n, *shape) that are formed and kept."""

    sums_what_it_forms = True

    def __init__(self, gradients: Tensor, rows: Rows | None = None) -> None:
        self._gradients = gradients
        # the Triton kernel does
        self.skips_zeros = gradients.is_cuda and triton_outer.takes_rows(gradients)
        self.shared = rows is not None
        self._rows = Rows(gradients.reshape(gradients.shape[0], -1)) if rows is None else rows

    @property
    def rows(self) -> Tensor:
        """The gradients as (n, P), a view if possible."""
        return self._rows.rows

    def squared_norms(self) -> Tensor:
        return self._rows.squares

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._gradients[start:stop]

    def of(self, records: Tensor) -> Kept:
        return Kept(self._gradients[records])

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        gradients = self._gradients.reshape(self._gradients.shape[0], -1)
        if self.skips_zeros:
            triton_outer.add_weighted_rows(accumulator, gradients, factors)
            return
        if gradients.dtype != accumulator.dtype or factors.dtype != accumulator.dtype:
            gradients, factors = gradients.to(accumulator.dtype), factors.to(accumulator.dtype)
        if not accumulator.is_contiguous():
            accumulator.add_((factors @ gradients).view_as(accumulator))
        elif accumulator.is_cpu and gradients.numel() >= SPLIT_FROM and gradients.shape[1] % PARTS == 0:
            parts = gradients.view(-1, PARTS, gradients.shape[1] // PARTS).transpose(0, 1)
            accumulator.view(PARTS, 1, -1).baddbmm_(factors.expand(PARTS, 1, -1), parts)
        else:
            accumulator.view(1, -1).addmm_(factors[None], gradients)

    def add_weighted_each(self, accumulators: Sequence[Tensor], factors: Tensor) -> None:
        for accumulator, rows in zip(accumulators, torch.split(self._gradients, len(factors)), strict=True):
            Kept(rows).add_weighted(accumulator, factors)


@final
class Late:
    """The promise of small gradients ``make(*parts)``, formed in one call for several equal layers.

    ``make`` maps parts (n, ...) to gradients (n, *shape), each record independently.
    """

    def __init__(self, make: Callable[..., Tensor], *parts: Tensor) -> None:
        self.make, self.parts = make, parts
        self.result: Kept | None = None


@final
class Rearranged(Use):
    """Gradients of a parameter, from a use of a view that has its values in another shape or order.

    ``use``: the use of the view. ``source``: the view, of all values. ``parameter`` is contiguous.
    """

    def __init__(self, use: Use, source: Tensor, parameter: Tensor) -> None:
        self._use, self._source, self._parameter = use, source, parameter
        self.skips_zeros = use.skips_zeros

    def squared_norms(self) -> Tensor:
        return self._use.squared_norms()

    def gradients(self, start: int, stop: int) -> Tensor:
        rows = self._use.gradients(start, stop)
        size = self._parameter.numel()
        rearranged = rows.new_empty(len(rows), *self._parameter.shape)
        rearranged.as_strided(rows.shape, (size, *self._source.stride())).copy_(rows)
        return rearranged

    def of(self, records: Tensor) -> Rearranged:
        return Rearranged(self._use.of(records), self._source, self._parameter)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        if not accumulator.is_contiguous():
            total = accumulator.contiguous()
            self.add_weighted(total, factors)
            accumulator.copy_(total)
            return
        view = accumulator.as_strided(self._source.shape, self._source.stride(), accumulator.storage_offset())
        if view.is_contiguous() or view.dim() == 2:  # a product may add to a transposed matrix
            self._use.add_weighted(view, factors)
            return
        total = accumulator.new_zeros(self._source.shape)
        self._use.add_weighted(total, factors)
        view.add_(total)


def cancellation(dtype: torch.dtype, length: int) -> float:
    """Return kappa: squared norms from products of positions are off by at most kappa S^2.

    S is the sum of the norms of the positions' gradients, and ``length`` is that of the longest dot product.
    If positions cancel, |G|^2 is far below S^2, and may even come out as 0.  Rounding errors of a dot product
    grow as the square root of its length (Higham and Mary, 2019, theorem 2.4). In float32, at length 1024,
    errors up to 4.5e-7 S^2 were measured, for pairs of positions that cancel to one part in 1,000. There
    kappa is 3.9e-6.

    >>> round(cancellation(torch.float32, 1024) * 1e6, 1)
    3.9
    """
    return float(8 * torch.finfo(dtype).eps * (1 + length / 64) ** 0.5)


def chunks(n: int, bytes_per_record: int, most: int) -> list[tuple[int, int]]:
    """Return (start, stop) of chunks of records whose gradients take no more than ``most`` bytes.

    >>> chunks(5, 4, 9)
    [(0, 2), (2, 4), (4, 5)]
    """
    m = max(1, most // max(1, bytes_per_record))
    return [(start, min(start + m, n)) for start in range(0, n, m)]


def stackable(*parts: Tensor) -> int:
    """Return how many equal uses may be stacked, if each has these ``parts``."""
    room = STACKED.get(parts[0].device.type, 0)
    return room // max(1, 4 * sum(t.numel() for t in parts))


def form(uses: Sequence[Late]) -> None:
    make, parts = uses[0].make, zip(*(use.parts for use in uses), strict=True)
    rows = make(*(torch.cat(tensors) for tensors in parts))
    for use, of_use in zip(uses, rows.chunk(len(uses)), strict=True):
        use.result, use.parts = Kept(of_use), ()


def over_views(per_row: Tensor, views: int) -> Tensor:
    """Sum gradients of rows (n K, ...) over the K views of each record, to (n, ...)."""
    if views == 1:
        return per_row
    n = len(per_row) // views
    return over_positions(per_row.reshape(n, views, -1)).view(n, *per_row.shape[1:])


def over_positions(x: Tensor) -> Tensor:
    """Sum (n, T, d) over T, to (n, d) in float32 or wider.

    On a CPU a product with ones is faster for long rows, or for few positions that are contiguous.
    """
    n, T, d = x.shape
    if x.is_cuda:
        return x.sum(1, dtype=widened_type(x.dtype))
    x = widened(x)
    if T == 1:
        return x.squeeze(1)
    by_product = d >= LONG_ROWS if x.stride(2) == 1 else T < FEW_POSITIONS
    return torch.bmm(x.new_ones(1, 1, T).expand(n, 1, T), x).squeeze(1) if by_product else x.sum(1)


def row_squares(x: Tensor) -> Tensor:
    """Return |x|^2 over the last dimension, with an allowance for squares that underflow.

    Torch sums a norm in a few lanes, each of which loses values that are small relative to its sum. In the
    worst case, the norm of four million numbers loses 1.5 %. So long rows are split into blocks, whose norms
    are combined in double precision. The relative loss is then 4e-6, and
    :data:`tacit.clipping.engine.ROUNDING` allows for twice as much.
    """
    P, block = x.shape[-1], BLOCK if x.stride(-1) == 1 else STRIDED_BLOCK
    norms: Tensor
    if block >= P:
        norms = torch.linalg.vector_norm(x, dim=-1)  # squaring x first would take 10 times as long
        return torch.addcmul(_constant(allowance(x), x.dtype, x.device), norms, norms)
    cut = P // block * block
    parts = [torch.linalg.vector_norm(x[..., :cut].view(*x.shape[:-1], P // block, block), dim=-1)]
    if cut < P:
        parts.append(torch.linalg.vector_norm(x[..., cut:], dim=-1, keepdim=True))
    norms = torch.linalg.vector_norm(torch.cat(parts, -1), dim=-1, dtype=torch.float64)
    return norms.square_().add_(allowance(x)).to(x.dtype)


def squared_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, (n,), of squared norms a and b, with an allowance for products that underflow."""
    return torch.addcmul(_constant(float(torch.finfo(a.dtype).tiny), a.dtype, a.device), a, b)


@lru_cache(maxsize=64)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def allowance(x: Tensor) -> float:
    """Return the most that a sum of squares over the last dimension may lose by underflow."""
    return x.shape[-1] * float(torch.finfo(x.dtype).tiny)


def widened(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or wider, as norms and sums need."""
    if tensor.dtype == torch.float32 or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(widened_type(tensor.dtype))


def narrowed(x: Tensor) -> Tensor:
    """Return x in the type to which autocast would cast it for an operation.

    x is cast only once, here, and the backward pass reads the same copy.
    """
    if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def widened_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of parameters of this type are computed: float32 or wider."""
    return torch.promote_types(dtype, torch.float32)


# The interface between a pass and a layer's rule, which records the uses of sources.
#
# Letters: n records; k rows of one record in this operation; B = n k.


SourceUse: TypeAlias = tuple[Tensor, Use | Late]
"""A source, and one use of it."""
Uses: TypeAlias = Callable[..., Iterable[SourceUse]]
"""A function ``(g, *saved) -> (source, use) ...``; the backward pass calls it with the output's gradient g.
"""
Forward: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""A function ``(*inputs) -> output, saved`` that is called outside of autograd."""
Backward: TypeAlias = Callable[..., tuple[Sequence[Tensor | None], Iterable[SourceUse]]]
"""A function ``(g, needed, *saved) -> input gradients, uses``; ``needed`` has a bool for each input."""
Handler: TypeAlias = Callable[..., Any]
"""A function ``handler(recorder, *args, **kwargs)``, with the operation's arguments after the recorder."""


@final
class Recorder:
    """Records the uses of sources for a handler, which gets ``views`` rows of each record.

    A handler calls ``tap`` with an output that autograd differentiates, a new tensor, to record uses alone;
    or ``function``, to compute the gradients of inputs itself; ``late`` makes a use of small gradients.
    """

    def __init__(self, of: Pass, views: int) -> None:
        self.of, self.views, self.rows, self.budget = of, views, of.n * views, of.budget
        self.owns = of.owns
        self.record = of.record

    @overload
    def plain(self, tensor: Tensor) -> Tensor: ...
    @overload
    def plain(self, tensor: Tensor | None) -> Tensor | None: ...
    def plain(self, tensor: Tensor | None) -> Tensor | None:
        """Return a source detached, so that autograd does not differentiate it, and others unchanged."""
        return tensor.detach() if tensor is not None and self.owns(tensor) else tensor

    def narrowed(self, x: Tensor) -> Tensor:
        """Return ``narrowed(x)``, cached for consecutive layers that read the same x, as in attention."""
        of, version = self.of, None if x.is_inference() else x._version
        if of.cast is None or of.cast[1] != version or not _same(x, of.cast[0]):
            of.cast = x, version, narrowed(x)
        return of.cast[2]

    def late(self, make: Callable[..., Tensor], *parts: Tensor) -> Kept | Late:
        """Return the use with gradients ``make(*parts)``; small ones wait for those of equal layers."""
        most = stackable(*parts) // 2  # waiting parts take memory in the backward pass
        if most < 2:
            return Kept(make(*parts))
        use = Late(make, *parts)
        alike = make, *((t.shape, t.dtype, t.device) for t in parts)
        waiting = self.of.waiting.setdefault(alike, [])
        waiting.append(use)
        if len(waiting) >= most:
            form(waiting)
            waiting.clear()
        return use

    def positions(self, tensor: Tensor) -> Tensor:
        """Return (B, ..., d) as (n, k ..., d): all positions of a record on one axis."""
        return tensor.reshape(self.of.n, -1, tensor.shape[-1])

    def tap(
        self,
        output: Tensor,
        uses: Uses,
        *,
        saved: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return ``output``; the backward pass calls ``uses(g, *saved)`` and gives sources no gradient."""
        if not any(map(self.owns, sources)):
            return output
        result: Tensor = _TAP(output, self, uses, self.of.anchor, *saved)
        return result

    def function(
        self,
        forward: Forward,
        backward: Backward,
        *,
        inputs: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return an output whose backward pass computes input gradients and uses together.

        Autograd differentiates with respect to ``inputs``; values of sources reach ``forward`` by closure.
        """
        anchor = self.of.anchor if any(map(self.owns, sources)) else None
        result: Tensor = _FUNCTION(self, forward, backward, anchor, *inputs)
        return result


def _same(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors share their memory and have the same layout."""
    return x.data_ptr() == y.data_ptr() and (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


class Tap(torch.autograd.Function):
    """The identity; its backward pass records uses, and gives the sources no gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, recorder: Recorder, uses: Uses, anchor: Tensor, *saved: Tensor
    ) -> Tensor:
        del anchor
        ctx.recorder, ctx.uses = recorder, uses
        ctx.save_for_backward(*saved)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # may recompute a checkpointed layer, which the pass must see
        uses, ctx.uses = ctx.uses, None  # may hold tensors, and the node lives as long as the graph
        with torch._C.DisableTorchFunction():
            ctx.recorder.record(uses(g, *tensors))
        return (g, None, None, None, *([None] * len(tensors)))


class Function(torch.autograd.Function):
    """An operation whose backward pass returns the gradients of its inputs, and records uses."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        forward: Forward,
        backward: Backward,
        anchor: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        del anchor
        output, tensors = forward(*inputs)
        ctx.recorder, ctx.backward = recorder, backward
        ctx.save_for_backward(*tensors)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        backward, ctx.backward = ctx.backward, None  # holds a copy of the weight in a narrow type
        with torch._C.DisableTorchFunction():
            gradients, uses = backward(g, ctx.needs_input_grad[4:], *tensors)
            ctx.recorder.record(uses)
        return (None, None, None, None, *gradients)


def applied(function: type[torch.autograd.Function]) -> Any:
    """Return ``function.apply`` for physical tensors, without the checks that users' functions need."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


_TAP, _FUNCTION = applied(Tap), applied(Function)
