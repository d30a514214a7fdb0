"""A trace is looked at once; what changes from batch to batch without being a record's is no new one.

Letters: n records; C the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from oracles import Loss, clipped_sum, definition
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import Isolation
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

C = 0.3
FIRST, LATER = 12, 1
"""How often a loss may be called in the first step, and is in each that follows."""


class Net(nn.Module):
    """Two layers, a weight that the user sets between steps, and what passes may count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.rate, self.passes = 0.5, 0

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.last(self.first(x).sin()))


def squares(m: nn.Module, x: Tensor) -> Tensor:
    out = m(x)
    return torch.as_tensor(out.square().sum(1) + out.sum(1))


def records(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def engine_of(loss: Loss, make: Callable[[], nn.Module] = Net) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(make(), loss, FlatClipping(C))


def right(engine: GradientEngine, x: Tensor, loss: Loss) -> bool:
    found = clipped_sum(engine, x, C=C)
    off = float((found - definition(engine.model, loss, (x,), C)).norm())
    return off <= (1e-10 if x.dtype == torch.float64 else 2e-5) * C * len(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": Net,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_loss_is_called_a_few_times_in_the_first_step_and_once_in_later_ones(
    make: Callable[[], nn.Module], n: int
) -> None:
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    engine, counts = engine_of(loss, make), []
    for step in range(20):
        calls.clear()
        clipped_sum(engine, records(n, step), C=C)
        counts.append(len(calls))
    assert counts[0] <= FIRST
    assert counts[1:] == [LATER] * 19
    assert engine.route == "fast"


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches from which something was learned."""
    sizes: list[int] = []
    for name in ("judge", "learn"):
        real = getattr(Isolation, name)

        def noted(
            isolation: Isolation, kind: Any, batch: Any, *rest: Any, real: Any = real, **how: Any
        ) -> Any:
            sizes.append(len(batch[0]))
            return real(isolation, kind, batch, *rest, **how)

        monkeypatch.setattr(Isolation, name, noted)
    return sizes


def test_a_known_trace_is_looked_at_no_more(learned: list[int]) -> None:
    """However many records Poisson sampling draws."""
    engine, generator = engine_of(squares), torch.Generator().manual_seed(1)
    for step in range(100):
        n = max(1, int(torch.poisson(torch.tensor(9.0), generator=generator)))
        assert right(engine, records(n, step), squares)
    assert len(learned) == 1
    assert engine.route == "fast"


def test_each_way_of_training_flags_has_its_trace(learned: list[int]) -> None:
    engine = engine_of(squares, MODELS["dropout"])
    for step in range(12):
        engine.model.train(step % 4 < 2)
        clipped_sum(engine, records(9, step), C=C)
    assert len(learned) == 2


def scheduled(m: nn.Module, x: Tensor) -> Tensor:
    """Weighted by a number that the user changes between steps."""
    assert isinstance(m, Net)
    return torch.as_tensor(squares(m, x) * m.rate + m.last.weight.norm() * 0.01 * m.rate)


def test_a_number_of_a_schedule_stays_fast(learned: list[int]) -> None:
    engine = engine_of(scheduled)
    assert isinstance(engine.model, Net)
    for step in range(8):
        engine.model.rate = 0.5 + 0.05 * step
        assert right(engine, records(5 + step, step), scheduled)
    assert len(learned) == 1
    assert engine.route == "fast"


BY_COUNT: dict[str, Loss] = {
    "divided": lambda m, x: squares(m, x) / len(x),
    "a rate": lambda m, x: squares(m, x) * (16.0 / len(x)),
    "a small part": lambda m, x: squares(m, x) + 0.1 / len(x) * x.sum(1),
    "a sum of squares": lambda m, x: squares(m, x) * len(x) ** -0.5,
    "above 16 records": lambda m, x: squares(m, x) * min(1.0, 16.0 / len(x)),
}


@pytest.mark.parametrize("loss", BY_COUNT.values(), ids=BY_COUNT)
def test_a_number_that_depends_on_how_many_records_there_are_is_refused(loss: Loss) -> None:
    engine = engine_of(loss)
    try:
        clipped_sum(engine, records(12), C=C)
    except UnsupportedModel as refusal:
        assert "how many others there are" in str(refusal)  # noqa: PT017
        return
    with pytest.raises(UnsupportedModel, match=r"for 20 records than for|how many others there are"):
        clipped_sum(engine, records(20), C=C)


def counting(m: nn.Module, x: Tensor) -> Tensor:
    """Counts its passes, and warms up by them."""
    assert isinstance(m, Net)
    m.passes += 1
    return squares(m, x) * min(1.0, m.passes / 4)


def counting_alone(m: nn.Module, x: Tensor) -> Tensor:
    """Passes that nothing is computed from."""
    assert isinstance(m, Net)
    m.passes += 1
    return squares(m, x)


def one_by_one(m: nn.Module, x: Tensor) -> Tensor:
    """The same, record by record."""
    return counting(m, x) * (1.0 if x.sum().item() > -1e9 else 2.0)


def states(loss: Loss, sizes: list[int], kind: type[GradientEngine]) -> Iterator[tuple[int, float]]:
    """The passes that the model has counted after each batch, and the length of the sum."""
    torch.manual_seed(0)
    engine = kind(Net(), loss, FlatClipping(1e9))
    assert isinstance(engine.model, Net)
    for n in sizes:
        total = clipped_sum(engine, records(1).expand(n, 4).contiguous(), C=1e9)
        yield engine.model.passes, float(total.norm()) / max(1, n)


@pytest.mark.parametrize("kind", [FastEngine, ReferenceEngine])
@pytest.mark.parametrize("loss", [counting, counting_alone, one_by_one])
def test_what_a_model_becomes_does_not_depend_on_how_many_records_there_are(
    loss: Loss, kind: type[GradientEngine]
) -> None:
    """A step counts as one pass, with any number of records, none among them."""
    many, few, none = ([*states(loss, [8, n, 8, 8], kind)] for n in (9, 1, 0))
    assert [passes for passes, _ in many] == [1, 2, 3, 4]
    assert [passes for passes, _ in few] == [passes for passes, _ in none] == [1, 2, 3, 4]
    for found in (few, none):
        assert [size for _, size in found][2:] == pytest.approx([size for _, size in many][2:], rel=1e-5)


def rounded_to_the_batch(m: nn.Module, x: Tensor) -> Tensor:
    """Plain attributes that a record of a later batch changes."""
    assert isinstance(m, Net)
    if bool((x > 5).any()):
        m.rate = 0.25
    return squares(m, x) * m.rate


def test_an_attribute_that_one_record_changes_is_refused_and_put_back() -> None:
    engine = engine_of(rounded_to_the_batch)
    assert isinstance(engine.model, Net)
    clipped_sum(engine, records(9), C=C)
    x = records(9)
    x[3, 0] = 6.0
    with pytest.raises(UnsupportedModel, match="rate"):
        clipped_sum(engine, x, C=C)
    assert engine.model.rate == 0.5


WIDTHS: dict[str, tuple[Loss, tuple[int, ...]]] = {
    "positions": (lambda m, x: m(x).square().sum((1, 2)) + m(x.mean(1)).sum(1), (5, 4)),
    "first width": (lambda m, x: m.last(m.first(x) @ torch.ones(6, 6).to(x)).square().sum(1), (4,)),
    "positions in the second dimension": (
        lambda m, x: m(x.transpose(0, 1)).transpose(0, 1).square().sum((1, 2)),
        (5, 4),
    ),
    "a table of places": (
        lambda m, x: m.last(m.first(x) + m.first.bias.repeat(1, 5, 1).sin()).square().sum((1, 2)),
        (5, 4),
    ),
    "square records": (lambda m, x: m(x + x.transpose(1, 2)).square().sum((1, 2)), (4, 4)),
}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("first", [1, 3, 4, 5, 6])
@pytest.mark.parametrize(("loss", "shape"), WIDTHS.values(), ids=WIDTHS)
def test_as_many_records_as_some_other_length_are_as_any_other_number(
    loss: Loss, shape: tuple[int, ...], first: int, double: bool
) -> None:
    engine = engine_of(loss)
    engine.model.to(torch.float64 if double else torch.float32)
    for n in (first, *range(1, 13)):
        x = torch.randn(n, *shape, dtype=torch.float64 if double else torch.float32)
        assert right(engine, x, loss), n
    assert engine.route == "fast"
