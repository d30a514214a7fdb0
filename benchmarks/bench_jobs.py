"""Whole training jobs with Poisson batches, private and plain: ``make bench-jobs``.

Each job has its own process, and the processes take turns of ten steps, so that a slow moment of the machine
affects all of them.  All jobs get the same batches.  Plain PyTorch runs convolutions in both memory formats,
and ratios are to the faster job.  A job's time starts when the model exists, and includes plan, optimizer,
session and all steps.  Libraries that torch loads at its first step are loaded before.  Memory, and the calls
of the loss, are measured in separate processes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import results
from alternate import Worker, all_ended
from rich.console import Console
from rich.table import Table
from workloads import JOBS, make_workload

from tacit import native

__all__ = ["Times", "job", "summary"]

PRIVATE = "tacit"
LENGTHS = (100, 1000)  # the numbers of steps of the reported jobs
TURN = 10
WORKER = Path(__file__).with_name("train_worker.py")
HELD = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # return freed memory, so that the peak is memory in use


@dataclass
class Times:
    """The seconds of one job before its first step, and of each step."""

    start: float
    steps: list[float] = field(default_factory=list)

    def total(self, steps: int) -> float:
        """Return the seconds of a job with this number of steps."""
        return self.start + sum(self.steps[:steps])


def workers(options: argparse.Namespace, workload: str, engines: Sequence[str], **environment: str) -> Any:
    """Return a context manager of a worker for each engine."""
    arguments = ["--workload", workload, "--batches", "poisson", "--steps", str(options.steps)]
    arguments += ["--tiny"] if options.tiny else []
    arguments += [] if options.physical is None else ["--physical", str(options.physical)]
    named: dict[str, Callable[[], Worker]] = {
        name: partial(Worker, f"{workload}, {name}", WORKER, [*arguments, "--engine", name], environment)
        for name in engines
    }
    return all_ended(named)


def turns(steps: int) -> Iterator[int]:
    """Yield the number of steps of each turn; the first turn is one step."""
    yield 1
    for done in range(1, steps, TURN):
        yield min(TURN, steps - done)


def job(options: argparse.Namespace, workload: str, engines: Sequence[str], dice: random.Random) -> Any:
    """Run one job of each engine in turns; return times by engine, and the private job's gradient method."""
    order = list(engines)
    with workers(options, workload, engines) as asked:
        dice.shuffle(order)
        found = {name: Times(asked[name].ask("start")["seconds"]) for name in order}
        for turn in turns(options.steps):
            dice.shuffle(order)
            for name in order:
                found[name].steps += asked[name].ask("steps", number=turn)["seconds"]
        return found, asked[PRIVATE].ask("end")["route"]


def memory(options: argparse.Namespace, workload: str, engines: Sequence[str]) -> dict[str, Any]:
    """Return the memory in MiB of a whole job of each engine."""
    with workers(options, workload, engines, **HELD) as asked:
        for worker in asked.values():
            worker.ask("start", watch=True)
            worker.ask("steps", number=options.steps)
        return {name: worker.ask("end") for name, worker in asked.items()}


def calls(options: argparse.Namespace, workload: str) -> list[int]:
    """Return the number of calls of the user's loss in each of some steps."""
    with workers(options, workload, [PRIVATE]) as asked:
        asked[PRIVATE].ask("start")
        found: list[int] = asked[PRIVATE].ask("count", number=min(options.steps, 20))["calls"]
        return found


def summary(repeats: Sequence[dict[str, Times]]) -> dict[str, Any]:
    """Return the results of a workload's repeated jobs, relative to the faster plain memory format."""
    steps = len(repeats[0][PRIVATE].steps)
    formats = [name for name in repeats[0] if name != PRIVATE]
    plain = {name: statistics.median(jobs[name].total(steps) for jobs in repeats) for name in formats}
    base = min(plain, key=lambda name: plain[name])
    pairs = [(jobs[PRIVATE], jobs[base]) for jobs in repeats]
    return {
        "memory_format": base,
        "other_format_ratio": {name: total / plain[base] for name, total in plain.items() if name != base},
        "first": first_step(pairs),
        "later": later_steps(pairs) if steps > 2 else None,
        "jobs": [length_of(pairs, n) for n in LENGTHS if n <= steps] or [length_of(pairs, steps)],
    }


def first_step(pairs: Sequence[tuple[Times, Times]]) -> dict[str, float]:
    """Return the median seconds until the end of the first step, and of a later plain step."""
    usual = statistics.median(statistics.median(plain.steps[1:] or plain.steps) for _, plain in pairs)
    ours, theirs = (statistics.median(side.total(1) for side in sides) for sides in zip(*pairs, strict=True))
    return {
        "seconds": ours, "plain_first_seconds": theirs, "plain_step_seconds": usual,
        "plain_steps": ours / usual, "plain_steps_after_one_second": (ours - 1.0) / usual,
    }  # fmt: skip


def later_steps(pairs: Sequence[tuple[Times, Times]]) -> dict[str, float]:
    """Return the slowest step after the first as a multiple of the median step.

    Step i has the same batch in all repeats, so its least time has the least interference.  As batch sizes
    differ, ``ratio`` divides by the time of the plain step on the same batch.
    """
    ours, theirs = (
        [min(times) for times in zip(*(side.steps[1:] for side in sides), strict=True)]
        for sides in zip(*pairs, strict=True)
    )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    slowest = max(range(len(ratios)), key=lambda number: ratios[number])
    return {
        "seconds": max(ours) / statistics.median(ours),
        "ratio": ratios[slowest] / statistics.median(ratios),
        "plain_seconds": max(theirs) / statistics.median(theirs),
        "slowest_step": slowest + 2,
    }


def length_of(pairs: Sequence[tuple[Times, Times]], steps: int) -> dict[str, float]:
    """Return the median seconds of a job of ``steps`` steps, and the ratio within a repeat, with extremes."""
    ratios = [ours.total(steps) / plain.total(steps) for ours, plain in pairs]
    rested = [(ours.total(steps) - 1.0) / plain.total(steps) for ours, plain in pairs]
    return {
        "steps": steps,
        "seconds": statistics.median(ours.total(steps) for ours, _ in pairs),
        "plain_seconds": statistics.median(plain.total(steps) for _, plain in pairs),
        "ratio": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios),
        "ratio_after_one_second": statistics.median(rested),
    }  # fmt: skip


def measured(options: argparse.Namespace, workload: str) -> dict[str, Any]:
    """Return the row of a workload."""
    dice = random.Random(options.seed)
    load = make_workload(workload, tiny=options.tiny)
    formats = ["contiguous", "channels_last"] if load.convolutional else ["contiguous"]
    repeats, routes = [], set()
    for number in range(options.repeats):
        Console(stderr=True).print(f"{workload}: job {number + 1} of {options.repeats}")
        found, route = job(options, workload, [PRIVATE, *formats], dice)
        repeats.append(found)
        routes.add(route)
    Console(stderr=True).print(f"{workload}: calls of the loss, and memory")
    counted = calls(options, workload)
    row = {
        "workload": workload, "batch": load.batch, "steps": options.steps, "repeats": options.repeats,
        "route": sorted(routes), "calls_first": counted[0], "calls_later": max(counted[1:], default=None),
    }  # fmt: skip
    row |= summary(repeats)
    if not options.no_memory:
        held = memory(options, workload, [PRIVATE, row["memory_format"]])
        row["memory"] = {
            f"{side}_{what}": held[name][what]
            for side, name in (("private", PRIVATE), ("plain", row["memory_format"]))
            for what in ("working_set", "peak")
        }
    return row


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the results to print."""
    heads = ["workload", "plain", "calls", "first, s", "in plain steps", "less 1 s", "slowest later"]
    shown = Table(*heads, "steps", "plain, s", "ratio", "extremes", "less 1 s", "MiB", "of plain")
    for row in rows:
        first, later, held = row["first"], row["later"], row.get("memory")
        where = [row["workload"], row["memory_format"], f"{row['calls_first']}, {row['calls_later']}"]
        where += [f"{first[name]:.2f}" for name in ("seconds", "plain_steps", "plain_steps_after_one_second")]
        where.append(f"{later['ratio']:.2f} at {later['slowest_step']}" if later else "-")
        for length in row["jobs"]:
            cells = [str(length["steps"]), f"{length['plain_seconds']:.1f}", f"{length['ratio']:.3f}"]
            cells += [f"{length['ratio_low']:.3f}-{length['ratio_high']:.3f}"]
            cells += [f"{length['ratio_after_one_second']:.3f}"]
            if held:
                cells += [f"{held['private_working_set']:.0f}"]
                cells += [f"{held['private_working_set'] / held['plain_working_set']:.2f}"]
            shown.add_row(*where, *cells)
            where, held = [""] * len(where), None
    return shown


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", nargs="+", metavar="NAME", choices=tuple(JOBS), default=list(JOBS))
    parser.add_argument("--long", action="store_true", help="1,000 steps in place of 100, once")
    parser.add_argument("--steps", type=int, help="another number of steps")
    parser.add_argument("--repeats", type=int, help="jobs of each kind: 3, or 1 with --long")
    parser.add_argument("--physical", type=int, metavar="RECORDS", help="physical_batch_size of the session")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, help="a file, by default in benchmarks/results")
    options = parser.parse_args()
    options.steps = options.steps or (max(LENGTHS) if options.long else min(LENGTHS))
    options.repeats = options.repeats or (1 if options.long else 3)
    if options.steps < 1 or options.repeats < 1:
        parser.error("--steps and --repeats must be at least 1")
    setting = {name: getattr(options, name) for name in ("steps", "repeats", "physical", "seed", "tiny")}
    content = {"setting": setting, "native_kernels": native.why_not() or "used"}
    name = "jobs_long.json" if options.steps >= max(LENGTHS) else "jobs.json"
    out, rows = options.out or results.FOLDER / name, []
    for workload in options.workload:  # finished workloads are saved at once
        rows.append(measured(options, workload))
        results.write(out, "whole jobs", content | {"rows": rows}, packages=("transformers",))
    Console(width=max(160, Console().width)).print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
