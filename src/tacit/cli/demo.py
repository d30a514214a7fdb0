"""``tacit demo``: everything at once on data that comes with scikit-learn."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tacit.cli.show import TrainingBar, catching_interrupt, console, progress_bar
from tacit.cli.train import show_outcome
from tacit.errors import check_integer
from tacit.runs import make_session, prepare, read_config
from tacit.training import evaluate, train

__all__ = ["command"]

_CONFIG = Path(__file__).parent.parent / "runs" / "demo.toml"


def command(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else the next free one below runs/.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per epsilon in the table of means.")] = 5,
) -> int:
    """Train a private model on scikit-learn's digits, and show the guarantee and what it costs.

    Example:  tacit demo
    """
    check_integer("seeds", seeds, low=1)
    folder = out or next(
        path for n in itertools.count(1) if not (path := Path("runs") / f"demo-{n}").exists()
    )
    start = time.perf_counter()
    run = prepare(_CONFIG, out=folder)
    with catching_interrupt() as stop, TrainingBar("digits", run.plan.steps, 0, private=True) as bar:
        outcome = run.start((bar,), stop)
    if outcome is None:
        return 130
    show_outcome(outcome)
    console.print()
    console.print(_table(seeds))
    console.print(
        "Each line of the table repeats the run to show the spread; a model of your own is trained once, "
        "because every run on the same records spends their budget again."
    )
    console.print(f"Done in {time.perf_counter() - start:.1f} s.")
    return 0


def _table(seeds: int) -> Table:
    table = Table("ε", "mean test accuracy", "std", "runs", title="Digits, δ = 1e-4, one image is the unit")
    with progress_bar() as bar:
        task = bar.add_task("repeats", total=2 * seeds)
        for epsilon in (1.0, 3.0):
            scores = []
            for _ in range(seeds):
                scores.append(_score(epsilon))
                bar.advance(task)
            spread = statistics.stdev(scores) if seeds > 1 else 0.0
            table.add_row(f"{epsilon:g}", f"{statistics.mean(scores):.4f}", f"{spread:.4f}", str(seeds))
    return table


def _score(epsilon: float) -> float:
    config = read_config(_CONFIG)
    privacy = config.privacy.model_copy(update={"epsilon": epsilon})
    data, session = make_session(config.model_copy(update={"privacy": privacy}))
    train(session)
    return evaluate(session.current_model, *data.test).score
