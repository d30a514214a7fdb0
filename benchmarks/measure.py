"""Time and memory of training steps in one process: the worker of ``bench_step.py``, and a command.

``measure.py time --workload MLP --engines 'plain PyTorch' Tacit --rounds 11`` lets the engines take turns in
rounds, in random order, and prints JSON.  It contains the ratio of an engine's step to the plain step of the
same round, as median and quartiles, in wall-clock and in CPU time.  Convolutional workloads have the plain
step in two memory formats, and ratios are to the faster one.  A turn has as many steps as take about a tenth
of a second, or half a second on a GPU.

``measure.py memory --workload MLP --engines Tacit`` measures one engine: the peak memory of a step, and the
working set, which is that peak minus the memory of a process that has only imported and run a tiny model.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import resident
import torch
from engines import CHANNELS_LAST, ENGINES, PLAIN, Step
from workloads import Workload, make_workload

__all__ = [
    "Lap", "Memory", "Timing", "interleave", "measure_memory", "measure_time", "quartiles", "summary",
    "watch",
]  # fmt: skip

TURN_SECONDS = {"cpu": 0.1, "cuda": 0.5}  # a GPU works while the next step is prepared, so turns are longer
SLOW, HOPELESS = 1.5, 20.0  # multiples of the plain step: these engines run in half of the rounds, or in two
MIB = 2**20
CLOCK = [time.perf_counter]
"""The clocks of a turn, of which the last counts: CPU time where other work runs on the machine."""


@dataclass(frozen=True)
class Lap:
    """The seconds of one step, in wall-clock time and in CPU time of all threads."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Timing:
    """A step's milliseconds and its ratio to the plain step, as medians and quartiles over the rounds.

    ``first`` is the time until the end of the first step, with the making of the model, in plain steps.
    If an engine failed, ``failure`` is the reason, and there are no times.  ``memory_format`` is the format
    of the plain step of a convolutional workload.
    """

    workload: str
    engine: str
    milliseconds: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    cpu_ratio: float | None = None
    cpu_low: float | None = None
    cpu_high: float | None = None
    rounds: int = 0
    steps_per_turn: int = 0
    failure: str | None = None
    memory_format: str | None = None
    first: float | None = None


@dataclass(frozen=True)
class Memory:
    """Memory in MiB: ``working_set`` above an idle process; ``peak`` of the process, or of GPU tensors."""

    workload: str
    engine: str
    working_set: float
    peak: float


# --- time ------------------------------------------------------------------------------------------------


def timed(step: Step, steps: int, device: torch.device) -> Lap:
    """Time a turn of ``steps`` steps; return seconds per step, by CUDA events on a GPU."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        cpu = time.process_time()
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        return Lap(begin.elapsed_time(end) / 1e3 / steps, (time.process_time() - cpu) / steps)
    wall, cpu = CLOCK[-1](), time.process_time()
    for _ in range(steps):
        step()
    return Lap((CLOCK[-1]() - wall) / steps, (time.process_time() - cpu) / steps)


def interleave(
    steps: dict[str, Step],
    warm: dict[str, Lap],
    *,
    rounds: int,
    device: torch.device,
    seed: int = 0,
    seconds: float | None = None,
) -> tuple[dict[str, dict[int, Lap]], int]:
    """Return times by engine and round, and the number of steps in a turn of ``seconds``.

    ``warm`` has a first time of each engine.  Plain steps run in every round.  Engines above ``SLOW`` times
    the plain step skip every other round. Engines above ``HOPELESS`` times the plain step run in two rounds
    only, with one step per turn.
    """
    pace = {name: warm[name].wall / warm[PLAIN].wall for name in steps}
    turn = max(1, round((seconds or TURN_SECONDS[device.type]) / warm[PLAIN].wall))
    laps: dict[str, dict[int, Lap]] = {name: {} for name in steps}
    order = list(steps)
    dice = random.Random(seed)
    for number in range(rounds):
        dice.shuffle(order)
        for name in order:
            slow = name not in (PLAIN, CHANNELS_LAST) and pace[name] > SLOW
            out = slow and (number % 2 or (pace[name] > HOPELESS and len(laps[name]) == 2))
            if not out:
                laps[name][number] = timed(steps[name], 1 if pace[name] > HOPELESS else turn, device)
    return laps, turn


def summary(workload: str, laps: dict[str, dict[int, Lap]], turn: int) -> list[Timing]:
    """Return the results of each engine, with ratios to the plain step of the same rounds."""
    base = laps[PLAIN]
    found = []
    for name, mine in laps.items():
        walls = [lap.wall / base[number].wall for number, lap in mine.items()]
        cpus = [lap.cpu / base[number].cpu for number, lap in mine.items()]
        low, middle, high = quartiles(walls)
        cpu_low, cpu_middle, cpu_high = quartiles(cpus)
        milliseconds = 1e3 * statistics.median(lap.wall for lap in mine.values())
        found.append(
            Timing(
                workload,
                name,
                milliseconds,
                middle,
                low,
                high,
                cpu_middle,
                cpu_low,
                cpu_high,
                len(mine),
                turn,
            )
        )
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the three quartiles; for a single value, that value three times."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def best_plain(laps: dict[str, dict[int, Lap]]) -> tuple[dict[str, dict[int, Lap]], dict[str, str]]:
    """Return the times with the faster memory format as the plain step, and the formats by engine.

    The slower plain step is renamed by its format.
    """
    if CHANNELS_LAST not in laps:
        return laps, {}
    first, last = laps[PLAIN], laps[CHANNELS_LAST]
    if statistics.median(last[number].wall / first[number].wall for number in last) >= 1.0:
        return laps, {PLAIN: "contiguous", CHANNELS_LAST: "channels_last"}
    contiguous = f"{PLAIN}, contiguous"
    names = {PLAIN: contiguous, CHANNELS_LAST: PLAIN}
    renamed = {names.get(name, name): mine for name, mine in laps.items()}
    ordered = {PLAIN: renamed.pop(PLAIN)} | renamed
    return ordered, {PLAIN: "channels_last", contiguous: "contiguous"}


def measure_time(load: Workload, engines: Sequence[str], *, rounds: int) -> list[Timing]:
    """Time ``engines`` on one workload; the plain step is always among them, in each memory format."""
    steps: dict[str, Step] = {}
    warm: dict[str, Lap] = {}
    first: dict[str, float] = {}
    failures = []
    load.make()  # imports what the model needs
    formats = [PLAIN, CHANNELS_LAST] if load.convolutional else [PLAIN]
    for name in dict.fromkeys([*formats, *engines]):
        try:
            begun = CLOCK[-1]()
            step = ENGINES[name].make(load)
            timed(step, 1, load.device)  # Tacit runs checks in the first step
            first[name] = CLOCK[-1]() - begun
            warm[name] = timed(step, 1, load.device)
            steps[name] = step
        except Exception as problem:  # any exception of another library is its result
            if ENGINES[name].package is None:
                raise
            text = f"{type(problem).__name__}: {problem}".splitlines()[0][:120]
            failures.append(Timing(load.name, name, failure=text))
    laps, turn = interleave(steps, warm, rounds=rounds, device=load.device)
    laps, formats_by_name = best_plain(laps)
    found = summary(load.name, laps, turn)
    base = statistics.median(lap.wall for lap in laps[PLAIN].values())
    return [
        replace(
            row,
            memory_format=formats_by_name.get(row.engine),
            first=first[row.engine] / base if row.engine in first else None,
        )
        for row in found
    ] + failures


# --- memory ----------------------------------------------------------------------------------------------


def measure_memory(name: str, engine: str, *, tiny: bool, device: str) -> Memory:
    """Return the peak memory of a step. Call this in a new process that does nothing else."""
    make = ENGINES[engine].make
    first = "tanh CNN" if engine == CHANNELS_LAST else "MLP"  # this memory format is for pictures
    small = make(make_workload(first, tiny=True, device=device))
    for _ in range(2):
        small()
    del small
    gc.collect()
    idle, _ = watch(device)
    load = make_workload(name, tiny=tiny, device=device)
    step = make(load)
    for _ in range(2):
        step()
    gc.collect()
    _, peak = watch(device)
    step()
    return Memory(name, engine, (peak() - idle) / MIB, peak() / MIB)


def watch(device: str) -> tuple[float, Callable[[], float]]:
    """Return the bytes in use, and a function that returns the peak from now on."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated(), lambda: float(torch.cuda.max_memory_allocated())
    resident.reset_peak()
    return resident.now(), resident.peak


def quiet() -> None:
    """Silence the warnings of other libraries that do not concern a benchmark."""
    for message in (
        "Full backward hook",
        "Secure RNG turned off",
        "There is a performance",
        "In CPU autocast",
    ):
        warnings.filterwarnings("ignore", message=message)


def main() -> int:
    """Measure as the arguments say, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("time", "memory"))
    parser.add_argument("--workload", required=True)
    parser.add_argument("--engines", nargs="+", required=True, metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, beside other work")
    options = parser.parse_args()
    quiet()
    if options.cpu_time:
        torch.set_num_threads(1)
        CLOCK.append(time.process_time)
    found: Sequence[Timing | Memory]
    if options.what == "time":
        load = make_workload(options.workload, tiny=options.tiny, device=options.device)
        found = measure_time(load, options.engines, rounds=options.rounds)
    else:
        (engine,) = options.engines
        found = [measure_memory(options.workload, engine, tiny=options.tiny, device=options.device)]
    sys.stdout.write(json.dumps([asdict(item) for item in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
