"""The settings that a user gives for a plan, and the facts that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypedDict

from tacit.clipping.rules import ClippingRule, FlatClipping
from tacit.correlation import Correlation
from tacit.errors import InvalidInput, check_integer, check_real, listing
from tacit.events import Adjacency, Event
from tacit.plan.facts import LossReport, Mechanism, ScoreReport
from tacit.sampling import ByDate, FullBatch, PoissonSampling, Sampling, TruncatedPoissonSampling


class _Needed(TypedDict):
    delta: float
    records: int
    clipping: ClippingRule | float
    adjacency: Adjacency | str
    unit: str


class PlanSettings(_Needed, total=False):
    """The keywords of :meth:`Plan.with_noise` and :meth:`Plan.calibrate`.  The first five have no default.

    Attributes:
        delta, records, adjacency, unit: as in :class:`Plan`.
        clipping: a rule, or a number C for :class:`~tacit.clipping.FlatClipping`.
        batch_size: the expected number of records per step.  None, or ``records``, is the full batch.  For
            batches by date, give a public estimate of their mean size.
        epochs, steps: give exactly one of them.
        sampling: None for Poisson sampling at ``batch_size / records`` (full batch if they are equal).
        largest_batch: cut larger Poisson samples to this many records, chosen at random.
        preparation, views, rows_per_user, correlation, loss_report, score_report, allow_large_delta: as in
            :class:`Plan`.

    >>> from tacit.plan import Plan
    >>> settings: PlanSettings = {
    ...     "delta": 1e-5, "records": 1000, "clipping": 1.0, "adjacency": "add-remove", "unit": "row",
    ...     "steps": 1}
    >>> Plan.with_noise(noise_multiplier=4.0, **settings).event
    Repeat(event=Gaussian(noise_multiplier=4.0), count=1)
    """

    batch_size: int | None
    epochs: float | None
    steps: int | None
    sampling: Sampling | None
    largest_batch: int | None
    preparation: Sequence[Event]
    views: int
    rows_per_user: int | None
    correlation: Correlation | None
    loss_report: LossReport | None
    score_report: ScoreReport | None
    allow_large_delta: bool


_FIELDS = {field.name: field.default for field in fields(Mechanism) if field.default is not MISSING}
listing_settings = listing(PlanSettings, {name: _FIELDS.get(name) for name in PlanSettings.__optional_keys__})


def rule_of(clipping: ClippingRule | float) -> ClippingRule:
    """Return ``clipping`` itself if it is a rule, else flat clipping to that number."""
    return clipping if isinstance(clipping, ClippingRule) else FlatClipping(clipping)


def facts_of(
    *,
    records: int,
    clipping: ClippingRule | float,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    sampling: Sampling | None = None,
    largest_batch: int | None = None,
    preparation: Sequence[Event] = (),
    **others: Any,
) -> dict[str, Any]:
    """Return the fields of a plan that follow from its settings.  ``others`` are returned unchanged."""
    records = check_integer("records", records, low=1)
    if batch_size is None and isinstance(sampling, ByDate):
        raise InvalidInput(
            "is missing for batches by date",
            argument="batch_size",
            fix="Give a public figure: the mean number of records in a step.",
        )
    batch = records if batch_size is None else check_integer("batch_size", batch_size, low=1)
    if batch > records:
        raise InvalidInput(
            f"{batch} is larger than the data, {records} records",
            argument="batch_size",
            fix=f"Take at most {records}, which is full batch.",
        )
    if isinstance(preparation, Event) or not isinstance(preparation, Iterable):
        raise InvalidInput(
            "must be a list of events, such as [tacit.Gaussian(8.0)]",
            argument="preparation",
            value=preparation,
        )
    return others | {
        "records": records,
        "clipping": rule_of(clipping),
        "sampling": _sampling(sampling, batch, records, largest_batch),
        "steps": _steps(epochs, steps, batch, records),
        "expected_batch_size": float(batch),
        "preparation": tuple(preparation),
    }


def _sampling(sampling: Sampling | None, batch: int, records: int, largest_batch: int | None) -> Sampling:
    if largest_batch is not None:
        if sampling is not None:
            raise InvalidInput(
                "cannot be combined with `sampling`",
                argument="largest_batch",
                why="It cuts Poisson samples.",
                fix="Leave out `sampling`, or give `sampling=TruncatedPoissonSampling(...)` alone.",
            )
        return TruncatedPoissonSampling(batch / records, records, largest_batch)
    if sampling is None:
        return FullBatch() if batch == records else PoissonSampling(batch / records)
    return sampling


def _steps(epochs: float | None, steps: int | None, batch: int, records: int) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("give exactly one of epochs and steps.")
    if steps is not None:
        return check_integer("steps", steps, low=1)
    passes = check_real("epochs", epochs, low=0.0, open_low=True)
    return max(1, math.ceil(passes * records / batch - 1e-9))
