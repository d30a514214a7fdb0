"""What states does a charge go through? Reserved, then settled or forfeited, each inside one transaction.

A charge to a derived data set has a mirror in every data set above.  The ledger writes them, and changes
their states, together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tacit.ledger.blocks import added
from tacit.ledger.chain import moment
from tacit.ledger.checks import charge_of, check_token, hash_of_token, locked_family, move
from tacit.ledger.claims import Claim
from tacit.ledger.errors import LeaseLost
from tacit.ledger.records import Charge

if TYPE_CHECKING:
    from tacit.ledger.store import Transaction
    from tacit.ledger.tables import Identity


def take(
    tx: Transaction,
    claims: Sequence[Claim],
    facts: Mapping[str, Any],
    *,
    lease: int,
    token: str,
    identity: Identity,
) -> Charge:
    """Write a reservation and its mirrors; ``lease`` in microseconds."""
    first = claims[0]
    ends = max(tx.now(), first.row.head_time) + lease
    token_hash = hash_of_token(identity.secret, token)
    origin: int | None = None
    for claim in claims:
        mirrors = {} if origin is None else {"for": {"dataset": first.row.name, "charge": origin}}
        key = facts["key"] if origin is None else f"@{first.row.name}/{facts['key']}"
        number = tx.add_charge(
            claim.row.id,
            origin=origin,
            key=key,
            request_hash=facts["request"],
            cost=claim.cost,
            block=claim.block,
            token_hash=token_hash,
            lease_ends=ends,
        )
        entry = {
            **facts,
            **mirrors,
            "key": key,
            "charge": number,
            "cost": list(claim.cost),
            "block": claim.block,
            "token_hash": token_hash,
            "lease_ends": ends,
        }
        spent = added(claim.row.spent, claim.block, claim.cost)
        tx.append(claim.row, "reserve", entry, ledger=identity.uuid, spent=spent)
        origin = number if origin is None else origin
    assert origin is not None
    key, name = facts["key"], first.row.name
    return Charge(origin, name, key, "RESERVED", first.cost, first.block, moment(ends), None, token)


def end(
    tx: Transaction,
    charge: Charge,
    token: str,
    state: str,
    facts: Mapping[str, Any],
    *,
    answer: str | None,
    identity: Identity,
) -> Charge:
    """Bring a reservation to its end: ``SETTLED`` with an answer, or ``FORFEITED``.

    :raises LeaseLost: if the caller no longer holds it.
    """
    own, rows = locked_family(tx, charge.id)
    check_token(own[0], identity.secret, token)
    if own[0].state == state and own[0].answer == answer:  # an earlier call whose reply was lost
        return charge_of(rows[own[0].dataset_id], own[0])
    if own[0].state != "RESERVED":
        raise LeaseLost(
            f"charge {charge.key!r} on {charge.dataset!r} is {own[0].state}, so nothing may be released "
            "under it now. If its lease ended while the work went on, take it up again with Ledger.resume "
            "and the same token."
        )
    kind = {"SETTLED": "settle", "FORFEITED": "forfeit"}[state]
    for mine in own:
        move(tx, mine, "RESERVED", state, answer=answer if mine.origin is None else None)
        tx.append(rows[mine.dataset_id], kind, {**facts, "charge": mine.id}, ledger=identity.uuid)
    return charge_of(rows[own[0].dataset_id], replace(own[0], state=state, answer=answer))


def take_up(tx: Transaction, number: int, token: str, *, lease: int, identity: Identity) -> Charge:
    """Give a reservation, or a forfeited one, back to its holder; return a settled one unchanged.

    :raises LeaseLost: if the token is another's.
    """
    own, rows = locked_family(tx, number)
    check_token(own[0], identity.secret, token)
    row = rows[own[0].dataset_id]
    if own[0].state == "SETTLED":
        return charge_of(row, own[0])
    ends = max(tx.now(), row.head_time) + lease
    for mine in own:
        move(tx, mine, mine.state, "RESERVED", lease_ends=ends)
        facts = {"charge": mine.id, "lease_ends": ends}
        tx.append(rows[mine.dataset_id], "resume", facts, ledger=identity.uuid)
    resumed = charge_of(row, replace(own[0], state="RESERVED", lease_ends=ends))
    return replace(resumed, token=token)


def forfeit_overdue(tx: Transaction, number: int, *, identity: Identity) -> Charge | None:
    """Forfeit a reservation whose lease has ended; None if it was ended or resumed in the meantime."""
    own, rows = locked_family(tx, number)
    row = rows[own[0].dataset_id]
    if own[0].state != "RESERVED" or own[0].lease_ends > max(tx.now(), row.head_time):
        return None
    for mine in own:
        move(tx, mine, "RESERVED", "FORFEITED")
        facts = {"charge": mine.id, "why": "lease ended"}
        tx.append(rows[mine.dataset_id], "forfeit", facts, ledger=identity.uuid)
    return charge_of(row, replace(own[0], state="FORFEITED"))
