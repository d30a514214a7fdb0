"""The ratio of a private step to a plain one, on two ranks and on one: ``make bench-ranks``.

Two processes of one thread each run four jobs on the same Poisson batches, in turns of a few steps.  These
are the private step on both ranks and on the first alone, and the plain step on both ranks by
DistributedDataParallel and on the first alone.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import results
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from train_worker import LEARNING_RATE, RATE, Private, Unprotected, use_torch
from workloads import make_workload

from tacit.training import Alone, ProcessRanks

__all__ = ["Distributed", "summary"]

USUAL = ("MLP", "GPT")
WORLD = 2
TURN_SECONDS = 0.3
KINDS = ("private, two", "plain, two", "private, one", "plain, one")


class Distributed(Unprotected):
    """The plain job on several ranks; each of R ranks gets every R-th record of the batch."""

    def start(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.number = 0

    def step(self) -> None:
        drawn = self.draw(self.number)[self.rank :: self.world]
        self.number += 1
        x, y = self.inputs[drawn], self.load.targets[drawn]
        self.optimizer.zero_grad()
        loss = self.load.criterion(self.wrapped(x), y).sum() / self.batch * self.world  # DDP averages
        loss.backward()
        self.optimizer.step()


def measure(options: argparse.Namespace, workload: str) -> dict[str, Any]:
    """Return the row of a workload at rank 0. Both ranks must call this."""
    batch = make_workload(workload, tiny=options.tiny).batch
    load = make_workload(workload, tiny=options.tiny, records=round(batch / RATE))
    many = 10**6
    jobs: dict[str, Private | Unprotected] = {
        "private, two": Private(load, batch, many, 0, None),
        "plain, two": Distributed(load, batch, many, 0, "contiguous"),
        "private, one": Private(load, batch, many, 0, None),
        "plain, one": Unprotected(load, batch, many, 0, "contiguous"),
    }
    for kind, ranks in (("private, two", ProcessRanks()), ("private, one", Alone())):
        cast("dict[str, Any]", cast("Private", jobs[kind]).options)["ranks"] = ranks
    for kind in KINDS:
        if "two" in kind or dist.get_rank() == 0:
            jobs[kind].start()
            seconds(jobs[kind], 3)
    usual = seconds(jobs["plain, two"], 3)
    turn = max(1, round(TURN_SECONDS / agreed(usual)))
    dice, rounds = random.Random(0), []
    ends = time.monotonic() + options.seconds
    while agreed(float(len(rounds) < 5 or time.monotonic() < ends)):
        found: dict[str, float] = {}
        for kind in dice.sample(KINDS, len(KINDS)):
            dist.barrier()
            found[kind] = seconds(jobs[kind], turn) if "two" in kind or dist.get_rank() == 0 else 0.0
            dist.barrier()
        rounds.append(found)
    if dist.get_rank() > 0:
        return {}
    return {"workload": workload, "batch": batch, "steps_per_turn": turn} | summary(rounds)


def seconds(job: Private | Unprotected, number: int) -> float:
    """Return the median seconds of the next ``number`` steps."""
    found = []
    for _ in range(number):
        begun = time.perf_counter()
        job.step()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def agreed(number: float) -> float:
    """Return the value of ``number`` at rank 0."""
    sent = torch.tensor([number], dtype=torch.float64)
    dist.broadcast(sent, 0)
    return float(sent)


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians over the rounds of each job's times, of their ratios, and of the ratio of ratios."""
    two = [found["private, two"] / found["plain, two"] for found in rounds]
    one = [found["private, one"] / found["plain, one"] for found in rounds]
    both = [of_two / of_one for of_two, of_one in zip(two, one, strict=True)]
    low, middle, high = statistics.quantiles(both, n=4, method="inclusive")
    return {
        "milliseconds": {kind: 1e3 * statistics.median(found[kind] for found in rounds) for kind in KINDS},
        "ratio_of_two": statistics.median(two), "ratio_of_one": statistics.median(one),
        "two_over_one": middle, "two_over_one_low": low, "two_over_one_high": high, "rounds": len(rounds),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of the results to print."""
    shown = Table("workload", *(f"{kind}, ms" for kind in KINDS), "ratio, two", "ratio, one", "two / one")
    for row in rows:
        times = [f"{row['milliseconds'][kind]:.1f}" for kind in KINDS]
        low, high = row["two_over_one_low"], row["two_over_one_high"]
        ratios = [f"{row[name]:.3f}" for name in ("ratio_of_two", "ratio_of_one")]
        shown.add_row(row["workload"], *times, *ratios, f"{row['two_over_one']:.3f} ({low:.3f}-{high:.3f})")
    return shown


def main() -> int:
    """Start the ranks, or run as one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", nargs="+", metavar="NAME", default=USUAL)
    parser.add_argument("--seconds", type=float, default=60.0, help="of turns for each workload")
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    parser.add_argument("--rank", type=int, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, *sys.argv, "--group", f"{folder}/group", "--rank"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(WORLD)]
            return max(rank.wait() for rank in ranks)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{options.group}", rank=options.rank, world_size=WORLD
    )
    use_torch()
    rows = [measure(options, workload) for workload in options.workload]
    if options.rank == 0:
        Console(width=150).print(table(rows))
        if options.out is not None:
            results.write(options.out, "private and plain steps of two processes and of one", {"rows": rows})
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
