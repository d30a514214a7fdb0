"""Training records that a model's own file contains.

Support vector machines and nearest neighbours store records.  They are compared with a private classifier of
the same kind that stores none: a linear model on random Fourier features (Rubinstein, Bartlett, Huang, Taft,
0911.5708).

Letters: n training records, d columns, D features.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.base import DELTA, NO_SEARCH, Request, Row, write_results
from experiments.standard import load
from experiments.support_vectors import StoredShare, stored_rows, stored_share
from tacit.datasets import Dataset
from tacit.errors import MissingExtra
from tacit.plan import Plan
from tacit.report.canvas import BLUE, new_figure, save_figure
from tacit.training import PrivateSession, evaluate

_NAME = "stored-rows"
_DATASETS = ("digits", "breast-cancer")
_FEATURES, _WIDTH = 500, 2.0  # the number of random Fourier features, and the width of their kernel
_STEPS, _LEARNING_RATE = 60, 2.0
_NOTES = (
    "the model is fitted on standardised columns and given away with its scaler; stored: training records "
    "read off it, in the units of the table, each number right to 1e-6 of its column's largest",
    "random Fourier features: cosines of random directions, drawn without the data, and a linear model on "
    "them",
)


def run(request: Request) -> list[Row]:
    """Return rows for both data sets, or the requested one, and draw ``stored-rows.png``."""
    names = _DATASETS if request.dataset is None else (request.choose_dataset(_DATASETS),)
    rows = []
    for name in names:
        data = load(name)
        rows += [_fitted(name, data, title, make) for title, make in _machines().items()]
        rows += [_private(name, data, epsilon, request) for epsilon in request.choose_epsilons((8.0,))]
    write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


def _machines() -> dict[str, Callable[[], Any]]:
    try:
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC
    except ImportError:
        raise MissingExtra("scikit-learn", "sklearn", "Fitting a support vector machine") from None
    return {
        "support vectors, rbf": lambda: SVC(kernel="rbf"),
        "support vectors, linear": lambda: SVC(kernel="linear"),
        "5 neighbours": KNeighborsClassifier,
    }


def _fitted(name: str, data: Dataset, title: str, make: Callable[[], Any]) -> Row:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    start = time.perf_counter()
    table, others = (_table(pair.inputs) for pair in (data.train, data.test))
    model = make_pipeline(StandardScaler(), make()).fit(table, data.train.targets.numpy())
    right = model.predict(others) == data.test.targets.numpy()
    found = stored_share(stored_rows(model), table)
    return _row(name, title, None, [float(right.mean())], found, time.perf_counter() - start)


def _private(name: str, data: Dataset, epsilon: float, request: Request) -> Row:
    """Return the row of private runs with fresh keys. The random features are public."""
    start, accuracies = time.perf_counter(), []
    records = len(data.train.inputs)
    plan = Plan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        records=records,
        steps=_STEPS,
        clipping=1.0,
        adjacency="add-remove",
        unit="record",
    )
    for number in range(request.seeds):
        features = _Features(math.prod(data.input_shape))
        x, others = (features(pair.inputs) for pair in (data.train, data.test))
        model = nn.Linear(_FEATURES, len(data.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=0.9)
        session = PrivateSession(model, optimizer, (x, data.train.targets), plan, loss=_losses)
        for step in session.batches():
            session.step(step)
        accuracies.append(evaluate(model, others, data.test.targets).score)
        request.listener(f"{name}, ε = {epsilon:g}", number + 1, request.seeds)
    nothing = StoredShare(0.0, 0.0, 0, 0, 0)
    title = f"random Fourier features, ε = {epsilon:g}"
    return _row(name, title, plan, accuracies, nothing, time.perf_counter() - start)


class _Features:
    """The random features sqrt(2 / D) cos(Wx + b) of Rahimi and Recht (NIPS 2007).

    Their inner products approximate exp(-|x - y|^2 / (2 width^2)).
    """

    def __init__(self, columns: int) -> None:
        self.directions = torch.randn(columns, _FEATURES) / _WIDTH
        self.shifts = 2.0 * math.pi * torch.rand(_FEATURES)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map (n, ...) records to (n, D) features."""
        scale = math.sqrt(2.0 / _FEATURES)
        return scale * torch.cos(inputs.flatten(1) @ self.directions + self.shifts)


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def _table(inputs: Tensor) -> NDArray[np.float64]:
    table: NDArray[np.float64] = inputs.flatten(1).double().numpy()
    return table


def _row(
    name: str, title: str, plan: Plan | None, accuracies: list[float], found: StoredShare, seconds: float
) -> Row:
    return Row(
        experiment=_NAME,
        dataset=name,
        model=title,
        epsilon=math.inf if plan is None else plan.epsilon,
        delta=0.0 if plan is None else plan.delta,
        accountant="none" if plan is None else "pld",
        noise_multiplier=None if plan is None else plan.noise_multiplier,
        accuracy_mean=statistics.mean(accuracies),
        accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        seeds=len(accuracies),
        wall_seconds=seconds,
        selection=NO_SEARCH,
        details={
            "attacked": {"share of the training records stored": found.share},
            "largest_error": found.largest_error,
            "records": found.found,
        },
    )


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure(7.0, 0.42 * len(rows) + 1.0)
    axes = figure.add_subplot()
    shares = [100.0 * next(iter(row.details["attacked"].values())) for row in rows]
    bars = axes.barh([f"{row.dataset}: {row.model}" for row in rows], shares, color=BLUE)
    axes.bar_label(bars, [f"{share:.0f} %" for share in shares], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 112.0)
    axes.set_xlabel("training records that lie in the model, %")
    axes.grid(alpha=0.25, axis="x")
    save_figure(figure, request.folder / f"{_NAME}.png")
