"""The states of a charge, and the changes to an open data set, each in one transaction.

A charge is reserved, then settled or forfeited. A charge to a derived data set has a mirror, a copy of the
charge, in every data set that this one is derived from. The ledger writes the charge and its mirrors, and
changes their states, together. Only two things of an open data set may change: its cap, and what is left of
it after a backup was restored. Entries record both.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput
from tacit.ledger.budgets import Budget
from tacit.ledger.claims import WHOLE, Claim, added, lineage, row_of
from tacit.ledger.policy import Policy
from tacit.ledger.records import Anchor, Charge, Conflict, LeaseLost, canonical, keyed_hash, moment

if TYPE_CHECKING:
    from tacit.ledger.store import ChargeRow, DatasetRow, Transaction


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_opening(name: str, policy: object) -> None:
    """Raise unless ``name`` can name a data set, and ``policy`` is a policy."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot name a data set. Use 1 to 100 letters, digits, '.', '-' and '_', with a letter "
            "or digit first."
        )
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a Policy; got {policy!r}.")


def check_same_policy(row: DatasetRow, policy: Policy) -> None:
    """Raise if a data set is open with another policy.

    Raises:
        Conflict: if the policies differ; the message gives both values of each field that differs.
    """
    old, new = row.policy.to_data(), policy.to_data()
    differ = sorted(field for field in old if old[field] != new[field])
    if differ:
        differences = "; ".join(
            f"{field}: open with {old[field]!r}, asked {new[field]!r}" for field in differ
        )
        raise Conflict(
            f"data set {row.name!r} is open with another policy ({differences}). The promise depends on the "
            "policy, so it is fixed at opening. Only the cap can be raised, by Ledger.raise_cap."
        )


def open_new(tx: Transaction, name: str, policy: Policy) -> None:
    """Open a data set; check that its parent is open and protects the same people.

    Raises:
        Conflict: if the parent has another unit or adjacency.
    """
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
    """Raise unless ``key`` may name a request."""
    if not isinstance(key, str) or not key or len(key) > 500 or key.startswith("@") or not key.isprintable():
        raise InvalidInput(
            f"key must be 1 to 500 printable characters without '@' at the start; got {key!r}."
        )


def public_text(name: str, text: object) -> str:
    """Return ``text`` if it is short enough for the public history, else raise."""
    if not isinstance(text, str) or len(text) > 500:
        raise InvalidInput(f"{name} must be a text of at most 500 characters; got {text!r}.")
    return text


def hash_of_token(secret: bytes, token: str) -> str:
    """Return the hash of a token that the history shows; it is keyed, as a token may be easy to guess."""
    return keyed_hash(secret, [b"token\n", token.encode()])


def check_token(row: ChargeRow, secret: bytes, token: str) -> None:
    """Raise unless ``token`` is the token of the charge ``row``."""
    if not hmac.compare_digest(row.token_hash, hash_of_token(secret, token)):
        raise LeaseLost(f"the token is not that of charge {row.key!r}: another process made the reservation.")


def locked_family(tx: Transaction, charge_id: int) -> tuple[list[ChargeRow], dict[int, DatasetRow]]:
    """Lock the data sets of a charge and of its mirrors, which are its copies in the parent data sets.

    Return a list of the charge and its mirrors, and the ledger's row of each data set by the data set's id.
    """
    rows = tx.lock(row.dataset_id for row in tx.family(charge_id))
    family = tx.family(charge_id)  # read again under the lock
    if not family or family[0].id != charge_id:
        raise InvalidInput(f"there is no charge {charge_id} in this ledger.")
    return family, rows


def existing_charge(row: DatasetRow, charge: ChargeRow, request_hash: str) -> Charge:
    """Return an existing charge without its token; refuse another request under the same key."""
    if not hmac.compare_digest(charge.request_hash, request_hash):
        raise Conflict(
            f"the key {charge.key!r} on {row.name!r} belongs to another request. A key names one request: "
            "take a new key for a new one."
        )
    return charge_of(row, charge)


def charge_of(row: DatasetRow, charge: ChargeRow) -> Charge:
    """Return a stored charge in the form that users get, without its token."""
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


def end(
    tx: Transaction, charge: Charge, token: str, state: str, facts: Mapping[str, Any], *, answer: str | None
) -> Charge:
    """End a reservation: its ``state`` becomes ``SETTLED``, with an answer, or ``FORFEITED``.

    Raises:
        LeaseLost: if the caller no longer holds the reservation.
    """
    family, rows = locked_family(tx, charge.id)
    check_token(family[0], tx.identity.secret, token)
    if family[0].state == state and family[0].answer == answer:  # an earlier call whose reply was lost
        return charge_of(rows[family[0].dataset_id], family[0])
    if family[0].state != "RESERVED":
        raise LeaseLost(
            f"charge {charge.key!r} on {charge.dataset!r} is {family[0].state}, so nothing may be released "
            "under it now. If its lease ended during the work, resume it with Ledger.resume and its token."
        )
    kind = {"SETTLED": "settle", "FORFEITED": "forfeit"}[state]
    for member in family:
        has_answer = answer is not None and member.origin is None  # mirrors have no answer
        tx.move(member, "RESERVED", state, {"answer": str(answer)} if has_answer else None)
        tx.append(rows[member.dataset_id], kind, {**facts, "charge": member.id})
    return charge_of(rows[family[0].dataset_id], replace(family[0], state=state, answer=answer))


def resume_charge(tx: Transaction, number: int, token: str, *, lease: int) -> Charge:
    """Reserve a charge again for the holder of its token; return a settled charge unchanged.

    Raises:
        LeaseLost: if the token is of another charge.
    """
    family, rows = locked_family(tx, number)
    check_token(family[0], tx.identity.secret, token)
    row = rows[family[0].dataset_id]
    if family[0].state == "SETTLED":
        return charge_of(row, family[0])
    ends = max(tx.now(), row.head_time) + lease
    for member in family:
        tx.move(member, member.state, "RESERVED", {"lease_ends": ends})
        tx.append(rows[member.dataset_id], "resume", {"charge": member.id, "lease_ends": ends})
    resumed = charge_of(row, replace(family[0], state="RESERVED", lease_ends=ends))
    return replace(resumed, token=token)


def forfeit_overdue(tx: Transaction, number: int) -> Charge | None:
    """Forfeit a reservation whose lease has ended; return None if another process ended or resumed it."""
    family, rows = locked_family(tx, number)
    row = rows[family[0].dataset_id]
    if family[0].state != "RESERVED" or family[0].lease_ends > max(tx.now(), row.head_time):
        return None
    for member in family:
        tx.move(member, "RESERVED", "FORFEITED")
        tx.append(rows[member.dataset_id], "forfeit", {"charge": member.id, "why": "lease ended"})
    return charge_of(row, replace(family[0], state="FORFEITED"))


def raise_cap(tx: Transaction, name: str, budget: Budget, *, reason: str, by: str) -> None:
    """Replace the budget by a larger one of the same mode and slots."""
    row = tx.lock([row_of(tx, name).id])[row_of(tx, name).id]
    old = row.policy.budget
    if (budget.mode, budget.slots) != (old.mode, old.slots):
        raise Conflict(
            f"a raised budget of {name!r} must have mode {old.mode!r} ({', '.join(old.slots)}); got "
            f"{budget.mode!r} ({', '.join(budget.slots)})."
        )
    if budget.cap == row.cap or any(new < was for new, was in zip(budget.cap, row.cap, strict=True)):
        raise InvalidInput(
            f"a cap can only be raised: {name!r} has {row.cap}, and {budget!r} gives {budget.cap}."
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
            f"the history of {name!r} holds the anchor at entry {anchor.seq}: nothing is missing."
        )
    for number in ids:
        row = _without_reservations(tx, rows[number])
        whole = row.spent.get(WHOLE, (0,) * len(row.cap))
        spent = {**row.spent, WHOLE: tuple(max(a, b) for a, b in zip(whole, row.cap, strict=True))}
        facts = {"anchor": str(anchor), "lost": anchor.seq - (len(entries) - 1)}
        tx.append(row, "burn", facts, spent=spent)


def _without_reservations(tx: Transaction, row: DatasetRow) -> DatasetRow:
    """Forfeit all reservations, as each may have been settled and its answer shown after the backup."""
    for charge in tx.charges(row.id):
        if charge.state == "RESERVED":
            tx.move(charge, "RESERVED", "FORFEITED", {"token_hash": "none"})
            facts = {"charge": charge.id, "why": "backup restored", "token_hash": "none"}
            row = tx.append(row, "forfeit", facts)
    return row
