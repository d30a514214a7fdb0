"""Tests of the faults that a ledger must survive, at full size: ``make torture-ledger``.

The faults are crowds of processes, processes killed at random moments and between any two statements, a
crashing server, a power loss, a full disk, and queries and a training run that are killed together.  Each
part stops at the first broken promise.  Controls with a planted bug must break one.  The results are written
after each part.  The test suite has a small version.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import results

TESTS = Path(__file__).parents[1] / "tests" / "ledger"
sys.path.insert(0, str(TESTS))

import postgres_server  # noqa: E402
import torture_disk  # noqa: E402
import torture_power  # noqa: E402

CROWD = {"what": "crowd", "processes": 50, "attempts": 300}


def main() -> int:
    """Run all parts, or the named ones; return 1 if a control was not caught."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    options.add_argument("--out", type=Path, default=results.FOLDER / "torture.json")
    given = options.parse_args()
    parts: dict[str, Any] = {}
    if given.out.exists():
        parts = json.loads(given.out.read_text(encoding="utf-8"))["parts"]
    for name in given.only:
        begin = time.perf_counter()
        reason, part = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="tacit-torture-") as folder:
            found = {"skipped": reason()} if reason() else part(Path(folder))
        parts[name] = found | {"seconds in all": round(time.perf_counter() - begin, 1)}
        print(name, parts[name], flush=True)  # noqa: T201
        ordered = {each: parts[each] for each in PARTS if each in parts}
        results.write(given.out, "torture", {"parts": ordered}, packages=("sqlalchemy", "psycopg"))
    return int(not all(map(caught, parts.items())))


def caught(part: tuple[str, dict[str, Any]]) -> bool:
    """Return whether the part is a caught control, or no control; other parts raise if they fail."""
    name, found = part
    if "control" not in name or "skipped" in found:
        return True
    return bool(found.get("broken", 0) > 0 or found.get("granted", 0) > 100)


def program(url: str, folder: Path, **order: Any) -> dict[str, Any]:
    """Run a test with many processes, from a separate process."""
    order |= {"url": url, "folder": str(folder)}
    name = "torture_processes.py" if "what" in order else "torture_end_to_end.py"
    command = [sys.executable, str(TESTS / name), json.dumps(order)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def on_sqlite(**order: Any) -> Callable[[Path], dict[str, Any]]:
    """Return a part that runs on an SQLite file on the disk."""
    return lambda folder: program(f"sqlite:///{folder / 'ledger.db'}", folder, **order)


def on_postgres(**order: Any) -> Callable[[Path], dict[str, Any]]:
    """Return a part that runs on a new PostgreSQL server, which crashes if ``falls=True``."""
    falls = order.pop("falls", False)

    def part(folder: Path) -> dict[str, Any]:
        with postgres_server.running("max_connections=200") as server:
            more = {"server": str(server.folder)} if falls else {}
            return program(server.url, folder, **order, **more)

    return part


def power(
    *, charges: int, lives: int, chances: int, every: bool, synchronous: str = "FULL"
) -> Callable[[Path], dict[str, Any]]:
    """Return a part that records disk writes, and checks the states that a power loss may leave."""

    def part(folder: Path) -> dict[str, Any]:
        client = folder / "client"
        client.mkdir()
        acts = torture_power.record(client, charges=charges, lives=lives, synchronous=synchronous)
        with in_memory() as left:
            found = torture_power.power_loss(acts, left / "left", chances=chances, every=every)
        if synchronous == "FULL" and found["broken"]:
            raise RuntimeError(found["first"])
        return found

    return part


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a folder in memory if possible, as files opened there come from a recorded disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tacit-torture-", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def always() -> str:
    """Return no reason to leave a part out."""
    return ""


def small_disk(folder: Path) -> dict[str, Any]:
    """Return the failures by step on a full file system."""
    return {"failures": torture_disk.on_a_small_disk(folder)}


def small_files(folder: Path) -> dict[str, Any]:
    """Return the failures by step with a limit on file sizes."""
    return {"failures": torture_disk.full_disk(folder, torture_disk.limited, grain=512)}


STATEMENTS = {"what": "between statements"}
PARTS: dict[str, tuple[Callable[[], str], Callable[[Path], dict[str, Any]]]] = {
    "crowd, SQLite": (always, on_sqlite(**CROWD, client="honest")),
    "crowd, PostgreSQL": (postgres_server.missing, on_postgres(**CROWD, client="honest")),
    "crowd, control, SQLite": (always, on_sqlite(**CROWD, client="naive")),
    "crowd, control, PostgreSQL": (postgres_server.missing, on_postgres(**CROWD, client="naive")),
    "crowd without the lock on the row, PostgreSQL": (
        postgres_server.missing,
        on_postgres(**CROWD, client="unlocked"),
    ),
    "kill -9, SQLite": (always, on_sqlite(what="sudden death", rounds=120, grants=150, longest=0.5)),
    "kill -9, PostgreSQL": (
        postgres_server.missing,
        on_postgres(what="sudden death", rounds=100, grants=150, longest=0.7),
    ),
    "between statements, SQLite": (always, on_sqlite(**STATEMENTS)),
    "between statements, PostgreSQL": (postgres_server.missing, on_postgres(**STATEMENTS)),
    "immediate shutdown, PostgreSQL": (
        postgres_server.missing,
        on_postgres(what="sudden death", rounds=8, writers=4, grants=200, longest=4.0, falls=True),
    ),
    "queries and training, SQLite": (always, on_sqlite(clients=20, kills=3)),
    "queries and training, PostgreSQL": (postgres_server.missing, on_postgres(clients=20, kills=3)),
    "power loss, any moment": (
        torture_power.missing,
        power(charges=5, lives=2, chances=4, every=True),
    ),
    "power loss, long log": (
        torture_power.missing,
        power(charges=60, lives=1, chances=2, every=False),
    ),
    "power loss, control": (
        torture_power.missing,
        power(charges=6, lives=3, chances=1, every=False, synchronous="NORMAL"),
    ),
    "full disk": (torture_disk.missing, small_disk),
    "full disk, by the size of files": (always, small_files),
}


if __name__ == "__main__":
    sys.exit(main())
