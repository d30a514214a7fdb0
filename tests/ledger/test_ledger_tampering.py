"""Whoever edits the database is found out; a restored backup needs an anchor that was kept elsewhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InvalidInput
from tacit.events import ApproximateDP, Laplace
from tacit.ledger import Anchor, Conflict, Ledger, LedgerUnavailable, Policy, PureBudget, Refused, RenyiBudget
from tacit.ledger.charges import hash_of_token
from tacit.ledger.records import GENESIS, LeaseLost, canonical, entry_hash

OURS = "WHERE dataset_id=2"
Tamper = Callable[[sqlite3.Connection], None]


def filled(path: Path) -> Ledger:
    """A data set and one derived from it, with charges in every state, and a refusal."""
    ledger = Ledger.create(path)
    whole = Policy(unit="patient", adjacency="add-remove", budget=RenyiBudget(4.0, 1e-6))
    ledger.open_dataset("all", whole)
    ledger.open_dataset("part", replace(whole, budget=PureBudget(1.0), parent="all", blocks=("a", "b")))
    for number in range(6):
        block = "ab"[number % 2]
        charge = ledger.reserve("part", Laplace(10.0), key=f"q{number}", request={"n": number}, block=block)
        if number < 4:
            ledger.settle(charge, {"count": 100 + number})
        elif number == 4:
            ledger.forfeit(charge)
    ledger.reserve("all", Laplace(5.0), key="own", request={})
    with pytest.raises(Refused):
        ledger.reserve("part", ApproximateDP(0.9), key="large", request={})
    return ledger


def edit(statement: str, *values: object) -> Tamper:
    def tamper(database: sqlite3.Connection) -> None:
        assert database.execute(statement, values).rowcount > 0

    return tamper


def edit_body(seq: int, old: str, new: str, *, rehash: bool = False) -> Tamper:
    def tamper(database: sqlite3.Connection) -> None:
        where = f"{OURS} AND seq=?"
        body, previous = database.execute(f"SELECT body, prev_hash FROM entry {where}", (seq,)).fetchone()
        assert old in body
        changed = body.replace(old, new, 1)
        database.execute(f"UPDATE entry SET body=? {where}", (changed, seq))
        if rehash:
            database.execute(f"UPDATE entry SET hash=? {where}", (entry_hash(previous, changed), seq))

    return tamper


def cut_last(database: sqlite3.Connection) -> None:
    """Take the last entry out, and make the head fit."""
    database.execute(f"DELETE FROM entry {OURS} AND seq=(SELECT max(seq) FROM entry {OURS})")
    database.execute(
        "UPDATE dataset SET (head_seq, head_hash, head_time) = (SELECT seq, hash, "
        "json_extract(body, '$.time') FROM entry WHERE dataset_id=2 ORDER BY seq DESC LIMIT 1) WHERE id=2"
    )


def cut_reservation(database: sqlite3.Connection) -> None:
    """Undo the last charge as if it had never been, but for its mirror: rows, head and balance."""
    row = database.execute("SELECT id FROM charge WHERE dataset_id=2 ORDER BY id DESC LIMIT 1").fetchone()
    database.execute("UPDATE charge SET origin=NULL WHERE origin=?", row)
    database.execute("DELETE FROM charge WHERE id=?", row)
    cut_last(database)  # the refusal
    cut_last(database)
    spent = json.loads(database.execute("SELECT spent FROM dataset WHERE id=2").fetchone()[0])
    spent["b"][0] -= 100_000_000_000
    database.execute("UPDATE dataset SET spent=? WHERE id=2", (canonical(spent),))


def rewrite(database: sqlite3.Connection, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every entry, with all hashes anew, so that the chain holds."""
    previous = GENESIS
    for seq, body in database.execute(f"SELECT seq, body FROM entry {OURS} ORDER BY seq").fetchall():
        data = json.loads(body)
        change(data)
        text = canonical(data)
        digest = entry_hash(previous, text)
        database.execute(
            f"UPDATE entry SET body=?, prev_hash=?, hash=? {OURS} AND seq=?", (text, previous, digest, seq)
        )
        previous = digest
    spent = canonical(data["spent"])
    database.execute("UPDATE dataset SET head_hash=?, spent=? WHERE id=2", (previous, spent))


def at_half_price(database: sqlite3.Connection) -> None:
    """Every charge, in entries, totals and rows, and the events with them."""

    def change(data: dict[str, Any]) -> None:
        data["spent"] = {block: [cost[0] // 2] for block, cost in data["spent"].items()}
        if data["kind"] == "reserve":
            data["cost"] = [data["cost"][0] // 2]
            data["event"] = data["event"].replace("10.0", "20.0")

    rewrite(database, change)
    database.execute("UPDATE charge SET cost='[50000000000]' WHERE dataset_id=2")


def below_price(database: sqlite3.Connection) -> None:
    """Likewise, but with the events as they were: a replay prices them anew."""

    def change(data: dict[str, Any]) -> None:
        data["spent"] = {block: [cost[0] // 2] for block, cost in data["spent"].items()}
        if data["kind"] == "reserve":
            data["cost"] = [data["cost"][0] // 2]

    rewrite(database, change)
    database.execute("UPDATE charge SET cost='[50000000000]' WHERE dataset_id=2")


def above_budget(database: sqlite3.Connection) -> None:
    """A cap at opening that the budget of the policy does not come to."""

    def change(data: dict[str, Any]) -> None:
        if data["kind"] == "open":
            data["cap"] = [3_000_000_000_000]

    rewrite(database, change)
    database.execute("UPDATE dataset SET cap='[3000000000000]' WHERE id=2")


def exchange_answers(database: sqlite3.Connection) -> None:
    """Exchange the answers of two settled charges: both were given, but to the other question."""
    query = "SELECT id, answer FROM charge WHERE dataset_id=2 AND state='SETTLED' LIMIT 2"
    (one, first), (other, second) = database.execute(query).fetchall()
    for number, answer in ((one, second), (other, first)):
        database.execute("UPDATE charge SET answer=? WHERE id=?", (answer, number))


def exchange_entries(database: sqlite3.Connection) -> None:
    for seq, becomes in ((1, -1), (3, 1), (-1, 3)):
        database.execute(f"UPDATE entry SET seq=? {OURS} AND seq=?", (becomes, seq))


EDITS: dict[str, Tamper] = {
    "balance lowered": edit("UPDATE dataset SET spent='{}' WHERE id=2"),
    "balance of a block": edit("UPDATE dataset SET spent=replace(spent, '[3', '[1') WHERE id=2"),
    "cost of a charge": edit("UPDATE charge SET cost='[1]' WHERE id=1"),
    "cost in an entry": edit_body(1, '"cost":[100000000000]', '"cost":[1]'),
    "cost in an entry, hashed": edit_body(1, '"cost":[100000000000]', '"cost":[1]', rehash=True),
    "event in the last reservation, hashed": edit_body(11, "10.0", "99.0", rehash=True),
    "last entry, head left": edit("DELETE FROM entry WHERE dataset_id=2 AND seq=12"),
    "entry in the middle": edit("DELETE FROM entry WHERE dataset_id=2 AND seq=3"),
    "all entries": edit("DELETE FROM entry WHERE dataset_id=2"),
    "cap": edit("UPDATE dataset SET cap='[2000000000000]' WHERE id=2"),
    "budget": edit("UPDATE dataset SET policy=replace(policy, ': 1.0', ': 2.0') WHERE id=2"),
    "unit": edit("UPDATE dataset SET policy=replace(policy, 'patient', 'row') WHERE id=2"),
    "cap at opening, hashed": edit_body(0, '"cap":[1000000000000]', '"cap":[3000000000000]', rehash=True),
    "state": edit("UPDATE charge SET state='FORFEITED' WHERE id=1"),
    "state of a reservation": edit(
        f"UPDATE charge SET state='SETTLED', answer='1' {OURS} AND state='RESERVED'"
    ),
    "answer": edit("UPDATE charge SET answer='{\"count\":7}' WHERE id=1"),
    "answer taken out": edit("UPDATE charge SET answer=NULL WHERE id=1"),
    "request": edit("UPDATE charge SET request_hash=(SELECT request_hash FROM charge WHERE id=3) WHERE id=1"),
    "key": edit("UPDATE charge SET idem_key='q9' WHERE id=1"),
    "block": edit("UPDATE charge SET block='b' WHERE id=1"),
    "charge": edit("DELETE FROM charge WHERE id=12"),
    "mirror": edit("UPDATE charge SET origin=3 WHERE origin=1"),
    "token of a reservation": edit("UPDATE charge SET token_hash='00' WHERE id=11"),
    "token of another": edit("UPDATE charge SET token_hash=(SELECT token_hash FROM charge WHERE id=1)"),
    "lease": edit("UPDATE charge SET lease_ends=lease_ends+1 WHERE id=11"),
    "lease of all": edit("UPDATE charge SET lease_ends=0"),
    "token in the last reservation, hashed": edit_body(11, 'token_hash":"', 'token_hash":"0', rehash=True),
    "lease in the last reservation, hashed": edit_body(11, 'lease_ends":', 'lease_ends":9', rehash=True),
    "time of opening": edit("UPDATE dataset SET opened=opened-1 WHERE id=2"),
    "head": edit("UPDATE dataset SET head_hash='00' WHERE id=2"),
    "name of the ledger": edit("UPDATE ledger SET uuid='00'"),
    "secret": edit("UPDATE ledger SET secret='00'"),
    "what was asked": edit_body(11, '"label":""', '"label":"something else"'),
    "when": edit_body(12, '"time":1', '"time":9'),
    "all prices, hashed": below_price,
    "cap, hashed": above_budget,
    "answers of two charges": exchange_answers,
    "two entries": exchange_entries,
    "a charge of nobody": edit(
        "INSERT INTO charge (dataset_id, idem_key, request_hash, cost, state, token_hash, lease_ends) "
        "VALUES (2, 'z', '00', '[1]', 'RESERVED', '00', 0)"
    ),
    "time of the head": edit("UPDATE dataset SET head_time=head_time+1000000 WHERE id=2"),
    "time that is none": edit_body(4, '"time":', '"time":"12","was":'),
    "time beyond all": edit_body(4, '"time":', f'"time":9{"9" * 30}'),
    "opening unreadable": edit("UPDATE entry SET body='{' WHERE dataset_id=2 AND seq=0"),
    "entry of brackets": edit(f"UPDATE entry SET body='{'[' * 100_000}' WHERE dataset_id=2 AND seq=4"),
    "unreadable entry": edit("UPDATE entry SET body='{' WHERE dataset_id=2 AND seq=4"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tampering") / "ledger.db"
    filled(path).close()
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "ledger.db"))


def test_nothing_is_found_where_nothing_was_touched(original: Path) -> None:
    ledger = Ledger.open(original)
    for name in ("all", "part"):
        found = ledger.verify(name, anchor=ledger.anchor(name))
        assert (found.problems, found.notes) == ((), ())
        assert found.ok
    assert found.spent == ledger.status("part").spent == (300_000_000_000,)
    assert found.entries == 13
    ledger.close()


@pytest.mark.parametrize("kind", EDITS)
def test_every_edit_is_found(copy: Path, kind: str) -> None:
    with closing(sqlite3.connect(copy)) as database, database:
        EDITS[kind](database)
    ledger = Ledger.open(copy)
    assert not ledger.verify("part").ok
    ledger.close()


def test_who_takes_a_reservation_over_in_the_database_is_found(copy: Path) -> None:
    """An attacker with another token in its row could run the mechanism that another process runs."""
    with closing(sqlite3.connect(copy)) as database, database:
        (secret,) = database.execute("SELECT secret FROM ledger").fetchone()
        known = hash_of_token(bytes.fromhex(secret), "a token of their own")
        database.execute("UPDATE charge SET token_hash=? WHERE id=11 OR origin=11", (known,))
    ledger = Ledger.open(copy)
    taken = ledger.resume("part", "q5", "a token of their own")
    ledger.settle(taken, {"count": 7})
    for name in ("part", "all"):
        assert "token_hash" in ledger.verify(name).problems[0]
    ledger.close()


def test_a_longer_lease_is_in_the_history(copy: Path) -> None:
    ledger = Ledger.open(copy)
    token = "a secret of the client's own"
    held = ledger.reserve("part", ApproximateDP(0.1), key="long", request={}, token=token)
    longer = ledger.resume("part", "long", token, lease_s=9999.0)
    assert longer.lease_ends > held.lease_ends
    assert [entry.kind for entry in ledger.history("part")[-2:]] == ["reserve", "resume"]
    for name in ("part", "all"):
        found = ledger.verify(name)
        assert (found.problems, found.notes) == ((), ())
    ledger.close()


@pytest.mark.parametrize("field", ["dataset.spent", "dataset.cap", "charge.cost"])
@pytest.mark.parametrize("value", ["x", "1", '["x"]', '{"": 1}', "[" * 100_000], ids=range(5))
def test_what_cannot_be_read_is_no_balance(copy: Path, field: str, value: str) -> None:
    table, column = field.split(".")
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute(f"UPDATE {table} SET {column}=?", (value,))
    ledger = Ledger.open(copy)
    with pytest.raises(LedgerUnavailable, match="edited or is damaged"):
        ledger.verify("part")
    with pytest.raises((LedgerUnavailable, Refused)):
        ledger.reserve("part", ApproximateDP(0.9), key="q0", request={"n": 0})
    ledger.close()


def test_a_data_set_that_was_opened_anew_is_found_with_an_anchor(copy: Path) -> None:
    ledger = Ledger.open(copy)
    anchor, policy = ledger.anchor("part"), ledger.policy("part")
    ledger.close()
    with closing(sqlite3.connect(copy)) as database, database:
        for table, column in (("entry", "dataset_id"), ("charge", "dataset_id"), ("dataset", "id")):
            database.execute(f"DELETE FROM {table} WHERE {column}=2")
    ledger = Ledger.open(copy)
    with pytest.raises(InvalidInput, match="no data set 'part' is open"):
        ledger.verify("part", anchor=anchor)
    ledger.open_dataset("part", policy)
    assert ledger.verify("part").ok
    assert not ledger.verify("part", anchor=anchor).ok
    ledger.close()


def test_a_history_cut_short_is_found_with_an_anchor_only(copy: Path) -> None:
    ledger = Ledger.open(copy)
    anchor = ledger.anchor("part")
    with closing(sqlite3.connect(copy)) as database, database:
        cut_last(database)
    assert ledger.verify("part").ok, "a refusal taken out, with the head: as if it had not been yet"
    assert "old backup" in ledger.verify("part", anchor=anchor).problems[0]
    ledger.close()


def test_a_charge_that_never_was_is_found_in_the_parent(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as database, database:
        cut_reservation(database)
    ledger = Ledger.open(copy)
    assert ledger.verify("part").ok
    assert not ledger.verify("all").ok
    ledger.close()


def test_a_rewritten_history_is_found_with_an_anchor_only(copy: Path) -> None:
    ledger = Ledger.open(copy)
    anchor = ledger.anchor("part")
    with closing(sqlite3.connect(copy)) as database, database:
        at_half_price(database)
    assert ledger.verify("part").ok, "hashes alone cannot tell"
    found = ledger.verify("part", anchor=Anchor.parse(str(anchor)))
    assert "history was rewritten" in found.problems[0]
    ledger.close()


def test_a_restored_backup_is_found_with_an_anchor_and_burnt(original: Path, tmp_path: Path) -> None:
    copy, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    shutil.copy(original, copy)
    ledger = Ledger.open(copy)
    held = ledger.reserve("part", Laplace(10.0), key="held", request={})
    ledger.close()
    shutil.copy(copy, backup)
    ledger = Ledger.open(copy)
    ledger.settle(held, 5)
    anchor = ledger.anchor("part")
    with pytest.raises(InvalidInput, match="Nothing is missing"):
        ledger.recover_from_backup("part", anchor)
    ledger.close()

    ledger = Ledger.open(backup)
    assert ledger.verify("part").ok, "an old state is as good as any, without an anchor"
    assert "old backup" in ledger.verify("part", anchor=anchor).problems[0]
    with pytest.raises(Conflict, match="not of data set"):
        ledger.recover_from_backup("all", anchor)
    reserved = ledger.status("part").charges["RESERVED"]
    assert reserved == 2
    ledger.recover_from_backup("part", anchor)
    for name in ("part", "all"):
        found = ledger.verify(name)
        assert found.ok
        assert "backup was restored" in found.notes[0]
        assert ledger.status(name).remaining_epsilon == 0.0
        assert ledger.status(name).charges["RESERVED"] == 0
    assert ledger.verify("part", anchor=anchor).ok
    with pytest.raises(Refused):
        ledger.reserve("part", ApproximateDP(1e-12), key="more", request={})
    with pytest.raises(LeaseLost):  # it was settled after the backup: once more would be a second release
        ledger.resume("part", "held", str(held.token))
    ledger.close()


def test_a_copied_ledger_does_not_pass_for_another(original: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(original)
    other = filled(tmp_path / "other.db")
    found = ledger.verify("part", anchor=other.anchor("part"))
    assert "a separate budget" in found.problems[0]
    for each in (ledger, other):
        each.close()


def test_a_raised_cap_is_loud(copy: Path) -> None:
    ledger = Ledger.open(copy)
    for smaller in (PureBudget(1.0), PureBudget(0.5)):
        with pytest.raises(InvalidInput, match="budget must exceed"):
            ledger.raise_cap("part", smaller, reason="why", by="who")
    with pytest.raises(InvalidInput, match="reason must not be empty"):
        ledger.raise_cap("part", PureBudget(2.0), reason=" ", by="who")
    with pytest.raises(Conflict, match="must have the mode of 'part', 'pure'"):
        ledger.raise_cap("part", RenyiBudget(9.0, 1e-6), reason="why", by="who")
    ledger.raise_cap("part", PureBudget(2.0), reason="the board agreed", by="curator")
    found = ledger.verify("part")
    assert found.ok
    assert "from (epsilon, delta) (1.0, 0.0) to (2.0, 0.0)" in found.notes[0]
    assert "'the board agreed', by 'curator'" in found.notes[0]
    assert ledger.status("part").cap_epsilon == 2.0
    assert ledger.reserve("part", ApproximateDP(0.9), key="large", request={}).token is not None
    ledger.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE content SET fingerprint='00' WHERE dataset_id=2",
        "UPDATE content SET block='b' WHERE dataset_id=2",
        "UPDATE content SET dataset_id=1, seq=99 WHERE dataset_id=2",
        "DELETE FROM content WHERE dataset_id=2",
        "INSERT INTO content VALUES (2, 99, '00', NULL)",
    ],
    ids=["fingerprint", "block", "data-set", "taken-out", "added"],
)
def test_every_edit_of_a_content_is_found(copy: Path, statement: str) -> None:
    ledger = Ledger.open(copy)
    ledger.register_content("part", ledger.fingerprint([b"a table"]), block="a")
    assert ledger.verify("part").ok
    with closing(sqlite3.connect(copy)) as database, database:
        edit(statement)(database)
    assert "fingerprints" in ledger.verify("part").problems[0]
    ledger.close()


@pytest.mark.parametrize("text", ["", "a:b:1", "a:b:x:" + "0" * 64, "a:b:1:" + "0" * 63, "a::1:" + "0" * 64])
def test_what_is_no_anchor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="anchor must be"):
        Anchor.parse(text)


@pytest.mark.parametrize("value", [float("inf"), {1: 2}, [object()], {"a": {"b": float("nan")}}])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        canonical(value)


def test_names_of_people_and_answers_are_not_in_the_history(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.open_dataset("visits", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0)))
    charge = ledger.reserve("visits", ApproximateDP(0.5), key="q", request={"where": "name = 'Ada'"}, by="me")
    ledger.settle(charge, {"mean": 41417.25})  # digits alone could stand in a time of day
    text = "".join(entry.text for entry in ledger.history("visits"))
    assert "Ada" not in text
    assert "41417.25" not in text
    assert '"by":"me"' in text
    ledger.close()
