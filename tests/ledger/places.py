"""Places of a ledger, for tests of every engine: a file, memory, a PostgreSQL database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import postgres_server
import pytest

PLACES = ("file", "memory", "postgresql")


@contextlib.contextmanager
def server() -> Iterator[Any]:
    """A PostgreSQL server that keeps its commits, or a skip with the reason."""
    reason = postgres_server.missing()
    if reason:
        pytest.skip(reason)
    with postgres_server.running() as started:
        yield started


def emptied(started: Any) -> str:
    """The URL of the server's database, with nothing in it: quicker than a new one."""
    import psycopg

    with psycopg.connect(
        f"host={started.folder} user=postgres dbname=postgres", autocommit=True
    ) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return str(started.url)
