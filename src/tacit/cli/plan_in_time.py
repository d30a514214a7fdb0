"""``tacit plan --correlated``: does noise that is correlated in time pay, and which?"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from tacit.cli.show import console
from tacit.noise_in_time import InTime, Ways

_BATCHES = {
    "poisson": "Poisson samples",
    "cyclic": "samples of {} parts",
    "parts": "{} whole parts",
    "full": "all",
}
_NOISE = {"banded": "banded, {}", "inverse": "inverse, {}", "blt": "BLT, {}", "tree": "tree, {} steps"}


def show_in_time(ways: Ways | None) -> None:
    """Print the ways, those with least noise first, and the lines of a run file."""
    if ways is None:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for name in ("noise", "a step takes", "σ", "noise of sums", "relative", "kept"):
        table.add_column(name, justify="left" if name in ("noise", "a step takes") else "right", no_wrap=True)
    everything = [*ways.samples, *(way for way in ways.parts if way not in ways.samples)]
    best = min(everything, key=lambda way: way.relative)
    for way in everything:
        table.add_row(*_cells(way), style="bold" if way is best else None)
    console.print(f"\nNoise in time, {ways.steps:,} steps of {ways.batch_size:,}:\n")
    Console(width=120).print(table)
    console.print()
    console.print(ways.in_words(), soft_wrap=not console.is_terminal)
    console.print(f"\n{ways.as_toml()}", markup=False, highlight=False)
    if ways.as_toml(stream=True) != ways.as_toml():
        console.print("\nIn a fixed order:\n")
        console.print(ways.as_toml(stream=True), markup=False, highlight=False)


def _cells(way: InTime) -> list[str]:
    return [
        _NOISE.get(way.noise, way.noise).format(way.size),
        _BATCHES[way.batches].format(way.cycle),
        f"{way.noise_multiplier:.4g}",
        f"{way.noise_of_sums:.3g}",
        f"{way.relative:.2f}",
        f"{way.kept} × weights" if way.kept else "nothing",
    ]
