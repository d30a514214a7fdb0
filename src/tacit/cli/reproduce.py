"""``tacit reproduce``: the papers' tables and figures, run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tacit.cli.show import Preparations, console
from tacit.errors import InvalidInput
from tacit.experiments.base import Request, Row
from tacit.experiments.registry import EXPERIMENTS, reproduce

__all__ = ["command"]

_NAMES = "\n\n".join(f"{name}: {experiment.summary}." for name, experiment in EXPERIMENTS.items())
_HELP = f"""Run an experiment of a paper; leaves a figure and a JSON file.

{_NAMES}

Example:  tacit reproduce scattering --dataset mnist --epsilon 3 --seeds 3
"""


def command(
    name: Annotated[str, typer.Argument(help="Which experiment.", show_default=False)],
    dataset: Annotated[str | None, typer.Option(help="Data set; else the experiment's first.")] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Budget; may be given several times.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Independent repeats per line.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the JSON.")] = Path("runs/reproduce"),
    device: Annotated[str, typer.Option(help="Device of torch to compute on.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> int:
    """Run an experiment; the text of the help is made from the registry."""
    if any(value <= 0 for value in epsilon or ()):
        raise InvalidInput(f"--epsilon must be above 0; got {epsilon}.")
    with Preparations() as listener:
        request = Request(
            folder=out,
            dataset=dataset,
            epsilons=tuple(epsilon) if epsilon else None,
            seeds=seeds,
            device=device,
            listener=listener,
        )
        rows = reproduce(name, request)
    if as_json:
        console.print_json(json.dumps([vars(row) for row in rows]))
    else:
        console.print(_table(rows))
        console.print(f"Figure and JSON: {out}")
    return 0


command.__doc__ = _HELP


def _table(rows: list[Row]) -> Table:
    table = Table("data", "model", "accountant", "ε", "δ", "σ", "accuracy", "std", "runs", "s")
    for row in rows:
        table.add_row(
            row.dataset,
            row.model,
            row.accountant,
            f"{row.epsilon:.4g}",
            f"{row.delta:g}",
            "" if row.noise_multiplier is None else f"{row.noise_multiplier:.4g}",
            "" if row.accuracy_mean is None else f"{row.accuracy_mean:.4f}",
            "" if row.accuracy_std is None else f"{row.accuracy_std:.4f}",
            str(row.seeds),
            f"{row.wall_seconds:.1f}",
        )
    return table
