"""Shared code of all experiments: requests, rows of results, JSON files and repeated private runs.

An experiment is a function from a :class:`Request` to rows.  It draws its figure and records how its settings
were chosen.  Repeats are independent runs with keys from the operating system, so nobody can choose a seed
for its result.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import machine, versions
from tacit.clipping.rules import ClippingRule
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, check_integer
from tacit.events import Event
from tacit.files import write_atomically
from tacit.plan import Plan
from tacit.training import Evaluation, PrivateSession, evaluate

DELTA = 1e-5
NO_SEARCH = "one setting, no search in the log"
"""The ``selection`` of rows whose settings were not chosen by their accuracy."""


class Listener(Protocol):
    """A function that receives the progress of long work."""

    def __call__(self, title: str, done: int, total: int) -> None:
        """Receive that ``done`` of ``total`` units of the work ``title`` are done."""


def _silent(title: str, done: int, total: int) -> None:
    del title, done, total


@dataclass(frozen=True)
class Request:
    """The user's request; for ``None`` the experiment uses its default.

    The figure and the JSON are written to ``folder``; ``device`` is a torch device.
    """

    folder: Path
    dataset: str | None = None
    epsilons: tuple[float, ...] | None = None
    seeds: int = 3
    device: str = "cpu"
    listener: Listener = _silent

    def __post_init__(self) -> None:
        check_integer("seeds", self.seeds, low=1)

    def choose_dataset(self, allowed: Sequence[str]) -> str:
        """Return the requested data set, or the first of ``allowed``."""
        name = allowed[0] if self.dataset is None else self.dataset
        if name not in allowed:
            raise InvalidInput(f"this experiment runs on {', '.join(allowed)}; got dataset {name!r}.")
        return name

    def choose_epsilons(self, default: Sequence[float]) -> tuple[float, ...]:
        """Return the requested epsilons, or ``default``."""
        return tuple(default) if self.epsilons is None else self.epsilons


@dataclass(frozen=True)
class Row:
    """One row of results.  ``seeds`` is the number of independent repeats; accuracies are fractions of 1.

    ``selection`` says on which records the settings were chosen, and whether test results were seen before.
    ``accuracy_std`` is the sample standard deviation over the repeats.  ``epsilon`` is infinite without
    privacy.  ``details`` contains results that only this experiment has.
    """

    experiment: str
    dataset: str
    model: str
    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float | None
    accuracy_mean: float | None
    accuracy_std: float | None
    seeds: int
    wall_seconds: float
    selection: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with ``None`` for an infinite epsilon, which JSON cannot represent."""
        return vars(self) | {"epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


@dataclass(frozen=True)
class Repeats:
    """The results of the repeats of one setting; ``evaluations`` are in the order of the runs."""

    plan: Plan
    evaluations: tuple[Evaluation, ...]
    wall_seconds: float

    def row(self, experiment: str, dataset: str, model: str, *, selection: str, **details: Any) -> Row:
        """Return the row of results."""
        scores = [evaluation.score for evaluation in self.evaluations]
        return Row(
            experiment=experiment,
            dataset=dataset,
            model=model,
            epsilon=self.plan.epsilon,
            delta=self.plan.delta,
            accountant="pld",
            noise_multiplier=self.plan.noise_multiplier,
            accuracy_mean=statistics.mean(scores),
            accuracy_std=statistics.stdev(scores) if len(scores) > 1 else None,
            seeds=len(scores),
            wall_seconds=self.wall_seconds,
            selection=selection,
            details={
                "accuracies": scores,
                "per_class": _mean_per_class(self.evaluations),
                "steps": self.plan.steps,
                "sampling": self.plan.sampling.describe(),
                "clipping": repr(self.plan.clipping),
                "preparation": [repr(event) for event in self.plan.preparation],
                **details,
            },
        )


def _mean_per_class(evaluations: Sequence[Evaluation]) -> list[float]:
    return [statistics.mean(values) for values in zip(*(e.per_class for e in evaluations), strict=True)]


def repeat(title: str, request: Request, plan: Plan, run: Callable[[int], Evaluation]) -> Repeats:
    """Run ``request.seeds`` times; ``run`` gets the number of the repeat and must use fresh randomness."""
    start = time.perf_counter()
    evaluations = []
    for number in range(request.seeds):
        evaluations.append(run(number))
        request.listener(title, number + 1, request.seeds)
    return Repeats(plan, tuple(evaluations), time.perf_counter() - start)


def percent(value: float | None) -> float:
    """Convert a fraction to percent for figures; None becomes 0."""
    return 100 * (value or 0.0)


def classification_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each record, (n,), from (n, ...) inputs and (n,) classes."""
    return F.cross_entropy(model(inputs), targets, reduction="none")


@dataclass(frozen=True)
class Setting:
    """Settings of DP-SGD with momentum and averaged weights; ``batch_size`` None means full batches.

    The loss is cross-entropy, and delta is 1e-5.
    """

    batch_size: int | None
    steps: int
    learning_rate: float
    momentum: float
    clipping_norm: float
    ema_decay: float | None = None

    def plan(
        self,
        data: Dataset,
        epsilon: float,
        *,
        clipping: ClippingRule | None = None,
        preparation: Sequence[Event] = (),
        adjacency: str = "add-remove",
    ) -> Plan:
        """Return the plan with the least noise for ``epsilon``, including the cost of ``preparation``."""
        return Plan.calibrate(
            epsilon=epsilon,
            delta=DELTA,
            records=len(data.train.inputs),
            batch_size=self.batch_size,
            steps=self.steps,
            clipping=self.clipping_norm if clipping is None else clipping,
            adjacency=adjacency,
            unit=data.unit,
            preparation=preparation,
        )

    def fit(
        self,
        model: nn.Module,
        data: Dataset,
        plan: Plan,
        *,
        physical_batch_size: int = 2048,
        watcher: Callable[[PrivateSession], None] | None = None,
    ) -> Evaluation:
        """Perform one private run with fresh randomness, and evaluate it on the test records.

        ``watcher`` is called with the session after every step.  It may read public values, such as the model
        and the clipping thresholds.
        """
        session = PrivateSession(
            model,
            torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum),
            data.train,
            plan,
            loss=classification_loss,
            ema_decay=self.ema_decay,
            physical_batch_size=physical_batch_size,
        )
        for step in session.batches():
            session.step(step)
            if watcher is not None:
                watcher(session)
        return evaluate(session.current_model, *data.test)


def write_results(name: str, rows: Sequence[Row], request: Request, *, notes: Sequence[str] = ()) -> Path:
    """Write the rows with machine, versions and date to ``<name>.json``; return the file's path."""
    data = {
        "experiment": name,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "randomness": "a fresh key from the operating system for every run",
        "notes": list(notes),
        "rows": [row.to_json() for row in rows],
    }
    path = request.folder / f"{name}.json"
    text = json.dumps(data, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path
