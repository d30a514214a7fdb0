"""Planted holes in each proof that records are isolated: with one, a record moves the sum by more than C.

As the engine is, the same record moves it by at most C, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import Loss, clipped_sum, definition, moved_by
from torch import Tensor, nn

from tacit.clipping import FlatClipping, isolation
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import Isolation, op_rules, op_table
from tacit.clipping.isolation.probe import DependsOnOthers
from tacit.clipping.isolation.provenance import Provenance
from tacit.clipping.isolation.trace import Kept, Replay
from tacit.clipping.per_example.recorder import Recorder
from tacit.errors import UnsupportedModel

C, N = 0.1, 8
Plant = Callable[[pytest.MonkeyPatch], None]


class Two(nn.Module):
    """Two layers, and what some losses keep beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.randn(1, 1, 4))
        self.passes, self.mean = 0, torch.zeros(4)


def head(m: Two, h: Tensor) -> Tensor:
    return torch.as_tensor(m.last(h.sin()).sin().sum(1) + m.last(h).square().sum(1))


def tame(seed: int, n: int = N) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).clamp(-1.5, 1.5)


def flagged() -> Tensor:
    x = tame(2)
    x[:, 0] = x[:, 0].abs()
    x[0, 0] = -3.5
    return x


def moved(loss: Loss, *, after: bool = False) -> float:
    """Two tame batches, then one with a record that is flagged; ``after``: and one behind it."""
    batches = [(tame(0),), (tame(1),), (flagged(),)]
    if after:
        return moved_by(Two, loss, [(flagged(),), (tame(1),)], 0, C, changed=0)
    return moved_by(Two, loss, batches, 0, C)


def bounded(loss: Loss, *, after: bool) -> bool:
    """Whether a record moves the sums by at most C, or none is returned."""
    try:
        return moved(loss, after=after) <= 1 + 1e-4
    except UnsupportedModel:
        return True


def excess(x: Tensor) -> Tensor:
    """(n,) by how much a number of a record is above 2: 0 of all that are tame."""
    return (x.detach().abs() - 2).relu().amax(1)


def behind(m: Two, x: Tensor) -> Tensor:
    """Those behind a flagged record are turned round."""
    return head(m, m.first(x) * torch.cos(100 * excess(x).cumsum(0))[:, None])


def beside(m: Two, x: Tensor) -> Tensor:
    """All are."""
    return head(m, m.first(x)) * torch.cos(2 * excess(x).amax())


def accumulated(m: Two, x: Tensor) -> Tensor:
    """Those behind any record have it in them."""
    return head(m, m.first(x).cumsum(0))


def by_place(m: Two, x: Tensor) -> Tensor:
    return head(m, m.first(x)) * (1 - 2 * (torch.arange(len(x)) % 2))


def by_count(m: Two, x: Tensor) -> Tensor:
    """Gradients are alike but for their sign, and as long as C where one record is left out."""
    same = torch.as_tensor(m.last(torch.ones(len(x), 6)).sum(1)) * C / 21**0.5
    return same * x[:, 0].sign() * (N - 1) / len(x)


def kept(m: Two, x: Tensor) -> Tensor:
    """The mean of the batch before is taken off."""
    h = m.first(x - 5 * m.mean)
    m.mean = x.detach().mean(0)
    return head(m, h)


def counted(m: Two, x: Tensor) -> Tensor:
    """Adds the next record from the third pass on."""
    m.passes += 1
    h = m.first(x)
    other = h.roll(1, 0)
    return head(m, torch.lerp(h, other if m.passes > 2 else h, 0.5))


def warmed_up(m: Two, x: Tensor) -> Tensor:
    """Losses grow with the passes, and Python is told of records."""
    m.passes += 1
    losses = head(m, m.first(x))
    losses.sum().item()
    return torch.as_tensor(losses * (-1) ** m.passes)


def pointwise_cumsum(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(op_table.RULES, "cumsum", op_rules.pointwise)
    op_table.rule_of.cache_clear()


def owners_unread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Provenance, "why_not_by_row", lambda *_: None)


def off(owner: Any, name: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, lambda *_, **__: None)

    return plant


def any_trace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replay, "_is", staticmethod(lambda step, _, func, *__: step.func == func))


def begun_as_it_was_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GradientEngine, "_restart", lambda _: None)


def no_probe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "_probe_place", lambda _, trace, batch: setattr(trace, "up_to", None))


KEPT, CROSS = off(isolation, "refuse_kept"), off(Isolation, "_cross_check")


def read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "__contains__", lambda *_: False)
    patch.setattr(Provenance, "_take_over", lambda *_: None)


PLANTS: dict[str, tuple[Loss, list[Plant], bool]] = {
    "the rule of an operation": (behind, [pointwise_cumsum], False),
    "whose the losses are": (beside, [owners_unread], False),
    "an error of provenance, not cross-checked": (accumulated, [pointwise_cumsum, no_probe, CROSS], False),
    "a record's place": (by_place, [no_probe], False),
    "the number of records": (by_count, [no_probe], False),
    "what a pass leaves in the model": (kept, [KEPT, read_again], True),
    "which trace a pass takes": (counted, [any_trace], False),
    "with which model a pass begins": (warmed_up, [begun_as_it_was_left], False),
}


@pytest.fixture(autouse=True)
def rules_as_they_are() -> Any:
    yield
    op_table.rule_of.cache_clear()


@pytest.mark.parametrize(("loss", "plants", "after"), PLANTS.values(), ids=PLANTS)
def test_planted_bug_one_record_moves_the_sum_by_more_than_the_bound(
    loss: Loss, plants: list[Plant], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounded(loss, after=after)
    for plant in plants:
        plant(monkeypatch)
    assert moved(loss, after=after) > 1.05


@pytest.mark.parametrize("rule", [op_rules.pointwise, op_rules.by_leading(1)], ids=["pointwise", "by rows"])
def test_planted_bug_the_cross_check_finds_a_wrong_rule(
    rule: op_rules.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an operation that always mixes; the probe is off, and losses are not compared."""
    found: list[str] = []
    real = Isolation._cross_check

    def noted(isolation: Isolation, *given: Any) -> None:
        try:
            real(isolation, *given)
        except DependsOnOthers as reason:
            found.append(str(reason))
            raise

    monkeypatch.setattr(Isolation, "_cross_check", noted)
    monkeypatch.setattr(Isolation, "_refuse_mixed", lambda *_, **__: None)
    monkeypatch.setitem(op_table.RULES, "cumsum", rule)
    op_table.rule_of.cache_clear()
    no_probe(monkeypatch)
    engine = FastEngine(Two(), accumulated, FlatClipping(C))
    clipped_sum(engine, tame(0), C=C)
    assert found == ["a record's loss reaches the gradient of another record"]
    assert engine.route == f"record by record: {found[0]}"


def as_long_as_the_batch(m: Two, x: Tensor) -> Tensor:
    """A table that is repeated along positions, of which there are as many as records."""
    h = x[:, None] * torch.arange(1.0, N + 1)[:, None] + m.table.repeat(1, N, 1)
    return head(m, m.first(h.sum(1)))


def test_planted_bug_rules_compare_shapes_with_the_batch_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out when the trace was recorded is found out again, where sizes are equal by chance."""

    def off_by() -> float:
        torch.manual_seed(1)
        engine = FastEngine(Two(), as_long_as_the_batch, FlatClipping(C))
        clipped_sum(engine, tame(1, 5), C=C)
        wanted = definition(engine.model, as_long_as_the_batch, (tame(0),), C)
        found = clipped_sum(engine, tame(0), C=C)
        assert engine.route == "fast"
        return float((found - wanted).norm()) / C

    def anew(recorder: Recorder, decide: Callable[[], Any]) -> Any:
        return real(recorder, decide) if recorder.provenance is not None else decide()

    assert off_by() < 1e-4
    real = Recorder.decided
    monkeypatch.setattr(Recorder, "decided", anew)
    monkeypatch.setattr(Recorder, "_is_fixed", lambda recorder, tensor: len(tensor) != recorder.rows)
    assert off_by() > 0.05
