"""Estimators of scikit-learn that train by DP-SGD. Long: each argument is documented.

Both are thin: they make a :class:`tacit.plan.Plan` from the constructor's arguments, and a
:class:`tacit.training.PrivateSession` performs it.  The user declares what scikit-learn's own estimators read
from the data and what would leak: the classes and the range of every column.

Letters: n records; d columns; k classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, MissingExtra, check_real

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "a scikit-learn estimator") from None

from tacit.integrations.sklearn_declared import (
    bounds_of,
    class_numbers,
    class_weights,
    declared_classes,
    refusing_others,
    sample_weights,
    scaled,
)
from tacit.integrations.sklearn_fit import PrivateEstimator, cross_entropy, squared_error, train_model
from tacit.integrations.sklearn_rows import Rows, checked, outputs_of, records_of
from tacit.recipes import Recipe

__all__ = ["PrivateClassifier", "PrivateRegressor"]

Records: TypeAlias = ArrayLike | Mapping[str, Any]
"""An array (n, d), or a data frame: pandas, Polars, Arrow, or arrays (n,) by name; or what features takes."""


@refusing_others
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Logistic regression, or a perceptron with ``hidden`` layers, by DP-SGD; or least squares in one go.

    **Every call of fit is a new spend on the records that it is given.**  Cross-validation and grid search
    call it many times on overlapping records, and the costs add up: do them on public data, or on as many
    parts of the budget as there are fits.  Without a ledger they get a :class:`~tacit.errors.PrivacyWarning`,
    and each statement says what the fits so far cost together.  ``score`` on records that the model was
    trained on is exact, not private; keep it to yourself.  So is what a transformer that stands before this
    estimator in a pipeline reads from the data: ``StandardScaler`` or ``PCA`` are not covered by the
    statement.

    Args:
        epsilon, delta: the budget of one call of fit; the noise is calibrated to it.
        unit: what one row is: "person", "image".  The guarantee names it.
        adjacency: "add-remove", "replace-one" or "zero-out".
        records: the public figure for the number of records.  Needed under add-remove, where the true
            number is secret; under the other two the default is the number of rows, which is public.
        rows_per_user: for people with several rows, whose owners fit gets: how many rows of a person a step
            reads, to clip the mean of their gradients once.  ``records`` and ``batch_size`` count people.
        classes: the labels that may occur, (k,).  Needed: reading them from ``y`` would leak.
        columns: of a data frame, what is publicly known of each column, by name: a
            :class:`~tacit.columns.Column`, or a dict as in a run file's ``[columns.NAME]``.  Texts, dates,
            booleans and categories become features by these facts alone.
        bounds: in place of ``columns``, where all are numbers: the public range, one pair (low, high), an
            array (d, 2), or for a data frame a dict from each column to its pair.  Values outside are
            clamped, and the range is scaled to [-1, 1].  One of the two is needed, but for ``features`` of X
            as given.
        class_weight: a declared weight for each class, 1 for those that are left out.  It multiplies the
            loss of the records of that class, before clipping: far below 1 for a common class, as clipping
            takes back what a weight above 1 adds.
        threshold: of two classes, ``predict`` gives the second where its probability is at least this; it
            may be set after fit, at no cost.  Lower it where the second class is rare, by what is publicly
            known: chosen on the records it would tell about them.
        max_sample_weight: the largest weight of a record, public; needed for ``sample_weight`` in fit.
        normalise: bring each row to mean 0 and variance 1 by itself, at no cost.  Good for pictures and
            spectra, with columns of one kind; bad for tables of a few unlike columns.
        features: frozen features before the model, from public data or none.  Without ``bounds`` and
            ``columns`` any callable on X as it is given, such as texts or pictures, to (n, f) numbers:
            ``model.encode`` of sentence-transformers, or a module, which gets X as float32, bytes of
            pictures as [0, 1], and texts by its own ``tokens``.  They are computed once, in pieces, and each
            row is brought to mean 0 and length 1.  With ``bounds`` or ``columns`` a module from (n, d)
            values, scaled to [0, 1], to (n, f): with :class:`tacit.models.PictureFeatures` take
            clipping_norm=1.0 and learning_rate=0.3.
        head: "dp-sgd" trains in noisy steps; "least-squares" learns a linear model from one noisy release
            (:func:`tacit.training.least_squares_session`): no hidden layers, and no steps to choose.
        model: without hidden layers, "additive" gives each number ten bins beside itself, so that the model
            is a sum of one curve for each column; "linear" does not; "auto" takes the bins where records
            times epsilon is 1,500 or more, and none with ``normalise`` or ``features``.
        hidden: widths of hidden layers; none is logistic regression.
        activation: "tanh", "relu" or "tempered-sigmoid", between hidden layers.
        clipping_norm: bound on the norm of one record's gradient.
        batch_size: expected number of records per step (Poisson sampling).
        epochs, steps: at most one of them.
        learning_rate, momentum: of stochastic gradient descent.  What is left out of these is what
            :func:`tacit.recipes.linear_recipe` says, as for ``tacit train``; with hidden layers or features
            of scaled values 30 epochs, learning_rate 0.56 and clipping_norm 1.33.
        engine: "fast", or "reference" for the definition itself.
        physical_batch_size: most records in memory at once, or "auto"; it changes speed and memory only
            (:class:`tacit.training.PrivateSession`).
        verbose: write progress with the epsilon spent to the standard error stream.
        ledger: the file or database URL of a ledger; every call of fit is then one charge of the whole plan
            to the budget of ``dataset``, made before fit reads the rows.  None is a run without a ledger.
        dataset: the name of these records in the ledger.

    Attributes:
        classes_: the declared classes, sorted, (k,).
        n_features_in_, feature_names_in_: d, or f for features of X as given, and the names of the columns
            of a data frame.
        encoder_: the :class:`~tacit.columns.Encoder` of declared columns, whose ``features`` are the inputs
            of the model; None for an array.
        model_: the trained :class:`torch.nn.Module`, (n, f) inputs in [-1, 1] to (n, k) logits; on features
            of X as given their rows of length 1.
        plan_: the :class:`~tacit.plan.Plan` that was performed.
        epsilon_: what it cost at ``delta``: this call of fit alone, of however many a grid search makes.
        statement_: the privacy statement; ``print(statement_.to_text())``.
        curves_: of a linear model of declared columns or bounds, what it adds for each column: a list of
            curves with ``name``, ``x``, ``y`` (len(x), outputs), ``other``, ``missing`` and ``importance``,
            the highest less the lowest ``y``.  With ``intercept_`` they sum to the log odds of the second
            class; of three or more classes to the logit of each less their mean; of a regressor to the
            prediction before it is clamped.  The mean of each is 0, over its values or its range.  They are
            made of ``model_`` alone, at no cost.  Columns of an array are x0, x1 and so on.
        intercept_: the constant that the curves are added to, (outputs,).

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Classes, columns, bounds and class weights come from the arguments, never from the data.
    * A record's weight scales its gradient before clipping, so that its contribution keeps the same bound.
    * A row outside the bounds changes the model no more than one inside.
    * ``features`` that mix records, as far as a check on some of them sees, are refused.
    * With a ledger, no step is taken before the charge for all of them is committed.

    Raises:
        BudgetExceeded: from fit, where the plan does not fit what the ledger has left.
        InvalidInput: from fit, for a setting that is missing or out of range, or values that are not
            numbers.
        PrivacyRefusal: from fit, where the plan cannot be accounted for, or the data set in the ledger
            promises something else.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = PrivateClassifier(
    ...     epsilon=3.0, delta=1e-4, unit="image", adjacency="add-remove",
    ...     records=1797, classes=range(10), bounds=(0, 16), normalise=True,
    ... ).fit(X, y)
    >>> model.predict(X).shape, model.epsilon_ <= 3.0
    ((1797,), True)
    """

    classes: Sequence[Any] | NDArray[Any] | None = None
    class_weight: Mapping[Any, float] | None = None
    threshold: float = 0.5

    _of_networks = Recipe(batch_size=None, steps=30, learning_rate=0.56, momentum=0.9, clipping_norm=1.33)

    @property
    def _classes(self) -> int:
        return len(declared_classes(self.classes))

    def fit(
        self,
        X: Records,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        owners: ArrayLike | None = None,
    ) -> PrivateClassifier:
        """Train on records ``X`` (n, d) and labels ``y`` (n,); a new spend of epsilon on these records.

        What an earlier call of fit learned is forgotten, but not what it cost.

        Args:
            X: a data frame with the declared columns, or an array.
            y: labels, all of them declared in ``classes``.
            sample_weight: what each record's loss is multiplied by, (n,), clamped to ``max_sample_weight``.
                A weight is part of its record: one that was computed from other records, as those that
                balance classes are, is a release that the statement does not cover.
            owners: whose a row is, (n,) numbers or texts, where the estimator has ``rows_per_user``: what is
                protected is then a person with all rows (:class:`tacit.training.UserRecords`).
        """
        classes = declared_classes(self.classes)
        by_class = class_weights(self.class_weight, classes)
        inputs, labels = records_of(self, X, y, _labels)
        numbers = class_numbers(labels, classes)
        weights = sample_weights(sample_weight, self.max_sample_weight, len(numbers))
        if by_class is not None:
            weights = by_class[numbers] * (1.0 if weights is None else weights)
        rows = Rows(inputs, torch.from_numpy(numbers), weights, owners)
        train_model(self, rows, outputs=len(classes), loss=cross_entropy)
        self.classes_ = classes
        return self

    def predict_proba(self, X: Records) -> NDArray[np.float64]:
        """Probabilities (n, k) of the classes, in the order of ``classes_``; free, as post-processing."""
        probabilities: NDArray[np.float64] = outputs_of(self, X).softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: Records) -> NDArray[Any]:
        """The most probable class of each row of ``X`` (n, d), (n,); free, as post-processing."""
        threshold = check_real("threshold", self.threshold, low=0.0, high=1.0)
        if threshold == 0.5:
            numbers = outputs_of(self, X).argmax(dim=1).numpy()
        elif len(self.classes_) == 2:
            numbers = (self.predict_proba(X)[:, 1] >= threshold).astype(np.intp)
        else:
            raise InvalidInput(
                f"threshold needs two classes; this model has {len(self.classes_)}. Leave it at 0.5."
            )
        labels: NDArray[Any] = self.classes_[numbers]
        return labels

    def score(self, X: Records, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on ``X`` (n, d) and ``y`` (n,): exact, not private; keep it to yourself."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X)


@refusing_others
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Least squares by a linear model, or with ``hidden`` layers a perceptron, trained by DP-SGD.

    Arguments and warnings are those of :class:`PrivateClassifier`, with ``target_bounds`` in place of
    ``classes``: the public range (low, high) of what is predicted.  Targets outside are clamped, the range
    is scaled to [-1, 1] for training, and predictions are clamped to it.  With hidden layers, other
    defaults: clipping_norm 0.5 and learning_rate 0.1.  A linear model first learns mean and spread of the
    targets, privately, so that wide bounds cost little (:class:`tacit.models.additive.StandardLinear`).

    **Every call of fit is a new spend on the records that it is given**, and so is every fold of a
    cross-validation.

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Both bounds come from the arguments, never from the data.

    Raises:
        InvalidInput: from fit, for a setting that is missing or out of range, or values that are not
            numbers.
        PrivacyRefusal: from fit, where the plan cannot be accounted for.

    >>> X, y = np.random.default_rng(0).uniform(-1, 1, (500, 3)), np.zeros(500)
    >>> model = PrivateRegressor(
    ...     epsilon=1.0, delta=1e-4, unit="person", adjacency="replace-one", bounds=(-1, 1),
    ...     target_bounds=(0, 100),
    ... ).fit(X, y)
    >>> model.predict(X).shape
    (500,)
    """

    target_bounds: tuple[float, float] | None = None

    _of_networks = Recipe(batch_size=None, steps=30, learning_rate=0.1, momentum=0.9, clipping_norm=0.5)
    _classes = 1

    def fit(
        self,
        X: Records,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        owners: ArrayLike | None = None,
    ) -> PrivateRegressor:
        """Train on records ``X`` (n, d) and numbers ``y`` (n,); a new spend of epsilon on these records.

        What an earlier call of fit learned is forgotten, but not what it cost.  ``sample_weight`` and
        ``owners`` as in :meth:`PrivateClassifier.fit`.
        """
        low, high = bounds_of("target_bounds", self.target_bounds, 1)
        inputs, targets = records_of(self, X, y, _numbers)
        between = torch.from_numpy(scaled(targets[:, None], low, high))
        weights = sample_weights(sample_weight, self.max_sample_weight, len(between))
        train_model(self, Rows(inputs, between, weights, owners), outputs=1, loss=squared_error)
        return self

    def predict(self, X: Records) -> NDArray[np.float64]:
        """Predictions (n,) for ``X`` (n, d), within ``target_bounds``; free, as post-processing."""
        outputs = outputs_of(self, X).squeeze(1).clamp(-1.0, 1.0).numpy()
        low, high = bounds_of("target_bounds", self.target_bounds, 1)
        values: NDArray[np.float64] = low[0] + (outputs + 1) / 2 * (high[0] - low[0])
        return values

    def score(self, X: Records, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 on ``X`` (n, d) and ``y`` (n,): exact, not private; keep it to yourself."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X, y)


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    check_classification_targets(labels)
    return labels


def _numbers(targets: NDArray[Any]) -> NDArray[np.float64]:
    if targets.dtype.kind in "mM":
        raise InvalidInput("y holds dates or times; give numbers, such as days since a public day.")
    numbers = targets.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InvalidInput("y holds NaN or infinite values. Remove such records.")
    return numbers
