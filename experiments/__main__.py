"""The papers' tables and figures: ``python -m experiments NAME``, from a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from experiments.base import Request, Row
from experiments.registry import EXPERIMENTS, reproduce
from tacit.cli.terminal import Preparations, console, messages
from tacit.errors import InvalidInput, TacitError

_NAMES = "\n\n".join(f"{name}: {experiment.summary}." for name, experiment in EXPERIMENTS.items())
_HELP = f"""Run an experiment of a paper; leaves a figure and a JSON file.

{_NAMES}

Example:  python -m experiments scattering --dataset mnist --epsilon 3 --seeds 3
"""


def main(arguments: list[str]) -> None:
    """Run one experiment; exit with a code other than 0 after an error."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(no_args_is_help=True)(command)
    try:
        app(arguments, prog_name="python -m experiments")
    except TacitError as problem:
        messages.print(f"error: {problem}", soft_wrap=not messages.is_terminal)
        sys.exit(problem.exit_code)


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
) -> None:
    """Run an experiment. The help text comes from the registry."""
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
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
    else:
        console.print(_table(rows))
        if any("attacks" in row.details for row in rows):
            console.print(_attacks(rows))
        console.print(f"Figure and JSON: {out}")


command.__doc__ = _HELP


def _table(rows: list[Row]) -> Table:
    """Return a table of the trained models, if there are any, and of accountants, if rows differ in them."""
    trained = any(row.seeds > 0 for row in rows)
    if not trained:
        table = Table("accountant", "ε", "δ")
        for row in rows:
            table.add_row(row.accountant, f"{row.epsilon:,.6g}", f"{row.delta:g}")
        return table
    table = Table("data", "model", "ε", "accuracy, %", "runs", "seconds")
    for row in rows:
        mean = "" if row.accuracy_mean is None else f"{100 * row.accuracy_mean:.2f}"
        spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
        table.add_row(
            row.dataset,
            row.model,
            f"{row.epsilon:.4g}",
            mean + spread,
            str(row.seeds),
            f"{row.wall_seconds:.0f}",
        )
    return table


def _attacks(rows: list[Row]) -> Table:
    """Return a table with the results of every attack on the models of every row."""
    table = Table("model", "ε", "attack", "AUC (95 %)", "found at 1 % false alarms (95 %)", "right, %")
    for row in rows:
        for attack in row.details.get("attacks", ()):
            auc, found = (
                f"{attack[name]:.3f} ({attack[name + '_low']:.3f} to {attack[name + '_high']:.3f})"
                for name in ("auc", "found")
            )
            right = f"{100 * attack['right']:.1f}"
            table.add_row(row.model, f"{row.epsilon:.4g}", attack["attack"], auc, found, right)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
