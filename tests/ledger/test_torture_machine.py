"""A ledger that fails at any statement of any step, compared with a model of its possible states."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tacit.events import ApproximateDP, Event
from tacit.ledger import Ledger, Policy, PureBudget, Refused, store
from tacit.ledger.records import Charge

KEYS = st.integers(0, 7)
MOMENTS = st.one_of(st.none(), st.integers(0, 30))
KINDS = ("before_cursor_execute", "after_cursor_execute", "commit")
CAP = 12


class Died(BaseException):
    """An interrupt of a process that continues."""


class Failed(Exception):
    """A bug or a broken connection."""


@contextmanager
def failing(moment: int | None, failure: type[BaseException]) -> Iterator[None]:
    """Raise before or after a statement, or before a commit: at the moment of that number, if it comes."""
    left = -1 if moment is None else moment

    def tick(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise failure

    if moment is None:
        yield
        return
    for kind in KINDS:
        sa.event.listen(sa.Engine, kind, tick)
    try:
        yield
    finally:
        for kind in KINDS:
            sa.event.remove(sa.Engine, kind, tick)


def tenths(key: int) -> int:
    return 1 + key % 3


def event(key: int) -> Event:
    return ApproximateDP(tenths(key) / 10)


def token(key: int) -> str:
    return f"the token of charge {key}"


class Failing(RuleBasedStateMachine):
    """Charges of tenths on a data set and the one it is derived from, with a failure in any step."""

    @initialize()
    def make(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="tacit-ledger-", dir=memory if memory.is_dir() else None))
        self.ledger = Ledger.create(self.folder / "ledger.db")
        whole = Policy(unit="row", adjacency="add-remove", budget=PureBudget(5.0))
        part = Policy(unit="row", adjacency="add-remove", budget=PureBudget(CAP / 10), parent="all")
        self.ledger.open_dataset("all", whole)
        self.ledger.open_dataset("part", part)
        self.states: dict[int, str] = {}
        self.released: dict[int, int] = {}

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    def attempt(
        self, key: int, step: Callable[[], Charge], after: str, moment: int | None, kind: type[BaseException]
    ) -> Charge | None:
        """Take a step of a charge's life; if it fails, see whether it was taken: wholly, or not at all."""
        before = self.states.get(key)
        try:
            with failing(moment, kind):
                charge = step()
        except (Died, Failed):
            found = self.ledger.find("part", str(key))
            state = None if found is None else found.state
            assert state in (before, after), f"from {before} to {after}, but {state}"
            if state is not None:
                self.states[key] = state
            return None
        self.states[key] = charge.state
        return charge

    @rule(key=KEYS, moment=MOMENTS, kind=st.sampled_from([Died, Failed]))
    def reserve(self, key: int, moment: int | None, kind: type[BaseException]) -> None:
        before, room = self.states.get(key), CAP - self.total()

        def step() -> Charge:
            return self.ledger.reserve("part", event(key), key=str(key), request={"n": key}, token=token(key))

        try:
            charge = self.attempt(key, step, before or "RESERVED", moment, kind)
        except Refused:
            assert before is None
            assert tenths(key) > room, "refused although it fits"
            return
        if charge is not None and before is None:
            assert tenths(key) <= room, "granted although it does not fit"
            assert charge.token == token(key)
        elif charge is not None:
            assert (charge.token, charge.state) == (None, before)
            assert charge.answer == self.released.get(key, charge.answer)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), answer=st.integers(), moment=MOMENTS, kind=st.sampled_from([Died, Failed]))
    def settle(self, data: st.DataObject, answer: int, moment: int | None, kind: type[BaseException]) -> None:
        key = data.draw(st.sampled_from(sorted(self.states)))
        charge = self.ledger.resume("part", str(key), token(key))
        self.states[key] = charge.state
        if charge.state == "SETTLED":
            assert charge.answer == self.released.get(key, charge.answer)
            return
        done = self.attempt(key, lambda: self.ledger.settle(charge, answer), "SETTLED", moment, kind)
        if done is not None:
            self.released[key] = answer

    @precondition(lambda self: self.states)
    @rule(data=st.data(), moment=MOMENTS, kind=st.sampled_from([Died, Failed]))
    def forfeit(self, data: st.DataObject, moment: int | None, kind: type[BaseException]) -> None:
        key = data.draw(st.sampled_from(sorted(self.states)))
        charge = self.ledger.resume("part", str(key), token(key))
        self.states[key] = charge.state
        if charge.state == "RESERVED":
            self.attempt(key, lambda: self.ledger.forfeit(charge), "FORFEITED", moment, kind)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), moment=MOMENTS, kind=st.sampled_from([Died, Failed]))
    def resume(self, data: st.DataObject, moment: int | None, kind: type[BaseException]) -> None:
        key = data.draw(st.sampled_from(sorted(self.states)))
        after = "SETTLED" if self.states[key] == "SETTLED" else "RESERVED"
        self.attempt(key, lambda: self.ledger.resume("part", str(key), token(key)), after, moment, kind)

    @precondition(lambda self: "RESERVED" in self.states.values())
    @rule(data=st.data(), moment=MOMENTS, kind=st.sampled_from([Died, Failed]))
    def recover(self, data: st.DataObject, moment: int | None, kind: type[BaseException]) -> None:
        lost = sorted(key for key, state in self.states.items() if state == "RESERVED")
        key = data.draw(st.sampled_from(lost))
        self.ledger.resume("part", str(key), token(key), lease_s=1e-6)

        def step() -> Charge:
            (forfeited,) = self.ledger.recover("part")
            return forfeited

        self.attempt(key, step, "FORFEITED", moment, kind)
        if self.states[key] == "RESERVED":  # it failed: take it up again, for another time
            self.ledger.resume("part", str(key), token(key))

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.folder / "ledger.db")

    def total(self) -> int:
        return sum(tenths(key) for key in self.states)

    @invariant()
    def nothing_is_lost_or_spent_twice(self) -> None:
        for name in ("part", "all"):
            found = self.ledger.verify(name)
            assert found.problems == ()
            assert found.spent == self.ledger.status(name).spent == (self.total() * 10**11,)
        assert self.total() <= CAP
        for key, answer in self.released.items():
            charge = self.ledger.find("part", str(key))
            assert charge is not None
            assert (charge.state, charge.answer) == ("SETTLED", answer)


Failing.TestCase.settings = settings(
    max_examples=10, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFailing = Failing.TestCase


def test_the_machine_sees_a_charge_that_is_committed_too_early() -> None:
    """The control: if the row of a charge is committed alone, the test detects a failure soon after it."""

    def commit_at_once(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        database = connection.connection.dbapi_connection
        if statement.startswith(("INSERT INTO charge", "UPDATE charge")) and database is not None:
            database.commit()
            database.cursor().execute("BEGIN IMMEDIATE")

    sa.event.listen(sa.Engine, "after_cursor_execute", commit_at_once)
    try:
        seen = [moment for moment in range(20) if not whole(moment, Failed)]
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", commit_at_once)
    assert 2 <= len(seen) <= 10
    assert all(whole(moment, Failed) for moment in seen)


def whole(moment: int, kind: type[BaseException]) -> bool:
    """Whether the machine finds nothing after a reservation that failed at a moment, and was asked again."""
    machine = Failing()
    machine.make()
    try:
        machine.reserve(0, moment, kind)
        machine.nothing_is_lost_or_spent_twice()
        machine.reserve(0, None, kind)
        machine.nothing_is_lost_or_spent_twice()
    except AssertionError:
        return False
    finally:
        machine.teardown()
    return True


def test_an_interrupt_leaves_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its traceback is kept, as a notebook does, and with it the cursor of a statement."""
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.2)
    kept = []
    for moment in range(18):
        machine = Failing()
        machine.make()
        try:
            with failing(moment, Died):
                machine.ledger.reserve("part", event(0), key="0", request={}, token=token(0))
        except Died as interrupt:
            kept.append(interrupt)
        other = Ledger.open(machine.folder / "ledger.db")
        assert other.reserve("part", event(0), key="other", request={}).token is not None
        other.close()
        machine.teardown()
    assert len(kept) >= 15
