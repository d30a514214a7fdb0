"""The curves of a fitted estimator: with the constant they sum to what it predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from torch import nn

from tacit.columns import Column
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.models.additive import Curve

N = 60
BASE: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "unit": "row", "adjacency": "replace-one"}
COLUMNS = {
    "age": Column(kind="integer", lower=0, upper=120, bins=[30, 60]),
    "dose": Column(kind="number", lower=-1, upper=1),
    "ward": Column(kind="category", values=("a", "b", "c"), missing="indicator"),
    "smoker": Column(kind="boolean"),
    "name": Column(kind="text"),
}
BOUNDS = [(0, 120), (-1, 1), (5, 9)]


def frame(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": rng.integers(0, 130, N),
            "dose": rng.uniform(-1, 1, N),
            "ward": [[*"abd", None][place] for place in rng.integers(0, 4, N)],
            "smoker": rng.choice([True, False], N),
            "name": "nobody",
        }
    )


def array(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform([0, -1, 5], [130, 1, 9], (N, 3))


def outputs(model: Any, X: Any) -> np.ndarray:
    """Return the sums of the curves, computed from the model's predictions."""
    if isinstance(model, PrivateRegressor):
        return model.predict(X)[:, None]
    logs = np.log(model.predict_proba(X))
    found: np.ndarray = logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(1)[:, None]
    return found


def summed(model: Any, row: dict[Any, Any]) -> np.ndarray:
    """Constant and curves at one row, whose numbers are at no edge."""
    total = model.intercept_.copy()
    for curve in model.curves_:
        cell = row[curve.name]
        if curve.kind == "category":
            places = {word: curve.y[place] for place, word in enumerate(curve.x)}
            total += curve.missing if pd.isna(cell) else places.get(str(cell).lower(), curve.other)
        else:
            total += [np.interp(cell, curve.x, curve.y[:, k]) for k in range(len(total))]
    return np.asarray(total)


@pytest.mark.parametrize(
    "model",
    [
        PrivateClassifier(**BASE, steps=5, columns=COLUMNS, classes=[0, 1]),
        PrivateClassifier(**BASE, steps=5, columns=COLUMNS, classes=[0, 1], model="additive"),
        PrivateClassifier(**BASE, steps=5, columns=COLUMNS, classes=[0, 1, 2]),
        PrivateRegressor(**BASE, columns=COLUMNS, target_bounds=(-400, 600), model="additive"),
    ],
)
def test_curves_of_declared_columns_sum_to_the_prediction(model: Any) -> None:
    rng = np.random.default_rng(0)
    X = frame(rng)
    model.fit(X, rng.integers(0, 2, N))
    assert [curve.name for curve in model.curves_] == ["age", "dose", "ward", "smoker"]
    rows = X[~X["age"].isin([30, 60])]
    found = [summed(model, row) for row in rows.to_dict("records")]
    assert np.array(found) == pytest.approx(outputs(model, rows), abs=1e-3)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("names", [None, ["weight", "speed", "size"]])
@pytest.mark.parametrize(
    "model",
    [
        PrivateClassifier(**BASE, steps=5, bounds=BOUNDS, classes=["no", "yes"]),
        PrivateClassifier(**BASE, steps=5, bounds=BOUNDS, classes=["no", "yes"], model="additive"),
        PrivateRegressor(**BASE, bounds=BOUNDS, target_bounds=(-1000, 1000), model="additive"),
        PrivateRegressor(**BASE, bounds=BOUNDS, target_bounds=(-1000, 1000), model="linear"),
        PrivateRegressor(**BASE, head="least-squares", bounds=BOUNDS, target_bounds=(-1000, 1000)),
    ],
)
def test_curves_of_bounds_sum_to_the_prediction(model: Any, names: list[str] | None) -> None:
    rng = np.random.default_rng(0)
    X: Any = array(rng)
    y = rng.choice(["no", "yes"], N) if hasattr(model, "classes") else rng.normal(size=N)
    listed = names or ["x0", "x1", "x2"]
    X = X if names is None else pd.DataFrame(X, columns=names)
    model.fit(X, y)
    assert [curve.name for curve in model.curves_] == listed
    ends = [(curve.x[0], curve.x[-1]) for curve in model.curves_]
    assert ends == [tuple(map(float, pair)) for pair in BOUNDS]
    bins = {len(curve.x) // 2 for curve in model.curves_}
    assert bins == {10 if model.additive_ else 1}
    rows = [dict(zip(listed, row, strict=True)) for row in np.asarray(X)]
    # Predictions end at the declared bounds, and the noise of some runs is larger than these.
    sums = np.clip([summed(model, row) for row in rows], -1000, 1000)
    assert sums == pytest.approx(outputs(model, X), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden": (4,)}, "hidden=(4,)"),
        ({"normalise": True}, "normalise=True"),
        ({"head": "least-squares"}, "head='least-squares'"),
        ({"features": nn.Linear(3, 4)}, "features"),
        ({"features": lambda X: X, "bounds": None}, "features"),
    ],
)
def test_a_model_that_is_no_sum_over_columns_has_none(settings: dict[str, Any], named: str) -> None:
    rng = np.random.default_rng(0)
    model = PrivateClassifier(**BASE, **{"bounds": BOUNDS, "classes": [0, 1], **settings})
    model.fit(array(rng), rng.integers(0, 2, N))
    assert not hasattr(model, "curves_")
    with pytest.raises(AttributeError) as refused:
        _ = model.intercept_
    assert f"a sum over columns; got {named}" in str(refused.value)


def test_an_estimator_that_is_not_fitted_says_so() -> None:
    model = PrivateClassifier(**BASE, bounds=BOUNDS, classes=[0, 1])
    assert not hasattr(model, "curves_")
    with pytest.raises(NotFittedError):
        _ = model.curves_


def test_importance_is_the_range_of_a_curve() -> None:
    curve = Curve("x0", "number", (0.0, 1.0, 1.0, 2.0), np.array([[0.0, 1], [2, 1], [-1, 1], [0, 3]]))
    assert curve.importance.tolist() == [3.0, 2.0]


@pytest.mark.parametrize(("columns", "additive"), [(2, True), (20, False)])
def test_auto_takes_bins_where_records_are_enough_for_the_columns(columns: int, additive: bool) -> None:
    random = np.random.default_rng(0)
    x, y = random.uniform(-1, 1, (1600, columns)), random.integers(0, 2, 1600)
    settings: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-5, "unit": "row", "adjacency": "add-remove", "records": 1600, "steps": 1,
        "classes": [0, 1],
    }  # fmt: skip
    names = [f"x{place}" for place in range(columns)]
    number = Column(kind="number", lower=-1, upper=1)
    by_bounds = PrivateClassifier(**settings, bounds=(-1, 1)).fit(x, y)
    by_columns = PrivateClassifier(**settings, columns=dict.fromkeys(names, number))
    by_columns.fit(pd.DataFrame(x, columns=names), y)
    assert [by_bounds.additive_, by_columns.additive_] == [additive, additive]
