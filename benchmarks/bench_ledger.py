"""The ledger's time per query (reserve and settle by one client), and to read a long history.

Most of it is the time of two commits to the disk.  So the table also shows the disk's time to write and sync
16 KiB, measured in turns with the charges.  ``--postgresql URL`` adds an empty database of a server.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from results import FOLDER, write
from rich.console import Console
from rich.table import Table

from tacit.events import Laplace
from tacit.ledger import Budget, Ledger, Policy, PureBudget, RenyiBudget

CHARGES = 300
WARM = 20


@dataclass(frozen=True)
class Timing:
    """The median and quartiles of a time, in milliseconds."""

    engine: str
    mode: str
    task: str
    median: float
    low: float
    high: float
    count: int


def main() -> int:
    """Measure and write ``results/ledger.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", help="URL of an empty database on a PostgreSQL server")
    parser.add_argument("--folder", type=Path, help="where to put the SQLite file: the disk that is measured")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        timings = measure("SQLite", str(Path(folder) / "ledger.db"), Path(folder))
        if options.postgresql:
            timings += measure("PostgreSQL", options.postgresql, Path(folder))
    table = Table("engine", "mode", "task", "ms", "quartiles")
    for timing in timings:
        spread = f"{timing.low:.2f} to {timing.high:.2f}"
        table.add_row(timing.engine, timing.mode, timing.task, f"{timing.median:.2f}", spread)
    Console().print(table)
    content = {"setting": {"charges": CHARGES}, "timings": [asdict(timing) for timing in timings]}
    write(options.out / "ledger.json", "ledger", content, packages=("sqlalchemy", "psycopg"))
    return 0


def measure(engine: str, url: str, folder: Path) -> list[Timing]:
    """Measure all tasks on one database engine."""
    ledger = Ledger.create(url)
    timings = []
    for budget in (PureBudget(1e4), RenyiBudget(100.0, 1e-6)):
        timings += of_mode(engine, ledger, budget, folder)
    ledger.close()
    return timings


def of_mode(engine: str, ledger: Ledger, budget: Budget, folder: Path) -> list[Timing]:
    """Time charges of Laplace noise, each settled at once, and the reading of their history."""
    name = budget.mode
    ledger.open_dataset(name, Policy(unit="row", adjacency="add-remove", budget=budget))
    taken: dict[str, list[float]] = {
        "reserve + settle": [],
        "reserve": [],
        "settle": [],
        "sync of 16 KiB": [],
    }
    for number in range(WARM + CHARGES):
        start = time.perf_counter()
        charge = ledger.reserve(name, Laplace(1e3), key=str(number), request={"count": number})
        between = time.perf_counter()
        ledger.settle(charge, {"value": number})
        end = time.perf_counter()
        laps = {"reserve + settle": end - start, "reserve": between - start, "settle": end - between}
        laps["sync of 16 KiB"] = seconds(lambda: sync(folder / "plain"))
        if number >= WARM:
            for task, lap in laps.items():
                taken[task].append(lap)
    entries = len(ledger.history(name))
    taken[f"verify {entries} entries"] = [seconds(lambda: ledger.verify(name)) for _ in range(9)]
    taken["status"] = [seconds(lambda: ledger.status(name)) for _ in range(30)]
    return [timing(engine, name, task, laps) for task, laps in taken.items()]


def sync(path: Path) -> None:
    """Append to a file and wait for the disk, which every commit does at least."""
    with path.open("ab", buffering=0) as file:
        file.write(b"x" * 16384)
        os.fsync(file.fileno())


def seconds(act: Callable[[], object]) -> float:
    """Return the seconds that ``act`` takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def timing(engine: str, mode: str, task: str, laps: list[float]) -> Timing:
    """Return the median and quartiles in milliseconds."""
    low, median, high = (1e3 * value for value in statistics.quantiles(laps, n=4))
    return Timing(engine, mode, task, median, low, high, len(laps))


if __name__ == "__main__":
    sys.exit(main())
