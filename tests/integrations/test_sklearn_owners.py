"""Estimators of people with several rows each: the plan counts people, the statement names them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import Ledger, Policy, RenyiBudget

draws = np.random.default_rng(2)
OWNERS = np.repeat([f"p{number}" for number in range(150)], draws.integers(1, 7, 150))
KIND = {name: number % 2 for number, name in enumerate(np.unique(OWNERS))}
Y = np.array([KIND[name] for name in OWNERS])
X = draws.normal(size=(len(Y), 3)) + 1.5 * Y[:, None]


classifier = partial(
    PrivateClassifier, epsilon=4.0, delta=1e-3, unit="patient", adjacency="add-remove", records=150,
    rows_per_user=3, classes=[0, 1], bounds=(-4, 6), steps=15,
)  # fmt: skip


def test_a_classifier_of_people() -> None:
    model = classifier().fit(X, Y, owners=OWNERS)
    assert model.plan_.records == 150
    assert model.score(X, Y) > 0.85
    text = " ".join(model.statement_.to_text().split())
    assert "one patient" in text
    assert "two values of 'owners'" in text
    assert clone(model).rows_per_user == 3


def test_weights_and_pipelines_go_with_owners() -> None:
    model = make_pipeline(FunctionTransformer(lambda x: x), classifier(max_sample_weight=1.0))
    weights = np.full(len(Y), 0.5)
    fitted = model.fit(X, Y, privateclassifier__owners=OWNERS, privateclassifier__sample_weight=weights)
    assert fitted.score(X, Y) > 0.8


def test_a_regressor_counts_people_where_their_number_is_public() -> None:
    model = PrivateRegressor(
        epsilon=4.0, delta=1e-3, unit="patient", adjacency="zero-out", rows_per_user=2, bounds=(-4, 6),
        target_bounds=(0, 1), steps=5,
    ).fit(X, Y.astype(float), owners=OWNERS)  # fmt: skip
    assert model.plan_.records == 150


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({}, {}, "rows_per_user is given without owners"),
        ({"rows_per_user": None}, {"owners": OWNERS}, "owners is given without rows_per_user"),
        ({}, {"owners": OWNERS[:-1]}, "one owner for each row"),
        ({}, {"owners": [None, *OWNERS[1:]]}, "1 rows have no owner"),
        ({"rows_per_user": 9}, {"owners": OWNERS}, "no user has more than 6 rows"),
    ],
)
def test_bad_input(settings: dict[str, Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        classifier(**settings).fit(X, Y, **given)


def test_rows_of_several_people_are_refused_with_a_way_on() -> None:
    pairs = [[name, KIND[name]] for name in OWNERS]
    with pytest.raises(InvalidInput, match="several types"):
        classifier().fit(X, Y, owners=pairs)
    pairs = [[name, f"nurse {number % 7}"] for number, name in enumerate(OWNERS)]
    with pytest.raises(PrivacyRefusal, match=r"got lists of owners.*tacit\.PrivateSession"):
        classifier().fit(X, Y, owners=pairs)


def test_a_ledger_that_counts_by_person_takes_it(tmp_path: Path) -> None:
    url = str(tmp_path / "budget.db")
    policy = Policy(
        unit="patient",
        unit_column="patient_id",
        adjacency="add-remove",
        budget=RenyiBudget(epsilon=9.0, delta=1e-3),
    )
    ledger = Ledger.create(url)
    ledger.open_dataset("visits", policy)
    classifier(ledger=url, dataset="visits").fit(X, Y, owners=OWNERS)
    assert ledger.status("visits").charges["SETTLED"] == 1
    with pytest.raises(PrivacyRefusal, match="counts by column 'patient_id'"):
        classifier(ledger=url, dataset="visits", rows_per_user=None).fit(X, Y)


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "patient_id": OWNERS})
COLUMNS: dict[str, Any] = {
    "a": {"kind": "number", "lower": -4, "upper": 6}, "b": {"kind": "number", "lower": -4, "upper": 6},
    "patient_id": {"kind": "text"},
}  # fmt: skip
by_row = partial(
    PrivateClassifier, epsilon=4.0, delta=1e-4, unit="patient", adjacency="add-remove", records=500,
    classes=[0, 1], columns=COLUMNS, steps=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "convert", [lambda frame: frame, pl.from_pandas, lambda frame: frame.to_dict("list")]
)
def test_a_column_of_patients_that_repeats_is_refused_if_a_row_is_a_patient(convert: Any) -> None:
    data = convert(FRAME)
    with pytest.raises(PrivacyRefusal, match="'patient_id' of X has repeated values") as refusal:
        by_row().fit(data, Y)
    assert "p1" not in str(refusal.value), "no value is shown"
    with pytest.raises(PrivacyRefusal, match="'patient_id' of X has repeated values"):
        PrivateRegressor(
            epsilon=4.0, delta=1e-4, unit="patient", adjacency="zero-out", columns=COLUMNS,
            target_bounds=(0, 1), steps=2,
        ).fit(data, Y)  # fmt: skip


@pytest.mark.parametrize("settings", [{"unit": "visit"}, {"one_record_per_unit": True}])
def test_a_statement_about_the_rows_is_accepted(settings: dict[str, Any]) -> None:
    assert by_row(**settings).fit(FRAME, Y).epsilon_ <= 4.0
    once = FRAME.drop_duplicates("patient_id")
    assert by_row().fit(once, Y[once.index]).epsilon_ <= 4.0
    people = by_row(rows_per_user=2, records=150, delta=1e-3)
    assert people.fit(FRAME, Y, owners=FRAME["patient_id"]).plan_.records == 150
