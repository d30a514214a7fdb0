"""``score_by_group`` of a classifier: figures of declared groups of a data frame, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit.errors import InvalidInput
from tacit.integrations.sklearn import PrivateClassifier

N = 600
COLUMNS: dict[str, Any] = {
    "age": {"kind": "integer", "lower": 0, "upper": 100},
    "sex": {"kind": "category", "values": ["f", "m"]},
}


def people() -> tuple[pd.DataFrame, pd.Series[Any]]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 80, N), "sex": rng.choice(["f", "m"], N)})
    old = frame["age"] > 50
    return frame, pd.Series(np.where(rng.random(N) < 0.9, old, ~old)).map({True: "yes", False: "no"})


def fitted(**given: Any) -> tuple[PrivateClassifier, pd.DataFrame, pd.Series[Any]]:
    frame, truth = people()
    settings = {"columns": COLUMNS, "classes": ["no", "yes"]} | given
    model = PrivateClassifier(
        epsilon=8.0, delta=1e-4, unit="person", adjacency="replace-one", steps=10, **settings
    )
    return model.fit(frame if settings["columns"] else frame[["age"]], truth), frame, truth


def test_the_figures_are_those_of_the_predictions_of_each_group() -> None:
    model, frame, truth = fitted()
    [column] = model.score_by_group(frame, truth, "sex")["by_group"]
    wrong, chance = model.predict(frame) != truth, model.predict_proba(frame)[:, 1]
    for row in column["groups"][:2]:
        own = (frame["sex"] == row["group"]).to_numpy()
        assert row["records"] == own.sum()
        assert row["error"] == pytest.approx(wrong[own].mean())
        assert row["calibration"] == pytest.approx(
            chance[own].mean() - (truth[own] == "yes").mean(), abs=1e-6
        )
        assert row["found"] == pytest.approx(1 - wrong[own & (truth == "yes")].mean())
    [column] = model.score_by_group(frame, truth, "age", [30, 60])["by_group"]
    assert [row["group"] for row in column["groups"]] == ["under 30", "30 to under 60", "60 and over"]
    assert column["groups"][0]["records"] == (frame["age"] < 30).sum()


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("age", "bands of 'age' must be increasing edges"),
        ("income", "by must be a declared input column"),
        ("y", "by must be"),
    ],
)
def test_undeclared_groups_are_refused(by: str, message: str) -> None:
    model, frame, truth = fitted()
    with pytest.raises(InvalidInput, match=message):
        model.score_by_group(frame, truth, by)


def test_other_bad_input_is_refused_and_prints_no_cell() -> None:
    model, frame, truth = fitted()
    with pytest.raises(InvalidInput, match="outside the declared classes"):
        model.score_by_group(frame, truth.replace("yes", "perhaps"), "sex")
    with pytest.raises(InvalidInput, match="sex"):
        model.score_by_group(frame[["age"]], truth, "sex")
    model, frame, truth = fitted(columns=None, bounds=(0, 100))
    with pytest.raises(InvalidInput, match="Fit the estimator with columns"):
        model.score_by_group(frame[["age"]], truth, "age", [30])
