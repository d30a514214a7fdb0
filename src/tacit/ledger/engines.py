"""The two database engines, and how each makes a commit durable; all their differences are in this file.

SQLite serves one host. It uses a write-ahead log with ``synchronous=FULL``, since ``NORMAL`` may lose a
commit at a power failure. A writer takes the lock when it begins, so that nothing changes between its reads
and writes. PostgreSQL uses READ COMMITTED with row locks, and every writing transaction turns
``synchronous_commit`` on. A server with ``fsync`` or ``full_page_writes`` off is refused.

A SQLite file on a network file system is refused. SQLite keeps writers apart by file locks, and coordinates
readers and writers of the write-ahead log by shared memory. With several hosts neither is reliable ("How To
Corrupt An SQLite Database File", section 2), and two writers may both find room under the cap.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool, StaticPool

from tacit.errors import InvalidInput, PrivacyRefusal, needed

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
    """Return the storage that a URL or a path names.

    Raises:
        InvalidInput: if ``url`` is neither a path nor the URL of a ledger.

    >>> parse_target("ledger.db").kind, parse_target("sqlite://").kind
    ('file', 'memory')
    """
    text = os.fspath(url)
    if not text.strip():
        raise InvalidInput(f"a ledger is named by a path or a URL; got {url!r}.")
    if "://" not in text:
        return Target("file", Path(text))
    try:
        parsed = make_url(text)
    except ArgumentError:
        raise InvalidInput(
            f"not a URL of a ledger: {text!r}. Use a path, or postgresql+psycopg://..."
        ) from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if parsed.query:
                raise InvalidInput(f"a SQLite URL of a ledger takes no options; got {text!r}.")
            if parsed.database in (None, "", ":memory:"):
                return Target("memory")
            return Target("file", Path(parsed.database))
        case "postgresql" | "postgresql+psycopg":
            return Target(
                "postgresql", url=str(parsed.set(drivername="postgresql+psycopg").render_as_string(False))
            )
    raise InvalidInput(
        f"a ledger is stored in SQLite (a path, sqlite:///ledger.db) or PostgreSQL "
        f"(postgresql+psycopg://user@host/name); got {parsed.drivername!r}."
    )


def prepare(target: Target) -> None:
    """Make the empty file of a new SQLite ledger, readable by its owner only.

    Raises:
        InvalidInput: if the folder of the file is missing, or the path is a folder.
        PrivacyRefusal: if the file would be on a network file system.
    """
    if target.path is None:
        return
    if not target.path.parent.is_dir():
        raise InvalidInput(f"the folder {str(target.path.parent)!r} does not exist; make it first.")
    _refuse_folder(target.path)
    refuse_network(target.path)
    if not target.path.exists():
        os.close(os.open(target.path, os.O_CREAT | os.O_WRONLY, 0o600))


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise InvalidInput(
            f"{str(path)!r} is a folder, and a ledger is a file. Name one in it: {path}/budget.db."
        )


def connect(target: Target) -> Engine:
    """Return a database engine with the settings of this module.

    Raises:
        InvalidInput: if the ledger's file does not exist.
        PrivacyRefusal: if the file is on a network file system.
    """
    if target.kind == "postgresql":
        return _postgresql(target.url)
    if target.path is None:
        return _sqlite(
            lambda: sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None), "memory"
        )
    _refuse_folder(target.path)
    if not target.path.is_file():
        raise InvalidInput(f"there is no ledger at {str(target.path)!r}. Make one with `tacit ledger init`.")
    refuse_network(target.path)
    name = f"file:{quote(str(target.path.resolve()))}?mode=rw"
    return _sqlite(
        lambda: sqlite3.connect(
            name, uri=True, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
        ),
        "file",
    )


def _sqlite(creator: Any, kind: str) -> Engine:
    if kind == "memory":
        engine = create_engine("sqlite://", creator=creator, poolclass=StaticPool)
    else:
        engine = create_engine(
            "sqlite://", creator=creator, poolclass=QueuePool, pool_size=2, max_overflow=-1
        )

    @event.listens_for(engine, "connect")
    def settings(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: fsync alone does not reach the disk there
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        if kind == "file":
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise PrivacyRefusal(
                    f"SQLite cannot keep a write-ahead log here: the journal mode is {mode!r}, and "
                    "a commit may be lost. Put the ledger on a local disk."
                )

    @event.listens_for(engine, "close")
    def end(connection: sqlite3.Connection, _record: object) -> None:
        # After an interrupt the traceback may hold a cursor. Without the rollback, SQLite would close the
        # connection and release its lock only when the cursor is gone: in a notebook, never.
        connection.rollback()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("reads", False)
        if kind == "file" and not reads:
            _wait_for_turn(connection)
        else:
            connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _wait_for_turn(connection: Connection) -> None:
    """Begin a transaction that writes.

    While SQLite waits for the lock, it polls less and less often, down to once in 0.1 s. With many processes,
    new ones then overtake those that have waited longest. Here all processes poll equally often, at random
    times.
    """
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
                    f"this PostgreSQL server runs with {setting}={value}: it may lose commits, and with them "
                    "charges for answers that were shown. Turn the setting on."
                )
        connection.rollback()

    return engine


def start(connection: Connection, *, reads: bool) -> None:
    """Run the statements at the beginning of a transaction."""
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
    """Return the engine and its settings, for the certificate."""
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
_ANY_FUSE = "a program stands between, as sshfs or s3fs, that keeps no locks other hosts would see"


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
    """Raise if ``path`` is on a file system that other hosts may write to.

    Without ``/proc/self/mounts``, only paths that name a host (UNC paths) are recognised.

    Raises:
        PrivacyRefusal: if other hosts may write to it; the message names the file system and the reason.
    """
    real = path.resolve()
    kind = file_system_of(real, _MOUNTS.read_text(encoding="utf-8")) if _MOUNTS.exists() else None
    if str(real).startswith("\\\\"):
        kind = "smb3"
    reason = _NETWORK.get(kind or "")
    if kind is not None and kind.startswith("fuse.") and kind not in _LOCAL_FUSE:
        reason = _ANY_FUSE
    if reason is not None:
        raise PrivacyRefusal(
            f"{str(path)!r} is on a {kind} file system: {reason}. Two writers could both find room in the "
            "budget. Put a SQLite ledger on a local disk, or use PostgreSQL."
        )
