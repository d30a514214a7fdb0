"""The charges of a data set, and the curator's view: who spent which share of a budget, and when.

Charges and view are plain data from the entries of a ledger. The view is also available as one self-contained
HTML page, with a bar, a table and a curve for each data set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_FLOOR
from itertools import combinations, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any

from tacit.events import Adjacency
from tacit.ledger import Anchor, Budget, DatasetStatus, Ledger, Policy, RenyiBudget
from tacit.ledger.charges import CLAIMED
from tacit.ledger.policy import OWNED_BY, Cost
from tacit.ledger.records import Entry
from tacit.report.canvas import BLUE, PALE, line_style, new_chart, to_svg
from tacit.report.document import page
from tacit.rounding import pair, shown_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Spending:
    """One charge, from the entries of a ledger; ``seq`` and ``time`` (in UTC) are those of its reservation.

    ``cost`` is in the units of the budget. ``block`` is None for all data, and no person is in two blocks.
    ``dataset`` is the data set that was read: this one, or one derived from it. ``run`` is None for a query
    and a claim. ``is_claim`` says whether another tool made the release. ``state`` is RESERVED, SETTLED or
    FORFEITED.
    """

    seq: int
    time: datetime
    event: Mapping[str, Any]
    cost: Cost
    block: str | None
    delta: float | None
    by: str
    label: str
    dataset: str
    run: str | None
    is_claim: bool
    state: str

    @property
    def kind(self) -> str:
        """The kind: "query", "claimed", "training", or "training by people" (each with several rows)."""
        if self.is_claim:
            return CLAIMED
        if self.run is None:
            return "query"
        return "training by people" if OWNED_BY in self.label else "training"


def spendings(entries: Sequence[Entry]) -> list[Spending]:
    """Return all charges in the order of their reservations, each in its latest state."""
    charges: dict[int, Spending] = {}
    for entry in entries:
        body = entry.body
        match entry.kind:
            case "reserve":
                charges[body["charge"]] = _reserved(entry)
            case "resume":
                charges[body["charge"]] = replace(charges[body["charge"]], state="RESERVED")
            case "settle":
                charges[body["charge"]] = replace(charges[body["charge"]], state="SETTLED")
            case "forfeit":
                charges[body["charge"]] = replace(charges[body["charge"]], state="FORFEITED")
    return list(charges.values())


def totals(policy: Policy, charged: Sequence[tuple[str | None, Cost]]) -> dict[tuple[str, ...], Cost]:
    """Sum, for each block, the charges (block, cost) on that block and on all data (block None).

    No person is in two blocks, so a person's cost comes from one block (parallel composition, McSherry 2009).
    Under replace-one, the replaced and the new person may be in different blocks, so there is a sum for each
    pair of blocks.
    """
    width = len(policy.budget.slots)
    at_once = 2 if policy.relation is Adjacency.REPLACE_ONE else 1
    return {
        names: _sum(width, [cost for block, cost in charged if block in (None, *names)])
        for names in combinations(policy.blocks, min(at_once, len(policy.blocks)))
    }


def dearest(budget: Budget, costs: Iterable[Cost]) -> Cost:
    """Return the cost with the largest epsilon."""
    return max(costs, key=lambda cost: (budget.epsilon_of(cost), cost))


def shares(budget: Budget, cap: Cost, costs: Sequence[Cost]) -> list[float]:
    """Return each cost as a share of the cap in the binding slot, so that the shares can be added.

    The binding slot is the slot that the first cost fills most. In a Renyi budget, only one order has to stay
    within its cap. So the binding slot is the order with the most room, or the last slot if it is fuller.
    """
    binding = binding_slot(budget, cap, costs[0])
    return [cost[binding] / cap[binding] if cap[binding] else 0.0 for cost in costs]


def binding_slot(budget: Budget, cap: Cost, cost: Cost) -> int:
    """Return the slot of the budget that a cost fills most; see :func:`shares`."""
    ratios = [used / most if most else float(used > 0) for used, most in zip(cost, cap, strict=True)]
    slots = list(range(len(ratios)))
    if isinstance(budget, RenyiBudget):
        orders = [slot for slot in slots[:-1] if cap[slot]]
        slots = [min(orders, key=lambda slot: ratios[slot]), slots[-1]]
    return max(slots, key=lambda slot: ratios[slot])


def counted_in(budget: Budget, cap: Cost, cost: Cost) -> str:
    """Write what a share of the budget is a share of, if it is not of epsilon; else "".

    >>> from tacit.ledger import ZeroConcentratedBudget
    >>> counted_in(ZeroConcentratedBudget(1.0, 1e-6), (100,), (50,))
    ' (counted in rho)'
    """
    name = budget.slots[binding_slot(budget, cap, cost)]
    if name == "epsilon":
        return ""
    return f" (counted in {name.replace('order', 'Rényi divergence of order')})"


def spent_after(entry: Entry) -> list[tuple[str | None, Cost]]:
    """Return pairs (block, sum charged up to this entry). The block None stands for all data."""
    return [(block or None, tuple(cost)) for block, cost in entry.body["spent"].items()]


def burned(entries: Sequence[Entry]) -> Cost | None:
    """Return the units burned on all data because an old backup was restored, or None if none were burned."""
    gaps = []
    for before, entry in pairwise(entries):
        if entry.kind == "burn":
            after = dict(spent_after(entry))[None]
            was = dict(spent_after(before)).get(None, (0,) * len(after))
            gaps.append(tuple(map(sub, after, was)))
    return _sum(len(gaps[0]), gaps) if gaps else None


def _sum(width: int, costs: Sequence[Cost]) -> Cost:
    return tuple(sum(cost[slot] for cost in costs) for slot in range(width))


def _reserved(entry: Entry) -> Spending:
    body = entry.body
    dataset = body["for"]["dataset"] if "for" in body else body["dataset"]
    key = str(body["key"]).removeprefix(f"@{dataset}/")
    kind, _, rest = key.partition("/")
    is_run = kind in ("training", "selection") and rest
    return Spending(
        seq=entry.seq,
        time=entry.time,
        event=json.loads(body["event"]),
        cost=tuple(body["cost"]),
        block=body["block"],
        delta=body["delta"],
        by=body["by"],
        label=body["label"],
        dataset=dataset,
        run=rest.partition("/")[0] if is_run else None,
        is_claim=kind == CLAIMED and bool(rest),
        state="RESERVED",
    )


_POINTS = 100  # points of the curve


def curator_view(ledger: Ledger, datasets: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `tacit ledger status` shows of these data sets, or of all data sets.

    Every share is a share of the cap, in the slot of the budget that is fullest now. The shares of the
    analysts and the burned share add up to the spent share, plus the charges on blocks other than the most
    expensive one.
    """
    names = datasets or [status.name for status in ledger.datasets()]
    views = [dataset_view(ledger.status(name), ledger.history(name)) for name in names]
    return {"ledger": ledger.uuid, "datasets": views}


def dataset_view(status: DatasetStatus, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the view of one data set from its status and its history; see :func:`curator_view`."""
    policy, charges, last = status.policy, spendings(entries), entries[-1]
    burnt = burned(entries)
    costs = [status.spent, *(spent.cost for spent in charges), *(() if burnt is None else (burnt,))]
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
        "counted_in": counted_in(policy.budget, status.cap, status.spent),
        "charges": dict(status.charges),
        "refusals": [entry.time.isoformat() for entry in entries if entry.kind == "refuse"],
        "spenders": _spenders(charges, part[1 : 1 + len(charges)]),
        "burned_share": 0.0 if burnt is None else part[-1],
        "opened": entries[0].time.isoformat(),
        "curve": _curve(policy, status.cap, entries),
        "anchor": str(Anchor(last.body["ledger"], status.name, last.seq, last.hash)),
    }


def _spenders(spendings: Sequence[Spending], parts: Sequence[float]) -> list[dict[str, Any]]:
    """Sum the charges by person. The person with the largest share comes first."""
    people: dict[str, dict[str, Any]] = {}
    for spent, part in zip(spendings, parts, strict=True):
        name = spent.by
        person = people.setdefault(name, {"by": name, "share": 0.0, "charges": 0, "last": "", "labels": {}})
        person["share"] += part
        person["charges"] += 1
        person["last"] = spent.time.isoformat()
        label = (spent.label or "query") if spent.run is None else f"run {spent.run}"
        label = f"claimed: {label}" if spent.is_claim else label
        person["labels"][label] = person["labels"].get(label, 0.0) + part
    return sorted(people.values(), key=lambda person: -person["share"])


def _curve(policy: Policy, cap: Cost, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the share of the cap that was spent at about 100 entries, in the slot that is fullest now."""
    spent = [entry for entry in entries if entry.kind in ("reserve", "burn")]
    every = max(1, len(spent) // _POINTS)
    points = [entries[0], *(entry for n, entry in enumerate(spent, 1) if n % every == 0 or n == len(spent))]
    costs = [dearest(policy.budget, totals(policy, spent_after(entry)).values()) for entry in points]
    parts = shares(policy.budget, cap, [costs[-1], *costs])[1:]
    return [
        {"time": entry.time.isoformat(), "share": part} for entry, part in zip(points, parts, strict=True)
    ]


Data = Mapping[str, Any]

_SPANS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def curator_page(view: Data) -> str:
    """Write the HTML page of a view from :func:`tacit.report.spending.curator_view`."""
    return page(
        "curator.html",
        "Privacy budgets",
        **view,
        chart=lambda dataset: to_svg(curator_chart(dataset)),
        spent_in_words=spent_in_words,
        no_entry=NO_ENTRY,
    )


NOT_ADDED = (
    "The ε of single releases do not add up to the ε that is spent: the ledger adds up the quantities from "
    "which they are computed, and counts the part of the budget in these."
)
"""The remark next to the spent ε and the spent share of the budget."""


NO_ENTRY = " (runs and previews that do not fit ask for no charge, and are not counted)"
"""The remark next to the number of refusals."""


def counts_epsilon(mode: str) -> bool:
    """Return whether a budget of this mode adds up the ε of its releases."""
    return mode in ("pure", "approximate")


def spent_in_words(dataset: Data) -> str:
    """Describe in a few sentences what is spent and what the budget still allows."""
    remark = "" if counts_epsilon(dataset["mode"]) else f" {NOT_ADDED}"
    return (
        f"Spent: {100.0 * dataset['share']:.3g} % of the budget{dataset['counted_in']}. "
        f"All releases together have {pair(dataset['spent'])}, of {pair(dataset['cap'])}, for one "
        f"{dataset['unit']} ({dataset['adjacency']}).{remark} One more release of at most "
        f"ε = {shown_epsilon(dataset['remaining_epsilon'], ROUND_FLOOR)} at δ = 0 would fit."
    )


def curator_chart(dataset: Data) -> Axes:
    """Draw the spent share over time, with the cap and the refusals."""
    opened = datetime.fromisoformat(dataset["opened"])

    def since(time: str) -> float:
        return (datetime.fromisoformat(time) - opened).total_seconds()

    times = [since(point["time"]) for point in dataset["curve"]]
    refused = [since(time) for time in dataset["refusals"]]
    span = max([*times, *refused, 1.0])
    name, unit = next((name, unit) for name, unit in _SPANS if span >= 2.0 * unit or unit == 1.0)
    axes = new_chart(
        f"{name} since the data set was opened",
        "% of the cap",
        title=f"The spent part of the budget of {dataset['name']}, over time",
    )
    at = [*(time / unit for time in times), span / unit]
    shares = [100.0 * point["share"] for point in dataset["curve"]]
    axes.fill_between(at, [*shares, shares[-1]], step="post", color=BLUE, alpha=0.22, linewidth=0)
    axes.step(at, [*shares, shares[-1]], where="post", **line_style(0), label="spent")
    axes.axhline(100.0, **line_style(1), label="cap")
    if refused:
        axes.vlines(
            [time / unit for time in refused], 96.0, 104.0, color=PALE, clip_on=False, label="refused"
        )
    axes.set(xlim=(0.0, span / unit), ylim=(0.0, 1.35 * max(100.0, *shares)))
    return axes
