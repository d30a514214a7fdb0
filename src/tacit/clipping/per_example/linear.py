"""Linear maps, y = x W^T + b, at T positions of a record. Long: their gradient has three forms.

Letters: n records; T positions of a record, views included; d inputs; p outputs; g = d loss / d y; m records
of a chunk; r rows of a block of positions.
"""

# The gradient of a record is G = sum_t g_t x_t^T, (p, d).  Its shape alone decides between three forms:
#
# * T = 1: |G|^2 = |g|^2 |x|^2 (Goodfellow, 1510.01799), and the weighted sum is one product.
# * Kept, if p d <= slack T (p + d), or half of that in 16 bits: G is formed in float32, which takes at most
#   slack times the bytes of x and g, and these are freed. The product is that of an ordinary backward pass.
#   The extra cost is a norm and a weighted sum, which read G. ``MemoryBudget.linear_slack`` is the slack;
#   below 1 it would save neither memory nor time.
# * Ghost, otherwise: |G|^2 = sum_{t,u} (x_t . x_u)(g_t . g_u), from two symmetric T x T matrices (Li et al.,
#   2110.05679), and the weighted sum is one product.

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.isolation.reasons import NoRule
from tacit.clipping.per_example import native_outer, triton_outer
from tacit.clipping.per_example.use import (
    Kept,
    Recorder,
    Rows,
    SourceUse,
    Use,
    allowance,
    cancellation,
    narrowed,
    over_positions,
    row_squares,
    squared_product,
    stackable,
    widened,
    widened_type,
)

# Weights computed by weight norm: w_o = s_o v_o with s_o = g_o / |v_o|, for each row o of a weight (O, ...).
#
# Both torch functions named ``weight_norm`` compute w with the same operation. Its node in autograd's graph
# refers to v and g.


@final
@dataclass(frozen=True)
class WeightNorm:
    """The two tensors from which weight norm computes a weight.

    Attributes:
        directions: v (O, ...).
        magnitudes: g (O, 1, ...).
    """

    directions: Tensor
    magnitudes: Tensor

    @cached_property
    def _sizes(self) -> Tensor:
        rows = self.directions.detach().flatten(1)
        sizes: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return sizes

    @cached_property
    def unit(self) -> Tensor:
        """The unit rows u = v / |v|, (O, N)."""
        rows = self.directions.detach().flatten(1)
        return rows / self._sizes.to(rows.dtype)[:, None]

    def exact_unit(self) -> Tensor:
        rows = self.directions.detach().flatten(1).double()
        sizes: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / sizes

    @cached_property
    def scale(self) -> Tensor:
        """The scales s = g / |v|, (O,)."""
        return (self.magnitudes.detach().flatten() / self._sizes).to(self.directions.dtype)

    def scaled(self, dots: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b from ``dots``, which is x U^T, (n, O)."""
        magnitudes = self.magnitudes.detach().view(1, -1)
        return dots * magnitudes if bias is None else torch.addcmul(bias, dots, magnitudes)


def weight_norm_of(source: Tensor) -> WeightNorm | None:
    """Return v and g of a weight, if weight norm computed it from two parameters; one may be frozen."""
    node: Any = source.grad_fn
    if type(node).__name__ != "WeightNormInterfaceBackward0" or source._backward_hooks:
        return None
    before = [node_before for node_before, _ in node.next_functions]  # None for a frozen one
    leaves = [getattr(one, "variable", None) for one in before]
    direct = all(one is None or leaf is not None for one, leaf in zip(before, leaves, strict=True))
    if not direct or leaves[0] is leaves[1] or node._saved_dim != 0 or source.dim() < 2 or not source.is_cpu:
        return None
    v, g = (
        value if leaf is None else leaf
        for value, leaf in zip((node._saved_v, node._saved_g), leaves, strict=True)
    )
    return WeightNorm(v, g)


_Backward: TypeAlias = tuple[tuple[Tensor | None], list[SourceUse]]

GRAM_NUMBERS = 2**20
"""The most entries of T x T matrices computed at once, so that they stay in the cache."""
GRAM_DEPTH = 2048
"""The most products added up at once in one of those entries."""
BLOCK_ROWS = 64
"""The least rows of a block of a T x T matrix; narrower products cost more time than symmetry saves."""
LOOP_FROM = 64
"""The number of positions from which a weighted sum loops over records instead of copying them into order."""
ONEDNN_ROWS, ONEDNN_PRODUCTS = 8, 2**24
"""The least number of rows, and the least number of multiplications, of a product that oneDNN computes."""


def outer(left: Tensor, right: Tensor, slack: float) -> Use:
    """Return the use with G_i = sum_t left_it right_it^T, from left (n, T, p) and right (n, T, d).

    Small gradients stay unformed until they can be joined with those of equal layers.
    """
    unkept = Outer(left, right, slack)
    return unkept if stackable(left, right) > 1 else unkept.settled()


def settled(use: Use) -> Use:
    """Choose the form of a linear map's gradients, by their shape and not by the number of records."""
    return use.settled() if isinstance(use, Outer) else use


@final
class Outer(Use):
    """Gradients G_i = sum_t left_it right_it^T, stored as the factors left (n, T, p) and right (n, T, d)."""

    def __init__(self, left: Tensor, right: Tensor, slack: float) -> None:
        self.left, self.right, self.slack = left, right, slack
        self.skips_zeros = triton_outer.takes_16_bits(left, right)  # the Triton kernel does

    def settled(self) -> Kept | Outer:
        """Return G itself if its size is below the limit, else this use."""
        T, p, d = *self.left.shape[1:], self.right.shape[2]
        size = widened_type(self.left.dtype).itemsize
        made_of = T * (p * self.left.element_size() + d * self.right.element_size())
        keep = T > 1 and size * p * d <= self.slack * made_of
        return Kept(self.gradients(0, len(self.left))) if keep else self

    def squared_norms(self) -> Tensor:
        left, right = self.left, self.right
        if left.shape[1] == 1:
            return squared_product(
                row_squares(widened(left).squeeze(1)), row_squares(widened(right).squeeze(1))
            )
        if triton_outer.takes(left, right):
            return triton_outer.squared_norms(left, right)
        return ghost_squared_norms(widened(left), widened(right))

    def gradients(self, start: int, stop: int) -> Tensor:
        left, right = self.left[start:stop], self.right[start:stop]
        if triton_outer.takes_16_bits(left, right):
            return triton_outer.gradients(left, right)
        if _takes_native(left, right):
            return native_outer.gradients(left, right)
        return widened(left).transpose(1, 2) @ widened(right)

    def of(self, records: Tensor) -> Outer:
        return Outer(self.left[records], self.right[records], self.slack)

    def turned(self) -> Outer:
        return Outer(self.right, self.left, self.slack)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i G_i, (p, d), by one product of (p, n T) and (n T, d).

        The factors scale the narrower of the two.
        """
        self.add_weighted_each([accumulator], factors)

    def add_weighted_each(self, accumulators: Sequence[Tensor], factors: Tensor) -> None:
        n = len(factors)
        if self.skips_zeros:
            sums = triton_outer.weighted_sums(self.left, self.right, factors, len(accumulators))
            torch._foreach_add_(list(accumulators), list(sums.unbind()))
            return
        most = max(1, stackable(self.left[:n], self.right[:n]) // 2)  # half: widened copies take as much
        for start in range(0, len(accumulators), most):
            here = slice(start * n, (start + most) * n)
            _add_layers(accumulators[start : start + most], self.left[here], self.right[here], factors)


@final
class Pair(Use):
    """Gradients G_i = left_i right_i^T at one position, stored as the rows left (n, p) and right (n, d).

    ``normed``: for a weight computed by weight norm, its parts, and the products of right_i with its unit
    rows, (n, p); None if the forward pass did not compute them.
    """

    sums_what_it_forms = True

    def __init__(
        self,
        left: Rows,
        right: Rows,
        slack: float,
        normed: tuple[WeightNorm, Tensor] | None = None,
    ) -> None:
        self.left, self.right, self._slack, self.normed = left, right, slack, normed

    def squared_norms(self) -> Tensor:
        return squared_product(self.left.squares, self.right.squares)

    def gradients(self, start: int, stop: int) -> Tensor:
        return self.left.rows[start:stop, :, None] * self.right.rows[start:stop, None]

    def of(self, records: Tensor) -> Pair:
        left, right = Rows(self.left.rows[records]), Rows(self.right.rows[records])
        normed = None if self.normed is None else (self.normed[0], self.normed[1][records])
        return Pair(left, right, self._slack, normed)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        left, right = self.left.rows, self.right.rows
        if left.dtype != accumulator.dtype or right.dtype != accumulator.dtype:
            left, right = left.to(accumulator.dtype), right.to(accumulator.dtype)
        if left.shape[1] < right.shape[1]:
            left = left * factors[:, None]
        else:
            right = right * factors[:, None]
        accumulator.addmm_(left.T, right)

    def turned(self) -> Pair:
        return Pair(self.right, self.left, self._slack)

    def at_positions(self) -> Outer:
        return Outer(self.left.rows[:, None], self.right.rows[:, None], self._slack)


def ghost_squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return |sum_t left_t right_t^T|^2, (n,), from (n, T, p) and (n, T, d), rounded up.

    If positions cancel, the rounded sum may be far below the true norm: with S = sum_t |left_t| |right_t| =
    1e5 C, a record clipped to C in float32 contributes up to 3 C. So kappa S^2 is added.
    """
    n, T = left.shape[:2]
    longest = max(left.shape[2], right.shape[2])
    kappa = cancellation(left.dtype, longest)
    if T <= native_outer.MOST_POSITIONS and longest <= GRAM_DEPTH and _takes_native(left, right):
        return native_outer.squared_norms(left, right, kappa)
    m = max(1, GRAM_NUMBERS // max(1, T * T))
    if n <= m:
        squares, spread = _gram_products(left, right)
    else:
        parts = [_gram_products(left[i : i + m], right[i : i + m]) for i in range(0, n, m)]
        squares, spread = (torch.cat(sums) for sums in zip(*parts, strict=True))
    return squares.clamp_(min=0.0).addcmul_(spread, spread, value=kappa)


def _gram_products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_{t,u} (left_t . left_u)(right_t . right_u), (m,), from blocks on and above the diagonal.

    Also return S, (m,), from the diagonal. A block consists of the rows t to t + r - 1 of both Gram matrices,
    from column t on. Its entries count twice, except those in the r x r part on the diagonal.
    """
    T = left.shape[1]
    r = max(BLOCK_ROWS, -(-T // 8))
    if r >= T:
        of_left, of_right = _gram(left, left), _gram(right, right)
        spread = _spread(of_left, of_right, left, right)
        return of_left.mul_(of_right).sum((1, 2)), spread
    total, spread = left.new_zeros(2, len(left))
    for t in range(0, T, r):
        after = slice(t, None)
        rows = slice(t, t + r)
        of_left, of_right = _gram(left[:, rows], left[:, after]), _gram(right[:, rows], right[:, after])
        spread += _spread(of_left, of_right, left, right)
        product = of_left.mul_(of_right)
        width = min(r, T - t)
        total += 2.0 * product.sum((1, 2)) - product[:, :, :width].sum((1, 2))
    return total, spread


def _spread(of_left: Tensor, of_right: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return sum_t |left_t| |right_t|, (m,), from the diagonals of Gram matrices of positions."""
    return (_diagonal(of_left, left) * _diagonal(of_right, right)).sqrt_().sum(1)


def _diagonal(gram: Tensor, x: Tensor) -> Tensor:
    """Return |x_t|^2 from a Gram matrix of x, with an allowance for products that underflow.

    An inner product x_t . x_u loses up to the allowance, and is multiplied by g_t . g_u. So kappa S^2 must be
    at least allowance (sum_t |g_t|)^2. As kappa is above eps, it is if the allowance is divided by eps here.
    """
    return gram.diagonal(dim1=1, dim2=2) + allowance(x) / torch.finfo(x.dtype).eps


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """Return a_t . b_u, (m, r, q), from (m, r, d) and (m, q, d), ``GRAM_DEPTH`` of d at once.

    A product sums in a few lanes, each of which loses values that are small relative to its sum.
    """
    d = a.shape[2]
    if d <= GRAM_DEPTH:
        return torch.bmm(a, b.transpose(1, 2))
    total = a.new_zeros(a.shape[0], a.shape[1], b.shape[1])
    for k in range(0, d, GRAM_DEPTH):
        total += torch.bmm(a[:, :, k : k + GRAM_DEPTH], b[:, :, k : k + GRAM_DEPTH].transpose(1, 2))
    return total


def _positions_last(x: Tensor) -> bool:
    """Return whether (n, T, p) is stored as (n, p, T), as the gradient of a transposed output is."""
    return x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()


def _takes_native(left: Tensor, right: Tensor) -> bool:
    """Return whether the C++ kernels take these sides, and are faster than MKL."""
    in_order = not (_positions_last(left) or _positions_last(right))
    return in_order and native_outer.takes(left, right) and not _is_intel()


def _add_layers(accumulators: Sequence[Tensor], left: Tensor, right: Tensor, factors: Tensor) -> None:
    """Add to each of L accumulators the weighted sum of its layer, from (L n, T, p) and (L n, T, d)."""
    dtype, n, weights = accumulators[0].dtype, len(factors), factors[:, None, None]
    single = all(one.dtype == factors.dtype == torch.float32 and one.is_contiguous() for one in accumulators)
    if single and _takes_native(left, right):
        layers = torch.split(left, n), torch.split(right, n)
        for accumulator, one, other in zip(accumulators, *layers, strict=True):
            native_outer.add_weighted(accumulator, one, other, factors)
        return

    def scaled(x: Tensor, wide: Tensor) -> Tensor:
        of_layers = wide.view(-1, n, *wide.shape[1:])
        return (of_layers * weights if wide is x else of_layers.mul_(weights)).flatten(0, 1)

    wide_left, wide_right = widened(left).to(dtype), widened(right).to(dtype)
    if left.shape[2] < right.shape[2]:
        wide_left = scaled(left, wide_left)
    else:
        wide_right = scaled(right, wide_right)
    sides = torch.split(wide_left, n), torch.split(wide_right, n)
    for accumulator, one, other in zip(accumulators, *sides, strict=True):
        _add_product(accumulator, one, other)


def _add_product(accumulator: Tensor, left: Tensor, right: Tensor) -> None:
    """Add sum_i left_i^T right_i, (p, d), from (n, T, p) and (n, T, d)."""
    if left.is_cpu and _positions_last(left) and left.shape[1] >= LOOP_FROM:
        for one, other in zip(left, right, strict=True):
            accumulator.addmm_(one.T, other)
    else:
        accumulator.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))


def merged(uses: Sequence[Use]) -> Use | None:
    """Return several uses of one weight as one use at all their positions, if no gradient is formed yet."""
    if len(uses) == 1:
        return uses[0]
    uses = [use.at_positions() if isinstance(use, Pair) else use for use in uses]
    unkept = [use for use in uses if isinstance(use, Outer)]
    if not uses or len(unkept) < len(uses):
        return None
    left, right = (torch.cat(side, dim=1) for side in zip(*((u.left, u.right) for u in unkept), strict=True))
    return Outer(left, right, unkept[0].slack).settled()


def linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Run ``F.linear`` and record the uses of weight (p, d) and bias (p,); x may have any dimensions."""
    return _map(recorder, input, weight, bias, weight)


def frozen(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Run ``F.linear`` of a frozen weight by the product that is fastest here; record nothing."""
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    if trained or not _for_onednn(input, weight, bias):
        raise NoRule

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _no_view(product(x, weight, bias)), ()

    def backward(g: Tensor, needed: Sequence[bool]) -> _Backward:
        g = g if _positions_last(g) else g.contiguous()
        return (_input_gradient(g, weight) if needed[0] else None,), []

    return recorder.function(forward, backward, inputs=(input,), sources=())


def _no_view(y: Tensor) -> Tensor:
    """Return y as no view: autograd cannot see its base, so could not change it in place."""
    unsafe: Tensor = torch.ops.aten._unsafe_view(y, y.shape) if y._is_view() else y
    return unsafe


def matmul(recorder: Recorder, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """Run ``input @ other`` with a private matrix (d, p) on the right."""
    if recorder.owns(input) or other.dim() != 2:
        raise NoRule
    return _map(recorder, input, recorder.plain(other).T, None, other)


def addmm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """Run ``torch.addmm(bias, x, W)`` with x (B T, d), a private W (d, p) and a bias (p,)."""
    if recorder.owns(mat1) or input.dim() != 1 or beta != 1 or alpha != 1:
        raise NoRule
    return _map(recorder, mat1, recorder.plain(mat2).T, input, mat2)


def _map(
    recorder: Recorder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source: Tensor,
) -> Tensor:
    """Return x W^T + b; the private tensor ``source`` is ``weight`` (p, d) or its transpose."""
    W, b = narrowed(recorder.plain(weight)), recorder.plain(bias)
    b = None if b is None else narrowed(b)
    normed = weight_norm_of(source) if source is weight and x.dim() == 2 and recorder.views == 1 else None

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = recorder.narrowed(x)
        if normed is not None and _alike(x, W, b):
            dots = product(x, normed.unit)
            return normed.scaled(dots, b), (x, dots)
        y = _no_view(product(x, W, b))
        return y, (x.to(y.dtype),)

    def backward(g: Tensor, needed: Sequence[bool], x: Tensor, dots: Tensor | None = None) -> _Backward:
        g = g if _positions_last(g) else g.contiguous()
        return (_input_gradient(g, W) if needed[0] else None,), list(uses(g, x, dots))

    def uses(g: Tensor, x: Tensor, dots: Tensor | None) -> Iterator[SourceUse]:
        slack = recorder.budget.linear_slack
        if g.dim() == 2 and recorder.views == 1 and widened(g) is g:
            of_g, of_x = Rows(g), Rows(x)
            if recorder.owns(source):
                sides = (of_g, of_x) if source is weight else (of_x, of_g)
                parts = None if normed is None or dots is None else (normed, dots)
                yield source, Pair(*sides, slack, parts)
            if bias is not None and recorder.owns(bias):
                yield bias, Kept(g, of_g)
            return
        left, right = recorder.positions(g), recorder.positions(x)
        if recorder.owns(source):
            yield source, outer(*((left, right) if source is weight else (right, left)), slack)
        if bias is not None and recorder.owns(bias):
            yield bias, recorder.late(over_positions, left)

    return recorder.function(forward, backward, inputs=(x,), sources=(source, bias))


def _alike(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    """Return whether x U^T with scaled columns may replace x W^T, for unit rows U of W.

    It may if all types are equal and a sum has few products.
    """
    same = x.dtype == W.dtype and (b is None or b.dtype == x.dtype) and not torch.is_autocast_enabled("cpu")
    return same and W.shape[1] <= GRAM_DEPTH


def _input_gradient(g: Tensor, W: Tensor) -> Tensor:
    """Return g W from (B, ..., p) and (p, d)."""
    W = W.to(g.dtype)
    return torch.bmm(g, W.expand(len(g), *W.shape)) if _positions_last(g) else product(g, W.T)


def product(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x W^T + b from (B, ..., d), (p, d) and (p,), outside of autograd.

    On processors that are not Intel's, oneDNN computes large products: on AMD's it needs up to a quarter less
    time than ``F.linear`` with MKL, on Intel's up to a sixth more. It is not faster for small products, as
    each call takes 20 us.
    """
    if _for_onednn(x, W, b):
        bias = None if b is None else b.contiguous()  # oneDNN ignores the bias's stride
        rows = x.reshape(-1, x.shape[-1])
        output: Tensor = torch.ops.mkldnn._linear_pointwise(_in_few_sizes(rows), W, bias, "none", [], "")
        return output[: len(rows)].view(*x.shape[:-1], len(W))
    return F.linear(x, W, b)


def _in_few_sizes(x: Tensor) -> Tensor:
    """Return x (n, d) padded with zero rows to the next of 16 sizes per power of two.

    oneDNN compiles code for each number of rows, 0.3 to 0.7 MiB, and keeps the code of the last 1,024.
    Poisson batches have a hundred sizes, which took 100 MiB for one layer. So oneDNN gets only a few sizes.
    """
    n = len(x)
    step = 1 << max(n.bit_length() - 5, 0)
    missing = -n % step
    if not missing:
        return x
    padded = x.new_empty(n + missing, x.shape[1])
    padded[:n] = x
    padded[n:] = 0
    return padded


def _for_onednn(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    single = x.dtype == W.dtype == torch.float32 and (b is None or b.dtype == torch.float32)
    large = x.numel() >= ONEDNN_ROWS * x.shape[-1] > 0 and x.numel() * len(W) >= ONEDNN_PRODUCTS
    fits = single and large and x.is_cpu and W.is_cpu
    return fits and not _is_intel() and _has_onednn() and not torch.is_autocast_enabled("cpu")


def _has_onednn() -> bool:
    switched_on: bool = torch._C._get_mkldnn_enabled()
    return switched_on and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _is_intel() -> bool:
    """Return whether the processor is Intel's, where MKL is faster."""
    linux = Path("/proc/cpuinfo")
    return "GenuineIntel" in (linux.read_text() if linux.exists() else platform.processor())


# ``grouped_mm`` for mixtures of experts: rows sorted by expert, each times its expert's matrix.
#
# Letters: n records; S rows per record; E experts; d inputs; p outputs.
#
# G_e = sum_s x_s g_s^T over the rows of expert e, so |G|^2 = sum_{s,u} (x_s . x_u)(g_s . g_u) over pairs of
# rows of the same expert. For products the rows of all records are sorted by expert.


OPERATION: Any = getattr(torch, "_grouped_mm", None)
"""The operation behind ``F.grouped_mm``, or None if this version of torch lacks it."""


@final
class Grouped(Use):
    """Gradients (E, d, p) from x (n, S, d), g (n, S, p) and each row's expert (n, S), where E means none."""

    def __init__(self, x: Tensor, g: Tensor, expert: Tensor, experts: int) -> None:
        self._x, self._g, self._expert, self._experts = x, g, expert, experts

    def squared_norms(self) -> Tensor:
        m = max(1, GRAM_NUMBERS // max(1, self._x.shape[1] ** 2))
        squares, kappa = [], cancellation(torch.float32, max(self._x.shape[2], self._g.shape[2]))
        for start in range(0, len(self._x), m):
            x, g, expert = (t[start : start + m] for t in (self._x, self._g, self._expert))
            x, g = widened(x), widened(g)
            of_x, of_g = _gram(x, x), _gram(g, g)
            S = _spread(of_x, of_g, x, g)
            pairs = of_x.mul_(of_g).mul_(expert[:, :, None] == expert[:, None])
            squares.append(pairs.sum((1, 2)).clamp_(min=0.0).addcmul_(S, S, value=kappa))
        return torch.cat(squares)

    def gradients(self, start: int, stop: int) -> Tensor:
        x, g, expert = (t[start:stop] for t in (self._x, self._g, self._expert))
        one_hot = widened(F.one_hot(expert, self._experts + 1)[:, :, :-1].to(x.dtype))
        return torch.einsum("mse,msd,msp->medp", one_hot, widened(x), widened(g))

    def of(self, records: Tensor) -> Grouped:
        return Grouped(self._x[records], self._g[records], self._expert[records], self._experts)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        order, ends = _by_expert(self._expert, self._experts)
        x, g = widened(self._x), widened(self._g) * factors[:, None, None]
        accumulator.add_(OPERATION(x.flatten(0, 1)[order].T, g.flatten(0, 1)[order].to(x), offs=ends))


def _by_expert(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return an order of all rows by expert, and the end of each expert's rows in it."""
    inorder, order = expert.flatten().sort(stable=True)
    ends = torch.searchsorted(inorder, torch.arange(experts, device=inorder.device), right=True)
    return order, ends.to(torch.int32)


def grouped_mm(recorder: Recorder, x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Return (n, S, p) from x (n, S, d), a private weight (E, d, p), and the ends of experts' rows (n, E)."""
    W, E, S = recorder.plain(weight), len(weight), x.shape[1]
    places = torch.arange(S, dtype=offs.dtype, device=offs.device).expand(len(x), S)
    expert = torch.searchsorted(offs.contiguous(), places.contiguous(), right=True)
    order, ends = _by_expert(expert, E)

    def product(rows: Tensor, matrices: Tensor) -> Tensor:
        output = OPERATION(rows.flatten(0, 1)[order], matrices, offs=ends)
        back = torch.empty_like(output).index_copy_(0, order, output)
        return back.view(*rows.shape[:2], -1).masked_fill_((expert == E)[:, :, None], 0.0)

    def backward(g: Tensor, needed: Sequence[bool], x: Tensor) -> Any:
        g = g.masked_fill((expert == E)[:, :, None], 0.0)
        of_x = product(g, W.transpose(1, 2)) if needed[0] else None
        return (of_x,), [(weight, Grouped(x, g, expert, E))]

    return recorder.function(lambda x: (product(x, W), (x,)), backward, inputs=(x,), sources=(weight,))
