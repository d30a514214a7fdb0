"""What may change about an open data set? The cap, and what is left after a backup; entries record both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tacit.errors import InvalidInput
from tacit.ledger.blocks import WHOLE
from tacit.ledger.chain import Anchor
from tacit.ledger.claims import lineage, row_of
from tacit.ledger.counting import Budget
from tacit.ledger.errors import Conflict

if TYPE_CHECKING:
    from tacit.ledger.store import Transaction
    from tacit.ledger.tables import DatasetRow


def raise_cap(tx: Transaction, name: str, budget: Budget, *, reason: str, by: str, ledger: str) -> None:
    """Replace the budget by a larger one of the same mode and slots."""
    row = tx.lock([row_of(tx, name).id])[row_of(tx, name).id]
    old = row.policy.budget
    if (budget.mode, budget.slots) != (old.mode, old.slots):
        raise Conflict(
            f"{name!r} counts in mode {old.mode!r} ({', '.join(old.slots)}), and so must a raised budget; "
            f"got {budget.mode!r} ({', '.join(budget.slots)})."
        )
    if budget.cap == row.cap or any(new < was for new, was in zip(budget.cap, row.cap, strict=True)):
        raise InvalidInput(
            f"a cap can only be raised: {name!r} has {row.cap}, and {budget!r} comes to {budget.cap}."
        )
    facts = {
        "budget": budget.to_data(),
        "cap": list(budget.cap),
        "was": list(row.cap),
        "reason": reason,
        "by": by,
    }
    tx.change_budget(row, replace(row.policy, budget=budget), budget.cap)
    tx.append(row, "raise-cap", facts, ledger=ledger)


def burn(tx: Transaction, name: str, anchor: Anchor, *, ledger: str) -> None:
    """Spend what is left of a data set and of those it is derived from; end all reservations for good."""
    ids = [claim.row.id for claim in lineage(tx, row_of(tx, name), None)]
    rows = tx.lock(ids)
    entries = tx.entries(ids[0])
    if anchor.seq < len(entries) and entries[anchor.seq].hash == anchor.hash:
        raise InvalidInput(
            f"the history of {name!r} holds the anchor at entry {anchor.seq}: nothing is missing."
        )
    for number in ids:
        row = _without_reservations(tx, rows[number], ledger)
        whole = row.spent.get(WHOLE, (0,) * len(row.cap))
        spent = {**row.spent, WHOLE: tuple(max(a, b) for a, b in zip(whole, row.cap, strict=True))}
        facts = {"anchor": str(anchor), "lost": anchor.seq - (len(entries) - 1)}
        tx.append(row, "burn", facts, ledger=ledger, spent=spent)


def _without_reservations(tx: Transaction, row: DatasetRow, ledger: str) -> DatasetRow:
    """Forfeit all reservations: each may have been settled, and its answer shown, after the backup."""
    for charge in tx.charges(row.id):
        if charge.state == "RESERVED":
            tx.move(charge, "RESERVED", "FORFEITED", token_hash="none")
            facts = {"charge": charge.id, "why": "backup restored", "token_hash": "none"}
            row = tx.append(row, "forfeit", facts, ledger=ledger)
    return row
