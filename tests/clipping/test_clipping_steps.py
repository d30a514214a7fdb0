"""From step to step: how often a loss is called, what the user may change, and what passes leave behind.

Letters: n records; C the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from oracles import Loss, clipped_sum, each, equals_a_loop, squares
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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


def engine_of(loss: Loss, make: Callable[[], nn.Module] = Net) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(make(), loss, FlatClipping(C))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": Net,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)),
}


@each("make", MODELS)
@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_loss_is_called_once_in_later_steps_and_a_few_times_where_flags_are_new(
    make: Callable[[], nn.Module], n: int
) -> None:
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    engine, counts = engine_of(loss, make), []
    for step in range(12):
        engine.model.train(step not in (5, 6))
        calls.clear()
        clipped_sum(engine, records(n + step % 3, step))
        counts.append(len(calls))
    assert counts.pop(5) <= FIRST
    assert counts.pop(0) <= FIRST
    assert counts == [LATER] * 10
    assert engine.route == "fast"


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is copied and compared of some tensors, and what a device would be waited for."""

    def __init__(self, of: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of = {t.untyped_storage()._cdata for t in of}
        self.copied = self.compared = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func._overloadpacket.__name__, [t for t in args if isinstance(t, Tensor)]
        seen = any(t.untyped_storage()._cdata in self.of for t in given)
        self.copied += name == "clone" and seen
        self.compared += name in ("equal", "eq", "ne") and seen
        of_generator = given and given[0].dtype == torch.uint8  # its state, which lies with the processor
        self.waits += name in ("equal", "nonzero", "is_nonzero") and not seen and not of_generator
        return func(*args, **(kwargs or {}))


def costs_of(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[float, ...]]:
    """Count calls of the loss, backward passes, copies and comparisons of a parameter, and waits in steps."""
    forward, backward, run = count(), count(), Pass._run_backward  # of which nothing is put back

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        next(forward)
        return squares(m, x) + m.get_buffer("table").sum()

    def counted(*args: Any) -> None:
        next(backward)
        run(*args)

    monkeypatch.setattr(Pass, "_run_backward", counted)
    monkeypatch.setattr("tacit.clipping.engine.refuse_modes", lambda: None)  # the records are synthetic
    engine = engine_of(loss)
    engine.model.register_buffer("table", torch.ones(3))
    parameters, sums = list(engine.parameters.values()), engine.parameters.items()
    for step in range(steps):
        total = {name: torch.zeros_like(p) for name, p in sums}
        began = next(forward), next(backward)
        with Ops(parameters) as ops:
            engine.add_clipped_sum(total, (records(9, step),), None, torch.tensor([C]))
        passes = (now - then - 1 for now, then in zip((next(forward), next(backward)), began, strict=True))
        yield *passes, ops.copied / len(parameters), ops.compared / len(parameters), ops.waits
    assert engine.route == "fast"


def test_a_first_step_takes_three_passes_more_and_copies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passes are of zeros, and of made-up records together and alone; later steps compare nothing."""
    first, *later = costs_of(3, monkeypatch)
    assert first[:4] == (4, 2, 0, 0)
    assert later == [(1, 1, 0, 0, 0)] * 2


def scheduled(m: nn.Module, x: Tensor) -> Any:
    """Weighted by a number that the user changes between steps."""
    assert isinstance(m, Net)
    return squares(m, x) * m.rate + m.last.weight.norm() * 0.01 * m.rate


def test_a_number_of_a_schedule_counts_in_the_next_step() -> None:
    engine = engine_of(scheduled)
    assert isinstance(engine.model, Net)
    for step in range(4):
        engine.model.rate = 0.5 + 0.05 * step
        equals_a_loop(engine, records(5 + step, step), rtol=1e-4, atol=1e-6)


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
    torch.manual_seed(0)
    engine = FastEngine(Net(), squares, FlatClipping(C), budget=MemoryBudget(pass_bytes=400))
    engine.expected = 60
    for n in (60, 1, 3, 300, 0):
        equals_a_loop(engine, records(n), rtol=1e-4, atol=1e-5)
