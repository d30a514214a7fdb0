"""``tacit demo``: private trainings with their guarantee, on data that comes with scikit-learn."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tacit.cli.options import AsJson, option
from tacit.cli.show import INTERRUPTED, console, print_json, progress_bar
from tacit.cli.train import as_data, run_to_end, show_outcome
from tacit.errors import check_integer

if TYPE_CHECKING:
    from tacit.datasets import Dataset
    from tacit.runs.config import Config

_CONFIG = Path(__file__).parent.parent / "runs" / "demo.toml"
_EPSILONS = (1.0, 3.0)


def command(
    out: Annotated[Path | None, option("Folder of the run; default: the next free one in runs/.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per epsilon in the table of means.")] = 5,
    as_json: AsJson = False,
) -> int:
    """Train a private model on scikit-learn's digits, and show the guarantee and what it costs.

    It takes about ten seconds.

    Example:  tacit demo --seeds 2
    """
    from tacit.runs import prepare

    check_integer("seeds", seeds, low=1)
    folder = out or next(
        path for n in itertools.count(1) if not (path := Path("runs") / f"demo-{n}").exists()
    )
    start = time.perf_counter()
    outcome = run_to_end(
        prepare(_CONFIG, out=folder), [str(_CONFIG), "--out", str(folder), "--resume"], "digits"
    )
    if outcome is None:
        return INTERRUPTED
    if not as_json:
        show_outcome(outcome)
    scores = _repeat(seeds)
    if as_json:
        print_json(as_data(outcome) | {"repeats": [{"epsilon": e, "scores": s} for e, s in scores.items()]})
        return 0
    console.print()
    console.print(_table(scores))
    console.print(
        "Each line of the table repeats the run to show the spread. Train your own model once: every run on "
        "the same records spends their budget again."
    )
    console.print(f"Done in {time.perf_counter() - start:.1f} s.")
    return 0


def _repeat(seeds: int) -> dict[float, list[float]]:
    from tacit.runs import read_config
    from tacit.runs.kinds import prepared_data

    scores: dict[float, list[float]] = {epsilon: [] for epsilon in _EPSILONS}
    config = read_config(_CONFIG)
    data = prepared_data(config)
    with progress_bar() as bar:
        task = bar.add_task("repeats for the table", total=len(_EPSILONS) * seeds)
        for epsilon, values in scores.items():
            for _ in range(seeds):
                values.append(_score(config, data, epsilon))
                bar.advance(task)
    return scores


def _table(scores: dict[float, list[float]]) -> Table:
    table = Table("ε", "mean test accuracy", "std", "runs", title="Digits, δ = 1e-4, one image is the unit")
    for epsilon, values in scores.items():
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "–"
        table.add_row(f"{epsilon:g}", f"{statistics.mean(values):.4f}", spread, str(len(values)))
    return table


def _score(config: Config, data: Dataset, epsilon: float) -> float:
    from tacit.runs.build import session_on
    from tacit.runs.plan import make_plan
    from tacit.training import evaluate, train

    privacy = config.privacy.model_copy(update={"epsilon": epsilon})
    config = config.model_copy(update={"privacy": privacy})
    session = session_on(config, data, make_plan(config))
    train(session, progress=False)  # the table has a separate bar
    return evaluate(session.current_model, *data.test).score
