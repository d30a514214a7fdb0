"""What happens in one call of fit? An estimator's arguments become a plan, a session, and a trained model.

A grid search calls fit often, and without a ledger nobody adds the costs up.  So the user is warned once, and
the statement of each fit names the search and what its fits have cost so far.  Whether a search is the caller
is read from Python's stack of calls, and nothing from the records.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from tacit.columns import Column
from tacit.errors import InvalidInput, PrivacyRefusal, PrivacyWarning, check_in, check_real
from tacit.events import Adjacency
from tacit.integrations.sklearn_rows import Rows
from tacit.ledger import Ledger
from tacit.models import MLP, Logistic
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.report.statement.statement import Statement, make_statement
from tacit.rounding import round_up
from tacit.training import (
    PrivateSession,
    StepCharges,
    least_squares_session,
    solve_least_squares,
    train,
)
from tacit.training.loop import MetricsRow

_DEFAULT_EPOCHS = 30.0
_ROWS = 10
_HEADS = ("dp-sgd", "least-squares")
_IN_FRONT = "a transformer that was fitted on the same records before this estimator is not covered"
_WEIGHTS = (
    "a weight of a record that was computed from other records, as balanced weights are, is not covered"
)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The arguments that both estimators share; :class:`PrivateClassifier` has the words on each."""

    epsilon: float
    delta: float
    unit: str
    adjacency: Adjacency | str
    records: int | None = None
    rows_per_user: int | None = None
    columns: Mapping[str, Column | Mapping[str, Any]] | None = None
    bounds: ArrayLike | Mapping[str, ArrayLike] | None = None
    max_sample_weight: float | None = None
    normalise: bool = False
    features: nn.Module | None = None
    head: str = "dp-sgd"
    hidden: Sequence[int] = ()
    activation: str = "tanh"
    clipping_norm: float
    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    learning_rate: float
    momentum: float = 0.9
    engine: str = "fast"
    physical_batch_size: int | Literal["auto"] = 2048
    verbose: bool = False
    ledger: str | None = None
    dataset: str | None = None

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn: two calls of fit differ, because the noise is fresh in each."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) losses of a classifier."""
    return F.cross_entropy(model(inputs), targets, reduction="none")


def squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) losses of a regressor."""
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
    """Train on ``rows``, each record's loss times its weight; sets ``model_`` and what is said of it.

    The weight multiplies the loss, and so the gradient before it is clipped: whatever the weight is, the
    record moves the sum by at most the clipping norm.

    The session ends here, and with it the key of the noise: a pickled estimator may be released.
    """
    least_squares = check_in("head", settings.head, _HEADS) == "least-squares"
    columns = rows.inputs.shape[1]
    front = _front(settings, columns, least_squares=least_squares)
    if least_squares:
        _check_one_release(settings)
    with torch.no_grad():
        rows = replace(rows, inputs=front(rows.inputs))
    features, weighted = rows.inputs.shape[1], rows.weights is not None
    records, count = rows.records(settings.rows_per_user)
    plan, generator = make_plan(settings, count), Generator.from_os()
    with _charged(settings, plan, generator) as charges:
        common: dict[str, Any] = {
            "engine": settings.engine,
            "physical_batch_size": settings.physical_batch_size,
            "charges": charges,
            "generator": generator,
        }
        if least_squares:
            classes = not rows.targets.is_floating_point()
            session = least_squares_session(
                records, plan, inputs=features, outputs=outputs, classes=classes, normalise=classes,
                weighted=weighted, **common,
            )  # fmt: skip
        else:
            network = _model(settings, features, outputs, generator)
            rate = check_real("learning_rate", settings.learning_rate, low=0.0, open_low=True)
            momentum = check_real("momentum", settings.momentum, low=0.0, high=1.0, open_high=True)
            optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=momentum)
            each = _weighted(loss) if weighted else loss
            session = PrivateSession(network, optimizer, records, plan, loss=each, **common)
        if settings.verbose:
            train(session, rows=_ROWS, watchers=(_Progress(plan.steps),), progress=False)
        else:
            for batch in session.batches():
                session.step(batch)
        model = solve_least_squares(session) if least_squares else session.model
        statement = _statement(session, settings, columns, model, weighted=weighted)
    settings.model_ = model if isinstance(front, nn.Identity) else nn.Sequential(front, model)
    settings.plan_, settings.statement_, settings.epsilon_ = plan, statement, statement.epsilon


def _check_one_release(settings: PrivateEstimator) -> None:
    """Refuse settings of steps and layers, which least squares has none of.

    Raises:
        InvalidInput: one is given.
    """
    given = {
        "hidden": tuple(settings.hidden),
        "steps": settings.steps,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
    }
    if wrong := [f"{name}={value!r}" for name, value in given.items() if value not in (None, ())]:
        raise InvalidInput(
            f'head="least-squares" is a linear model from one release of all records, and takes no '
            f'{", ".join(wrong)}. Leave that out, or take head="dp-sgd".'
        )


class _Fixed(nn.Module):
    """Features of records in [-1, 1], which the user's module gets in [0, 1]."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, d) to (n, f)."""
        rows: Tensor = self.features((inputs + 1) / 2)
        return rows


def _front(settings: PrivateEstimator, columns: int, *, least_squares: bool) -> nn.Module:
    """What is done with each record by itself before the model, once for all steps.

    Raises:
        InvalidInput: ``features`` is no module, or its output no rows.
        PrivacyRefusal: the features of a record depend on the others of its batch.
    """
    if settings.features is None:
        first = settings.normalise and least_squares  # the models of DP-SGD have a layer for it
        return nn.LayerNorm(columns, elementwise_affine=False) if first else nn.Identity()
    if not isinstance(settings.features, nn.Module):
        raise InvalidInput(
            "features must be a fixed torch module, such as tacit.models.PictureFeatures(28, 28); got "
            f"{type(settings.features).__name__}."
        )
    front = _Fixed(copy.deepcopy(settings.features))
    made_up = torch.rand(3, columns, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        together, alone = front(made_up), torch.cat([front(row[None]) for row in made_up])
    if together.ndim != 2 or len(together) != 3:
        raise InvalidInput(
            f"features must turn 3 records into 3 rows (3, f); got shape {tuple(together.shape)}."
        )
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max())):
        raise PrivacyRefusal(
            "features of a record depend on the other records of its batch, so that one record would change "
            "what is learnt from the others. Take a module that maps each record by itself."
        )
    return front


def make_plan(settings: PrivateEstimator, rows: int) -> Plan:
    """The plan of one call of fit on so many records, ``rows`` or people."""
    adjacency = Adjacency.parse(settings.adjacency)
    records = settings.records
    if records is None:
        if adjacency is Adjacency.ADD_REMOVE:
            raise InvalidInput(
                "records is missing: under add-remove the number of rows of X is a secret, and reading it "
                f"would leak whether one {settings.unit} is there. Give a public figure for it, such as "
                'records=1000, or choose adjacency="replace-one", under which the number is public.'
            )
        records = rows
    least_squares = settings.head == "least-squares"
    unset = settings.epochs is None and settings.steps is None and not least_squares
    return Plan.calibrate(
        epsilon=settings.epsilon,
        delta=settings.delta,
        records=records,
        clipping=1.0 if least_squares else settings.clipping_norm,
        adjacency=adjacency,
        unit=settings.unit,
        batch_size=settings.batch_size,
        epochs=_DEFAULT_EPOCHS if unset else settings.epochs,
        steps=1 if least_squares else settings.steps,
    )


@contextmanager
def _charged(settings: PrivateEstimator, plan: Plan, generator: Generator) -> Iterator[StepCharges | None]:
    """One charge of the whole plan: an interrupted fit leaves nothing to resume."""
    if (settings.ledger is None) != (settings.dataset is None):
        raise InvalidInput(
            f"ledger and dataset go together, the ledger and the name of the records in it; got ledger="
            f"{settings.ledger!r} and dataset={settings.dataset!r}. Give both, or neither."
        )
    if settings.ledger is None or settings.dataset is None:
        yield None
        return
    with closing(Ledger.open(settings.ledger)) as ledger:
        column = ledger.policy(settings.dataset).unit_column  # owners have no name: on the user's word
        owned_by = None if settings.rows_per_user is None else column
        yield StepCharges(
            ledger, settings.dataset, plan, chunk=plan.steps, owned_by=owned_by, generator=generator
        )


def _model(settings: PrivateEstimator, columns: int, outputs: int, generator: Generator) -> nn.Module:
    """(n, d) to (n, outputs); a linear one starts at zero, others at weights from the run's own key."""
    try:
        hidden = tuple(settings.hidden)
    except TypeError:
        raise InvalidInput(
            f"hidden must be a sequence of widths, such as (64,); got {settings.hidden!r}."
        ) from None
    if not hidden:
        return Logistic(columns, outputs, normalise=settings.normalise)
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
    if settings.columns is None:
        source = f"arrays with {features} columns, clamped to declared bounds and scaled to [-1, 1]"
    else:
        source = f"data frames, as {features} features by declared columns"
    return make_statement(
        session,
        data_source=source,
        model=f"{type(model).__name__}, {parameters:,} parameters",
        notes=(_IN_FRONT, note_of_fit(settings, session.plan), *([_WEIGHTS] if weighted else [])),
        owned_by=None if settings.rows_per_user is None else "owners",
    )


@dataclass(frozen=True)
class _Progress:
    """Steps and epsilon on one line of the standard error stream."""

    steps: int

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: there are ten lines in all."""

    def on_row(self, row: MetricsRow) -> None:
        """Write the position."""
        end = "\n" if row.steps == self.steps else ""
        sys.stderr.write(f"\rstep {row.steps} of {self.steps}, ε ≤ {row.epsilon:.4g}{end}")
        sys.stderr.flush()


_MANY = (
    "sklearn.calibration", "sklearn.ensemble", "sklearn.feature_selection", "sklearn.inspection",
    "sklearn.model_selection", "sklearn.multiclass", "sklearn.multioutput", "sklearn.semi_supervised",
)  # fmt: skip
_ONE = ("FixedThresholdClassifier",)
_ALONE = "other calls of fit on the same records, as in cross-validation, are not covered: their costs add up"


@dataclass
class _Made:
    """The fits that such callers made in this process without a ledger, and what they cost, added up."""

    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


_made, _lock = _Made(), threading.Lock()


def note_of_fit(settings: PrivateEstimator, plan: Plan) -> str:
    """What the statement of a fit says of other fits.  Call this once, when its epsilon is spent.

    The first fit without a ledger that a search makes in this process warns.
    """
    found = None if settings.ledger is not None else _outermost()
    if found is None:
        return _ALONE
    name = _name(found)
    with _lock:
        _made.fits += 1
        _made.epsilon += plan.epsilon
        _made.delta += plan.delta
        fits, epsilon, delta = _made.fits, _made.epsilon, min(1.0, _made.delta)
    if fits == 1:
        warnings.warn(_warning(name, plan), PrivacyWarning, stacklevel=2)
        return (
            f"this is one of the fits that {name} makes of the same records, and covers this one alone: k "
            "such fits cost up to k times its epsilon at k times its delta"
        )
    return (
        f"this is fit number {fits} that {name} and the like made in one process, and covers this fit alone: "
        f"where they are of the same records they cost, together with those made elsewhere, up to the sums, "
        f"epsilon = {round_up(epsilon)} at delta = {round_up(delta)} so far"
    )


def _warning(name: str, plan: Plan) -> str:
    return (
        f"{name} calls fit many times, and each fit spends epsilon = {round_up(plan.epsilon)} of the records "
        "that it gets: for a search that is its settings times the folds, and once more for the last fit. "
        "epsilon_ and statement_ are of one fit alone; k fits of the same records cost up to k times its "
        "epsilon at k times its delta. Give the estimator ledger= and dataset=, so that each fit is charged "
        "and the budget kept; search on public data; or choose settings with tacit.training.select_candidate."
    )


def _outermost() -> FrameType | None:
    """The outermost call under way of something in scikit-learn that fits many times."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_MANY) and _name(frame) not in _ONE:
            found = frame
        frame = frame.f_back
    return found


def _name(frame: FrameType) -> str:
    """The class whose method is called, or the function; of a part that is internal, what it is part of."""
    this = frame.f_locals.get("self")
    name = frame.f_code.co_name if this is None else type(this).__name__
    return "cross-validation" if name.startswith(("_", "<")) else name
