"""Where a ledger may live, for tests of every engine: a file, memory, a PostgreSQL database."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PLACES = ("file", "memory", "postgresql")

_spec = importlib.util.spec_from_file_location(
    "postgres_server", Path(__file__).with_name("postgres_server.py")
)
assert _spec is not None
assert _spec.loader is not None
postgres_server: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = postgres_server  # dataclasses look their module up
_spec.loader.exec_module(postgres_server)


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
