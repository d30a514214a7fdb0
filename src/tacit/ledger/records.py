"""What does a ledger answer with? Prices, charges, the state of a data set."""

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
    """What an event would cost now; nothing is charged by asking.

    :param cost: in the units of the budget, slot by slot.
    :param epsilon: of the event alone, with ``delta``: for people.
    :param balance: epsilon of everything so far, and ``after`` with this event too.
    :param refusal: what :meth:`Ledger.reserve` would raise, here or for a data set that this one is derived
        from; None if it fits.
    :param remaining: the largest epsilon of one further release without delta that would be granted.

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
        """Whether it would be granted."""
        return self.refusal is None


@dataclass(frozen=True)
class Charge:
    """A charge to a data set.

    ``token`` is not None if and only if a process that holds this object may run the mechanism: for each
    charge that is the one caller who reserved it, or took it up again with the token.  A charge that is found
    ``SETTLED`` has its ``answer``, at no cost.  A ``FORFEITED`` charge stays spent and has no answer.

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
    """What is spent of a data set's budget, and what is left.

    :param spent: the total that is nearest to its cap: of the most expensive block, where there are blocks.
    :param spent_epsilon: epsilon of that total, a balance; the guarantee is the cap.
    :param cap_epsilon: the limit on everything, with ``cap_delta``.
    :param remaining_epsilon: the largest epsilon of one further release without delta that would be granted.
    :param charges: how many charges are in which state.
    :param blocks: the total of every block, with the charges to the whole in it.
    :param fingerprint: of the newest content; None if nothing was asked or trained yet.

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
