"""``torch.einsum`` of rows and a parameter: a linear map, its dimensions put into order.

Letters: B rows; in an equation, K the letters of the weight that are summed, P those that it has alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tacit.clipping.layers.island import island
from tacit.clipping.layers.linear import linear
from tacit.clipping.layers.tape import Tape

__all__ = ["einsum"]


def einsum(tape: Tape, equation: Any, *operands: Any) -> Tensor:
    """``torch.einsum("b...K,KP->b...P", x, W)``, in any order of letters but for b; others as an island."""
    tensors = tuple(operands[0]) if len(operands) == 1 and not isinstance(operands[0], Tensor) else operands
    letters = _letters(equation, tensors)
    if letters is None or tape.owns(tensors[0]) == tape.owns(tensors[1]):
        return island(tape, torch.einsum, "einsum", (equation, *operands), {})
    left, right, out = letters
    (x, of_x), (w, of_w) = sorted(
        zip(tensors, (left, right), strict=True), key=lambda pair: tape.owns(pair[0])
    )
    K = [letter for letter in of_w if letter in of_x]
    P = [letter for letter in of_w if letter not in of_x]
    if not _is_linear(of_x, of_w, out):
        return island(tape, torch.einsum, "einsum", (equation, *operands), {})
    rows, rest = of_x[0], [letter for letter in of_x[1:] if letter not in of_w]
    sizes = dict(zip(of_w, w.shape, strict=True)) | dict(zip(of_x, x.shape, strict=True))

    def matrix(w: Tensor) -> Tensor:
        ordered = w.permute([of_w.index(letter) for letter in (*P, *K)])
        return ordered.reshape(math.prod(sizes[letter] for letter in P), -1)

    flat = x.permute([of_x.index(letter) for letter in (rows, *rest, *K)]).flatten(1 + len(rest))
    y = linear(tape, flat, tape.derive(matrix, w))
    y = y.reshape(*y.shape[:-1], *(sizes[letter] for letter in P))
    return y.permute([(rows, *rest, *P).index(letter) for letter in out])


def _letters(equation: Any, tensors: tuple[Any, ...]) -> tuple[str, str, str] | None:
    """Return the letters of two operands and of the result; None if the equation has another form."""
    if not isinstance(equation, str) or len(tensors) != 2:
        return None
    spaceless = equation.replace(" ", "")
    operands, arrow, out = spaceless.partition("->")
    parts = operands.split(",")
    if not arrow or len(parts) != 2 or "." in spaceless:
        return None
    return parts[0], parts[1], out


def _is_linear(of_x: str, of_w: str, out: str) -> bool:
    """Whether the rows come first, no letter twice, and what both operands have is summed, and that alone."""
    distinct = all(len(set(letters)) == len(letters) for letters in (of_x, of_w, out))
    by_row = out[:1] == of_x[:1] and of_x[0] not in of_w
    return distinct and by_row and bool(set(of_x) & set(of_w)) and set(out) == set(of_x) ^ set(of_w)
