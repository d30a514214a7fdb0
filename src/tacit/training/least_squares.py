"""Linear models trained in one release: least squares on moments from one private step.

The step is accounted for, charged, clipped and noised like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor, nn

from tacit.clipping.rules import FlatClipping
from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput
from tacit.events import Gaussian, Repeat
from tacit.ledger import Policy, PureBudget
from tacit.models.additive import MARGIN, LeastSquaresHead, Moments, simplex_codes
from tacit.noise.discrete import Bits, rounded_gaussian
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.audit_slots import AuditSlots
from tacit.training.charges import StepCharges
from tacit.training.progress import Falling
from tacit.training.ranks import Alone
from tacit.training.records import Data
from tacit.training.session import PrivateSession
from tacit.training.users import UserRecords


def least_squares_session(
    data: Data | UserRecords,
    plan: Plan,
    *,
    inputs: int,
    outputs: int,
    classes: bool,
    normalise: bool = True,
    constant: float = 1.0,
    cross_share: float = 0.5,
    weighted: bool = False,
    engine: str = "fast",
    physical_batch_size: int | Literal["auto"] = 2048,
    audit: AuditSlots | None = None,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
) -> PrivateSession:
    """Make a session with one step, to train a linear model by least squares.

    The step releases noisy moments, which are sums of products of inputs and targets.
    :func:`solve_least_squares` needs nothing else.

    Args:
        data: (inputs, targets), or (inputs, targets, weights) if ``weighted``.  The inputs are (n, inputs)
            numbers in [-1, 1], or image features with ``normalise``.  The targets are (n,) classes, or
            (n, outputs) numbers in [-1, 1].  A weight multiplies its record's contribution, before clipping.
        plan: a plan of one step, ``Plan.calibrate(..., steps=1, clipping=1.0)``.
        inputs, outputs, classes, normalise, constant, cross_share: see :class:`tacit.models.Moments`.
        engine, physical_batch_size, audit, charges, generator: see :class:`PrivateSession`.

    **Guarantee**

    * Before noise, the moments of neighbouring datasets (which differ in one record) differ by at most 1 in
      norm, or at most 2 under replace-one.  The session adds the plan's noise once, so the release costs
      ``plan.epsilon``.  Solving for the model is post-processing, at no further cost.

    Raises:
        InvalidInput: if the plan has more than one step, or a clipping norm other than 1.

    >>> x, y = torch.randn(2000, 3), torch.arange(2000) % 2
    >>> x[:, 0] += 2 * y
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-5, records=2000, steps=1, clipping=1.0,
    ...                       adjacency="add-remove", unit="row")
    >>> session = least_squares_session((x, y), plan, inputs=3, outputs=2, classes=True)
    >>> model = solve_least_squares(session)
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.7), session.epsilon <= 3.0
    (True, True)
    """
    _check_one_release(plan)
    moments = Moments(
        inputs, outputs, normalise=normalise, constant=constant, cross_share=cross_share, classes=classes
    )
    return PrivateSession(
        moments,
        torch.optim.SGD(moments.parameters(), lr=1.0),  # the step from zero gives minus the mean gradient
        data,
        plan,
        loss=_weighted if weighted else _plain,
        engine=engine,
        physical_batch_size=physical_batch_size,
        audit=audit,
        charges=charges,
        generator=generator,
    )


def _check_one_release(plan: Plan) -> None:
    if plan.steps != 1 or plan.clipping != FlatClipping(1.0):
        raise InvalidInput(
            f"least squares needs steps=1 and clipping=1.0, without batch_size; got {plan.steps:,} steps and "
            f"{plan.clipping!r}. Change the plan."
        )


class SummedTable(Protocol):
    """A table that another program sums, such as :class:`tacit.queries.moments.TableMoments`.

    A record is a row, or the mean of a person's rows, scaled to integers of about R x and R y.  It adds at
    most R^2 in norm to each of the sums of X X^T and of X Y^T.
    """

    @property
    def bound(self) -> int:
        """R^2."""

    @property
    def radii(self) -> tuple[float, float]:
        """The norms to which x and y of norm 1 are scaled."""

    def describe(self) -> str:
        """Return the program with the table and the number of features, for a statement."""

    def check(self) -> None:
        """Refuse a table that cannot be encoded, before any charge."""

    def content(self) -> Iterable[bytes]:
        """Return the content, for its fingerprint in the ledger."""

    def sums(self) -> tuple[list[int], list[int]]:
        """Return the sums of X_i X_j for j <= i, row by row, and of Y_c X_i, target by target."""


@final
class TableSession:
    """A session of one step that releases the moments of a table in a database or in files.

    It has the attributes of a session that :func:`tacit.report.make_statement` reads.

    Args:
        table: the table, which sums integers.
        plan, charges: as in :func:`least_squares_session`.
        moments: the module whose weights :meth:`solve` sets to the sums.
        bits: the source of randomness, for tests; None for the operating system.

    **Guarantee**

    * The ledger commits the charge before the table is summed.  If the table fails, nothing is released, and
      the charge stays.
    * The noise is exactly that of the plan: a normal number for each sum.  Its rounding to an integer is
      post-processing.
    """

    private, stopped, route, ranks = True, None, "exact integers", Alone()

    def __init__(
        self,
        table: SummedTable,
        plan: Plan,
        moments: Moments,
        *,
        charges: StepCharges | None = None,
        bits: Bits | None = None,
    ) -> None:
        _check_one_release(plan)
        if plan.event != Repeat(Gaussian(plan.noise_multiplier), 1):
            raise InvalidInput(
                f"least squares sums all rows of a table once, but the plan is {plan.event!r}. Plan with "
                "steps=1 and clipping=1.0, without batch_size, sampling, preparation and reports."
            )
        if charges is not None:
            charges.generator_of(plan, None)
        self.plan, self.model, self.charges, self.steps_done = plan, moments, charges, 0
        self.falling = Falling(plan)
        self._table, self._bits = table, bits

    @property
    def randomness(self) -> str:
        """The source of the noise, for the statement."""
        return "random bits of the operating system; normal numbers, rounded to integers exactly"

    def stated(self, model: LeastSquaresHead) -> dict[str, Any]:
        """Return the arguments of :func:`tacit.report.make_statement` for the table and its model."""
        return {
            "data_source": self._table.describe(),
            "model": f"LeastSquaresHead, {sum(p.numel() for p in model.parameters()):,} parameters",
            "notes": (_SUMMED,),
        }

    def solve(self, *, ridge: float = 1.0) -> LeastSquaresHead:
        """Charge the ledger, sum the table, add the noise, and solve for the model."""
        self._table.check()
        if self.charges is not None:
            self.charges.recognise(self._table.content)
            self.charges.before(0)
        raw_gram, raw_cross = self._table.sums()
        stds = noise_of_sums(self.plan.gradient_noise_multiplier, self._table.bound, self.model.cross_share)
        gram, cross = self._noisy(raw_gram, raw_cross, *stds)
        self._fill(gram, cross)
        self.steps_done = 1
        if self.charges is not None:
            self.charges.after(0)
        records, noise = self.plan.expected_batch_size, self.plan.gradient_noise_multiplier
        return self.model.solve(records=records, noise_multiplier=noise, ridge=ridge)

    def _noisy(
        self, raw_gram: Sequence[int], raw_cross: Sequence[int], square: int, product: int, cross: int
    ) -> tuple[list[int], list[int]]:
        # the sums of X_i X_i, each after those of X_i X_j
        d = len(self.model.gram.weight)
        squares = [i * (i + 3) // 2 for i in range(d)]
        noise = rounded_gaussian(product, len(raw_gram), bits=self._bits)
        for at, drawn in zip(squares, rounded_gaussian(square, d, bits=self._bits), strict=True):
            noise[at] = drawn
        of_cross = rounded_gaussian(cross, len(raw_cross), bits=self._bits)
        return (
            [x + k for x, k in zip(raw_gram, noise, strict=True)],
            [x + k for x, k in zip(raw_cross, of_cross, strict=True)],
        )

    def _fill(self, gram: Sequence[int], cross: Sequence[int]) -> None:
        """Set the weights to the mean contribution, as the step of SGD from zero does."""
        model, records = self.model, self.plan.expected_batch_size
        of_x, of_y = self._table.radii
        d, share = len(model.gram.weight), model.cross_share
        lower = torch.zeros(d, d, dtype=torch.float64)
        lower[torch.tril_indices(d, d).unbind()] = torch.tensor(list(map(float, gram)), dtype=torch.float64)
        whole = (lower + lower.tril(-1).T) * math.sqrt(1 - share) / (of_x * MARGIN) ** 2 / records
        product = torch.tensor(list(map(float, cross)), dtype=torch.float64).reshape(-1, d)
        with torch.no_grad():
            model.gram.weight.copy_(whole)
            model.cross.weight.copy_(product * math.sqrt(share) / (of_x * MARGIN * of_y) / records)


_SUMMED = (
    "the database or query engine encoded the rows and summed products of integers; the sums and their noise "
    "are exact"
)


@contextmanager
def table_session(
    source: object,
    plan: Plan,
    *,
    columns: Mapping[str, Column],
    target: str,
    owner: str | None = None,
    charges: StepCharges | None = None,
) -> Iterator[TableSession]:
    """Open a table, given by an engine or a path, for the session that predicts its ``target``.

    ``owner`` is the column of people.  A path is closed at the end; an engine stays open.
    """
    from tacit.queries.engines import engine_of  # imports sqlglot
    from tacit.queries.moments import TableMoments

    # an engine takes from a policy what the columns are; it answers no question under this one
    policy = Policy(
        unit=plan.unit,
        adjacency="add-remove",
        budget=PureBudget(1.0),
        columns=columns,
        unit_column=owner,
    )
    encoder = Encoder(columns, target)
    classes = len(encoder.classes)
    codes = simplex_codes(classes).tolist() if classes else None
    engine = engine_of(source, policy)
    try:
        table = TableMoments(engine, policy, encoder, normalise=bool(classes), codes=codes)
        moments = Moments(table.inputs, table.outputs, normalise=table.normalise, classes=bool(classes))
        yield TableSession(table, plan, moments, charges=charges)
    finally:
        if engine is not source:
            engine.close()


def noise_of_sums(noise_multiplier: float, bound: int, cross_share: float) -> tuple[int, int, int]:
    """Return the integer standard deviations s, t, v for the sums of X_i X_i, X_i X_j (j < i) and Y_c X_i.

    One record changes the two matrices of sums by at most ``bound`` N in norm each, and adds X_i X_j twice.
    So, in units of the noise, it changes all sums by at most

        sqrt(N^2 / s^2 + N^2 / v^2) <= 1 / noise_multiplier,  with  2 t^2 >= s^2.

    >>> noise_of_sums(2.0, 1 << 30, 0.5)
    (3037000501, 2147483649, 3037000499)
    """
    noise = Fraction(noise_multiplier)
    s = math.ceil(noise * bound / Fraction(math.sqrt(1 - cross_share))) + 1
    t = math.isqrt(s * s // 2) + 1
    # the share that s leaves to v, exactly: v^2 >= N^2 / (1 / noise^2 - N^2 / s^2)
    left = 1 / noise**2 - Fraction(bound * bound, s * s)
    v = math.isqrt(math.ceil(bound * bound / left)) + 1
    return s, t, v


def solve_least_squares(session: PrivateSession, *, ridge: float = 1.0) -> LeastSquaresHead:
    """Take the session's only step, if it was not taken yet, and compute the linear model.

    Args:
        session: a session from :func:`least_squares_session`.
        ridge: the strength of the ridge (L2) penalty; see :meth:`tacit.models.Moments.solve`.

    >>> x, y = torch.randn(2000, 3), torch.arange(2000) % 2
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-5, records=2000, steps=1, clipping=1.0,
    ...                       adjacency="add-remove", unit="row")
    >>> session = least_squares_session((x, y), plan, inputs=3, outputs=2, classes=True)
    >>> solve_least_squares(session, ridge=2.0)(x).shape
    torch.Size([2000, 2])
    """
    moments: Any = session.model
    if not isinstance(moments, Moments):
        raise InvalidInput(
            f"the session trains a {type(moments).__name__}, not least squares. Make it with "
            "least_squares_session."
        )
    for step in session.batches():
        session.step(step)
    plan = session.plan
    return moments.solve(
        records=plan.expected_batch_size, noise_multiplier=plan.gradient_noise_multiplier, ridge=ridge
    )


def _plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    losses: Tensor = model(inputs, targets)
    return losses


def _weighted(model: nn.Module, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return _plain(model, inputs, targets) * weights
