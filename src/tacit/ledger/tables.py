"""The tables of a ledger, and the content of their rows.

* ``ledger``: one row with the ledger's identity.
* ``dataset``: for each data set, its policy, its cap, what is spent, and the head of its history.
* ``charge``: one row per request and data set, with its state and, once settled, its answer.
* ``content``: the fingerprints of registered contents, which the ledger recognises under a second name.
* ``entry``: the history, to which the ledger only adds. The primary key (data set, number) prevents two
  transactions from adding the same entry, even without the lock on the data set's row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from typing import Any, TypeVar

import sqlalchemy as sa

from tacit.ledger.budgets import Cost, Spent
from tacit.ledger.errors import LedgerUnavailable
from tacit.ledger.policy import Policy

META = sa.MetaData()
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite numbers rows only for INTEGER keys

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
    sa.Column("id", _NUMBER, sa.Identity(), primary_key=True),
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
    sa.Column("id", _NUMBER, sa.Identity(), primary_key=True),
    sa.Column("dataset_id", _NUMBER, sa.ForeignKey("dataset.id"), nullable=False),
    sa.Column("origin", _NUMBER, sa.ForeignKey("charge.id")),
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
    sa.Column("dataset_id", _NUMBER, sa.ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),  # the number of its entry
    sa.Column("fingerprint", sa.Text, nullable=False, index=True),
    sa.Column("block", sa.Text),
)
ENTRY = sa.Table(
    "entry",
    META,
    sa.Column("dataset_id", _NUMBER, sa.ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
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
