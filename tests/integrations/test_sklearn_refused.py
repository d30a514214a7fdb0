"""Refusals of frames, bounds and weights by the scikit-learn estimators, in words without a cell."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tacit.errors import TacitError
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor

N = 20
SECRET = "smith"
DAYS = pd.date_range("2020-02-01", periods=N)
TABLE = pd.DataFrame(
    {"age": np.arange(N), "ward": ["a", "b"] * (N // 2), "admitted": DAYS, "smoker": True, "dose": "1,5"}
)
NUMBERS = TABLE[["age"]].assign(b=1.0)
LABELS = np.array(["no", "yes"])[np.arange(N) % 2]
ONES = np.ones(N)
BASE: dict[str, Any] = {
    "epsilon": 5.0, "delta": 1e-3, "unit": "row", "adjacency": "replace-one", "steps": 3,
    "max_sample_weight": 2,
}  # fmt: skip
COLUMNS: dict[str, Any] = {
    "age": {"kind": "integer", "lower": 0, "upper": 120},
    "ward": {"kind": "category", "values": ["a", "b", "c"]},
    "admitted": {"kind": "date", "lower": "2020-01-01", "upper": "2024-12-31"},
    "smoker": {"kind": "boolean"},
    "dose": {"kind": "number", "lower": 0, "upper": 10, "decimal": ","},
}
Attempt = Callable[[], object]


def fit(X: Any = TABLE, y: Any = LABELS, weights: Any = None, **settings: Any) -> Attempt:
    given = {**BASE, "classes": ["no", "yes"], "columns": COLUMNS, **settings}
    return lambda: PrivateClassifier(**given).fit(X, y, weights)


def changed(X: pd.DataFrame = TABLE, **cells: Any) -> Attempt:
    return fit(X.assign(**cells))


def columns(**facts: Any) -> Attempt:
    return fit(columns={"age": facts})


def bounded(X: Any, bounds: Any) -> Attempt:
    return fit(X, columns=None, bounds=bounds)


def regress(y: Any, **settings: Any) -> Attempt:
    given = {**BASE, "target_bounds": (0, 1), "columns": COLUMNS, **settings}
    return lambda: PrivateRegressor(**given).fit(TABLE, y)


def predict(X: Any) -> Attempt:
    return lambda: (
        PrivateClassifier(**BASE, classes=["no", "yes"], columns=COLUMNS).fit(TABLE, LABELS).predict(X)
    )


WRONG: dict[str, tuple[Attempt, str]] = {
    "an array": (fit(np.zeros((N, 2))), "X must be a data frame; got .* bounds instead"),
    "columns and bounds": (fit(bounds=(0, 1)), "Remove bounds"),
    "columns without bounds": (columns(kind="integer"), "lacks lower and upper"),
    "columns without a kind": (columns(lower=0, upper=1), "age.* needs a kind"),
    "bounds from the data": (columns(kind="number", lower="min", upper="max"), "not ones from the data"),
    "no column": (fit(TABLE.drop(columns="age")), "X has no column 'age'"),
    "another column": (changed(z=SECRET), "not declared: 'z'. Drop"),
    "another column to predict": (predict(TABLE.assign(z=SECRET)), "not declared: 'z'. Drop"),
    "no column to predict": (predict(TABLE[["age"]]), "X has no column 'ward', 'admitted'"),
    "two columns of a name": (fit(pd.concat([TABLE, TABLE], axis=1)), "2 columns named 'age'"),
    "names equal but for case": (
        fit(TABLE.assign(AGE="1"), columns={**COLUMNS, "AGE": {"kind": "text"}}),
        "'age', 'AGE', which differ only in case",
    ),
    "names that are numbers": (fit(pd.DataFrame(np.zeros((N, 2)))), "column names of X must be strings"),
    "no rows": (fit(TABLE[:0], LABELS[:0]), "X has no records"),
    "an age in words": (changed(age=SECRET), "20 values in column 'age' of X are not numbers"),
    "an age with a fraction": (changed(age=0.5), "'age' of X are no whole numbers"),
    "an age in a list": (changed(age=[[SECRET]] * N), "column 'age' of X"),
    "no date": (changed(admitted=SECRET), "'admitted' of X are not dates"),
    "a date that is a number": (changed(admitted=3.5), "column 'admitted' of X"),
    "neither true nor false": (changed(smoker=SECRET), "neither true nor false"),
    "a number in words": (changed(dose=SECRET), "'dose' of X are not numbers"),
    "a missing cell": (changed(ward=None), "lack a value.*or set missing"),
    "another length of y": (fit(y=LABELS[:9]), "inconsistent numbers of samples"),
    "no y": (fit(y=None), "requires y to be passed"),
    "y of two columns": (fit(y=np.full((N, 2), SECRET)), "y should be a 1d array"),
    "an undeclared label": (fit(y=[SECRET] * N), "outside the declared classes"),
    "y in words": (regress([SECRET] * N), "y must contain numbers"),
    "y in dates": (regress(DAYS), "y contains dates"),
    "y missing": (regress([None] * N), "y contains NaN"),
    "target bounds by name": (regress(ONES, target_bounds={"y": (0, 1)}), "there is one range"),
    "dates in an array": (bounded(TABLE[["admitted"]], (0, 1)), "Declare them in columns"),
    "dates in Polars": (bounded(pl.from_pandas(TABLE[["admitted"]]), (0, 1)), "Declare them in columns"),
    "texts without columns": (bounded(TABLE, (0, 1)), "in column 'ward'.*Declare the columns"),
    "texts in Arrow": (
        bounded(pa.table({"x": [SECRET] * N}), (0, 1)),
        "20 in column 'x'.*Declare the columns",
    ),
    "bounds of too few": (bounded(NUMBERS, {"age": (0, 1)}), "lacks a pair .* for 'b'"),
    "bounds of too many": (
        bounded(NUMBERS, dict.fromkeys(["age", "b", "c"], (0, 1))),
        "names columns that X does not have: 'c'",
    ),
    "bounds by name of an array": (bounded(NUMBERS.to_numpy(), {"age": (0, 1)}), "X has no column names"),
    "bounds that are no pairs": (bounded(NUMBERS, {"age": (0, 1), "b": 7}), "must contain numbers"),
    "balanced": (fit(class_weight="balanced"), "computed from the records"),
    "a weight of no class": (fit(class_weight={"x": 1}), "not among the declared classes"),
    "a negative class weight": (fit(class_weight={"no": -1}), "class_weight of 'no' must"),
    "class weights in a list": (fit(class_weight=[1, 2]), "class_weight must be a dict"),
    "no largest weight": (fit(weights=ONES, max_sample_weight=None), "max_sample_weight must be declared"),
    "a largest weight of 0": (fit(weights=ONES, max_sample_weight=0), "max_sample_weight must be"),
    "too few weights": (fit(weights=np.ones(3)), r"got \(3,\)"),
    "one weight": (fit(weights=1.0), r"got \(\)"),
    "negative weights": (fit(weights=-ONES), "20 values that are negative"),
    "weights that are NaN": (fit(weights=ONES * np.nan), "negative, NaN or infinite"),
    "weights in words": (fit(weights=[SECRET] * N), "sample_weight must contain"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_without_a_cell(what: str) -> None:
    attempt, words = WRONG[what]
    with pytest.raises(TacitError, match=words) as caught:
        attempt()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_without_a_mistake_nothing_is_refused() -> None:
    fit(weights=ONES, class_weight={"no": 2})()
    regress(ONES)()
    predict(TABLE)()
    bounded(NUMBERS, {"b": (0, 2), "age": (0, 120)})()
