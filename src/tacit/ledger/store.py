"""The tables of a ledger, and the SQL statements and transactions on them, for both database engines.

* ``ledger``: one row with the ledger's identity.
* ``dataset``: for each data set, its policy, its cap, what is spent, and the head of its history.
* ``charge``: one row per request and data set, with its state and, once settled, its answer.
* ``content``: the fingerprints of registered contents, which the ledger recognises under a second name.
* ``entry``: the history, to which the ledger only adds. The primary key (data set, number) prevents two
  transactions from adding the same entry, even without the lock on the data set's row.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from typing import Any, TypeVar

from tacit.errors import InvalidInput, MissingExtra

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
except ImportError:
    raise MissingExtra("sqlalchemy", "ledger", "the ledger") from None

from tacit.ledger.budgets import Cost, Spent
from tacit.ledger.engines import Target, connect, engine_text, now, parse_target, prepare, start
from tacit.ledger.policy import Policy
from tacit.ledger.records import GENESIS, Entry, LeaseLost, LedgerUnavailable, canonical, entry_hash, moment

META = sa.MetaData()
# SQLite numbers rows only for INTEGER keys
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

LEDGER = sa.Table(
    "ledger",
    META,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.Text, nullable=False),
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)
DATASET = sa.Table(
    "dataset",
    META,
    sa.Column("id", _ROW_NUMBER, sa.Identity(), primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("cap", sa.Text, nullable=False),
    sa.Column("spent", sa.Text, nullable=False),
    sa.Column("head_seq", sa.BigInteger, nullable=False),
    sa.Column("head_hash", sa.Text, nullable=False),
    sa.Column("head_time", sa.BigInteger, nullable=False),
    sa.Column("opened", sa.BigInteger, nullable=False),
)
CHARGE = sa.Table(
    "charge",
    META,
    sa.Column("id", _ROW_NUMBER, sa.Identity(), primary_key=True),
    sa.Column("dataset_id", _ROW_NUMBER, sa.ForeignKey("dataset.id"), nullable=False),
    sa.Column("origin", _ROW_NUMBER, sa.ForeignKey("charge.id")),
    sa.Column("idem_key", sa.Text, nullable=False),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("cost", sa.Text, nullable=False),
    sa.Column("block", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("token_hash", sa.Text, nullable=False),
    sa.Column("lease_ends", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.Text),
    sa.UniqueConstraint("dataset_id", "idem_key"),
    sa.CheckConstraint("state IN ('RESERVED', 'SETTLED', 'FORFEITED')"),
    sa.Index("charge_by_origin", "origin"),
    sa.Index("charge_by_state", "dataset_id", "state"),
)
CONTENT = sa.Table(
    "content",
    META,
    sa.Column("dataset_id", _ROW_NUMBER, sa.ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),  # the number of its entry
    sa.Column("fingerprint", sa.Text, nullable=False, index=True),
    sa.Column("block", sa.Text),
)
ENTRY = sa.Table(
    "entry",
    META,
    sa.Column("dataset_id", _ROW_NUMBER, sa.ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("prev_hash", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class Identity:
    """The identity of a ledger; ``secret`` is the key of fingerprints and of hashes of requests."""

    uuid: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class DatasetRow:
    """One data set as the database stores it."""

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
    """One charge as the database stores it.

    ``origin`` is the id of the charge to a derived data set that this charge mirrors; None for an original.
    """

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


def _as_it_is(value: Any) -> Any:
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "policy": lru_cache(maxsize=256)(Policy.from_json),
    "cap": _cost,
    "cost": _cost,
    "spent": _spent,
}
"""The readers of the columns that contain JSON, by the name of the column."""


def dataset_row(row: Any) -> DatasetRow:
    """Parse a row of the table of data sets.

    Raises:
        LedgerUnavailable: if the row was not written by a ledger.
    """
    return _read(DatasetRow, row, row.name)


def charge_row(row: Any) -> ChargeRow:
    """Parse a row of the table of charges; errors as for :func:`dataset_row`."""
    return _read(ChargeRow, row, row.idem_key)


def _read(kind: type[_Row], row: Any, name: str) -> _Row:
    """Parse a row whose columns are in the order of the fields of ``kind``."""
    try:
        return kind(*(_READ.get(column, _as_it_is)(value) for column, value in row._mapping.items()))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise LedgerUnavailable(
            f"the ledger's record of {name!r} cannot be read: the database was edited, or is damaged. "
            "Nothing may be released. Restore a backup, and record that with Ledger.recover_from_backup."
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
        self._connection = connection
        self.identity = identity

    # --- reading --------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return microseconds since 1970, by the clock of the engine."""
        return now(self._connection)

    def datasets(self) -> list[DatasetRow]:
        """Return all data sets, in the order of opening."""
        return [
            dataset_row(row) for row in self._connection.execute(sa.select(DATASET).order_by(DATASET.c.id))
        ]

    def dataset(self, name: str) -> DatasetRow | None:
        """Return the data set of that name, if there is one."""
        row = self._connection.execute(_DATASET_BY_NAME, {"wanted": name}).one_or_none()
        return None if row is None else dataset_row(row)

    def contents(self, dataset_id: int) -> list[tuple[int, str, str | None]]:
        """Return the entry number, fingerprint and block of each content of a data set, in order."""
        query = sa.select(CONTENT).where(CONTENT.c.dataset_id == dataset_id).order_by(CONTENT.c.seq)
        return [(row.seq, row.fingerprint, row.block) for row in self._connection.execute(query)]

    def holders(self, fingerprint: str) -> list[tuple[int, str | None]]:
        """Return the ids of the data sets that have a content, and its block in each."""
        query = sa.select(CONTENT).where(CONTENT.c.fingerprint == fingerprint).order_by(CONTENT.c.dataset_id)
        return [(row.dataset_id, row.block) for row in self._connection.execute(query)]

    def charge(self, dataset_id: int, key: str) -> ChargeRow | None:
        """Return the charge under ``key``, if there is one."""
        row = self._connection.execute(_CHARGE_BY_KEY, {"number": dataset_id, "key": key}).one_or_none()
        return None if row is None else charge_row(row)

    def charges(self, dataset_id: int) -> list[ChargeRow]:
        """Return all charges to a data set, in order."""
        query = sa.select(CHARGE).where(CHARGE.c.dataset_id == dataset_id).order_by(CHARGE.c.id)
        return [charge_row(row) for row in self._connection.execute(query)]

    def states(self, dataset_id: int) -> dict[str, int]:
        """Return the number of charges in each state."""
        query = sa.select(CHARGE.c.state, sa.func.count()).where(CHARGE.c.dataset_id == dataset_id)
        return {row[0]: row[1] for row in self._connection.execute(query.group_by(CHARGE.c.state))}

    def family(self, charge_id: int) -> list[ChargeRow]:
        """Return a charge, and its mirrors in the data sets that its data set is derived from."""
        return [charge_row(row) for row in self._connection.execute(_FAMILY, {"number": charge_id})]

    def overdue(self, dataset_id: int, at: int) -> list[int]:
        """Return the ids of reservations whose lease has ended by ``at``; a mirror counts as its original."""
        late = (CHARGE.c.state == "RESERVED") & (CHARGE.c.lease_ends <= at)
        query = sa.select(CHARGE.c.id, CHARGE.c.origin).where((CHARGE.c.dataset_id == dataset_id) & late)
        return sorted(
            {row.id if row.origin is None else row.origin for row in self._connection.execute(query)}
        )

    def entries(self, dataset_id: int) -> list[Entry]:
        """Return the history of a data set, from its opening."""
        query = sa.select(ENTRY).where(ENTRY.c.dataset_id == dataset_id).order_by(ENTRY.c.seq)
        return [_entry(row) for row in self._connection.execute(query)]

    def entry(self, dataset_id: int, seq: int) -> Entry:
        """Return one entry of the history."""
        query = sa.select(ENTRY).where(ENTRY.c.dataset_id == dataset_id, ENTRY.c.seq == seq)
        return _entry(self._connection.execute(query).one())

    # --- writing --------------------------------------------------------------------------------------------

    def lock_ledger(self) -> None:
        """Keep other transactions from opening data sets until this one ends."""
        self._connection.execute(sa.select(LEDGER.c.id).with_for_update())

    def lock(self, ids: Iterable[int]) -> dict[int, DatasetRow]:
        """Lock rows of data sets in the order of their ids until the transaction ends, and return them."""
        rows = self._connection.execute(_LOCKED_DATASETS, {"numbers": sorted(set(ids))})
        return {row.id: dataset_row(row) for row in rows}

    def add_dataset(self, name: str, policy: Policy, cap: Cost) -> DatasetRow:
        """Add a data set with nothing spent and no entry yet."""
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
        self._connection.execute(sa.insert(DATASET).values(values))
        row = self.dataset(name)
        assert row is not None
        return row

    def change_budget(self, row: DatasetRow, policy: Policy, cap: Cost) -> None:
        """Replace the policy and the cap of a data set, as its budget changes."""
        values = {"number": row.id, "policy": policy.to_json(), "cap": canonical(cap)}
        self._connection.execute(_CHANGE_DATASET, values)

    def add_content(self, dataset_id: int, seq: int, fingerprint: str, block: str | None) -> None:
        """Add a content to a data set; ``seq`` is the number of the entry that records it."""
        values = {"dataset_id": dataset_id, "seq": seq, "fingerprint": fingerprint, "block": block}
        self._connection.execute(sa.insert(CONTENT), values)

    def add_charge(self, charge: Mapping[str, Any]) -> int:
        """Add a reservation, given as a row of the table of charges; return its id."""
        result = self._connection.execute(_ADD_CHARGE, {**charge, "state": "RESERVED"})
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def move(
        self, charge: ChargeRow, before: str, after: str, changes: Mapping[str, str | int] | None = None
    ) -> None:
        """Move a charge from state ``before`` to ``after``, and change the columns in ``changes``.

        Raises:
            LeaseLost: if the charge is not in the state ``before``.
        """
        values = {"number": charge.id, "before": before, "state": after, **(changes or {})}
        if self._connection.execute(_MOVE_CHARGE, values).rowcount != 1:
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
        self._connection.execute(_ADD_ENTRY, entry)
        head: dict[str, Any] = {"head_seq": seq, "head_hash": digest, "head_time": at}
        self._connection.execute(_CHANGE_DATASET, {"number": row.id, "spent": canonical(after), **head})
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
        """Make the tables, and store the ledger's identity.

        Raises:
            InvalidInput: if a ledger already exists at ``url``.
        """
        target = parse_target(url)
        prepare(target)
        store = cls(target, Identity(str(uuid.uuid4()), secrets.token_bytes(32)))
        with store._guarded(), store._engine().begin() as connection:
            tables = sa.inspect(connection).get_table_names()
            if "ledger" in tables or (tables and target.kind == "file"):
                raise InvalidInput(
                    f"{target} is not empty: it holds {', '.join(tables)}. Open that ledger, or choose "
                    "another place."
                )
            META.create_all(connection)
            name, secret = store.identity.uuid, store.identity.secret.hex()
            values = {"id": 1, "uuid": name, "secret": secret, "version": VERSION}
            connection.execute(sa.insert(LEDGER).values(values))
        return store

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> Store:
        """Open an existing ledger.

        Raises:
            InvalidInput: if there is no ledger at ``url``, or it has another format.
        """
        target = parse_target(url)
        if target.kind == "memory":
            raise InvalidInput("a ledger in memory cannot be opened again; create one.")
        store = cls(target, Identity("", b""))
        with store._guarded(), store._engine().connect() as plain:
            connection = plain.execution_options(reads=True)
            if not sa.inspect(connection).has_table("ledger"):
                raise InvalidInput(f"there is no ledger at {target}. Make one with `tacit ledger init`.")
            row = connection.execute(sa.select(LEDGER)).one_or_none()
            if row is None or row.version != VERSION:
                written = -1 if row is None else int(row.version)
                raise InvalidInput(
                    f"this ledger was written by Tacit {_WRITERS.get(written, 'of another version')} (format "
                    f"{written}), and this Tacit reads format {VERSION}: nothing was changed in it. Continue "
                    "with the Tacit that wrote it, or open each data set in a new ledger with what is left "
                    "there as its cap."
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

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Run a transaction that may write; commit it at the end, or undo all of it after an error.

        Raises:
            LedgerUnavailable: if the engine fails, for example because the disk is full or a wait too long.
        """
        with self._turn(), self._guarded(), self._engine().begin() as connection:
            start(connection, reads=False)
            yield Transaction(connection, self.identity)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Run a transaction that reads one consistent state of the ledger without waiting for others."""
        with self._turn(), self._guarded(), self._engine().connect() as plain:
            connection = plain.execution_options(reads=True)
            with connection.begin():
                start(connection, reads=True)
                yield Transaction(connection, self.identity)

    def describe(self) -> str:
        """Return the engine and its settings, for the certificate."""
        with self._turn(), self._guarded(), self._engine().connect() as plain:
            connection = plain.execution_options(reads=True)
            return engine_text(self.target, connection)

    def close(self) -> None:
        """Free the connections."""
        with self._make:
            engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()

    def _turn(self) -> AbstractContextManager[Any]:
        return self._one_at_a_time or nullcontext()

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
