"""Linear models trained in one release: least squares on moments that one private step releases.

All promises of a session hold: the step is accounted for, charged, clipped and noised like any other.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.clipping.rules import FlatClipping
from tacit.errors import InvalidInput
from tacit.models.additive import LeastSquaresHead, Moments
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.audit_slots import AuditSlots
from tacit.training.charges import StepCharges
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
    """Make a session whose one step releases the moments for :func:`solve_least_squares`.

    Args:
        data: (n, inputs) records in [-1, 1], or features of pictures if ``normalise`` is set; then (n,)
            classes or (n, outputs) targets in [-1, 1].  If ``weighted`` is set, (n,) weights come last, and
            each multiplies a record's contribution before it is clipped.
        plan: one step, with clipping at 1: ``Plan.calibrate(..., steps=1, clipping=1.0)`` for all records.
        inputs, outputs, classes, normalise, constant, cross_share: see :class:`tacit.models.Moments`.
        engine, physical_batch_size, audit, charges, generator: see :class:`PrivateSession`.

    **Guarantee**

    * Before noise, the moments of neighbouring data sets differ by at most 1 in norm, or at most 2 under
      replace-one.  The session adds the plan's noise once, so the release costs ``plan.epsilon``.  Solving
      for the model is post-processing.

    Raises:
        InvalidInput: the plan has more than one step, or its clipping norm is not 1.

    >>> x, y = torch.randn(2000, 3), torch.arange(2000) % 2
    >>> x[:, 0] += 2 * y
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-5, records=2000, steps=1, clipping=1.0,
    ...                       adjacency="add-remove", unit="row")
    >>> session = least_squares_session((x, y), plan, inputs=3, outputs=2, classes=True)
    >>> model = solve_least_squares(session)
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.7), session.epsilon <= 3.0
    (True, True)
    """
    if plan.steps != 1 or plan.clipping != FlatClipping(1.0):
        raise InvalidInput(
            f"least squares takes one step with clipping at 1; got {plan.steps:,} steps and "
            f"{plan.clipping!r}. The step releases sums to which a record adds a vector of norm at most 1. "
            "Make the plan with steps=1 and clipping=1.0, and without batch_size, for all records."
        )
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


def solve_least_squares(session: PrivateSession, *, ridge: float = 1.0) -> LeastSquaresHead:
    """Take the session's step, unless it was taken before, and solve for the model.

    ``ridge`` is that of :meth:`Moments.solve`.

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
            f"the session trains a {type(moments).__name__}. Make it with least_squares_session."
        )
    for ticket in session.batches():
        session.step(ticket)
    plan = session.plan
    return moments.solve(
        records=plan.expected_batch_size, noise_multiplier=plan.gradient_noise_multiplier, ridge=ridge
    )


def _plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    losses: Tensor = model(inputs, targets)
    return losses


def _weighted(model: nn.Module, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return _plain(model, inputs, targets) * weights
