"""Charges to data sets and their ancestors: costs, totals, contents, and the states of a charge."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tacit.accounting.flatten import flatten
from tacit.errors import InvalidInput, UnsupportedEvent, check_real
from tacit.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
)
from tacit.events.base import check_event
from tacit.ledger.policy import DELTA_UNIT, Budget, Cost, Policy, Spent, sum_of
from tacit.ledger.records import (
    Anchor,
    Charge,
    Conflict,
    DatasetStatus,
    LeaseLost,
    Price,
    Refused,
    canonical,
    keyed_hash,
    moment,
)
from tacit.rounding import shown_epsilon

if TYPE_CHECKING:
    from tacit.ledger.store import ChargeRow, DatasetRow, Transaction

# Blocks are the disjoint parts of a data set, and charges to them are composed in parallel: each block has a
# separate total, as no person is in two blocks. Neighbours differ in one person, who is in one block, so only
# charges to that block and to the whole data set count.
#
# Under ``replace-one`` the person may be replaced by a person in another block. Then two blocks count, as one
# loses a record and the other gains one. For noise on a sum, that is like exchanging a record for a record of
# zeros, so the price of an exchange covers it.
#
# A content belongs to the data set and the block under which it was first registered, and to all data sets
# that this one is derived from, so that no content has two budgets.

CLAIMED = "claimed"
"""The prefix of the keys of charges for releases of other tools."""

WHOLE = ""
"""The name in ``spent`` for charges to the whole data set."""


def totals(policy: Policy, spent: Spent) -> Iterator[tuple[str, Cost]]:
    """Yield the totals that must stay under the cap, each with the names of its blocks."""
    nothing = (0,) * len(policy.budget.slots)
    whole = spent.get(WHOLE, nothing)
    at_once = min(2 if policy.relation is Adjacency.REPLACE_ONE else 1, len(policy.blocks))
    for group in combinations(policy.blocks, at_once):
        total = whole
        for block in group:
            total = sum_of(total, spent.get(block, nothing))
        yield " + ".join(group), total


def dearest(policy: Policy, spent: Spent) -> Cost:
    """Return the total nearest to the cap."""
    epsilon_of = policy.budget.epsilon_of
    return max((total for _, total in totals(policy, spent)), key=lambda total: (epsilon_of(total)[0], total))


def added(spent: Spent, block: str | None, cost: Cost) -> dict[str, Cost]:
    """Return ``spent`` after a charge to ``block``, or to the whole data set if ``block`` is None."""
    name = WHOLE if block is None else block
    before = spent.get(name)
    return {**spent, name: cost if before is None else sum_of(before, cost)}


def burnt(spent: Spent, cap: Cost) -> dict[str, Cost]:
    """Return ``spent`` after what was left of the whole data set's budget is spent."""
    whole = spent.get(WHOLE, (0,) * len(cap))
    return {**spent, WHOLE: tuple(max(pair) for pair in zip(whole, cap, strict=True))}


def check_block(policy: Policy, block: str | None, event: Event) -> None:
    """Raise unless the policy declares ``block``, and ``event`` on that block has a proven price."""
    if block is None:
        return
    if block not in policy.blocks:
        names = ", ".join(policy.blocks) or "none are declared"
        raise InvalidInput(f"block {block!r} is not one of the policy's blocks: {names}.")
    if policy.relation is not Adjacency.REPLACE_ONE:
        return
    for base, _ in flatten(event):
        noise = base.event if isinstance(base, PoissonSampled) else base
        if not isinstance(noise, Gaussian | GaussianMixture | Laplace | DiscreteGaussian | DiscreteLaplace):
            raise UnsupportedEvent(
                f"{base!r} on one block cannot be charged under replace-one: the new record may belong to "
                "another block, so a block gains or loses a record. Charge the whole data "
                "set instead."
            )


@dataclass(frozen=True)
class Claim:
    """The cost of a charge in one data set: the charged one or an ancestor."""

    row: DatasetRow
    block: str | None
    cost: Cost


def row_of(tx: Transaction, name: str) -> DatasetRow:
    row = tx.dataset(name)
    if row is None:
        names = ", ".join(open_row.name for open_row in tx.datasets()) or "none"
        raise InvalidInput(f"no data set {name!r} is open in this ledger. Open ones: {names}.")
    return row


def status_of(tx: Transaction, row: DatasetRow) -> DatasetStatus:
    policy, budget = row.policy, row.policy.budget
    spent = dearest(policy, row.spent)
    epsilon, delta = budget.epsilon_of(spent)
    nothing = (0,) * len(budget.slots)
    whole = row.spent.get(WHOLE, nothing)
    blocks = {block: sum_of(whole, row.spent.get(block, nothing)) for block in policy.blocks}
    contents = tx.contents(row.id)
    return DatasetStatus(
        name=row.name,
        policy=policy,
        spent=spent,
        cap=row.cap,
        spent_epsilon=epsilon,
        spent_delta=delta,
        cap_epsilon=budget.limit[0],
        cap_delta=budget.limit[1],
        remaining_epsilon=min(_remaining(claim) for claim in lineage(tx, row, None)),
        charges={"RESERVED": 0, "SETTLED": 0, "FORFEITED": 0} | tx.states(row.id),
        blocks=blocks,
        fingerprint=contents[-1][1] if contents else None,
        head_seq=row.head_seq,
        head_hash=row.head_hash,
        opened=moment(row.opened),
    )


def lineage(tx: Transaction, row: DatasetRow, block: str | None) -> list[Claim]:
    """Return claims without costs, for a data set and its ancestors, with the charged blocks."""
    claims = [Claim(row, block, ())]
    while row.policy.parent is not None:
        block, row = row.policy.parent_block, row_of(tx, row.policy.parent)
        claims.append(Claim(row, block, ()))
    return claims


def claims_of(
    tx: Transaction, name: str, event: Event, block: str | None, delta: float | None
) -> list[Claim]:
    """Return the costs of ``event`` in the data set ``name`` and in its ancestors."""
    check_event("event", event)
    if delta is not None:
        check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    claims = []
    for claim in lineage(tx, row_of(tx, name), block):
        policy = claim.row.policy
        check_block(policy, claim.block, event)
        cost = policy.budget.check_cost(policy.budget.price(event, policy.relation, delta=delta))
        claims.append(replace(claim, cost=cost))
    return claims


def _totals(claim: Claim, *, charged: bool) -> list[Cost]:
    """Return the totals that must stay under the cap, after the charge if ``charged``, else before it."""
    row = claim.row
    spent = added(row.spent, claim.block, claim.cost) if charged else row.spent
    return [total for _, total in totals(row.policy, spent)]


def _balance(claim: Claim, *, charged: bool) -> float:
    epsilon_of = claim.row.policy.budget.epsilon_of
    return max(epsilon_of(total)[0] for total in _totals(claim, charged=charged))


def _remaining(claim: Claim) -> float:
    """Return the largest epsilon of a release without delta that fits into the claim's block or data set."""
    row, budget, block = claim.row, claim.row.policy.budget, claim.block
    all_totals = list(totals(row.policy, row.spent))
    if not all(budget.admits(total, row.cap) for _, total in all_totals):
        return 0.0
    own = [total for blocks, total in all_totals if block is None or block in blocks.split(" + ")]
    return min(budget.would_fit(total, row.cap, row.policy.relation) for total in own)


def price_of(claims: list[Claim]) -> Price:
    """Return the cost in the charged data set; ``refusal`` and ``remaining`` consider all data sets."""
    first = claims[0]
    epsilon, delta = first.row.policy.budget.epsilon_of(first.cost)
    return Price(
        cost=first.cost,
        epsilon=epsilon,
        delta=delta,
        balance=_balance(first, charged=False),
        after=_balance(first, charged=True),
        refusal=refusal_of(claims),
        remaining=min(map(_remaining, claims)),
    )


_NOT_ADDED = " (Epsilons do not add up here: the ledger adds divergences and converts the sum.)"


def refusal_of(claims: list[Claim]) -> Refused | None:
    """Return the refusal for the first data set that has too small a budget for a charge, or None."""
    for claim in claims:
        row, budget = claim.row, claim.row.policy.budget
        above = [total for total in _totals(claim, charged=True) if not budget.admits(total, row.cap)]
        if not above:
            continue
        before, after = _balance(claim, charged=False), _balance(claim, charged=True)
        limit, would_fit = budget.limit[0], min(map(_remaining, claims))
        spent, asked = map(shown_epsilon, (before, after))
        cap, fits = (shown_epsilon(value, ROUND_FLOOR) for value in (limit, would_fit))
        over = [slot for slot, part, most in zip(budget.slots, above[0], row.cap, strict=True) if part > most]
        place = f"{row.name!r}" + (f", block {claim.block!r}" if claim.block else "")
        remark = "" if budget.mode in ("pure", "approximate") else _NOT_ADDED
        why = (
            f"the budget of {place} is too small for this release: epsilon {spent} is spent, {asked} "
            f"would be spent with it, and the cap is {cap}.{remark}"
        )
        if "delta" in over:
            name = "threshold_delta" if hasattr(budget, "threshold_delta") else "delta"
            why = (
                f"the deltas of the releases of {place} would add up to {above[0][-1] / DELTA_UNIT:g} with "
                f"this one, and the budget's {name}, which was fixed at opening, is "
                f"{row.cap[-1] / DELTA_UNIT:g}."
            )
        return Refused(
            f"{why} Nothing was charged. A release without delta fits up to epsilon {fits}.",
            dataset=row.name,
            over=tuple(over) or ("epsilon",),
            requested=after - before,
            remaining=max(0.0, limit - before),
            difference=max(0.0, after - limit),
            would_fit=would_fit,
        )
    return None


_RULES = 2
"""The version of the rules for reading and checking cells; verdicts of other versions are void."""


@dataclass(frozen=True)
class Verdict:
    """The result of the curator's check of every cell against the policy, with the accepted exceptions.

    >>> Verdict(("age", "age"))
    Verdict(missing=('age',), outside=())
    """

    missing: tuple[str, ...] = ()  # columns whose invalid cells count as missing
    # columns whose numbers outside the bounds are clipped to them, and whose undeclared texts are in no group
    outside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("missing", "outside"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def to_data(self) -> dict[str, Any]:
        return {"rules": _RULES, "missing": list(self.missing), "outside": list(self.outside)}


def check_fingerprint(fingerprint: object) -> None:
    if not isinstance(fingerprint, str) or not re.fullmatch(r"[0-9a-f]{64}", fingerprint):
        raise InvalidInput(f"fingerprint must come from Ledger.fingerprint; got {fingerprint!r}.")


def unknown(tx: Transaction, name: str, fingerprint: str, block: str | None) -> list[Claim]:
    """Return claims for the data set and its ancestors, except those that have already registered a content.

    **Guarantee**

    * A content is refused if it is registered in a data set with a separate budget. So all charges for one
      content are within the cap of one data set, from which the others are derived.
    * A content is refused if it is registered as another block. It is also refused if it is registered as the
      whole data set and ``block`` names a block, as its people may be in other blocks too.
    """
    claims = lineage(tx, row_of(tx, name), block)
    for claim in claims:
        if claim.block is not None and claim.block not in claim.row.policy.blocks:
            raise InvalidInput(
                f"block {claim.block!r} is not one of the blocks of {claim.row.name!r}: "
                f"{', '.join(claim.row.policy.blocks) or 'none are declared'}."
            )
    names = {row.id: row.name for row in tx.datasets()}
    holders: dict[int, set[str | None]] = {}
    for number, where in tx.holders(fingerprint):
        holders.setdefault(number, set()).add(where)
        root = lineage(tx, row_of(tx, names[number]), None)[-1].row
        if root.id != claims[-1].row.id:
            raise Conflict(
                f"the content of {name!r} is already open as {names[number]!r}: the same people share one "
                "budget. Use that data set, or open this one with it as parent."
            )
    for claim in claims:
        blocks = holders.get(claim.row.id, set())
        if claim.block is not None and blocks and claim.block not in blocks:
            where = " and ".join("the whole data set" if part is None else repr(part) for part in blocks)
            raise Conflict(
                f"block {claim.block!r} of {claim.row.name!r} has content that is registered as {where}: no "
                "person may be in two blocks. Use that block, or no block."
            )
    return [claim for claim in claims if claim.block not in holders.get(claim.row.id, set())]


def register(
    tx: Transaction, name: str, fingerprint: str, block: str | None, verdict: Verdict | None = None
) -> None:
    """Record a content in a data set and those it is derived from, and any verdict in the data set."""
    rows = tx.lock(row.id for row in tx.datasets())  # of two concurrent calls, the second sees the first
    judgement = {} if verdict is None else {"verdict": verdict.to_data()}
    new = unknown(tx, name, fingerprint, block)
    own = row_of(tx, name)
    if verdict is not None and verdict_of(tx, own, fingerprint) != verdict:
        new = [Claim(own, block, ()), *(claim for claim in new if claim.row.id != own.id)]
    for claim in new:
        facts = {
            "fingerprint": fingerprint,
            "block": claim.block,
            **(judgement if claim.row.id == own.id else {}),
        }
        row = tx.append(rows[claim.row.id], "content", facts)
        tx.add_content(row.id, row.head_seq, fingerprint, claim.block)


def verdict_of(tx: Transaction, row: DatasetRow, fingerprint: str) -> Verdict | None:
    """Return the newest verdict on a content by the present version of the rules; None if there is none."""
    for seq, content, _ in reversed(tx.contents(row.id)):
        data = tx.entry(row.id, seq).body.get("verdict") if content == fingerprint else None
        if isinstance(data, dict) and data.get("rules") == _RULES:
            return Verdict(tuple(data["missing"]), tuple(data["outside"]))
    return None


# --- changes to an open data set, each in one transaction --------------------------------------------------
#
# A charge is reserved, then settled or forfeited. A charge to a derived data set has a mirror, a copy of the
# charge, in every data set that this one is derived from. The ledger writes the charge and its mirrors, and
# changes their states, together. Only two things of an open data set may change: its cap, and what is left
# of it after a backup was restored. Entries record both.

MOVES = {
    "settle": (("RESERVED",), "SETTLED"),
    "forfeit": (("RESERVED",), "FORFEITED"),
    "resume": (("RESERVED", "FORFEITED"), "RESERVED"),  # a running lease is extended
}
"""For each kind of entry that moves a charge, the possible states before it, and the state after it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_opening(name: str, policy: object) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "name of a data set must be 1 to 100 letters, digits, '.', '-' and '_', with a letter or digit "
            f"first; got {name!r}."
        )
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a Policy; got {policy!r}.")


def check_same_policy(row: DatasetRow, policy: Policy) -> None:
    old, new = row.policy.to_data(), policy.to_data()
    differ = sorted(field for field in old if old[field] != new[field])
    if differ:
        differences = "; ".join(
            f"{field}: open with {old[field]!r}, asked {new[field]!r}" for field in differ
        )
        raise Conflict(
            f"data set {row.name!r} is open with another policy ({differences}). The policy is part of the "
            "promise, so it is fixed at opening. Only its cap can be raised, by Ledger.raise_cap."
        )


def open_new(tx: Transaction, name: str, policy: Policy) -> None:
    if policy.parent is not None:
        parent = row_of(tx, policy.parent).policy
        for field in ("unit", "adjacency"):
            own_value, parent_value = getattr(policy, field), getattr(parent, field)
            if own_value != parent_value:
                raise Conflict(
                    f"{field} must be that of the parent {policy.parent!r}, {parent_value!r}; got "
                    f"{own_value!r}."
                )
        if policy.parent_block is not None and policy.parent_block not in parent.blocks:
            raise InvalidInput(
                f"parent_block {policy.parent_block!r} is not a block of {policy.parent!r}: "
                f"{', '.join(parent.blocks) or 'none are declared'}."
            )
    row = tx.add_dataset(name, policy, policy.budget.cap)
    facts = {
        "policy": policy.to_data(),
        "cap": policy.budget.cap,
        "slots": policy.budget.slots,
        "secret": hashlib.sha256(tx.identity.secret).hexdigest(),
        "opened": row.opened,
    }
    tx.append(row, "open", facts)


# --- charges ------------------------------------------------------------------------------------------------


def check_key(key: object) -> None:
    if not isinstance(key, str) or not key or len(key) > 500 or key.startswith("@") or not key.isprintable():
        raise InvalidInput(
            f"key must be 1 to 500 printable characters without '@' at the start; got {key!r}."
        )


def public_text(name: str, text: object) -> str:
    if not isinstance(text, str) or len(text) > 500:
        raise InvalidInput(f"{name} must be a string of at most 500 characters; got {text!r}.")
    return text


def hash_of_token(secret: bytes, token: str) -> str:
    """Return the keyed hash of a token, for the history; a plain hash would confirm a guess."""
    return keyed_hash(secret, [b"token\n", token.encode()])


def check_token(row: ChargeRow, secret: bytes, token: str) -> None:
    if not hmac.compare_digest(row.token_hash, hash_of_token(secret, token)):
        raise LeaseLost(f"the token is not of charge {row.key!r}: another process made the reservation.")


def locked_family(tx: Transaction, charge_id: int) -> tuple[list[ChargeRow], dict[int, DatasetRow]]:
    """Lock the data sets of a charge and of its mirrors (its copies in the ancestors)."""
    # Return a list of the charge and its mirrors, and the ledger's row of each data set by the data set's id.
    rows = tx.lock(row.dataset_id for row in tx.family(charge_id))
    family = tx.family(charge_id)  # read again under the lock
    if not family or family[0].id != charge_id:
        raise InvalidInput(f"there is no charge {charge_id} in this ledger.")
    return family, rows


def existing_charge(row: DatasetRow, charge: ChargeRow, request_hash: str) -> Charge:
    if hmac.compare_digest(charge.request_hash, request_hash):
        return charge_of(row, charge)

    kind, _, release = charge.key.partition("/")
    if kind == CLAIMED:
        raise Conflict(
            f"release {release!r} of {row.name!r} was claimed before, with another guarantee or tool. "
            "Nothing was charged now. Give the new release another name."
        )
    raise Conflict(
        f"key {charge.key!r} on {row.name!r} belongs to another request. Use a new key for each request."
    )


def charge_of(row: DatasetRow, charge: ChargeRow) -> Charge:
    answer = None if charge.answer is None else json.loads(charge.answer)
    return Charge(
        charge.id,
        row.name,
        charge.key,
        charge.state,
        charge.cost,
        charge.block,
        moment(charge.lease_ends),
        answer,
    )


def take(
    tx: Transaction, claims: Sequence[Claim], facts: Mapping[str, Any], *, lease: int, token: str
) -> Charge:
    """Write a reservation and its mirrors; ``lease`` is in microseconds."""
    first, key = claims[0], facts["key"]
    ends = max(tx.now(), first.row.head_time) + lease
    token_hash = hash_of_token(tx.identity.secret, token)
    origin: int | None = None
    for claim in claims:
        mirrors = {} if origin is None else {"for": {"dataset": first.row.name, "charge": origin}}
        name = key if origin is None else f"@{first.row.name}/{key}"
        same = {"block": claim.block, "token_hash": token_hash, "lease_ends": ends}
        number = tx.add_charge(
            {
                "dataset_id": claim.row.id,
                "origin": origin,
                "idem_key": name,
                "request_hash": facts["request"],
                "cost": canonical(claim.cost),
                **same,
            }
        )
        entry = {**facts, **mirrors, **same, "key": name, "charge": number, "cost": claim.cost}
        tx.append(claim.row, "reserve", entry, spent=added(claim.row.spent, claim.block, claim.cost))
        origin = number if origin is None else origin
    assert origin is not None
    name = first.row.name
    return Charge(origin, name, key, "RESERVED", first.cost, first.block, moment(ends), None, token)


def _move(
    tx: Transaction,
    family: Sequence[ChargeRow],
    rows: Mapping[int, DatasetRow],
    kind: str,
    facts: Mapping[str, Any],
    **changes: Any,
) -> Charge:
    """Move a charge and its mirrors, with ``changes`` to their columns; only the charge gets an answer."""
    first, after = family[0], MOVES[kind][1]
    for member in family:
        own = changes if member is first else {name: changes[name] for name in changes if name != "answer"}
        tx.move(member, first.state, after, own)
        tx.append(rows[member.dataset_id], kind, {**facts, "charge": member.id})
    return charge_of(rows[first.dataset_id], replace(first, state=after, **changes))


def end(
    tx: Transaction, charge: Charge, token: str, kind: str, facts: Mapping[str, Any], answer: str | None
) -> Charge:
    """Settle a reservation, with an answer, or forfeit it."""
    family, rows = locked_family(tx, charge.id)
    first, state = family[0], MOVES[kind][1]
    check_token(first, tx.identity.secret, token)
    if first.state == state and first.answer == answer:  # an earlier call whose reply was lost
        return charge_of(rows[first.dataset_id], first)
    if first.state not in MOVES[kind][0]:
        raise LeaseLost(
            f"charge {charge.key!r} on {charge.dataset!r} is {first.state}, so nothing may be released "
            "under it now. If its lease ended during the work, resume it with Ledger.resume and its token."
        )
    return _move(tx, family, rows, kind, facts, answer=answer)


def resume_charge(tx: Transaction, number: int, token: str, *, lease: int) -> Charge:
    """Reserve a charge again for the holder of its token; return a settled charge unchanged."""
    family, rows = locked_family(tx, number)
    check_token(family[0], tx.identity.secret, token)
    row = rows[family[0].dataset_id]
    if family[0].state == "SETTLED":
        return charge_of(row, family[0])
    ends = max(tx.now(), row.head_time) + lease
    resumed = _move(tx, family, rows, "resume", {"lease_ends": ends}, lease_ends=ends)
    return replace(resumed, token=token)


def forfeit_overdue(tx: Transaction, number: int) -> Charge | None:
    """Forfeit a reservation whose lease has ended; return None if another process ended or resumed it."""
    family, rows = locked_family(tx, number)
    now = max(tx.now(), rows[family[0].dataset_id].head_time)
    if family[0].state != "RESERVED" or family[0].lease_ends > now:
        return None
    return _move(tx, family, rows, "forfeit", {"why": "lease ended"})


def raise_cap(tx: Transaction, name: str, budget: Budget, *, reason: str, by: str) -> None:
    row = tx.lock([row_of(tx, name).id])[row_of(tx, name).id]
    old = row.policy.budget
    if (budget.mode, budget.slots) != (old.mode, old.slots):
        raise Conflict(
            f"budget must have the mode of {name!r}, {old.mode!r} ({', '.join(old.slots)}); got "
            f"{budget.mode!r} ({', '.join(budget.slots)})."
        )
    if budget.cap == row.cap or any(new < was for new, was in zip(budget.cap, row.cap, strict=True)):
        raise InvalidInput(
            f"budget must exceed the present cap of {name!r}, {row.cap}; got {budget.cap}, from {budget!r}."
        )
    facts = {"budget": budget.to_data(), "cap": budget.cap, "was": row.cap, "reason": reason, "by": by}
    tx.change_budget(row, replace(row.policy, budget=budget), budget.cap)
    tx.append(row, "raise-cap", facts)


def burn(tx: Transaction, name: str, anchor: Anchor) -> None:
    """Spend what is left in a data set and its ancestors, and forfeit all their reservations for good."""
    ids = [claim.row.id for claim in lineage(tx, row_of(tx, name), None)]
    rows = tx.lock(ids)
    entries = tx.entries(ids[0])
    if anchor.seq < len(entries) and entries[anchor.seq].hash == anchor.hash:
        raise InvalidInput(
            f"the history of {name!r} still contains the anchor, at entry {anchor.seq}. Nothing is missing, "
            "so nothing needs recovery."
        )
    for number in ids:
        row = rows[number]
        # each reservation may have been settled, and its answer shown, after the backup
        for charge in tx.charges(number):
            if charge.state == "RESERVED":
                tx.move(charge, "RESERVED", "FORFEITED", {"token_hash": "none"})
                facts = {"charge": charge.id, "why": "backup restored", "token_hash": "none"}
                row = tx.append(row, "forfeit", facts)
        lost = {"anchor": str(anchor), "lost": anchor.seq - (len(entries) - 1)}
        tx.append(row, "burn", lost, spent=burnt(row.spent, row.cap))
