"""Checks that a plan may be charged to a data set: both must promise the same, to the same people.

The module also chooses chunks and delta as the data set's budget counts, and registers the records.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.ledger import ApproximateBudget, Ledger, Policy
from tacit.plan import Plan

_CHUNKS = 20  # charges that a run makes, unless the user sets the steps of a chunk


def delta_to_charge(ledger: Ledger, policy: Policy, plan: Plan) -> float | None:
    """Return the plan's delta if this budget or one above it counts (epsilon, delta); else None."""
    while not isinstance(policy.budget, ApproximateBudget):
        if policy.parent is None:
            return None
        policy = ledger.policy(policy.parent)
    return plan.delta


def chunk_size(plan: Plan, chunk: int | None, *, whole: bool) -> int:
    """Return the steps in a charge: ``chunk``, or a twentieth of the plan, in whole epochs if shuffled.

    Args:
        whole: whether the budget counts epsilon and delta, so that the whole plan is one charge.

    Raises:
        InvalidInput: ``chunk`` is not a number of steps, or not the whole plan although that is one charge.
    """
    if whole:
        if chunk not in (None, plan.steps):
            raise InvalidInput(
                "the data set's budget counts (epsilon, delta), in which the chunks of a run add up to far "
                f"more than its plan costs: the whole plan is one charge. Leave chunk out; got {chunk!r}."
            )
        return plan.steps
    size = -(-plan.steps // _CHUNKS) if chunk is None else check_integer("chunk", chunk, low=1)
    unit = plan.charging_unit
    return -(-size // unit) * unit


def check_promise(
    dataset: str, policy: Policy, plan: Plan, one_record_per_unit: bool, owned_by: str | None = None
) -> None:
    """Refuse a plan whose unit, adjacency or number of records differs from the data set's policy.

    Raises:
        PrivacyRefusal: one of them differs; the message names it.  See :class:`~tacit.training.StepCharges`.
    """
    if plan.unit != policy.unit:
        raise PrivacyRefusal(
            f"the unit of privacy of the plan is one {plan.unit!r} and that of the data set {dataset!r} is "
            f"one {policy.unit!r}: the two cannot share a budget. Make the plan with unit={policy.unit!r} if "
            "one record is that, or open the records as another data set with a separate budget."
        )
    if plan.adjacency is not policy.relation:
        raise PrivacyRefusal(
            f"the plan's adjacency is {plan.adjacency} and that of the data set {dataset!r} is "
            f"{policy.relation}: the two cannot share a budget. Make the plan with "
            f"adjacency={policy.relation.value!r}."
        )
    if owned_by is not None and policy.unit_column is not None and owned_by != policy.unit_column:
        raise PrivacyRefusal(
            f"the data set {dataset!r} counts by the column {policy.unit_column!r}, and training by "
            f"{owned_by!r}: the two may mean different people, and cannot share a budget. Train with the "
            f"owners of {policy.unit_column!r}."
        )
    if policy.unit_column is not None and not one_record_per_unit and owned_by is None:
        raise PrivacyRefusal(
            f"the data set {dataset!r} counts by the column {policy.unit_column!r}, of which one "
            f"{policy.unit} may have several rows, and training takes each record as one {policy.unit}. "
            f"Train on UserRecords, with charges owned_by={policy.unit_column!r}; in a configuration by "
            "[data] user and rows_per_user. "
            f"If no {policy.unit} has two of the training records, {_test_records_of(plan)}say "
            "one_record_per_unit=True; the ledger will record that you said so."
        )
    most = policy.largest_table if policy.public_records is None else policy.public_records
    if plan.records > most:
        raise PrivacyRefusal(
            f"the plan is for {plan.records} records, and the data set {dataset!r} has at most {most} by its "
            f"policy. Make the plan with records={most} or fewer, as many as there are."
        )


def _test_records_of(plan: Plan) -> str:
    """Name the test records of a score report, which also covers one record per unit."""
    return "" if plan.score_report is None else "nor two of the test records, "


def register(
    ledger: Ledger, dataset: str, content: Iterable[bytes | memoryview] | None, *, block: str | None
) -> None:
    """Let ``ledger`` store the fingerprint of a run's records on ``dataset``; do nothing without content.

    Raises:
        PrivacyRefusal: the records are known under another name with a separate budget, or as another block.
    """
    if content is not None:
        ledger.register_content(dataset, ledger.fingerprint(content), block=block)
