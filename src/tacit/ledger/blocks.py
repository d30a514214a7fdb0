"""How are charges to parts of a data set composed? In parallel: each part has a total if no person is in two.

Neighbours differ in one person, who is in one block, so only charges to that block and to the whole count.
Under ``replace-one`` the neighbour may be a person of another block.  Then two blocks count: one loses a
record and one gains one, which the noise of a sum covers as if a record of zeros were exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

from tacit.accounting.flatten import flatten
from tacit.errors import InvalidInput, UnsupportedEvent
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
from tacit.ledger.counting import Cost
from tacit.ledger.policy import Policy

WHOLE = ""
"""The key of charges to the data set as a whole."""

Spent: TypeAlias = Mapping[str, Cost]


def totals(policy: Policy, spent: Spent) -> Iterator[tuple[str, Cost]]:
    """The totals that must stay under the cap, each with a name for people.

    >>> from tacit.ledger import PureBudget
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), blocks=("a", "b"))
    >>> list(totals(policy, {"": (5,), "a": (2,)}))
    [('a', (7,)), ('b', (5,))]
    """
    nothing = (0,) * len(policy.budget.slots)
    whole = spent.get(WHOLE, nothing)
    at_once = 2 if policy.relation is Adjacency.REPLACE_ONE else 1
    if len(policy.blocks) < at_once:
        at_once = len(policy.blocks)
    for chosen in combinations(policy.blocks, at_once):
        total = whole
        for block in chosen:
            total = _sum(total, spent.get(block, nothing))
        yield " + ".join(chosen), total


def _sum(first: Cost, second: Cost) -> Cost:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def added(spent: Spent, block: str | None, cost: Cost) -> dict[str, Cost]:
    """``spent`` after a charge to ``block``, or to the whole if it is None."""
    name = WHOLE if block is None else block
    before = spent.get(name)
    return {**spent, name: cost if before is None else _sum(before, cost)}


def check_block(policy: Policy, block: str | None, event: Event) -> None:
    """Raise unless the policy knows ``block``, and ``event`` on it has a guarantee."""
    if block is None:
        return
    if block not in policy.blocks:
        known = ", ".join(policy.blocks) or "none are declared"
        raise InvalidInput(f"block {block!r} is not one of the policy's blocks: {known}.")
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
