"""scikit-learn: a classifier and a regressor that are trained with differential privacy.

Both are thin: a :class:`tacit.plan.Plan` is made from the constructor's arguments and a
:class:`tacit.training.PrivateSession` performs it.  What scikit-learn's own estimators read from the data
and what would leak, the classes and the range of every column, is declared by the user instead.

Letters: n records; d columns; k classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from tacit.errors import InvalidInput, MissingExtra, check_real
from tacit.events import Adjacency
from tacit.integrations.cells import checked
from tacit.ledger import Ledger
from tacit.models import MLP, Logistic
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.report.statement.statement import Statement, make_statement
from tacit.training import PrivateSession, Row, StepCharges, train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "a scikit-learn estimator") from None

__all__ = ["PrivateClassifier", "PrivateRegressor"]

_DEFAULT_EPOCHS = 30.0
_ROWS = 10
_NOTES = (
    "a transformer that was fitted on the same records before this estimator is not covered",
    "other calls of fit on the same records, as in cross-validation, are not covered: their costs add up",
)


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression, or with ``hidden`` layers a perceptron, trained by DP-SGD.

    **Every call of fit is a new spend on the records that it is given.**  Cross-validation and grid search
    call it many times on overlapping records, and the costs add up: do them on public data, or on as many
    parts of the budget as there are fits.  ``score`` on records that the model was trained on is exact, not
    private; keep it to yourself.  So is what a transformer that stands before this estimator in a pipeline
    reads from the data: ``StandardScaler`` or ``PCA`` are not covered by the statement.

    Args:
        epsilon, delta: the budget of one call of fit; the noise is calibrated to it.
        unit: what one row is: "person", "image".  The guarantee speaks of this.
        adjacency: "add-remove", "replace-one" or "zero-out".
        records: the public figure for the number of records.  Needed under add-remove, where the true
            number is secret; under the other two the default is the number of rows, which is public.
        classes: the labels that may occur, (k,).  Needed: reading them from ``y`` would leak.
        bounds: the public range of the columns, one pair (low, high) or an array (d, 2).  Needed: values
            outside are clamped, and the range is scaled to [-1, 1].
        normalise: bring each row to mean 0 and variance 1 by itself, at no cost.  Good for pictures and
            spectra, whose columns are of one kind; bad for tables of a few unlike columns.
        hidden: widths of hidden layers; none is logistic regression.
        activation: "tanh", "relu" or "tempered-sigmoid", between hidden layers.
        clipping_norm: bound on the norm of one record's gradient.
        batch_size: expected number of records per step (Poisson sampling); None for all, in every step.
        epochs, steps: at most one of them; neither means 30 epochs.
        learning_rate, momentum: of stochastic gradient descent.  The defaults are those of the demo, chosen
            on public data.
        engine: "fast", or "reference" for the definition itself.
        physical_batch_size: most records in memory at once; a matter of speed and memory only.
        verbose: write progress with the epsilon spent to the standard error stream.
        ledger: the file or database URL of a ledger; every call of fit is then one charge of the whole plan
            to the budget of ``dataset``, made before the rows are touched.  None keeps no ledger.
        dataset: the name of these records in the ledger.

    Attributes:
        classes_: the declared classes, sorted, (k,).
        n_features_in_: d.
        model_: the trained :class:`torch.nn.Module`, (n, d) in [-1, 1] to (n, k) logits.
        plan_: the :class:`~tacit.plan.Plan` that was performed.
        epsilon_: what it cost at ``delta``.
        statement_: the privacy statement; ``print(statement_.to_text())``.

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Classes and bounds come from the arguments, never from the data.
    * A row outside the bounds moves the model no further than one inside.
    * With a ledger, no step is taken before the charge for all of them is committed.

    Raises:
        BudgetExceeded: from fit, where the ledger has not enough left for the plan.
        InvalidInput: from fit, for a setting that is missing or makes no sense, or values that are not
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

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        unit: str,
        adjacency: Adjacency | str,
        records: int | None = None,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        bounds: ArrayLike | None = None,
        normalise: bool = False,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        clipping_norm: float = 1.33,
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        learning_rate: float = 0.56,
        momentum: float = 0.9,
        engine: str = "fast",
        physical_batch_size: int = 2048,
        verbose: bool = False,
        ledger: str | None = None,
        dataset: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.adjacency = adjacency
        self.records = records
        self.classes = classes
        self.bounds = bounds
        self.normalise = normalise
        self.hidden = hidden
        self.activation = activation
        self.clipping_norm = clipping_norm
        self.batch_size = batch_size
        self.epochs = epochs
        self.steps = steps
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.engine = engine
        self.physical_batch_size = physical_batch_size
        self.verbose = verbose
        self.ledger = ledger
        self.dataset = dataset

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateClassifier:
        """Train on ``X`` (n, d) and labels ``y`` (n,); a new spend of epsilon on these records.

        What an earlier call of fit learned is forgotten, but not what it cost.
        """

        def check() -> tuple[NDArray[np.float64], NDArray[Any]]:
            values, labels = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
            check_classification_targets(labels)
            return values, labels

        values, labels = checked(check, X)
        classes = _declared_classes(self.classes)
        numbers = _class_numbers(labels, classes)
        _train(self, values, torch.from_numpy(numbers), outputs=len(classes), loss=_cross_entropy)
        self.classes_ = classes
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities (n, k) of the classes, in the order of ``classes_``; free, as post-processing."""
        probabilities: NDArray[np.float64] = _outputs(self, X).softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row of ``X`` (n, d), (n,); free, as post-processing."""
        numbers = _outputs(self, X).argmax(dim=1).numpy()
        found: NDArray[Any] = self.classes_[numbers]
        return found

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on ``X`` (n, d) and ``y`` (n,): exact, not private; keep it to yourself."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn is told: two calls of fit differ, because the noise is fresh in each."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivateRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Least squares by a linear model, or with ``hidden`` layers a perceptron, trained by DP-SGD.

    Arguments and warnings are those of :class:`PrivateClassifier`, with ``target_bounds`` in place of
    ``classes``: the public range (low, high) of what is predicted.  Targets outside are clamped, the range
    is scaled to [-1, 1] for training, and predictions are clamped to it.  Other defaults: clipping_norm 0.5
    and learning_rate 0.1, chosen on scikit-learn's diabetes data.

    **Every call of fit is a new spend on the records that it is given**, and so is every fold of a
    cross-validation.

    **Guarantee**

    * ``model_``, and so all predictions, is (``epsilon_``, ``delta``)-DP with respect to the rows given to
      one call of fit, as ``statement_`` says.
    * Both bounds come from the arguments, never from the data.

    Raises:
        InvalidInput: from fit, for a setting that is missing or makes no sense, or values that are not
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

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        unit: str,
        adjacency: Adjacency | str,
        records: int | None = None,
        bounds: ArrayLike | None = None,
        target_bounds: tuple[float, float] | None = None,
        normalise: bool = False,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        clipping_norm: float = 0.5,
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        engine: str = "fast",
        physical_batch_size: int = 2048,
        verbose: bool = False,
        ledger: str | None = None,
        dataset: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.adjacency = adjacency
        self.records = records
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.normalise = normalise
        self.hidden = hidden
        self.activation = activation
        self.clipping_norm = clipping_norm
        self.batch_size = batch_size
        self.epochs = epochs
        self.steps = steps
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.engine = engine
        self.physical_batch_size = physical_batch_size
        self.verbose = verbose
        self.ledger = ledger
        self.dataset = dataset

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateRegressor:
        """Train on ``X`` (n, d) and numbers ``y`` (n,); a new spend of epsilon on these records.

        What an earlier call of fit learned is forgotten, but not what it cost.
        """

        def check() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            values, targets = validate_data(
                self, X, y, dtype=np.float64, ensure_all_finite=False, y_numeric=True
            )
            return values, targets.astype(np.float64)

        values, targets = checked(check, X, y)
        low, high = _bounds("target_bounds", self.target_bounds, 1)
        scaled = _scaled(targets[:, None], low, high)
        _train(self, values, torch.from_numpy(scaled), outputs=1, loss=_squared_error)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predictions (n,) for ``X`` (n, d), within ``target_bounds``; free, as post-processing."""
        outputs = _outputs(self, X).squeeze(1).clamp(-1.0, 1.0).numpy()
        low, high = _bounds("target_bounds", self.target_bounds, 1)
        found: NDArray[np.float64] = low[0] + (outputs + 1) / 2 * (high[0] - low[0])
        return found

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 on ``X`` (n, d) and ``y`` (n,): exact, not private; keep it to yourself."""
        score = super().score
        return checked(lambda: float(score(X, y, sample_weight)), X, y)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn is told: two calls of fit differ, because the noise is fresh in each."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def _cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def _squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    errors: Tensor = (model(inputs) - targets).square().squeeze(1)
    return errors


def _train(
    estimator: PrivateClassifier | PrivateRegressor,
    values: NDArray[np.float64],
    targets: Tensor,
    *,
    outputs: int,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> None:
    """Train on raw ``values`` (n, d); set the attributes that end in an underscore."""
    plan = _plan(estimator, len(values))
    inputs = _inputs(estimator, values)
    generator = Generator.from_os()
    model = _model(estimator, inputs.shape[1], outputs, generator)
    rate = check_real("learning_rate", estimator.learning_rate, low=0.0, open_low=True)
    momentum = check_real("momentum", estimator.momentum, low=0.0, high=1.0, open_high=True)
    with _charged(estimator, plan, generator) as charges:
        session = PrivateSession(
            model,
            torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum),
            (inputs, targets if outputs > 1 else targets.float()),
            plan,
            loss=loss,
            engine=estimator.engine,
            physical_batch_size=estimator.physical_batch_size,
            charges=charges,
            generator=generator,
        )
        if estimator.verbose:
            train(session, rows=_ROWS, watchers=(_Progress(plan.steps),))
        else:
            for batch in session.batches():
                session.step(batch)
        statement = _statement(session, inputs.shape[1], model)
    # The session goes, and with it the key of the noise: a pickled estimator may be released.
    estimator.model_, estimator.plan_ = model, plan
    estimator.statement_, estimator.epsilon_ = statement, statement.epsilon


@contextmanager
def _charged(
    estimator: PrivateClassifier | PrivateRegressor, plan: Plan, generator: Generator
) -> Iterator[StepCharges | None]:
    """One charge of the whole plan: a fit that is cut short leaves nothing to go on with."""
    if (estimator.ledger is None) != (estimator.dataset is None):
        raise InvalidInput(
            f"ledger and dataset go together, the ledger and the name of the records in it; got ledger="
            f"{estimator.ledger!r} and dataset={estimator.dataset!r}. Give both, or neither."
        )
    if estimator.ledger is None or estimator.dataset is None:
        yield None
        return
    with closing(Ledger.open(estimator.ledger)) as ledger:
        yield StepCharges(ledger, estimator.dataset, plan, chunk=plan.steps, generator=generator)


def _plan(estimator: PrivateClassifier | PrivateRegressor, rows: int) -> Plan:
    adjacency = Adjacency.parse(estimator.adjacency)
    records = estimator.records
    if records is None:
        if adjacency is Adjacency.ADD_REMOVE:
            raise InvalidInput(
                "records is missing: under add-remove the number of rows of X is a secret, and reading it "
                f"would leak whether one {estimator.unit} is there. Give a public figure for it, such as "
                'records=1000, or choose adjacency="replace-one", under which the number is public.'
            )
        records = rows
    unset = estimator.epochs is None and estimator.steps is None
    return Plan.calibrate(
        epsilon=estimator.epsilon,
        delta=estimator.delta,
        records=records,
        clipping=estimator.clipping_norm,
        adjacency=adjacency,
        unit=estimator.unit,
        batch_size=estimator.batch_size,
        epochs=_DEFAULT_EPOCHS if unset else estimator.epochs,
        steps=estimator.steps,
    )


def _model(
    estimator: PrivateClassifier | PrivateRegressor, columns: int, outputs: int, generator: Generator
) -> nn.Module:
    """(n, d) to (n, outputs); a linear one starts at zero, others at weights from the run's own key."""
    try:
        hidden = tuple(estimator.hidden)
    except TypeError:
        raise InvalidInput(
            f"hidden must be a sequence of widths, such as (64,); got {estimator.hidden!r}."
        ) from None
    if not hidden:
        return Logistic(columns, outputs, normalise=estimator.normalise)
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = MLP(columns, outputs, hidden=hidden, activation=estimator.activation)
    if not estimator.normalise:
        return network
    return nn.Sequential(nn.LayerNorm(columns, elementwise_affine=False), network)


def _statement(session: PrivateSession, columns: int, model: nn.Module) -> Statement:
    parameters = sum(p.numel() for p in model.parameters())
    return make_statement(
        session.plan,
        steps_done=session.steps_done,
        randomness=session.randomness,
        private=session.private,
        data_source=f"arrays with {columns} columns, clamped to declared bounds and scaled to [-1, 1]",
        model=f"{type(model).__name__}, {parameters:,} parameters",
        notes=_NOTES,
        ledger=None if session.charges is None else session.charges.so_far(),
    )


def _inputs(estimator: PrivateClassifier | PrivateRegressor, values: NDArray[np.float64]) -> Tensor:
    """(n, d) raw values to (n, d) float32 in [-1, 1], by the declared bounds."""
    if not np.isfinite(values).all():
        raise InvalidInput(
            "X holds NaN or infinite values (inf), which no bound can clamp. Remove such records, or fill "
            "them by a fixed rule such as SimpleImputer(strategy='constant'); a mean or median of the data "
            "would leak."
        )
    low, high = _bounds("bounds", estimator.bounds, values.shape[1])
    return torch.from_numpy(_scaled(values, low, high))


def _outputs(estimator: PrivateClassifier | PrivateRegressor, X: ArrayLike) -> Tensor:
    """(n, d) raw values to the (n, outputs) float64 outputs of the trained model."""
    check_is_fitted(estimator)
    values: NDArray[np.float64] = checked(
        lambda: validate_data(estimator, X, reset=False, dtype=np.float64, ensure_all_finite=False), X
    )
    inputs = _inputs(estimator, values)
    with torch.no_grad():
        outputs: Tensor = estimator.model_(inputs).double()
    return outputs


def _scaled(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Clamp (n, d) to [low, high], (d,) each, and scale that to [-1, 1]."""
    clamped = np.clip(values, low, high)
    return ((clamped - low) / (high - low) * 2 - 1).astype(np.float32)


def _bounds(
    name: str, bounds: ArrayLike | None, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A pair (2,) or an array (d, 2) to lower and upper bounds, (d,) each."""
    if bounds is None:
        raise InvalidInput(
            f"{name} is missing: the range of the values must be a public figure, because a range that is "
            "read from the data leaks the extreme records exactly. Give the range that anyone who knows the "
            f"quantity would declare, such as {name}=(0, 16), wide enough for nearly all values; what lies "
            "outside is clamped."
        )
    try:
        pairs = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must hold numbers; got {bounds!r}.") from None
    if pairs.shape not in ((2,), (columns, 2)):
        wanted = "one pair (low, high)" + (f" or an array ({columns}, 2)" if name == "bounds" else "")
        raise InvalidInput(f"{name} must be {wanted}; got shape {pairs.shape}.")
    low, high = np.broadcast_to(pairs, (columns, 2)).T
    if not (np.isfinite(pairs).all() and (low < high).all()):
        raise InvalidInput(f"{name} must be finite numbers with low < high; got {pairs.tolist()}.")
    return low, high


def _declared_classes(classes: Sequence[Any] | NDArray[Any] | None) -> NDArray[Any]:
    """The declared classes, sorted, (k,)."""
    if classes is None:
        raise InvalidInput(
            "classes is missing: the labels that may occur must be declared, because a class that is read "
            "from y tells that a record of that class is there. Give all that are possible, such as "
            "classes=[0, 1] or classes=range(10)."
        )
    given = np.asarray(list(classes))
    found = np.unique(given)
    if given.ndim != 1 or len(found) != len(given) or len(found) < 2:
        raise InvalidInput(f"classes must be two or more different labels; got {classes!r}.")
    return found


def _class_numbers(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) labels to (n,) positions in ``classes``."""
    positions = {label: position for position, label in enumerate(classes.tolist())}
    found = np.array([positions.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (found < 0).any():
        raise InvalidInput(
            f"y holds labels that are not among the declared classes {classes.tolist()}. Declare every "
            "label that may occur, or remove such records by a rule that does not look at the others."
        )
    return found


@dataclass(frozen=True)
class _Progress:
    """Steps and epsilon on one line of the standard error stream."""

    steps: int

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: there are ten lines in all."""

    def on_row(self, row: Row) -> None:
        """Write the position."""
        end = "\n" if row.steps == self.steps else ""
        sys.stderr.write(f"\rstep {row.steps} of {self.steps}, ε ≤ {row.epsilon:.4g}{end}")
        sys.stderr.flush()
