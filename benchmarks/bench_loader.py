"""The time to load a batch of 600 out of 60,000 records: part of ``make bench``.

In the task "in memory", a record is 784 floats, and the loaders take turns in one process, in random order.
In the task "decoding", a record is deflated bytes, as in a picture file.  Each loader has the machine for
itself, and between two batches there is a pause of 20 ms, like a step on a GPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import measure
import numpy as np
import results
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit.noise.generator import Generator
from tacit.sampling import PoissonSampling
from tacit.training.records import Data, Prefetcher, Records, Request, as_records

__all__ = ["Cost", "cost", "loaders"]

RECORDS, WIDTH, BATCH = 60_000, 784, 600
WORKERS = 2
PAUSE = 0.02
Loader = Iterator[Sequence[Tensor]]


@dataclass(frozen=True)
class Cost:
    """Milliseconds per batch, as median and quartiles over the rounds."""

    task: str
    loader: str
    milliseconds: float
    low: float
    high: float
    rounds: int


class Deflated(Dataset[Any]):
    """Records that must be decoded, which are deflated bytes of a smooth picture with some noise."""

    def __init__(self, records: int) -> None:
        dice = np.random.default_rng(0)
        smooth = np.add.outer(np.arange(32), np.arange(32))[:, :, None] + np.zeros(3, dtype=np.int64)
        noise = dice.integers(0, 8, (16, 32, 32, 3))
        self.files = [zlib.compress((smooth + part).astype(np.uint8).tobytes()) for part in noise]
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        pixels = np.frombuffer(zlib.decompress(self.files[i % 16]), dtype=np.uint8).reshape(32, 32, 3)
        return torch.from_numpy(pixels.astype(np.float32)), i % 10


def tacit(data: Data, batch: int, workers: int = 0) -> Loader:
    """Return the session's loader: Poisson sampling by the run's key, then reading of the records."""
    generator, records = Generator.from_os(), as_records(data)
    sampling = PoissonSampling(batch / len(records))

    def requests() -> Iterator[Request]:
        for step in range(10**6):
            yield Request(sampling.indices(generator, step, len(records)), step)

    reader: Records = Prefetcher(records, requests, workers=workers) if workers else records
    for request in requests():
        yield reader.take(request.indices, seed=request.seed)


def torch_loader(data: Dataset[Any], batch: int, workers: int = 0) -> Loader:
    """Return torch's DataLoader, with shuffled batches of fixed size."""
    for _ in cycle([None]):
        yield from DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, num_workers=workers)


def opacus_loader(data: Dataset[Any], batch: int) -> Loader:
    """Return Opacus' Poisson loader."""
    from opacus.data_loader import DPDataLoader

    for _ in cycle([None]):
        yield from DPDataLoader.from_data_loader(DataLoader(data, batch_size=batch))


def loaders(folder: Path, records: int, batch: int) -> dict[str, dict[str, Loader]]:
    """Return the loaders of each task; a file for the memory map is written to ``folder``."""
    x, y = torch.randn(records, WIDTH), torch.randint(0, 10, (records,))
    np.save(folder / "x.npy", x.numpy())
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    table, files = TensorDataset(x, y), Deflated(records)
    found = {
        "in memory": {
            "Tacit": tacit(table, batch),
            "Tacit, memory map": tacit((mapped, y), batch),
            "torch DataLoader": torch_loader(table, batch),
            "Opacus Poisson": opacus_loader(table, batch),
        },
        "decoding": {
            "Tacit": tacit(files, batch),
            f"Tacit, {WORKERS} workers": tacit(files, batch, WORKERS),
            "torch DataLoader": torch_loader(files, batch),
            f"torch DataLoader, {WORKERS} workers": torch_loader(files, batch, WORKERS),
        },
    }
    if results.installed("opacus"):
        return found
    del found["in memory"]["Opacus Poisson"]
    return found


def cost(task: str, contestants: dict[str, Loader], rounds: int, pause: float = 0.0) -> list[Cost]:
    """Time the loaders in turns, with uncounted pauses of ``pause`` seconds between batches."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order, dice = list(contestants), random.Random(0)
    for number in range(rounds + 2):
        dice.shuffle(order)
        for name in order:
            start = time.perf_counter()
            next(contestants[name])
            if number > 1:
                seconds[name].append(time.perf_counter() - start)
            time.sleep(pause)
    found = {name: measure.quartiles([1e3 * s for s in values]) for name, values in seconds.items()}
    return [Cost(task, name, middle, low, high, rounds) for name, (low, middle, high) in found.items()]


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--out", type=Path, default=results.FOLDER / "loader.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        tasks = loaders(Path(folder), options.records, options.batch)
        costs += cost("in memory", tasks["in memory"], options.rounds)
        for name in list(tasks["decoding"]):  # popped, so that its workers end before the next loader starts
            alone = {name: tasks["decoding"].pop(name)}
            costs += cost("decoding", alone, max(1, options.rounds // 4), PAUSE)
    table = Table("task", "loader", "ms per batch", "quartiles")
    for c in costs:
        table.add_row(c.task, c.loader, f"{c.milliseconds:.2f}", f"{c.low:.2f}-{c.high:.2f}")
    Console().print(table)
    setting = {"records": options.records, "batch": options.batch, "width": WIDTH}
    content = {"seed": 0, "setting": setting, "costs": [asdict(c) for c in costs]}
    results.write(options.out, "getting a batch", content, packages=("opacus",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
