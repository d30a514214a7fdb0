"""The effect of one record on the clipped sum, for every known coupling: ``make coupling-table``.

Each entry of ``tests/clipping/couplings.py`` is measured on all record sets, and compared with a computation
without Tacit's guards.  The exit code is 1 if an entry is above 1.  This takes minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import results
import torch

sys.path.insert(0, str(Path(__file__).parent.parent.resolve() / "tests" / "clipping"))

from coupling import FULL, TOLERANCE, RecordSet, measure, unguarded
from couplings import COUPLINGS, ISOLATED_MODELS

ENTRIES = [*COUPLINGS, *ISOLATED_MODELS]
TESTS = Path(__file__).parent.parent.resolve() / "tests" / "clipping"


def main() -> int:
    """Measure all entries; or measure and only print those whose names contain a given text."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=results.FOLDER / "coupling_table.json")
    options.add_argument("--only", default="", help="a part of the names; nothing is written then")
    options.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    given = options.parse_args()
    chosen = [number for number, entry in enumerate(ENTRIES) if given.only in entry.name]
    rows = []
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(row_of, chosen):
            rows.append(row)
            print(_line(row), flush=True)  # noqa: T201
    seconds = sum(row["seconds"] for row in rows)
    print(f"{len(rows)} entries, {seconds:.0f} s of a processor core")  # noqa: T201
    if not given.only:
        settings = {"record sets": [set_of(chosen) for chosen in FULL], "tolerance": TOLERANCE}
        results.write(
            given.out, "coupling table", {"settings": settings, "seconds": round(seconds), "rows": rows}
        )
    return int(any((row["sensitivity"] or 0.0) > 1 + TOLERANCE for row in rows))


def row_of(number: int) -> dict[str, Any]:
    """Return the row of an entry."""
    torch.set_num_threads(1)
    entry, start = ENTRIES[number], time.process_time()
    of_draws = entry.draws and entry.kind == "none"  # two sums differ by each record's random numbers
    found, free = measure(entry, FULL), None if of_draws else unguarded(entry, FULL)
    return {
        "kind": entry.kind,
        "name": entry.name,
        "expected": entry.expected,
        "verdict": found.verdict,
        "verdicts": found.verdicts,
        "sensitivity": None if entry.draws else round(found.sensitivity, 6),
        "unguarded": None if free is None else float(f"{free:.3g}"),
        "error": found.error.replace(f"{TESTS}/", ""),
        "seconds": round(time.process_time() - start, 2),
    }


def set_of(chosen: RecordSet) -> dict[str, Any]:
    """Return a record set as JSON data."""
    return asdict(chosen) | {"rig": chosen.rig.__name__}


def _line(row: dict[str, Any]) -> str:
    moved = "random" if row["sensitivity"] is None else f"{row['sensitivity']:.4f}"
    return f"{row['kind']:15} {row['name']:55} {row['verdict']:11} {moved:>9} {row['unguarded']}"


if __name__ == "__main__":
    sys.exit(main())
