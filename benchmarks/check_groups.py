"""Check of figures by group: how often 95 % intervals contain the value of the population.

Each study draws the records of three groups anew, adds them up by :func:`tacit.training.evaluation.tallies`,
and adds the noise of a group report that costs epsilon by itself; without epsilon, figures are exact.  The
model is overconfident, which is the harder case for the calibration.  A planted bug leaves the noise out of
the interval.  ``served worse`` is the rate of such sentences about groups that are served alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import results
import torch

from tacit import accounting
from tacit.events import Gaussian
from tacit.plan import GroupScoreReport
from tacit.training.evaluation import tallies
from tacit.training.groups import Parts, of_column

SIZES = (60, 400, 3000)
TASKS = {"two classes": ("error", "calibration", "found"), "four classes": ("error", "calibration"),
         "numbers": ("error", "calibration")}  # fmt: skip
EPSILONS = (0.5, 2.0, None)
_BOUNDS = ((-1.0, 1.0),)
_TRUTH = 2_000_000  # records that stand for the population


def main() -> None:
    """Run the check and write the results."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--out", type=Path, default=results.FOLDER / "groups.json")
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = [row(task, epsilon, given.runs) for task in TASKS for epsilon in EPSILONS]
    results.write(given.out, "groups", {"coverage": [line for lines in rows for line in lines]}, packages=())
    sys.stdout.write(pd.DataFrame([line for lines in rows for line in lines]).to_string() + "\n")


def drawn(task: str, size: int, random: np.random.Generator) -> Any:
    """Return the tallies (n, D) of records of one population; all groups are alike."""
    x = random.normal(0, 1.5, size)
    if task == "numbers":
        truth = np.clip(0.3 * x + random.normal(0, 0.2, size), -1, 1)
        return tallies(torch.from_numpy(0.25 * x + 0.05), torch.from_numpy(truth)).numpy()
    if task == "two classes":
        truth = random.random(size) < 1 / (1 + np.exp(1.5 - x))
        logits = np.stack([np.zeros(size), 1.8 * x - 1.8], 1)
    else:
        means = np.stack([x, -x, random.normal(0, 1, size), np.zeros(size)], 1)
        truth, logits = (means + random.gumbel(size=means.shape)).argmax(1), 1.6 * means
    return tallies(torch.from_numpy(logits), torch.from_numpy(truth.astype(np.int64))).numpy()


def row(task: str, epsilon: float | None, runs: int) -> list[dict[str, Any]]:
    """Return the rates at which intervals of each figure and group contain the truth."""
    random, bounds = np.random.default_rng(7), _BOUNDS if task == "numbers" else ()
    [population] = of_column("site", ["all"], Parts([drawn(task, _TRUTH, random)]), bounds)["groups"]
    noise = 0.0
    if epsilon is not None:
        report = GroupScoreReport(
            accounting.calibrate(Gaussian, epsilon=epsilon, delta=1e-5, adjacency="add-remove"), ("site",)
        )
        noise = report.noise * report.length
    hits: dict[tuple[str, int], list[bool]] = {(key, size): [] for key in TASKS[task] for size in SIZES}
    without = {place: list[bool]() for place in hits}
    widths: dict[tuple[str, int], list[float]] = {place: [] for place in hits}
    worse = 0
    for _ in range(runs):
        records = [drawn(task, size, random) for size in SIZES]
        sums = [one.sum(0, keepdims=True) + noise * random.normal(size=(1, one.shape[1])) for one in records]
        names = [str(size) for size in SIZES]
        found = of_column("site", names, Parts(sums, noise) if noise else Parts(records), bounds)["groups"]
        planted = of_column("site", names, Parts(sums, 1e-9), bounds)["groups"] if noise else found
        worse += any(one["worse_than"] for one in found)
        for key, size in hits:
            for into, groups in ((hits, found), (without, planted)):
                ends = groups[SIZES.index(size)][f"{key}_interval"]
                if ends is not None:
                    into[key, size].append(ends[0] <= population[key] <= ends[1])
                    if into is hits:
                        widths[key, size].append(ends[1] - ends[0])
    return [
        {
            "task": task,
            "epsilon": epsilon,
            "noise": noise,
            "figure": key,
            "records": size,
            "shown": len(found),
            "rate": _mean(found),
            "half width": _mean(widths[key, size]) / 2,
            "rate without the noise": _mean(without[key, size]),
            "served worse": worse / runs,
        }
        for (key, size), found in hits.items()
    ]


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else math.nan


if __name__ == "__main__":
    main()
