"""A PostgreSQL server that finds no room for a table, at each statement that writes to one.

Room is taken away by the limit on the size of a file, which a server takes for a full disk and answers with
an error.  Its log keeps the room that it needs: without that the server itself would end, as after a power
loss.  (https://www.postgresql.org/docs/current/diskusage.html, "disk full failure")
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import places
import postgres_server
import pytest

from tacit.events import ApproximateDP
from tacit.ledger import Ledger, LedgerUnavailable, Policy, PureBudget
from tacit.ledger.records import Charge

ROOM = 1 << 20  # of each file of a table, as of a piece of the log, which is not to be short of it
POLICY = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
EVENT = ApproximateDP(0.1)
TOKEN = "a secret of the client's own"
FILL = {
    "charge": "INSERT INTO charge (dataset_id, idem_key, request_hash, cost, state, token_hash, lease_ends) "
    "SELECT 1, gen_random_uuid(), repeat('x', {size}), '[]', 'FORFEITED', '', 0 "
    "FROM generate_series(1, {rows})",
    "entry": "INSERT INTO entry SELECT 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint + g, "
    "repeat('x', {size}), '', '' FROM generate_series(1, {rows}) AS g",
    "content": "INSERT INTO content SELECT 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint + g, "
    "md5(g::text), repeat('x', {size}) FROM generate_series(1, {rows}) AS g",
}
"""Rows of the data set number 1, for each table."""

Step = Callable[[Ledger, Charge], Any]
STEPS: dict[str, tuple[Step, tuple[str, ...]]] = {
    "reserve": (lambda ledger, _: reserve(ledger, "new"), ("charge", "entry")),
    "resume": (lambda ledger, held: ledger.resume("visits", held.key, TOKEN), ("entry",)),
    "settle": (lambda ledger, held: ledger.settle(held, "x"), ("entry",)),
    "forfeit": (lambda ledger, held: ledger.forfeit(held), ("entry",)),
    "recover": (lambda ledger, _: ledger.recover("visits"), ("entry",)),
    "raise the cap": (
        lambda ledger, _: ledger.raise_cap("visits", PureBudget(2.0), reason="test", by="test"),
        ("entry",),
    ),
    "register": (lambda ledger, _: ledger.register_content("visits", "0" * 64), ("content", "entry")),
}
"""What is done, and the tables that a row is added to."""


def reserve(ledger: Ledger, key: str) -> Charge:
    return ledger.reserve("visits", EVENT, key=key, request={}, token=TOKEN, lease_s=1e-6)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    reason = postgres_server.missing() or ("" if shutil.which("prlimit") else "prlimit is missing")
    if reason:
        pytest.skip(reason)
    with postgres_server.running("autovacuum=off", made_with=["--wal-segsize=1"]) as started:
        yield started


@contextmanager
def no_room(server: Any, table: str) -> Iterator[None]:
    """For clients that come in here there is no room left in ``table``."""
    import psycopg

    server.limit(str(ROOM))
    try:
        where = f"host={server.folder} user=postgres dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            for size, rows in ((1900, 100), (1900, 1), (100, 1)):
                statement = FILL[table].format(size=size, rows=rows)
                with suppress(psycopg.Error):
                    while True:
                        connection.execute(statement)
        yield
    finally:
        server.limit("unlimited")


@pytest.mark.parametrize("table", FILL)
def test_a_table_without_room_is_a_clean_refusal(server: Any, table: str) -> None:
    url = places.emptied(server)
    with closing(Ledger.create(url)) as ledger:
        ledger.open_dataset("ballast", POLICY)
        ledger.open_dataset("visits", POLICY)
        ledger.settle(reserve(ledger, "first"), 1)
        held = reserve(ledger, "held")
    with no_room(server, table), closing(Ledger.open(url)) as ledger:
        state = ledger.history("visits"), ledger.status("visits")
        for step, tables in STEPS.values():
            if table in tables:
                with pytest.raises(LedgerUnavailable, match=r"extend file.*Nothing may be released"):
                    step(ledger, held)
        assert (ledger.history("visits"), ledger.status("visits")) == state
        assert ledger.verify("visits").ok
    with closing(Ledger.open(url)) as ledger:
        assert ledger.settle(held, "x").state == "SETTLED"
        assert reserve(ledger, "new").token == TOKEN
        ledger.register_content("visits", "0" * 64)
        assert ledger.status("visits").spent == (3 * 10**11,)
        assert ledger.verify("visits").ok
