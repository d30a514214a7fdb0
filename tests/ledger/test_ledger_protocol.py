"""Reserve, settle, forfeit: who may run, who is refused, and that nothing spent comes back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import places
import postgres_server
import pytest

from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedEvent
from tacit.events import ApproximateDP, DiscreteLaplace, Event, Gaussian, Laplace
from tacit.ledger import (
    ApproximateBudget,
    Column,
    Conflict,
    Ledger,
    LedgerUnavailable,
    Policy,
    PureBudget,
    Refused,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.ledger.policy import UNIT
from tacit.ledger.records import Charge, LeaseLost


def policy(epsilon: float = 1.0, **fields: Any) -> Policy:
    given: dict[str, Any] = {
        "unit": "patient",
        "adjacency": "add-remove",
        "budget": PureBudget(epsilon),
    } | fields
    return Policy(**given)


def count(epsilon: float) -> Event:
    return ApproximateDP(epsilon)


def ask(ledger: Ledger, epsilon: float, key: str, **more: Any) -> Charge:
    return ledger.reserve("visits", count(epsilon), key=key, request={"count": key}, **more)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with places.server() as started:
        yield started


@pytest.fixture(params=places.PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "file":
            return str(tmp_path / "ledger.db")
        case "memory":
            return "sqlite://"
    return str(places.emptied(request.getfixturevalue("server")))


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    made = Ledger.create(url)
    made.open_dataset("visits", policy())
    yield made
    made.close()


def test_the_lecture_example_is_exact(ledger: Ledger) -> None:
    ledger.open_dataset("lecture", policy(1.2))
    for epsilon in (0.5, 0.2, 0.25, 0.25):
        ledger.reserve(
            "lecture", count(epsilon), key=f"{epsilon}{len(ledger.history('lecture'))}", request={}
        )
    status = ledger.status("lecture")
    assert status.spent == status.cap == (1_200_000_000_000,)
    assert status.remaining_epsilon == 0.0
    with pytest.raises(Refused):
        ledger.reserve("lecture", count(1e-12), key="more", request={})


def test_ten_tenths_of_laplace_noise_fill_a_budget_of_one(ledger: Ledger) -> None:
    for number in range(10):
        ledger.reserve("visits", DiscreteLaplace(30.0, sensitivity=3), key=str(number), request={})
    assert ledger.status("visits").spent == (UNIT,)


def test_what_does_not_fit_is_refused_with_what_is_left(ledger: Ledger) -> None:
    ask(ledger, 0.75, "first")
    with pytest.raises(
        Refused, match=r"1\.25 would be spent with it, and the cap is 1\.00.*up to epsilon 0\.250"
    ) as caught:
        ask(ledger, 0.5, "second")
    refused = caught.value
    assert (refused.requested, refused.remaining, refused.difference) == pytest.approx((0.5, 0.25, 0.25))
    assert refused.would_fit == 0.25
    assert refused.exit_code == 1
    assert [entry.kind for entry in ledger.history("visits")] == ["open", "reserve", "refuse"]
    assert ledger.status("visits").spent == (750_000_000_000,)
    assert ask(ledger, 0.25, "second").token is not None, "a refused key is free for what fits"


def test_only_the_caller_who_reserved_has_a_token(ledger: Ledger) -> None:
    mine = ask(ledger, 0.5, "q")
    theirs = ask(ledger, 0.5, "q")
    assert mine.token is not None
    assert (theirs.token, theirs.state, theirs.id) == (None, "RESERVED", mine.id)
    with pytest.raises(LeaseLost, match="has no token"):
        ledger.settle(theirs, 1)
    with pytest.raises(LeaseLost, match="another process"):
        ledger.settle(replace(theirs, token="0" * 32), 1)
    assert ledger.status("visits").spent == (UNIT // 2,)


def test_the_same_request_is_answered_from_storage(ledger: Ledger) -> None:
    ledger.settle(ask(ledger, 1.0, "q"), {"rows": [1, 2.5, None, "x"]})
    again = ask(ledger, 1.0, "q")
    assert (again.state, again.answer, again.token) == ("SETTLED", {"rows": [1, 2.5, None, "x"]}, None)
    with pytest.raises(Conflict, match="belongs to another request"):
        ledger.reserve("visits", count(1.0), key="q", request={"count": "else"})


def test_settling_twice_is_once(ledger: Ledger) -> None:
    charge = ask(ledger, 0.5, "q")
    assert ledger.settle(charge, 7) == ledger.settle(charge, 7)
    with pytest.raises(LeaseLost):
        ledger.settle(charge, 8)
    assert ask(ledger, 0.5, "q").answer == 7
    assert [entry.kind for entry in ledger.history("visits")].count("settle") == 1


def test_what_is_forfeited_stays_spent(ledger: Ledger) -> None:
    charge = ask(ledger, 0.75, "q")
    assert ledger.forfeit(charge).state == "FORFEITED"
    assert ledger.status("visits").spent == (750_000_000_000,)
    with pytest.raises(LeaseLost):
        ledger.settle(charge, 1)
    found = ask(ledger, 0.75, "q")
    assert (found.state, found.answer, found.token) == ("FORFEITED", None, None)


def test_an_ended_lease_is_forfeited_and_may_be_resumed_with_the_token(ledger: Ledger) -> None:
    charge = ask(ledger, 0.5, "run", lease_s=1e-6)
    waiting = ask(ledger, 0.25, "other")
    assert [lost.key for lost in ledger.recover("visits")] == ["run"]
    assert ledger.recover("visits") == []
    with pytest.raises(LeaseLost, match="resume"):
        ledger.settle(charge, 1)
    assert charge.token is not None
    with pytest.raises(LeaseLost, match="another process"):
        ledger.resume("visits", "run", "0" * 32)
    taken = ledger.resume("visits", "run", charge.token)
    assert (taken.state, taken.token) == ("RESERVED", charge.token)
    assert ledger.settle(taken, 1).state == "SETTLED"
    assert ledger.resume("visits", "run", charge.token).answer == 1
    assert ledger.status("visits").spent == (750_000_000_000,)
    assert ledger.forfeit(waiting).state == "FORFEITED"


def test_another_ledger_object_sees_the_same(ledger: Ledger, url: str) -> None:
    ask(ledger, 0.5, "q")
    if url == "sqlite://":
        with pytest.raises(InvalidInput, match="in memory cannot be opened again"):
            Ledger.open(url)
        return
    other = Ledger.open(url if "://" in url else f"sqlite:///{url}")
    assert other.status("visits") == ledger.status("visits")
    assert other.uuid == ledger.uuid
    other.close()


def test_a_policy_is_fixed_at_opening(ledger: Ledger) -> None:
    ledger.open_dataset("visits", policy())
    with pytest.raises(Conflict, match=r"budget: .*; unit: open with 'patient', asked 'row'"):
        ledger.open_dataset("visits", policy(2.0, unit="row"))
    assert ledger.policy("visits") == policy()


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("name", ["", "a b", "-x", "a:b", "a/b", "ä"])
def test_names_of_data_sets_are_plain(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidInput, match="letters"):
        ledger.open_dataset(name, policy())


def test_bad_requests_are_refused_before_anything_is_charged(ledger: Ledger) -> None:
    for key in ("", "@visits/q", "x" * 501, "a\x00b", "a\nb", "\ud800"):
        with pytest.raises(InvalidInput, match="key must be"):
            ask(ledger, 0.5, key)
    with pytest.raises(InvalidInput, match=r"no data set 'visit' is open.*Open ones: visits"):
        ledger.reserve("visit", count(0.1), key="q", request={})
    with pytest.raises(InvalidInput, match="JSON has no nan"):
        ledger.reserve("visits", count(0.1), key="q", request={"x": float("nan")})
    with pytest.raises(InvalidInput, match="lease_s"):
        ask(ledger, 0.1, "q", lease_s=float("inf"))
    with pytest.raises(UnsupportedEvent, match="has a pure budget"):
        ledger.reserve("visits", Gaussian(1.0), key="q", request={})
    with pytest.raises(UnsupportedEvent, match="must be an event"):
        ledger.reserve("visits", "count", key="q", request={})  # type: ignore[arg-type]
    assert ledger.status("visits").spent == (0,)
    assert len(ledger.history("visits")) == 1


def test_there_is_one_ledger_at_a_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no ledger at"):
        Ledger.open(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == [], "looking for a ledger makes none"
    Ledger.create(tmp_path / "one.db").close()
    with pytest.raises(InvalidInput, match="is not empty"):
        Ledger.create(tmp_path / "one.db")
    with pytest.raises(InvalidInput, match="does not exist"):
        Ledger.create(tmp_path / "no" / "one.db")
    with pytest.raises(InvalidInput, match="PostgreSQL"):
        Ledger.create("mysql://localhost/x")


@pytest.mark.untraced
@pytest.mark.parametrize(
    "budget",
    [
        PureBudget(1.0),
        ApproximateBudget(1.0, 1e-6),
        ZeroConcentratedBudget(1.0, 1e-6, threshold_delta=1e-7),
        RenyiBudget(1.0, 1e-6, threshold_delta=1e-7),
        RenyiBudget(3.0, 1e-6, orders=(8.0,)),
    ],
    ids=lambda budget: f"{budget.mode}-{len(budget.slots)}",
)
def test_every_mode_charges_and_refuses(ledger: Ledger, budget: Any) -> None:
    ledger.open_dataset("other", policy(budget=budget))
    price = ledger.price("other", Laplace(8.0))
    assert price.fits
    assert price.after == pytest.approx(price.epsilon)
    granted = 0
    while ledger.price("other", Laplace(8.0)).fits:
        ledger.reserve("other", Laplace(8.0), key=str(granted), request={})
        granted += 1
    with pytest.raises(Refused):
        ledger.reserve("other", Laplace(8.0), key=str(granted), request={})
    status = ledger.status("other")
    assert 1 <= granted < 1000
    assert status.spent == tuple(granted * part for part in price.cost)
    assert status.spent_epsilon <= status.cap_epsilon
    assert status.spent_delta <= status.cap_delta
    assert not ledger.price("other", Laplace(8.0)).fits
    fits = status.remaining_epsilon
    assert fits < 0.125 + 1e-9 or budget.mode in ("renyi", "zcdp")
    if fits > 0:
        ledger.reserve("other", count(fits), key="last", request={})


def test_a_server_that_may_lose_commits_is_refused() -> None:
    reason = postgres_server.missing()
    if reason:
        pytest.skip(reason)
    with postgres_server.running("fsync=off") as careless:
        with pytest.raises(PrivacyRefusal, match="fsync=off"):
            Ledger.create(careless.url)
        careless.stop()
        with pytest.raises(LedgerUnavailable, match="Nothing may be released"):
            Ledger.create(careless.url)


def test_policies_are_data_that_can_be_carried_about() -> None:
    columns = {
        "age": Column(kind="integer", lower=0, upper=120),
        "ward": Column(kind="category", values=("a", "b")),
    }
    made = policy(unit_column="patient", rows_per_unit=3, columns=columns, blocks=("x", "y"), note="board")
    assert Policy.from_json(made.to_json()) == made
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)
    with pytest.raises(TypeError):
        made.columns["age"] = columns["ward"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unit": ""}, "unit must be a string"),
        ({"adjacency": "remove"}, "adjacency must be one of"),
        ({"adjacency": "replace-one"}, "public_records"),
        ({"public_records": 5}, "not allowed with add-remove"),
        ({"rows_per_unit": 2}, "unit_column"),
        ({"rows_per_unit": 0}, "rows_per_unit"),
        ({"unit_column": "p", "rows_per_unit": 2, "groups_per_unit": 3}, "groups_per_unit"),
        ({"blocks": ("a", "a")}, "distinct"),
        ({"blocks": ("\ud800",)}, "printable"),
        ({"parent_block": "a"}, "needs parent"),
        ({"columns": {"a": 1}}, "must be a Column"),
        ({"budget": 1.0}, "must be a Budget"),
        ({"largest_table": 2**63}, "largest_table"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_policies_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        policy(**fields)


def test_refusals_of_every_kind_exit_with_1() -> None:
    assert {kind.exit_code for kind in (Conflict, LeaseLost, Refused)} == {1}
    assert issubclass(Conflict, PrivacyRefusal)


def test_a_ledger_and_a_status_show_themselves_in_a_line(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "budget.db")
    ledger.open_dataset("visits", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0)))
    ledger.reserve("visits", ApproximateDP(0.25), key="1", request={})
    assert repr(ledger) == f"Ledger({str(tmp_path / 'budget.db')!r}, uuid={ledger.uuid!r})"
    shown = "DatasetStatus('visits': epsilon 0.250 at delta 0 spent, of epsilon 1.00 at delta 0; 1 charge)"
    assert repr(ledger.status("visits")) == shown
