"""Operations that few models use: the clipped sum is that of one backward pass for each record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import clipped_sum, definition
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.errors import SlowModel

C = 0.3


class Wrapped(nn.Module):
    """A function of the parameters ``w`` (and others) of the given shapes and the record."""

    def __init__(self, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.ParameterList(torch.randn(shape) / 3 for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.function(x, *self.w)
        return made


class Attention(nn.Module):
    """Attention with the given options, along time."""

    def __init__(self, call: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.layer, self.call = nn.MultiheadAttention(4, 2, batch_first=True, **options), call

    def forward(self, x: Tensor) -> Tensor:
        mixed, weights = self.layer(x, x, x, **self.call)
        result: Tensor = mixed if weights is None else mixed + weights.flatten(1).sum(1)[:, None, None]
        return result


def squares(model: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = model(x).square().flatten(1).mean(1)
    return result


def connectionist(model: nn.Module, x: Tensor) -> Tensor:
    scores = model(x).log_softmax(2).transpose(0, 1)
    words = x.new_tensor([[1, 2]]).long().expand(len(x), 2)
    lengths = x[:, 0, 0].mul(0).long() + x.shape[1]
    return F.ctc_loss(scores, words, lengths, lengths.mul(0) + 2, reduction="none")


CAUSAL = torch.ones(5, 5).triu(1).bool()
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], tuple[int, ...]]] = {
    "connectionist temporal": (lambda: nn.Linear(4, 3), connectionist, (5, 4)),
    "windows": (lambda: Wrapped(lambda x, w: (x @ w).unfold(1, 3, 1), (4, 3)), squares, (5, 4)),
    "more inputs than a product adds": (lambda: nn.Linear(3000, 16), squares, (2, 3000)),
    "a parameter on the left": (lambda: Wrapped(lambda x, w: w @ x, (3, 5)), squares, (5, 4)),
    "addmm of a part": (
        lambda: Wrapped(lambda x, b, w: torch.addmm(b, x, w, beta=0.5), (3,), (4, 3)), squares, (4,),
    ),
    "baddbmm": (
        lambda: Wrapped(lambda x, b, w: torch.baddbmm(b, x, w.expand(len(x), 4, 3)), (3,), (4, 3)),
        squares, (5, 4),
    ),
    "attention, zeros added": (lambda: Attention({}, add_zero_attn=True), squares, (5, 4)),
    "attention, keys added": (lambda: Attention({}, add_bias_kv=True), squares, (5, 4)),
    "attention, causal": (
        lambda: Attention({"need_weights": False, "is_causal": True, "attn_mask": CAUSAL}), squares, (5, 4),
    ),
    "attention, weights of each head": (
        lambda: Attention({"average_attn_weights": False}), squares, (5, 4)),
    "a hook on what is computed from a parameter": (
        lambda: Wrapped(lambda x, w: F.linear(x, hooked(w * 2)), (3, 4)), squares, (4,),
    ),
}  # fmt: skip


def hooked(weight: Tensor) -> Tensor:
    if weight.requires_grad:
        weight.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]
    return weight


@pytest.mark.filterwarnings("ignore::tacit.errors.SlowModel")
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_a_loop_over_records(name: str) -> None:
    make, loss, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    x = torch.randn(6, *shape, dtype=torch.float64)
    expected = definition(model, loss, (x,), C)
    found = clipped_sum(FastEngine(model, loss, FlatClipping(C)), x, C=C)
    assert float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())


class Counting(nn.Module):
    """It notes each call in an attribute, in place; no record is in it."""

    def __init__(self, notes: Any, note: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.notes, self.note = nn.Linear(4, 3), notes, note

    def forward(self, x: Tensor) -> Tensor:
        self.note(self.notes)
        result: Tensor = self.layer(x)
        return result


NOTES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], int]]] = {
    "list": (list, lambda a: a.append(1), len),
    "deque": (deque, lambda a: a.append(1), len),
    "dictionary": (dict, lambda a: a.update({len(a): 1}), len),
    "set": (set, lambda a: a.add(len(a)), len),
    "array": (lambda: np.zeros(2), lambda a: a.__iadd__(1), lambda a: int(a[1])),
    "list in a tuple": (lambda: ([], 1), lambda a: a[0].append(1), lambda a: len(a[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_a_model_notes_in_place_counts_steps(name: str) -> None:
    make, note, count = NOTES[name]
    model = Counting(make(), note)
    engine = FastEngine(model, squares, FlatClipping(C))
    for step in range(1, 4):
        clipped_sum(engine, torch.randn(6, 4), C=C)
        assert count(model.notes) == step


def test_models_that_are_slow_say_so() -> None:
    model = Wrapped(lambda x, w: torch.func.vmap(lambda row: F.linear(row, w))(x), (3, 4))
    with pytest.warns(SlowModel):
        clipped_sum(FastEngine(model, squares, FlatClipping(C)), torch.randn(6, 4), C=C)
