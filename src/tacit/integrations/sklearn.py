"""scikit-learn estimators that train by DP-SGD.

They make a :class:`tacit.plan.Plan` from the constructor's arguments, and train by a
:class:`tacit.training.PrivateSession`.  You declare the classes and the range of every column: reading them
from the data, as scikit-learn does, would leak.

Letters: n records; d columns; k classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tacit.columns import Column
from tacit.errors import InvalidInput, MissingExtra, check_in, check_real

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "a scikit-learn estimator") from None

from tacit.integrations.sklearn_fit import PrivateEstimator, cross_entropy, squared_error, train_model
from tacit.integrations.sklearn_records import (
    Rows,
    bounds_of,
    check_unit,
    checked,
    class_numbers,
    class_weights,
    declared_classes,
    outputs_of,
    records_of,
    refuse_ends,
    refuse_unknown_arguments,
    sample_weights,
    scaled,
    times_and_events,
)
from tacit.integrations.sklearn_tables import column_of_classes, fit_table, is_table
from tacit.models.survival import LinearHazard, mean_time, survival_loss, survival_of
from tacit.recipes import Recipe, hazard_recipe
from tacit.training.evaluation import evaluate
from tacit.training.groups import by_group
from tacit.training.survival import concordance

if TYPE_CHECKING:
    from tacit.queries.engines import Engine

__all__ = ["PrivateClassifier", "PrivateRegressor", "PrivateSurvival"]

Records: TypeAlias = ArrayLike | Mapping[str, Any]
"""An array (n, d); a frame of pandas, Polars or Arrow; a dict of arrays (n,); or input of ``features``."""


@refuse_unknown_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A classifier with differential privacy: logistic regression, or a network with ``hidden`` layers.

    It trains by DP-SGD, or by least squares on one noisy release (``head``).

    **Every call of fit spends budget on its records again.** Cross-validation and grid search call fit many
    times on overlapping records, and the costs add up: search on public data, or divide the budget by the
    number of fits. Without a ledger, a search gets a :class:`~tacit.errors.PrivacyWarning`, and each
    statement gives the total cost so far.

    Do not publish ``score`` on the training records: it has no noise, and the privacy statement does not
    cover it. The statement also does not cover earlier steps of a pipeline, such as ``StandardScaler`` or
    ``PCA``.

    Args:
        epsilon, delta: the privacy budget of one call of fit.
        unit: what one row describes and the guarantee protects, such as "person" or "image".
        adjacency: "add-remove", "replace-one" or "zero-out".
        records: a public estimate of the number of records. Required under "add-remove", which keeps the true
            number secret. Otherwise the true number is public, and is the default.
        rows_per_user: if people have several rows, the number of rows that a step reads of each person. The
            step clips the mean gradient of these rows. Requires ``owners`` in fit; ``records`` and
            ``batch_size`` then count people.
        one_record_per_unit: set this to True to state that no unit has two rows. Required if X has a column
            that seems to identify units and repeats values, such as ``patient_id`` for the unit "patient".
        classes: the possible labels, (k,). Required, because reading them from ``y`` would leak.
        columns: the public facts about each column of a data frame, which decide how cells become features: a
            dict from each name to a :class:`~tacit.columns.Column`, or to a dict as in a run file's
            ``[columns.NAME]``.
        bounds: the public range of the values, to which they are clamped. Use it instead of ``columns`` if
            all values are numbers: one pair (low, high), an array (d, 2), or a dict from each column of a
            data frame to its pair. The model gets the values scaled to [-1, 1]. Without ``columns`` and
            ``bounds``, you need ``features``.
        class_weight: one weight for each class, 1 by default, which you choose without looking at the
            records. It multiplies the loss before clipping, which undoes most of a weight above 1. So to
            balance classes, give a common class a weight far below 1.
        threshold: for two classes, the least probability of the second class for which ``predict`` returns
            it. You can change it after fit, at no cost. Choose it from public knowledge, because a threshold
            chosen on the records leaks.
        max_sample_weight: the largest weight that a record can have, a public number. Required if you pass
            ``sample_weight`` to fit.
        normalise: whether to scale each row to mean 0 and variance 1, at no cost. This suits images and
            spectra, and harms tables with a few different columns.
        features: a frozen feature extractor before the model, trained on public data or not at all. Any
            callable will do, such as ``model.encode`` of sentence-transformers. Without ``bounds`` and
            ``columns``, it gets X unchanged, such as texts or images. It returns (n, f) numbers, and each row
            is scaled to mean 0 and length 1. A torch module gets float32 numbers: bytes are scaled to [0, 1],
            and its ``tokens`` method converts texts. With ``bounds`` or ``columns``, ``features`` must be a
            module from (n, d) values in [0, 1] to (n, f) features. With
            :class:`tacit.models.PictureFeatures`, also pass clipping_norm=1.0 and learning_rate=0.3.
        head: "dp-sgd" trains in noisy steps. "least-squares" learns a linear model from one noisy release
            (:func:`tacit.training.least_squares_session`). The table may then stay in a database or in files;
            see :meth:`fit`.
        model: the kind of model without hidden layers. "linear" has one weight per number. "additive" also
            sorts each number into one of ten bins, so that the model is a sum of one curve per column. "auto"
            chooses "additive" if there are at least 230 + 300 / epsilon records per numeric column, but never
            with ``normalise`` or ``features``.
        hidden: the widths of the hidden layers. Default: (), logistic regression.
        activation: "tanh", "relu" or "tempered-sigmoid", between hidden layers.
        clipping_norm: the largest norm of one record's gradient.
        batch_size: the expected number of records per step.
        sampling: "poisson", or "epochs" to use each record once per epoch, in a random batch. "epochs" needs
            ``batch_size`` and a whole number of epochs.
        epochs, steps: the length of training; give at most one of them.
        learning_rate, momentum: the settings of SGD. :func:`tacit.recipes.linear_recipe` computes the
            defaults of these two and of ``clipping_norm``, ``batch_size`` and ``steps``. With hidden layers,
            or with both ``features`` and ``bounds`` or ``columns``, the defaults are 30 epochs, learning_rate
            0.56 and clipping_norm 1.33.
        engine: "fast", or "reference" for a loop over records.
        physical_batch_size: the most records in memory at once, or "auto". It affects only speed and memory.
        verbose: whether to print progress and the epsilon spent (to stderr).
        ledger: the file or database URL of a ledger. Each call of fit charges the whole plan to the budget of
            ``dataset`` before it reads the rows.
        dataset: the name of these records in the ledger.

    Attributes:
        classes_: the declared classes, sorted, (k,).
        n_features_in_: the number of columns d; or f, if ``features`` gets X unchanged.
        feature_names_in_: the column names of a data frame.
        encoder_: the :class:`~tacit.columns.Encoder` of declared ``columns``, with the names of the model's
            inputs in ``features``; None without ``columns``.
        model_: the trained :class:`torch.nn.Module`, from inputs (n, f) to logits (n, k). Inputs are values
            in [-1, 1]; or rows of length 1, if ``features`` gets X unchanged.
        plan_: the :class:`~tacit.plan.Plan` of the fit.
        epsilon_: the epsilon at ``delta`` of this call of fit alone.
        statement_: the privacy statement; ``print(statement_.to_text())`` shows it.
        curves_: for a linear model with ``columns`` or ``bounds``, what each column adds to the prediction.
            Each item of this list has ``name`` (x0, x1, ... for an array), ``x``, ``y`` (len(x), outputs),
            ``other``, ``missing`` and ``importance``, the highest ``y`` minus the lowest. All curves and
            ``intercept_`` add up to the log odds of the second class; for more classes, to each logit minus
            the mean logit; for a regressor, to the prediction before clamping. Each curve has mean 0 over the
            values or the range of its column. They cost no budget.
        intercept_: the constant of the model, (outputs,).

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Classes, columns, bounds and class weights come from the arguments, never from the data.
    * A record's weight scales its gradient before clipping, so that its contribution keeps the same bound.
    * A row outside the bounds can change the model no more than a row inside them.
    * ``features`` that mix records raise an error if a check on some records detects the mixing.
    * With a ledger, training takes no step before the charge for all steps is committed.

    Raises:
        BudgetExceeded: from fit, if the plan costs more than the ledger has left.
        InvalidInput: from fit, if a setting is missing or out of range, or values are not numbers.
        PrivacyRefusal: from fit, if the plan has no proven bound or contradicts the ledger's policy, or if a
            unit seems to have several rows.

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
        X: Records | PathLike[str] | Engine,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        owners: ArrayLike | None = None,
    ) -> PrivateClassifier:
        """Train on records ``X`` (n, d) and labels ``y`` (n,); this spends epsilon on these records again.

        The new model replaces that of an earlier call of fit, but the costs of both calls add up.

        Args:
            X: a data frame with the declared columns, an array, or the input of ``features``. For
                head="least-squares", also a table that stays in a database or in files: an engine of
                :mod:`tacit.queries.engines`, or the path of a file or of a folder of Parquet files.
            y: the labels, all declared in ``classes``. For a table in a database or in files, the name of the
                column with the labels.
            sample_weight: one weight for each record's loss, (n,), clamped to ``max_sample_weight``. The
                statement does not cover weights that are computed from other records, such as balanced
                weights.
            owners: the person of each row, (n,) numbers or strings. Requires ``rows_per_user``. The unit of
                privacy is then a person with all their rows (:class:`tacit.training.UserRecords`). For a
                table in a database or in files, pass the name of the column that names the person, without
                ``rows_per_user``. Each person then counts by the mean of their rows.
        """
        classes = declared_classes(self.classes)
        if is_table(X):
            used = {"sample_weight": sample_weight, "class_weight": self.class_weight}
            fit_table(self, X, y, owners, column_of_classes(classes), _given(used))
            self.classes_ = classes
            return self
        by_class = class_weights(self.class_weight, classes)
        check_unit(self, X, owners)
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
        """Return the class probabilities (n, k), in the order of ``classes_``.  This costs no budget."""
        probabilities: NDArray[np.float64] = outputs_of(self, X).softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: Records) -> NDArray[Any]:
        """Return the most probable class (n,) of each row of ``X`` (n, d).  This costs no budget."""
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

    def score_by_group(
        self, X: Records, y: ArrayLike, by: str, bands: Sequence[float] = ()
    ) -> dict[str, Any]:
        """Return how well the model does in each group of records, without noise.

        The figures are exact, so they are not private: pass test records that no budget protects. With two
        classes, they are for a threshold of one half, not for ``threshold``.

        Args:
            X, y: the test records, a data frame with the declared ``columns``, and their labels.
            by: the name of a declared column; each of its values is a group.
            bands: for a column of numbers, the edges between the groups, in increasing order.

        Returns:
            The figures of each group, and sentences on them, as :func:`tacit.training.by_group` returns them.

        Raises:
            InvalidInput: if the column or a label is not declared, or if the bands do not fit the column.
        """
        outputs, numbers = outputs_of(self, X), class_numbers(np.asarray(y), self.classes_)
        if self.encoder_ is None:
            raise InvalidInput("scores by group need declared columns. Fit the estimator with columns.")
        groups = {by: self.encoder_.groups(self.encoder_.frame(X), by, bands)}
        return by_group(evaluate(torch.nn.Identity(), outputs.float(), torch.from_numpy(numbers)), groups)

    def score(self, X: Records, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the exact accuracy on ``X`` (n, d) and ``y`` (n,).  Not private: do not publish it."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X)


@refuse_unknown_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor with differential privacy: a linear model, or a network with ``hidden`` layers.

    It minimises squared errors by DP-SGD. The arguments and warnings are those of :class:`PrivateClassifier`,
    but ``target_bounds`` replaces ``classes``, ``class_weight`` and ``threshold``. ``target_bounds`` is the
    public range (low, high) of the targets; targets and predictions are clamped to it. Wide bounds cost a
    linear model little accuracy, because it first learns the mean and the spread of the targets privately
    (:class:`tacit.models.additive.StandardLinear`). With hidden layers, the defaults are clipping_norm 0.5
    and learning_rate 0.1.

    **Every call of fit spends budget on its records again**, and so does every fold of a cross-validation.

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Columns, ``bounds`` and ``target_bounds`` come from the arguments, never from the data.

    Raises:
        InvalidInput: from fit, if a setting is missing or out of range, or values are not numbers.
        PrivacyRefusal: from fit, if the plan has no proven guarantee.

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
        X: Records | PathLike[str] | Engine,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        owners: ArrayLike | None = None,
    ) -> PrivateRegressor:
        """Train on records ``X`` (n, d) and numbers ``y`` (n,); this spends epsilon on these records again.

        For ``sample_weight``, ``owners`` and tables in a database or in files, see
        :meth:`PrivateClassifier.fit`.
        """
        low, high = bounds_of("target_bounds", self.target_bounds, 1)
        if is_table(X):
            target = Column(kind="number", lower=float(low[0]), upper=float(high[0]))
            fit_table(self, X, y, owners, target, _given({"sample_weight": sample_weight}))
            return self
        check_unit(self, X, owners)
        inputs, targets = records_of(self, X, y, _numbers)
        between = torch.from_numpy(scaled(targets[:, None], low, high))
        weights = sample_weights(sample_weight, self.max_sample_weight, len(between))
        train_model(self, Rows(inputs, between, weights, owners), outputs=1, loss=squared_error)
        return self

    def predict(self, X: Records) -> NDArray[np.float64]:
        """Return predictions (n,) for ``X`` (n, d), clamped to ``target_bounds``.  This costs no budget."""
        outputs = outputs_of(self, X).squeeze(1).clamp(-1.0, 1.0).numpy()
        low, high = bounds_of("target_bounds", self.target_bounds, 1)
        values: NDArray[np.float64] = low[0] + (outputs + 1) / 2 * (high[0] - low[0])
        return values

    def score(self, X: Records, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the exact R^2 on ``X`` (n, d) and ``y`` (n,).  Not private: do not publish it."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X, y)


@refuse_unknown_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSurvival(PrivateEstimator):
    """A survival model with differential privacy, which predicts when an event happens.

    The time is cut into bins. For each bin, the model predicts the hazard: the probability of the event
    there, if it has not happened before. It trains by DP-SGD on the likelihood of the hazards. The arguments
    and warnings are those of :class:`PrivateClassifier`, but ``time_bounds`` and ``time_bins`` replace
    ``classes``, ``class_weight`` and ``threshold``.  Without hidden layers, a column has the same effect in
    all bins (:class:`tacit.models.survival.LinearHazard`).

    **Every call of fit spends budget on its records again**, and so does every fold of a cross-validation.

    Args:
        time_bounds: the public range (low, high) of the times. A later event counts as no event.
        time_bins: the number K of time bins of equal width; or the K - 1 edges between the bins.
        model: "linear" (default) or "additive".

    Attributes:
        time_edges_: the edges of the bins, with both bounds, (K + 1,).

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Columns, bounds and bins come from the arguments, never from the data.

    Raises:
        InvalidInput: from fit, if a setting is missing or out of range, times are negative or missing, or
            ``X`` contains the time or the event.
        PrivacyRefusal: from fit, if the plan has no proven guarantee.

    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 3))
    >>> y = np.array([(True, days) for days in range(500)], dtype=[("event", bool), ("time", float)])
    >>> model = PrivateSurvival(
    ...     epsilon=1.0, delta=1e-4, unit="person", adjacency="replace-one", bounds=(-1, 1),
    ...     time_bounds=(0, 400), time_bins=8,
    ... ).fit(X, y)
    >>> model.predict_survival(X).shape, model.predict_mean_time(X).shape
    ((500, 8), (500,))
    """

    time_bounds: tuple[float, float] | None = None
    time_bins: int | Sequence[float] = 20
    model: str = "linear"

    _of_networks = Recipe(batch_size=None, steps=30, learning_rate=0.56, momentum=0.9, clipping_norm=3.0)
    _classes = 1
    _linear = LinearHazard

    def _of_linear(self, records: int, longest: float) -> Recipe:
        return hazard_recipe(records, self.epsilon, longest=longest)

    def fit(self, X: Records, y: ArrayLike, owners: ArrayLike | None = None) -> PrivateSurvival:
        """Train on records ``X`` (n, d) and targets ``y`` (n,); this spends epsilon on these records again.

        Args:
            X: a data frame with the declared columns, an array, or the input of ``features``.
            y: a structured array with two fields, as from scikit-survival's ``Surv``: the event, true or
                false, and the time until the event or the end of observation.
            owners: see :meth:`PrivateClassifier.fit`.
        """
        check_in("head", self.head, ("dp-sgd",))
        (low,), (high,) = (each.tolist() for each in bounds_of("time_bounds", self.time_bounds, 1))
        bins = np.asarray(self.time_bins).tolist()
        edges = (low, *Column(kind="number", lower=low, upper=high, bins=bins).edges, high)
        times, events = times_and_events(y, low)
        refuse_ends(X, y, times)
        check_unit(self, X, owners)
        inputs, _ = records_of(self, X, times, _numbers)
        ends = np.stack([times.clip(max=high), events & (times <= high)], axis=1)
        rows = Rows(inputs, torch.from_numpy(ends).float(), None, owners)
        train_model(self, rows, outputs=len(edges) - 1, loss=survival_loss(edges))
        self.time_edges_ = np.array(edges)
        return self

    def predict(self, X: Records) -> NDArray[np.float64]:
        """Return a risk score (n,) for ``X`` (n, d): the larger, the sooner the event.

        As in scikit-survival, the score is not a time. It is minus :meth:`predict_mean_time`.
        """
        return -self.predict_mean_time(X)

    def predict_survival(self, X: Records) -> NDArray[np.float64]:
        """Return the probabilities (n, K) that no event has happened by the end of each of the K bins."""
        curves: NDArray[np.float64] = survival_of(outputs_of(self, X)).numpy()
        return curves

    def predict_mean_time(self, X: Records) -> NDArray[np.float64]:
        """Return the mean time (n,) until the event or the end of ``time_bounds``, whichever is first."""
        times = mean_time(survival_of(outputs_of(self, X)), self.time_edges_.tolist())
        mean: NDArray[np.float64] = times.numpy()
        return mean

    def score(self, X: Records, y: ArrayLike) -> float:
        """Return the exact concordance on ``X`` and ``y``.  Not private: do not publish it."""
        times, events = times_and_events(y, -np.inf)
        if not len(times):
            raise InvalidInput("X is empty. Give at least one record to score.")
        last = self.time_edges_[-1]
        return concordance(times.clip(max=last), events & (times <= last), self.predict(X).round(9))


def _given(arguments: Mapping[str, object]) -> list[str]:
    return [name for name, value in arguments.items() if value is not None]


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    check_classification_targets(labels)
    return labels


def _numbers(targets: NDArray[Any]) -> NDArray[np.float64]:
    if targets.dtype.kind in "mM":
        raise InvalidInput("y contains dates or times. Give numbers, such as days since a public day.")
    numbers = targets.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InvalidInput("y contains NaN or infinite values. Remove such records.")
    return numbers
