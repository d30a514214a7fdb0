"""A replay of the history, which checks entries, balance and charges against each other.

The replay finds these faults:

* an entry that was changed, moved, added or removed;
* a lowered balance, or a changed cost, state, answer, token, lease, fingerprint, policy or cap;
* a charge below the price of its event, or one that the parent does not have.

A person who can write to the database and knows all this can also rewrite the whole history, or restore an
old backup. Only an anchor that was kept elsewhere reveals that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tacit.errors import TacitError
from tacit.events import event_from_json
from tacit.ledger.charges import WHOLE, added, dearest, totals
from tacit.ledger.policy import Cost, Policy, budget_from_data
from tacit.ledger.records import GENESIS, Anchor, Entry, entry_hash

if TYPE_CHECKING:
    from tacit.ledger.store import ChargeRow, DatasetRow, Identity

_LOOSE = 1.0 + 1e-9
"""The largest ratio of prices that different machines and versions of the accountants may compute."""
_MOVES = {
    "settle": (("RESERVED",), "SETTLED"),
    "forfeit": (("RESERVED",), "FORFEITED"),
    "resume": (("RESERVED", "FORFEITED"), "RESERVED"),  # a running lease is extended
}


@dataclass(frozen=True)
class Verification:
    """The findings of a replay.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> found = ledger.verify("visits")
    >>> found.ok, found.entries, found.problems
    (True, 1, ())
    """

    problems: tuple[str, ...]  # the contradictions that the replay found; empty if there are none
    # recorded events that change the guarantee: a raised cap, or a recovery from a backup
    notes: tuple[str, ...]
    spent: Cost  # the total cost that the replay computed; with blocks, that of the most expensive block
    entries: int  # the number of entries

    @property
    def ok(self) -> bool:
        """Whether the replay found no contradictions."""
        return not self.problems


@dataclass
class _Replay:
    policy: Policy | None = None
    cap: Cost = ()
    spent: dict[str, Cost] = field(default_factory=dict)
    contents: list[tuple[int, str, str | None]] = field(default_factory=list)
    opened: int | None = None
    charges: dict[int, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    burnt: list[str] = field(default_factory=list)

    def says(self, seq: int, problem: str) -> None:
        self.problems.append(f"entry {seq}: {problem}")


def replay(
    row: DatasetRow,
    entries: Sequence[Entry],
    charges: Sequence[ChargeRow],
    mirrored: Sequence[ChargeRow],
    contents: Sequence[tuple[int, str, str | None]],
    *,
    identity: Identity,
    anchor: Anchor | None = None,
) -> Verification:
    """Replay the history of a data set, and compare it with the stored state.

    **Guarantee**

    * If there are no problems, every total was under the cap when it was charged, every charge costs at least
      what its event costs, and the stored state is that which the entries give.
    * If an anchor is given too, the history up to its entry is the one from which it was taken.
    """
    state = _Replay()
    _check_chain(state, row, entries, identity)
    for entry in entries:
        try:
            _apply(state, entry, identity)
        except (TacitError, KeyError, TypeError, ValueError, AttributeError) as problem:
            state.says(entry.seq, f"cannot be read as {entry.kind!r}: {problem}")
    _compare(state, row, charges, mirrored)
    if list(contents) != state.contents:
        state.problems.append("the stored fingerprints are not those of the history")
    if anchor is not None:
        _check_anchor(state, row, entries, anchor, identity)
    spent = () if state.policy is None else dearest(state.policy, state.spent)
    return Verification(tuple(state.problems), tuple(state.notes), spent, len(entries))


def _check_chain(state: _Replay, row: DatasetRow, entries: Sequence[Entry], identity: Identity) -> None:
    previous, at = GENESIS, 0
    for number, entry in enumerate(entries):
        if entry.seq != number:
            state.says(number, f"is missing: the next one is number {entry.seq}")
            return
        if entry.prev_hash != previous:
            state.says(number, "does not hold the hash of the entry before it")
        if entry.hash != entry_hash(entry.prev_hash, entry.text):
            state.says(number, "is not what was hashed")
        about = {"ledger": identity.uuid, "dataset": row.name, "seq": number}
        for name, value in about.items():
            if entry.body.get(name) != value:
                state.says(number, f"says {name} {entry.body.get(name)!r}, not {value!r}")
        if entry.body.get("time", -1) < at:
            state.says(number, "is earlier than the entry before it")
        previous, at = entry.hash, entry.body.get("time", at)
    if not entries:
        state.problems.append("there are no entries")
    if (row.head_seq, row.head_hash) != (len(entries) - 1, previous):
        state.problems.append(f"the head is entry {row.head_seq}, but the last entry is {len(entries) - 1}")
    if row.head_time != at:
        state.problems.append("the stored time of the last entry is not the one in it")


def _apply(state: _Replay, entry: Entry, identity: Identity) -> None:
    body = entry.body
    if state.policy is None and entry.kind != "open":
        state.says(entry.seq, "comes before the data set is open")
        return
    match entry.kind:
        case "open":
            _open(state, entry, identity)
        case "reserve":
            _reserve(state, entry)
        case "settle" | "forfeit" | "resume":
            _move(state, entry)
        case "refuse":
            pass
        case "content":
            state.contents.append((entry.seq, body["fingerprint"], body["block"]))
        case "raise-cap":
            _raise(state, entry)
        case "burn":
            _burn(state, entry)
        case _:
            state.says(entry.seq, f"is of no known kind: {entry.kind!r}")
    if {block: tuple(cost) for block, cost in body["spent"].items()} != state.spent:
        state.says(entry.seq, f"says spent {body['spent']}, and the costs so far add up to {state.spent}")


def _open(state: _Replay, entry: Entry, identity: Identity) -> None:
    if entry.seq != 0:
        state.says(entry.seq, "opens the data set again")
        return
    state.policy = Policy.from_data(entry.body["policy"])
    state.cap, state.opened = tuple(entry.body["cap"]), entry.body["opened"]
    _check_cap(state, entry)
    if entry.body["secret"] != hashlib.sha256(identity.secret).hexdigest():
        state.says(entry.seq, "was written with another secret than the ledger has now")


def _check_cap(state: _Replay, entry: Entry) -> None:
    assert state.policy is not None
    most = state.policy.budget.cap
    if len(most) != len(state.cap) or any(c > m * _LOOSE for c, m in zip(state.cap, most, strict=True)):
        state.says(entry.seq, f"has the cap {state.cap}, and the budget allows {most}")


def _reserve(state: _Replay, entry: Entry) -> None:
    assert state.policy is not None, "before the data set is open"
    body, budget = entry.body, state.policy.budget
    cost = budget.check_cost(body["cost"])
    price = budget.price(event_from_json(body["event"]), state.policy.relation, delta=body["delta"])
    if any(part * _LOOSE < least for part, least in zip(cost, price, strict=True)):
        state.says(entry.seq, f"charges {cost} for an event that costs {price}")
    if body["block"] is not None and body["block"] not in state.policy.blocks:
        state.says(entry.seq, f"charges the unknown block {body['block']!r}")
    state.spent = added(state.spent, body["block"], cost)
    if not all(budget.admits(total, state.cap) for _, total in totals(state.policy, state.spent)):
        state.says(entry.seq, "takes the total over the cap")
    if body["charge"] in state.charges:
        state.says(entry.seq, f"makes the charge {body['charge']} a second time")
    origin = body["for"]["charge"] if "for" in body else None
    charge = {"cost": cost, "state": "RESERVED", "answer": None, "origin": origin}
    charge |= {name: body[name] for name in ("key", "request", "block", "token_hash", "lease_ends")}
    state.charges[body["charge"]] = charge


def _move(state: _Replay, entry: Entry) -> None:
    before, after = _MOVES[entry.kind]
    charge = state.charges[entry.body["charge"]]
    if charge["state"] not in before:
        state.says(entry.seq, f"is a {entry.kind} of a charge that is {charge['state']}")
    charge["state"] = after
    charge["answer"] = entry.body.get("answer")
    charge |= {name: entry.body[name] for name in ("token_hash", "lease_ends") if name in entry.body}


def _raise(state: _Replay, entry: Entry) -> None:
    assert state.policy is not None, "before the data set is open"
    body = entry.body
    before = state.policy.budget.limit
    state.policy = replace(state.policy, budget=budget_from_data(body["budget"]))
    state.cap = tuple(body["cap"])
    _check_cap(state, entry)
    state.notes.append(
        f"entry {entry.seq}, {entry.time:%Y-%m-%d}: the cap was raised from (epsilon, delta) {before} to "
        f"{state.policy.budget.limit}: {body['reason']!r}, by {body['by']!r}. The promise at opening is void."
    )


def _burn(state: _Replay, entry: Entry) -> None:
    nothing = (0,) * len(state.cap)
    whole = state.spent.get(WHOLE, nothing)
    state.spent = {**state.spent, WHOLE: tuple(max(a, b) for a, b in zip(whole, state.cap, strict=True))}
    state.burnt.append(entry.body["anchor"])
    state.notes.append(
        f"entry {entry.seq}, {entry.time:%Y-%m-%d}: a backup was restored, older than "
        f"{entry.body['anchor']}; what was left of the budget was burnt."
    )


def _compare(
    state: _Replay, row: DatasetRow, charges: Sequence[ChargeRow], mirrored: Sequence[ChargeRow]
) -> None:
    if state.policy is None:
        return
    if row.policy.to_data() != state.policy.to_data():
        state.problems.append("the stored policy is not the one of the history")
    if row.cap != state.cap:
        state.problems.append(f"the stored cap is {row.cap}, by the history {state.cap}")
    if dict(row.spent) != state.spent:
        state.problems.append(f"the stored total is {dict(row.spent)}, by the history {state.spent}")
    if row.opened != state.opened:
        state.problems.append("the stored time of opening is not the one of the history")
    stored = {charge.id: charge for charge in charges}
    for number in sorted(set(stored) ^ set(state.charges)):
        place = "the history, but is not stored" if number in state.charges else "no entry"
        state.problems.append(f"charge {number} is in {place}")
    for number in sorted(set(stored) & set(state.charges)):
        _compare_charge(state, stored[number], state.charges[number])
    if row.policy.parent is not None:
        above = {charge.origin for charge in mirrored}
        for charge in charges:
            if (charge.id if charge.origin is None else charge.origin) not in above:
                state.problems.append(
                    f"charge {charge.id} is not charged to the parent {row.policy.parent!r}"
                )


def _compare_charge(state: _Replay, stored: ChargeRow, replayed: Mapping[str, Any]) -> None:
    values = vars(stored) | {"request": stored.request_hash}
    if stored.answer is not None:
        values["answer"] = hashlib.sha256(stored.answer.encode()).hexdigest()
    for name, was in replayed.items():
        value = values[name]
        if value != was and (name != "answer" or stored.origin is None):  # a mirror has no answer
            state.problems.append(
                f"charge {stored.id} is stored with {name} {value!r}, by the history it is {was!r}"
            )


def _check_anchor(
    state: _Replay, row: DatasetRow, entries: Sequence[Entry], anchor: Anchor, identity: Identity
) -> None:
    if (anchor.ledger, anchor.dataset) != (identity.uuid, row.name):
        state.problems.append(
            f"the anchor is of data set {anchor.dataset!r} in ledger {anchor.ledger}, and this is "
            f"{row.name!r} in {identity.uuid}: another ledger, or a copy, has a separate budget"
        )
    elif str(anchor) in state.burnt:
        state.notes.append(f"the anchor {anchor} is the one that the recovery names")
    elif anchor.seq >= len(entries):
        state.problems.append(
            f"the history ends at entry {len(entries) - 1}, and the anchor was taken at {anchor.seq}: an old "
            "backup was restored. Use Ledger.recover_from_backup."
        )
    elif entries[anchor.seq].hash != anchor.hash:
        state.problems.append(
            f"entry {anchor.seq} differs from the one of the anchor: the history was rewritten"
        )
