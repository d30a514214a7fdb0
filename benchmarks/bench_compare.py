"""The time of a private step as a ratio to that of another version, in alternating turns.

Run ``make bench-compare BEFORE=../earlier/src``, or ``bench_compare.py BEFORE --quick`` while you work.
BEFORE is the ``src`` folder of another checkout (``git worktree add``).  Build its native kernels, or copy
them if no kernel differs.  Each version runs the workload in its own process, and the two take turns of a few
steps.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import results
from alternate import Worker, all_ended
from rich.console import Console
from rich.table import Table
from workloads import OVERHEAD_WORKLOADS, WORKLOADS

__all__ = ["compare", "summary"]

HERE = Path(__file__).parent
NOW = HERE.parent / "src"
NAMES = (*WORKLOADS, *OVERHEAD_WORKLOADS)
USUAL = (*WORKLOADS, "GPT, width 64, depth 24")
TURN_SECONDS = 0.15
FULL, QUICK = (40.0, 30), (6.0, 5)


def compare(options: argparse.Namespace, workload: str) -> dict[str, Any]:
    """Return the row of a workload."""
    arguments = ["--workload", workload, "--engine", "tacit", "--batches", "full", "--steps", str(10**6)]
    arguments += ["--tiny"] if options.tiny else []
    sources = {"before": options.before.resolve(), "now": options.now.resolve()}
    script = HERE / "train_worker.py"
    start = {
        side: partial(Worker, f"{workload}, {side}", script, arguments, {"PYTHONPATH": str(source)})
        for side, source in sources.items()
    }
    with all_ended(start) as asked:
        kernels = {side: checked(asked[side].ask("ready"), sources[side]) for side in sources}
        if kernels["before"] != kernels["now"]:
            raise RuntimeError(f"native kernels: {kernels}; build or copy those of BEFORE.")
        firsts = warm(asked, together=options.quick)
        pairs, turn = in_turns(asked, *budget(options))
        routes = {side: worker.ask("end")["route"] for side, worker in asked.items()}
    return {"workload": workload} | summary(pairs, turn) | {"firsts": firsts, "routes": routes}


def budget(options: argparse.Namespace) -> tuple[float, int]:
    """Return the seconds to measure a workload, and the least number of pairs of turns."""
    seconds, least = QUICK if options.quick else FULL
    return (seconds if options.seconds is None else options.seconds), least


def checked(answer: dict[str, Any], source: Path) -> str:
    """Return the kernels of a worker, and check that it runs the right version."""
    found = Path(answer["tacit"]).resolve()
    if not found.is_relative_to(source.resolve()):
        raise RuntimeError(f"a worker that should run {source} imported {found}.")
    kernels: str = answer["kernels"]
    return kernels


def warm(asked: dict[str, Worker], *, together: bool) -> dict[str, float]:
    """Let each side take its first steps; return seconds of the very first, unless run ``together``."""
    if together:
        for what, how in (("start", {}), ("steps", {"number": 5})):
            for worker in asked.values():
                worker.send(what, **how)
            for worker in asked.values():
                worker.answer()
        return {}
    found = {}
    for side, worker in asked.items():
        found[side] = worker.ask("start")["seconds"] + sum(worker.ask("steps", number=1)["seconds"])
        worker.ask("steps", number=4)
    return found


def in_turns(
    asked: dict[str, Worker], seconds: float, least: int
) -> tuple[list[tuple[list[float], list[float]]], int]:
    """Return the seconds of each step of both sides, by pair of turns, and the number of steps per turn.

    Turns continue for ``seconds``, and until there are at least ``least`` pairs.
    """
    usual = min(min(worker.ask("steps", number=2)["seconds"]) for worker in asked.values())
    turn = max(1, round(TURN_SECONDS / usual))
    dice = random.Random(0)
    pairs: list[tuple[list[float], list[float]]] = []
    order = list(asked)
    ends = time.monotonic() + seconds
    while len(pairs) < least or time.monotonic() < ends:
        dice.shuffle(order)
        found = {side: asked[side].ask("steps", number=turn)["seconds"] for side in order}
        pairs.append((found["before"], found["now"]))
    return pairs, turn


def summary(pairs: Sequence[tuple[list[float], list[float]]], turn: int) -> dict[str, Any]:
    """Return the ratios of times now to before.

    ``ratio`` and its quartiles are over pairs, for the median step of each turn.  ``least_ratio`` is that of
    the fastest steps.  ``ratio_error`` is the standard error of the median, estimated from the quartiles.
    """
    ratios = [statistics.median(now) / statistics.median(before) for before, now in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    all_before, all_now = ([s for steps in side for s in steps] for side in zip(*pairs, strict=True))
    return {
        "before_milliseconds": 1e3 * statistics.median(all_before),
        "now_milliseconds": 1e3 * statistics.median(all_now),
        "ratio": middle, "ratio_low": low, "ratio_high": high,
        "ratio_error": 1.253 * (high - low) / 1.349 / len(pairs) ** 0.5,
        "least_ratio": min(all_now) / min(all_before), "pairs": len(pairs), "steps_per_turn": turn,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the results to print."""
    shown = Table(
        "workload", "before, ms", "now, ms", "now / before", "quartiles", "of least", "first, s", "route"
    )
    for row in rows:
        times = [f"{row[f'{side}_milliseconds']:.2f}" for side in ("before", "now")]
        ratio, error, low, high, least = (
            f"{row[name]:.3f}" for name in ("ratio", "ratio_error", "ratio_low", "ratio_high", "least_ratio")
        )
        first = " to ".join(f"{seconds:.1f}" for seconds in row["firsts"].values()) or "-"
        routes = " to ".join(dict.fromkeys(row["routes"].values()))
        shown.add_row(row["workload"], *times, f"{ratio} ± {error}", f"{low}-{high}", least, first, routes)
    return shown


def main() -> int:
    """Compare and print; write JSON if ``--out`` is given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="src folder of another checkout")
    parser.add_argument("--now", type=Path, default=NOW, help="src folder to compare, by default this one's")
    parser.add_argument("--workload", nargs="+", metavar="NAME", choices=NAMES, default=USUAL)
    parser.add_argument("--quick", action="store_true", help="under two minutes in all, for a first look")
    parser.add_argument("--seconds", type=float, help="of turns for each workload, in place of 40 or 6")
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args()
    for source in (options.before, options.now):
        if not (source / "tacit").is_dir():
            parser.error(f"{source} must be the src folder of a checkout; make one with git worktree add")
    rows = []
    for workload in options.workload:
        row = compare(options, workload)
        Console(stderr=True).print(f"{workload}: {row['ratio']:.3f} ± {row['ratio_error']:.3f}")
        rows.append(row)
    console = Console()
    Console(width=max(130, console.width)).print(table(rows))
    sys.stdout.write(f"load average at the end: {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors\n")
    if options.out is not None:
        content = {"before": str(options.before), "rows": rows}
        results.write(options.out, "a private step, before and now", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
