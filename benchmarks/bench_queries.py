"""The time of a private answer compared with plain DuckDB: ``make bench-queries``.

The questions group ten million rows of a Parquet file by 100 declared keys.  Plain is the same question as
SQL text to DuckDB.  Private is ``PrivateTable.ask``, which compiles, prices, reserves, counts, draws noise
and settles, with a ledger in an SQLite file.  The two take turns in rounds.  Opening a table reads it once
for its fingerprint, and is timed separately.

If the unit is a row, no contribution bounding is needed.  If the unit is a person, there are two million
people with five rows each on average.  The rows of every person are counted, and the rows of people above the
bound are ranked.  These are 1 in 70 people for a bound of ten rows, and 4 in 10 for a bound of five, the hard
case.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import results
from rich.console import Console
from rich.table import Table

from tacit.ledger import Column, Ledger, Policy, PureBudget
from tacit.queries import Count, Mean, Query, Sum, register_table
from tacit.queries.private_table import PrivateTable

KEYS, PERSONS = 100, 2_000_000
UNITS = {"row": 1, "person, 10 rows": 10, "person, 5 rows": 5}
QUESTIONS = {
    "count": (Query((Count(),), by=("ward",)), "count(*)"),
    "count and sum": (Query((Count(), Sum("cost")), by=("ward",)), "count(*), sum(cost)"),
    "mean": (Query((Mean("cost"),), by=("ward",)), "avg(cost)"),
}


def main() -> int:
    """Measure, write the JSON and print the results."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=float, default=1e7)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path, default=results.FOLDER / "queries_speed.json")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "visits.parquet"
        write_rows(data, int(given.rows))
        rows = [row for unit in UNITS for row in measured(data, unit, given.rounds)]
        ledger = ledger_row(Path(folder), given.rounds)
    content = {
        "rows": int(given.rows),
        "cores": len(os.sched_getaffinity(0)),
        "speed": rows,
        "ledger": ledger,
    }
    results.write(given.out, "queries_speed", content, packages=("duckdb", "sqlglot", "sqlalchemy"))
    show(rows, ledger)
    return 0


def write_rows(path: Path, rows: int) -> None:
    """Write wards, persons and costs that look random but are the same each time."""
    columns = (
        f"(hash(i) % {KEYS})::INT AS ward, (hash(i + 1) % {PERSONS})::INT AS person, "
        "(hash(7 * i) % 10000) / 100.0 AS cost"
    )
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {columns} FROM range({rows}) AS t(i)) TO '{path}'")


def measured(data: Path, unit: str, rounds: int) -> list[dict[str, Any]]:
    """Return the plain and private seconds of every question, as medians over ``rounds``."""
    ledger = Ledger.create(f"sqlite:///{data.parent / unit.replace(' ', '')}.db")
    ledger.open_dataset("visits", policy(unit))
    register_table(data, ledger=ledger, dataset="visits")
    opened, table = timed(lambda: PrivateTable(data, ledger=ledger, dataset="visits"))
    plain = duckdb.connect()
    rows = []
    for name, (query, selected) in QUESTIONS.items():
        text = f"SELECT ward, {selected} FROM '{data}' GROUP BY ward"
        seconds: dict[str, list[float]] = {"plain": [], "private": []}
        for attempt in range(rounds + 1):
            there = timed(lambda text=text: plain.execute(text).fetchall())[0]
            here = timed(
                lambda query=query, attempt=attempt: table.ask(query, epsilon=0.1, attempt=attempt + 1)
            )[0]
            if attempt > 0:  # the first round warms the file cache
                seconds["plain"].append(there)
                seconds["private"].append(here)
        medians = {who: statistics.median(found) for who, found in seconds.items()}
        more = medians["private"] - medians["plain"]
        rows.append({"unit": unit, "question": name, **medians, "more": more, "opening": opened})
    plain.close()
    table.close()
    return rows


def policy(unit: str) -> Policy:
    """Return the public facts about the table."""
    by_person = unit != "row"
    return Policy(
        unit=unit,
        adjacency="add-remove",
        budget=PureBudget(1000.0),
        unit_column="person" if by_person else None,
        rows_per_unit=UNITS[unit],
        columns={
            "ward": Column(kind="integer", values=tuple(range(KEYS))),
            "cost": Column(kind="number", lower=0.0, upper=100.0),
        },
    )


def ledger_row(folder: Path, rounds: int) -> dict[str, float]:
    """Return the milliseconds of reserve and settle together, by one client on an SQLite file."""
    from tacit.events import DiscreteLaplace

    ledger = Ledger.create(f"sqlite:///{folder / 'ledger.db'}")
    ledger.open_dataset("visits", policy("row"))

    def once(number: int) -> None:
        charge = ledger.reserve(
            "visits", DiscreteLaplace(1000.0), key=f"query-{number}", request={"number": number}
        )
        ledger.settle(charge, {"rows": []})

    found = [timed(lambda number=number: once(number))[0] for number in range(100 * rounds)]
    return {
        "median ms": 1e3 * statistics.median(found),
        "95 % ms": 1e3 * statistics.quantiles(found, n=20)[-1],
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds and the result of ``work``."""
    started = time.perf_counter()
    made = work()
    return time.perf_counter() - started, made


def show(rows: list[dict[str, Any]], ledger: dict[str, float]) -> None:
    """Print the results."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console()
    console.print(table)
    console.print({name: round(value, 2) for name, value in ledger.items()})


if __name__ == "__main__":
    sys.exit(main())
