"""Attribute inversion and stored rows: worlds with a known answer, formulas by loops, planted errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

from experiments import attribute_inversion
from experiments.attributes import (
    People,
    Secret,
    black_box,
    confusion,
    impute,
    judge_attribute,
    white_box,
)
from experiments.base import Request
from experiments.registry import reproduce
from experiments.support_vectors import stored_rows, stored_share
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput

Array = NDArray[np.float64]
COIN = Secret([2], [[0.0], [1.0]], [0.5, 0.5])


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    np.random.seed(0)  # noqa: NPY002  scikit-learn's own, where a model is given no other


def group(n: int, seed: int) -> People:
    """The secret is a fair coin that nothing known tells; the label follows it nine times of ten."""
    rng = np.random.default_rng(seed)
    rows = rng.random((n, 4))
    rows[:, 2] = rng.random(n) < 0.5
    return People(rows, np.where(rng.random(n) < 0.9, rows[:, 2], 1 - rows[:, 2]).astype(np.int64))


def fitted(people: People, depth: int | None = None) -> DecisionTreeClassifier:
    return DecisionTreeClassifier(max_depth=depth, random_state=0).fit(people.rows, people.labels)


def test_white_box_is_the_sum_over_paths() -> None:
    people = group(300, 0)
    tree, secret = fitted(people, 4), Secret([2], [[0.0], [1.0]], [0.7, 0.3])
    counts = tree.tree_.n_node_samples
    expected = []
    for row, label in zip(people.rows, people.labels, strict=True):
        chances = []
        for v, prior in zip((0.0, 1.0), secret.prior, strict=True):
            changed, node = row.copy(), 0
            changed[2] = v
            while tree.tree_.children_left[node] >= 0:
                left = changed[tree.tree_.feature[node]] <= tree.tree_.threshold[node]
                node = (tree.tree_.children_left if left else tree.tree_.children_right)[node]
            says = int(np.argmax(tree.tree_.value[node, 0]))
            chances.append(prior * counts[node] / counts[0] * (says == label))
        expected.append(int(np.argmax(chances if max(chances) > 0 else secret.prior)))
    assert white_box(tree, people, secret).tolist() == expected


def test_black_box_is_the_formula() -> None:
    people, other = group(200, 0), group(500, 1)
    tree, secret = fitted(people), Secret([2], [[0.0], [1.0]], [0.6, 0.4])
    matrix = confusion(tree.predict(other.rows), other.labels, classes=2)
    expected = []
    for row, label in zip(people.rows, people.labels, strict=True):
        chances = []
        for v, prior in zip((0.0, 1.0), secret.prior, strict=True):
            changed = row.copy()
            changed[2] = v
            chances.append(prior * matrix[label, tree.predict(changed[None])[0]])
        expected.append(int(np.argmax(chances)))
    assert black_box(tree.predict, people, secret, matrix).tolist() == expected


def test_confusion_is_how_likely_a_label_is_where_the_model_says_something() -> None:
    """The model says 1 of 8 people, one of whom has label 0; it says 0 of nobody with label 1."""
    matrix = confusion([1] * 8 + [0] * 2, [0] + [1] * 7 + [0] * 2, classes=2)
    np.testing.assert_allclose(matrix, [[3 / 4, 2 / 10], [1 / 4, 8 / 10]])


def test_the_attacker_never_sees_the_secret() -> None:
    people, tree = group(200, 0), fitted(group(200, 0))
    blind = People(np.where(np.arange(4) == 2, 1.0 - people.rows, people.rows), people.labels)
    matrix = confusion([0, 1], [0, 1], classes=2)
    assert np.array_equal(white_box(tree, people, COIN), white_box(tree, blind, COIN))
    one, two = (black_box(tree.predict, who, COIN, matrix) for who in (people, blind))
    assert np.array_equal(one, two)


def test_a_tree_that_learnt_by_heart_leaks_and_imputation_shows_what_it_adds() -> None:
    members, others, public = group(400, 0), group(400, 1), group(4000, 2)
    tree = fitted(members)

    def judged(model: DecisionTreeClassifier) -> tuple[float, float, float]:
        result = judge_attribute(
            lambda people: white_box(model, people, COIN),
            COIN,
            members=members,
            non_members=others,
            public=public,
            imputer=LogisticRegression(),
            confidence=0.95,
        )
        assert "a leak of" in str(result)
        assert result.majority < 0.6
        return result.members.value, result.non_members.value, result.imputation.value

    seen, unseen, without = judged(tree)
    assert seen > unseen + 0.05
    assert without == pytest.approx(0.9, abs=0.04), "the label tells nine of ten without any model"
    honest = judged(fitted(public, 1))
    assert honest[0] == pytest.approx(honest[1], abs=0.06), "a model of others gives away no member"


def test_swapped_values_are_seen() -> None:
    """Planted: values numbered the other way round than the attack's."""
    members = group(400, 0)
    swapped = Secret([2], [[1.0], [0.0]], [0.5, 0.5])
    right = (white_box(fitted(members), members, COIN) == COIN.truth(members.rows)).mean()
    wrong = (white_box(fitted(members), members, swapped) == COIN.truth(members.rows)).mean()
    assert right > 0.7 > 0.3 > wrong


def test_one_hot_secrets_and_any_classifier() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 900)
    rows = np.column_stack([rng.random(900), np.eye(3)[kind]])
    people = People(rows, kind)
    secret = Secret([1, 2, 3], np.eye(3), [1 / 3] * 3)
    forest = RandomForestClassifier(20, random_state=0).fit(rows[:600], kind[:600])
    matrix = confusion(forest.predict(rows[600:]), kind[600:], classes=3)
    assert (black_box(forest.predict, people, secret, matrix) == kind).mean() > 0.99
    assert (impute(LogisticRegression(), people, people, secret) == kind).mean() > 0.99


def test_where_no_path_says_the_label_the_prior_decides() -> None:
    people = People([[0.0, 0.0], [1.0, 1.0]], [0, 0])
    tree = DecisionTreeClassifier().fit([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [1, 1, 1, 2])
    assert white_box(tree, people, Secret([1], [[0.0], [1.0]], [0.2, 0.8])).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("columns", "values", "prior"),
    [([0], [[0.0]], [1.0]), ([0], [[0.0], [0.0]], [0.5, 0.5]), ([0], [[0.0], [1.0]], [0.5, 0.6]),
     ([0, 1], [[0.0], [1.0]], [0.5, 0.5]), ([0], [[0.0], [1.0]], [0.0, 1.0])],
    ids=["one value", "twice", "prior", "columns", "impossible"],
)  # fmt: skip
def test_secrets_are_checked(columns: list[int], values: list[list[float]], prior: list[float]) -> None:
    with pytest.raises(InvalidInput):
        Secret(columns, values, prior)


def test_bad_input_is_refused() -> None:
    people = group(20, 0)
    with pytest.raises(InvalidInput, match="finite"):
        People([[np.nan]], [0])
    with pytest.raises(InvalidInput, match="n >= 1"):
        People(np.zeros((0, 2)), np.zeros(0, dtype=int))
    with pytest.raises(InvalidInput, match="integers"):
        People([[1.0]], [0.5])
    with pytest.raises(InvalidInput, match="none of the declared"):
        COIN.truth(people.rows + 1.0)
    with pytest.raises(InvalidInput, match="DecisionTree"):
        white_box(LogisticRegression().fit(people.rows, people.labels), people, COIN)
    with pytest.raises(InvalidInput, match="confusion matrix"):
        black_box(lambda rows: np.full(len(rows), 2), people, COIN, np.eye(2))
    with pytest.raises(InvalidInput, match="labels"):
        confusion([0], [2], classes=2)
    with pytest.raises(InvalidInput, match="predicted"):
        confusion([0.5], [1], classes=2)


# --- stored rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "kernel", "known"),
    [(datasets.load_breast_cancer, "rbf", 0.24), (datasets.load_breast_cancer, "linear", 0.08),
     (datasets.load_digits, "rbf", 0.53), (datasets.load_digits, "linear", 0.32)],
    ids=["cancer-rbf", "cancer-linear", "digits-rbf", "digits-linear"],
)  # fmt: skip
def test_support_vectors_are_the_patients_themselves(load: object, kernel: str, known: float) -> None:
    assert callable(load)
    X, y = load(return_X_y=True)
    train, other, labels, _ = train_test_split(X, y, test_size=0.3, random_state=0)
    model = make_pipeline(StandardScaler(), SVC(kernel=kernel)).fit(train, labels)
    found = stored_share(stored_rows(model), train)
    assert found.share == pytest.approx(known, abs=0.03)
    assert found.largest_error < 1e-10 * np.abs(train).max()
    assert found.unmatched == 0
    assert stored_share(stored_rows(model), other).share < 0.01, "nobody else is in there"
    scaled = stored_share(model[-1].support_vectors_, train)
    assert scaled.share < 0.01, "planted: the scaler is not inverted"


def test_neighbours_and_kin_hold_every_row() -> None:
    X, y = datasets.load_iris(return_X_y=True)
    for model in (KNeighborsClassifier(), GaussianProcessRegressor(optimizer=None), KernelRidge()):
        assert stored_share(stored_rows(make_pipeline(StandardScaler(), model).fit(X, y)), X).share == 1.0
    sparse = SVC().fit(csr_array(X), y)
    assert stored_share(stored_rows(sparse), X).share == stored_share(stored_rows(SVC().fit(X, y)), X).share
    alone = OneClassSVM(nu=0.3).fit(X)
    assert 0.28 < stored_share(stored_rows(alone), X).share < 0.45


def test_models_that_store_no_rows_are_refused_by_name() -> None:
    X, y = datasets.load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match="LogisticRegression"):
        stored_rows(LogisticRegression(max_iter=1000).fit(X, y))
    with pytest.raises(InvalidInput, match="fitted"):
        stored_rows(SVC())
    with pytest.raises(InvalidInput, match="fitted"):
        stored_rows("model.pkl")
    with pytest.raises(InvalidInput, match="Normalizer"):
        stored_rows(make_pipeline(Normalizer(), SVC()).fit(X, y))
    with pytest.raises(InvalidInput, match="precomputed"):
        stored_rows(SVC(kernel="precomputed").fit(X @ X.T, y))


def test_what_a_projection_lost_is_not_found() -> None:
    X, y = datasets.load_iris(return_X_y=True)
    whole = make_pipeline(PCA(4), "passthrough", SVC()).fit(X, y)
    assert stored_share(stored_rows(whole), X).share > 0.2
    half = make_pipeline(PCA(2), SVC()).fit(X, y)
    assert stored_share(stored_rows(half), X).share < 0.02


def test_shares_are_counted_by_row() -> None:
    table = [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    found = stored_share([[1.0, 2.0], [9.0, 9.0]], table)
    assert (found.share, found.found, found.stored, found.unmatched) == (0.5, 2, 2, 1)
    assert stored_share(np.zeros((0, 2)), table).share == 0.0
    with pytest.raises(InvalidInput, match="match"):
        stored_share([[1.0]], table)
    with pytest.raises(InvalidInput, match="finite"):
        stored_share([[np.nan, 1.0]], table)


# --- the experiment ---------------------------------------------------------------------------------------


def toy_adult() -> Dataset:
    """Marriage is a coin that nothing tells but the columns that the experiment must leave out."""
    rng = np.random.default_rng(0)
    married, wife = rng.random(900) < 0.5, rng.random(900) < 0.5
    columns = [rng.random(900), married & wife, married & ~wife, ~married, married, rng.random(900)]
    pair = TensorPair(
        torch.tensor(np.column_stack(columns), dtype=torch.float32), torch.tensor(rng.integers(0, 2, 900))
    )
    names = ("age", "marital=Married-civ-spouse", "marital=Married-AF-spouse", "marital=Divorced")
    features = (*names, "relationship=Wife", "hours")
    return Dataset("adult", pair, pair, ("<=50K", ">50K"), "made up", "person", features=features)


def test_experiment_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute_inversion, "load_adult", toy_adult)
    monkeypatch.setattr(attribute_inversion, "_SIZES", (300,))
    rows = reproduce("attribute-inversion", Request(tmp_path, seeds=2))
    assert [row.model.split(", ")[1] for row in rows] == ["white box", "black box"]
    for row in rows:
        assert row.seeds == 2
        assert row.details["attacked"]["without the model"] < 0.7, "no column says it outright"
        assert all("a leak of" in sentence for sentence in row.details["sentences"])
    assert (tmp_path / "attribute-inversion.png").stat().st_size > 5_000
    assert "Infinity" not in (tmp_path / "attribute-inversion.json").read_text()
