"""From step to step: how often a loss is called, what the user may change, and what passes leave behind.

Letters: n records; C the threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracles import Loss, Maker, Watched, clipped_sum, each, equals_a_loop, squares, step
from torch import Tensor, nn

from tacit.clipping import FlatClipping, MemoryBudget
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.under_vmap import Pass

C = 0.3
FIRST, LATER = 6, 1
"""How often a loss may be called in the first step, and is in each that follows."""


class Net(nn.Module):
    """Two layers, and a weight that the user sets between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.rate = 0.5

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x).sin())


def records(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def engine_of(loss: Loss, make: Maker = Net) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(make(), loss, FlatClipping(C))


MODELS: dict[str, Maker] = {
    "perceptron": Net,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)),
}


@each("make", MODELS)
@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_loss_is_called_once_in_later_steps_and_a_few_times_where_flags_are_new(
    make: Maker, n: int
) -> None:
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    engine, counts = engine_of(loss, make), []
    for number in range(12):
        engine.model.train(number not in (5, 6))
        calls.clear()
        clipped_sum(engine, records(n + number % 3, number))
        counts.append(len(calls))
    assert counts.pop(5) <= FIRST
    assert counts.pop(0) <= FIRST
    assert counts == [LATER] * 10
    assert engine.route == "fast"


def costs_of(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count calls of the loss, backward passes, copies and comparisons of a parameter, and waits in steps."""
    run = Pass._run_backward

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        seen["forward"] += 1
        return squares(m, x) + m.get_buffer("table").sum()

    def backward(*args: Any) -> None:
        seen["backward"] += 1
        run(*args)

    def note(func: Any, args: Any, found: Any) -> None:
        name, given = func._overloadpacket.__name__, [t for t in args if isinstance(t, Tensor)]
        of_parameter = any(t.untyped_storage()._cdata in parameters for t in given)
        of_generator = given and given[0].dtype == torch.uint8  # its state, which lies with the processor
        seen["copied"] += name == "clone" and of_parameter
        seen["compared"] += name in ("equal", "eq", "ne") and of_parameter
        waits = name in ("equal", "nonzero", "is_nonzero") and not of_parameter and not of_generator
        seen["waits"] += bool(waits)

    monkeypatch.setattr(Pass, "_run_backward", backward)
    monkeypatch.setattr("tacit.clipping.engine.refuse_modes", lambda: None)  # the records are synthetic
    engine = engine_of(loss)
    engine.model.register_buffer("table", torch.ones(3))
    parameters = {p.untyped_storage()._cdata for p in engine.parameters.values()}
    for number in range(steps):
        seen = Counter[str]()
        with Watched(note):
            step(engine, records(9, number))
        yield +seen
    assert engine.route == "fast"


def test_a_first_step_takes_three_passes_more_and_copies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passes are of zeros, and of made-up records together and alone; later steps compare nothing."""
    first, *later = costs_of(3, monkeypatch)
    first.pop("waits", None)
    assert first == {"forward": 4, "backward": 2}
    assert later == [{"forward": 1, "backward": 1}] * 2


def scheduled(m: nn.Module, x: Tensor) -> Any:
    """Weighted by a number that the user changes between steps."""
    assert isinstance(m, Net)
    return squares(m, x) * m.rate + m.last.weight.norm() * 0.01 * m.rate


def test_a_number_of_a_schedule_counts_in_the_next_step() -> None:
    engine = engine_of(scheduled)
    assert isinstance(engine.model, Net)
    for number in range(4):
        engine.model.rate = 0.5 + 0.05 * number
        equals_a_loop(engine, records(5 + number, number), rtol=1e-4, atol=1e-6)


def calls_of(sizes: list[int], expected: int, kind: type[FastEngine] = FastEngine) -> list[int]:
    """The calls of the loss up to each batch, counted in a list, which holds what it likes."""
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    torch.manual_seed(0)
    engine = kind(Net(), loss, FlatClipping(C), budget=MemoryBudget(pass_bytes=400))
    engine.expected = expected
    found = []
    for n in sizes:
        clipped_sum(engine, records(n))
        found.append(len(calls))
    return found


def test_the_number_of_passes_depends_on_no_record() -> None:
    """A loss that counts its calls learns the public number of records alone, an empty batch among them."""
    wanted = calls_of([60, 60, 60, 60], expected=60)
    assert wanted[-1] - wanted[-2] > 1, "else one pass takes all"
    for sizes in ([61, 60, 60, 60], [60, 59, 1, 0], [0, 3, 300, 60], [0, 0, 0, 0]):
        assert calls_of(sizes, expected=60) == wanted


def test_passes_of_more_or_fewer_records_than_expected_add_the_same_sum() -> None:
    engine = FastEngine(Net(), squares, FlatClipping(C), budget=MemoryBudget(pass_bytes=400))
    engine.expected = 60
    for n in (60, 1, 3, 300, 0):
        equals_a_loop(engine, records(n), rtol=1e-4, atol=1e-5)
