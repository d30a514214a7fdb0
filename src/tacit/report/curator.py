"""How much of each budget is spent, on what, by whom, when? The curator's view of a ledger, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.ledger import Anchor, Cost, DatasetStatus, Entry, Ledger, Policy
from tacit.report.spending import (
    Spending,
    burned,
    dearest,
    shares,
    spendings,
    spent_after,
    totals,
)

_POINTS = 100  # of the curve


def curator_view(ledger: Ledger, datasets: Sequence[str] = ()) -> dict[str, Any]:
    """What `tacit ledger status` shows, of these data sets or of all.

    Every share is of the cap, in the slot of the budget that is fullest now; the shares of the analysts add
    up to all that is spent, except for what other blocks than the most expensive one have paid.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> charge = ledger.reserve("visits", DiscreteLaplace(scale=4.0), key="1", request={}, by="ada")
    >>> view = curator_view(ledger)["datasets"][0]
    >>> view["share"], view["spenders"][0]["by"]
    (0.25, 'ada')
    """
    names = datasets or [status.name for status in ledger.datasets()]
    views = [dataset_view(ledger.status(name), ledger.history(name)) for name in names]
    return {"ledger": ledger.uuid, "datasets": views}


def dataset_view(status: DatasetStatus, entries: Sequence[Entry]) -> dict[str, Any]:
    """The view of one data set, from its status and its history; see :func:`curator_view`."""
    policy, found, last = status.policy, spendings(entries), entries[-1]
    lost = burned(entries)
    costs = [status.spent, *(spent.cost for spent in found), *(() if lost is None else (lost,))]
    part = shares(policy.budget, status.cap, costs)
    return {
        "name": status.name,
        "unit": policy.unit,
        "adjacency": policy.relation.value,
        "mode": policy.budget.mode,
        "cap": {"epsilon": status.cap_epsilon, "delta": status.cap_delta},
        "spent": {"epsilon": status.spent_epsilon, "delta": status.spent_delta},
        "remaining_epsilon": status.remaining_epsilon,
        "share": part[0],
        "charges": dict(status.charges),
        "refusals": [entry.time.isoformat() for entry in entries if entry.kind == "refuse"],
        "spenders": _spenders(found, part[1 : 1 + len(found)]),
        "burned_share": 0.0 if lost is None else part[-1],
        "opened": entries[0].time.isoformat(),
        "curve": _curve(policy, status.cap, entries),
        "anchor": str(Anchor(last.body["ledger"], status.name, last.seq, last.hash)),
    }


def _spenders(found: Sequence[Spending], parts: Sequence[float]) -> list[dict[str, Any]]:
    """By person, the largest share first."""
    people: dict[str, dict[str, Any]] = {}
    for spent, part in zip(found, parts, strict=True):
        name = spent.by
        person = people.setdefault(name, {"by": name, "share": 0.0, "charges": 0, "last": "", "labels": {}})
        person["share"] += part
        person["charges"] += 1
        person["last"] = spent.time.isoformat()
        label = (spent.label or "query") if spent.run is None else f"run {spent.run}"
        person["labels"][label] = person["labels"].get(label, 0.0) + part
    return sorted(people.values(), key=lambda person: -person["share"])


def _curve(policy: Policy, cap: Cost, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The share of the cap that was spent at some 100 entries, in the slot that is fullest now."""
    spent = [entry for entry in entries if entry.kind in ("reserve", "burn")]
    every = max(1, len(spent) // _POINTS)
    shown = [entries[0], *(entry for n, entry in enumerate(spent, 1) if n % every == 0 or n == len(spent))]
    costs = [dearest(policy.budget, totals(policy, spent_after(entry)).values()) for entry in shown]
    parts = shares(policy.budget, cap, [costs[-1], *costs])[1:]
    return [{"time": entry.time.isoformat(), "share": part} for entry, part in zip(shown, parts, strict=True)]
