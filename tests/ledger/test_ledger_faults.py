"""Faults around a ledger: full disks, clocks, network file systems, forks, missing packages."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.events import ApproximateDP
from tacit.ledger import Ledger, LedgerUnavailable, Policy, PureBudget, store
from tacit.ledger.store import file_system_of, refuse_network

PEOPLE = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
DAY = 86400 * 10**6


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.create(tmp_path / "ledger.db")
    made.open_dataset("visits", PEOPLE)
    yield made
    made.close()


# --- the disk ----------------------------------------------------------------------------------------------


def fill(ledger: Ledger) -> None:
    """Charge until the disk is full."""
    for number in range(200):
        ledger.reserve("visits", ApproximateDP(0.001), key=f"{number:03}" * 99, request={}, label="x" * 400)


def test_a_full_disk_is_a_clean_refusal_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    first = Ledger.create(path)
    first.open_dataset("visits", PEOPLE)
    kept = first.reserve("visits", ApproximateDP(0.5), key="kept", request={})
    first.close()
    with closing(sqlite3.connect(path)) as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
    connect = sqlite3.connect

    def small_disk(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)  # type: ignore[call-overload]
        connection.execute(f"PRAGMA max_page_count={pages}")
        assert isinstance(connection, sqlite3.Connection)
        return connection

    with monkeypatch.context() as full:
        full.setattr(sqlite3, "connect", small_disk)
        ledger = Ledger.open(path)
        with pytest.raises(LedgerUnavailable, match=r"full.*Nothing may be released") as caught:
            fill(ledger)
        before = ledger.status("visits")
        assert before.head_seq == before.charges["RESERVED"], (
            "each that was granted is there, the last is not"
        )
        with pytest.raises(LedgerUnavailable):
            ledger.reserve("visits", ApproximateDP(0.001), key="k" * 500, request={}, label="x" * 500)
        assert caught.value.exit_code == 2
        assert ledger.status("visits") == before
        with pytest.raises(LedgerUnavailable):
            ledger.settle(kept, "y" * 10000)
        assert ledger.status("visits") == before
        assert ledger.verify("visits").ok
        ledger.close()
    ledger = Ledger.open(path)
    assert ledger.settle(kept, "y" * 10000).state == "SETTLED"
    assert ledger.verify("visits").ok
    ledger.close()


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to have a header " * 20)
    for use in (Ledger.open, Ledger.create):
        with pytest.raises(LedgerUnavailable, match="not a database"):
            use(text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(InvalidInput, match="contains t"):
        Ledger.create(other)
    with pytest.raises(InvalidInput, match="no ledger"):
        Ledger.open(other)


def test_the_file_is_the_owners_and_its_settings_are_those_of_the_page(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.reserve("visits", ApproximateDP(0.1), key="q", request={})
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
    with ledger._store._engine().connect() as plain:
        connection = plain.execution_options(reads=True)
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 120_000}
    assert "synchronous FULL" in ledger.engine
    assert "NOT durable" in Ledger.create("sqlite://").engine


def test_who_waits_for_the_lock_asks_equally_often(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or newcomers would pass whoever has waited long."""
    naps: list[float] = []
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 200:
                other.execute("ROLLBACK")

        monkeypatch.setattr("tacit.ledger.store.time.sleep", sleep)
        assert ledger.reserve("visits", ApproximateDP(0.25), key="q", request={}).token is not None
    assert len(naps) == 200
    assert max(naps) < 0.01
    assert 0.5 < sum(naps[:100]) / sum(naps[100:]) < 2.0


@pytest.mark.parametrize(("version", "writer"), [(1, "0.1"), (2, "0.2"), (9, "of another version")])
def test_a_ledger_of_another_version_is_not_touched(
    ledger: Ledger, tmp_path: Path, version: int, writer: str
) -> None:
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        database.execute(f"UPDATE ledger SET version={version}")
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(InvalidInput, match=rf"of Tacit {writer}; this Tacit reads only format") as caught:
        Ledger.open(tmp_path / "ledger.db")
    assert caught.value.exit_code == 2
    assert (tmp_path / "ledger.db").read_bytes() == before


# --- file systems ------------------------------------------------------------------------------------------

MOUNTS = r"""/dev/sda1 / ext4 rw 0 0
host:/export /mnt/nfs nfs4 rw 0 0
//host/share /mnt/my\040share cifs rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
overlay /mnt/container fuse.fuse-overlayfs rw 0 0
/dev/sdb1 /mnt/nfs/local xfs rw 0 0
tmpfs /mnt/hidden tmpfs rw 0 0
host:/export /mnt/hidden nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "refused"),
    [
        ("/home/me/ledger.db", "ext4", False),
        ("/mnt/nfs/ledger.db", "nfs4", True),
        ("/mnt/nfs/local/ledger.db", "xfs", False),
        ("/mnt/nfsx/ledger.db", "ext4", False),
        ("/mnt/my share/ledger.db", "cifs", True),
        ("/mnt/ssh/deep/down/ledger.db", "fuse.sshfs", True),
        ("/mnt/container/ledger.db", "fuse.fuse-overlayfs", False),
        ("/mnt/hidden/ledger.db", "nfs", True),
    ],
)
def test_network_file_systems_are_refused(
    path: str, kind: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    monkeypatch.setattr(store, "_MOUNTS", table)
    if refused:
        with pytest.raises(PrivacyRefusal, match=f"{kind} file system.*PostgreSQL"):
            refuse_network(Path(path))
    else:
        refuse_network(Path(path))


def test_a_ledger_on_a_network_file_system_is_neither_made_nor_opened(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    here = str(tmp_path.resolve()).replace(" ", r"\040")
    table.write_text(f"/dev/sda1 / ext4 rw 0 0\nhost:/x {here} nfs4 rw 0 0\n")
    monkeypatch.setattr(store, "_MOUNTS", table)
    with pytest.raises(PrivacyRefusal, match="nfs4"):
        Ledger.create(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()
    with pytest.raises(PrivacyRefusal, match="nfs4"):
        Ledger.open(tmp_path / "ledger.db")
    (tmp_path.parent / f"{tmp_path.name}-link.db").symlink_to(tmp_path / "ledger.db")
    with pytest.raises(PrivacyRefusal, match="nfs4"):
        Ledger.open(tmp_path.parent / f"{tmp_path.name}-link.db")


# --- time --------------------------------------------------------------------------------------------------


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_700_000_000 * 10**6

    def __call__(self, connection: object) -> int:
        return self.at


def test_a_clock_that_goes_back_revives_no_lease(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(store, "now", clock)
    ledger.open_dataset("later", PEOPLE)
    ledger.reserve("later", ApproximateDP(0.1), key="short", request={}, lease_s=60.0)
    clock.at += DAY
    ledger.reserve("later", ApproximateDP(0.1), key="other", request={})
    clock.at -= 2 * DAY
    assert [lost.key for lost in ledger.recover("later")] == ["short"], "time within a data set only goes on"
    ledger.reserve("later", ApproximateDP(0.1), key="again", request={})
    times = [entry.time for entry in ledger.history("later")]
    assert times == sorted(times)
    assert ledger.verify("later").ok
    assert ledger.recover("later") == []


def test_a_clock_that_jumps_ahead_forfeits_and_gives_nothing_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(store, "now", clock)
    ledger.open_dataset("later", PEOPLE)
    charge = ledger.reserve("later", ApproximateDP(0.5), key="q", request={})
    clock.at += 400 * DAY
    assert [lost.key for lost in ledger.recover("later")] == ["q"]
    clock.at -= 400 * DAY
    assert ledger.status("later").charges == {"RESERVED": 0, "SETTLED": 0, "FORFEITED": 1}
    assert charge.token is not None
    assert ledger.settle(ledger.resume("later", "q", charge.token), 1).answer == 1
    assert ledger.status("later").spent_epsilon == 0.5


def test_a_lease_that_was_renewed_in_the_meantime_is_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = ledger.reserve("visits", ApproximateDP(0.1), key="q", request={})
    monkeypatch.setattr(store.Transaction, "overdue", lambda self, dataset_id, at: [charge.id])
    assert ledger.recover("visits") == [], "as it is under the lock, not as it was when it was looked for"
    assert ledger.settle(charge, 1).state == "SETTLED"
    assert ledger.recover("visits") == []


# --- processes and packages --------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_ledger_survives_a_fork(ledger: Ledger) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            ledger.settle(ledger.reserve("visits", ApproximateDP(0.25), key="child", request={}), 1)
            os._exit(0)
        finally:
            os._exit(1)
    ledger.settle(ledger.reserve("visits", ApproximateDP(0.25), key="parent", request={}), 2)
    assert os.waitpid(child, 0)[1] == 0
    assert ledger.status("visits").spent_epsilon == 0.5
    assert ledger.verify("visits").ok


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "psycopg", None)
        with pytest.raises(MissingExtra, match=r"\.\[postgres\]"):
            Ledger.create("postgresql://localhost/none")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "tacit.ledger.store")
    for use in (Ledger.create, Ledger.open):
        with pytest.raises(MissingExtra, match=r"\.\[ledger\]"):
            use("ledger.db")


def test_policies_and_budgets_need_no_sqlalchemy() -> None:
    code = """
import sys
sys.modules["sqlalchemy"] = sys.modules["torch"] = None
from tacit.ledger import Ledger, Policy, RenyiBudget
policy = Policy(unit="row", adjacency="add-remove", budget=RenyiBudget(1.0, 1e-6))
try:
    Ledger.create("sqlite://")
except ImportError as problem:
    print(policy.budget.mode, type(problem).__name__)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("renyi MissingExtra", "")


@pytest.mark.parametrize(
    "url", ["", " ", "mysql://host/x", "sqlite:///x.db?mode=ro", "postgresql+asyncpg://x/y"]
)
def test_urls_that_name_no_ledger_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="ledger"):
        Ledger.open(url)


def test_secrets_are_in_no_message(ledger: Ledger) -> None:
    target = store.parse_target("postgresql://me:secret@host/x")
    assert "host" in str(target)
    assert "secret" not in str(target) + repr(target)
    charge = ledger.reserve("visits", ApproximateDP(0.1), key="q", request={})
    assert str(charge.token) not in repr(charge)
    assert repr(ledger._identity) == f"Identity(uuid={ledger.uuid!r})"
