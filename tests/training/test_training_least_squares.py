"""Least squares in one release: moments against NumPy loops, their sensitivity, and audits of the event."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import a_ledger, a_plan
from regression import NotedRows, Recorder, replay_on_neighbours
from torch import Tensor

from tacit.audits.one_run import audit_slots
from tacit.clipping.fast import FastEngine
from tacit.errors import BudgetExceeded, InvalidInput
from tacit.ledger import RenyiBudget
from tacit.models import additive as models
from tacit.models.additive import Moments
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.testing import seeded_generator
from tacit.training import (
    AuditSlots,
    PrivateSession,
    StepCharges,
    UserRecords,
    least_squares_session,
    solve_least_squares,
)

FEATURES, CLASSES = 4, 3


def plan(noise: float = 2.0, **changes: Any) -> Plan:
    facts = {"delta": 1e-6, "records": 400, "batch_size": None, "steps": 1, "clipping": 1.0}
    return a_plan(noise_multiplier=noise, **{**facts, "allow_large_delta": True, **changes})


def data(records: int = 400) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(records) % CLASSES
    x = 0.4 * torch.randn(records, FEATURES, generator=generator)
    x[torch.arange(records), y] += 1.0
    return x, y


def session(the_plan: Plan | None = None, **more: Any) -> PrivateSession:
    shapes: dict[str, Any] = {"inputs": FEATURES, "outputs": CLASSES, "classes": True}
    records = more.pop("data", data())
    return least_squares_session(
        records, the_plan or plan(), **{**shapes, "generator": seeded_generator(1), **more}
    )


# --- an oracle in loops of NumPy, which shares no code ----------------------------------------------------


def row_by_hand(record: list[float], *, normalise: bool) -> np.ndarray[Any, Any]:
    if not all(map(math.isfinite, record)):
        record = [0.0] * len(record)
    if normalise:
        return np.array([*record, 0.3]) / math.sqrt(sum(v * v for v in [*record, 0.3]))
    entries = np.array([*record, 0.3]) / math.sqrt(len(record) + 0.09)
    return np.array(entries / max(1.0, float(np.sqrt(entries @ entries))))


def code_by_hand(label: int) -> np.ndarray[Any, Any]:
    """Return the vertices of a regular simplex around 0, of norm 1, with scalar products -1/(k - 1)."""
    code = np.array([1.0 if c == label else -1.0 / (CLASSES - 1) for c in range(CLASSES)])
    return np.array(code / np.sqrt(code @ code))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_the_release_is_the_two_sums_and_the_model_least_squares(normalise: bool, share: float) -> None:
    x, y = data()
    run = session(plan(noise=1e-7), normalise=normalise, constant=0.3, cross_share=share)
    model = solve_least_squares(run, ridge=1e6)
    A, M = np.zeros((FEATURES + 1,) * 2), np.zeros((CLASSES, FEATURES + 1))
    for record, label in zip(x.tolist(), y.tolist(), strict=True):
        row, code = row_by_hand(record, normalise=normalise), code_by_hand(label)
        for i in range(FEATURES + 1):
            A[i] += row[i] * row
        for c in range(CLASSES):
            M[c] += code[c] * row
    moments: Any = run.model
    released = moments.gram.weight.detach().numpy() * 400 / math.sqrt(1 - share)
    assert np.abs(released - A).max() < 1e-3
    assert np.abs(moments.cross.weight.detach().numpy() * 400 / math.sqrt(share) - M).max() < 1e-3
    edge = 1e6 * math.sqrt(2 * (FEATURES + 1)) * 1e-7 / math.sqrt(1 - share)
    W = np.linalg.solve(A + edge * np.eye(FEATURES + 1), M.T)
    for record, logits in zip(x[:20].tolist(), model(x[:20]).tolist(), strict=True):
        predicted = row_by_hand(record, normalise=normalise) @ W
        wanted = (predicted - predicted.mean()) * math.sqrt(CLASSES * (CLASSES - 1))
        assert np.abs(np.array(logits) - wanted).max() < 1e-3
    assert float((model(x).argmax(1) == y).float().mean()) > 0.8


def test_numbers_are_predicted_as_they_are() -> None:
    x = torch.rand(4000, FEATURES) * 2 - 1
    y = (0.5 * x[:, :1] - 0.3 * x[:, 1:2] + 0.1).clamp(-1, 1)
    run = session(plan(1.0, records=4000), data=(x, y), outputs=1, classes=False, normalise=False)
    with torch.no_grad():
        errors = solve_least_squares(run, ridge=0.5)(x) - y
    assert float(errors.square().mean()) < 0.3 * float(y.var())


# --- sensitivity -------------------------------------------------------------------------------------------


def sums(rows: Tensor, labels: Tensor, *, normalise: bool, share: float) -> Tensor:
    """Return all entries of both sums by autograd, without an engine and its clipping."""
    moments = Moments(3, 2, normalise=normalise, cross_share=share, classes=True).double()
    if not len(rows):
        return torch.zeros(sum(p.numel() for p in moments.parameters()), dtype=torch.float64)
    grads = torch.autograd.grad(moments(rows, labels).sum(), list(moments.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


RECORDS = st.lists(
    st.tuples(st.lists(st.floats(width=32), min_size=3, max_size=3), st.integers(0, 1)),
    min_size=1,
    max_size=4,
)


def changes_of(records: list[Any], normalise: bool, share: float) -> tuple[float, float]:
    """Return the changes of the sums if the first record is removed, and if it becomes a copy of the last."""
    rows = torch.tensor([row for row, _ in records], dtype=torch.float64)
    labels = torch.tensor([label for _, label in records])
    whole = sums(rows, labels, normalise=normalise, share=share)
    without = sums(rows[1:], labels[1:], normalise=normalise, share=share)
    twice = sums(rows[[-1, *range(1, len(rows))]], labels[[-1, *range(1, len(rows))]],
                 normalise=normalise, share=share)  # fmt: skip
    return float((whole - without).norm()), float((whole - twice).norm())


@given(records=RECORDS, normalise=st.booleans(), share=st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None)
def test_neighbours_differ_by_at_most_the_stated_sensitivity(
    records: list[Any], normalise: bool, share: float
) -> None:
    removed, replaced = changes_of(records, normalise, share)
    assert removed <= 1
    assert replaced <= 2


def test_the_sensitivity_is_used() -> None:
    removed, _ = changes_of([([3.0, -1.0, 2.0], 1)], True, 0.5)
    assert removed > 0.9999


def test_planted_bug_moments_of_rows_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unclipped: Callable[[Tensor], Tensor] = lambda rows: rows  # noqa: E731
    monkeypatch.setattr(models, "_within_1", unclipped)
    removed, _ = changes_of([([30.0, 1.0, 2.0], 1)], False, 0.5)
    assert removed > 1
    monkeypatch.setattr(FastEngine, "_add", _without_clipping)
    assert replayed()


def _without_clipping(
    engine: FastEngine, accumulator: Any, batch: Any, thresholds: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        losses = engine.per_example_loss(engine.model, *batch)
        parameters = list(engine.parameters.values())
        found = torch.autograd.grad(losses.sum(), parameters)
    for name, grad in zip(engine.names, found, strict=True):
        accumulator[name].add_(scale * grad)
    return torch.zeros(len(losses), 1, dtype=losses.dtype), losses.detach()


def replayed() -> list[Any]:
    """Replay whole sessions with and without one more record by `replay_on_neighbours`."""

    def build(noted: NotedRows, key: Generator) -> PrivateSession:
        moments = Moments(FEATURES, CLASSES, classes=True).double()
        return PrivateSession(
            moments,
            Recorder(list(moments.parameters())),
            noted,
            plan(records=12),
            loss=lambda model, x, y: model(x, y),
            generator=key,
        )

    x, y = data(12)
    x, y = x.double(), y
    probes = {
        f"scale {scale:g}": (scale * torch.ones(1, FEATURES, dtype=torch.float64), torch.tensor([1]))
        for scale in (0.0, 1.0, 1e3, 1e200, math.nan)
    }
    return [*replay_on_neighbours(build, (x, y), probes, keys=[seeded_generator(1), seeded_generator(2)])]


def test_sessions_on_neighbours_differ_by_what_is_accounted_for() -> None:
    assert replayed() == []


# --- audits of the event -----------------------------------------------------------------------------------


def audited(key: int, the_plan: Plan | None = None) -> tuple[bool, float]:
    """Return whether slots reject the plan's price, and the epsilon that they prove."""
    the_plan = the_plan or plan(noise=1.0, records=5000)
    run = session(the_plan, data=data(5000), audit=AuditSlots(900), generator=seeded_generator(key))
    solve_least_squares(run)
    found = audit_slots(run.slot_evidence(), the_plan, confidence=0.9999, rng=np.random.default_rng(key))
    return bool(found.claim.claim_rejected), found.claim.eps_lower


def test_slots_prove_a_part_of_the_price_and_no_more() -> None:
    rejected, proved = audited(1)
    assert not rejected
    assert 0.5 < proved <= plan(noise=1.0, records=5000).epsilon


def test_planted_bug_moments_without_clipping_are_found_by_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastEngine, "_add", _without_clipping)
    rejected, _ = audited(2)
    assert rejected


# --- plan, ledger and people -------------------------------------------------------------------------------


def test_only_one_step_with_parts_of_norm_1_is_taken() -> None:
    for changes in ({"steps": 2}, {"clipping": 2.0}):
        with pytest.raises(InvalidInput, match=r"steps=1 and clipping=1\.0"):
            session(plan(**changes))


def test_the_price_is_that_of_one_gaussian_mechanism() -> None:
    """The oracle is Balle and Wang (1805.06530, theorem 8), by bisection on the closed form."""
    run = session(plan(noise=2.0))

    def delta(epsilon: float) -> float:
        def phi(t: float) -> float:
            return 0.5 * math.erfc(-t / math.sqrt(2))

        return phi(0.25 - 2 * epsilon) - math.exp(epsilon) * phi(-0.25 - 2 * epsilon)

    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > 1e-6 else (low, middle)
    solve_least_squares(run)
    assert run.epsilon == pytest.approx(high, rel=1e-6)
    assert run.epsilon >= high


def test_the_ledger_is_charged_once_and_refuses_the_second(tmp_path: Any) -> None:
    the_plan = plan(noise=2.0, delta=1e-6)
    budget = RenyiBudget(epsilon=1.2 * the_plan.epsilon, delta=1e-6)
    ledger = a_ledger(f"sqlite:///{tmp_path}/budget.db", budget=budget)

    def fit() -> None:
        key = Generator.from_os()
        charges = StepCharges(ledger, "rows", the_plan, chunk=1, generator=key)
        solve_least_squares(session(the_plan, charges=charges, generator=key))

    fit()
    assert ledger.status("rows").charges["SETTLED"] == 1
    with pytest.raises(BudgetExceeded):
        fit()
    ledger.close()


def test_a_person_with_many_rows_counts_as_one() -> None:
    """The mean of a person's parts is clipped once: 100 equal rows move the sums no more than one."""
    x, y = data(100)
    rows = torch.cat([x, x[:1].expand(100, -1)]), torch.cat([y, y[:1].expand(100)])
    owners = [*range(100), *[0] * 100]
    people = UserRecords(rows, owners, rows_per_user=8)
    run = session(plan(noise=1e-7, records=100, unit="person"), data=people)
    alone = session(plan(noise=1e-7, records=100), data=(x, y))
    solve_least_squares(run)
    solve_least_squares(alone)
    for one, other in zip(run.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
