"""``einsum`` and ``matmul`` of rows and a parameter that are linear maps, of one matrix or one for each head.

Letters: B rows; n records; T positions of a record; h matrices (p, d).  In an equation, those of the weight:
H that all three have, K that are summed, P that it has alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example import linear
from tacit.clipping.per_example.recorder import Recorder, Unseen
from tacit.clipping.per_example.use import Use
from tacit.clipping.per_example.vmap_fallback import vmap_fallback

__all__ = ["bilinear", "einsum", "matmul"]

MOST_HEADS = 64
"""Matrices of one weight, each of which has some operations to itself."""


def einsum(recorder: Recorder, equation: Any, *operands: Any) -> Tensor:
    """``torch.einsum("bH...K,HKP->bH...P", x, W)``, in any order of letters but b; others by vmap."""
    tensors = tuple(operands[0]) if len(operands) == 1 and not isinstance(operands[0], Tensor) else operands
    letters = _letters(equation, tensors)
    if letters is not None and recorder.owns(tensors[0]) != recorder.owns(tensors[1]):
        of_left, of_right, out = letters
        (x, of_x), (w, of_w) = sorted(
            zip(tensors, (of_left, of_right), strict=True), key=lambda pair: recorder.owns(pair[0])
        )
        sides = _Sides.of(of_x, of_w, out, x.shape, w.shape)
        if sides is not None:
            return _by_head(recorder, "einsum", x, w, sides)
    return vmap_fallback(recorder, torch.einsum, "einsum", (equation, *operands), {})


def matmul(recorder: Recorder, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """``x @ W`` with a private (d,), (d, p) or, for each head, (h, d, p); or ``W @ x`` with W (p, d)."""
    if not recorder.owns(input) and other.dim() == 1 and input.dim() > 1:
        return linear.linear(recorder, input, recorder.derive(_row, other)).squeeze(-1)
    if not recorder.owns(input) and other.dim() == 2:
        return linear.matmul(recorder, input, other)
    if recorder.owns(input) and input.dim() == 2 and other.dim() > 2:
        return linear.linear(recorder, other.transpose(-1, -2), input).transpose(-1, -2)
    if not recorder.owns(input) and other.dim() == 3 and input.dim() == 4:
        one = input.shape[1] == 1
        x = input.squeeze(1) if one else input
        sides = _Sides.of("btd" if one else "bhtd", "hdp", "bhtp", x.shape, other.shape)
        if sides is not None:
            return _by_head(recorder, "matmul", x, other, sides)
    raise Unseen("operation 'matmul' with a parameter that is neither a vector nor matrices")


def bilinear(
    recorder: Recorder, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``F.bilinear`` of (B, ..., d) and (B, ..., e): a linear map of their products (B, ..., d e)."""
    if not recorder.owns(weight) or recorder.owns(input1) or recorder.owns(input2):
        return vmap_fallback(recorder, F.bilinear, "bilinear", (input1, input2, weight, bias), {})
    products = (input1[..., :, None] * input2[..., None, :]).flatten(-2)
    return linear.linear(recorder, products, recorder.derive(_matrix, weight), bias)


def _row(vector: Tensor) -> Tensor:
    return vector.view(1, -1)


def _matrix(weight: Tensor) -> Tensor:
    return weight.flatten(1)


@final
@dataclass(frozen=True)
class _Sides:
    """An equation of two operands that is linear in each.

    Attributes:
        order: of the weight's dimensions, such that they are (H..., P..., K...).
        sizes: in that order.
        of_x: of the rows' dimensions, such that they are (B, H..., others..., K...).
        of_out: of the dimensions (B, H..., others..., P...), such that they are the result's.
        heads, others, inputs: how many letters H, others and K there are.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    of_x: tuple[int, ...]
    of_out: tuple[int, ...]
    heads: int
    others: int
    inputs: int

    @classmethod
    def of(
        cls, of_x: str, of_w: str, out: str, shape_x: Sequence[int], shape_w: Sequence[int]
    ) -> _Sides | None:
        """None if it is another equation: the rows come first, no letter twice, and some are summed."""
        if len(of_x) != len(shape_x) or len(of_w) != len(shape_w):
            return None
        H = [letter for letter in of_w if letter in of_x and letter in out]
        K = [letter for letter in of_w if letter in of_x and letter not in out]
        P = [letter for letter in of_w if letter not in of_x]
        others = [letter for letter in of_x[1:] if letter not in of_w]
        distinct = all(len(set(letters)) == len(letters) for letters in (of_x, of_w, out))
        by_row = out[:1] == of_x[:1] and of_x[0] not in of_w
        left, found = (of_x[0], *H, *others, *K), (of_x[0], *H, *others, *P)
        fitting = all(shape_w[of_w.index(a)] == shape_x[of_x.index(a)] for a in (*H, *K))  # not one for all
        if not (distinct and by_row and K and fitting and sorted(found) == sorted(out)):
            return None
        order = tuple(of_w.index(letter) for letter in (*H, *P, *K))
        sizes = tuple(shape_w[dim] for dim in order)
        if math.prod(sizes[: len(H)]) > MOST_HEADS:
            return None
        turned, back = (tuple(of_x.index(a) for a in left), tuple(found.index(a) for a in out))
        return cls(order, sizes, turned, back, len(H), len(others), len(K))

    @property
    def matrices(self) -> tuple[int, int, int]:
        """(h, p, d)."""
        split = len(self.sizes) - self.inputs
        parts = self.sizes[: self.heads], self.sizes[self.heads : split], self.sizes[split:]
        h, p, d = map(math.prod, parts)
        return h, p, d


def _by_head(recorder: Recorder, operation: str, x: Tensor, w: Tensor, sides: _Sides) -> Tensor:
    """Return the result for rows x and the private weight w."""
    (h, p, d), recorder = sides.matrices, recorder.of_rows(operation, x, 2)
    x = x.permute(sides.of_x)
    heads, others = x.shape[1 : 1 + sides.heads], x.shape[1 + sides.heads :][: sides.others]
    x = x.reshape(len(x), h, math.prod(others), d) if h > 1 else x.reshape(len(x), *others, d)
    W = recorder.plain(w).permute(sides.order).reshape(h, p, d)

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = x @ W.transpose(1, 2) if h > 1 else linear.product(x, W[0])
        return y, (x.to(y.dtype),)

    def backward(
        g: Tensor, needed: tuple[bool, ...], x: Tensor
    ) -> tuple[list[Tensor | None], Iterator[tuple[Tensor, Use]]]:
        of_x = None
        if needed[0]:
            of_x = g @ W.to(g.dtype) if h > 1 else linear.product(g, W[0].T.to(g.dtype))
        return [of_x], uses(g, x)

    def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
        pairs = zip(g.unbind(1), x.unbind(1), strict=True) if h > 1 else [(g, x)]
        matrices = [linear.use_of(recorder, of_g, of_x) for of_g, of_x in pairs]
        yield w, _Matrices(matrices, sides)

    y = recorder.function(operation, forward, backward, inputs=(x,), sources=(w,))
    outputs = sides.sizes[sides.heads : len(sides.sizes) - sides.inputs]
    return y.reshape(len(y), *heads, *others, *outputs).permute(sides.of_out)


@final
class _Matrices(Use):
    """Gradients of a weight that holds h matrices (p, d), each with a use of its own."""

    def __init__(self, uses: Sequence[Use], sides: _Sides) -> None:
        self._uses, self._sides = uses, sides

    def squared_norms(self) -> Tensor:
        """Return |G_i|^2, (n,)."""
        return torch.stack([use.squared_norms() for use in self._uses]).sum(0)

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return G_i, (m, *shape)."""
        found = torch.stack([use.gradients(start, stop) for use in self._uses], 1)
        order = self._sides.order
        back = [1 + order.index(dim) for dim in range(len(order))]
        return found.view(len(found), *self._sides.sizes).permute(0, *back)

    def of(self, records: Tensor) -> _Matrices:
        """Return the same of those records alone."""
        return _Matrices([use.of(records) for use in self._uses], self._sides)

    @property
    def skips_zeros(self) -> bool:
        """If all do."""
        return all(use.skips_zeros for use in self._uses)

    @property
    def sums_what_it_forms(self) -> bool:
        """If all do."""
        return all(use.sums_what_it_forms for use in self._uses)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of each matrix where it lies, or beside and then there."""
        there = accumulator.permute(self._sides.order)
        in_place = self._sides.order == tuple(range(there.dim())) and accumulator.is_contiguous()
        total = there if in_place else there.new_zeros(there.shape)
        for matrix, use in zip(total.view(self._sides.matrices), self._uses, strict=True):
            use.add_weighted(matrix, factors)
        if not in_place:
            there.add_(total)


def _letters(equation: Any, tensors: tuple[Any, ...]) -> tuple[str, str, str] | None:
    """Return the letters of two operands and of the result; None if the equation has another form."""
    if not isinstance(equation, str) or len(tensors) != 2:
        return None
    operands, arrow, out = equation.replace(" ", "").partition("->")
    parts = operands.split(",")
    if not arrow or len(parts) != 2:
        return None
    dots = {
        tensor.dim() - len(part) + 3 for part, tensor in zip(parts, tensors, strict=True) if "..." in part
    }
    unused = [letter for letter in _ALPHABET if letter not in equation]
    if len(dots) > 1 or not 0 <= max(dots, default=0) <= len(unused):
        return None
    meant = "".join(unused[: max(dots, default=0)])
    left, right, out = (part.replace("...", meant) for part in (*parts, out))
    return None if "." in left + right + out else (left, right, out)


_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
