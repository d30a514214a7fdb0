"""Heads and features of the estimators: one argument each, with plan, ledger and people as before."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.models import PictureFeatures

draws = np.random.default_rng(5)
Y = np.arange(1500) % 3
X = draws.normal(size=(1500, 4))
X[np.arange(1500), Y] += 2.0


classifier = partial(
    PrivateClassifier, epsilon=3.0, delta=1e-4, unit="row", adjacency="add-remove", records=1500,
    classes=[0, 1, 2], bounds=(-5, 5), head="least-squares",
)  # fmt: skip


@pytest.mark.parametrize("normalise", [False, True])
def test_least_squares_classifies_and_is_one_release(normalise: bool) -> None:
    model = classifier(normalise=normalise).fit(X, Y)
    assert model.score(X, Y) > 0.75
    assert model.plan_.steps == 1
    assert model.plan_.clipping.norm == 1.0
    assert 2.9 < model.epsilon_ <= 3.0
    assert "LeastSquaresHead" in model.statement_.to_text()
    assert np.allclose(model.predict_proba(X).sum(1), 1)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(X) == model.predict(X)).all()
    assert clone(model).head == "least-squares"


def test_least_squares_of_numbers() -> None:
    x = draws.uniform(-1, 1, (5000, 3))
    y = 50 + 30 * x[:, 0] - 10 * x[:, 1]
    model = PrivateRegressor(
        epsilon=3.0, delta=1e-5, unit="row", adjacency="replace-one", bounds=(-1, 1),
        target_bounds=(0, 100), head="least-squares",
    ).fit(x, y)  # fmt: skip
    assert model.score(x, y) > 0.6


def test_weights_and_people_go_with_least_squares() -> None:
    weighted = classifier(max_sample_weight=1.0, class_weight={0: 0.1}).fit(X, Y, sample_weight=np.ones(1500))
    assert (weighted.predict(X) == 0).mean() < (classifier().fit(X, Y).predict(X) == 0).mean()
    people = classifier(records=300, rows_per_user=5, unit="person", delta=1e-4)
    assert people.fit(X, Y, owners=np.repeat(np.arange(300), 5)).plan_.records == 300


def test_the_ledger_is_charged_for_each_fit(tmp_path: Path) -> None:
    url = str(tmp_path / "budget.db")
    ledger = Ledger.create(url)
    budget = RenyiBudget(epsilon=4.0, delta=1e-4)
    ledger.open_dataset("rows", Policy(unit="row", adjacency="add-remove", budget=budget))
    model = classifier(ledger=url, dataset="rows")
    model.fit(X, Y)
    with pytest.raises(BudgetExceeded):
        model.fit(X, Y)
    ledger.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": (8,)}, "hidden"),
        ({"steps": 3}, "steps=3"),
        ({"epochs": 2.0}, "epochs"),
        ({"batch_size": 100}, "batch_size"),
        ({"head": "ridge"}, "head must be one of"),
        ({"features": lambda x: x}, "features must be a torch module"),
    ],
)
def test_what_a_head_cannot_take_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        classifier(**changes).fit(X, Y)


def test_features_that_mix_records_are_refused() -> None:
    class Centred(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0)

    with pytest.raises(PrivacyRefusal, match="other records of a batch"):
        classifier(features=Centred()).fit(X, Y)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    ("head", "settings", "wanted"),
    [
        ("dp-sgd", {"clipping_norm": 1.0, "learning_rate": 0.3, "steps": 30}, 0.88),
        ("least-squares", {}, 0.75),
    ],
)
def test_pictures_by_one_argument(head: str, settings: dict[str, Any], wanted: float) -> None:
    x, y = load_digits(return_X_y=True)
    model = classifier(
        features=PictureFeatures(8, 8), head=head, classes=range(10), bounds=(0, 16), records=1437, **settings
    )
    assert model.fit(x[:1437], y[:1437]).score(x[1437:], y[1437:]) > wanted
