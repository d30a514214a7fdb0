"""The tables of a ledger, and the SQL statements and transactions on them, for both database engines."""

from __future__ import annotations

import json
import os
import random
import secrets
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, needed

try:
    import sqlalchemy as sa
    from sqlalchemy import Connection, Engine, create_engine, event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    from sqlalchemy.pool import QueuePool, StaticPool
except ImportError:
    raise MissingExtra("sqlalchemy", "ledger", "the ledger") from None

from tacit.ledger.policy import Cost, Policy, Spent
from tacit.ledger.records import GENESIS, Entry, LeaseLost, LedgerUnavailable, canonical, entry_hash, moment

# * ``ledger``: one row with the ledger's identity.
# * ``dataset``: for each data set, its policy, its cap, what is spent, and the head of its history.
# * ``charge``: one row per request and data set, with its state and, once settled, its answer.
# * ``content``: the fingerprints of registered contents, which the ledger recognises under a second name.
# * ``entry``: the history, to which the ledger only adds. The primary key (data set, number) prevents two
#   transactions from adding the same entry, even without the lock on the data set's row.


# --- the two database engines ------------------------------------------------------------------------------
#
# All differences between the engines are in this section.
#
# SQLite serves one host. It uses a write-ahead log with ``synchronous=FULL``, since ``NORMAL`` may lose a
# commit at a power failure. A writer takes the lock when it begins, so that nothing changes between its reads
# and writes. PostgreSQL uses READ COMMITTED with row locks, and every writing transaction turns
# ``synchronous_commit`` on. A server with ``fsync`` or ``full_page_writes`` off is refused.
#
# A SQLite file on a network file system is refused. SQLite keeps writers apart by file locks, and coordinates
# readers and writers of the write-ahead log by shared memory. With several hosts neither is reliable ("How To
# Corrupt An SQLite Database File", section 2), and two writers may both find room under the cap.

BUSY_SECONDS = 120.0
_ASK_AGAIN_SECONDS = (0.0005, 0.005)
_CHANCE = random.SystemRandom()  # independent of the caller's generators and their seeds


@dataclass(frozen=True)
class Target:
    """The storage of a ledger: a file, the memory of this process, or a PostgreSQL database."""

    kind: str  # "file", "memory" or "postgresql"
    path: Path | None = None
    url: str = field(default="", repr=False)

    def __str__(self) -> str:
        if self.kind == "file":
            return str(self.path)
        if self.kind == "memory":
            return "sqlite:// (in memory)"
        return make_url(self.url).render_as_string(hide_password=True)


def parse_target(url: str | os.PathLike[str]) -> Target:
    text = os.fspath(url)
    if not text.strip():
        raise InvalidInput(f"url of a ledger must be a path or a URL; got {url!r}.")
    if "://" not in text:
        return Target("file", Path(text))
    try:
        parsed = make_url(text)
    except ArgumentError:
        raise InvalidInput(
            f"url {text!r} is not a ledger's. Use a path, or postgresql+psycopg://..."
        ) from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if parsed.query:
                raise InvalidInput(f"a SQLite URL of a ledger must have no options; got {text!r}.")
            if parsed.database in (None, "", ":memory:"):
                return Target("memory")
            return Target("file", Path(parsed.database))
        case "postgresql" | "postgresql+psycopg":
            return Target(
                "postgresql", url=str(parsed.set(drivername="postgresql+psycopg").render_as_string(False))
            )
    raise InvalidInput(
        "url must be SQLite (a path, sqlite:///ledger.db) or PostgreSQL "
        f"(postgresql+psycopg://user@host/name); got {parsed.drivername!r}."
    )


def prepare(target: Target) -> None:
    """Make the empty file of a new SQLite ledger, readable by its owner only."""
    if target.path is None:
        return
    if not target.path.parent.is_dir():
        raise InvalidInput(f"the folder {str(target.path.parent)!r} does not exist. Create it first.")
    _refuse_folder(target.path)
    refuse_network(target.path)
    if not target.path.exists():
        os.close(os.open(target.path, os.O_CREAT | os.O_WRONLY, 0o600))


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise InvalidInput(f"{str(path)!r} is a folder. Use a file in it, such as {path}/budget.db.")


def connect(target: Target) -> Engine:
    if target.kind == "postgresql":
        return _postgresql(target.url)
    path = target.path
    options: dict[str, Any] = {"check_same_thread": False, "isolation_level": None}
    pool: dict[str, Any] = {"poolclass": StaticPool}
    name = ":memory:"
    if path is not None:
        _refuse_folder(path)
        if not path.is_file():
            raise InvalidInput(f"there is no ledger at {str(path)!r}. Make one with `tacit ledger init`.")
        refuse_network(path)
        name = f"file:{quote(str(path.resolve()))}?mode=rw"
        options |= {"uri": True, "timeout": BUSY_SECONDS}
        pool = {"poolclass": QueuePool, "pool_size": 2, "max_overflow": -1}
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(name, **options), **pool)

    @event.listens_for(engine, "connect")
    def settings(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: fsync alone does not reach the disk there
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        if path is not None:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise PrivacyRefusal(
                    f"SQLite cannot use a write-ahead log here (journal mode {mode!r}), so a commit could be "
                    "lost. Put the ledger on a local disk."
                )

    @event.listens_for(engine, "close")
    def end(connection: sqlite3.Connection, _record: object) -> None:
        # After an interrupt the traceback may hold a cursor. Without the rollback, SQLite would close the
        # connection and release its lock only when the cursor is gone: in a notebook, never.
        connection.rollback()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("reads", False)
        if path is not None and not reads:
            _wait_for_turn(connection)
        else:
            connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _wait_for_turn(connection: Connection) -> None:
    """Begin a transaction that writes."""
    # While SQLite waits for the lock, it polls less and less often, down to once in 0.1 s. With many
    # processes, new ones then overtake those that have waited longest. Here all processes poll equally often,
    # at random times.
    raw: Any = connection.connection.dbapi_connection  # a sqlite3.Connection
    deadline = time.monotonic() + BUSY_SECONDS
    raw.execute("PRAGMA busy_timeout=0")
    try:
        while time.monotonic() < deadline:
            try:
                raw.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as problem:
                if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    break
            else:
                return
            time.sleep(_CHANCE.uniform(*_ASK_AGAIN_SECONDS))
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # the caller handles its errors
    finally:
        raw.execute(f"PRAGMA busy_timeout={1000 * BUSY_SECONDS:.0f}")


def _postgresql(url: str) -> Engine:
    needed("psycopg", "postgres", "a ledger in PostgreSQL")
    engine = create_engine(url, pool_size=2, max_overflow=-1, pool_pre_ping=True)

    @event.listens_for(engine, "connect")
    def check(connection: Any, _record: object) -> None:
        for setting in ("fsync", "full_page_writes"):
            value = connection.execute(f"SHOW {setting}").fetchone()[0]
            if value != "on":
                raise PrivacyRefusal(
                    f"this PostgreSQL server runs with {setting}={value}, so it could lose charges for "
                    "answers that were shown. Turn the setting on."
                )
        connection.rollback()

    return engine


def start(connection: Connection, *, reads: bool) -> None:
    if connection.dialect.name != "postgresql":
        return
    if reads:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    else:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_SECONDS:.0f}s'")


def now(connection: Connection) -> int:
    """Return microseconds since 1970, by the clock of the PostgreSQL server or of SQLite's host."""
    if connection.dialect.name == "postgresql":
        result = connection.exec_driver_sql(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
        return int(result.scalar_one())
    return time.time_ns() // 1000


def engine_text(target: Target, connection: Connection) -> str:
    if target.kind == "postgresql":
        version = connection.exec_driver_sql("SHOW server_version").scalar_one()
        return f"PostgreSQL {version}: row locks, synchronous_commit on, fsync on"
    if target.kind == "memory":
        return f"SQLite {sqlite3.sqlite_version} in memory: NOT durable, for tests only"
    return f"SQLite {sqlite3.sqlite_version}: write-ahead log, synchronous FULL, BEGIN IMMEDIATE"


_MOUNTS = Path("/proc/self/mounts")

_WHY_NOT = {
    "locks are advisory and served by a daemon that may be missing; no shared memory between hosts": "nfs",
    "no shared memory between hosts, and caches that other hosts do not see": "nfs4",
    "byte-range locks differ from POSIX ones, and there is no shared memory between hosts": "cifs smb3 smbfs",
    "whole files are cached, and written back when they are closed": "afs",
    "the host of a virtual machine sees neither the locks nor the memory maps of its guest": "9p virtiofs "
    "vboxsf vmhgfs prl_fs",
    "several hosts mount it, and a memory map is not shared between them": "ceph gpfs glusterfs ocfs2 gfs2",
    "several hosts mount it, and locks are local to a host unless it is mounted with flock": "lustre",
    "several hosts mount it, and locks are local to a host by default": "beegfs",
    "it has no locks": "orangefs",
    "it writes files back when they are closed": "davfs",
}
_NETWORK = {kind: reason for reason, kinds in _WHY_NOT.items() for kind in kinds.split()}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs"}  # these serve local disks from one process
_ANY_FUSE = "a program such as sshfs or s3fs stands between, and other hosts do not see its locks"


def file_system_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system of ``path``, from the text of ``/proc/self/mounts``.

    >>> mounts = "/dev/sda1 / ext4 rw 0 0\\nhost:/x /mnt/share nfs4 rw 0 0"
    >>> file_system_of(Path("/mnt/share/ledger.db"), mounts)
    'nfs4'
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), fields[2]  # a later mount on the same point hides an earlier one
    return None if best is None else best[1]


def refuse_network(path: Path) -> None:
    """Raise if ``path`` is on a file system that other hosts may write to."""
    # Without ``/proc/self/mounts``, only paths that name a host (UNC paths) are recognised.
    real = path.resolve()
    kind = file_system_of(real, _MOUNTS.read_text(encoding="utf-8")) if _MOUNTS.exists() else None
    if str(real).startswith("\\\\"):
        kind = "smb3"
    reason = _NETWORK.get(kind or "")
    if kind is not None and kind.startswith("fuse.") and kind not in _LOCAL_FUSE:
        reason = _ANY_FUSE
    if reason is not None:
        raise PrivacyRefusal(
            f"{str(path)!r} is on a {kind} file system: {reason}. Two writers could spend the same budget. "
            "Put a SQLite ledger on a local disk, or use PostgreSQL."
        )


# --- tables ------------------------------------------------------------------------------------------------

META = sa.MetaData()
# SQLite numbers rows only for INTEGER keys
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: Any = sa.Text, **settings: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **settings)


def _place() -> list[sa.Column[Any]]:
    """Return the key of a table: the data set, and the number of an entry of its history."""
    own: dict[str, Any] = {"primary_key": True, "autoincrement": False}
    return [
        sa.Column("dataset_id", _ROW_NUMBER, sa.ForeignKey("dataset.id"), **own),
        sa.Column("seq", sa.BigInteger, **own),
    ]


LEDGER = sa.Table(
    "ledger",
    META,
    sa.Column("id", sa.Integer, primary_key=True),
    _column("uuid"),
    _column("secret"),
    _column("version", sa.Integer),
)
DATASET = sa.Table(
    "dataset",
    META,
    sa.Column("id", _ROW_NUMBER, sa.Identity(), primary_key=True),
    _column("name", unique=True),
    _column("policy"),
    _column("cap"),
    _column("spent"),
    _column("head_seq", sa.BigInteger),
    _column("head_hash"),
    _column("head_time", sa.BigInteger),
    _column("opened", sa.BigInteger),
)
CHARGE = sa.Table(
    "charge",
    META,
    sa.Column("id", _ROW_NUMBER, sa.Identity(), primary_key=True),
    sa.Column("dataset_id", _ROW_NUMBER, sa.ForeignKey("dataset.id"), nullable=False),
    sa.Column("origin", _ROW_NUMBER, sa.ForeignKey("charge.id")),
    _column("idem_key"),
    _column("request_hash"),
    _column("cost"),
    sa.Column("block", sa.Text),
    _column("state"),
    _column("token_hash"),
    _column("lease_ends", sa.BigInteger),
    sa.Column("answer", sa.Text),
    sa.UniqueConstraint("dataset_id", "idem_key"),
    sa.CheckConstraint("state IN ('RESERVED', 'SETTLED', 'FORFEITED')"),
    sa.Index("charge_by_origin", "origin"),
    sa.Index("charge_by_state", "dataset_id", "state"),
)
CONTENT = sa.Table(
    "content", META, *_place(), _column("fingerprint", index=True), sa.Column("block", sa.Text)
)
ENTRY = sa.Table("entry", META, *_place(), _column("body"), _column("prev_hash"), _column("hash"))


@dataclass(frozen=True)
class Identity:
    """The identity of a ledger; ``secret`` is the key of fingerprints and of hashes of requests."""

    uuid: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class DatasetRow:
    id: int
    name: str
    policy: Policy
    cap: Cost
    spent: Spent
    head_seq: int
    head_hash: str
    head_time: int
    opened: int


@dataclass(frozen=True)
class ChargeRow:
    """One charge as the database stores it."""

    # ``origin`` is the id of the charge to a derived data set that this charge mirrors; None for an original.
    id: int
    dataset_id: int
    origin: int | None
    key: str
    request_hash: str
    cost: Cost
    block: str | None
    state: str
    token_hash: str
    lease_ends: int
    answer: str | None


_Row = TypeVar("_Row")


def _cost(text: str) -> Cost:
    return tuple(map(index, json.loads(text)))


def _spent(text: str) -> Spent:
    return {block: tuple(map(index, cost)) for block, cost in json.loads(text).items()}


_READ: dict[str, Callable[[Any], Any]] = {
    "policy": lru_cache(maxsize=256)(Policy.from_json),
    "cap": _cost,
    "cost": _cost,
    "spent": _spent,
}
"""The readers of the columns that contain JSON, by the name of the column."""


def _read(kind: type[_Row], row: Any) -> _Row:
    """Parse a row whose columns are in the order of the fields of ``kind``."""
    try:
        return kind(*(_READ[name](value) if name in _READ else value for name, value in row._mapping.items()))
    except (ValueError, TypeError, AttributeError, RecursionError):
        name = row.name if kind is DatasetRow else row.idem_key
        raise LedgerUnavailable(
            f"the ledger's record of {name!r} cannot be read: the database was edited or is damaged. "
            "Nothing may be released. Restore a backup, and record that with "
            "Ledger.recover_from_backup."
        ) from None


VERSION = 3
"""The format of a ledger's tables and entries; Tacit 0.1 wrote format 1, and Tacit 0.2 format 2."""

_WRITERS = {1: "0.1", 2: "0.2"}

# Statements of every charge are built once, as building one takes several times as long as running it.
_NUMBER: sa.BindParameter[int] = sa.bindparam("number")
_DATASET_BY_NAME = sa.select(DATASET).where(DATASET.c.name == sa.bindparam("wanted"))
_LOCKED_DATASETS = (
    sa.select(DATASET)
    .where(DATASET.c.id.in_(sa.bindparam("numbers", expanding=True)))
    .order_by(DATASET.c.id)
    .with_for_update()
)
_CHARGE_BY_KEY = sa.select(CHARGE).where(
    CHARGE.c.dataset_id == _NUMBER, CHARGE.c.idem_key == sa.bindparam("key")
)
_FAMILY = (
    sa.select(CHARGE).where(sa.or_(CHARGE.c.id == _NUMBER, CHARGE.c.origin == _NUMBER)).order_by(CHARGE.c.id)
)
_ADD_CHARGE, _ADD_ENTRY = sa.insert(CHARGE), sa.insert(ENTRY)
_MOVE_CHARGE = sa.update(CHARGE).where(CHARGE.c.id == _NUMBER, CHARGE.c.state == sa.bindparam("before"))
_CHANGE_DATASET = sa.update(DATASET).where(DATASET.c.id == _NUMBER)


class Transaction:
    """One transaction, which takes effect as a whole or not at all."""

    def __init__(self, connection: sa.Connection, identity: Identity) -> None:
        self._run = connection.execute
        self.connection = connection
        self.identity = identity

    # --- reading --------------------------------------------------------------------------------------------

    def _all(self, kind: type[_Row], query: Any, **values: Any) -> list[_Row]:
        return [_read(kind, row) for row in self._run(query, values)]

    def now(self) -> int:
        """Return microseconds since 1970, by the clock of the engine."""
        return now(self.connection)

    def datasets(self) -> list[DatasetRow]:
        return self._all(DatasetRow, sa.select(DATASET).order_by(DATASET.c.id))

    def dataset(self, name: str) -> DatasetRow | None:
        return next(iter(self._all(DatasetRow, _DATASET_BY_NAME, wanted=name)), None)

    def contents(self, dataset_id: int) -> list[tuple[int, str, str | None]]:
        """Return the entry number, fingerprint and block of each content of a data set, in order."""
        query = sa.select(CONTENT).where(CONTENT.c.dataset_id == dataset_id).order_by(CONTENT.c.seq)
        return [(row.seq, row.fingerprint, row.block) for row in self._run(query)]

    def holders(self, fingerprint: str) -> list[tuple[int, str | None]]:
        """Return the ids of the data sets that have a content, and its block in each."""
        query = sa.select(CONTENT).where(CONTENT.c.fingerprint == fingerprint).order_by(CONTENT.c.dataset_id)
        return [(row.dataset_id, row.block) for row in self._run(query)]

    def charge(self, dataset_id: int, key: str) -> ChargeRow | None:
        return next(iter(self._all(ChargeRow, _CHARGE_BY_KEY, number=dataset_id, key=key)), None)

    def charges(self, dataset_id: int) -> list[ChargeRow]:
        query = sa.select(CHARGE).where(CHARGE.c.dataset_id == dataset_id).order_by(CHARGE.c.id)
        return self._all(ChargeRow, query)

    def states(self, dataset_id: int) -> dict[str, int]:
        query = sa.select(CHARGE.c.state, sa.func.count()).where(CHARGE.c.dataset_id == dataset_id)
        return {row[0]: row[1] for row in self._run(query.group_by(CHARGE.c.state))}

    def family(self, charge_id: int) -> list[ChargeRow]:
        """Return a charge, and its mirrors in the data sets that its data set is derived from."""
        return self._all(ChargeRow, _FAMILY, number=charge_id)

    def overdue(self, dataset_id: int, at: int) -> list[int]:
        """Return the ids of reservations whose lease has ended by ``at``; a mirror counts as its original."""
        late = (CHARGE.c.state == "RESERVED") & (CHARGE.c.lease_ends <= at)
        query = sa.select(CHARGE.c.id, CHARGE.c.origin).where((CHARGE.c.dataset_id == dataset_id) & late)
        return sorted({row.id if row.origin is None else row.origin for row in self._run(query)})

    def entries(self, dataset_id: int) -> list[Entry]:
        query = sa.select(ENTRY).where(ENTRY.c.dataset_id == dataset_id).order_by(ENTRY.c.seq)
        return [_entry(row) for row in self._run(query)]

    def entry(self, dataset_id: int, seq: int) -> Entry:
        query = sa.select(ENTRY).where(ENTRY.c.dataset_id == dataset_id, ENTRY.c.seq == seq)
        return _entry(self._run(query).one())

    # --- writing --------------------------------------------------------------------------------------------

    def lock_ledger(self) -> None:
        """Keep other transactions from opening data sets until this one ends."""
        self._run(sa.select(LEDGER.c.id).with_for_update())

    def lock(self, ids: Iterable[int]) -> dict[int, DatasetRow]:
        """Lock rows of data sets in the order of their ids until the transaction ends, and return them."""
        return {row.id: row for row in self._all(DatasetRow, _LOCKED_DATASETS, numbers=sorted(set(ids)))}

    def add_dataset(self, name: str, policy: Policy, cap: Cost) -> DatasetRow:
        at = self.now()
        values = {
            "name": name,
            "policy": policy.to_json(),
            "cap": canonical(cap),
            "spent": "{}",
            "head_seq": -1,
            "head_hash": GENESIS,
            "head_time": at,
            "opened": at,
        }
        self._run(sa.insert(DATASET).values(values))
        row = self.dataset(name)
        assert row is not None
        return row

    def change_budget(self, row: DatasetRow, policy: Policy, cap: Cost) -> None:
        values = {"number": row.id, "policy": policy.to_json(), "cap": canonical(cap)}
        self._run(_CHANGE_DATASET, values)

    def add_content(self, dataset_id: int, seq: int, fingerprint: str, block: str | None) -> None:
        """Add a content to a data set; ``seq`` is the number of the entry that records it."""
        values = {"dataset_id": dataset_id, "seq": seq, "fingerprint": fingerprint, "block": block}
        self._run(sa.insert(CONTENT), values)

    def add_charge(self, charge: Mapping[str, Any]) -> int:
        """Add a reservation, given as a row of the table of charges; return its id."""
        result = self._run(_ADD_CHARGE, {**charge, "state": "RESERVED"})
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def move(
        self, charge: ChargeRow, before: str, after: str, changes: Mapping[str, str | int] | None = None
    ) -> None:
        """Move a charge from state ``before`` to ``after``, and change the columns in ``changes``."""
        values = {"number": charge.id, "before": before, "state": after, **(changes or {})}
        if self._run(_MOVE_CHARGE, values).rowcount != 1:
            raise LeaseLost(f"charge {charge.key!r} is no longer {before}: another process ended it.")

    def append(
        self, row: DatasetRow, kind: str, facts: Mapping[str, Any], *, spent: Spent | None = None
    ) -> DatasetRow:
        """Add an entry, after which the totals are ``spent``, as the head; time never goes backwards."""
        seq, at = row.head_seq + 1, max(self.now(), row.head_time)
        after = row.spent if spent is None else spent
        about = {"ledger": self.identity.uuid, "dataset": row.name, "seq": seq, "kind": kind, "time": at}
        body = canonical({**facts, **about, "spent": after})
        digest = entry_hash(row.head_hash, body)
        entry = {"dataset_id": row.id, "seq": seq, "body": body, "prev_hash": row.head_hash, "hash": digest}
        self._run(_ADD_ENTRY, entry)
        head: dict[str, Any] = {"head_seq": seq, "head_hash": digest, "head_time": at}
        self._run(_CHANGE_DATASET, {"number": row.id, "spent": canonical(after), **head})
        return replace(row, spent=after, **head)


def _entry(row: Any) -> Entry:
    try:
        body = json.loads(row.body)
        kind, at = str(body["kind"]), moment(body["time"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # edited, as its hash will show
        body, kind, at = {}, "unreadable", moment(0)
    return Entry(row.seq, kind, body, at, row.prev_hash, row.hash, row.body)


class Store:
    """The storage of a ledger; safe to use from many threads, processes and, in PostgreSQL, hosts."""

    def __init__(self, target: Target, identity: Identity) -> None:
        self.target, self.identity = target, identity
        self._engines: dict[int, sa.Engine] = {}
        self._one_at_a_time = threading.Lock() if target.kind == "memory" else None
        self._make = threading.Lock()

    @classmethod
    def create(cls, url: str | os.PathLike[str]) -> Store:
        target = parse_target(url)
        prepare(target)
        store = cls(target, Identity(str(uuid.uuid4()), secrets.token_bytes(32)))
        with store._guarded(), store._engine().begin() as connection:
            tables = sa.inspect(connection).get_table_names()
            if "ledger" in tables or (tables and target.kind == "file"):
                raise InvalidInput(
                    f"{target} is not empty: it contains {', '.join(tables)}. Open that ledger, or choose "
                    "another place."
                )
            META.create_all(connection)
            name, secret = store.identity.uuid, store.identity.secret.hex()
            values = {"id": 1, "uuid": name, "secret": secret, "version": VERSION}
            connection.execute(sa.insert(LEDGER).values(values))
        return store

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> Store:
        target = parse_target(url)
        if target.kind == "memory":
            raise InvalidInput("a ledger in memory cannot be opened again; create a new one.")
        store = cls(target, Identity("", b""))
        with store._guarded(), store._engine().connect() as plain:
            connection = plain.execution_options(reads=True)
            if not sa.inspect(connection).has_table("ledger"):
                raise InvalidInput(f"there is no ledger at {target}. Make one with `tacit ledger init`.")
            row = connection.execute(sa.select(LEDGER)).one_or_none()
            if row is None or row.version != VERSION:
                written = -1 if row is None else int(row.version)
                raise InvalidInput(
                    f"this ledger has format {written}, of Tacit "
                    f"{_WRITERS.get(written, 'of another version')}; this Tacit reads only format {VERSION}. "
                    "Nothing was changed. Use that version; or open each data set in a new ledger, with the "
                    "rest of its budget as cap."
                )
            store.identity = Identity(row.uuid, bytes.fromhex(row.secret))
        return store

    def _engine(self) -> sa.Engine:
        """Return this process's engine; never close a parent process's, as that would drop file locks."""
        process = os.getpid()
        with self._make:
            if process not in self._engines:
                self._engines[process] = connect(self.target)
            return self._engines[process]

    def write(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that may write; commit it at the end, or undo all of it after an error."""
        return self._transaction(reads=False)

    def read(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that reads one consistent state of the ledger without waiting for others."""
        return self._transaction(reads=True)

    @contextmanager
    def _transaction(self, *, reads: bool) -> Iterator[Transaction]:
        turn = self._one_at_a_time or nullcontext()
        with turn, self._guarded(), self._engine().connect() as plain:
            connection = plain.execution_options(reads=reads)
            with connection.begin():
                start(connection, reads=reads)
                yield Transaction(connection, self.identity)

    def describe(self) -> str:
        with self.read() as tx:
            return engine_text(self.target, tx.connection)

    def close(self) -> None:
        with self._make:
            engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as problem:
            reason = str(problem.orig).strip().partition("\n")[0]
            raise LedgerUnavailable(
                f"the ledger at {self.target} cannot do this now: {reason}. Nothing may "
                "be released; if it is not clear whether a charge was written, ask again with the same key."
            ) from problem
        except SQLAlchemyError as problem:
            raise LedgerUnavailable(
                f"the ledger at {self.target} cannot do this now: {problem}. Nothing may be released."
            ) from problem
