"""``tacit train``: a private run from a configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.show import Preparations, TrainingBar, catching_interrupt, console
from tacit.runs import Outcome, Run, prepare

__all__ = ["command"]


def command(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else the configuration's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Train a model with differential privacy.

    Example:  tacit train digits.toml --out runs/first
    """
    with Preparations() as progress:
        run = prepare(config, out=out, resume=resume, progress=progress)
    if not as_json:
        _announce(run)
    plan = run.plan
    with (
        catching_interrupt() as stop,
        TrainingBar(config.stem, plan.steps, run.session.steps_done, private=run.session.private) as bar,
    ):
        outcome = run.start((bar,), stop)
    if outcome is None:
        command = f"tacit train {config} --out {run.folder} --resume"
        console.print(
            f"Stopped after step {run.session.steps_done} of {plan.steps}; the state is saved in "
            f"{run.folder}. Go on with: {command}",
            soft_wrap=True,
        )
        return 130
    if as_json:
        console.print_json(json.dumps(_as_data(outcome)))
    else:
        show_outcome(outcome)
    return 0


def _announce(run: Run) -> None:
    plan = run.plan
    console.print(
        f"{run.data.name}: {plan.steps} steps, {plan.sampling.describe()}, noise multiplier "
        f"{plan.noise_multiplier:.4g}, together ε = {plan.epsilon:.4g} at δ = {plan.delta:g} per {plan.unit} "
        f"({plan.adjacency}).",
        soft_wrap=True,
    )


def show_outcome(outcome: Outcome) -> None:
    """Print the statement, the score and where things lie."""
    console.print()
    console.print(outcome.statement.to_text(), markup=False)
    kind = "test accuracy" if outcome.evaluation.per_class else "test R²"
    console.print(f"[bold]{kind} {outcome.evaluation.score:.4f}[/] at ε = {outcome.statement.epsilon:.4g}")
    for name in ("model.safetensors", "statement.txt", "metrics.csv", "progress.png", "privacy.png"):
        console.print(f"  {outcome.folder / name}", soft_wrap=True)
    console.print(f"  {outcome.folder / 'private'}  (resume state with the key of the noise: do not release)")


def _as_data(outcome: Outcome) -> dict[str, object]:
    return {
        "folder": str(outcome.folder),
        "test_score": outcome.evaluation.score,
        "test_loss": outcome.evaluation.loss,
        "per_class": list(outcome.evaluation.per_class),
        "rows": [vars(row) for row in outcome.rows],
        "statement": outcome.statement.data,
    }
