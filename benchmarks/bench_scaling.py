"""The ratio of Tacit's step to the plain one by batch, length, width and depth: ``make bench-scaling``.

In *weak* series, the work of a step grows along the axis.  In *strong* series the work is fixed, but divided
in another way: a batch into smaller physical batches, tokens into fewer and longer records, or weights into
more and narrower layers.  The steps take turns in one process (``measure.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import measure
import results
import torch
from engines import PLAIN, Step, tacit
from rich.console import Console
from rich.table import Table
from workloads import Workload, mlp, pictures, tokens

from tacit.models.networks import papernot_mnist_cnn

__all__ = ["SERIES", "Series", "point"]

FIGURES = ("milliseconds", "ratio", "ratio_low", "ratio_high", "cpu_ratio", "cpu_low", "cpu_high", "rounds")


@dataclass(frozen=True)
class Series:
    """A workload along one axis; ``kind`` is weak or strong.

    ``cut`` means that the axis is the size of the physical batches into which a fixed batch is cut.
    """

    name: str
    axis: str
    kind: str
    values: tuple[int, ...]
    make: Callable[[int], Workload]
    cut: bool = False


def mlp_of(n: int, width: int = 1000, depth: int = 1) -> Workload:
    """Return the multilayer perceptron on n records."""
    return pictures("MLP", partial(mlp, width, depth), n, 784)


def cnn_of(n: int) -> Workload:
    """Return the tanh CNN on n records."""
    return pictures("tanh CNN", papernot_mnist_cnn, n, 1, 28, 28)


def gpt_of(n: int, length: int, width: int = 256, depth: int = 4) -> Workload:
    """Return the transformer on n sequences."""
    return tokens("GPT", n, length, width=width, depth=depth)


def narrow(depth: int) -> int:
    """Return the width at which ``depth`` blocks have as many weights as 4 blocks of width 256."""
    return round(256 * (4 / depth) ** 0.5)


BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
LENGTHS = (64, 128, 256, 512, 1024, 2048)
WIDTHS = (64, 128, 256, 512)
DEPTHS = (1, 2, 4, 8, 16)
TOKENS = RECORDS = 4096

SERIES: tuple[Series, ...] = (
    Series("MLP", "batch", "weak", BATCHES, mlp_of),
    Series("tanh CNN", "batch", "weak", BATCHES, cnn_of),
    Series("GPT, T = 64", "batch", "weak", (1, 4, 16, 64), lambda n: gpt_of(n, 64)),
    Series("MLP", "physical batch", "strong", BATCHES[2:], lambda _: mlp_of(RECORDS), cut=True),
    Series("tanh CNN", "physical batch", "strong", BATCHES[2:], lambda _: cnn_of(RECORDS), cut=True),
    Series("GPT, 2 records", "length", "weak", LENGTHS, lambda T: gpt_of(2, T)),
    Series("GPT, 4,096 tokens", "length", "strong", LENGTHS, lambda T: gpt_of(TOKENS // T, T)),
    Series("GPT", "width", "weak", WIDTHS, lambda d: gpt_of(16, 64, d)),
    Series("MLP", "width", "weak", (64, 256, 1024, 4096), lambda d: mlp_of(256, d)),
    Series("GPT", "depth", "weak", DEPTHS, lambda L: gpt_of(8, 64, 256, L)),
    Series("MLP", "depth", "weak", DEPTHS, lambda L: mlp_of(256, 256, L)),
    Series("GPT, weights fixed", "depth", "strong", (1, 4, 16), lambda L: gpt_of(16, 64, narrow(L), L)),
)


def in_chunks(load: Workload, size: int) -> Step:
    """Return the plain step with gradients accumulated over physical batches of ``size`` records."""
    model = load.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for x, y in zip(load.inputs.split(size), load.targets.split(size), strict=True):
            (load.loss(model, x, y).sum() / load.batch).backward()
        optimizer.step()

    return step


def point(series: Series, value: int, rounds: int) -> dict[str, Any]:
    """Return the timing of Tacit's step at one point of the axis."""
    torch.manual_seed(0)
    load = series.make(value)
    size = value if series.cut else load.batch
    steps = {PLAIN: in_chunks(load, size), "Tacit": tacit(load, chunk=size)}
    warm = {name: [measure.timed(step, 1, load.device) for _ in "12"][-1] for name, step in steps.items()}
    laps, turn = measure.interleave(steps, warm, rounds=rounds, device=load.device)
    base, ours = measure.summary(series.name, laps, turn)
    where = {"series": series.name, "axis": series.axis, "kind": series.kind, "value": value}
    figures = {name: figure for name, figure in asdict(ours).items() if name in FIGURES}
    return where | {"plain_milliseconds": base.milliseconds} | figures


def table(points: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the results to print."""
    shown = Table("series", "axis", "", "value", "plain, ms", "ratio to plain", "quartiles", "CPU ratio")
    for p in points:
        where = (p["series"], p["axis"], p["kind"], f"{p['value']:,}", f"{p['plain_milliseconds']:.1f}")
        quartiles = f"{p['ratio_low']:.3f}-{p['ratio_high']:.3f}"
        shown.add_row(*where, f"{p['ratio']:.3f}", quartiles, f"{p['cpu_ratio']:.3f}")
    return shown


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    axes = tuple(dict.fromkeys(series.axis for series in SERIES))
    parser.add_argument("--axis", nargs="+", choices=axes, default=axes)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=int, default=max(BATCHES), help="no point further along its axis")
    parser.add_argument("--out", type=Path, default=results.FOLDER / "scaling.json")
    options = parser.parse_args()
    measure.quiet()
    points: list[dict[str, Any]] = []
    for series in SERIES:
        if series.axis in options.axis:
            Console(stderr=True).print(f"{series.axis}, {series.kind}: {series.name}")
            points += [
                point(series, value, options.rounds) for value in series.values if value <= options.most
            ]
    console = Console()
    Console(width=max(110, console.width)).print(table(points))
    results.write(options.out, "scaling", {"seed": 0, "rounds": options.rounds, "points": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
