"""A statement compared with the charges of its run in a ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tacit.events import Adjacency
from tacit.ledger import Anchor, Ledger, Policy
from tacit.ledger.policy import Cost
from tacit.report.schema import check_against
from tacit.report.spending import spendings
from tacit.report.verification import ROUNDING, read_event

_CHARGED = {
    "type": "object",
    "required": ["ledger", "dataset", "run", "steps", "first_entry", "last_entry", "head"],
    "properties": {
        **{name: {"type": "string"} for name in ("ledger", "dataset", "run", "head")},
        **{name: {"type": "integer", "minimum": 0} for name in ("steps", "first_entry", "last_entry")},
    },
}


def against_its_ledger(data: Mapping[str, Any], ledger: Ledger) -> list[str]:
    """Describe each difference of a statement from its ledger in a sentence.

    Args:
        data: a statement that :func:`tacit.report.verification.verify_statement` has checked.
        ledger: the ledger that the run was charged to.

    Raises:
        InvalidInput: the statement's ``ledger`` field cannot be read.

    **Guarantee**

    * The result is empty only if the charges of the run, up to the entry that the statement names, cover the
      cost of its event in every slot of the budget. In (epsilon, delta) mode, they only have to pay for its
      steps.
    * The result is empty only if the ledger's hash chain is unbroken and contains the statement's anchor.
    """
    charged = data.get("ledger", "none")
    if charged == "none":
        return ["it says that the run was not charged to a ledger."]
    check_against(_CHARGED, charged, what="the statement's part on its ledger")
    return list(_problems(data, charged, ledger))


def _problems(data: Mapping[str, Any], charged: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    dataset, run = charged["dataset"], charged["run"]
    if charged["ledger"] != ledger.uuid:
        yield f"its run was charged to ledger {charged['ledger']}; the given one is {ledger.uuid}."
        return
    anchor = Anchor.parse(charged["head"])
    yield from (f"the ledger: {text}." for text in ledger.verify(dataset, anchor=anchor).problems)
    policy, guarantee = ledger.policy(dataset), data["guarantee"]
    if Adjacency.parse(guarantee["adjacency"]) is not policy.relation:
        yield f"its adjacency is {guarantee['adjacency']}; that of the data set is {policy.relation}."
    if guarantee["unit"] != policy.unit:
        yield f"its unit is one {guarantee['unit']}; that of the data set is one {policy.unit}."
    charges = [
        spent
        for spent in spendings(ledger.history(dataset)[: anchor.seq + 1])
        if spent.run == run and spent.dataset == dataset
    ]
    if not charges:
        yield f"the ledger has no charge of the run {run!r} on {dataset!r} up to entry {anchor.seq}."
        return
    steps = data["mechanism"]["steps"]
    if charged["steps"] < steps:
        yield f"{steps} steps were taken, and {charged['steps']} were charged."
    paid = tuple(map(sum, zip(*(spent.cost for spent in charges), strict=True)))
    yield from _underpaid(data, policy, paid)


def _underpaid(data: Mapping[str, Any], policy: Policy, paid: Cost) -> Iterator[str]:
    """Describe the first slot of the budget in which the charges are below the cost of the event.

    In (epsilon, delta) mode there is no such comparison, as the costs of steps do not add up to the event's.
    """
    if policy.budget.mode == "approximate":
        return
    due = policy.budget.price(read_event(data["event"]), policy.relation)
    for slot, cost, least in zip(policy.budget.slots, paid, due, strict=True):
        if cost < least * (1.0 - ROUNDING):
            yield f"its event costs {least} units ({slot}); the ledger was charged {cost} for the run."
            return
