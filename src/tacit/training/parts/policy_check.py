"""Checks that a plan may be charged to a data set: both must promise the same, to the same people.

The module also chooses the chunks and the delta of charges to a budget, and registers the records.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.ledger import ApproximateBudget, Ledger, Policy
from tacit.plan import Plan

_CHUNKS = 20  # the number of charges of a run, unless the user sets the steps in a chunk


def delta_to_charge(ledger: Ledger, policy: Policy, plan: Plan) -> float | None:
    """Return the plan's delta if the budget, or one of a parent, counts (epsilon, delta); else None."""
    while not isinstance(policy.budget, ApproximateBudget):
        if policy.parent is None:
            return None
        policy = ledger.policy(policy.parent)
    return plan.delta


def chunk_size(plan: Plan, chunk: int | None, *, whole: bool) -> int:
    """Return the number of steps in a charge: ``chunk``, or by default a twentieth of the plan.

    It is rounded up to whole epochs if batches are shuffled.

    Args:
        whole: whether the budget counts (epsilon, delta), so that the whole plan is one charge.

    Raises:
        InvalidInput: ``chunk`` is no number of steps, or not the whole plan although ``whole`` is set.
    """
    if whole:
        if chunk not in (None, plan.steps):
            raise InvalidInput(
                f"chunk must be the whole plan for this data set; got {chunk!r}. Its budget counts "
                "(epsilon, delta), and so counted, the chunks of a run cost far more than the whole plan. "
                "Leave chunk out."
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
            f"the plan's unit is {plan.unit!r}, that of {dataset!r} is {policy.unit!r}. The two cannot "
            f"share a budget. Make the plan with unit={policy.unit!r} if each record is one {policy.unit}, "
            "or open the records as another data set with a separate budget."
        )
    if plan.adjacency is not policy.relation:
        raise PrivacyRefusal(
            f"the plan's adjacency is {plan.adjacency}, that of {dataset!r} is {policy.relation}. The two "
            f"cannot share a budget. Make the plan with adjacency={policy.relation.value!r}."
        )
    if owned_by is not None and policy.unit_column is not None and owned_by != policy.unit_column:
        raise PrivacyRefusal(
            f"training counts by column {owned_by!r}, and data set {dataset!r} by {policy.unit_column!r}. "
            "The two may mean different people, and cannot share a budget. Train with column "
            f"{policy.unit_column!r} as the owners."
        )
    if policy.unit_column is not None and not one_record_per_unit and owned_by is None:
        raise PrivacyRefusal(
            f"{dataset!r} counts by the column {policy.unit_column!r}, training by record. One "
            f"{policy.unit} may have several rows. Train on UserRecords, with charges "
            f"owned_by={policy.unit_column!r}; in a configuration by [data] user and rows_per_user. If no "
            f"{policy.unit} has two of the training records, {_test_records_of(plan)}say "
            "one_record_per_unit=True; the ledger will record that you said so."
        )
    most = policy.largest_table if policy.public_records is None else policy.public_records
    if plan.records > most:
        raise PrivacyRefusal(
            f"the plan has {plan.records} records, and {dataset!r} at most {most}. The limit is in the "
            f"policy of the data set. Make the plan with records={most} or fewer, as many as there are."
        )


def _test_records_of(plan: Plan) -> str:
    """Return words about the test records if the plan has a score report.

    The user's statement of one record per unit covers these records too.
    """
    return "" if plan.score_report is None else "nor two of the test records, "


def register(
    ledger: Ledger, dataset: str, content: Iterable[bytes | memoryview] | None, *, block: str | None
) -> None:
    """Let ``ledger`` store the fingerprint of a run's records for ``dataset``, unless ``content`` is None.

    Raises:
        PrivacyRefusal: the ledger has the records under another name with a separate budget, or as another
            block.
    """
    if content is not None:
        ledger.register_content(dataset, ledger.fingerprint(content), block=block)
