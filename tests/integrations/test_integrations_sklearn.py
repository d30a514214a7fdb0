"""The scikit-learn estimators: what the plan says is what is done, and nothing comes from the data unsaid."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
from made import a_session, finish
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, PrivacyWarning
from tacit.events import Adjacency, Gaussian, PoissonSampled, Repeat
from tacit.integrations import sklearn_fit
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.models import MLP, Logistic
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.testing import seeded_generator
from tacit.training import PrivateSession

Floats = NDArray[np.float64]
BASE: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "unit": "row", "adjacency": "replace-one"}


classifier = partial(PrivateClassifier, **BASE, classes=[0, 1, 2], bounds=(-3, 3), steps=4)
regressor = partial(PrivateRegressor, **BASE, target_bounds=(-3, 3), bounds=(-3, 3), steps=4)


def rows(n: int = 60, d: int = 4) -> tuple[Floats, NDArray[np.int64]]:
    random = np.random.default_rng(5)
    return random.normal(size=(n, d)), random.integers(0, 3, n)


@pytest.fixture
def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(3))


# --- scikit-learn's own checks ---------------------------------------------------------------------------

MUST_FAIL = {
    "check_classifiers_classes": "classes_ are the declared classes, not those in y",
    "check_classifiers_train": "classes_ are the declared classes",
    "check_sample_weight_equivalence_on_dense_data": "a record of weight 2 is clipped as one record",
    "check_all_zero_sample_weights_error": "an error would reveal a fact about all records together",
}


def expected_failures(estimator: object) -> dict[str, str]:
    """Return the checks that a private estimator has to fail; one that passes nevertheless fails here."""
    classifies = isinstance(estimator, PrivateClassifier)
    return {check: why for check, why in MUST_FAIL.items() if classifies or "classifiers" not in check}


@pytest.mark.thorough(cases=40)
@pytest.mark.filterwarnings("ignore:epsilon = 50 is too weak")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        classifier(epsilon=50.0, steps=20, classes=[0, 1, 2, 3], max_sample_weight=2),
        regressor(epsilon=50.0, steps=20, max_sample_weight=2),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_estimators_keep_scikit_learns_contract(estimator: Any, check: Any, fixed_noise: None) -> None:
    check(estimator)


# --- the mechanism ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fixed_noise")
def test_fit_is_the_plan_and_the_session_on_clamped_and_scaled_rows() -> None:
    X, y = rows()
    bounds = [(-1, 1), (-2, 2), (0, 1), (-3, 3)]
    found = classifier(batch_size=20, bounds=bounds, clipping_norm=0.7, learning_rate=0.56).fit(X, y)
    low, high = np.array([-1, -2, 0, -3]), np.array([1, 2, 1, 3])
    scaled = 2 * (np.minimum(np.maximum(X, low), high) - low) / (high - low) - 1
    model = Logistic(4, 3)
    plan = Plan.calibrate(**BASE, records=60, batch_size=20, steps=4, clipping=0.7)
    data = (torch.from_numpy(scaled).float(), torch.from_numpy(y))
    finish(a_session(model, data, plan, lr=0.56, momentum=0.9, generator=seeded_generator(3)))
    assert found.plan_ == plan
    for mine, theirs in zip(found.model_.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert plan.event == Repeat(PoissonSampled(20 / 60, Gaussian(plan.noise_multiplier)), 4)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_every_setting_reaches_the_plan(make: Any) -> None:
    X, y = rows()
    plan = make(
        epsilon=2.5, delta=1e-4, unit="visit", clipping_norm=0.25, steps=None, epochs=2, batch_size=15
    )
    plan = plan.fit(X, y).plan_
    assert (plan.epsilon_budget, plan.delta, plan.unit, plan.adjacency) == (2.5, 1e-4, "visit", "replace-one")
    assert (plan.clipping.norm, plan.expected_batch_size, plan.steps, plan.records) == (0.25, 15, 8, 60)
    assert make(steps=None).fit(X, y).plan_.steps == (100 if make is classifier else 110)
    assert isinstance(make(adjacency=Adjacency.ZERO_OUT).fit(X, y).plan_, Plan)
    with pytest.raises(InvalidInput, match="exactly one of epochs and steps"):
        make(epochs=1).fit(X, y)
    with pytest.raises(InvalidInput, match="engine must be one of"):
        make(engine="slow").fit(X, y)
    with pytest.raises(InvalidInput, match="learning_rate"):
        make(learning_rate=-1.0).fit(X, y)
    with pytest.raises(InvalidInput, match="momentum"):
        make(momentum=1.0).fit(X, y)
    with pytest.raises(InvalidInput, match="physical_batch_size"):
        make(physical_batch_size=0).fit(X, y)
    assert make(physical_batch_size="auto").fit(X, y).epsilon_ <= 5.0


def test_what_was_spent_is_stated() -> None:
    X, y = rows()
    model = classifier().fit(X, y)
    assert model.epsilon_ == model.statement_.epsilon == model.plan_.epsilon
    assert 0.9 * 5.0 < model.epsilon_ <= 5.0
    text = model.statement_.to_text()
    assert "NOT PRIVATE" not in text
    assert "cross-validation" in text
    assert "transformer" in text
    assert "Logistic, 15 parameters" in text


@pytest.mark.usefixtures("fixed_noise")
def test_a_fixed_key_is_called_not_private() -> None:
    assert "NOT PRIVATE" in classifier().fit(*rows()).statement_.to_text()


def test_each_fit_draws_fresh_noise() -> None:
    X, y = rows()
    first, second = (classifier().fit(X, y).predict_proba(X) for _ in range(2))
    assert np.abs(first - second).max() > 1e-6


@pytest.mark.usefixtures("fixed_noise")
def test_engines_agree_and_hidden_layers_start_from_the_runs_key() -> None:
    X, y = rows()
    state = torch.get_rng_state()
    fast = classifier(hidden=(8,), activation="relu", normalise=True).fit(X, y)
    torch.manual_seed(77)
    slow = classifier(hidden=[8], activation="relu", normalise=True, engine="reference").fit(X, y)
    torch.set_rng_state(state)
    np.testing.assert_allclose(fast.predict_proba(X), slow.predict_proba(X), rtol=1e-4)
    assert isinstance(fast.model_[0], torch.nn.LayerNorm)
    assert isinstance(fast.model_[1], MLP)
    assert fast.model_[1][1].out_features == 8
    assert isinstance(fast.model_[1][2], torch.nn.ReLU)
    with pytest.raises(InvalidInput, match="sequence of widths"):
        classifier(hidden=8).fit(X, y)  # type: ignore[arg-type]


# --- nothing comes from the data unsaid ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (classifier(classes=None), "classes"),
        (classifier(bounds=None), "bounds"),
        (regressor(bounds=None), "bounds"),
        (regressor(target_bounds=None), "target_bounds"),
        (classifier(adjacency="add-remove"), "records"),
    ],
)
def test_what_must_be_declared_is_asked_for_with_the_reason(model: Any, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name} must be declared: .*(leak|reveals)"):
        model.fit(*rows())


def test_under_add_remove_the_number_of_rows_is_not_used_nor_stated() -> None:
    X, y = rows(n=61)
    model = classifier(adjacency="add-remove", records=100).fit(X, y)
    assert model.plan_.expected_batch_size == model.plan_.records == 100
    assert (
        "61"
        not in model.statement_.to_json()
        .replace(str(model.epsilon_), "")
        .split('"versions"')[0]
        .split('"data"')[1]
    )
    with pytest.raises(InvalidInput, match="the plan has 100 records and the data 61"):
        classifier(adjacency="replace-one", records=100).fit(X, y)


@pytest.mark.usefixtures("fixed_noise")
def test_values_outside_the_bounds_count_as_the_bounds() -> None:
    X, y = rows()
    far, near = X.copy(), X.copy()
    far[0], near[0] = 1e30, 3.0
    for make in (classifier, regressor):
        np.testing.assert_array_equal(make().fit(far, y).predict(X), make().fit(near, y).predict(X))
        model = make().fit(X, y)
        np.testing.assert_array_equal(model.predict(far), model.predict(near))
    targets = y.astype(float)
    far_targets = np.where(np.arange(60) == 0, -1e30, targets)
    near_targets = np.where(np.arange(60) == 0, -3.0, targets)
    np.testing.assert_array_equal(
        regressor().fit(X, far_targets).predict(X), regressor().fit(X, near_targets).predict(X)
    )


def test_classes_are_declared_sorted_and_kept_when_they_do_not_occur() -> None:
    X, y = rows()
    names = np.array(["cat", "dog", "eel"])[y]
    model = classifier(classes=("eel", "fox", "dog", "cat")).fit(X, names)
    assert model.classes_.tolist() == ["cat", "dog", "eel", "fox"]
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (60, 4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(axis=1)])
    for labels in (["cat"], ["cat", "cat"], [["cat", "dog"]]):
        with pytest.raises(InvalidInput, match="two or more different labels"):
            classifier(classes=labels).fit(X, names)
    with pytest.raises(InvalidInput, match="outside the declared classes"):
        classifier(classes=["cat", "dog"]).fit(X, names)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((3, -3), "low < high"),
        ((0, 0), "low < high"),
        ((0, np.inf), "finite"),
        ([(0, 1)] * 3, r"one pair \(low, high\), an array \(4, 2\), or .*; got shape \(3, 2\)"),
        ([(0, 1, 2)], "got shape"),
        ("wide", "must contain numbers"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: Any, message: str) -> None:
    X, y = rows()
    with pytest.raises(InvalidInput, match=message):
        classifier(bounds=bounds).fit(X, y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused_in_fit_and_predict(value: float) -> None:
    X, y = rows()
    model = classifier().fit(X, y)
    X[3, 1] = value
    for call in (lambda: classifier().fit(X, y), lambda: model.predict(X)):
        with pytest.raises(InvalidInput, match="NaN or infinite"):
            call()


def test_a_plan_that_is_refused_is_refused_by_fit() -> None:
    with pytest.raises(PrivacyRefusal, match="delta"):
        classifier(delta=0.5).fit(*rows())


# --- the estimators among others -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [classifier, regressor])
def test_clones_pipelines_and_cross_validation(make: Any) -> None:
    X, y = rows()
    model = make(hidden=(4,))
    assert clone(model).get_params() == model.get_params()
    assert "epsilon=5.0" in repr(model)
    pipeline = make_pipeline(FunctionTransformer(np.tanh), model).fit(X, y)
    assert pipeline[-1].n_features_in_ == 4
    assert pipeline.predict(X).shape == (60,)
    sklearn_fit._total.fits = 0
    with pytest.warns(PrivacyWarning, match="cross_val_score calls fit many times"):
        scores = cross_val_score(make(), X, y, cv=3, error_score="raise")
    assert scores.shape == (3,)


@pytest.mark.usefixtures("fixed_noise")
def test_a_pickled_estimator_predicts_the_same_and_holds_no_key() -> None:
    X, y = rows()
    model = classifier().fit(X, y)
    written = pickle.dumps(model)
    key, _ = seeded_generator(3).secret_state()
    assert key not in written
    np.testing.assert_array_equal(pickle.loads(written).predict_proba(X), model.predict_proba(X))


def test_progress_goes_to_standard_error_with_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = rows()
    classifier(verbose=True).fit(X, y)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.split("\r")
    assert [line.split(",")[0] for line in lines[1:]] == [f"step {n} of 4" for n in (1, 2, 3, 4)]
    assert lines[-1].endswith("\n")
    assert float(lines[-1].split("≤")[1]) == pytest.approx(classifier().fit(X, y).epsilon_, rel=1e-3)
    classifier().fit(X, y)
    assert capsys.readouterr().err == ""


def test_digits_are_learned_at_epsilon_three_and_not_at_one_hundredth() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)

    def accuracy(epsilon: float) -> float:
        model = PrivateClassifier(
            epsilon=epsilon, delta=1e-4, unit="image", adjacency="add-remove", records=1437,
            classes=range(10), bounds=(0, 16), normalise=True,
        )  # fmt: skip
        return float(model.fit(X, y).score(X_test, y_test))

    assert accuracy(3.0) > 0.88
    assert accuracy(0.01) < 0.6


def test_diabetes_is_predicted_better_than_by_the_mean() -> None:
    X, y = load_diabetes(return_X_y=True, scaled=False)
    lowest = (0, 1, 10, 40, 50, 20, 10, 1, 2, 40)
    highest = (100, 2, 60, 180, 400, 300, 120, 12, 8, 200)
    bounds = [*zip(lowest, highest, strict=True)]

    def score(epsilon: float) -> float:
        model = PrivateRegressor(
            epsilon=epsilon, delta=1e-4, unit="person", adjacency="zero-out", bounds=bounds,
            target_bounds=(0, 350),
        )  # fmt: skip
        return float(model.fit(X, y).score(X, y))

    assert score(10.0) > 0.35
    assert score(0.001) < 0.0


def test_predictions_of_numbers_stay_within_the_target_bounds() -> None:
    X, y = rows()
    model = regressor(target_bounds=(0, 2)).fit(X, y)
    weights = next(iter(model.model_.layer.parameters()))
    with torch.no_grad():
        weights.fill_(1e6)
    found = model.predict(X)
    assert (found.min(), found.max()) == (0, 2)


def test_a_regressor_of_normalised_rows_learns_the_spread_of_its_target_too() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, (2000, 16))
    X -= X.mean(1, keepdims=True)
    y = X @ random.normal(size=16)
    bounds: dict[str, Any] = {"bounds": (-1, 1), "target_bounds": (-10, 10)}
    model = regressor(**bounds, epsilon=10.0, delta=1e-5, steps=None, normalise=True)
    assert model.fit(X, y).score(X, y) > 0.945  # 0.927 by squares in units of the bounds
    assert not hasattr(model, "curves_")


def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import tacit.integrations.sklearn"
    done = warm.run(code)
    assert done.returncode == 1
    assert "pip install -e '.[sklearn]'" in done.stderr


# --- the ledger ------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.create(tmp_path / "budget.db")
    budget = RenyiBudget(epsilon=12.0, delta=1e-3, orders=(3.0, 6.0))
    made.open_dataset("rows", Policy(unit="row", adjacency="replace-one", budget=budget, public_records=60))
    yield made
    made.close()


def test_every_fit_is_one_charge_of_the_whole_plan(ledger: Ledger, tmp_path: Path) -> None:
    url = str(tmp_path / "budget.db")
    model = clone(classifier(ledger=url, dataset="rows"))
    assert (model.ledger, model.dataset) == (url, "rows")
    model.fit(*rows())
    status = ledger.status("rows")
    assert status.charges["SETTLED"] == 1
    assert status.spent == RenyiBudget(epsilon=12.0, delta=1e-3, orders=(3.0, 6.0)).price(
        model.plan_.event, Adjacency.REPLACE_ONE
    )
    named = model.statement_.data["ledger"]
    assert (named["ledger"], named["dataset"], named["steps"]) == (ledger.uuid, "rows", 4)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(rows()[0]) == model.predict(rows()[0])).all()
    model.fit(*rows())
    assert ledger.status("rows").charges["SETTLED"] == 2


def test_a_fit_that_does_not_fit_touches_nothing(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = regressor(ledger=str(tmp_path / "budget.db"), dataset="rows", epsilon=20.0)
    monkeypatch.setattr(PrivateSession, "step", None)
    with pytest.raises(BudgetExceeded, match="of its steps would fit"):
        model.fit(rows()[0], rows()[0][:, 0])
    assert not hasattr(model, "model_")
    assert sum(ledger.status("rows").charges.values()) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ledger": "budget.db"}, "give both ledger and dataset"),
        ({"dataset": "rows"}, "give both ledger and dataset"),
        ({"ledger": "nowhere.db", "dataset": "rows"}, "nowhere.db"),
    ],
    ids=["no-dataset", "no-ledger", "nowhere"],
)
def test_half_a_ledger_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=words):
        classifier(**changes).fit(*rows())
