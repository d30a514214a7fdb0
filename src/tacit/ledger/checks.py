"""What does a ledger check before it writes, and how does it find its charges?"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING

from tacit.errors import InvalidInput
from tacit.ledger.chain import moment
from tacit.ledger.claims import row_of
from tacit.ledger.errors import Conflict, LeaseLost
from tacit.ledger.identity import keyed_hash
from tacit.ledger.policy import Policy
from tacit.ledger.records import Charge

if TYPE_CHECKING:
    from tacit.ledger.store import Transaction
    from tacit.ledger.tables import ChargeRow, DatasetRow

# --- data sets ----------------------------------------------------------------------------------------------


def check_same_policy(known: DatasetRow, policy: Policy) -> None:
    """Raise if a data set is open with another policy, naming the fields that differ.

    :raises Conflict: with both values of each.
    """
    old, new = known.policy.to_data(), policy.to_data()
    differ = sorted(field for field in old if old[field] != new[field])
    if differ:
        shown = "; ".join(f"{field}: open with {old[field]!r}, asked {new[field]!r}" for field in differ)
        raise Conflict(
            f"data set {known.name!r} is open with another policy ({shown}). A policy is fixed at opening, "
            "for the promise depends on it. Only the cap can be raised, by Ledger.raise_cap."
        )


def check_parent(tx: Transaction, policy: Policy) -> None:
    """Raise unless the data set that a policy is derived from is open and protects the same people.

    :raises Conflict: for another unit or other neighbours.
    """
    if policy.parent is None:
        return
    parent = row_of(tx, policy.parent).policy
    for field in ("unit", "adjacency"):
        mine, theirs = getattr(policy, field), getattr(parent, field)
        if mine != theirs:
            raise Conflict(
                f"a data set derived from {policy.parent!r} protects the same {field}: there {theirs!r}, "
                f"here {mine!r}."
            )
    if policy.parent_block is not None and policy.parent_block not in parent.blocks:
        raise InvalidInput(f"{policy.parent_block!r} is no block of {policy.parent!r}.")


# --- charges ------------------------------------------------------------------------------------------------


def check_key(key: object) -> None:
    """Raise unless ``key`` may name a request."""
    if not isinstance(key, str) or not key or len(key) > 500 or key.startswith("@") or not key.isprintable():
        raise InvalidInput(
            f"a key is a text of 1 to 500 printable characters, not beginning with '@'; got {key!r}."
        )


def public_text(name: str, text: object) -> str:
    """``text``, if it is short enough to be stored."""
    if not isinstance(text, str) or len(text) > 500:
        raise InvalidInput(f"{name} must be a text of at most 500 characters; got {text!r}.")
    return text


def hash_of_token(secret: bytes, token: str) -> str:
    """The hash of a token that the history shows: keyed, as a token may be a guessable word."""
    return keyed_hash(secret, [b"token\n", token.encode()])


def check_token(row: ChargeRow, secret: bytes, token: str) -> None:
    """Raise unless it is the token of that charge."""
    if not hmac.compare_digest(row.token_hash, hash_of_token(secret, token)):
        raise LeaseLost(f"the token is not that of charge {row.key!r}: another process made the reservation.")


def locked_family(tx: Transaction, charge_id: int) -> tuple[list[ChargeRow], dict[int, DatasetRow]]:
    """A charge with its mirrors, itself first, and their data sets, locked."""
    rows = tx.lock(row.dataset_id for row in tx.family(charge_id))
    own = tx.family(charge_id)  # again: as it is under the lock
    if not own or own[0].id != charge_id:
        raise InvalidInput(f"there is no charge {charge_id} in this ledger.")
    return own, rows


def move(
    tx: Transaction,
    row: ChargeRow,
    before: str,
    after: str,
    *,
    answer: str | None = None,
    lease_ends: int | None = None,
) -> None:
    """Bring a charge from one state to another.

    :raises LeaseLost: if it is not in the first one.
    """
    if not tx.move(row, before, after, answer=answer, lease_ends=lease_ends):
        raise LeaseLost(f"charge {row.key!r} is no longer {before}: another process ended it.")


def found_charge(row: DatasetRow, known: ChargeRow, request_hash: str) -> Charge:
    """An existing charge, without its token."""
    if not hmac.compare_digest(known.request_hash, request_hash):
        raise Conflict(
            f"the key {known.key!r} on {row.name!r} belongs to another request. A key names one request: "
            "take a new key for a new one."
        )
    return charge_of(row, known)


def charge_of(row: DatasetRow, known: ChargeRow) -> Charge:
    """A stored charge as it is shown: without its token."""
    answer = None if known.answer is None else json.loads(known.answer)
    return Charge(
        known.id, row.name, known.key, known.state, known.cost, known.block, moment(known.lease_ends), answer
    )
