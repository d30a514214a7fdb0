"""Properties of PostgreSQL alone: rights of a role, races between connections, transactions that wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import places
import pytest

from tacit.events import ApproximateDP
from tacit.ledger import Ledger, LedgerUnavailable, Policy, PureBudget, Refused, store

PEOPLE = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
RIGHTS = """
GRANT USAGE ON SCHEMA public TO asker;
GRANT SELECT ON ledger, dataset, charge, content, entry TO asker;
GRANT INSERT ON charge, content, entry TO asker;
GRANT UPDATE ON dataset, charge TO asker;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with places.server() as started:
        yield started


@pytest.fixture
def url(server: Any) -> str:
    return str(places.emptied(server))


def sql(server: Any, statement: str) -> None:
    import psycopg

    with psycopg.connect(
        f"host={server.folder} user=postgres dbname=postgres", autocommit=True
    ) as connection:
        connection.execute(statement.encode())


def test_many_at_once_get_exactly_what_there_is(url: str) -> None:
    ledger = Ledger.create(url)
    ledger.open_dataset("visits", PEOPLE)
    ledger.open_dataset(
        "part", Policy(unit="row", adjacency="add-remove", budget=PureBudget(9.0), parent="visits")
    )
    threads = 6
    start = threading.Barrier(threads)

    def client(number: int) -> int:
        mine = Ledger.open(url)
        start.wait()
        granted = 0
        for attempt in range(4):
            name = ("visits", "part")[(number + attempt) % 2]  # both orders of locking, were it not by number
            try:
                charge = mine.reserve(name, ApproximateDP(0.1), key=f"{number}-{attempt}", request={})
            except Refused:
                continue
            mine.settle(charge, number)
            granted += 1
        mine.close()
        return granted

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(client, range(threads))) == 10
    assert ledger.status("visits").spent == ledger.status("visits").cap
    assert all(ledger.verify(name).ok for name in ("visits", "part"))
    ledger.close()


def test_a_role_that_asks_needs_no_more_than_the_page_says(server: Any, url: str) -> None:
    curator = Ledger.create(url)
    curator.open_dataset("visits", PEOPLE)
    sql(server, "DROP ROLE IF EXISTS asker")
    sql(server, "CREATE ROLE asker LOGIN")
    for line in RIGHTS.strip().splitlines():
        sql(server, line)
    ledger = Ledger.open(url.replace("postgres@", "asker@"))
    ledger.register_content("visits", ledger.fingerprint([b"a table"]))
    ledger.settle(ledger.reserve("visits", ApproximateDP(0.5), key="q", request={}), 1)
    ledger.forfeit(ledger.reserve("visits", ApproximateDP(0.25), key="r", request={}))
    with pytest.raises(Refused):
        ledger.reserve("visits", ApproximateDP(0.5), key="s", request={})
    assert ledger.verify("visits").ok
    with pytest.raises(LedgerUnavailable, match="permission denied"):
        ledger.open_dataset("other", PEOPLE)
    for each in (curator, ledger):
        each.close()
    sql(server, "DROP OWNED BY asker; DROP ROLE asker")


def test_a_lock_that_is_never_given_back_ends_in_an_error(
    server: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    ledger = Ledger.create(url)
    ledger.open_dataset("visits", PEOPLE)
    monkeypatch.setattr(store, "BUSY_SECONDS", 1.0)
    with psycopg.connect(f"host={server.folder} user=postgres dbname=postgres") as stuck:
        stuck.execute("SELECT * FROM dataset FOR UPDATE")
        with pytest.raises(LedgerUnavailable, match=r"lock timeout\. Nothing may be released"):
            ledger.reserve("visits", ApproximateDP(0.5), key="q", request={})
        assert ledger.status("visits").spent == (0,), "reading does not wait"
    assert ledger.reserve("visits", ApproximateDP(0.5), key="q", request={}).token
    ledger.close()
