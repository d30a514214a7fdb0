"""A worker of ``bench_gpu_models.py``: the plain step of one model, and the step of one engine.

It answers ``ready`` when it has imported its libraries, but not used the device, so that the next worker can
start while another measures.  Then it measures the plain job, and the engine's job in turns with the plain
step.  Last it counts operations on the device, as the profiler slows down later work.  A job's memory is the
peak from the creation of its model until a few steps are done, minus the memory in use before.
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
    """A job after its first steps: its step, the time of one, and the measurements of the first steps."""

    step: Step
    lap: Lap
    found: Row


def start_job(load: Workload, engine: str) -> Job:
    """Make the engine's model, optimizer and step, and run steps until their times are steady."""
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
    """The requests that the worker answers, in their order."""

    def __init__(self, load: Workload, engine: str, device: str, rounds: int, seconds: float) -> None:
        self.load, self.engine, self.device = load, engine, device
        self.rounds, self.seconds = rounds, seconds
        self.jobs: dict[str, Job] = {}

    def ready(self) -> Row:
        """Answer that all imports are done."""
        return {}

    def plain(self) -> Row:
        """Measure the plain job; for pictures, in the faster memory format."""
        return or_failure(self._plain)

    def beside(self) -> Row:
        """Measure the engine's job, and its turns with the plain step."""
        return or_failure(lambda: self._in_turns(self.engine, start_job(self.load, self.engine)))

    def count(self) -> dict[str, Row]:
        """Return the counts of device operations of a plain step and of the engine's step."""
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
    """Return a row, or the error of the engine, such as out of memory, as its row."""
    try:
        return measure()
    except Exception as problem:  # noqa: BLE001 (the row reports any exception of a library)
        text = (str(problem).strip() or "no message").split("\n")[0]
        return {"failure": f"{type(problem).__name__}: {text}"[:160]}


def use_libraries(device: torch.device) -> None:
    """Make torch load its libraries and permanent workspaces, which would count for the first step."""
    for kind in (torch.float32, torch.bfloat16):
        layer = nn.Linear(64, 64, device=device, dtype=kind)
        layer(torch.ones(64, 64, device=device, dtype=kind)).sum().backward()


# --- what a step does on the device ----------------------------------------------------------------------


def counted(step: Step, device: torch.device) -> Row:
    """Return the counts of one step by torch's profiler."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        with record_function(MARK):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    return counts(seen.events(), on_gpu)


def counts(events: Iterable[Any], on_gpu: bool) -> Row:
    """Return a step's numbers of kernels, launches, waits of the processor, and copies to it.

    The replay of a CUDA graph is one launch of many kernels.  On a CPU, kernels are operations that call no
    others.
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
    """Answer requests about the model and the engine in the arguments."""
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
