"""Gradients of weights that are made of a parameter row by row. Long: one form for each way to make one.

What pulls a gradient G of such a weight (O, N) back to the parameter is linear, and for each row o mostly::

    h_o = alpha_o G_o + B_o S_o B_o^T G_o

with an orthonormal basis B_o of a few known directions; for (p_o - mean) / std these are (1, ..., 1) and p_o.
With d_o = B_o^T G_o and the rest R_o = G_o - B_o d_o::

    |h_o|^2 = |alpha_o R_o|^2 + |(alpha_o + S_o) d_o|^2

That takes the place of all operations of autograd on the gradients of all records; and as h is linear in G,
the weighted sum is the h of one G.  A parameter of one number for each row, such as the scale of weight norm,
has h_o = gamma_o . d_o.

alpha, S and gamma are found, and the form is tried, by pulling back a few vectors that are always the same.
So is another one, of weights times a constant (a mask, a scale), h = c G element by element.  And one more,
of weights w that are the parameter divided by a number that is computed from it, as by spectral norm::

    h = alpha G + P <w, G>

Where these do not give what any form says, the gradients of all records are pulled back.

Letters: n records; m of a chunk; O rows of N numbers; k directions; v vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias, final

import torch
from torch import Tensor

from tacit.clipping.per_example.linear import Pair, product
from tacit.clipping.per_example.use import Kept, Use, chunks, row_squares

__all__ = [
    "CANCELLED",
    "LEAST",
    "MOST",
    "Divided",
    "Elementwise",
    "Form",
    "Pull",
    "RowByRow",
    "form_of",
    "in_order",
    "weighted_sum",
]

Pull: TypeAlias = Callable[[Tensor], Tensor]
"""Gradients (v, *shape) of a weight to those of the parameter, (v, *shape)."""
TRIED = 2
"""Random vectors on which a form must hold, beside those that it is found by."""
TOLERANCE = 8
"""Units of rounding, of what a row of a vector has, up to which it holds."""
ORTHOGONAL = 16
"""Units of rounding, of the square of a row, that are lost as B is not quite orthonormal."""
PRODUCTS = 512
"""Products that one number of a sum of squares adds up at once."""
CANCELLED = 0.1
"""What part of the squared norms of the terms of h is left in |h|^2, below which double precision is used."""
ROUNDED = 64
"""Units of rounding that sums may be off by beside one for each number in a row and for each row."""
LEAST = 2.0**10
"""Units of rounding, of what h may be at most, that are added to |h|."""
MOST = 4 * 2**20
"""Bytes of gradients that are formed at once: what stays in the cache from one operation to the next."""


@final
@dataclass(frozen=True)
class Form:
    """h_o = alpha_o G_o + B_o S_o B_o^T G_o; or, for one number a row, h_o = gamma_o . B_o^T G_o.

    Attributes:
        basis: (O, N, k), B.
        alpha: (O,), or None for one number a row.
        mix: (O, k, k), alpha + S; or (O, 1, k), gamma.
        scale: (O,), no less than |h_o| / |G_o|.
        rounding: by what part of scale_o |G_o| the form may be off.
    """

    basis: Tensor
    alpha: Tensor | None
    mix: Tensor
    scale: Tensor
    rounding: float

    def pulled(self, vectors: Tensor) -> Tensor:
        """h (O, v, N) or (O, v, 1) of vectors (O, v, N)."""
        along = vectors @ self.basis
        mixed = along @ self.mix.transpose(1, 2)  # (O, v, k) or (O, v, 1)
        if self.alpha is None:
            return mixed
        rest = torch.baddbmm(vectors, along, self.basis.transpose(1, 2), alpha=-1)
        return torch.baddbmm(self.alpha[:, None, None] * rest, mixed, self.basis.transpose(1, 2))

    def ordered(self, shape: torch.Size, order: list[int]) -> Form:
        """The same for gradients of a weight of this shape, whose dimensions lie in another order."""
        basis = self.basis.view(*shape, -1).permute(*order, -1).reshape(self.basis.shape)
        return replace(self, basis=basis)

    def bytes_of_products(self) -> int:
        """What :meth:`squared_norms_of_products` takes for a record."""
        return 4 * 8 * self.basis.shape[0] * self.basis.shape[2]

    def squared_norms(self, gradients: Tensor) -> Tensor:
        """|h|^2, (m,), from gradients (m, O, N), rounded up.

        Most of G may be taken out in h.  So R is formed: its norm is off by a part of |G|, which is allowed
        for, and not its square by a part of |G|^2, which is much more.
        """
        rows, basis = gradients.transpose(0, 1), self.basis.to(gradients.dtype)
        along = torch.bmm(rows, basis)  # (O, m, k)
        found = (along.double() @ self.mix.double().transpose(1, 2)).square().sum(2)
        if self.alpha is None:
            squares = row_squares(gradients).T.double()
        else:
            rest = row_squares(torch.baddbmm(rows, along, basis.transpose(1, 2), alpha=-1)).double()
            found += self.alpha.double()[:, None] ** 2 * rest
            squares = rest + along.double().square().sum(2)
        unsure = self.rounding * self.scale.double()[:, None] * squares.sqrt()
        return (found.sqrt() + unsure).square().sum(0)

    def squared_norms_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """|h|^2, (m,), rounded up, where G_o = left_o right^T, of left (m, O) and right (m, N).

        The products with B are the same for all o.  They are taken in double precision: what is left of the
        square of a row by which most is taken out must not depend on how many rows the product has.
        """
        left, right = left.double(), right.double()
        squares = right.square().sum(1)
        directions = self.basis.double().permute(1, 0, 2).flatten(1)  # (N, O k)
        along = (right @ directions).view(len(right), len(self.basis), -1).transpose(0, 1)  # (O, m, k)
        found = (along @ self.mix.double().transpose(1, 2)).square().sum(2)
        if self.alpha is not None:
            rest = (squares - along.square().sum(2)).clamp_(min=0.0)
            found += self.alpha.double()[:, None] ** 2 * rest
        bound = self.scale.double()[:, None] * squares.sqrt()
        lost = ORTHOGONAL * float(torch.finfo(self.basis.dtype).eps) * bound.square()
        return (((found.sqrt() + self.rounding * bound).square() + lost) * left.T.square()).sum(0)


@final
@dataclass(frozen=True)
class Elementwise:
    """h = c G, c (O, N)."""

    factors: Tensor

    @property
    def scale(self) -> Tensor:
        """(O,), no less than |h_o| / |G_o|."""
        return self.factors.abs().amax(1)

    def pulled(self, vectors: Tensor) -> Tensor:
        """h (O, v, N) of vectors (O, v, N)."""
        return vectors * self.factors[:, None]

    def ordered(self, shape: torch.Size, order: list[int]) -> Elementwise:
        """The same for gradients of a weight of this shape, whose dimensions lie in another order."""
        return Elementwise(self.factors.view(shape).permute(order).reshape(self.factors.shape))

    def bytes_of_products(self) -> int:
        """What :meth:`squared_norms_of_products` takes for a record."""
        return 3 * 8 * sum(self.factors.shape)

    def squared_norms(self, gradients: Tensor) -> Tensor:
        """|h|^2, (m,), from gradients (m, O, N)."""
        return row_squares((gradients * self.factors.to(gradients.dtype)).flatten(1))

    def squared_norms_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """|h|^2, (m,), where G_o = left_o right^T: sum_oj (left_o c_oj right_j)^2, all of it positive.

        Of numbers divided by the largest: a product of a small square and a large one may be anything.
        """
        squares, sizes = [], []
        for rows in (left, right, self.factors.flatten()[None]):
            size = rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
            squares.append((rows / size).square_())
            sizes.append(size.double().squeeze(1))
        of_left, of_right, of_factors = squares
        of_factors = of_factors.view(self.factors.shape)
        found = right.new_zeros(len(right), dtype=torch.float64)
        for start in range(0, len(of_factors), PRODUCTS):  # a product of many adds up in a few lanes
            block = slice(start, start + PRODUCTS)
            found += ((of_left[:, block] @ of_factors[block]) * of_right).sum(1, dtype=torch.float64)
        lost = self.factors.numel() * torch.finfo(left.dtype).tiny
        return (found + lost) * (sizes[0] * sizes[1] * sizes[2]).square()


@final
@dataclass(frozen=True)
class Divided:
    """h = alpha G + P <w, G>, of a weight w = p / s(p).

    Dot products are off by some units of rounding of what goes into them, by which squared norms are larger.
    Where much cancels, they are taken in double precision: products in single precision are rounded in
    another way in a batch of another size, and one record must not change what the others are clipped to.

    Attributes:
        alpha: a number.
        along: P (O, N).
        weight: w (O, N).
    """

    alpha: float
    along: Tensor
    weight: Tensor

    @cached_property
    def _sizes(self) -> tuple[float, float]:
        """|P| and |w|."""
        return _size(self.along), _size(self.weight)

    @property
    def row_share(self) -> Tensor:
        """(O, 1): what part of |P| is in each row."""
        rows: Tensor = torch.linalg.vector_norm(self.along, dim=1, keepdim=True)
        return rows / max(self._sizes[0], float(torch.finfo(rows.dtype).tiny))

    @property
    def scale(self) -> Tensor:
        """(O,), no less than |h| / |G|."""
        of_along, of_weight = self._sizes
        return torch.full(
            (len(self.weight),), abs(self.alpha) + of_along * of_weight, dtype=self.weight.dtype
        )

    def pulled(self, vectors: Tensor) -> Tensor:
        """h (O, v, N) of vectors (O, v, N)."""
        along = (vectors * self.weight[:, None]).sum(2).sum(0)[:, None]  # (v, 1)
        return torch.addcmul(self.alpha * vectors, along, self.along[:, None])

    def ordered(self, shape: torch.Size, order: list[int]) -> Divided:
        """The same for gradients of a weight of this shape, whose dimensions lie in another order."""
        along, weight = (t.view(shape).permute(order).reshape(t.shape) for t in (self.along, self.weight))
        return Divided(self.alpha, along, weight)

    def bytes_of_products(self) -> int:
        """What :meth:`squared_norms_of_products` takes for a record."""
        return 4 * 8 * sum(self.weight.shape)

    def squared_norms(self, gradients: Tensor) -> Tensor:
        """|h|^2, (m,), from gradients (m, O, N)."""

        def dots(records: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            rows = gradients[records].to(dtype)
            along, weight = self.along.to(dtype), self.weight.to(dtype)
            return (rows * along).sum(2).sum(1), (rows * weight).sum(2).sum(1)

        return self._squares(row_squares(gradients.flatten(1)), dots)

    def squared_norms_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """|h|^2, (m,), where G_o = left_o right^T, of left (m, O) and right (m, N)."""

        def dots(records: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            rows, columns = left[records].to(dtype), right[records].to(dtype)
            along, weight = self.along.to(dtype), self.weight.to(dtype)
            return (rows * product(columns, along)).sum(1), (rows * product(columns, weight)).sum(1)

        return self._squares(row_squares(left).double() * row_squares(right).double(), dots)

    def _squares(
        self, squares: Tensor, dots: Callable[[Tensor | slice, torch.dtype], tuple[Tensor, Tensor]]
    ) -> Tensor:
        """|h|^2, (m,), from |G|^2 and from what gives <P, G> and <w, G> of some records."""
        of_along, of_weight = self._sizes
        alpha, dtype = abs(self.alpha), self.weight.dtype

        def found(squares: Tensor, p: Tensor, q: Tensor) -> Tensor:
            return self.alpha * (self.alpha * squares + 2 * p * q) + (of_along * q).square()

        squares = squares.double()
        sizes = squares.sqrt()
        p, q = (one.double() for one in dots(slice(None), dtype))
        rest = found(squares, p, q)
        whole = (alpha * sizes + of_along * q.abs()).square()
        if len(low := (rest < CANCELLED * whole).nonzero().flatten()):
            rest[low] = found(squares[low], *dots(low, torch.float64)).clamp_(min=0.0)
        eps = float(torch.finfo(dtype).eps)
        unsure = (sum(self.weight.shape) + ROUNDED) * eps * sizes  # p by |P| times that, q by |w| times that
        first = 2 * alpha * (of_along * q.abs() + of_weight * p.abs()) + 2 * of_along**2 * of_weight * q.abs()
        second = of_along * of_weight * (2 * alpha + of_along * of_weight)
        least = (LEAST * eps * (alpha + of_along * of_weight)) ** 2
        return rest + unsure * first + unsure.square() * second + least * squares + ROUNDED * eps * whole


def form_of(weight: Tensor, parameter: Tensor, pull: Pull) -> Form | Elementwise | Divided | None:
    """The form of what pulls gradients of the weight back to the parameter, if it has one."""
    rows, numbers = (len(weight), weight[0].numel()) if weight.dim() > 1 else (0, 0)
    whole, of_rows = parameter.shape == weight.shape, parameter.numel() == rows
    if numbers < 2 or not (whole or of_rows) or weight.dtype != parameter.dtype or not weight.is_cpu:
        return None
    random = _random(rows, numbers, weight.dtype)
    tried, first = _pulled_rows(pull, random[:, :TRIED], weight), random[:, TRIED:]
    if (by_element := _elementwise(random[:, :TRIED], tried)) is not None:
        return by_element
    if whole and (divided := _divided(pull, weight, first, random[:, :TRIED], tried)) is not None:
        return divided
    known = (parameter if whole else weight).detach().reshape(rows, numbers).double()
    basis = torch.linalg.qr(torch.stack([torch.ones_like(known), known], 2))[0].to(weight.dtype)
    if basis.shape[2] >= numbers or not math.isfinite(float(basis.sum())):
        return None
    across = first - first @ basis @ basis.transpose(1, 2)
    vectors = torch.cat([basis.transpose(1, 2), across], 1)
    found = _pulled_rows(pull, vectors, weight)
    unit = TOLERANCE * float(torch.finfo(weight.dtype).eps + 8 * torch.finfo(torch.float64).eps)
    form = _fitted(basis, across, found, unit * numbers**0.5)
    vectors, found = torch.cat([vectors, random[:, :TRIED]], 1), torch.cat([found, tried], 1)
    off = (found - form.pulled(vectors)).norm(dim=2)  # (O, v)
    return form if bool((off <= unit * form.scale[:, None] * vectors.norm(dim=2)).all()) else None


def _pulled_rows(pull: Pull, vectors: Tensor, weight: Tensor) -> Tensor:
    """Return (O, v, N) or (O, v, 1) of vectors (O, v, N)."""
    pulled = pull(vectors.transpose(0, 1).reshape(-1, *weight.shape))
    return pulled.view(len(pulled), len(weight), -1).transpose(0, 1)


def _elementwise(vectors: Tensor, found: Tensor) -> Elementwise | None:
    """What multiplies each number of two ``vectors`` (O, 2, N), if it is the same for both."""
    if vectors.shape != found.shape:
        return None
    factors = found[:, 0] / vectors[:, 0]
    unit = TOLERANCE * float(torch.finfo(vectors.dtype).eps)
    expected = factors * vectors[:, 1]
    same = ((found[:, 1] - expected).abs() <= unit * expected.abs()).all()
    return Elementwise(factors) if bool(same) and math.isfinite(float(factors.sum())) else None


def _divided(pull: Pull, weight: Tensor, first: Tensor, vectors: Tensor, found: Tensor) -> Divided | None:
    """That form, if ``vectors`` (O, v, N) are so ``found``: alpha by a vector across w, P by w itself."""
    w = weight.detach().flatten(1)
    size = _size(w)
    if not 0 < size < math.inf:
        return None
    unit = (w.double() / size)[:, None]
    across = first.double() - (first.double() * unit).sum() * unit
    both = _pulled_rows(pull, torch.cat([across, unit], 1).to(w.dtype), weight)
    of_across, of_unit = both.double().chunk(2, 1)
    alpha = float((across * of_across).sum() / across.square().sum())
    form = Divided(alpha, ((of_unit - alpha * unit) / size).squeeze(1).to(w.dtype), w)
    limit = TOLERANCE * float(torch.finfo(w.dtype).eps) * float(form.scale[0])
    share = w.norm(dim=1, keepdim=True) / size + form.row_share
    for given, pulled in ((vectors, found), (across.to(w.dtype), of_across)):
        off = (pulled - form.pulled(given)).norm(dim=2)  # by row, so that one that differs is seen
        if not bool((off <= limit * (given.norm(dim=2) + share * given.norm(dim=(0, 2)))).all()):
            return None
    return form


def _size(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


@lru_cache(maxsize=64)
def _random(rows: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """(O, TRIED + 1, N) random numbers, the same in each step, and not those of weights by a likely seed."""
    generator = torch.Generator().manual_seed(0x7AC17_F0213)
    return torch.randn(rows, TRIED + 1, numbers, dtype=dtype, generator=generator)


def _fitted(basis: Tensor, across: Tensor, found: Tensor, rounding: float) -> Form:
    """The form that has ``found`` (O, v, N) or (O, v, 1), of the basis first, then of what is across it."""
    k = basis.shape[2]
    of_basis = found[:, :k].transpose(1, 2)  # (O, N, k) or (O, 1, k)
    if found.shape[2] == 1:
        return Form(basis, None, of_basis, of_basis.norm(dim=(1, 2)), rounding)
    alpha = (across * found[:, k : k + 1]).sum((1, 2)) / across.square().sum((1, 2))
    mix = basis.transpose(1, 2) @ of_basis
    return Form(basis, alpha, mix, torch.maximum(alpha.abs(), mix.norm(dim=(1, 2))), rounding)


@final
class RowByRow(Use):
    """Gradients of a parameter of ``shape`` from those of a weight, whose use is ``use``, by a :class:`Form`.

    By it both norms and sums, whatever autograd would say: a backward pass that is not linear, by a hook
    say, and was so on the vectors that were tried, makes a sum another one and never a larger one.
    """

    def __init__(
        self,
        use: Use,
        weight: Tensor,
        shape: tuple[int, ...],
        form: Form | Elementwise | Divided,
        n: int,
        most: int,
    ) -> None:
        self._use, self._weight, self._shape = use, weight, shape
        self._form, self._n, self._most = form, n, most

    def squared_norms(self) -> Tensor:
        """Return |g_i|^2, (n,)."""
        found = []
        if isinstance(self._use, Pair):
            left, right = self._use.left.rows, self._use.right.rows
            for start, stop in chunks(self._n, self._form.bytes_of_products(), self._most):
                squares = self._form.squared_norms_of_products(left[start:stop], right[start:stop])
                found.append(squares.to(left.dtype))
            return torch.cat(found)
        for start, stop in self._chunks():
            formed, order = in_order(self._use.gradients(start, stop))
            form = self._form.ordered(self._weight.shape, order)
            found.append(form.squared_norms(formed.flatten(2)).to(formed.dtype))
        return torch.cat(found)

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return g_i, (m, *shape)."""
        formed = self._use.gradients(start, stop).flatten(2)  # (m, O, N)
        return self._form.pulled(formed.transpose(0, 1)).transpose(0, 1).reshape(-1, *self._shape)

    def of(self, records: Tensor) -> RowByRow:
        """Return those of some records."""
        n = int(records.sum())
        return RowByRow(self._use.of(records), self._weight, self._shape, self._form, n, self._most)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add the weighted sum over records: the form is linear, and is taken of the weight's sum."""
        if self._use.sums_what_it_forms:
            total = torch.zeros_like(self._weight, dtype=factors.dtype)
            self._use.add_weighted(total, factors)
        else:
            total = weighted_sum(self._use, self._weight.shape, self._chunks(), factors)
        rows = total.to(self._weight.dtype).flatten(1)[:, None]  # (O, 1, N)
        accumulator.add_(self._form.pulled(rows).view(accumulator.shape))

    def _chunks(self) -> list[tuple[int, int]]:
        size = self._weight.numel() * self._weight.element_size()
        return chunks(self._n, size, min(MOST, self._most))


def weighted_sum(use: Use, shape: torch.Size, parts: list[tuple[int, int]], factors: Tensor) -> Tensor:
    """Return sum_i factors_i G_i, of ``shape``, from gradients that are formed again part by part."""
    total = factors.new_zeros(shape)
    for start, stop in parts:
        formed, order = in_order(use.gradients(start, stop))
        part = formed.new_zeros(formed.shape[1:], dtype=factors.dtype)
        Kept(formed).add_weighted(part, factors[start:stop])
        total.permute(order).add_(part)
    return total


def in_order(formed: Tensor) -> tuple[Tensor, list[int]]:
    """Gradients (m, O, ...) with a row's dimensions as they lie in memory, and that order of a weight's."""
    order = sorted(range(2, formed.dim()), key=formed.stride, reverse=True)
    return formed.permute(0, 1, *order), [0, *(dim - 1 for dim in order)]
