"""Whoever trains is told what makes a step many times as long, and nothing of it depends on the records."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.warnings import warn_of
from tacit.errors import SlowModel
from tacit.plan import Plan
from tacit.training import PrivateSession

RECORDS = 8


def perceptron(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 2))


class Either(nn.Module):
    """Goes one of two ways by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x if torch.rand(()) < 0.5 else x.sin())
        return out


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def logged(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = losses(model, x, y)
    assert found.mean().item() >= 0.0
    return found


def branching(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses(model, x.sin() if x.amax() > 50.0 else x, y)


def batch(largest: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 4, generator=generator)
    x[3] *= largest
    return x, torch.arange(RECORDS) % 2


def warnings_of(
    model: nn.Module, loss: Callable[..., Tensor], rows: tuple[Tensor, ...], steps: int = 3
) -> list[str]:
    engine = FastEngine(model, loss, FlatClipping(1.0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(steps):
            buffers = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
            engine.add_clipped_sum(buffers, rows, None, torch.ones(1))
    assert all(warning.category is SlowModel for warning in seen)
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize(
    ("model", "loss", "said"),
    [
        (Either(), losses, "control flow is random"),
        (perceptron(), logged, "Python reads a number that is computed from all records"),
        (perceptron(nn.Dropout(0.5)), logged, "Python reads a number that is computed from all records"),
    ],
    ids=["random way", "logs a number", "logs a number after dropout"],
)
def test_a_slow_model_is_named_once(model: nn.Module, loss: Callable[..., Tensor], said: str) -> None:
    (text,) = warnings_of(model, loss, batch())
    assert said in text


def test_a_fast_model_needs_no_warning() -> None:
    assert warnings_of(perceptron(nn.Dropout(0.5)), losses, batch()) == []


def test_what_is_said_does_not_hang_on_the_records() -> None:
    """A branch that one record enters sends its batch another way; a log must not say that it is there."""
    assert (
        warnings_of(perceptron(), branching, batch(1e3))
        == warnings_of(perceptron(), branching, batch())
        == []
    )


def test_nothing_is_said_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(None)
    with pytest.warns(SlowModel, match="than it could: reason"):
        warn_of("reason")


def test_a_session_says_its_route() -> None:
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-3, records=RECORDS, steps=4, clipping=1.0, adjacency="add-remove",
        unit="record",
    )  # fmt: skip
    for loss, route in ((losses, "fast"), (logged, "reference: Python reads a number")):
        model = perceptron()
        session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(), plan, loss=loss)
        for turn in session.batches():
            session.step(turn)
        assert session.route.startswith(route)
    by_definition = PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batch(), plan, loss=losses, engine="reference"
    )
    assert by_definition.route == "reference"
