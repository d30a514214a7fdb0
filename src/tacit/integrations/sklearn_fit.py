"""One call of fit: plan, charge, session, statement, curves, and notes on searches.

Letters: n records; d columns; f features; k classes.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput, PrivacyWarning, check_in, check_integer, check_real
from tacit.events import Adjacency
from tacit.integrations.sklearn_records import Given, Rows, bounds_of, front_of, name_of, takes_given
from tacit.ledger import Ledger
from tacit.models import MLP, Logistic
from tacit.models.additive import (
    AdditiveModel,
    Binned,
    Calibrated,
    Curve,
    InPhases,
    LinearModel,
    StandardLinear,
    released,
    standard_loss,
)
from tacit.models.survival import LinearHazard
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.recipes import Recipe, linear_recipe
from tacit.report.statement import Statement, make_statement
from tacit.rounding import round_up
from tacit.training import (
    PrivateSession,
    StepCharges,
    least_squares_session,
    solve_least_squares,
    train,
)
from tacit.training.loop import MetricsRow

_MANY = (
    "sklearn.calibration", "sklearn.ensemble", "sklearn.feature_selection", "sklearn.inspection",
    "sklearn.model_selection", "sklearn.multiclass", "sklearn.multioutput", "sklearn.semi_supervised",
)  # fmt: skip
_ONE = ("FixedThresholdClassifier",)
_ALONE = "other calls of fit on the same records, as in cross-validation, are not covered: their costs add up"


@dataclass
class _Fits:
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


_total, _lock = _Fits(), threading.Lock()


def note_of_fit(ledger: str | None, plan: Plan) -> str:
    """Return the statement's note on other fits of the same records.  Call this once per fit, after training.

    The first fit in this process that a search makes without a ledger also warns the user.
    """
    frame = None if ledger is not None else _outermost()
    if frame is None:
        return _ALONE
    name = _name(frame)
    with _lock:
        _total.fits += 1
        _total.epsilon += plan.epsilon
        _total.delta += plan.delta
        fits, epsilon, delta = _total.fits, _total.epsilon, min(1.0, _total.delta)
    if fits == 1:
        warnings.warn(_warning(name, plan), PrivacyWarning, stacklevel=2)
        return (
            f"{name} fits the same records several times, and this statement covers one fit: k fits cost up "
            "to k times its epsilon at k times its delta"
        )
    return (
        f"this statement covers only fit number {fits} of {name} and other searches in this process; these "
        f"fits together cost up to epsilon = {round_up(epsilon)} at delta = {round_up(delta)} so far, "
        "without those of other processes"
    )


def _warning(name: str, plan: Plan) -> str:
    return (
        f"{name} calls fit many times, and each fit spends epsilon = {round_up(plan.epsilon)} on its "
        "records: one fit for each setting and fold, and one at the end. epsilon_ and statement_ describe "
        "one fit; k fits of the same records cost up to k times its epsilon at k times its delta. Set "
        "ledger= and dataset= to charge each fit and stop at the budget, search on public data, or choose "
        "settings with tacit.training.select_candidate."
    )


def _outermost() -> FrameType | None:
    """Return the outermost call on the stack in a module of scikit-learn that fits many times, or None."""
    frame: FrameType | None = sys._getframe(1)
    outermost = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_MANY) and _name(frame) not in _ONE:
            outermost = frame
        frame = frame.f_back
    return outermost


def _name(frame: FrameType) -> str:
    """Return the class or function of a frame for messages; "cross-validation" if its name is private."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return "cross-validation" if name.startswith(("_", "<")) else name


Estimator = Any  # PrivateClassifier or PrivateRegressor, whose base imports this file


class NoCurves(InvalidInput, AttributeError):
    """Raised for a model that is not a sum over columns; an AttributeError, so that hasattr returns False."""


def curves_of(estimator: Estimator) -> AdditiveModel:
    """Return the fitted model as a constant and one curve per column of X.

    The curves of a classifier are log odds, as in :meth:`tacit.models.additive.LinearModel.log_odds`.  Those
    of a regressor are in the units of ``target_bounds``.

    **Guarantee**

    * The curves are computed from ``model_`` and the estimator's arguments alone, at no cost.
    """
    check_is_fitted(estimator, "model_")
    model, bins = estimator.model_, None
    if isinstance(model, nn.Sequential) and isinstance(model[0], Binned):
        bins, model = model[0].bins, model[1:]
    linear = None if takes_given(estimator) else LinearModel.of(model)
    if linear is None:
        raise NoCurves(
            f"curves_ and intercept_ need a model that is a sum over columns; got {_why_not(estimator)}. Fit "
            "a linear model with declared columns or bounds."
        )
    encoder = _by_bounds(estimator, bins) if estimator.encoder_ is None else estimator.encoder_
    if hasattr(estimator, "classes_"):
        return linear.log_odds().curves(encoder)
    if hasattr(estimator, "time_edges_"):
        return linear.curves(encoder)
    return linear.in_units([estimator.target_bounds]).curves(encoder)


def _by_bounds(estimator: Estimator, bins: int | None) -> Encoder:
    count = estimator.n_features_in_
    frame_names = getattr(estimator, "feature_names_in_", None)
    names = [f"x{place}" for place in range(count)] if frame_names is None else frame_names.tolist()
    ends = bounds_of("bounds", estimator.bounds, count, names)
    columns = zip(names, *(bound.tolist() for bound in ends), strict=True)
    return Encoder(
        {name: Column(kind="number", lower=low, upper=high, bins=bins) for name, low, high in columns}
    )


def _why_not(estimator: Estimator) -> str:
    if estimator.features is not None:
        return "features, which may mix columns"
    if tuple(estimator.hidden):
        return f"hidden={estimator.hidden!r}"
    if estimator.normalise:
        return "normalise=True, which divides by the spread of a row"
    return f"head={estimator.head!r} of a classifier, which divides by the length of a row"


_ROWS = 10
_HEADS = ("dp-sgd", "least-squares")
_IN_FRONT = "a transformer that was fitted on the same records before this estimator is not covered"
_WEIGHTS = "weights that were computed from other records, such as balanced weights, are not covered"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class with the arguments of both estimators; :class:`PrivateClassifier` documents them."""

    epsilon: float
    delta: float
    unit: str
    adjacency: Adjacency | str
    records: int | None = None
    rows_per_user: int | None = None
    one_record_per_unit: bool = False
    columns: Mapping[str, Column | Mapping[str, Any]] | None = None
    bounds: ArrayLike | Mapping[str, ArrayLike] | None = None
    max_sample_weight: float | None = None
    normalise: bool = False
    features: Callable[[Any], Any] | None = None
    head: str = "dp-sgd"
    model: str = "auto"
    hidden: Sequence[int] = ()
    activation: str = "tanh"
    clipping_norm: float | None = None
    batch_size: int | None = None
    sampling: str = "poisson"
    epochs: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    engine: str = "fast"
    physical_batch_size: int | Literal["auto"] = 2048
    verbose: bool = False
    ledger: str | None = None
    dataset: str | None = None

    _of_networks: ClassVar[Recipe]
    _linear: ClassVar[type[LinearHazard | StandardLinear]] = StandardLinear  # for other targets than classes

    def _recipe(self, records: int, longest: float) -> Recipe:
        if self.hidden or (self.features is not None and not takes_given(self)):
            return self._of_networks
        return self._of_linear(records, longest)

    def _of_linear(self, records: int, longest: float) -> Recipe:
        return linear_recipe(records, self.epsilon, classes=self._classes, longest=longest)

    @property
    def _classes(self) -> int:
        raise NotImplementedError

    @property
    def curves_(self) -> list[Curve]:
        """The curves of the columns, in column order; see the attributes of :class:`PrivateClassifier`."""
        return [*curves_of(self).curves]

    @property
    def intercept_(self) -> NDArray[np.float64]:
        return curves_of(self).base

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    errors: Tensor = (model(inputs) - targets).square().squeeze(1)
    return errors


def _weighted(
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]:
    def weighted(model: nn.Module, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return loss(model, inputs, targets) * weights

    return weighted


def train_model(
    settings: PrivateEstimator,
    rows: Rows,
    *,
    outputs: int,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> None:
    """Train on ``rows``; set the estimator's ``model_``, ``plan_``, ``statement_`` and ``epsilon_``.

    A record's weight multiplies its loss and so its gradient before clipping.  With any weight, the record
    changes the sum of gradients by at most the clipping norm.

    The estimator stores neither the session nor the key of the noise, so a pickled estimator may be released.
    """
    least_squares = check_in("head", settings.head, _HEADS) == "least-squares"
    if least_squares:
        check_one_release(settings)
    inputs = rows.inputs
    if isinstance(inputs, Given):
        # Refuse wrong settings before the features are computed, which may take long.
        if settings.normalise:
            raise InvalidInput(
                "normalise=True needs bounds or columns. Without them, each record's features already have "
                "mean 0 and length 1. Remove normalise."
            )
        if rows.owners is None:
            _rates(settings, make_plan(settings, len(rows.inputs), 1.0).records, 1.0)
        inputs = inputs.compute()
        settings.n_features_in_ = inputs.shape[1]
    columns = inputs.shape[1]
    front = front_of(settings, columns, least_squares=least_squares)
    with torch.no_grad():
        inputs = front(inputs)
    features, weighted = inputs.shape[1], rows.weights is not None
    records, count = rows.records(inputs, settings.rows_per_user)
    longest = _longest(settings, columns, front)
    plan, generator = make_plan(settings, count, longest), Generator.from_os()
    with charged(settings, plan, generator) as charges:
        common: dict[str, Any] = {
            "engine": settings.engine,
            "physical_batch_size": settings.physical_batch_size,
            "charges": charges,
            "generator": generator,
        }
        if least_squares:
            classes = not rows.targets.is_floating_point()
            session = least_squares_session(
                records, plan, inputs=features, outputs=outputs, classes=classes,
                normalise=classes or takes_given(settings), weighted=weighted, **common,
            )  # fmt: skip
        else:
            network = _model(settings, features, outputs, generator)
            rate, momentum = _rates(settings, plan.records, longest)
            groups: Any = network.parameters()
            if isinstance(network, InPhases):
                network.for_plan(plan)
                groups = network.groups()
            if isinstance(network, StandardLinear):
                loss = standard_loss
            optimizer = torch.optim.SGD(groups, lr=rate, momentum=momentum)
            session = PrivateSession(
                network, optimizer, records, plan, loss=_weighted(loss) if weighted else loss, **common
            )
        _take_steps(session, verbose=settings.verbose)
        model = solve_least_squares(session) if least_squares else released(session.model)
        statement = _statement(session, settings, columns, model, weighted=weighted)
    settings.model_ = model if isinstance(front, nn.Identity) else nn.Sequential(front, model)
    settings.plan_, settings.statement_, settings.epsilon_ = plan, statement, statement.epsilon


def _take_steps(session: PrivateSession, *, verbose: bool) -> None:
    model: Any = session.model

    def begin_step() -> bool:
        if isinstance(model, InPhases):
            model.begin_step(session.optimizer, session.steps_done, session.plan.steps)
        return False

    begin_step()
    watchers = (_Progress(session.plan.steps),) if verbose else ()
    train(session, rows=_ROWS, watchers=watchers, should_stop=begin_step, progress=False)


def _longest(settings: PrivateEstimator, columns: int, front: nn.Module) -> float:
    """Return the largest norm of an input row of the model, including the bias's constant 1."""
    if takes_given(settings):
        return 1.0 if settings._classes > 1 else math.sqrt(2)
    if settings.encoder_ is not None and not settings.normalise:
        return float(settings.encoder_.longest)
    return math.sqrt(1 + columns * (1 + isinstance(front, Binned)))


def _rates(settings: PrivateEstimator, records: int, longest: float) -> tuple[float, float]:
    recipe = settings._recipe(records, longest)
    rate = recipe.learning_rate if settings.learning_rate is None else settings.learning_rate
    momentum = recipe.momentum if settings.momentum is None else settings.momentum
    return (
        check_real("learning_rate", rate, low=0.0, open_low=True),
        check_real("momentum", momentum, low=0.0, high=1.0, open_high=True),
    )


def check_one_release(settings: PrivateEstimator) -> None:
    """Refuse settings of steps and hidden layers, as least squares has neither."""
    values = {
        "hidden": tuple(settings.hidden),
        "steps": settings.steps,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "sampling": settings.sampling,
    }
    if wrong := [f"{name}={value!r}" for name, value in values.items() if value not in (None, (), "poisson")]:
        raise InvalidInput(
            f'head="least-squares" takes no {", ".join(wrong)}, because it computes a linear model at once, '
            'without steps. Remove it, or use head="dp-sgd".'
        )


def make_plan(settings: PrivateEstimator, rows: int, longest: float) -> Plan:
    """Make the plan of one call of fit on ``rows`` units, each a row or a person."""
    check_real("epsilon", settings.epsilon, low=0.0, open_low=True)
    adjacency = Adjacency.parse(settings.adjacency)
    records = settings.records
    if records is None:
        if adjacency is Adjacency.ADD_REMOVE:
            raise InvalidInput(
                "records must be declared: under add-remove the number of rows of X is secret, because it "
                f"reveals whether one {settings.unit} is there. Give a rough public size, such as "
                'records=1000, or use adjacency="replace-one", where the number is public.'
            )
        records = rows
    least_squares = settings.head == "least-squares"
    recipe = settings._recipe(check_integer("records", records, low=1), longest)
    unset = settings.epochs is None and settings.steps is None and not least_squares
    batch = recipe.batch_size if settings.batch_size is None else settings.batch_size
    norm = recipe.clipping_norm if settings.clipping_norm is None else settings.clipping_norm
    once_an_epoch = check_in("sampling", settings.sampling, ("poisson", "epochs")) == "epochs"
    if once_an_epoch and (unset or settings.batch_size is None):
        raise InvalidInput(
            "is missing",
            argument="batch_size" if settings.batch_size is None else "epochs",
            why='With sampling="epochs", an epoch puts each record into one batch of batch_size records.',
            fix="Give batch_size and epochs.",
        )
    return Plan.calibrate(
        epsilon=settings.epsilon,
        delta=settings.delta,
        records=records,
        clipping=1.0 if least_squares else norm,
        adjacency=adjacency,
        unit=settings.unit,
        batch_size=None if least_squares else batch,
        sampling="epochs" if once_an_epoch else None,
        epochs=settings.epochs,
        steps=1 if least_squares else recipe.steps if unset else settings.steps,
    )


@contextmanager
def charged(
    settings: PrivateEstimator, plan: Plan, generator: Generator, *, owned_by: str | None = None
) -> Iterator[StepCharges | None]:
    """Charge the ledger for the whole plan at once, as an interrupted fit cannot be resumed."""
    if (settings.ledger is None) != (settings.dataset is None):
        raise InvalidInput(
            f"give both ledger and dataset, or neither; got ledger={settings.ledger!r}, "
            f"dataset={settings.dataset!r}. dataset is the name of the records in the ledger."
        )
    if settings.ledger is None or settings.dataset is None:
        yield None
        return
    with closing(Ledger.open(settings.ledger)) as ledger:
        column = ledger.policy(settings.dataset).unit_column  # nothing checks that ``owners`` is this column
        owned_by = owned_by if settings.rows_per_user is None else column
        yield StepCharges(
            ledger, settings.dataset, plan, chunk=plan.steps, owned_by=owned_by, generator=generator
        )


def _model(settings: PrivateEstimator, columns: int, outputs: int, generator: Generator) -> nn.Module:
    """Make the model, (n, d) to (n, outputs). A linear one starts at 0; others are seeded by the key."""
    try:
        hidden = tuple(settings.hidden)
    except TypeError:
        raise InvalidInput(
            f"hidden must be a sequence of widths, such as (64,); got {settings.hidden!r}."
        ) from None
    if not hidden and settings._classes == 1:
        return settings._linear(columns, outputs, normalise=settings.normalise)
    if not hidden:
        return Calibrated(Logistic(columns, outputs, normalise=settings.normalise), outputs)
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = MLP(columns, outputs, hidden=hidden, activation=settings.activation)
    if not settings.normalise:
        return network
    return nn.Sequential(nn.LayerNorm(columns, elementwise_affine=False), network)


def _statement(
    session: PrivateSession, settings: PrivateEstimator, features: int, model: nn.Module, *, weighted: bool
) -> Statement:
    parameters = sum(p.numel() for p in model.parameters())
    notes = [_IN_FRONT, note_of_fit(settings.ledger, session.plan), *([_WEIGHTS] if weighted else [])]
    if takes_given(settings):
        name = name_of(settings.features)
        source = f"records as given, as {features} features of length 1 by {name}"
        notes.append(f"{name} is treated as public; its training data are not covered")
    elif settings.columns is None:
        source = f"arrays with {features} columns, clamped to declared bounds and scaled to [-1, 1]"
    else:
        source = f"data frames, as {features} features by declared columns"
    return make_statement(
        session,
        data_source=source,
        model=f"{type(model).__name__}, {parameters:,} parameters",
        notes=tuple(notes),
        owned_by=None if settings.rows_per_user is None else "owners",
    )


@dataclass(frozen=True)
class _Progress:
    steps: int

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        pass

    def on_row(self, row: MetricsRow) -> None:
        end = "\n" if row.steps == self.steps else ""
        sys.stderr.write(f"\rstep {row.steps} of {self.steps}, ε ≤ {row.epsilon:.4g}{end}")
        sys.stderr.flush()
