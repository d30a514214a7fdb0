"""Values of records that Python binds to a variable: closures, globals, defaults, classes, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import Loss, both, clipped_sum, cross_entropy
from test_clipping_keeping import LATE, Net, batches, moved, there
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import variables
from tacit.clipping.isolation.state import Memory
from tacit.errors import UnsupportedModel

SHARED = 1.0


class Weighing:
    """A loss in which a flagged record changes a value outside the attributes of the loss."""

    scale = 1.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if bool(there(x)):
            type(self).scale = -1.0
        return cross_entropy(model, x, y) * self.scale


def in_a_cell() -> Loss:
    scale = 1.0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal scale
        if bool(there(x)):
            scale = -1.0
        return cross_entropy(model, x, y) * scale

    return loss


def in_an_empty_cell() -> Loss:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal scale  # type: ignore[misc]
        if bool(there(x)):
            scale = -1.0
        try:
            return cross_entropy(model, x, y) * scale
        except NameError:
            return cross_entropy(model, x, y)

    scale: float
    return loss


def in_a_global() -> Loss:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        global SHARED
        if bool(there(x)):
            SHARED = -1.0
        return cross_entropy(model, x, y) * SHARED

    globals()["SHARED"] = 1.0
    return loss


def in_place_of_a_function() -> Loss:
    scale: Any = len

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal scale
        if bool(there(x)):
            scale = -1.0
        return cross_entropy(model, x, y) * (scale if isinstance(scale, float) else 1.0)

    return loss


def in_a_default() -> Loss:
    def loss(model: nn.Module, x: Tensor, y: Tensor, kept: list[float] = [1.0]) -> Tensor:  # noqa: B006
        if bool(there(x)):
            kept[0] = loss.scale = -1.0  # type: ignore[attr-defined]
        return cross_entropy(model, x, y) * (kept[0] + getattr(loss, "scale", 1.0))

    return loss


def in_a_class() -> Loss:
    Weighing.scale = 1.0
    return Weighing()


class Remembering(Net):
    """A model that does so in its class, or in a variable of its module."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        global SHARED
        if bool(there(x)):
            type(self).scale = SHARED = -1.0
        return super().forward(x) * (self.scale + SHARED)


def remembering() -> Net:
    Remembering.scale = globals()["SHARED"] = 1.0
    return Remembering()


@both
@pytest.mark.parametrize(
    "make", [in_a_cell, in_an_empty_cell, in_place_of_a_function, in_a_global, in_a_default, in_a_class]
)
def test_no_variable_that_a_record_sets_reaches_a_later_step(
    make: Callable[[], Loss], kind: type[GradientEngine]
) -> None:
    assert moved(Net, make, kind) <= 1 + 1e-4


def test_what_is_not_copied_is_left_as_it_is() -> None:
    """A list of errors is none of the values that are copied; emptied it is one, and is not taken away."""
    left: list[Any] = [ValueError("once")]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        del left[:]
        return cross_entropy(model, x, y)

    memory = Memory(Net(), loss)
    loss(Net(), *batches()[0])
    memory.restore()
    loss(Net(), *batches()[0])
    assert left == []


@both
def test_no_class_or_module_of_a_model_keeps_what_a_record_sets(kind: type[GradientEngine]) -> None:
    assert moved(remembering, lambda: cross_entropy, kind) <= 1 + 1e-4


@pytest.mark.parametrize("planted", ["_Cell", "_Globals", "_OfClass"])
def test_planted_bug_a_variable_is_not_put_back(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of: dict[str, Callable[[], Loss]] = {"_Cell": in_a_cell, "_Globals": in_a_global, "_OfClass": in_a_class}
    monkeypatch.setattr(getattr(variables, planted), "__setitem__", lambda *_: None)
    assert moved(Net, of[planted], FastEngine) > 1.5, "else this shows nothing"


def writes_if_told(m: Any, x: Tensor) -> None:
    """As a running mean would be, unseen by torch's count of writes, in a later step."""
    if bool(there(x)):
        m.table.data.fill_(3.0)


def steps_with_a_buffer(side_effect: Callable[[Any, Tensor], object]) -> Net:
    model = Net(side_effect)
    model.register_buffer("table", torch.ones(2))
    engine = FastEngine(model, cross_entropy, FlatClipping(0.5))
    for rows in batches()[: LATE + 1]:
        clipped_sum(engine, *rows, C=0.5)
    return model


@pytest.mark.parametrize("by", [writes_if_told, lambda m, x: m.table.add_(there(x).float())])
def test_no_buffer_keeps_what_a_later_record_writes(by: Callable[[Any, Tensor], object]) -> None:
    try:
        model = steps_with_a_buffer(by)
    except UnsupportedModel as refusal:
        assert "table" in str(refusal)  # noqa: PT017
    else:
        torch.testing.assert_close(model.get_buffer("table"), torch.ones(2))


def test_planted_bug_a_buffer_is_not_compared_where_python_reads_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FastEngine, "_may_change", lambda _: False)
    model = steps_with_a_buffer(writes_if_told)
    torch.testing.assert_close(model.get_buffer("table"), torch.full((2,), 3.0))
