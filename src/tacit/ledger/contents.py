"""Fingerprints of contents, so that no content has two budgets.

A content belongs to the data set and the block under which it was first registered, and to all data sets that
this one is derived from. A changed copy has another fingerprint, and is not recognised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput
from tacit.ledger.claims import Claim, lineage, row_of
from tacit.ledger.errors import Conflict

if TYPE_CHECKING:
    from tacit.ledger.store import Transaction
    from tacit.ledger.tables import DatasetRow

_RULES = 2
"""The version of the rules for reading and checking cells; verdicts by another version do not count."""


@dataclass(frozen=True)
class Verdict:
    """The result of the curator's check of every cell against the policy, with the accepted exceptions.

    Attributes:
        missing: columns whose invalid cells count as missing.
        outside: columns whose numbers outside the bounds are clipped to them, and whose undeclared texts are
            in no group.

    >>> Verdict(("age", "age"))
    Verdict(missing=('age',), outside=())
    """

    missing: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("missing", "outside"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def to_data(self) -> dict[str, Any]:
        """Return the verdict as plain data, in the form that the history shows."""
        return {"rules": _RULES, "missing": list(self.missing), "outside": list(self.outside)}


def check_fingerprint(fingerprint: object) -> None:
    """Raise unless ``fingerprint`` has the form of a fingerprint."""
    if not isinstance(fingerprint, str) or not re.fullmatch(r"[0-9a-f]{64}", fingerprint):
        raise InvalidInput(f"fingerprint must be one from Ledger.fingerprint; got {fingerprint!r}.")


def unknown(tx: Transaction, name: str, fingerprint: str, block: str | None) -> list[Claim]:
    """Return claims for the data set and its ancestors, except those that have already registered a content.

    **Guarantee**

    * A content is refused if it is registered in a data set with a separate budget. So all charges for one
      content are within the cap of one data set, from which the others are derived.
    * A content is refused if it is registered as another block. It is also refused if it is registered as the
      whole data set and ``block`` names a block, as its people may be in other blocks too.

    Raises:
        Conflict: if the content is refused; the message names the data set or block that has it.
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
                "budget. Use that data set, or open this one with it as the parent."
            )
    for claim in claims:
        blocks = holders.get(claim.row.id, set())
        if claim.block is not None and blocks and claim.block not in blocks:
            where = " and ".join("the whole data set" if part is None else repr(part) for part in blocks)
            raise Conflict(
                f"the content for block {claim.block!r} of {claim.row.name!r} is known as {where}: no person "
                "may be in two blocks. Name that block, or no block."
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
