"""A worker of ``bench_gpu_models.py``: the plain step of one model, and one engine's next to it.

It answers ``ready`` when it has imported what it needs and has not touched the device, so that the next
worker can start while this one measures.  Then it measures the plain job, the engine's job with the turns
that both take, and last what a step does on the device: the profiler slows down what comes after it.  A job's
memory is the peak from before its model until a few steps are taken, above what was in use before.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from alternate import serve
from engines import CHANNELS_LAST, ENGINES, PLAIN, Step
from library_models import make_model
from measure import MIB, Lap, interleave, quiet, summary, timed, watch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from workloads import Workload, moved

__all__ = ["Job", "Measured", "counted", "counts", "start_job"]

MARK = "the step that is counted"
WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}
TO_HOST = "Memcpy DtoH"
FIGURES = ("milliseconds", "ratio", "ratio_low", "ratio_high", "rounds", "steps_per_turn")
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A step that is steady, a lap of it, and what was found on the way."""

    step: Step
    lap: Lap
    found: Row


def start_job(load: Workload, engine: str) -> Job:
    """Make the engine's model, optimizer and step, and take steps until they are steady."""
    gc.collect()
    idle, peak = watch(str(load.device))
    step = ENGINES[engine].make(load)
    first = timed(step, 1, load.device).wall
    lap = [timed(step, 1, load.device) for _ in "123"][-1]
    found: Row = {"first_seconds": first, "mib": (peak() - idle) / MIB}
    if (session := getattr(step, "session", None)) is not None:
        found["route"] = session.route
    return Job(step, lap, found)


class Measured:
    """The requests that the worker answers, in the order in which they come."""

    def __init__(self, load: Workload, engine: str, device: str, rounds: int, seconds: float) -> None:
        self.load, self.engine, self.device = load, engine, device
        self.rounds, self.seconds = rounds, seconds
        self.jobs: dict[str, Job] = {}

    def ready(self) -> Row:
        """Everything is imported."""
        return {}

    def plain(self) -> Row:
        """The plain job: of pictures in the memory format whose steps are faster."""
        return or_failure(self._plain)

    def beside(self) -> Row:
        """The engine's job, and its turns with the plain step."""
        return or_failure(lambda: self._in_turns(self.engine, start_job(self.load, self.engine)))

    def count(self) -> dict[str, Row]:
        """Return the operations on the device of a plain step, and of the engine's."""
        return {name: counted(job.step, self.load.device) for name, job in self.jobs.items()}

    def _plain(self) -> Row:
        self.load = moved(self.load, self.device)
        use_libraries(self.load.device)
        formats = {"contiguous": PLAIN}
        if self.load.convolutional:
            formats["channels_last"] = CHANNELS_LAST
        jobs = {name: start_job(self.load, engine) for name, engine in formats.items()}
        best = min(jobs, key=lambda name: jobs[name].lap.wall)
        return {"memory_format": best} | self._in_turns(PLAIN, jobs[best])

    def _in_turns(self, engine: str, job: Job) -> Row:
        jobs = self.jobs | {engine: job}
        laps, turn = interleave(
            {name: job.step for name, job in jobs.items()}, {name: job.lap for name, job in jobs.items()},
            rounds=self.rounds, device=self.load.device, seconds=self.seconds,
        )  # fmt: skip
        timings = {timing.engine: timing for timing in summary(self.load.name, laps, turn)}
        self.jobs = jobs
        return job.found | {name: getattr(timings[engine], name) for name in FIGURES}


def or_failure(measure: Callable[[], Row]) -> Row:
    """A row, or how it ended: what an engine raises is its result, out of memory too."""
    try:
        return measure()
    except Exception as problem:  # noqa: BLE001 (other libraries raise what they like, and the row says it)
        text = (str(problem).strip() or "no message").split("\n")[0]
        return {"failure": f"{type(problem).__name__}: {text}"[:160]}


def use_libraries(device: torch.device) -> None:
    """Load what torch itself loads at its first step, and have the workspaces that it never gives back."""
    for kind in (torch.float32, torch.bfloat16):
        layer = nn.Linear(64, 64, device=device, dtype=kind)
        layer(torch.ones(64, 64, device=device, dtype=kind)).sum().backward()


# --- what a step does on the device ----------------------------------------------------------------------


def counted(step: Step, device: torch.device) -> Row:
    """Counts of one step by torch's profiler."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        with record_function(MARK):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    return counts(seen.events(), on_gpu)


def counts(events: Iterable[Any], on_gpu: bool) -> Row:
    """Kernels of a step, calls that launch them, waits of the processor and copies to it.

    A replay of a graph is one launch of many kernels.  On a CPU: the operations that call no other.
    """
    seen = list(events)
    here = [event for event in seen if event.device_type == DeviceType.CPU]
    (marked,) = (event.time_range for event in here if event.name == MARK)
    within = [event for event in here if marked.start <= event.time_range.start <= marked.end]
    if not on_gpu:
        return {"kernels": sum(e.name.startswith("aten::") and not e.cpu_children for e in within)}
    there = [event for event in seen if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    return {
        "kernels": sum(not event.name.startswith(("Memcpy", "Memset", MARK)) for event in there),
        "launches": sum(event.name.startswith("cu") and "Launch" in event.name for event in within),
        "waits": sum(event.name in WAITS for event in within),
        "copies": sum(event.name.startswith(TO_HOST) for event in there),
    }


def main() -> int:
    """Answer requests about the model and the engine of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of a turn")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    quiet()
    load = make_model(given.model, tiny=given.tiny)
    asked = Measured(load, given.engine, given.device, given.rounds, given.seconds)
    serve({"ready": asked.ready, "plain": asked.plain, "beside": asked.beside, "count": asked.count})
    return 0


if __name__ == "__main__":
    sys.exit(main())
