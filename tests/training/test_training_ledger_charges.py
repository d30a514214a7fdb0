"""Runs that are charged to a ledger: no step before its charge, and no chunk charged twice."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import a_ledger, a_plan, a_session, finish, network, table, weights
from torch import Tensor
from torch.utils.data import Dataset

from tacit.correlation import Banded
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, UnsupportedEvent
from tacit.events import Adjacency, ApproximateDP, Gaussian
from tacit.ledger import (
    ApproximateBudget,
    Budget,
    Conflict,
    Ledger,
    Policy,
    PureBudget,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.plan import Plan
from tacit.report import make_statement
from tacit.report.verification import verify_statement
from tacit.sampling import CyclicPoissonSampling, ShuffledBatches
from tacit.testing import seeded_generator
from tacit.training import PrivateSession, StepCharges, StepTicket, train
from tacit.training import run as run_module
from tacit.training.records import as_records
from tacit.training.resume import saved_generator

N, STEPS, CHUNK = 60, 12, 5
RENYI = RenyiBudget(epsilon=20.0, delta=1e-5, orders=(3.0, 6.0))
RAISED = RenyiBudget(epsilon=60.0, delta=1e-5, orders=(3.0, 6.0))


class Died(Exception):
    """Stands for the death of a process."""


records = table
plan = partial(a_plan, unit="patient")


def policy(budget: Budget = RENYI, **changes: Any) -> Policy:
    given: dict[str, Any] = {"unit": "patient", "adjacency": "add-remove", "budget": budget}
    return Policy(**{**given, **changes})


@contextmanager
def created(path: Path, budget: Budget = RENYI, **changes: Any) -> Iterator[Ledger]:
    """Create a ledger with the data set "visits"; close it in the end."""
    with closing(a_ledger(path, "visits", **{"unit": "patient", "budget": budget, **changes})) as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with created(tmp_path / "budget.db") as made:
        yield made


def charges(ledger: Ledger, *, the_plan: Plan | None = None, key: int = 8, **changes: Any) -> StepCharges:
    given: dict[str, Any] = {"chunk": CHUNK, "generator": seeded_generator(key)}
    return StepCharges(ledger, "visits", the_plan or plan(), **{**given, **changes})


def new_session(account: StepCharges | None, **changes: Any) -> PrivateSession:
    settings = {"charges": account, "generator": None, "momentum": 0.9, **changes}
    return a_session(network(4, 2), records(), plan() if account is None else account.plan, **settings)


def states(ledger: Ledger) -> list[str]:
    """Return the states of all charges, settled ones first."""
    counts = ledger.status("visits").charges
    return [state for state in ("SETTLED", "RESERVED", "FORFEITED") for _ in range(counts[state])]


def steps_reserved(ledger: Ledger) -> list[int]:
    """Return all steps with a charge in the ledger, once for each charge."""
    keys = [entry.body["key"] for entry in ledger.history("visits") if entry.kind == "reserve"]
    found = [re.fullmatch(r"training/.*/(\d+)-(\d+)", key) for key in keys]
    return [step for match in found if match for step in range(int(match[1]), int(match[2]))]


def uncharged_steps(run: PrivateSession, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take all steps; return those without a charge when their records were read."""
    real: Any = vars(run_module)["noisy_step"]
    found: list[int] = []

    def watched(run: Any, step: int, indices: Any) -> Any:
        if step not in steps_reserved(ledger):
            found.append(step)
        return real(run, step, indices)

    monkeypatch.setattr(run_module, "noisy_step", watched)
    finish(run)
    return found


# --- before and after ------------------------------------------------------------------------------------


def test_every_step_is_charged_before_the_records_are_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert uncharged_steps(new_session(charges(ledger)), ledger, monkeypatch) == []
    assert steps_reserved(ledger) == list(range(STEPS))
    assert states(ledger) == ["SETTLED"] * 3


def test_planted_bug_the_charge_comes_after_the_steps(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = StepCharges.before, StepCharges.after

    def late(self: StepCharges, step: int) -> None:
        before(self, step)
        after(self, step)

    monkeypatch.setattr(StepCharges, "before", lambda self, step: None)
    monkeypatch.setattr(StepCharges, "after", late)
    assert uncharged_steps(new_session(charges(ledger)), ledger, monkeypatch) == [0, 5, 10]


def test_a_chunk_is_reserved_no_earlier_than_its_first_step(ledger: Ledger) -> None:
    run = new_session(charges(ledger))
    assert states(ledger) == []
    finish(run, CHUNK)
    assert states(ledger) == ["SETTLED"]
    finish(run, CHUNK + 1)
    assert states(ledger) == ["SETTLED", "RESERVED"]


def test_without_charges_the_ledger_is_not_asked() -> None:
    run = finish(new_session(None))
    assert (run.charges, run.stopped) == (None, None)


@pytest.mark.parametrize(
    ("changes", "chunk"),
    [
        ({}, 5),
        ({"batch_size": None}, 7),
        ({"adjacency": "zero-out", "sampling": ShuffledBatches(20, N)}, 4),
        ({"sampling": "epochs"}, 4),
        ({"preparation": [Gaussian(6.0)]}, 5),
    ],
    ids=["poisson", "full-batch", "shuffled", "epochs", "preparation"],
)
def test_the_charges_of_a_run_add_up_to_its_plan(changes: dict[str, Any], chunk: int, tmp_path: Path) -> None:
    the_plan = plan(**changes)
    with created(tmp_path / "sum.db", RAISED, adjacency=the_plan.adjacency) as made:
        account = charges(made, the_plan=the_plan, chunk=chunk)
        account.start()
        for step in range(STEPS):
            account.before(step)
            account.after(step)
        whole = RENYI.price(the_plan.event, the_plan.adjacency)
        found = made.status("visits").spent
        assert made.verify("visits").ok
    assert account.chunk == (6 if the_plan.charging_unit == 3 else chunk)  # whole epochs
    assert all(0 <= a - b <= 10 for a, b in zip(found, whole, strict=True))  # units of 1e-12


def test_parts_of_an_epoch_of_shuffled_batches_cannot_be_paid_for_alone() -> None:
    the_plan = plan(adjacency="zero-out", sampling=ShuffledBatches(20, N))
    assert the_plan.charging_unit == 3
    assert the_plan.event_between(3, 9) == the_plan.event_after(6)
    with pytest.raises(InvalidInput, match="multiple of 3"):
        the_plan.event_between(4, 9)


# --- what the budget counts in ---------------------------------------------------------------------------


def test_where_epsilon_and_delta_are_counted_the_plan_is_one_charge(tmp_path: Path) -> None:
    with created(tmp_path / "approximate.db", ApproximateBudget(epsilon=20.0, delta=1e-2)) as made:
        finish(new_session(charges(made, chunk=None)))
        status = made.status("visits")
        assert status.spent_epsilon == pytest.approx(plan().epsilon, rel=1e-9)
        assert status.spent_delta == pytest.approx(plan().delta)
        assert states(made) == ["SETTLED"]
        with pytest.raises(InvalidInput, match="chunk must be the whole plan for this dataset; got 5"):
            charges(made)
        derived = policy(RENYI, parent="visits")
        made.open_dataset("derived", derived)
        assert StepCharges(made, "derived", plan()).chunk == STEPS


def test_a_budget_without_a_price_for_the_steps_refuses_by_name(tmp_path: Path) -> None:
    with created(tmp_path / "other.db") as made:
        made.open_dataset("pure", policy(PureBudget(1.0)))
        made.open_dataset("zcdp", policy(ZeroConcentratedBudget(epsilon=30.0, delta=1e-3)))
        with pytest.raises(UnsupportedEvent, match="pure budget"):
            StepCharges(made, "pure", plan())
        with pytest.raises(UnsupportedEvent):
            StepCharges(made, "zcdp", plan())
        full = StepCharges(made, "zcdp", plan(batch_size=None, noise_multiplier=4.0), chunk=4)
        finish(new_session(full))
        assert made.status("zcdp").spent[0] == pytest.approx(STEPS / (2 * 4.0**2) * 1e12)


# --- what fits -------------------------------------------------------------------------------------------


def fits(budget: RenyiBudget, steps: int) -> bool:
    return budget.admits(budget.price(plan().event_after(steps), Adjacency.ADD_REMOVE))


def check_noise_told(refusal: str, the_plan: Plan, budget: RenyiBudget) -> None:
    """Check that all steps fit with the noise that a refusal suggests, and not with a little less."""
    told = re.search(r"with a noise multiplier of ([\d.]+) instead of 1\.", refusal)
    assert told is not None
    for noise, does in ((float(told[1]), True), (0.99 * float(told[1]), False)):
        event = replace(the_plan, noise_multiplier=noise).event
        assert budget.admits(budget.price(event, Adjacency.ADD_REMOVE)) == does


@pytest.mark.parametrize("epsilon", [2.0, 3.0, 3.7])
def test_a_plan_that_does_not_fit_is_told_how_many_steps_would(epsilon: float, tmp_path: Path) -> None:
    budget = RenyiBudget(epsilon=epsilon, delta=1e-2, orders=(4.0, 8.0))
    most = max(steps for steps in range(1, STEPS + 1) if fits(budget, steps))
    assert most < STEPS
    with created(tmp_path / "small.db", budget) as made:
        run = new_session(charges(made))
        with pytest.raises(BudgetExceeded, match=f"{most} of its steps would fit") as refused:
            finish(run)
        check_noise_told(str(refused.value), plan(), budget)
        assert run.steps_done == 0
        assert states(made) == []
        finish(new_session(charges(made, the_plan=plan(steps=most))))
        with pytest.raises(BudgetExceeded, match="Not one of its steps would fit"):
            charges(made, key=9).check_fits()


def test_noise_in_time_is_told_how_much_of_it_would_fit(tmp_path: Path) -> None:
    budget = RenyiBudget(epsilon=2.0, delta=1e-2, orders=(4.0, 8.0))
    the_plan = plan(sampling=CyclicPoissonSampling(1.0, 2), batch_size=N // 2, correlation=Banded((1.0, 0.5)))
    with (
        created(tmp_path / "small.db", budget) as made,
        pytest.raises(BudgetExceeded, match="Not one of its steps would fit, or all") as refused,
    ):
        charges(made, the_plan=the_plan, chunk=None).check_fits()
    check_noise_told(str(refused.value), the_plan, budget)


def greedy(ledger: Ledger) -> None:
    """Spend the budget by smaller and smaller requests until nothing is left."""
    for epsilon in (4.0, 1.0, 0.5):
        with suppress(BudgetExceeded):
            for number in itertools.count():
                ledger.reserve("visits", ApproximateDP(epsilon), key=f"greedy {epsilon} {number}", request={})


def test_a_refused_chunk_ends_the_run_with_the_model_so_far(ledger: Ledger, tmp_path: Path) -> None:
    the_plan = plan(batch_size=None, noise_multiplier=2.0)
    run = new_session(charges(ledger, the_plan=the_plan, generator=None))
    finish(run, 7)
    greedy(ledger)
    history = train(run, rows=2, checkpoint=tmp_path / "resume.pt")
    assert run.steps_done == 10
    assert run.stopped is not None
    assert [row.steps for row in history.rows] == [10]
    assert history.rows[-1].epsilon == the_plan.epsilon_after([10])[0]
    assert list(run.epoch()) == []
    statement = make_statement(run)
    assert statement.data["mechanism"]["steps"] == 10
    assert statement.data["ledger"]["steps"] == 10
    assert verify_statement(statement.data).agrees
    words = " ".join(statement.to_text().split())
    assert "It ended the run" in words
    assert ledger.uuid in words
    assert ledger.verify("visits").ok


def test_a_step_beside_the_turns_is_refused_as_well(ledger: Ledger) -> None:
    run = finish(new_session(charges(ledger)), 5)
    greedy(ledger)
    with pytest.raises(BudgetExceeded):
        run.step(StepTicket(5))
    assert run.steps_done == 5


def test_a_statement_that_claims_more_steps_than_were_charged_contradicts_itself(ledger: Ledger) -> None:
    the_plan = plan(batch_size=None, noise_multiplier=2.0)
    run = finish(new_session(charges(ledger, the_plan=the_plan, generator=None)), 3)
    statement = make_statement(run)
    assert verify_statement(statement.data).agrees
    statement.data["ledger"]["steps"] = 2
    assert "3 steps were taken, and that 2 were charged" in verify_statement(statement.data).contradictions[0]


# --- promises --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan_changes", "policy_changes", "words"),
    [
        ({"unit": "visit"}, {}, "'visit', but that of data set 'visits' is 'patient'"),
        ({"adjacency": "zero-out"}, {}, "adjacency is zero-out"),
        (
            {},
            {"unit_column": "patient_id", "rows_per_unit": 3},
            r"in a run file, \[ledger\] one_record_per_unit = true",
        ),
        ({}, {"largest_table": 50}, "at most 50"),
        (
            {"adjacency": "replace-one"},
            {"adjacency": "replace-one", "public_records": 59},
            "60 records, but the policy of 'visits' allows at most 59",
        ),
    ],
    ids=["unit", "adjacency", "column", "table", "records"],
)
def test_plan_and_data_set_must_promise_the_same(
    plan_changes: dict[str, Any], policy_changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with created(tmp_path / "other.db", **policy_changes) as made:
        with pytest.raises(PrivacyRefusal, match=words):
            charges(made, the_plan=plan(**plan_changes))
        assert states(made) == []


def test_that_each_unit_has_one_record_may_be_stated_and_is_written_down(tmp_path: Path) -> None:
    with created(tmp_path / "rows.db", unit_column="patient_id", rows_per_unit=3) as made:
        charges(made, one_record_per_unit=True).before(0)
        assert "one record per patient" in made.history("visits")[-1].body["label"]


def test_a_preparation_is_charged_before_it_touches_the_data(ledger: Ledger) -> None:
    the_plan = plan(preparation=[Gaussian(6.0)])
    account = charges(ledger, the_plan=the_plan)
    with pytest.raises(PrivacyRefusal, match=r"charges\.start\(\) before the preparation"):
        new_session(account)
    account.start()
    assert states(ledger) == ["RESERVED"]
    assert finish(new_session(account)).steps_done == STEPS
    whole = RENYI.price(the_plan.event, Adjacency.ADD_REMOVE)
    assert all(a >= b for a, b in zip(ledger.status("visits").spent, whole, strict=True))


def test_session_and_charges_share_plan_and_key(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="different generators"):
        new_session(charges(ledger), generator=seeded_generator(9))
    with pytest.raises(InvalidInput, match="another plan"):
        a_session(network(4, 2), records(), plan(steps=3), charges=charges(ledger), generator=None)


# --- going on --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Tensor:
    """Return the weights of an uninterrupted run without a ledger."""
    return weights(finish(new_session(None, generator=seeded_generator(8))))


def live(ledger: Ledger, state: Path, deaths: list[int], every: int, *, forfeit: bool) -> PrivateSession:
    """Lives of one run: each dies at a moment of its own, the last one reaches the end.

    A life saves its state only ``every`` steps, so that it may be older than the charges.  The moments are
    those before and after each message to the ledger and each step.  With ``forfeit`` somebody counts the
    chunk of a dead run as lost; its run can take it up all the same.
    """
    for moment in [*deaths, None]:
        mortal: Any = Mortal(ledger, moment)
        known = state.exists()
        run = new_session(charges(mortal, generator=None if known else seeded_generator(8), lease_s=0.001))
        run.load(state) if known else run.save(state)
        try:
            for batch in run.batches():
                mortal.die()
                run.step(batch)
                mortal.die()
                if run.steps_done % every == 0:
                    run.save(state)
        except Died:
            if forfeit:
                time.sleep(0.002)
                ledger.recover("visits")
            continue
        return run
    raise AssertionError("the last life died as well")


class Mortal:
    """A ledger whose caller dies at a given moment, counted over its requests."""

    def __init__(self, ledger: Ledger, moment: int | None) -> None:
        self._ledger, self._left = ledger, moment

    def die(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Died
            self._left -= 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if name not in ("reserve", "resume", "settle"):
            return found

        def asked(*arguments: Any, **options: Any) -> Any:
            self.die()
            answer = found(*arguments, **options)
            self.die()
            return answer

        return asked


@pytest.mark.untraced
@settings(max_examples=15, deadline=None)
@given(
    deaths=st.lists(st.integers(0, 40), max_size=5), every=st.integers(1, STEPS + 1), forfeit=st.booleans()
)
def test_a_run_that_dies_anywhere_is_charged_once_and_ends_the_same(
    deaths: list[int], every: int, forfeit: bool, whole: Tensor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lives")
    with created(folder / "budget.db") as made:
        run = live(made, folder / "resume.pt", deaths, every, forfeit=forfeit)
        assert torch.equal(weights(run), whole)
        assert steps_reserved(made) == list(range(STEPS))
        assert states(made) == ["SETTLED"] * 3
        assert made.verify("visits").ok


def test_planted_bug_charges_that_do_not_know_their_run_again(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each life draws new keys, the check above finds chunks that are charged twice."""
    lives = itertools.count()
    monkeypatch.setattr(StepCharges, "run", property(lambda self: f"life {next(lives)}"))
    monkeypatch.setattr(StepCharges, "_resume", lambda self, number: None)
    monkeypatch.setattr(StepCharges, "after", lambda self, step: None)
    live(ledger, tmp_path / "resume.pt", [20], 4, forfeit=False)
    found = steps_reserved(ledger)
    assert len(found) > len(set(found))


def test_a_chunk_that_is_settled_after_the_state_was_saved_is_done_again_for_nothing(
    ledger: Ledger, tmp_path: Path, whole: Tensor
) -> None:
    run = new_session(charges(ledger))
    run.save(tmp_path / "resume.pt")
    finish(run, 11)
    spent = ledger.status("visits").spent
    assert states(ledger) == ["SETTLED", "SETTLED", "RESERVED"]
    again = new_session(charges(ledger, generator=None))
    again.load(tmp_path / "resume.pt")
    assert again.steps_done == 0
    assert torch.equal(weights(finish(again)), whole)
    assert ledger.status("visits").spent == spent
    assert states(ledger) == ["SETTLED"] * 3


def test_the_same_records_have_no_second_budget(ledger: Ledger) -> None:
    """The first run registers them, and a run under another name is refused before its first step."""
    ledger.open_dataset("again", policy())
    finish(new_session(charges(ledger)))
    assert [entry.kind for entry in ledger.history("visits")].count("content") == 1
    other = new_session(StepCharges(ledger, "again", plan()))
    with pytest.raises(Conflict, match="already open as 'visits'"):
        finish(other)
    with pytest.raises(Conflict, match="already open as 'visits'"):
        other.step(StepTicket(0))
    assert ([entry.kind for entry in ledger.history("again")], other.steps_done) == (["open"], 0)
    finish(new_session(charges(ledger, key=9)))
    assert [entry.kind for entry in ledger.history("visits")].count("content") == 1
    assert ledger.verify("visits").ok


def test_records_that_would_have_to_be_decoded_are_not_read_for_it(ledger: Ledger) -> None:
    class Decoded(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            raise AssertionError("it was read")

    assert as_records(Decoded()).content() is None
    charges(ledger).recognise(as_records(Decoded()).content)
    assert [entry.kind for entry in ledger.history("visits")] == ["open"]


def test_only_the_key_of_the_noise_takes_up_a_chunk(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = charges(ledger), charges(ledger, key=9)
    mine.before(0)
    assert mine.run != other.run
    name = mine.run
    monkeypatch.setattr(StepCharges, "run", property(lambda self: name))  # who has read the ledger knows it
    with pytest.raises(PrivacyRefusal):
        other.before(0)


@pytest.mark.parametrize("moment", [1, 5])
def test_a_run_goes_on_when_the_reply_of_the_ledger_was_lost(
    moment: int, ledger: Ledger, whole: Tensor
) -> None:
    """The charge was committed, and the caller saw an error: the same session finds the charge at no cost."""
    mortal: Any = Mortal(ledger, moment)
    run = new_session(charges(mortal, generator=None) if moment == 1 else charges(mortal))
    with pytest.raises(Died):
        finish(run)
    mortal._left = None
    assert finish(run).steps_done == STEPS
    assert steps_reserved(ledger) == list(range(STEPS))
    assert states(ledger) == ["SETTLED"] * 3


def test_the_steps_of_an_earlier_life_need_its_resume_state(ledger: Ledger, tmp_path: Path) -> None:
    """Otherwise the same noise could be added to the sums of other records at no cost."""
    state = tmp_path / "resume.pt"
    finish(new_session(charges(ledger)), 3).save(state)
    other = new_session(charges(ledger, generator=saved_generator(state)))
    with pytest.raises(PrivacyRefusal, match=r"session\.load\(path\)"):
        finish(other)
    with pytest.raises(PrivacyRefusal, match=r"session\.load\(path\)"):
        other.step(StepTicket(0))
    assert other.steps_done == 0
    other.load(state)
    assert finish(other).steps_done == STEPS


@pytest.mark.parametrize(
    ("before", "now"),
    [({}, None), (None, {}), ({}, {"chunk": 4}), ({}, {"one_record_per_unit": True})],
    ids=["left-out", "begun-without", "other-chunk", "other-word"],
)
def test_a_run_goes_on_with_the_charges_that_it_was_started_with(
    before: dict[str, Any] | None, now: dict[str, Any] | None, ledger: Ledger, tmp_path: Path
) -> None:
    state = tmp_path / "resume.pt"
    finish(new_session(None if before is None else charges(ledger, **before)), 3).save(state)
    again = new_session(None if now is None else charges(ledger, generator=None, **now))
    with pytest.raises(PrivacyRefusal, match="Continue with the charges"):
        again.load(state)


def test_a_preparation_of_a_resumed_run_needs_the_old_key_from_the_start(
    ledger: Ledger, tmp_path: Path
) -> None:
    state, the_plan = tmp_path / "resume.pt", plan(preparation=[Gaussian(6.0)])
    first = charges(ledger, the_plan=the_plan)
    first.start()
    finish(new_session(first), 3).save(state)
    late = charges(ledger, the_plan=the_plan, generator=None)
    late.start()
    with pytest.raises(PrivacyRefusal, match=r"generator=saved_generator\(path\)"):
        new_session(late).load(state)
    spent = ledger.status("visits").spent
    right = charges(ledger, the_plan=the_plan, generator=saved_generator(state))
    right.start()
    run = new_session(right)
    run.load(state)
    finish(run, 5)
    assert ledger.status("visits").spent == spent


def test_a_run_that_the_ledger_ended_goes_on_when_there_is_budget_again(
    tmp_path: Path, whole: Tensor
) -> None:
    state = tmp_path / "resume.pt"
    with created(tmp_path / "raised.db") as made:
        run = finish(new_session(charges(made)), 7)
        greedy(made)
        run = finish(run)
        run.save(state)
        assert run.steps_done == 10
        again = new_session(charges(made, generator=None))
        again.load(state)
        assert finish(again).steps_done == 10
        assert again.stopped is not None
        made.raise_cap("visits", RAISED, reason="approved", by="the board")
        assert torch.equal(weights(finish(again)), whole)
        assert again.stopped is None
