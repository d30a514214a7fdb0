"""A replay of the history, which checks entries, balance and charges against each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tacit.errors import TacitError
from tacit.events import event_from_json
from tacit.ledger.charges import MOVES, added, burnt, dearest, totals
from tacit.ledger.policy import Cost, Policy, budget_from_data
from tacit.ledger.records import GENESIS, Anchor, Entry, entry_hash

if TYPE_CHECKING:
    from tacit.ledger.store import ChargeRow, DatasetRow, Identity

# The replay finds these faults:
#
# * an entry that was changed, moved, added or removed;
# * a lowered balance, or a changed cost, state, answer, token, lease, fingerprint, policy or cap;
# * a charge below the price of its event, or one that the parent does not have.
#
# A person who can write to the database and knows all this can also rewrite the whole history, or restore an
# old backup. Only an anchor that was kept elsewhere reveals that.


_LOOSE = 1.0 + 1e-9
"""The largest ratio of costs between machines and versions of the accountants."""


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
    state = _Replay(row, identity)
    state.check_chain(entries)
    for entry in entries:
        try:
            state.apply(entry)
        except (TacitError, KeyError, TypeError, ValueError, AttributeError) as problem:
            state.says(entry, f"cannot be read as {entry.kind!r}: {problem}")
    if state.policy is not None:
        state.compare(charges, mirrored)
    if list(contents) != state.contents:
        state.problems.append("the stored fingerprints differ from the history's")
    if anchor is not None:
        state.check_anchor(entries, anchor)
    spent = () if state.policy is None else dearest(state.policy, state.spent)
    return Verification(tuple(state.problems), tuple(state.notes), spent, len(entries))


class _Replay:
    policy: Policy | None = None
    cap: Cost = ()
    opened: int | None = None

    def __init__(self, row: DatasetRow, identity: Identity) -> None:
        self.row = row
        self.identity = identity
        self.spent: dict[str, Cost] = {}
        self.contents: list[tuple[int, str, str | None]] = []
        self.charges: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.burnt: list[str] = []

    def says(self, entry: Entry | int, problem: str) -> None:
        number = entry if isinstance(entry, int) else entry.seq
        self.problems.append(f"entry {number}: {problem}")

    def check_chain(self, entries: Sequence[Entry]) -> None:
        row, previous, at = self.row, GENESIS, 0
        for number, entry in enumerate(entries):
            if entry.seq != number:
                self.says(number, f"is missing: the next one is number {entry.seq}")
                return
            if entry.prev_hash != previous:
                self.says(entry, "does not contain the hash of the entry before it")
            if entry.hash != entry_hash(entry.prev_hash, entry.text):
                self.says(entry, "is not what was hashed")
            about = {"ledger": self.identity.uuid, "dataset": row.name, "seq": number}
            for name, value in about.items():
                if entry.body.get(name) != value:
                    self.says(entry, f"says {name} {entry.body.get(name)!r}, not {value!r}")
            if entry.body.get("time", -1) < at:
                self.says(entry, "is earlier than the entry before it")
            previous, at = entry.hash, entry.body.get("time", at)

        if not entries:
            self.problems.append("there are no entries")
        if (row.head_seq, row.head_hash) != (len(entries) - 1, previous):
            self.problems.append(
                f"the head is entry {row.head_seq}, but the last entry is {len(entries) - 1}"
            )
        if row.head_time != at:
            self.problems.append("the stored time of the last entry differs from the entry's")

    # --- entries ------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        if entry.kind == "open":
            self._open(entry)
        elif self.policy is None:
            self.says(entry, "comes before the data set is open")
            return
        else:
            self._change(entry, self.policy)
        said = entry.body["spent"]
        if {block: tuple(cost) for block, cost in said.items()} != self.spent:
            self.says(entry, f"says spent {said}, and the costs so far add up to {self.spent}")

    def _open(self, entry: Entry) -> None:
        if entry.seq != 0:
            self.says(entry, "opens the data set again")
            return
        self.policy = Policy.from_data(entry.body["policy"])
        self.cap, self.opened = tuple(entry.body["cap"]), entry.body["opened"]
        self._check_cap(entry, self.policy)
        if entry.body["secret"] != hashlib.sha256(self.identity.secret).hexdigest():
            self.says(entry, "was written with a secret that is not the ledger's")

    def _change(self, entry: Entry, policy: Policy) -> None:
        body = entry.body
        match entry.kind:
            case "reserve":
                self._reserve(entry, policy)
            case "settle" | "forfeit" | "resume":
                before, after = MOVES[entry.kind]
                charge = self.charges[body["charge"]]
                if charge["state"] not in before:
                    self.says(entry, f"is a {entry.kind} of a charge that is {charge['state']}")
                charge |= {"state": after, "answer": body.get("answer")}
                charge |= {name: body[name] for name in ("token_hash", "lease_ends") if name in body}
            case "refuse":
                pass
            case "content":
                self.contents.append((entry.seq, body["fingerprint"], body["block"]))
            case "raise-cap":
                raised = budget_from_data(body["budget"])
                self.policy = replace(policy, budget=raised)
                self.cap = tuple(body["cap"])
                self._check_cap(entry, self.policy)
                self.notes.append(
                    f"entry {entry.seq}, {entry.time:%Y-%m-%d}: the cap was raised from (epsilon, delta) "
                    f"{policy.budget.limit} to {raised.limit}: {body['reason']!r}, by {body['by']!r}. The "
                    "promise at opening is void."
                )
            case "burn":
                self.spent = burnt(self.spent, self.cap)
                self.burnt.append(body["anchor"])
                self.notes.append(
                    f"entry {entry.seq}, {entry.time:%Y-%m-%d}: a backup was restored, older than "
                    f"{body['anchor']}; what was left of the budget was burnt."
                )
            case _:
                self.says(entry, f"is of no known kind: {entry.kind!r}")

    def _check_cap(self, entry: Entry, policy: Policy) -> None:
        most = policy.budget.cap
        if len(most) != len(self.cap) or any(c > m * _LOOSE for c, m in zip(self.cap, most, strict=True)):
            self.says(entry, f"has the cap {self.cap}, and the budget allows {most}")

    def _reserve(self, entry: Entry, policy: Policy) -> None:
        body, budget, block = entry.body, policy.budget, entry.body["block"]
        cost = budget.check_cost(body["cost"])
        price = budget.price(event_from_json(body["event"]), policy.relation, delta=body["delta"])
        if any(part * _LOOSE < least for part, least in zip(cost, price, strict=True)):
            self.says(entry, f"charges {cost} for an event that costs {price}")
        if block is not None and block not in policy.blocks:
            self.says(entry, f"charges the unknown block {block!r}")
        self.spent = added(self.spent, block, cost)
        if not all(budget.admits(total, self.cap) for _, total in totals(policy, self.spent)):
            self.says(entry, "takes the total over the cap")
        if body["charge"] in self.charges:
            self.says(entry, f"makes the charge {body['charge']} a second time")
        origin = body["for"]["charge"] if "for" in body else None
        charge = {"cost": cost, "state": "RESERVED", "answer": None, "origin": origin}
        charge |= {name: body[name] for name in ("key", "request", "block", "token_hash", "lease_ends")}
        self.charges[body["charge"]] = charge

    # --- the stored state ---------------------------------------------------------------------------------

    def compare(self, charges: Sequence[ChargeRow], mirrored: Sequence[ChargeRow]) -> None:
        row = self.row
        assert self.policy is not None, "checked by the caller"
        if row.policy.to_data() != self.policy.to_data():
            self.problems.append("the stored policy differs from the history's")
        if row.cap != self.cap:
            self.problems.append(f"the stored cap is {row.cap}, by the history {self.cap}")
        if dict(row.spent) != self.spent:
            self.problems.append(f"the stored total is {dict(row.spent)}, by the history {self.spent}")
        if row.opened != self.opened:
            self.problems.append("the stored time of opening differs from the history's")

        stored = {charge.id: charge for charge in charges}
        for number in sorted(set(stored) ^ set(self.charges)):
            place = "the history, but is not stored" if number in self.charges else "no entry"
            self.problems.append(f"charge {number} is in {place}")
        for number in sorted(set(stored) & set(self.charges)):
            charge = stored[number]
            values = vars(charge) | {"request": charge.request_hash}
            if charge.answer is not None:
                values["answer"] = hashlib.sha256(charge.answer.encode()).hexdigest()
            for name, was in self.charges[number].items():
                value = values[name]
                if value != was and (name != "answer" or charge.origin is None):  # a mirror has no answer
                    self.problems.append(
                        f"charge {number} is stored with {name} {value!r}, by the history it is {was!r}"
                    )

        parent = row.policy.parent
        above = {charge.origin for charge in mirrored}
        for charge in charges:
            if parent is not None and (charge.origin or charge.id) not in above:
                self.problems.append(f"charge {charge.id} is not charged to the parent {parent!r}")

    def check_anchor(self, entries: Sequence[Entry], anchor: Anchor) -> None:
        own = self.identity.uuid, self.row.name
        if (anchor.ledger, anchor.dataset) != own:
            self.problems.append(
                f"the anchor is of data set {anchor.dataset!r} in ledger {anchor.ledger}, but this is "
                f"{own[1]!r} in {own[0]}: another ledger, or a copy, has a separate budget"
            )
        elif str(anchor) in self.burnt:
            self.notes.append(f"the anchor {anchor} is the one that the recovery names")
        elif anchor.seq >= len(entries):
            self.problems.append(
                f"the history ends at entry {len(entries) - 1}, before the anchor at {anchor.seq}: an old "
                "backup was restored. Use Ledger.recover_from_backup."
            )
        elif entries[anchor.seq].hash != anchor.hash:
            self.problems.append(f"entry {anchor.seq} differs from the anchor's: the history was rewritten")
