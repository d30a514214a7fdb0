"""One training step, private and plain: ``make bench``, ``bench-gpu``, ``bench-overhead``, ``bench-common``.

Each workload is timed in one process, in which all engines take turns (see ``measure.py``).  Engines that
need another environment, such as Tacit without native kernels, run in a second process with another plain
step. Memory is measured in one process for each engine and workload.  The suite ``overhead`` has models whose
steps are many small operations, and models with weight norm, and compares Tacit only with the plain step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import results
from engines import CHANNELS_LAST, ENGINES, PLAIN
from machine import machine, versions
from rich.console import Console
from rich.table import Table
from workloads import COMMON_WORKLOADS, GPU_WORKLOADS, LIBRARY_WORKLOADS, OVERHEAD_WORKLOADS, WORKLOADS

from tacit import native

__all__ = ["memory", "panels", "timings", "worker"]

SUITES = {
    "cpu": tuple(WORKLOADS),
    "common": tuple(COMMON_WORKLOADS),
    "library": tuple(LIBRARY_WORKLOADS),
    "gpu": tuple(GPU_WORKLOADS),
    "overhead": tuple(OVERHEAD_WORKLOADS),
}
FILES = {
    "cpu": "step.json",
    "common": "step_common.json",
    "library": "step_library.json",
    "gpu": "step_gpu.json",
    "overhead": "step_overhead.json",
}
PEERS = ("opacus", "opake")
MEMORY_AT_ONCE = 2
Rows = list[dict[str, Any]]


def worker(what: str, workload: str, engines: Sequence[str], options: Sequence[str]) -> Rows:
    """Return the results of ``measure.py``, in a fresh process with the environment that the engines need."""
    environment = dict(os.environ)
    for name in engines:
        environment |= ENGINES[name].environment
    if what == "memory":
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed memory returns: the peak is memory in use
        environment["OMP_WAIT_POLICY"] = "passive"  # spinning threads of two processes slow each other
    script = Path(__file__).with_name("measure.py")
    command = [sys.executable, str(script), what, "--workload", workload, "--engines", *engines, *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} of {', '.join(engines)} on {workload} ended with {done.returncode}.")
    return json.loads(done.stdout.splitlines()[-1])


def panels(engines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the engines that share an environment and a process, each list with the plain step."""
    groups: dict[str, list[str]] = {}
    for name in engines:
        if name != PLAIN:
            engine = ENGINES[name]
            groups.setdefault(json.dumps([engine.environment, engine.apart]), []).append(name)
    for group in groups.values():
        yield [PLAIN, *group]


def timings(workload: str, engines: Sequence[str], options: Sequence[str]) -> Rows:
    """Return timings of all engines on one workload, and of the plain steps in the first process."""
    first, *others = (worker("time", workload, panel, options) for panel in panels(engines))
    private = [row for rows in others for row in rows if row["engine"] != PLAIN]
    return first + [row for row in private if row["memory_format"] is None]


def memory(workload: str, timed: Rows, options: Sequence[str]) -> Rows:
    """Return the memory of each engine that ran, and of the plain step in its faster memory format."""
    slower = {row["engine"] for row in timed if row["memory_format"] and row["engine"] != PLAIN}
    engines = [row["engine"] for row in timed if row["failure"] is None and row["engine"] not in slower]
    formats = {row["engine"]: row["memory_format"] for row in timed}

    def held(name: str) -> Rows:
        ran = CHANNELS_LAST if (name, formats[name]) == (PLAIN, "channels_last") else name
        return [row | {"engine": name} for row in worker("memory", workload, [ran], options)]

    with ThreadPoolExecutor(MEMORY_AT_ONCE) as pool:
        return [row for rows in pool.map(held, engines) for row in rows]


def usual(suite: str) -> list[str]:
    """Return the engines of a suite by default."""
    if suite == "overhead":
        return [PLAIN, "Tacit"]
    on_cpu = suite in ("cpu", "common", "library")
    return [name for name, e in ENGINES.items() if name != CHANNELS_LAST and (e.for_gpu or on_cpu)]


def table(timed: Rows, held: Rows) -> Table:
    """Return a table of the results to print."""
    shown = Table("workload", "engine", "ms", "ratio to plain", "quartiles", "CPU ratio", "MiB", "of plain")
    used = {(row["workload"], row["engine"]): row["working_set"] for row in held}
    for row in timed:
        key = (row["workload"], row["engine"])
        if row["failure"] is not None:
            shown.add_row(*key, "-", "-", row["failure"])
            continue
        cells = [
            f"{row['milliseconds']:.1f}", f"{row['ratio']:.3f}",
            f"{row['ratio_low']:.3f}-{row['ratio_high']:.3f}", f"{row['cpu_ratio']:.3f}",
        ]  # fmt: skip
        if key in used:
            cells += [f"{used[key]:.0f}", f"{used[key] / used[row['workload'], PLAIN]:.2f}"]
        shown.add_row(*key, *cells)
    return shown


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=tuple(SUITES), default="cpu")
    parser.add_argument("--workload", nargs="+", metavar="NAME", help="only these of the suite")
    parser.add_argument("--engine", nargs="+", metavar="NAME", help=f"only these of {', '.join(ENGINES)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", help="a torch device; by default that of the suite")
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, where other work runs too")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="keep the file's workloads, measure the others")
    parser.add_argument("--out", type=Path, help="a file, by default in benchmarks/results")
    given = parser.parse_args()
    if given.out is not None and (given.out.is_dir() or not given.out.parent.is_dir()):
        parser.error(f"--out must be a file in a folder that exists; got {given.out}")
    device = given.device or ("cuda" if given.suite == "gpu" else "cpu")
    options = ["--rounds", str(given.rounds), "--device", device]
    options += [f"--{name}" for name, on in (("tiny", given.tiny), ("cpu-time", given.cpu_time)) if on]
    console = Console(stderr=True)
    skipped = {name: why for name, engine in ENGINES.items() if (why := engine.missing()) is not None}
    engines = [name for name in given.engine or usual(given.suite) if name not in skipped]
    for name, why in skipped.items():
        console.print(f"{name} is left out: {why}.")
    path = given.out or results.FOLDER / FILES[given.suite]
    found: dict[str, Rows] = {"timings": [], "memory": []}
    if given.go_on and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if (before["machine"], before["versions"]) != (machine(), versions(*PEERS)):
            parser.error(f"{path} is of another machine or other versions; measure again without --go-on")
        found = {kind: before[kind] for kind in found}

    setting = {
        "suite": given.suite, "device": device, "rounds": given.rounds, "tiny": given.tiny,
        "clock": "CPU time of one thread" if given.cpu_time else "wall-clock time",
    }  # fmt: skip
    kernels = native.why_not() or "used"
    head = {"setting": setting, "native_kernels": kernels, "seed": 0, "skipped": skipped}

    for workload in given.workload or SUITES[given.suite]:
        if any(row["workload"] == workload for row in found["timings"]):
            continue
        console.print(f"{workload}: time")
        rows = timings(workload, engines, options)
        found["timings"] += rows
        if not given.no_memory:
            console.print(f"{workload}: memory")
            found["memory"] += memory(workload, rows, options)
        # after each workload, as a later one may need more memory than the machine has
        results.write(path, "one training step", head | found, packages=PEERS)
    Console(width=max(120, console.width)).print(table(found["timings"], found["memory"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
