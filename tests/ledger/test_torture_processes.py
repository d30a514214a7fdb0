"""Many processes at once, and processes that die: the ledger keeps its promises, and controls are caught.

The same tortures at full size, on both engines and on a disk, are ``make torture-ledger``.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Torture = Callable[..., dict[str, Any]]
_spec = importlib.util.spec_from_file_location("places", HERE / "places.py")
assert _spec is not None
assert _spec.loader is not None
places: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(places)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that can be had: these tests do not ask whether a disk keeps what was synced."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="tacit-ledger-", dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with places.server() as started:
        yield started


@pytest.fixture(params=["file", "postgresql"])
def url(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "file":
        return f"sqlite:///{folder / 'ledger.db'}"
    return str(places.emptied(request.getfixturevalue("server")))


@pytest.fixture(scope="module")
def torture() -> Iterator[Torture]:
    """Runs a torture, in a process that is forked from one that has imported everything."""
    command = [sys.executable, str(HERE / "torture_processes.py"), "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        orders, answers = program.stdin, program.stdout

        def run(what: str, url: str, folder: Path, **order: Any) -> dict[str, Any]:
            orders.write(json.dumps({"what": what, "url": url, "folder": str(folder), **order}) + "\n")
            orders.flush()
            answer = json.loads(answers.readline())
            assert "broken" not in answer, answer["broken"]
            found = answer["found"]
            assert isinstance(found, dict)
            return found

        yield run


def test_eight_processes_get_exactly_what_there_is(torture: Torture, url: str, folder: Path) -> None:
    found = torture("crowd", url, folder, processes=8, attempts=60, client="honest", grants=50)
    assert found["granted"] == 50


@pytest.mark.thorough(cases=1)
def test_reading_then_writing_is_caught(torture: Torture, url: str, folder: Path) -> None:
    """The control: the harness sees the overspend of a balance that is read, checked and written back."""
    found = torture("crowd", url, folder, processes=8, attempts=60, client="naive", grants=50)
    assert found["granted"] > 50


def test_without_the_lock_the_second_lock_holds(torture: Torture, server: Any, folder: Path) -> None:
    url = places.emptied(server)
    found = torture("crowd", url, folder, processes=4, attempts=60, client="unlocked")
    assert 1 <= found["granted"] <= 60


def test_sudden_death_breaks_no_promise(torture: Torture, url: str, folder: Path) -> None:
    found = torture("sudden death", url, folder, rounds=3, grants=100, longest=0.2)
    assert found["released"] + found["reply lost"] + found["forfeited"] == found["charges"]


def test_death_between_any_two_statements_breaks_no_promise(torture: Torture, folder: Path) -> None:
    url = f"sqlite:///{folder / 'ledger.db'}"
    found = torture("between statements", url, folder, steps=["reserve", "settle"])
    assert found["in all"] >= 40


def test_death_between_two_statements_breaks_no_promise_of_a_server(
    torture: Torture, server: Any, folder: Path
) -> None:
    found = torture("between statements", places.emptied(server), folder, steps=["reserve"])
    assert found["in all"] >= 20


def test_a_server_that_falls_over_loses_no_charge(torture: Torture, folder: Path) -> None:
    with places.server() as mine:
        found = torture(
            "sudden death", mine.url, folder, rounds=1, writers=3, longest=0.5, server=str(mine.folder)
        )
    assert found["rounds"] == 1
