"""Audit slots in the session: the effect of a canary on a step, and that there is no other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made import a_plan, a_session, finish, network, no_noise, one_step, table, weights
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.clipping import AdaptiveClipping, AutomaticClipping, PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.plan import LossReport, Plan
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, FlipAndCrop, PrivateSession, step
from tacit.training.audit_slots import SlotEvidence

N, D, CLASSES, SLOTS = 400, 5, 3, 80


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x.flatten(1)), y, reduction="none")


data = partial(table, N, D, CLASSES)
plan = partial(a_plan, delta=1e-4, records=N, batch_size=100)


def session(
    *, records: Any = None, the_plan: Plan | None = None, slots: int | None = SLOTS, **changes: Any
) -> PrivateSession:
    net = network(D, 4, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    settings = {"loss": losses, "audit": None if slots is None else AuditSlots(slots), **changes}
    return a_session(net, records or data(), the_plan or plan(), optimizer=optimizer, **settings)


def in_turn(run: PrivateSession) -> np.ndarray[Any, Any]:
    """Return (T, m): the canaries that the sampler drew in each step, from coins and sampler alone."""
    coins = run.slot_evidence().included
    drawn = np.zeros((run.plan.steps, SLOTS), dtype=np.bool_)
    number = np.flatnonzero(coins)
    for t in range(run.plan.steps):
        chosen = run.plan.sampling.indices(run._run.generator, t, N + len(number))
        drawn[t, number[chosen[chosen >= N] - N]] = True
    return drawn


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("physical", [7, 512])
@pytest.mark.parametrize("rule", [0.5, AutomaticClipping(0.5, 1e-9), AdaptiveClipping(0.5)], ids=str)
def test_a_canary_that_takes_part_is_one_and_any_other_is_nothing(
    engine: str, physical: int, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_noise(monkeypatch)
    run = finish(session(the_plan=plan(clipping=rule), engine=engine, physical_batch_size=physical))
    seen, drawn = run.slot_evidence().observed, in_turn(run)
    assert seen.shape == (12, SLOTS)
    assert drawn.any(axis=1).all()
    assert np.abs(seen - drawn).max() < 1e-4


def test_canaries_leave_what_is_released_of_the_model_as_it_was() -> None:
    """The noise has the same bits: the model's parameters come first, as they do without slots."""
    with_slots, without = finish(session()), finish(session(slots=None))
    assert torch.allclose(weights(with_slots), weights(without), atol=1e-5)
    assert list(with_slots.model.state_dict()) == list(without.model.state_dict())
    assert with_slots.epsilon == without.epsilon
    assert with_slots.route == "fast"


def test_the_noise_on_the_slots_is_that_of_the_plan() -> None:
    run = finish(session(the_plan=plan(steps=60)))
    noise = run.slot_evidence().observed - in_turn(run)
    assert abs(noise.std() - 1.0) < 0.05
    reported = finish(session(the_plan=plan(steps=60, loss_report=LossReport(relative_noise=0.8))))
    noise = reported.slot_evidence().observed - in_turn(reported)
    assert abs(noise.std() - reported.plan.gradient_noise_multiplier) < 0.06
    assert reported.plan.gradient_noise_multiplier > 1.2


def test_a_reported_loss_does_not_notice_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    monkeypatch.setattr(step, "_scalar_noise", lambda *_: 0.0)
    report = plan(loss_report=LossReport())
    with_slots, without = session(the_plan=report), session(the_plan=report, slots=None)
    assert one_step(with_slots).loss == pytest.approx(one_step(without).loss, abs=1e-4)


@pytest.mark.untraced
def test_coins_are_fair_and_new_in_each_run() -> None:
    def coins(key: Generator) -> np.ndarray[Any, Any]:
        return finish(session(generator=key)).slot_evidence().included

    one, other = coins(Generator.from_os()), coins(Generator.from_os())
    assert (one != other).any()
    many = np.concatenate([coins(seeded_generator(k)) for k in range(20)])
    assert abs(many.mean() - 0.5) < 4 * 0.5 / len(many) ** 0.5


@pytest.mark.untraced
@pytest.mark.parametrize("stop", [1, 7, 12])
def test_slots_survive_a_resume(stop: int, tmp_path: Path) -> None:
    whole = finish(session()).slot_evidence()
    finish(session(), stop).save(tmp_path / "state")
    run = session(generator=Generator.from_os())
    run.load(tmp_path / "state")
    again = finish(run).slot_evidence()
    assert (again.included == whole.included).all()
    assert (again.observed == whole.observed).all()


def test_a_run_cannot_be_resumed_with_other_slots(tmp_path: Path) -> None:
    finish(session(), 3).save(tmp_path / "state")
    for slots in (None, 40):
        with pytest.raises(PrivacyRefusal, match="Different: the audit slots"):
            session(slots=slots).load(tmp_path / "state")
    finish(session(slots=None), 3).save(tmp_path / "state")
    with pytest.raises(PrivacyRefusal, match="Different: the audit slots"):
        session().load(tmp_path / "state")


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = data()
        return x[index], int(y[index])


def test_every_kind_of_records_and_workers_can_carry_canaries() -> None:
    x, y = data()
    whole = finish(session(), 2)
    for records, workers in (((x.numpy(), y.numpy()), 0), (Rows(), 0), (Rows(), 1)):
        run = finish(session(records=records, workers=workers), 2)
        assert torch.allclose(weights(run), weights(whole), atol=1e-6)


def test_views_of_a_canary_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    pictures = torch.randn(N, 1, 8, 8), data()[1]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    run = a_session(
        net, pictures, plan(views=3, steps=3), lr=0.1, augmentation=FlipAndCrop(2), audit=AuditSlots(SLOTS)
    )
    finish(run)
    assert np.abs(run.slot_evidence().observed - in_turn(run)).max() < 1e-4


def test_evidence_is_kept_in_two_files(tmp_path: Path) -> None:
    found = finish(session()).slot_evidence()
    observed, coins = tmp_path / "slots.npy", tmp_path / "private" / "coins.npy"
    found.save(observed, coins)
    assert coins.stat().st_mode & 0o077 == 0
    again = SlotEvidence.load(observed, coins)
    assert (again.observed == found.observed).all()
    assert (again.included == found.included).all()
    with pytest.raises(InvalidInput, match="not the two files of one audit"):
        SlotEvidence.load(coins, observed)
    coins.write_bytes(b"no array")
    with pytest.raises(InvalidInput, match="damaged"):
        SlotEvidence.load(observed, coins)
    coins.unlink()
    with pytest.raises(InvalidInput, match="no audit slots"):
        SlotEvidence.load(observed, coins)


def test_what_slots_say_nothing_about_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 80 slots"):
        session(slots=81)
    with pytest.raises(InvalidInput, match="one more layer"):
        session(the_plan=plan(clipping=PerLayerClipping(1.0)))
    with pytest.raises(PrivacyRefusal, match="fixes the number of records"):
        session(the_plan=plan(adjacency="zero-out"))
    with pytest.raises(InvalidInput, match="count"):
        AuditSlots(0)
    with pytest.raises(InvalidInput, match="strength"):
        AuditSlots(10, strength=1.0)
    with pytest.raises(InvalidInput, match="need records"):
        session(records=(torch.zeros(0, D), torch.zeros(0, dtype=torch.int64)))


def test_evidence_needs_slots_and_the_whole_run() -> None:
    with pytest.raises(InvalidInput, match="no audit slots"):
        finish(session(slots=None)).slot_evidence()
    with pytest.raises(InvalidInput, match="3 of the plan's 12 steps"):
        finish(session(), 3).slot_evidence()


class Threshold(nn.Module):
    """A loss with an infinite slope at 0, the gradient of records of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * x).sum(1).abs().sqrt()


def test_a_model_that_breaks_at_zeros_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a record of zeros"):
        a_session(Threshold(), (data()[0],), plan(), loss=lambda model, x: model(x), audit=AuditSlots(SLOTS))
