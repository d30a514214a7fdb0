"""A worker of ``bench_jobs.py`` and ``bench_compare.py``: one training job, a few steps per request.

It uses only Tacit's public interface, so that it also runs with earlier versions.  Private and plain jobs get
the same batches, which the private session draws from its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import alternate
import resident
import torch
from torch import Tensor, nn
from workloads import Workload, make_workload

import tacit
from tacit import Plan, PrivateSession, native
from tacit.testing import seeded_generator

__all__ = ["RATE", "Job", "Private", "Unprotected"]

RATE = 1 / 20  # the rate of Poisson sampling
LEARNING_RATE = 1e-3
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
MIB = 2**20


def make_plan(records: int, batch: int, steps: int) -> Plan:
    """Return a plan with noise multiplier 1 and clipping norm 1; full batches if ``batch`` is ``records``."""
    return Plan.with_noise(
        noise_multiplier=1.0, delta=1e-9, records=records, batch_size=batch, steps=steps, clipping=1.0,
        adjacency="add-remove", unit="record",
    )  # fmt: skip


class Private:
    """A job by Tacit's session, with default settings except for the physical batch size."""

    def __init__(self, load: Workload, batch: int, steps: int, seed: int, physical: int | None) -> None:
        self.load, self.batch, self.steps, self.seed = load, batch, steps, seed
        self.model = load.make()
        self.options = {} if physical is None else {"physical_batch_size": physical}
        criterion = load.criterion

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return criterion(model(x), y)

        self.loss = loss

    def start(self) -> None:
        """Prepare the first step, given a model."""
        self.session = PrivateSession(
            self.model, torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE),
            (self.load.inputs, self.load.targets), make_plan(self.load.batch, self.batch, self.steps),
            loss=self.loss, generator=seeded_generator(self.seed), **self.options,
        )  # fmt: skip
        self.tickets = self.session.batches()

    def step(self) -> None:
        """Take the next step."""
        self.session.step(next(self.tickets))

    def route(self) -> str | None:
        """Return the method by which the engine computed the gradients."""
        return self.session.route


class Unprotected:
    """The same job in plain PyTorch, on the batches that the private job draws."""

    def __init__(self, load: Workload, batch: int, steps: int, seed: int, memory_format: str) -> None:
        self.load, self.batch, self.format = load, batch, FORMATS[memory_format]
        self.model, self.inputs = load.make(), load.inputs
        if self.format is not torch.contiguous_format:
            self.model = self.model.to(memory_format=self.format)
            self.inputs = self.inputs.to(memory_format=self.format)  # batches inherit this format
        sampling, generator = make_plan(load.batch, batch, steps).sampling, seeded_generator(seed)
        self.draw = lambda step: torch.from_numpy(sampling.indices(generator, step, load.batch))
        self.full = batch == load.batch

    def start(self) -> None:
        """Prepare the first step, given a model."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.number = 0

    def step(self) -> None:
        """Take the next step; a step without records does not change the weights."""
        drawn = self.draw(self.number)
        self.number += 1
        if len(drawn) == 0:
            return
        rows = (self.inputs, self.load.targets)
        x, y = rows if self.full else (part[drawn] for part in rows)
        self.optimizer.zero_grad()
        (self.load.criterion(self.model(x), y).sum() / self.batch).backward()
        self.optimizer.step()

    def route(self) -> str | None:
        """Return None, as plain PyTorch has one method."""
        return None


class Job:
    """The requests that the worker answers."""

    def __init__(self, job: Private | Unprotected) -> None:
        self.job = job
        self.before: float | None = None

    def ready(self) -> dict[str, Any]:
        """Return the path of this Tacit, and its kernels."""
        return {"tacit": tacit.__file__, "kernels": native.why_not() or "used"}

    def start(self, watch: bool = False) -> dict[str, Any]:
        """Return the seconds before the first step; with ``watch``, measure memory from here on."""
        if watch:
            resident.reset_peak()
            self.before = resident.now()
        begun = time.perf_counter()
        self.job.start()
        return {"seconds": time.perf_counter() - begun}

    def steps(self, number: int) -> dict[str, Any]:
        """Return the seconds of each of the next ``number`` steps."""
        return {"seconds": list(self._timed(number))}

    def _timed(self, number: int) -> Iterator[float]:
        for _ in range(number):
            begun = time.perf_counter()
            self.job.step()
            yield time.perf_counter() - begun

    def count(self, number: int) -> dict[str, Any]:
        """Return the private job's calls of the user's loss in each of the next ``number`` steps.

        Python's profiling hook counts them, as a loss that counts its own calls would be a different loss.
        """
        assert isinstance(self.job, Private)
        return {"calls": [calls_of(self.job.loss, self.job.step) for _ in range(number)]}

    def end(self) -> dict[str, Any]:
        """Return the gradient method, and MiB: above the memory at the start, and of the process."""
        held = {} if self.before is None else {
            "working_set": (resident.peak() - self.before) / MIB, "peak": resident.peak() / MIB
        }  # fmt: skip
        return {"route": self.job.route()} | held


def use_torch() -> None:
    """Take a tiny plain step, as torch loads libraries at its first step."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer.zero_grad()
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()


def calls_of(function: Callable[..., object], run: Callable[[], object]) -> int:
    """Return the number of calls of ``function`` while ``run`` runs."""
    code, calls = function.__code__, 0

    def profile(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code is code:
            calls += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def main() -> int:
    """Make the job, and answer requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", required=True)
    parser.add_argument("--engine", choices=("tacit", *FORMATS), required=True)
    parser.add_argument("--batches", choices=("poisson", "full"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the whole job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--physical", type=int, help="records in a physical batch, by default the session's")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    batch = make_workload(given.workload, tiny=given.tiny).batch
    records = batch if given.batches == "full" else round(batch / RATE)
    load = make_workload(given.workload, tiny=given.tiny, records=records)
    job: Private | Unprotected
    if given.engine == "tacit":
        job = Private(load, batch, given.steps, given.seed, given.physical)
    else:
        job = Unprotected(load, batch, given.steps, given.seed, given.engine)
    use_torch()
    served = Job(job)
    alternate.serve({name: getattr(served, name) for name in ("ready", "start", "steps", "count", "end")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
