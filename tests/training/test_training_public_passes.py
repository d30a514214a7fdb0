"""The number of calls of a user's code is public: it follows from the plan, never from what is drawn."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from made import a_plan, a_session, losses, network, no_noise, sums_of, table
from regression import Recorder
from torch import Tensor, nn

from tacit.clipping import MemoryBudget
from tacit.sampling.samplers import Indices
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, Augmentation, PrivateSession, step

WIDTH = 64
SMALL = MemoryBudget(pass_bytes=1)


class Slots:
    """Counts in an object that has no dictionary."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Counts:
    """Counts the calls of user code in several ways."""

    def __init__(self) -> None:
        self.calls = list[int]()
        self.counter = itertools.count()
        self.slots = Slots()

    def __call__(self) -> None:
        self.calls.append(next(self.counter))
        self.slots.calls += 1

    @property
    def number(self) -> int:
        assert self.calls == list(range(self.slots.calls))
        return self.slots.calls


class CountingLoss:
    """Cross entropies; counts its calls, and those of the model."""

    def __init__(self) -> None:
        self.own, self.forwards = Counts(), Counts()

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.own()
        return losses(model, x, y)


class Net(nn.Module):
    """A layer after activations that take more memory than the layer."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.last = network(WIDTH, 2)
        self.counts = counts

    def forward(self, x: Tensor) -> Tensor:
        self.counts()
        for _ in range(8):
            x = x.tanh()
        result: Tensor = self.last(x)
        return result


class CountingViews(Augmentation):
    """Shifts records; counts its calls."""

    def __init__(self) -> None:
        self.counts = Counts()

    @property
    def draws(self) -> int:
        return 1

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        self.counts()
        return inputs.repeat_interleave(uniforms.shape[1], 0) + uniforms.reshape(-1, 1)


KINDS: dict[str, dict[str, Any]] = {
    "one pass": {"physical_batch_size": 64},
    "small physical batches": {"physical_batch_size": 4},
    "small passes": {"physical_batch_size": 64, "memory": SMALL},
    "both": {"physical_batch_size": 8, "memory": SMALL},
    "items": {"physical_batch_size": 4, "items": True},
    "workers": {"physical_batch_size": 4, "items": True, "workers": 1},
    "views": {"physical_batch_size": 4, "views": 2},
    "audited": {"physical_batch_size": 4, "audit": AuditSlots(8)},
    "largest batch": {"physical_batch_size": 4, "largest": 40},
}


def counted(
    kind: str, draws: dict[int, Indices] | None = None, **changes: Any
) -> tuple[list[Any], list[int]]:
    """Return the numbers of calls after each step, and the numbers of records drawn.

    ``draws`` replaces the participants of some steps.
    """
    run, loss, augmentation = session(kind, **changes)
    real, drawn = run._run.participants, list[int]()

    def participants(step: int) -> Indices:
        return real(step) if draws is None or step not in draws else draws[step]

    run._run.participants = participants  # type: ignore[method-assign]
    counts = []
    for ticket in run.batches():
        drawn.append(len(participants(run.steps_done)))
        run.step(ticket)
        counts.append((loss.own.number, loss.forwards.number, augmentation.counts.number))
    return counts, drawn


plain = cache(counted)


def session(
    kind: str, *, records: int = 60, key: int = 8, expected: int = 20
) -> tuple[PrivateSession, CountingLoss, CountingViews]:
    settings = dict(KINDS[kind])
    views, largest = settings.pop("views", 1), settings.pop("largest", None)
    loss, augmentation = CountingLoss(), CountingViews()
    plan = a_plan(
        noise_multiplier=4.0,
        steps=6,
        records=61,
        views=views,
        batch_size=expected,
        largest_batch=largest,
    )
    x, y = table(61, WIDTH)
    data: Any = (x[:records], y[:records])
    if settings.pop("items", False):
        data = list(zip(*data, strict=True))
    if views > 1:
        settings["augmentation"] = augmentation
    net = Net(loss.forwards)
    optimizer = Recorder(net.parameters())  # the weights stay, so that steps differ by their records alone
    run = a_session(
        net, data, plan, loss=loss, optimizer=optimizer, generator=seeded_generator(key), **settings
    )
    return run, loss, augmentation


@pytest.mark.thorough(cases=5)
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_have_the_same_counts_whatever_is_drawn(kind: str) -> None:
    """With one record more, and with other draws, each step calls the loss as often."""
    counts, drawn = plain(kind)
    more, of_more = counted(kind, records=61)
    other, of_other = counted(kind, key=9)
    assert counts == more == other
    assert len({*map(tuple, (drawn, of_more, of_other))}) > 1


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 3, 60])
def test_a_first_or_a_later_draw_of_any_size_has_the_counts_of_the_expected_one(kind: str, size: int) -> None:
    some = np.arange(size)
    assert counted(kind, {0: some, 2: some})[0] == plain(kind)[0]


def test_few_expected_records_and_many_empty_draws() -> None:
    counts, drawn = counted("small physical batches", expected=1)
    assert 0 in drawn
    for key in range(3):
        assert counted("small physical batches", expected=1, key=key, records=61)[0] == counts


@pytest.mark.parametrize("kind", ["small physical batches", "both", "items", "views"])
def test_the_sum_is_that_of_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records divided over more passes than they fill add what they add in one pass; empty ones nothing."""
    no_noise(monkeypatch)
    found = []
    for physical in (KINDS[kind]["physical_batch_size"], 64):
        monkeypatch.setitem(KINDS, "chosen", {**KINDS[kind], "physical_batch_size": physical})
        run, _, _ = session("chosen", expected=9)
        found.append(torch.stack(sums_of(run)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert float(found[0].abs().max()) > 0


def test_planted_bug_passes_by_drawn_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_public_share", lambda run: max(1, len(run.participants(run.done))))
    with pytest.raises(AssertionError):
        test_a_first_or_a_later_draw_of_any_size_has_the_counts_of_the_expected_one("both", 3)
