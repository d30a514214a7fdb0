"""PrivateSurvival: hazards in declared bins, targets as scikit-survival writes them, and bad input."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from tacit.errors import InvalidInput, PrivacyWarning, TacitError
from tacit.integrations import sklearn_fit
from tacit.integrations.sklearn import PrivateSurvival
from tacit.training.survival import concordance

BASE: dict[str, Any] = {
    "epsilon": 5.0, "delta": 1e-4, "unit": "person", "adjacency": "replace-one", "time_bounds": (0, 1000),
    "time_bins": 10,
}  # fmt: skip


def ends(times: Any, events: Any) -> Any:
    fields: Any = [np.asarray(events), np.asarray(times)]
    make: Any = np.rec.fromarrays  # its types demand a dtype
    return make(fields, names="event, time")


def people(count: int = 1500) -> tuple[np.ndarray, Any]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (count, 3))
    death = draw.exponential(500 * np.exp(-1.5 * X[:, 0] + 0.7 * X[:, 1]))
    left = draw.uniform(200, 1500, count)
    return X, ends(np.minimum(death, left), death <= left)


X, Y = people()
model = PrivateSurvival(**BASE, bounds=(-1, 1)).fit(X, Y)


def test_predictions_are_curves_that_fall_and_order_people() -> None:
    curves = model.predict_survival(X)
    assert curves.shape == (1500, 10)
    assert model.time_edges_.tolist() == [*range(0, 1001, 100)]
    assert (np.diff(curves, axis=1) < 0).all()
    whole = np.column_stack([np.ones(1500), curves])
    assert model.predict_mean_time(X) == pytest.approx(np.trapezoid(whole, model.time_edges_, axis=1))
    assert model.score(X, Y) > 0.7
    cut = Y.event & (Y.time <= 1000)
    expected = concordance(Y.time.clip(max=1000), cut, model.predict(X).round(9))
    assert model.score(X, Y) == expected


def test_curves_are_log_odds_of_hazards() -> None:
    first, second, third = (curve.y[-1, 0] - curve.y[0, 0] for curve in model.curves_)
    assert first > 2.0
    assert second < -0.7
    assert abs(third) < 0.7


def test_events_beyond_the_last_edge_change_nothing() -> None:
    late = ends(np.where(Y.time > 1000, 5000.0, Y.time), Y.event | (Y.time > 1000))
    assert model.score(X, late) == model.score(X, Y)


def test_a_network_and_columns_of_a_frame_learn_too() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    columns = {name: {"kind": "number", "lower": -1, "upper": 1} for name in frame}
    for settings in ({"columns": columns}, {"bounds": (-1, 1), "hidden": (16,)}):
        other = PrivateSurvival(**BASE, **settings).fit(frame if "columns" in settings else X, Y)
        assert other.score(frame if "columns" in settings else X, Y) > 0.65
        assert other.epsilon_ <= 5.0


def test_it_is_an_estimator_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn_fit, "_total", sklearn_fit._Fits())  # which warns once in a process
    assert clone(model).get_params()["time_bins"] == 10
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    with pytest.warns(PrivacyWarning):
        found = cross_val_score(make_pipeline(PrivateSurvival(**BASE, bounds=(-1, 1), steps=10)), X, Y, cv=2)
    assert (found > 0.6).all()


def test_bins_may_be_edges() -> None:
    edges = np.array([50.0, 400.0])
    other = PrivateSurvival(**{**BASE, "time_bins": edges}, bounds=(-1, 1), steps=5).fit(X, Y)
    assert other.time_edges_.tolist() == [0.0, 50.0, 400.0, 1000.0]


def test_a_feature_that_is_the_time_or_the_event_is_refused() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    number: dict[str, Any] = {"kind": "number", "lower": 0, "upper": 2000}
    for extra, column, words in (("days", Y.time, "'days'"), ("event", 1.0 * Y.event, "'event'")):
        features = frame[["a"]].assign(**{extra: column})
        with pytest.raises(
            InvalidInput, match=f"column {words} of X has the name or the values of a field of y"
        ):
            PrivateSurvival(**BASE, columns={"a": number, extra: number}).fit(features, Y)
    with pytest.raises(InvalidInput, match="column 1 of X has the name or the values of"):
        PrivateSurvival(**BASE, bounds=(0, 2000)).fit(np.column_stack([X[:, 0], Y.time]), Y)


BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no bounds": ({"time_bounds": None}, Y, "time_bounds must be declared"),
    "bounds of words": ({"time_bounds": "long"}, Y, "time_bounds must contain numbers"),
    "one bin": ({"time_bins": 1}, Y, "bins"),
    "edges outside": ({"time_bins": [2000.0]}, Y, "must be increasing edges between lower"),
    "no structure": ({}, Y.time, "y must be a structured array"),
    "events as words": ({}, ends(Y.time, np.where(Y.event, "yes", "no")), r"table\['died'\] == 'yes'"),
    "swapped fields": ({}, np.rec.fromarrays([Y.time, Y.event]), "y must be a structured array"),
    "three fields": ({}, np.rec.fromarrays([Y.event, Y.time, Y.time]), "y must be a structured array"),
    "no array": ({}, [(True, 1.0)], "y must be a structured array"),
    "negative times": ({}, ends(Y.time - 300, Y.event), "times that are missing, infinite, or below"),
    "missing times": ({}, ends(np.where(Y.time < 5, np.nan, Y.time), Y.event), "times that are missing"),
    "events of 2": ({}, ends(Y.time, Y.event * 2), "events that are neither 0 nor 1"),
    "fewer ends": ({}, Y[:-1], "inconsistent numbers of samples"),
    "least squares": ({"head": "least-squares"}, Y, "head must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_refused(name: str) -> None:
    settings, y, words = BAD[name]
    with pytest.raises(TacitError, match=words) as problem:
        PrivateSurvival(**{**BASE, **settings}, bounds=(-1, 1)).fit(X, y)
    assert isinstance(problem.value, InvalidInput)
