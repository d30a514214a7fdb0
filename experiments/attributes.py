"""Attribute inversion: what a model reveals of one secret column of a person, with all other columns known.

By Fredrikson, Jha, Ristenpart, CCS 2015, section 4.  The attacker knows the other columns x_K, the label y
and the frequency of each value v, and guesses

    black box:  argmax_v Pr[v] Pr[y | f(v, x_K)]
    white box:  argmax_v Pr[v] Σ_i (n_i / N) [path i of the tree agrees with (v, x_K) and says y]

Statistics alone, without the model, give many right guesses.  So a result is compared with that of the same
attacker without the model (imputation), and with people that the model was not trained on: only the
difference to them is what the model reveals about the people that it was trained on.

Letters: n people, d columns, v values, c classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.intervals import Interval, clopper_pearson
from tacit.errors import InvalidInput, MissingExtra

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Classifier(Protocol):
    """The interface of scikit-learn's classifiers."""

    def fit(self, X: Array, y: Integers) -> object:
        """Learn classes (n,) from rows (n, d)."""

    def predict(self, X: Array) -> Any:
        """Classes (n,) of rows (n, d)."""


@final
@dataclass(frozen=True, eq=False)
class Secret:
    """The secret column.

    Attributes:
        columns: its positions in a row, more than one if it is one-hot.
        values: (v, columns), its possible values.
        prior: (v,), the frequency of each value.

    Raises:
        InvalidInput: if shapes do not fit, values repeat, or the prior is not a distribution.

    >>> Secret(columns=[2], values=[[0.0], [1.0]], prior=[0.3, 0.7]).prior.tolist()
    [0.3, 0.7]
    """

    columns: Integers
    values: Array
    prior: Array

    def __init__(self, columns: ArrayLike, values: ArrayLike, prior: ArrayLike) -> None:
        object.__setattr__(self, "columns", np.atleast_1d(np.array(columns, dtype=np.int64)))
        object.__setattr__(self, "values", np.array(values, dtype=np.float64))
        object.__setattr__(self, "prior", np.array(prior, dtype=np.float64))
        v = len(self.prior) if self.prior.ndim == 1 else 0
        if v < 2 or self.values.shape != (v, self.columns.size) or len(np.unique(self.values, axis=0)) < v:
            raise InvalidInput(
                f"a secret needs two or more different values (v, {self.columns.size}) and their prior (v,); "
                f"got values {self.values.shape} and prior {self.prior.shape}."
            )
        if not ((self.prior > 0.0).all() and np.isclose(self.prior.sum(), 1.0)):
            raise InvalidInput(f"the prior must be positive and sum to 1; got {self.prior}.")

    def truth(self, rows: Array) -> Integers:
        """Return the number of each row's value; of shape (n,).

        Raises:
            InvalidInput: if a row has none of them.
        """
        same = (rows[:, None, self.columns] == self.values).all(axis=2)  # (n, v)
        if not same.any(axis=1).all():
            raise InvalidInput(
                f"{int((~same.any(axis=1)).sum())} rows hold none of the declared values of the secret."
            )
        return np.asarray(same.argmax(axis=1))

    def tried(self, rows: Array) -> Array:
        """Every row with every value in turn; (n, d) to (v, n, d).  The true value is not read."""
        found = np.repeat(rows[None], len(self.prior), axis=0)
        found[:, :, self.columns] = self.values[:, None]
        return found

    def hidden(self, rows: Array) -> Array:
        """The rows without the secret; (n, d) to (n, d - columns)."""
        return np.delete(rows, self.columns, axis=1)


@final
@dataclass(frozen=True, eq=False)
class People:
    """Rows (n, d) and labels (n,), integers from 0.

    Raises:
        InvalidInput: if there are none, shapes do not fit, or a number is not finite.
    """

    rows: Array
    labels: Integers

    def __init__(self, rows: ArrayLike, labels: ArrayLike) -> None:
        object.__setattr__(self, "rows", np.array(rows, dtype=np.float64))
        y = np.asarray(labels)
        object.__setattr__(self, "labels", y)
        if self.rows.ndim != 2 or len(self.rows) == 0 or not np.isfinite(self.rows).all():
            raise InvalidInput(f"rows must be finite numbers (n, d) with n >= 1; got {self.rows.shape}.")
        if y.shape != self.rows.shape[:1] or not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
            raise InvalidInput(
                f"labels must be {len(self.rows)} integers from 0; got {y.dtype} of shape {y.shape}."
            )


def confusion(predicted: ArrayLike, labels: ArrayLike, *, classes: int) -> Array:
    """Pr[y | the model says f], of shape (c, c): row y, column f.  Each cell counts one more than was seen,
    so that nothing unseen is impossible.

    >>> confusion([0, 0, 1, 1], [0, 0, 0, 1], classes=2).round(3).tolist()
    [[0.75, 0.5], [0.25, 0.5]]
    """
    f, y = np.asarray(predicted), np.asarray(labels)
    for name, given in (("predicted", f), ("labels", y)):
        if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer) or given.shape != y.shape:
            raise InvalidInput(f"{name} must be as many integers as there are labels; got {given.shape}.")
        if given.size and not (given.min() >= 0 and given.max() < classes):
            raise InvalidInput(f"{name} must lie in [0, {classes - 1}]; some numbers do not.")
    counts = np.ones((classes, classes))
    np.add.at(counts, (y, f), 1.0)
    return np.asarray(counts / counts.sum(axis=0))


def black_box(
    predict: Callable[[Array], ArrayLike], people: People, secret: Secret, matrix: ArrayLike
) -> Integers:
    """Return the value of everyone's secret, from the model's answers alone; of shape (n,).

    The paper's confusion matrix stands for how likely label y is where the model says f: Pr[v | y, x_K] is in
    proportion to Pr[v] Pr[y | v, x_K], and the model's answer is what the attacker has for (v, x_K).

    Args:
        predict: any classifier's: rows (n, d) to integers (n,).
        matrix: of shape (c, c), from :func:`confusion` on people whose labels are public.

    Raises:
        InvalidInput: if the matrix does not cover an answer or a label.
    """
    tried, table = secret.tried(people.rows), np.asarray(matrix, dtype=np.float64)
    v, n, d = tried.shape
    said = np.asarray(predict(tried.reshape(v * n, d))).reshape(v, n)
    top = max(int(said.max()), int(people.labels.max()))
    if table.ndim != 2 or table.shape[0] != table.shape[1] or top >= len(table):
        raise InvalidInput(f"the confusion matrix must be ({top + 1}, {top + 1}) or more; got {table.shape}.")
    return _most_likely(table[people.labels, said], secret)


def white_box(tree: Any, people: People, secret: Secret) -> Integers:
    """Return the value of everyone's secret, from the tree and its number of training rows in each leaf;
    (n,).

    With all other columns known, one path agrees with each value.  If no value's path says y, the prior
    decides alone.

    Args:
        tree: a fitted ``DecisionTreeClassifier`` whose classes are integers.

    Raises:
        InvalidInput: for another model, or a tree of more than one output.
        MissingExtra: without scikit-learn.
    """
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("scikit-learn", "sklearn", "Inverting a decision tree") from None
    if not isinstance(tree, DecisionTreeClassifier) or tree.n_outputs_ != 1:
        raise InvalidInput(
            f"white_box takes a fitted DecisionTreeClassifier of one output; got {type(tree).__name__}. "
            "black_box takes any classifier."
        )
    tried = secret.tried(people.rows)
    v, n, d = tried.shape
    leaf = tree.apply(tried.reshape(v * n, d)).reshape(v, n)
    share = tree.tree_.n_node_samples / tree.tree_.n_node_samples[0]
    says = tree.classes_[tree.tree_.value[:, 0].argmax(axis=1)]
    return _most_likely(share[leaf] * (says[leaf] == people.labels), secret)


def impute(classifier: Classifier, public: People, people: People, secret: Secret) -> Integers:
    """The same attacker without the model: ``classifier`` learns the secret from the other columns and the
    label of the ``public`` people; of shape (n,)."""
    classifier.fit(_with_label(public, secret), secret.truth(public.rows))
    return np.asarray(classifier.predict(_with_label(people, secret)), dtype=np.int64)


@dataclass(frozen=True)
class AttributeResult:
    """Shares of people whose secret was guessed right: of members, of non-members, of members without the
    model; and the most frequent value's share of the members."""

    members: Interval
    non_members: Interval
    imputation: Interval
    majority: float

    def __str__(self) -> str:
        gap = self.members.value - self.non_members.value
        gain = self.members.value - self.imputation.value
        return (
            f"right for {self.members.value:.1%} of members, {self.non_members.value:.1%} of others "
            f"(a leak of {gap:+.1%}); without the model {self.imputation.value:.1%} (the model adds "
            f"{gain:+.1%}); always the most frequent value: {self.majority:.1%}"
        )


def judge_attribute(
    attack: Callable[[People], ArrayLike],
    secret: Secret,
    *,
    members: People,
    non_members: People,
    public: People,
    imputer: Classifier,
    confidence: float,
) -> AttributeResult:
    """Judge the attack on members and on others, compared with the same attacker's guesses without the model.

    Args:
        attack: people to their values' numbers (n,), such as a :func:`white_box` on the model.
        public: people of whom the attacker knows everything; they must be in neither of the other groups.
        imputer: the strongest classifier of the secret that you have: a weak one makes any attack look good.
    """
    truth = secret.truth(members.rows)

    def right(said: ArrayLike, group: People) -> Interval:
        hits = np.asarray(said) == secret.truth(group.rows)
        return clopper_pearson(int(hits.sum()), len(hits), confidence=confidence)

    return AttributeResult(
        right(attack(members), members),
        right(attack(non_members), non_members),
        right(impute(imputer, public, members, secret), members),
        float(np.bincount(truth).max() / len(truth)),
    )


def _most_likely(likelihood: Array, secret: Secret) -> Integers:
    """argmax_v Pr[v] likelihood[v], of (v, n); the prior alone where nothing is possible."""
    nothing = (likelihood <= 0.0).all(axis=0)
    weighed = secret.prior[:, None] * np.where(nothing, 1.0, likelihood)
    return np.asarray(weighed.argmax(axis=0))


def _with_label(people: People, secret: Secret) -> Array:
    return np.column_stack([secret.hidden(people.rows), people.labels])
