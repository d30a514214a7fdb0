"""A statement compared with its ledger: a charged run passes, and one that was not charged fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ran import changed, make_statement, plan
from shell import Shell

from tacit.errors import InvalidInput
from tacit.ledger import ApproximateBudget, Budget, Ledger, Policy, RenyiBudget, ZeroConcentratedBudget
from tacit.ledger.ledger import charge_key, charged_run
from tacit.report.verification import against_its_ledger

Data = dict[str, Any]
PLAN = plan(noise_multiplier=4.0, batch_size=None)


def paid(budget: Budget, *, chunks: int = 2, where: str = "sqlite://") -> Ledger:
    """A ledger with the charges of ``chunks`` halves of the plan's steps."""
    ledger = Ledger.create(where)
    ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=budget))
    delta = 1e-5 if budget.mode == "approximate" else None
    for first in range(0, 10 * chunks, 10):
        event = PLAN.event_between(first, first + 10)
        ledger.settle(
            ledger.reserve("visits", event, key=charge_key("a1", first, first + 10), request={}, delta=delta),
            1,
        )
    return ledger


def statement(ledger: Ledger, steps: int = 20) -> Data:
    made = make_statement(PLAN, steps_done=steps, ledger=charged_run(ledger, "visits", "a1"))
    data: Data = json.loads(made.to_json())
    return data


BUDGETS: list[Budget] = [
    RenyiBudget(8.0, 1e-4), ZeroConcentratedBudget(8.0, 1e-4), ApproximateBudget(20.0, 1e-4),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BUDGETS)))
def test_a_run_that_was_paid_for_passes_also_if_it_took_fewer_steps(number: int) -> None:
    ledger = paid(BUDGETS[number])
    for steps in (20, 13, 1):
        assert against_its_ledger(statement(ledger, steps), ledger) == []


@pytest.mark.parametrize("number", range(len(BUDGETS)))
def test_a_run_that_took_more_steps_than_it_paid_is_found(number: int) -> None:
    ledger = paid(BUDGETS[number], chunks=1)
    assert any("10 were charged" in text for text in against_its_ledger(statement(ledger), ledger))


WRONG: dict[str, tuple[str, object, str]] = {
    "less noise than was paid for": ("event.of.noise_multiplier", 2.0, "its event costs"),
    "another ledger": ("ledger.ledger", "0", "the given one is"),
    "another run": ("ledger.run", "a2", "no charge of the run 'a2'"),
    "another data set": ("ledger.dataset", "other", "no data set 'other' is open"),
    "another history": ("ledger.head", "f" * 64, "differs from the anchor"),
    "an anchor that is none": ("ledger.head", None, "is not of type 'string'"),
    "steps that are none": ("ledger.steps", "20", "is not of type 'integer'"),
    "another unit": ("guarantee.unit", "visit", "its unit is one visit"),
    "neighbours of another kind": ("guarantee.adjacency", "zero-out", "its adjacency is zero-out"),
    "no ledger": ("ledger", "none", "not charged to a ledger"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_found(what: str) -> None:
    where, to, words = WRONG[what]
    ledger = paid(RenyiBudget(8.0, 1e-4))
    data = statement(ledger)
    if what == "another history":
        to = f"{data['ledger']['head'].rsplit(':', 1)[0]}:{to}"
    try:
        said = " ".join(against_its_ledger(changed(data, where, to), ledger))
    except InvalidInput as problem:
        said = str(problem)
    assert words in said


def test_the_shell_says_whether_a_run_was_paid_for(tmp_path: Path, shell: Shell) -> None:
    ledger = paid(RenyiBudget(8.0, 1e-4), where=str(tmp_path / "budget.db"))
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(statement(ledger)))
    verify = ["verify", str(path), "--ledger", str(tmp_path / "budget.db"), "--no-second-opinion"]
    assert "its entries pay for the run" in shell(*verify)
    path.write_text(json.dumps(statement(ledger) | {"ledger": "none"}))
    assert "not charged to a ledger" in shell.out(*verify, code=1)
    ledger.close()
