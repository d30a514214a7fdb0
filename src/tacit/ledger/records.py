"""The records that a ledger returns: prices, charges, the state of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tacit.ledger.budgets import Cost
from tacit.ledger.chain import Json
from tacit.ledger.errors import Refused
from tacit.ledger.policy import Policy


@dataclass(frozen=True)
class Price:
    """The cost that an event would have now; asking charges nothing.

    Attributes:
        cost: the numbers that the budget counts, in its units.
        epsilon, delta: the cost of the event alone, as an epsilon and delta for people to read.
        balance: the epsilon of all charges so far.
        after: the epsilon of all charges so far and this event.
        refusal: the error that :meth:`Ledger.reserve` would raise, for this data set or one that it is
            derived from; None if the event fits.
        remaining: the largest epsilon of one further release without delta that would fit.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> price = ledger.price("visits", DiscreteLaplace(scale=4.0))
    >>> price.epsilon, price.after, price.fits
    (0.25, 0.25, True)
    """

    cost: Cost
    epsilon: float
    delta: float
    balance: float
    after: float
    refusal: Refused | None
    remaining: float

    @property
    def fits(self) -> bool:
        """Whether the event fits the budget."""
        return self.refusal is None


@dataclass(frozen=True)
class Charge:
    """A charge to a data set.

    ``token`` allows the process to run the mechanism. Only the caller who reserved the charge, or resumed it
    with the token, gets it; for all others it is None. A ``SETTLED`` charge has its ``answer``, which costs
    nothing more. A ``FORFEITED`` charge stays spent and has no answer.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> charge = ledger.reserve("visits", DiscreteLaplace(scale=4.0), key="1", request={})
    >>> charge.state, ledger.settle(charge, {"count": 417}).state
    ('RESERVED', 'SETTLED')
    """

    id: int
    dataset: str
    key: str
    state: str
    cost: Cost
    block: str | None
    lease_ends: datetime
    answer: Json = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class DatasetStatus:
    """The state of a data set's budget: what is spent, and what is left.

    Attributes:
        spent: the total cost that is nearest to its cap; with blocks, that of the most expensive block.
        spent_epsilon, spent_delta: that total as epsilon and delta. The guarantee is the cap.
        cap_epsilon, cap_delta: the limit on all releases together.
        remaining_epsilon: the largest epsilon of one further release without delta that would fit.
        charges: the number of charges in each state.
        blocks: the total cost of each block, including charges to the whole data set.
        fingerprint: the fingerprint of the newest content; None if there is none yet.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> status = ledger.status("visits")
    >>> status.cap_epsilon, status.spent_epsilon, status.remaining_epsilon
    (1.0, 0.0, 1.0)
    >>> status
    DatasetStatus('visits': epsilon 0 at delta 0 spent, of epsilon 1 at delta 0; 0 charges)
    """

    name: str
    policy: Policy
    spent: Cost
    cap: Cost
    spent_epsilon: float
    spent_delta: float
    cap_epsilon: float
    cap_delta: float
    remaining_epsilon: float
    charges: Mapping[str, int]
    blocks: Mapping[str, Cost]
    fingerprint: str | None
    head_seq: int
    head_hash: str
    opened: datetime

    def __repr__(self) -> str:
        spent = f"epsilon {self.spent_epsilon:.4g} at delta {self.spent_delta:g}"
        cap = f"epsilon {self.cap_epsilon:g} at delta {self.cap_delta:g}"
        count = sum(self.charges.values())
        charges = f"{count:,} {'charge' if count == 1 else 'charges'}"
        return f"DatasetStatus({self.name!r}: {spent} spent, of {cap}; {charges})"
