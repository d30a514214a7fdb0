"""Tests of the noise on 1e8 draws, of its far tails on 1e10, and of its speed: ``make check-noise``.

The draws come from many addresses: steps, parameters and ranks.  Each test of ``noise_law.py`` returns a
p-value. The same tests must reject draws with a planted bug.  For the speed, the generators take turns in
rounds, and fill memory that was touched before.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import noise_law as law
import numpy as np
import results
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tacit import native
from tacit.noise import gaussian as kernel
from tacit.noise.gaussian import DRAWS_PER_TILE, Room, StepNoise, box_muller, by_torch
from tacit.noise.generator import Generator

STREAM = 1024 * DRAWS_PER_TILE  # the number of draws per address
TAILS = (3.0, 4.0)
FAR_TAILS = (5.0, 5.5, 6.0)  # in standard deviations; of 1e8 draws, 0.2 are expected beyond the last
PYTHON = "torch" if by_torch() else "NumPy"  # the library that draws without the kernel
TAIL_DRAWS = {"kernel": 1e10, PYTHON: 2.5e9}
ZEROS = (12, 20, 26, 31, 40)  # leading zeros of u: from 4.1 to 7.4 standard deviations on
SIZES = (800_000, 7_200_000)
Floats = NDArray[np.floating]


def main() -> int:
    """Run all tests; return 1 if a test fails, or passes draws with a planted bug."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--draws", type=float, default=1e8)
    options.add_argument("--tails", type=float, default=1.0, help="parts of the draws for the far tails")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--out", type=Path, default=results.FOLDER / "noise.json")
    given = options.parse_args()
    engines = [PYTHON] if kernel.why_not() else ["kernel", PYTHON]
    tests = [row for engine in engines for row in law_of(engine, int(given.draws))]
    for engine in engines:
        tests += far_tails(engine, int(given.tails * TAIL_DRAWS[engine]))
    tests += planted_bugs()
    speed = list(speeds(engines, given.rounds))
    results.write(given.out, "noise", {"tests": tests, "speed": speed})
    show(tests, speed)
    rejection = 1e-3 / sum(row["planted"] is None for row in tests)  # one false alarm in a thousand runs
    return int(any((row["p"] < rejection) == (row["planted"] is None) for row in tests))


def use(engine: str) -> None:
    """Turn the native kernel on or off."""
    os.environ["TACIT_NATIVE"] = "0" if engine == PYTHON else "1"


def row(engine: str, draws: int, test: str, p: float, **more: Any) -> dict[str, Any]:
    """Return the row of one test."""
    return {"engine": engine, "draws": draws, "test": test, "p": p, "planted": None} | more


def law_of(engine: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the results of every test on ``count`` draws with a fresh key, rounded up to whole streams."""
    use(engine)
    generator = Generator.from_os()
    number = -(-count // STREAM)
    streams = torch.empty(number, STREAM)
    for k, stream in enumerate(streams):  # 4 ranks, 3 parameters, and enough steps
        StepNoise(generator, std=2.0, step=k // 12, rank=k % 4, ranks=4).fill(stream, k // 4 % 3)
    draws = streams.numpy().reshape(-1)
    tiles, found = draws.reshape(-1, 2, DRAWS_PER_TILE // 2), len(draws)
    yield row(engine, found, "sum of squares (chi-square)", law.scale(draws))
    for z in TAILS:
        outside, expected, p = law.tail(draws, z)
        yield row(engine, found, f"beyond {z:g} sigma", p, found=outside, expected=expected)
    yield row(engine, found, "radius and angle, 64 x 64 cells (chi-square)", law.pairs(tiles))
    for bits in (24, 32):
        yield row(
            engine, found, f"radius has more than {bits} bits (chi-square)", law.radius_bits(tiles, bits)
        )
    for zeros in ZEROS:
        yield row(engine, 1 << 19, f"radius given u < 2^-{zeros} (KS)", law.deep_tail(twin(engine), zeros))
    some = streams[:24].numpy()
    yield row(engine, some.size, f"independence of {len(some)} addresses", law.dependence(some))
    part = draws[: 1 << 22]
    yield row(engine, part.size, "autocorrelation, all lags", law.autocorrelation(part))
    draws.sort()
    yield row(engine, found, "Kolmogorov-Smirnov", law.kolmogorov_smirnov(draws))
    yield row(engine, found, "chi-square, 1000 bins", law.chi_square(draws))


def far_tails(engine: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield tests of the numbers of draws in the far tails, out of ``count`` draws that are not stored."""
    use(engine)
    generator, stream = Generator.from_os(), torch.empty(STREAM)
    number, found = -(-count // STREAM), dict.fromkeys(FAR_TAILS, 0)
    for k in track(range(number), f"tails, {engine}", console=Console(stderr=True)):
        StepNoise(generator, std=1.0, step=k).fill(stream, 0)
        far = stream[stream.abs() > FAR_TAILS[0]].abs()
        for z in FAR_TAILS:
            found[z] += int((far > z).sum())
    for z in FAR_TAILS:
        expected, p = law.tail_count(found[z], number * STREAM, z)
        yield row(engine, number * STREAM, f"beyond {z:g} sigma", p, found=found[z], expected=expected)


def twin(engine: str) -> Callable[[NDArray[np.uint8]], Floats]:
    """Return the function that transforms one tile's random bytes to normal draws."""

    def by_python(words: NDArray[np.uint8]) -> Floats:
        out = np.empty((1, 2, 1024), np.float32)
        room = Room(1, out.dtype)
        room.words[0] = words
        box_muller(room, 1.0, out, lambda *_: secrets.randbits(64))
        return out[0]

    def by_kernel(words: NDArray[np.uint8]) -> Floats:
        library, out = native.library(), np.empty((2, 1024), np.float32)
        level, address = library.tacit_noise_level(), b"\0" + secrets.token_bytes(15)
        library.tacit_noise_transform(words.ctypes.data, bytes(16), address, 1.0, out.ctypes.data, level)
        return out

    return by_python if engine == PYTHON else by_kernel


def planted_bugs() -> Iterator[dict[str, Any]]:
    """Yield rows on planted bugs, each of which the tests must reject."""
    draws = torch.empty(4 * STREAM)
    StepNoise(Generator.from_os(), std=1.0, step=0).fill(draws, 0)
    good = draws.numpy()
    wider = np.sort(good * np.float32(1.01))
    found = len(good)
    yield row("", found, "sum of squares (chi-square)", law.scale(wider), planted="scale off by 1 %")
    yield row("", found, "Kolmogorov-Smirnov", law.kolmogorov_smirnov(wider), planted="scale off by 1 %")
    random = np.random.default_rng()
    u = (random.integers(0, 1 << 24, (found // 2048, 1024)) + 0.5) * 2.0**-24
    radius, turn = np.sqrt(-2 * np.log(u)), 2 * np.pi * random.random(u.shape)
    coarse = np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1).astype(np.float32)
    p = law.radius_bits(coarse, 24)
    yield row("", found, "radius has more than 24 bits (chi-square)", p, planted="radius of 24 bits")
    p = law.tail(np.clip(good, -4.5, 4.5), 4.5)[2]
    yield row("", found, "beyond 4.5 sigma", p, planted="a tail that ends there")
    twice = good[: 1 << 22].copy()
    again = 16 * DRAWS_PER_TILE
    twice[3_000_000 : 3_000_000 + again] = twice[1_000_000 : 1_000_000 + again]
    p = law.autocorrelation(twice)
    yield row("", twice.size, "autocorrelation, all lags", p, planted=f"{again:,} draws used twice")


def speeds(engines: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the time to fill a float32 buffer, by size, number of threads and generator."""
    generator, all_threads = Generator.from_os(), torch.get_num_threads()
    for threads in sorted({1, all_threads}):
        torch.set_num_threads(threads)
        for size in SIZES:
            out = torch.empty(size)
            contestants: dict[str, Callable[[], Any]] = {
                name: lambda name=name, out=out: (
                    use(name),
                    StepNoise(generator, std=1.0, step=0).fill(out, 0),
                )
                for name in engines
            }
            contestants["Tensor.normal_"] = lambda out=out: out.normal_()
            contestants["torch.normal"] = lambda out=out: torch.normal(0.0, 1.0, out.shape, out=out)
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(2 + rounds):
                for name, fill in contestants.items():
                    start = time.perf_counter()
                    fill()
                    times[name].append(1e3 * (time.perf_counter() - start))
            for name, found in times.items():
                low, middle, high = measure.quartiles(found[2:])
                yield {
                    "engine": name,
                    "draws": size,
                    "threads": threads,
                    "milliseconds": middle,
                    "low": low,
                    "high": high,
                    "gigabytes_per_second": 4e-6 * size / middle,
                }
    torch.set_num_threads(all_threads)


def show(tests: list[dict[str, Any]], speed: list[dict[str, Any]]) -> None:
    """Print both tables."""
    console = Console()
    table = Table("engine", "test", "draws", "p", title="Law")
    for item in tests:
        bug = "" if item["planted"] is None else f" (planted: {item['planted']})"
        table.add_row(item["engine"], item["test"] + bug, f"{item['draws']:,}", f"{item['p']:.3g}")
    console.print(table)
    table = Table("engine", "draws", "threads", "ms", "GB/s", title="Speed")
    for item in speed:
        cells = (f"{item['draws']:,}", str(item["threads"]), f"{item['milliseconds']:.2f}")
        table.add_row(item["engine"], *cells, f"{item['gigabytes_per_second']:.2f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
