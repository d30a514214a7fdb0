"""Data frames, weights and searches of the scikit-learn estimators."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import warm
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tacit.columns import Column, Encoder
from tacit.columns.column import parse_columns
from tacit.errors import InvalidInput, PrivacyRefusal, PrivacyWarning
from tacit.integrations import sklearn as estimators
from tacit.integrations import sklearn_fit, sklearn_records
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.noise.generator import Generator
from tacit.testing import seeded_generator

N = 40
SECRET = "smith"
BASE: dict[str, Any] = {
    "epsilon": 5.0, "delta": 1e-3, "unit": "row", "adjacency": "replace-one", "steps": 3,
}  # fmt: skip
COLUMNS: dict[str, Any] = {
    "age": Column(kind="integer", lower=0, upper=120),
    "ward": {"kind": "category", "values": ["a", "b", "c"]},
    "admitted": {"kind": "date", "lower": "2020-01-01", "upper": "2024-12-31", "parts": ["weekday"]},
    "smoker": {"kind": "boolean"},
    "dose": {"kind": "number", "lower": 0, "upper": 10, "decimal": ",", "missing": "indicator"},
    "name": {"kind": "text"},
}


def table() -> pd.DataFrame:
    random = np.random.default_rng(3)
    dose = [f"{value:.2f}".replace(".", ",") for value in random.uniform(0, 12, N)]
    return pd.DataFrame(
        {
            "age": random.integers(0, 130, N),
            "ward": pd.Categorical(random.choice(["a", "b", "d"], N)),
            "admitted": pd.Timestamp("2020-02-01") + pd.to_timedelta(random.integers(0, 900, N), "D"),
            "smoker": random.choice([True, False], N),
            "dose": [None if i % 7 == 0 else value for i, value in enumerate(dose)],
            "name": [f"{SECRET} {i}" for i in range(N)],
        }
    )


LABELS = np.array(["no", "yes"])[np.arange(N) % 2]


classifier = partial(PrivateClassifier, **BASE, classes=["no", "yes"], columns=COLUMNS)
regressor = partial(PrivateRegressor, **BASE, target_bounds=(0, 1), columns=COLUMNS)


def numbers(**changes: Any) -> PrivateClassifier:
    """A classifier of two columns of numbers."""
    return classifier(**{"columns": None, "bounds": {"b": (0, 2), "a": (0, 120)}, **changes})


def of_numbers() -> pd.DataFrame:
    random = np.random.default_rng(4)
    return pd.DataFrame({"a": random.uniform(0, 150, N), "b": random.uniform(0, 2, N)})


def weights_of(model: Any) -> NDArray[np.float64]:
    flat = torch.cat([part.detach().flatten() for part in model.model_.parameters()])
    found: NDArray[np.float64] = flat.double().numpy()
    return found


@pytest.fixture
def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(3))


# --- data frames -----------------------------------------------------------------------------------------


def frames() -> dict[str, Any]:
    rows = table()
    return {
        "pandas": rows,
        "pandas, nullable types": rows.convert_dtypes(),
        "another order": rows[rows.columns[::-1]],
        "polars": pl.from_pandas(rows),
        "arrow": pa.Table.from_pandas(rows),
        "mapping": {name: rows[name].to_numpy(dtype=object) for name in rows},
    }


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize("kind", frames())
def test_every_data_frame_is_trained_on_as_its_declared_features(kind: str) -> None:
    encoder = Encoder(parse_columns(COLUMNS))
    features = encoder.frame(table())
    settings: dict[str, Any] = {"learning_rate": 0.5, "clipping_norm": 1.0}
    wanted = classifier(columns=None, bounds=(-1, 1), **settings).fit(features, LABELS)
    frame = frames()[kind]
    found = classifier(**settings).fit(frame, LABELS)
    np.testing.assert_allclose(weights_of(found), weights_of(wanted), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.predict_proba(frame), wanted.predict_proba(features), rtol=1e-5)
    assert found.feature_names_in_.tolist() == ["age", "ward", "admitted", "smoker", "dose"]
    assert found.n_features_in_ == 5
    assert found.encoder_ == encoder
    assert "data frames, as 16 features by declared columns" in found.statement_.to_text()
    assert found.score(frame, LABELS) == wanted.score(features, LABELS)


@pytest.mark.parametrize(
    "labels", [pd.Series(LABELS), pd.Series(LABELS, dtype="category"), pl.Series(LABELS)]
)
def test_labels_may_be_a_series(labels: Any) -> None:
    model = classifier().fit(table(), labels)
    assert 0.0 <= model.score(table(), labels) <= 1.0


def test_clone_pickle_and_cross_validation_of_a_frame() -> None:
    rows, model = table(), clone(classifier(hidden=(3,)))
    assert model.get_params()["columns"] == COLUMNS
    model.fit(rows, LABELS)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert again.encoder_.features == model.encoder_.features
    sklearn_fit._total.fits = 0
    with pytest.warns(PrivacyWarning, match="cross_val_score calls fit many times"):
        assert cross_val_score(classifier(), rows, LABELS, cv=2, error_score="raise").shape == (2,)
    model.set_params(columns=None, bounds=(0, 1)).fit(np.zeros((N, 2)), LABELS)
    assert model.encoder_ is None
    assert model.n_features_in_ == 2
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize("library", [lambda rows: rows, pl.from_pandas])
def test_bounds_by_name_are_those_of_the_columns(library: Callable[[pd.DataFrame], Any]) -> None:
    frame = library(of_numbers())
    named = numbers().fit(frame, LABELS)
    plain = numbers(bounds=[(0, 120), (0, 2)]).fit(of_numbers().to_numpy(), LABELS)
    np.testing.assert_array_equal(weights_of(named), weights_of(plain))
    assert named.feature_names_in_.tolist() == ["a", "b"]
    assert named.encoder_ is None
    with pytest.raises(InvalidInput, match=r"same order as they were in fit.\n.*feature_names_in_"):
        named.predict(frame[["b", "a"]])


# --- nothing comes from other records --------------------------------------------------------------------

EXTREMES: dict[str, Any] = {
    "age": 10**9, "ward": None, "admitted": pd.Timestamp("2999-01-01"), "smoker": True, "dose": "999999,5",
    "name": "x",
}  # fmt: skip


def inputs_of(rows: pd.DataFrame) -> NDArray[np.float32]:
    inputs, _ = sklearn_records.records_of(classifier(columns=SHOWN), rows, LABELS, lambda labels: labels)
    assert isinstance(inputs, torch.Tensor)
    found: NDArray[np.float32] = inputs.numpy()
    return found


SHOWN = COLUMNS | {"ward": {"kind": "category", "values": ["a", "b", "c"], "missing": "indicator"}}


def check_an_extreme_record_changes_no_other() -> None:
    rows = table()
    other = rows.astype({"ward": object})
    for name, value in EXTREMES.items():
        other.loc[0, name] = value
    one, two = inputs_of(rows), inputs_of(other)
    assert (one[0] != two[0]).any()
    np.testing.assert_array_equal(one[1:], two[1:])
    by_itself = classifier(columns=SHOWN).fit(rows, LABELS)
    alone = [by_itself.predict_proba(rows[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(np.concatenate(alone), by_itself.predict_proba(rows)[:3], rtol=1e-6)


def test_an_extreme_record_changes_no_other() -> None:
    check_an_extreme_record_changes_no_other()


def test_planted_bug_an_encoding_by_the_largest_value_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_the_data(encoder: Encoder, X: Any) -> torch.Tensor:
        cells = X.assign(age=120 * X["age"] // X["age"].max())
        return torch.from_numpy(encoder.frame(cells))

    monkeypatch.setattr(sklearn_records, "_by_columns", by_the_data)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check_an_extreme_record_changes_no_other()


# --- weights ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:epsilon = 200 is too weak")
@pytest.mark.usefixtures("fixed_noise")
def test_weights_multiply_the_loss_before_clipping() -> None:
    """One step without clipping is linear in the weights, so that each weight can be read off it."""
    rows = of_numbers()
    free = {"clipping_norm": 20.0, "epsilon": 200.0, "steps": 1}
    random = np.random.default_rng(0).uniform(0, 2, N)

    def step(weights: NDArray[np.float64] | None, **settings: Any) -> NDArray[np.float64]:
        model = numbers(**free, max_sample_weight=2, **settings)
        return weights_of(model.fit(rows, LABELS, weights))

    noise = step(np.zeros(N))
    each = np.array([step(np.eye(N)[i]) - noise for i in range(0, N, 4)])
    np.testing.assert_allclose(
        step(np.where(np.arange(N) % 4 == 0, random, 0)) - noise,
        (random[::4, None] * each).sum(0),
        atol=1e-4 * np.abs(each).sum(),
    )
    np.testing.assert_array_equal(step(None), step(np.ones(N)))
    np.testing.assert_array_equal(step(np.full(N, 9.0)), step(np.full(N, 2.0)))
    by_label = np.where(LABELS == "yes", 0.5, 1.0)
    np.testing.assert_allclose(step(None, class_weight={"yes": 0.5}), step(by_label), rtol=1e-6)
    np.testing.assert_allclose(
        step(random, class_weight={"yes": 0.5}), step(random * by_label), rtol=1e-6, atol=1e-7
    )


LEARNING_RATE = 0.56


def most_that_one_weight_moves(make: Callable[..., Any], targets: Any, rate: float = LEARNING_RATE) -> float:
    """The distance of two models after one step, over the clipping norm, of records with another weight."""
    rows = of_numbers()
    found = []
    for weight in (0.0, 1e6):
        weights = np.ones(N)
        weights[0] = weight
        model = make(steps=1, learning_rate=LEARNING_RATE, clipping_norm=0.01, max_sample_weight=1e6)
        found.append(weights_of(model.fit(rows, targets, weights)))
    return float(np.linalg.norm(found[1] - found[0]) * N / rate / 0.01)


def numbers_regressor(**changes: Any) -> PrivateRegressor:
    return regressor(columns=None, bounds=(0, 120), **changes)


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize(
    ("make", "targets", "rate"),
    [
        (numbers, LABELS, LEARNING_RATE),
        (numbers_regressor, np.arange(N) / N, 1.0),  # its first step is for the spread, at a rate of its own
    ],
)
def test_whatever_its_weight_a_record_moves_the_model_by_no_more_than_the_bound(
    make: Any, targets: Any, rate: float
) -> None:
    assert 0.5 < most_that_one_weight_moves(make, targets, rate) <= 1 + 1e-3


@pytest.mark.usefixtures("fixed_noise")
def test_planted_bug_weights_that_are_divided_by_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_mean_one(weights: Any, largest: Any, records: int) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.asarray(weights) / np.mean(weights)
        return found

    monkeypatch.setattr(estimators, "sample_weights", of_mean_one)
    assert most_that_one_weight_moves(numbers, LABELS) > 2


def test_weights_are_named_in_the_statement() -> None:
    def note(model: PrivateClassifier) -> bool:
        return "computed from other records" in " ".join(model.statement_.to_text().split())

    assert not note(classifier().fit(table(), LABELS))
    assert note(classifier(max_sample_weight=1).fit(table(), LABELS, sample_weight=pd.Series(np.ones(N))))


# --- a grid search and a budget --------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    made = Ledger.create("budget.db")
    budget = RenyiBudget(epsilon=3.0, delta=1e-3)
    made.open_dataset("rows", Policy(unit="row", adjacency="add-remove", budget=budget))
    yield made
    made.close()


def note_of(model: PrivateClassifier) -> str:
    """Return the note of its statement on other fits."""
    notes: list[str] = model.statement_.data["notes"]
    return next(note for note in notes if " fit" in note and "transformer" not in note)


@pytest.fixture
def no_fits_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn_fit, "_total", sklearn_fit._Fits())


@pytest.mark.usefixtures("no_fits_yet", "fixed_noise")
def test_a_grid_search_without_a_ledger_is_told_what_it_costs() -> None:
    """The figure of one fit is not that of seven; a second search adds to the first."""
    search = GridSearchCV(classifier(epsilon=0.5), {"learning_rate": [0.1, 0.5]}, cv=3)
    with pytest.warns(PrivacyWarning) as caught:
        search.fit(table(), LABELS)
    told = [str(one.message) for one in caught if issubclass(one.category, PrivacyWarning)]
    assert len(told) == 1
    assert "GridSearchCV calls fit many times, and each fit spends epsilon = 0.5" in told[0]
    assert "ledger= and dataset=" in told[0]
    for fits in (7, 14):
        last = search.best_estimator_
        assert last.epsilon_ <= 0.5
        assert f"fit number {fits} of GridSearchCV and other searches" in note_of(last)
        sums = re.search(r"epsilon = (\S+) at delta = (\S+) so far", note_of(last))
        assert sums is not None
        assert float(sums[1]) == pytest.approx(fits * last.plan_.epsilon, rel=2e-3)
        assert float(sums[2]) == pytest.approx(fits * last.delta, rel=1e-3)
        search.fit(table(), LABELS)


@pytest.mark.usefixtures("no_fits_yet", "fixed_noise")
def test_a_fit_by_itself_and_in_a_pipeline_is_none_of_many() -> None:
    model = make_pipeline(FunctionTransformer(), classifier()).fit(table(), LABELS)[-1]
    assert note_of(model).startswith("other calls of fit on the same records")
    fixed = FixedThresholdClassifier(classifier(), threshold=0.4).fit(table(), LABELS).estimator_
    assert note_of(fixed).startswith("other calls of fit on the same records")


@pytest.mark.usefixtures("no_fits_yet", "fixed_noise")
def test_fits_in_other_processes_are_not_counted_as_none() -> None:
    """The last fit is the first of this process, and says that there are others."""
    search = GridSearchCV(classifier(), {"learning_rate": [0.1, 0.5]}, cv=2, n_jobs=2)
    with (
        joblib.parallel_config("multiprocessing", context=warm.CONTEXT),
        pytest.warns(PrivacyWarning, match="GridSearchCV calls fit many times"),
    ):
        search.fit(table(), LABELS)
    assert "GridSearchCV fits the same records several times" in note_of(search.best_estimator_)


def searched(epsilon: float, **settings: Any) -> GridSearchCV:
    model = classifier(adjacency="add-remove", records=N, epsilon=epsilon, ledger="budget.db", dataset="rows")
    return GridSearchCV(model, {"learning_rate": [0.1, 0.5]}, cv=2, **settings).fit(table(), LABELS)


def test_a_grid_search_is_charged_for_each_fit(ledger: Ledger) -> None:
    found = searched(0.2)
    assert found.best_estimator_.predict(table()).shape == (N,)
    assert ledger.status("rows").charges["SETTLED"] == 2 * 2 + 1


def test_a_grid_search_whose_budget_ends_overspends_nothing(ledger: Ledger) -> None:
    with (
        pytest.warns(Warning, match="fits failed out of a total of 4|scores are non-finite"),
        pytest.raises(PrivacyRefusal, match="exceed the remaining budget"),
    ):
        searched(1.2)
    status = ledger.status("rows")
    assert 0 < status.charges["SETTLED"] < 4
    assert status.spent_epsilon <= 3.0


# --- arguments that do not exist -------------------------------------------------------------------------


def test_arguments_that_do_not_exist_are_refused_with_the_reason() -> None:
    for make in (PrivateClassifier, PrivateRegressor):
        with pytest.raises(PrivacyRefusal, match=r"random_state cannot be set: .*subtract"):
            make(**BASE | {"random_state": 0})
        with pytest.raises(TypeError, match="Did you mean 'learning_rate'"):
            make(**BASE | {"learningrate": 0.1})
        with pytest.raises(InvalidInput, match=r"no argument 'C'\. Its arguments are epsilon, delta, unit"):
            make(**BASE | {"C": 0.1})
        assert "random_state" not in make(**BASE).get_params()
