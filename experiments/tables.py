"""Tables: who earns more than 50,000 dollars (Adult), by linear models and a small network on public bins.

Numbers are features by declared bounds, and beside that one feature for each of some public bins, so that a
linear model can bend.  Rows without privacy, and of diffprivlib's logistic regression where it is installed
(Chaudhuri, Monteleoni and Sarwate, JMLR 2011), stand beside.  That promises pure epsilon for one record
replaced by another, of norm at most 1; so there are rows of ours under replace-one too, at twice the noise.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.adult import load_adult
from experiments.base import DELTA, Request, Row, Setting, repeat, write_results
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.models import MLP, Logistic
from tacit.plan import Plan
from tacit.report.pages.canvas import BLUE, GREEN, GREY, ORANGE, new_figure, save_figure
from tacit.training import Evaluation, evaluate, least_squares_session, solve_least_squares
from tacit.training.ranking import roc_auc

_NAME = "tables"
_EPSILONS = (0.5, 1.0, 3.0)
SELECTION = "a fixed quarter of the training records, training on the others; no test figure seen before"
_NOTES = (
    "epsilon at delta = 1e-5, one person; add-remove, or replace-one where the row says so",
    "bins and bounds are public, chosen without the records; settings were chosen by "
    "experiments/search.py tables, whose tries are in experiments/searches/tables.jsonl",
)


_PEER_C = {0.5: 0.01, 1.0: 0.1, 3.0: 1.0}
WIDTHS = (1, 8, 1, 8, 15, 7, 6, 3, 1, 1, 1, 2)  # of Adult's columns without bins; numbers have one
BOOSTED = {0.5: (300, 0.1), 1.0: (1000, 0.03), 3.0: (1000, 0.1)}  # rounds, learning rate


@dataclass(frozen=True)
class Candidate:
    """``hidden`` units of one layer, 0 for a linear model; ``setting`` None is least squares."""

    bins: bool
    hidden: int
    setting: Setting | None
    ridge: float = 1.0

    @property
    def label(self) -> str:
        """What the row says."""
        model = f"MLP {self.hidden}" if self.hidden else "linear"
        trained = "least squares" if self.setting is None else f"{model}, DP-SGD"
        return f"{trained}{', bins' if self.bins else ''}"

    def plan(self, data: Dataset, epsilon: float, adjacency: str) -> Plan:
        """One release of moments, or the steps of the setting."""
        once = Setting(None, 1, 1.0, 0.0, 1.0)
        return (self.setting or once).plan(data, epsilon, adjacency=adjacency)

    def fit(self, data: Dataset, plan: Plan, _: int = 0) -> Evaluation:
        """One private run with fresh randomness, evaluated on the test records."""
        features, classes = data.train.inputs.shape[1], len(data.classes)
        if self.setting is None:
            session = least_squares_session(
                tuple(data.train), plan, inputs=features, outputs=classes, classes=True
            )
            return evaluate(solve_least_squares(session, ridge=self.ridge), *data.test)
        hidden = (self.hidden,)
        model = MLP(features, classes, hidden=hidden) if self.hidden else Logistic(features, classes)
        return self.setting.fit(model, data, plan)


def _linear(bins: bool, steps: int, rate: float, norm: float) -> Candidate:
    return Candidate(bins, 0, Setting(None, steps, rate, 0.9, norm, 0.9))


def _network(steps: int, rate: float) -> Candidate:
    return Candidate(True, 16, Setting(None, steps, rate, 0.9, 1.0, 0.9))


CHOSEN: dict[float, tuple[Candidate, ...]] = {
    0.5: (
        _linear(True, 120, 4.0, 0.5),
        _linear(False, 60, 4.0, 1.0),
        _network(120, 0.5),
        Candidate(True, 0, None, 1.0),
    ),
    1.0: (
        _linear(True, 120, 2.0, 1.0),
        _linear(False, 120, 4.0, 1.0),
        _network(60, 1.0),
        Candidate(True, 0, None, 1.0),
    ),
    3.0: (
        _linear(True, 120, 4.0, 1.0),
        _linear(False, 120, 4.0, 1.0),
        _network(120, 2.0),
        Candidate(True, 0, None, 0.3),
    ),
}
"""By epsilon, the best of each kind by AUC on validation records."""


def validation_part(data: Dataset) -> Dataset:
    """The training records alone: three quarters train, and the others, by a fixed key, test."""
    order = torch.randperm(len(data.train.targets), generator=torch.Generator().manual_seed(0))
    held, kept = order[: len(order) // 4], order[len(order) // 4 :]
    train, test = (TensorPair(data.train.inputs[rows], data.train.targets[rows]) for rows in (kept, held))
    return replace(data, train=train, test=test)


def run(request: Request) -> list[Row]:
    """Rows without privacy, of ours under both adjacencies, and of peers; and ``tables.png``."""
    request.choose_dataset(("adult",))
    sets = {bins: load_adult(bins=bins) for bins in (False, True)}
    rows: list[Row] = []
    for row in _all_rows(sets, request):
        rows.append(row)
        write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


def _all_rows(sets: dict[bool, Dataset], request: Request) -> Iterator[Row]:
    for bins, data in sets.items():
        yield _plain(data, f"logistic regression{', bins' if bins else ''}, without DP")
    for epsilon in request.choose_epsilons(_EPSILONS):
        if epsilon not in CHOSEN:
            raise InvalidInput(f"tables has settings for epsilon 0.5, 1 and 3; got {epsilon:g}. Take these.")
        for adjacency in ("add-remove", "replace-one"):
            for candidate in CHOSEN[epsilon]:
                data = sets[candidate.bins]
                plan = candidate.plan(data, epsilon, adjacency)
                title = f"ε = {epsilon:g}, {candidate.label}, {adjacency}"
                found = repeat(title, request, plan, partial(candidate.fit, data, plan))
                label = candidate.label + (", replace-one" if adjacency == "replace-one" else "")
                aucs = [float(one.auc or 0.0) for one in found.evaluations]
                yield found.row(_NAME, "adult", label, selection=SELECTION, **_ranked(aucs))
        yield from _peers(sets[False], epsilon, request.seeds)


def _ranked(aucs: list[float]) -> dict[str, Any]:
    return {"aucs": aucs, "attacked": {"AUC": statistics.mean(aucs)}}


# --- beside ours -------------------------------------------------------------------------------------------


def _plain(data: Dataset, label: str) -> Row:
    from sklearn.linear_model import LogisticRegression

    start = time.perf_counter()
    model = LogisticRegression(max_iter=3000, C=10.0)
    model.fit(data.train.inputs.numpy(), data.train.targets.numpy())
    found = [model.decision_function(data.test.inputs.numpy())]
    return _foreign(data, label, math.inf, "none", found, time.perf_counter() - start)


def _peers(data: Dataset, epsilon: float, runs: int) -> Iterator[Row]:
    start = time.perf_counter()
    if found := peer_scores(data, epsilon, _PEER_C[epsilon], runs):
        label = "diffprivlib, logistic regression, replace-one"
        yield _foreign(data, label, epsilon, "pure", found, time.perf_counter() - start)
    start = time.perf_counter()
    if found := boosted_scores(data, epsilon, *BOOSTED[epsilon], runs):
        label = "interpret, private boosting (DP-EBM)"
        yield _foreign(data, label, epsilon, "gdp", found, time.perf_counter() - start)


_PEER = """
from diffprivlib.models import LogisticRegression
epsilon, C, runs = float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
make = lambda: LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C, max_iter=1000)
models = [make().fit(data["x"], data["y"]) for _ in range(runs)]
np.save(path + ".npy", np.stack([model.decision_function(data["t"]) for model in models]))
"""


def peer_scores(data: Dataset, epsilon: float, C: float, runs: int) -> list[NDArray[np.float64]]:
    """Scores (n,) of the test records by each of diffprivlib's models, on rows of norm at most 1.

    It needs an older scikit-learn than ours, and so an interpreter of its own: the environment variable
    TACIT_DIFFPRIVLIB names it.  None without it.  C is the inverse of the regularisation.  Version 0.6.6 was
    measured; models of 0.6.5 guess by chance with a newer scikit-learn.
    """
    return _scores_by("TACIT_DIFFPRIVLIB", _PEER, lambda: _to_norm_1(data), epsilon, C, runs)


_BOOSTING = """
from interpret.privacy import DPExplainableBoostingClassifier
epsilon, rounds, rate, runs = float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
kinds = ["continuous" if width == 1 else "nominal" for width in widths]
make = lambda: DPExplainableBoostingClassifier(
    epsilon=epsilon, delta=1e-5, max_rounds=rounds, learning_rate=rate, n_jobs=1, feature_types=kinds,
    privacy_bounds={i: (-1.0, 1.0) for i, kind in enumerate(kinds) if kind == "continuous"},
)
models = [make().fit(data["x"], data["y"]) for _ in range(runs)]
np.save(path + ".npy", np.stack([model.decision_function(data["t"]) for model in models]))
"""


def boosted_scores(
    data: Dataset, epsilon: float, rounds: int, rate: float, runs: int
) -> list[NDArray[np.float64]]:
    """The same by explainable boosting machines of the package interpret-core, on columns that are not split.

    The environment variable TACIT_INTERPRET names an interpreter that has it.  None without it.
    """

    def whole() -> Dataset:
        return replace(data, train=_with_categories(data.train), test=_with_categories(data.test))

    return _scores_by("TACIT_INTERPRET", f"widths = {WIDTHS}{_BOOSTING}", whole, epsilon, rounds, rate, runs)


def _with_categories(pair: TensorPair) -> TensorPair:
    """One column for each of the table's: a number, or the place of a category among its values."""
    columns = [
        part[:, 0] if part.shape[1] == 1 else part.argmax(1).float()
        for part in torch.split(pair.inputs, list(WIDTHS), dim=1)
    ]
    return TensorPair(torch.stack(columns, 1), pair.targets)


def _scores_by(
    variable: str, program: str, make: Callable[[], Dataset], *arguments: float
) -> list[NDArray[np.float64]]:
    """What a program says of the test records, in the interpreter that an environment variable names."""
    if (python := os.environ.get(variable)) is None:
        return []
    data = make()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.npz"
        np.savez(path, x=data.train.inputs, y=data.train.targets, t=data.test.inputs)
        subprocess.run([python, "-c", _READ + program, path, *map(str, arguments)], check=True)
        return list(np.load(path + ".npy"))


_READ = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
path = sys.argv[1]
data = np.load(path)
"""


def auc_of(scores: NDArray[np.float64], data: Dataset) -> float:
    """AUC of scores (n,) of the test records."""
    return roc_auc(scores, data.test.targets.numpy() == 1) or 0.0


def _to_norm_1(data: Dataset) -> Dataset:
    def scaled(pair: TensorPair) -> TensorPair:
        return TensorPair(nn.functional.normalize(pair.inputs, dim=1) * (1 - 1e-6), pair.targets)

    return replace(data, train=scaled(data.train), test=scaled(data.test))


def _foreign(
    data: Dataset,
    label: str,
    epsilon: float,
    accountant: str,
    found: list[NDArray[np.float64]],
    seconds: float,
) -> Row:
    targets = data.test.targets.numpy()
    scores = [float(((one > 0) == (targets == 1)).mean()) for one in found]
    return Row(
        experiment=_NAME,
        dataset="adult",
        model=label,
        epsilon=epsilon,
        delta=0.0 if accountant == "pure" else DELTA,
        accountant=accountant,
        noise_multiplier=None,
        accuracy_mean=statistics.mean(scores),
        accuracy_std=statistics.stdev(scores) if len(scores) > 1 else None,
        seeds=len(scores),
        wall_seconds=seconds,
        selection=SELECTION,
        details={
            "accuracies": scores,
            **_ranked([auc_of(one, data) for one in found]),
        },
    )


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    shown = {
        "linear, DP-SGD, bins": ("linear, bins", BLUE, "o-"),
        "MLP 16, DP-SGD, bins": ("MLP 16, bins", GREEN, "s-"),
        "least squares, bins": ("least squares, bins", ORANGE, "^-"),
        "interpret, private boosting (DP-EBM)": ("interpret, DP-EBM", GREY, "v-."),
        "diffprivlib, logistic regression, replace-one": ("diffprivlib, replace-one", GREY, "x:"),
    }
    for model, (label, colour, line) in shown.items():
        mine = [row for row in rows if row.model == model]
        aucs = [statistics.mean(row.details["aucs"]) for row in mine]
        axes.plot([row.epsilon for row in mine], aucs, line, color=colour, label=label)
    for row in rows:
        if row.accountant == "none":
            axes.axhline(row.details["aucs"][0], color=GREY, linestyle="--", linewidth=1)
    axes.set_xlabel("ε at δ = 1e-5; dashed: without DP, with bins and without")
    axes.set_ylabel("AUC on Adult's test records")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
