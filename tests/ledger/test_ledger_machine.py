"""A ledger under random requests, against the simplest model of it: replay, balance and cap always agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tacit.events import ApproximateDP, Laplace
from tacit.ledger import Conflict, Ledger, Policy, PureBudget, Refused, RenyiBudget
from tacit.ledger.policy import Budget
from tacit.ledger.records import Charge, LeaseLost
from tacit.ledger.store import DatasetRow, Transaction

KEYS = st.sampled_from([f"k{number}" for number in range(12)])
TENTHS = st.integers(1, 5)
BLOCKS = st.sampled_from([None, "a", "b", "c"])


class Machine(RuleBasedStateMachine):
    """Charges of tenths on a data set with blocks, derived from another."""

    held = Bundle("held")

    @initialize(
        cap=st.integers(1, 20),
        replace_one=st.booleans(),
        above=st.sampled_from(
            [PureBudget(1.5), RenyiBudget(6.0, 1e-6), RenyiBudget(6.0, 1e-6, orders=(5.0,))]
        ),
    )
    def open(self, cap: int, replace_one: bool, above: Budget) -> None:
        self.ledger = Ledger.create("sqlite://")
        people: dict[str, Any] = {"unit": "patient", "adjacency": "add-remove"}
        if replace_one:
            people = {"unit": "patient", "adjacency": "replace-one", "public_records": 1000}
        self.at_once = 2 if replace_one else 1
        self.tenth = 20.0 if replace_one else 10.0  # under replace-one sums differ by twice as much
        self.cap = cap
        self.ledger.open_dataset("all", Policy(budget=above, **people))
        part = Policy(budget=PureBudget(cap / 10), blocks=("a", "b", "c"), parent="all", **people)
        self.ledger.open_dataset("part", part)
        self.tenths: dict[str | None, int] = {}
        self.known: dict[str, tuple[int, str | None, str, Any]] = {}  # key: tenths, block, state, answer

    def total_with(self, block: str | None = None, tenths: int = 0) -> int:
        spent = {**self.tenths, block: self.tenths.get(block, 0) + tenths}
        blocks = sorted((spent.get(each, 0) for each in "abc"), reverse=True)
        return spent.get(None, 0) + sum(blocks[: self.at_once])

    @rule(target=held, key=KEYS, tenths=TENTHS, block=BLOCKS)
    def reserve(self, key: str, tenths: int, block: str | None) -> Any:
        request = {"tenths": tenths, "block": block}
        event = Laplace(self.tenth / tenths)
        try:
            charge = self.ledger.reserve("part", event, key=key, request=request, block=block)
        except Conflict:
            assert key in self.known
            assert self.known[key][:2] != (tenths, block)
            return multiple()
        except Refused as refused:
            refusal = str(refused)
        else:
            return self.granted(charge, key, tenths, block)
        assert key not in self.known
        assert "'all'" in refusal or self.total_with(block, tenths) > self.cap, "refused although it fits"
        return multiple()

    def granted(self, charge: Charge, key: str, tenths: int, block: str | None) -> Any:
        if key in self.known:
            assert self.known[key][:2] == (tenths, block)
            assert charge.token is None
            assert (charge.state, charge.answer) == self.known[key][2:]
            return multiple()
        self.tenths[block] = self.tenths.get(block, 0) + tenths
        self.known[key] = (tenths, block, "RESERVED", None)
        assert self.total_with() <= self.cap, "granted although it does not fit"
        assert charge.token is not None
        return charge

    @rule(charge=consumes(held), answer=st.one_of(st.none(), st.integers(), st.text(max_size=3)))
    def settle(self, charge: Charge, answer: Any) -> None:
        self.end(charge, "SETTLED", answer, lambda: self.ledger.settle(charge, answer))

    @rule(charge=consumes(held))
    def forfeit(self, charge: Charge) -> None:
        self.end(charge, "FORFEITED", None, lambda: self.ledger.forfeit(charge))

    def end(self, charge: Charge, state: str, answer: Any, act: Callable[[], Charge]) -> None:
        tenths, block, before, _ = self.known[charge.key]
        assert before == "RESERVED"
        spent = self.ledger.status("part").spent
        assert act().state == state
        assert self.ledger.status("part").spent == spent, "ending a charge changes nothing that is spent"
        self.known[charge.key] = (tenths, block, state, answer)

    @rule(target=held, charge=consumes(held))
    def lose_and_resume(self, charge: Charge) -> Charge:
        assert charge.token is not None
        self.ledger.resume("part", charge.key, charge.token, lease_s=1e-6)
        assert charge.key in [lost.key for lost in self.ledger.recover("part")]
        with pytest.raises(LeaseLost):
            self.ledger.settle(charge, 1)
        return self.ledger.resume("part", charge.key, charge.token)

    @invariant()
    def replay_is_balance(self) -> None:
        for name in ("part", "all"):
            found = self.ledger.verify(name)
            assert found.problems == ()
            status = self.ledger.status(name)
            assert found.spent == status.spent
            assert status.policy.budget.admits(status.spent)
            assert status.spent_epsilon <= status.cap_epsilon
        assert self.ledger.status("part").spent == (self.total_with() * 10**11,)


Machine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase


# --- at once ---------------------------------------------------------------------------------------------


def people(budget: Budget) -> Policy:
    return Policy(unit="row", adjacency="add-remove", budget=budget)


def race(path: Path, *, attempts: int = 24, threads: int = 6) -> tuple[int, Fraction]:
    """Return the number of charges of 0.1 that threads get of a cap of 1 at once, and their total."""
    start = threading.Barrier(threads)

    def client(number: int) -> int:
        ledger = Ledger.open(path)
        start.wait()
        granted = 0
        for attempt in range(attempts // threads):
            try:
                key = f"{number}-{attempt}"
                ledger.settle(ledger.reserve("visits", ApproximateDP(0.1), key=key, request={}), 1)
                granted += 1
            except Refused:
                pass
        ledger.close()
        return granted

    with ThreadPoolExecutor(threads) as pool:
        granted = sum(pool.map(client, range(threads)))
    ledger = Ledger.open(path)
    spent = Fraction(ledger.status("visits").spent[0], 10**12)
    assert ledger.verify("visits").ok
    ledger.close()
    return granted, spent


def test_many_at_once_get_exactly_what_there_is(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.open_dataset("visits", people(PureBudget(1.0)))
    ledger.close()
    assert race(tmp_path / "ledger.db") == (10, Fraction(1))


def test_a_balance_read_before_the_lock_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a ledger that looks whether there is room, and then takes the lock, overspends here."""
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.open_dataset("visits", people(PureBudget(1.0)))
    ledger.close()
    threads = 4
    looked: dict[int, DatasetRow] = {}
    everybody_looked = threading.Barrier(threads)
    look, lock = Transaction.dataset, Transaction.lock

    def look_and_wait(self: Transaction, name: str) -> DatasetRow | None:
        found = look(self, name)
        assert found is not None
        looked[threading.get_ident()] = found
        everybody_looked.wait()
        return found

    def lock_too_late(self: Transaction, ids: Iterable[int]) -> dict[int, DatasetRow]:
        stale = looked[threading.get_ident()].spent
        return {number: replace(row, spent=stale) for number, row in lock(self, ids).items()}

    def client(number: int) -> bool:
        mine = Ledger.open(tmp_path / "ledger.db")
        try:
            mine.reserve("visits", ApproximateDP(0.6), key=str(number), request={})
        except Refused:
            return False
        finally:
            mine.close()
        return True

    with monkeypatch.context() as mutant, ThreadPoolExecutor(threads) as pool:
        mutant.setattr(Transaction, "dataset", look_and_wait)
        mutant.setattr(Transaction, "lock", lock_too_late)
        assert sum(pool.map(client, range(threads))) == threads
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert not ledger.verify("visits").ok, "and the replay sees it"
    ledger.close()
