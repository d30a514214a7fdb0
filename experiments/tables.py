"""Tacit's default models on twenty tables, compared with other private models and models without privacy.

Nothing is tuned.  ``PrivateClassifier`` and ``PrivateRegressor`` with declared columns, the private boosting
machine of InterpretML (DP-EBM, Nori et al., 2106.09680) and the linear models of diffprivlib get the same
public bounds, and each has its own defaults.  Another library is compared if an environment variable names an
interpreter that has it: TACIT_INTERPRET (interpret-core) or TACIT_DIFFPRIVLIB (0.6.6).

Results are stored in ``tables.jsonl`` of the folder, so that an interrupted call can be resumed.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.base import DELTA, Request, Row, write_results
from experiments.suite import TABLES, Table
from experiments.tries import Tries
from tacit.columns import Column, Encoder
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.recipes import BINS, additive_pays, linear_recipe
from tacit.report.canvas import BLUE, GREY, ORANGE, new_figure, save_figure

Floats: TypeAlias = NDArray[np.float64]

NAME = "tables"
EPSILONS = (0.5, 1.0, 3.0)
OURS, BOOSTED, LINEAR = "Tacit, default", "InterpretML, DP-EBM", "diffprivlib, linear"
PRIVATE = (OURS, BOOSTED, LINEAR)
PLAIN, PLAIN_BOOSTED = "our model without DP", "boosting without DP"
SELECTION = "nothing by table; constants of tacit.recipes.linear_recipe on these tables, with these test rows"
_NOTES = (
    "AUC (of several classes the mean over them) or R² on a fixed quarter of the rows; the others train",
    "epsilon at delta = 1e-5, one row, add-remove; diffprivlib promises pure epsilon for one row replaced",
    "bounds are round public numbers, the same for all methods; values of categories are of the code book",
)


@dataclass(frozen=True)
class Split:
    """A table whose first three quarters are for training, and the rest for testing."""

    table: Table
    columns: dict[str, Column]
    train: pd.DataFrame
    test: pd.DataFrame

    @classmethod
    def of(cls, table: Table) -> Split:
        """Return the split of a table, with regression targets clamped to their bounds."""
        frame = table.frame()
        if table.regression:
            frame[table.target] = frame[table.target].astype(float).clip(*table.bounds[table.target])
        kept = len(frame) * 3 // 4
        return cls(table, table.columns(frame), frame[:kept], frame[kept:])

    @property
    def features(self) -> dict[str, Column]:
        """The feature columns."""
        return {name: column for name, column in self.columns.items() if name != self.table.target}

    @property
    def classes(self) -> list[str]:
        """The classes of a classification; none for a regression."""
        return [] if self.table.regression else list(map(str, self.columns[self.table.target].values or ()))

    def y(self, frame: pd.DataFrame) -> Floats:
        """Return targets, or class numbers, (n,)."""
        found = frame[self.table.target]
        numbers: Floats = (
            found.to_numpy(float) if self.table.regression else found.map(self.classes.index).to_numpy(float)
        )
        return numbers

    def x(self, frame: pd.DataFrame, *, bins: bool = False) -> Floats:
        """Return (n, f) features in Tacit's encoding."""
        encoder = Encoder(self.with_bins() if bins else self.features)
        return encoder.frame(frame[[*self.features]], source="the table").astype(float)

    def with_bins(self) -> dict[str, Column]:
        """Return the feature columns with bins for numbers."""
        return {name: column.with_bins(BINS) for name, column in self.features.items()}

    def score(self, outputs: Floats) -> float:
        """Return the R² of predictions (n,), or the AUC of scores (n, k), on the test rows."""
        from sklearn.metrics import r2_score, roc_auc_score

        y = self.y(self.test)
        if self.table.regression:
            return float(r2_score(y, np.clip(outputs, *self.table.bounds[self.table.target])))
        if outputs.ndim == 1 or outputs.shape[1] == 2:
            return float(roc_auc_score(y, outputs if outputs.ndim == 1 else outputs[:, 1] - outputs[:, 0]))
        return statistics.mean(float(roc_auc_score(y == k, outputs[:, k])) for k in range(outputs.shape[1]))


def ours(
    split: Split, epsilon: float, runs: int, times: tuple[str, float, float] | None = None
) -> list[float]:
    """Return scores of Tacit's default, or with ``times``: a model, and factors for the rate and norm."""
    x, target = [*split.features], split.table.target
    settings: dict[str, Any] = {
        "epsilon": epsilon, "delta": DELTA, "unit": "row", "adjacency": "add-remove",
        "records": len(split.train), "columns": split.features,
    }  # fmt: skip
    if times is not None:
        settings |= _about_the_rule(split, epsilon, *times)
    found = []
    for _ in range(runs):
        if split.table.regression:
            regressor = PrivateRegressor(target_bounds=split.table.bounds[target], **settings)
            found.append(
                split.score(regressor.fit(split.train[x], split.train[target]).predict(split.test[x]))
            )
        else:
            classifier = PrivateClassifier(classes=split.classes, **settings)
            classifier.fit(split.train[x], split.train[target])
            found.append(split.score(classifier.predict_proba(split.test[x])))
    return found


def _about_the_rule(split: Split, epsilon: float, model: str, rate: float, norm: float) -> dict[str, Any]:
    encoder = Encoder(split.with_bins() if model == "additive" else split.features)
    classes = len(split.classes) or 1
    usual = linear_recipe(len(split.train), epsilon, classes=classes, longest=encoder.longest)
    return {
        "model": model,
        "learning_rate": rate * usual.learning_rate,
        "clipping_norm": norm * usual.clipping_norm,
    }


def without_privacy(split: Split) -> float:
    """Return the score of ridge or logistic regression on the same features."""
    from sklearn.linear_model import LogisticRegression, Ridge

    numbers = sum(column.is_number for column in split.features.values())
    bins = additive_pays(len(split.train), 3.0, numbers)
    x, y, t = split.x(split.train, bins=bins), split.y(split.train), split.x(split.test, bins=bins)
    if split.table.regression:
        return split.score(Ridge(1.0).fit(x, y).predict(t))
    return split.score(LogisticRegression(max_iter=1000).fit(x, y).predict_proba(t))


def boosted_without_privacy(split: Split) -> float:
    """Return the score of scikit-learn's gradient boosting with its defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    x, y, t = split.x(split.train), split.y(split.train), split.x(split.test)
    if split.table.regression:
        return split.score(HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(t))
    return split.score(HistGradientBoostingClassifier(random_state=0).fit(x, y).predict_proba(t))


# --- other libraries, each in its interpreter --------------------------------------------------------------

_READ = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
data = np.load(sys.argv[1])
epsilon, runs = float(sys.argv[2]), int(sys.argv[3])
low, high = data["bounds"] if "bounds" in data else (None, None)
"""
_BOOST = """
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor
kinds = ["nominal" if nominal else "continuous" for nominal in data["nominal"]]
common = dict(
    epsilon=epsilon, delta=1e-5, n_jobs=1, feature_types=kinds,
    privacy_bounds={i: (-1.0, 1.0) for i, kind in enumerate(kinds) if kind == "continuous"},
)
def outputs():
    if low is None:
        model = DPExplainableBoostingClassifier(**common).fit(data["x"], data["y"])
        return model.decision_function(data["t"])
    model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **common)
    return model.fit(data["x"], data["y"]).predict(data["t"])
"""
_PEER = """
from diffprivlib.models import LinearRegression, LogisticRegression
def outputs():
    if low is None:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, max_iter=1000).fit(data["x"], data["y"])
        return model.decision_function(data["t"])
    model = LinearRegression(epsilon=epsilon, bounds_X=(-1.0, 1.0), bounds_y=(low, high))
    return model.fit(data["x"], data["y"]).predict(data["t"])
"""
_WRITE = """
np.save(sys.argv[1] + ".npy", np.stack([outputs() for _ in range(runs)]))
"""


def boosted(split: Split, epsilon: float, runs: int) -> list[float]:
    """Return scores of DP-EBM on the raw columns; none for more than two classes."""
    if len(split.classes) > 2:
        return []
    nominal = [not column.is_number for column in split.features.values()]
    parts = {"x": _as_they_are(split, split.train), "t": _as_they_are(split, split.test), "nominal": nominal}
    return _by("TACIT_INTERPRET", _BOOST, split, parts, epsilon, runs)


def _as_they_are(split: Split, frame: pd.DataFrame) -> Floats:
    """Return numbers scaled to [-1, 1], with -1 for missing ones, and the indices of categories."""
    rows = []
    for name, column in split.features.items():
        if column.is_number:
            low, high = split.table.bounds[name]
            numbers = frame[name].astype(float).fillna(low).clip(low, high)
            rows.append(((numbers - low) / (high - low) * 2 - 1).to_numpy())
        else:
            places = {str(value): place for place, value in enumerate(column.values or ())}
            rows.append(
                frame[name].map(lambda cell, places=places: places.get(str(cell), -1)).to_numpy(float)
            )
    return np.stack(rows, axis=1)


def linear_peer(split: Split, epsilon: float, runs: int) -> list[float]:
    """Return scores of diffprivlib: logistic regression at norm <= 1, or linear regression on [-1, 1]."""
    longest = 1.0 if split.table.regression else Encoder(split.features).longest
    parts = {"x": split.x(split.train) / longest, "t": split.x(split.test) / longest}
    return _by("TACIT_DIFFPRIVLIB", _PEER, split, parts, epsilon, runs)


def _by(
    variable: str, program: str, split: Split, parts: dict[str, Any], epsilon: float, runs: int
) -> list[float]:
    """Return scores of a program in the interpreter that an environment variable names; none without it."""
    if (python := os.environ.get(variable)) is None:
        return []
    if split.table.regression:
        parts["bounds"] = split.table.bounds[split.table.target]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.npz"
        np.savez(path, y=split.y(split.train), **parts)
        command = [python, "-c", _READ + program + _WRITE, path, str(epsilon), str(runs)]
        subprocess.run(command, check=True)
        return [split.score(one) for one in np.load(path + ".npy")]


# --- rows ------------------------------------------------------------------------------------------------


def run(request: Request) -> list[Row]:
    """Return a row for each table, method and epsilon, and draw ``tables.png``."""
    names = [table.name for table in TABLES]
    chosen = names if request.dataset is None else [request.choose_dataset(names)]
    request.folder.mkdir(parents=True, exist_ok=True)
    tries, rows = Tries(request.folder / f"{NAME}.jsonl"), list[Row]()
    for done, name in enumerate(chosen):
        request.listener("tables", done, len(chosen))
        rows += rows_of(Split.of(next(t for t in TABLES if t.name == name)), request, tries)
        write_results(NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


def rows_of(split: Split, request: Request, tries: Tries) -> list[Row]:
    """Return the rows of one table; methods that are not installed have none."""
    plain = {
        PLAIN: lambda: [without_privacy(split)],
        PLAIN_BOOSTED: lambda: [boosted_without_privacy(split)],
    }
    rows = [_row(split, method, math.inf, tries, call) for method, call in plain.items()]
    for epsilon in request.choose_epsilons(EPSILONS):
        for method, make in ((OURS, ours), (BOOSTED, boosted), (LINEAR, linear_peer)):

            def call(make: Any = make, epsilon: float = epsilon) -> list[float]:
                found: list[float] = make(split, epsilon, request.seeds)
                return found

            rows.append(_row(split, method, epsilon, tries, call))
    return [row for row in rows if row is not None]


def _row(split: Split, method: str, epsilon: float, tries: Tries, call: Callable[[], list[float]]) -> Any:
    start = time.perf_counter()
    settings = {
        "table": split.table.name,
        "method": method,
        "epsilon": epsilon if epsilon < math.inf else None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = tries.scores(settings, call)
    if not scores:
        return None
    return Row(
        experiment=NAME,
        dataset=split.table.name,
        model=method,
        epsilon=epsilon,
        delta=0.0 if method == LINEAR or epsilon == math.inf else DELTA,
        accountant="none" if epsilon == math.inf else {OURS: "pld", BOOSTED: "gdp", LINEAR: "pure"}[method],
        noise_multiplier=None,
        accuracy_mean=statistics.mean(scores),
        accuracy_std=statistics.stdev(scores) if len(scores) > 1 else None,
        seeds=len(scores),
        wall_seconds=time.perf_counter() - start,
        selection=SELECTION,
        details={
            "scores": scores,
            "figure": "R²" if split.table.regression else "AUC",
            "rows": len(split.train) + len(split.test),
            "columns": len(split.features),
        },
    )


def _draw(rows: Sequence[Row], request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    names = list(dict.fromkeys(row.dataset for row in rows))
    places = {name: -place for place, name in enumerate(names)}
    shown = {OURS: ("o", BLUE), BOOSTED: ("s", ORANGE), LINEAR: ("x", GREY), PLAIN: ("|", GREY)}
    for method, (marker, colour) in shown.items():
        mine = [row for row in rows if row.model == method and row.epsilon in (1.0, math.inf)]
        axes.scatter(
            [max(0.0, float(row.accuracy_mean or 0.0)) for row in mine],
            [places[row.dataset] for row in mine],
            marker=marker, color=colour, label=method, zorder=3,
        )  # fmt: skip
    axes.set_yticks(list(places.values()), names)
    axes.set_xlabel("AUC or R² on test rows at ε = 1; below 0 is drawn at 0")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{NAME}.png")
