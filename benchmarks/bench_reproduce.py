"""The training time of the experiments as a ratio to that at an earlier commit.

In ``bench_reproduce.py BEFORE``, BEFORE is the ``src`` folder of a checkout of that commit (``git worktree
add``). The two versions take turns, each time in a new process.  They take some private steps of each
experiment's model, with its batch size, optimizer and averaging, on random records of the right shape.

``bench_reproduce.py --accuracies BEFORE NOW`` compares the accuracies of whole runs of ``python -m
experiments``, from two folders of their JSON files.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MODELS", "Experiment", "compare_accuracies", "seconds_per_step"]


@dataclass(frozen=True)
class Experiment:
    """An experiment's model on records of one shape; ``steps`` is the number of steps of a run.

    ``batch`` None means full batches.  ``records`` suffices for a batch, and may be less than the
    experiment's data.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...]
    records: int
    batch: int | None
    physical: int
    steps: int


def _linear(width: int) -> Any:
    from torch import nn

    return nn.Linear(width, 10)


def _mlp(width: int, hidden: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def _cnn() -> Any:
    from tacit.models.networks import papernot_mnist_cnn

    return papernot_mnist_cnn()


MODELS = {
    "tempered-sigmoids": Experiment(_cnn, (1, 28, 28), 60_000, 512, 512, 4680),
    "abadi-mnist": Experiment(lambda: _mlp(60, 1000), (60,), 60_000, 20_000, 2048, 300),
    "clipping": Experiment(lambda: _mlp(784, 64), (784,), 60_000, 2000, 2048, 150),
    "scattering-mnist": Experiment(lambda: _linear(3969), (3969,), 16_384, 4096, 2048, 586),
    "abadi-cifar10": Experiment(lambda: _linear(4096), (4096,), 8192, None, 4096, 40),
}


def seconds_per_step(experiment: Experiment, steps: int) -> float:
    """Return the median seconds of ``steps`` private steps of the imported Tacit, after two to warm up."""
    import torch
    import torch.nn.functional as F

    from tacit.plan import Plan
    from tacit.training import PrivateSession

    torch.manual_seed(0)
    model = experiment.make()
    data = (torch.randn(experiment.records, *experiment.shape), torch.randint(0, 10, (experiment.records,)))
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-9, records=experiment.records, batch_size=experiment.batch,
        steps=10**6, clipping=1.0, adjacency="add-remove", unit="image",
    )  # fmt: skip
    session = PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), data, plan,
        loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
        physical_batch_size=experiment.physical, ema_decay=0.99,
    )  # fmt: skip
    turns, found = session.batches(), []
    for _ in range(steps + 2):
        start = time.perf_counter()
        session.step(next(turns))
        found.append(time.perf_counter() - start)
    return statistics.median(found[2:])


def child(source: Path, name: str, steps: int) -> float:
    """Return the same, measured in a process that imports Tacit from ``source``."""
    environment = dict(os.environ, PYTHONPATH=str(source))
    command = [sys.executable, __file__, "--model", name, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def compare(before: Path, now: Path, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return a row per experiment: median milliseconds per step before and now, and the paired ratio."""
    rows = []
    for name, experiment in MODELS.items():
        pairs = [(child(before, name, steps), child(now, name, steps)) for _ in range(rounds)]
        old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        rows.append(
            {
                "experiment": name, "steps": experiment.steps, "before_milliseconds": 1e3 * old,
                "now_milliseconds": 1e3 * new, "ratio": ratio, "rounds": rounds,
            }
        )  # fmt: skip
        sys.stderr.write(f"{name}: {1e3 * old:.1f} ms, now {1e3 * new:.1f} ms, ratio {ratio:.2f}\n")
    return rows


def compare_accuracies(before: Path, now: Path) -> list[dict[str, Any]]:
    """Return a row for each experiment, model and epsilon that both folders have.

    ``difference`` is that of the mean accuracies, in units of its standard error.
    """
    rows = []
    for path in sorted(now.glob("*.json")):
        earlier = before / path.name
        known = {_key(row): row for row in _lines(earlier)} if earlier.is_file() else {}
        for new in (row for row in _lines(path) if _key(row) in known):
            old = known[_key(new)]
            error = math.hypot(*(row["accuracy_std"] / math.sqrt(row["seeds"]) for row in (old, new)))
            difference = (new["accuracy_mean"] - old["accuracy_mean"]) / error
            shared = {name: new[name] for name in ("experiment", "dataset", "model", "epsilon")}
            sides = {
                f"{side}_{name}": row[name]
                for side, row in (("before", old), ("now", new))
                for name in ("accuracy_mean", "accuracy_std", "seeds", "wall_seconds")
            }
            rows.append(shared | sides | {"difference": difference})
    return rows


def _lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in found if (row.get("seeds") or 0) > 1 and row.get("accuracy_std")]


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["experiment"], row["dataset"], row["model"], round(row["epsilon"], 3)


def write_accuracies(before: Path, now: Path, out: Path | None) -> None:
    """Write the JSON of :func:`compare_accuracies`, with the dates and machines of both."""
    import results

    rows = compare_accuracies(before, now)
    if not rows:
        sys.exit(f"{before} and {now} share no experiment; give two folders of python -m experiments --out.")
    shared = [path.name for path in sorted(now.glob("*.json")) if (before / path.name).is_file()]
    origins = {}
    for side, folder in (("before", before), ("now", now)):
        heads = [json.loads((folder / name).read_text(encoding="utf-8")) for name in shared]
        origins[side] = sorted({f"{head['date']}, {head['machine']['processor']}" for head in heads})
    path = out or results.FOLDER / "reproduce_accuracy.json"
    results.write(path, "reproduce, accuracies before and after", {"origins": origins, "rows": rows})


def main() -> int:
    """Compare and write the JSON, or with ``--model`` only time that model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, nargs="?", help="src folder of a checkout of the earlier commit")
    parser.add_argument("--accuracies", type=Path, nargs=2, metavar=("BEFORE", "NOW"))
    parser.add_argument("--model", choices=tuple(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.model is not None:
        sys.stdout.write(
            json.dumps({"seconds": seconds_per_step(MODELS[options.model], options.steps)}) + "\n"
        )
        return 0
    if options.accuracies is not None:
        write_accuracies(*options.accuracies, options.out)
        return 0
    if options.before is None or not (options.before / "tacit").is_dir():
        parser.error("BEFORE must be the src folder of a checkout; make one with git worktree add")
    import results

    now = Path(__file__).parents[1] / "src"
    commit = subprocess.run(
        ["git", "-C", str(options.before), "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    rows = compare(options.before.resolve(), now, options.rounds, options.steps)
    content = {"before": commit, "rows": rows}
    results.write(options.out or results.FOLDER / "reproduce.json", "reproduce, before and after", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
