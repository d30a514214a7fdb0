"""A warning says what makes a step many times as long, and does not depend on the records."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import clipped_sum, cross_entropy, plan, run
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.reasons import warn_of
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import SlowModel
from tacit.training import PrivateSession

RECORDS = 8


class Tripled(torch.autograd.Function):
    """In place, which vmap does not carry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


def perceptron(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 2))


def between(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda m, x, y: F.cross_entropy(m[-1](change(m[0](x))), y, reduction="none")


def node_hook(h: Tensor) -> Tensor:
    if h.grad_fn is not None:
        h.grad_fn.register_prehook(lambda gradients: (3 * gradients[0],))
    return h.sin()


def either(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x if torch.rand(()) < 0.5 else x.sin(), y)


def logged(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = cross_entropy(model, x, y)
    assert found.mean().item() >= 0.0
    return found


def branching(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x.sin() if x.amax() > 50.0 else x, y)


def batch(largest: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 4, generator=generator)
    x[3] *= largest
    return x, torch.arange(RECORDS) % 2


def warnings_of(engine: FastEngine, rows: tuple[Tensor, ...]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            clipped_sum(engine, *rows, C=1.0)
    assert all(warning.category is SlowModel for warning in seen)
    return [str(warning.message) for warning in seen]


SLOW: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "autograd.Function": (lambda h: Tripled.apply(h * 1), "changes its input"),  # type: ignore[no-untyped-call]
    "mask": (lambda h: h.masked_scatter(h > 0, h[h > 0].sin()), "torch.where with three arguments"),
    "NumPy": (lambda h: h * torch.from_numpy(h.detach().numpy()), "RuntimeError"),
    "hook on a node": (node_hook, "Python reads the graph"),
    "printed": (lambda h: h + 0 * len(repr(h.detach())), "Python reads the values of records"),
}


@pytest.mark.parametrize(("change", "said"), SLOW.values(), ids=SLOW)
def test_a_slow_model_is_right_and_named_once(change: Callable[[Tensor], Tensor], said: str) -> None:
    model, loss = perceptron(), between(change)
    engine = FastEngine(model, loss, FlatClipping(1.0))
    (text,) = warnings_of(engine, batch())
    assert said in text
    assert engine.route.startswith("record by record: ")
    assert said in engine.route
    wanted = clipped_sum(ReferenceEngine(model, loss, FlatClipping(1.0)), *batch(), C=1.0)
    torch.testing.assert_close(clipped_sum(engine, *batch(), C=1.0), wanted)


def test_a_fast_model_needs_no_warning() -> None:
    for model, loss in (
        (perceptron(nn.Dropout(0.5)), cross_entropy),
        (perceptron(), logged),
        (perceptron(), either),
    ):
        engine = FastEngine(model, loss, FlatClipping(1.0))
        assert warnings_of(engine, batch()) == []
        assert engine.route == "fast"


def test_the_warning_does_not_depend_on_the_records() -> None:
    """One record enters a branch alone; a log must not reveal that it is in the data."""
    for largest in (1.0, 1e3):
        assert warnings_of(FastEngine(perceptron(), branching, FlatClipping(1.0)), batch(largest)) == []


def test_no_warning_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(None)
    with pytest.warns(SlowModel, match="than it could: reason"):
        warn_of("reason")


def test_a_session_says_its_route() -> None:
    cases: list[tuple[Callable[..., Tensor], dict[str, Any], str]] = [
        (cross_entropy, {}, "fast"),
        (between(node_hook), {}, "record by record: Python reads the graph"),
        (cross_entropy, {"engine": "reference"}, "reference"),
    ]
    for loss, options, route in cases:
        model = perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = PrivateSession(model, optimizer, batch(), plan(RECORDS), loss=loss, **options)
        run(session)
        assert session.route.startswith(route)
