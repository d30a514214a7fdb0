"""The time of a step with noise that is correlated in time, relative to one with independent noise.

Run it by ``make bench-correlated``.  One process has a run of each kind of noise.  The runs take turns of a
tenth of a second in random order, and each step reads a fixed part of the records.  Times are CPU time, and
ratios are paired by round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import results
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.plan import Plan
from tacit.sampling import CyclicPoissonSampling
from tacit.testing import seeded_generator
from tacit.training import PrivateSession

__all__ = ["FORMS", "summary"]

FORMS: dict[str, Correlation | None] = {
    "independent": None,
    "tree": Tree(),
    "inverse, 4 bands": BandedInverse.square_root(4),
    "buffers, 3": BLT((0.994, 0.934, 0.587), (0.1, 0.16, 0.24)),
    "8 bands": Banded.square_root(8),
    "64 bands": Banded.square_root(64),
}
TURN_SECONDS, CYCLE, STEPS, FILLED = 0.1, 20, 50_000, 72  # FILLED: the number of steps that fill all bands
BLOCK = 8  # of every 8 steps one reads all bands for the others, so a turn has whole blocks


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each record."""
    return F.cross_entropy(model(x), y, reduction="none")


class Run:
    """A run of a multilayer perceptron with 102,000 weights, with ``batch`` records in every step."""

    def __init__(self, form: Correlation | None, batch: int, width: int) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
        x, y = torch.randn(CYCLE * batch, 784), torch.randint(0, 10, (CYCLE * batch,))
        plan = Plan.with_noise(
            noise_multiplier=1.0, delta=1e-6, records=CYCLE * batch, batch_size=batch, steps=STEPS,
            clipping=1.0, adjacency="add-remove", unit="row", correlation=form,
            sampling=CyclicPoissonSampling(1.0, CYCLE),
        )  # fmt: skip
        self.session = PrivateSession(
            model, torch.optim.SGD(model.parameters(), lr=0.01), (x, y), plan, loss=losses,
            generator=seeded_generator(1),
        )  # fmt: skip
        self.tickets = self.session.batches()

    def seconds(self, number: int) -> float:
        """Return the mean CPU seconds of the next ``number`` steps."""
        begun = time.process_time()
        for _ in range(number):
            self.session.step(next(self.tickets))
        return (time.process_time() - begun) / number


def measure(batch: int, width: int, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of a batch size, one for each kind of noise."""
    runs = {name: Run(form, batch, width) for name, form in FORMS.items()}
    for run in runs.values():
        usual = run.seconds(FILLED)
    turn = BLOCK * max(1, round(TURN_SECONDS / usual / BLOCK))
    dice, rounds = random.Random(0), list[dict[str, float]]()
    ends = time.monotonic() + seconds
    while len(rounds) < 3 or time.monotonic() < ends:
        rounds.append({name: runs[name].seconds(turn) for name in dice.sample([*runs], len(runs))})
    return [{"batch": batch, "steps_per_turn": turn} | row for row in summary(rounds)]


def summary(rounds: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return medians over the rounds, and ratios to independent noise, paired by round, with quartiles."""
    rows = []
    for name in rounds[0]:
        ratios = [found[name] / found["independent"] for found in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        milliseconds = 1e3 * statistics.median(found[name] for found in rounds)
        rows.append({
            "form": name, "milliseconds": milliseconds, "ratio": middle, "ratio_low": low, "ratio_high": high,
            "rounds": len(rounds),
        })  # fmt: skip
    return sorted(rows, key=lambda row: [*FORMS].index(row["form"]))


def table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of the results to print."""
    shown = Table("records", "noise", "step, ms", "ratio (quartiles)")
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['ratio_low']:.3f}-{row['ratio_high']:.3f})"
        shown.add_row(str(row["batch"]), row["form"], f"{row['milliseconds']:.2f}", ratio)
    return shown


def main() -> int:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=30.0, help="of turns for each batch size")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for batch in options.batch for row in measure(batch, options.width, options.seconds)]
    Console(width=100).print(table(rows))
    if options.out is not None:
        setting = {"model": f"784-{options.width}-10", "weights": 795 * options.width + 10}
        results.write(options.out, "steps with correlated noise", setting | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
