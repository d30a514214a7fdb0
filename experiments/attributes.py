"""Attribute inversion: a guess of a person's secret column from a model and all other columns.

The attacks are those of Fredrikson, Jha, Ristenpart, CCS 2015, section 4.  The attacker knows the other
columns x_K, the label y and the frequency of each value v, and guesses

    black box:  argmax_v Pr[v] Pr[y | f(v, x_K)]
    white box:  argmax_v Pr[v] Σ_i (n_i / N) [path i of the tree agrees with (v, x_K) and says y]

Statistics alone, without the model, give many right guesses.  So a result is compared with that of an
attacker without the model (imputation), and with that on people on whom the model was not trained.  Only the
difference between members and those people is what the model reveals about its members.

Letters: n people, d columns, v values, c classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.audits.scores import Interval, clopper_pearson
from tacit.errors import InvalidInput, MissingExtra

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Classifier(Protocol):
    """The interface of scikit-learn's classifiers."""

    def fit(self, X: Array, y: Integers) -> object:
        """Learn to predict classes (n,) from rows (n, d)."""

    def predict(self, X: Array) -> Any:
        """Predict classes (n,) of rows (n, d)."""


@final
@dataclass(frozen=True, eq=False)
class Secret:
    """The secret column.

    Attributes:
        columns: the positions of the secret in a row; several if it is one-hot encoded.
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
        """Return the index of each row's true value, (n,).

        Raises:
            InvalidInput: if a row has none of the values.
        """
        same = (rows[:, None, self.columns] == self.values).all(axis=2)  # (n, v)
        if not same.any(axis=1).all():
            raise InvalidInput(
                f"{int((~same.any(axis=1)).sum())} rows hold none of the declared values of the secret."
            )
        return np.asarray(same.argmax(axis=1))

    def tried(self, rows: Array) -> Array:
        """Return rows (n, d) with each value in turn, (v, n, d). The true value is not read."""
        found = np.repeat(rows[None], len(self.prior), axis=0)
        found[:, :, self.columns] = self.values[:, None]
        return found

    def hidden(self, rows: Array) -> Array:
        """Return the rows (n, d) without the secret, (n, d - columns)."""
        return np.delete(rows, self.columns, axis=1)


@final
@dataclass(frozen=True, eq=False)
class People:
    """Rows (n, d) and labels (n,), integers from 0.

    Raises:
        InvalidInput: if there are no rows, shapes do not fit, or a number is not finite.
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
    """Estimate Pr[y | the model predicts f] as a matrix (c, c), with row y and column f.

    Every count starts at one, so that no combination gets probability 0.

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
    """Guess the secret of each person from the model's predictions; return indices of values, (n,).

    Pr[v | y, x_K] is proportional to Pr[v] Pr[y | v, x_K].  The attacker estimates the last factor by the
    confusion matrix: the probability of label y if the model predicts f for (v, x_K).

    Args:
        predict: the model's function from rows (n, d) to classes (n,).
        matrix: of shape (c, c), from :func:`confusion` on people whose labels are public.

    Raises:
        InvalidInput: if a predicted class or a label is not in the matrix.
    """
    tried, table = secret.tried(people.rows), np.asarray(matrix, dtype=np.float64)
    v, n, d = tried.shape
    said = np.asarray(predict(tried.reshape(v * n, d))).reshape(v, n)
    top = max(int(said.max()), int(people.labels.max()))
    if table.ndim != 2 or table.shape[0] != table.shape[1] or top >= len(table):
        raise InvalidInput(f"the confusion matrix must be ({top + 1}, {top + 1}) or more; got {table.shape}.")
    return _most_likely(table[people.labels, said], secret)


def white_box(tree: Any, people: People, secret: Secret) -> Integers:
    """Guess each secret from the tree and its number of training rows per leaf; return value indices (n,).

    As all other columns are known, each value leads to one leaf.  If no such leaf predicts y, the prior alone
    decides.

    Args:
        tree: a fitted ``DecisionTreeClassifier`` whose classes are integers.

    Raises:
        InvalidInput: if the model is not such a tree, or has more than one output.
        MissingExtra: if scikit-learn is not installed.
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
    """Guess each secret without the model; return value indices (n,).

    ``classifier`` learns the secret from the other columns and the labels of ``public`` people."""
    classifier.fit(_with_label(public, secret), secret.truth(public.rows))
    return np.asarray(classifier.predict(_with_label(people, secret)), dtype=np.int64)


@dataclass(frozen=True)
class AttributeResult:
    """Shares of right guesses: for members, for non-members, and for members without the model.

    ``majority`` is the share of members with the most frequent value.
    """

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
    """Compare an attack on members with that on non-members, and with guesses without the model.

    Args:
        attack: a function from people to guessed value indices (n,), such as :func:`white_box` on a model.
        public: people about whom the attacker knows everything; they must be in neither of the other groups.
        imputer: the strongest classifier of the secret that you have, as a weak one makes any attack look
            good.
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
    """Return argmax_v Pr[v] likelihood[v], (n,), or argmax_v Pr[v] if all likelihoods are 0."""
    nothing = (likelihood <= 0.0).all(axis=0)
    weighed = secret.prior[:, None] * np.where(nothing, 1.0, likelihood)
    return np.asarray(weighed.argmax(axis=0))


def _with_label(people: People, secret: Secret) -> Array:
    return np.column_stack([secret.hidden(people.rows), people.labels])
