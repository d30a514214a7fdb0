"""The cost of one charge in every data set and block that it concerns: prices, totals, refusals.

Blocks are the disjoint parts of a data set, and charges to them are composed in parallel: each block has a
separate total, as no person is in two blocks. Neighbours differ in one person, who is in one block, so only
charges to that block and to the whole data set count.

Under ``replace-one`` the person may be replaced by a person in another block. Then two blocks count, as one
loses a record and the other gains one. For noise on a sum, that is like exchanging a record for a record of
zeros, so the price of an exchange covers it.

A content belongs to the data set and the block under which it was first registered, and to all data sets that
this one is derived from, so that no content has two budgets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from tacit.ledger.budgets import Cost, Spent, sum_of
from tacit.ledger.policy import Policy
from tacit.ledger.records import Conflict, DatasetStatus, Price, Refused, moment

if TYPE_CHECKING:
    from tacit.ledger.store import DatasetRow, Transaction


WHOLE = ""
"""The name under which ``spent`` has the charges to the data set as a whole."""


def totals(policy: Policy, spent: Spent) -> Iterator[tuple[str, Cost]]:
    """Yield the totals that must stay under the cap, each with the names of its blocks.

    >>> from tacit.ledger import PureBudget
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), blocks=("a", "b"))
    >>> list(totals(policy, {"": (5,), "a": (2,)}))
    [('a', (7,)), ('b', (5,))]
    """
    nothing = (0,) * len(policy.budget.slots)
    whole = spent.get(WHOLE, nothing)
    at_once = min(2 if policy.relation is Adjacency.REPLACE_ONE else 1, len(policy.blocks))
    for group in combinations(policy.blocks, at_once):
        total = whole
        for block in group:
            total = sum_of(total, spent.get(block, nothing))
        yield " + ".join(group), total


def dearest(policy: Policy, spent: Spent) -> Cost:
    """Return the total that is nearest to the cap."""
    epsilon_of = policy.budget.epsilon_of
    return max((total for _, total in totals(policy, spent)), key=lambda total: (epsilon_of(total)[0], total))


def added(spent: Spent, block: str | None, cost: Cost) -> dict[str, Cost]:
    """Return ``spent`` after a charge to ``block``, or to the whole data set if ``block`` is None."""
    name = WHOLE if block is None else block
    before = spent.get(name)
    return {**spent, name: cost if before is None else sum_of(before, cost)}


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
        if not _is_noise_on_a_sum(base):
            raise UnsupportedEvent(
                f"{base!r} on one block has no proven price under replace-one: the exchanged record may "
                "change block, so a block gains or loses a record. Charge the whole data set instead."
            )


def _is_noise_on_a_sum(base: Event) -> bool:
    inner = base.event if isinstance(base, PoissonSampled) else base
    return isinstance(inner, Gaussian | GaussianMixture | Laplace | DiscreteGaussian | DiscreteLaplace)


@dataclass(frozen=True)
class Claim:
    """The cost of a charge in one data set: the charged one, or one from which that is derived."""

    row: DatasetRow
    block: str | None
    cost: Cost


def row_of(tx: Transaction, name: str) -> DatasetRow:
    """Return the row of a data set.

    Raises:
        InvalidInput: if the data set is not open; the message names those that are.
    """
    row = tx.dataset(name)
    if row is None:
        names = ", ".join(open_row.name for open_row in tx.datasets()) or "none"
        raise InvalidInput(f"no data set {name!r} is open in this ledger; open are: {names}.")
    return row


def status_of(tx: Transaction, row: DatasetRow) -> DatasetStatus:
    """Return the state of a data set's budget, as one transaction reads it."""
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
    """Return claims without costs, for a data set and those it is derived from, with the charged blocks."""
    claims = [Claim(row, block, ())]
    while row.policy.parent is not None:
        block, row = row.policy.parent_block, row_of(tx, row.policy.parent)
        claims.append(Claim(row, block, ()))
    return claims


def claims_of(
    tx: Transaction, name: str, event: Event, block: str | None, delta: float | None
) -> list[Claim]:
    """Return the costs of ``event`` in the data set ``name``, and in those that it is derived from."""
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
    """Return the price in the charged data set; ``refusal`` and ``remaining`` consider all data sets."""
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


_NOT_ADDED = " (Epsilons of releases do not add up here: the ledger adds divergences and converts the sum.)"


def refusal_of(claims: list[Claim]) -> Refused | None:
    """Return the refusal for the first data set that has too small a budget for a charge, or None."""
    for claim in claims:
        row, budget = claim.row, claim.row.policy.budget
        above = [total for total in _totals(claim, charged=True) if not budget.admits(total, row.cap)]
        if not above:
            continue
        before, after = _balance(claim, charged=False), _balance(claim, charged=True)
        limit, would_fit = budget.limit[0], min(map(_remaining, claims))
        over = (slot for slot, part, most in zip(budget.slots, above[0], row.cap, strict=True) if part > most)
        place = f"{row.name!r}" + (f", block {claim.block!r}" if claim.block else "")
        remark = "" if budget.mode in ("pure", "approximate") else _NOT_ADDED
        return Refused(
            f"the budget of {place} is too small for this release: epsilon {before:.6g} is spent, "
            f"{after:.6g} would be spent with it, and the cap is {limit:.6g}.{remark} Nothing was "
            f"charged. A release without delta fits up to epsilon {would_fit:.6g}.",
            dataset=row.name,
            over=tuple(over) or ("epsilon",),
            requested=after - before,
            remaining=max(0.0, limit - before),
            difference=max(0.0, after - limit),
            would_fit=would_fit,
        )
    return None


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
