"""The entries, charges, costs and errors of a ledger; entries form a hash chain."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, TacitError
from tacit.ledger.policy import Cost, Policy
from tacit.rounding import shown_epsilon

# The body of an entry is canonical JSON (keys sorted, no spaces, no NaN). Its hash is the SHA-256 of the
# previous hash and that text. The last hash shows whether any entry was changed, added or removed.
#
# A plain hash of a table or a question would confirm a guess, as an attacker can hash the guess and compare.
# A keyed hash (HMAC-SHA-256) includes a secret of the ledger, so only a process that has the ledger can
# compare.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

GENESIS = "0" * 64
"""The hash before the first entry."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def canonical(value: object) -> str:
    _check_json(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_json(value: object) -> None:
    match value:
        case None | bool() | int() | str():
            return
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidInput(f"JSON has no {value!r}. Leave it out, or write it as a string.")
        case list() | tuple():
            for item in value:
                _check_json(item)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(f"keys of a JSON object must be strings; got {key!r}.")
                _check_json(item)
        case _:
            raise InvalidInput(f"{value!r} is not JSON: use numbers, strings, lists and objects.")


def entry_hash(previous: str, body: str) -> str:
    """Return SHA-256 of the previous hash and the body, in hexadecimal."""
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Entry:
    """One entry of a history.

    ``kind`` is ``open``, ``reserve``, ``settle``, ``forfeit``, ``resume``, ``refuse``, ``content``,
    ``raise-cap`` or ``burn``. ``text`` is the hashed text, and ``body`` is its content.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> (entry,) = ledger.history("visits")
    >>> entry.seq, entry.kind, entry.prev_hash == GENESIS
    (0, 'open', True)
    """

    seq: int
    kind: str
    body: Mapping[str, Any]
    time: datetime
    prev_hash: str
    hash: str
    text: str


@dataclass(frozen=True)
class Anchor:
    """The number and hash of the newest entry in a data set's history.

    Store the anchor outside the ledger. With it, :meth:`Ledger.verify` can later detect that someone restored
    an old backup or rewrote the history.

    >>> anchor = Anchor("6f1c", "visits", 12, "ab" * 32)  # ledger, data set, number, hash
    >>> Anchor.parse(str(anchor)) == anchor
    True
    """

    ledger: str
    dataset: str
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.ledger}:{self.dataset}:{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Read an anchor from a string of the form ``ledger:dataset:seq:hash``; ``str(anchor)`` makes one.

        Raises:
            InvalidInput: if the string doesn't have this form.
        """
        parts = text.strip().split(":")
        right = len(parts) == 4 and all(parts) and re.fullmatch(r"[0-9]{1,18}", parts[2])
        if not right or len(parts[3]) != 64:
            raise InvalidInput(
                f"anchor must be LEDGER:DATASET:NUMBER:HASH, copied from what tacit printed; got {text!r}."
            )
        return cls(parts[0], parts[1], int(parts[2]), parts[3].lower())


def keyed_hash(secret: bytes, content: Iterable[bytes | memoryview]) -> str:
    """Return HMAC-SHA-256 of the joined pieces of ``content``, in hexadecimal.

    **Guarantee**

    * The hash depends on the bytes alone, not on how they are cut into pieces.
    * Without ``secret`` no guess at the content can be confirmed.
    """
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


def current_user() -> str:
    """Return the name of the user who runs this process, or the user's number if there is no name."""
    # It is a record for people who trust each other, not a proof of identity.
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such account, as in many containers
        return f"user {os.getuid()}" if os.name == "posix" else "unknown user"


class Conflict(PrivacyRefusal):
    """A request contradicts the ledger, such as a new policy for an open data set."""


class LeaseLost(PrivacyRefusal):
    """The caller has lost a charge, so nothing may be released under it."""


class StillRunning(PrivacyRefusal):
    """Another process is answering the same request; ask again with the same key later.

    >>> issubclass(StillRunning, PrivacyRefusal)
    True
    """


class LedgerUnavailable(TacitError):
    """The ledger's database cannot be read or written. Release nothing; ask again later with the same key."""


class Refused(BudgetExceeded):
    """A charge does not fit the budget; nothing is charged, and the ledger's history shows the refusal.

    Args:
        dataset: the data set whose budget is too small: the charged one, or one that it is derived from.
        over: the limits that the charge would exceed, such as ``epsilon``.
        requested: how much the charge would add to the total epsilon; infinite if it has no known bound.
        remaining: the cap's epsilon minus the total epsilon so far.
        difference: the missing epsilon, ``requested - remaining``; 0 if only delta exceeds its limit.
        would_fit: the largest epsilon of one more release, if its delta is 0.
    """

    def __init__(
        self,
        message: str,
        *,
        dataset: str,
        over: tuple[str, ...],
        requested: float,
        remaining: float,
        difference: float,
        would_fit: float,
    ) -> None:
        super().__init__(message)
        self.dataset = dataset
        self.over = over
        self.requested = requested
        self.remaining = remaining
        self.difference = difference
        self.would_fit = would_fit

    def to_data(self) -> dict[str, Any]:
        """Return all attributes except the message as a dict for JSON."""
        return {
            "dataset": self.dataset,
            "over": list(self.over),
            "requested_epsilon": self.requested,
            "remaining_epsilon": self.remaining,
            "missing_epsilon": self.difference,
            "would_fit_epsilon": self.would_fit,
        }

    def with_message(self, message: str) -> Refused:
        """Return a copy of this error with another message."""
        return Refused(message, **self._numbers())

    def _numbers(self) -> dict[str, Any]:
        names = ("dataset", "over", "requested", "remaining", "difference", "would_fit")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would call the class with the message alone
        return partial(Refused, str(self), **self._numbers()), ()


@dataclass(frozen=True)
class Price:
    """The cost of an event if it were charged now.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> price = ledger.price("visits", DiscreteLaplace(scale=4.0))
    >>> price.epsilon, price.after, price.fits
    (0.25, 0.25, True)
    """

    cost: Cost  # the numbers that the budget counts, in its units
    epsilon: float  # epsilon, delta: the cost of the event alone, as an epsilon and delta for people to read
    delta: float
    balance: float  # the epsilon of all charges so far
    after: float  # the epsilon of all charges so far and this event
    # the error that :meth:`Ledger.reserve` would raise, for this data set or one that it is derived from;
    # None if the event fits
    refusal: Refused | None
    remaining: float  # the largest epsilon of one further release without delta that would fit

    @property
    def fits(self) -> bool:
        """Whether the event fits the budget."""
        return self.refusal is None


@dataclass(frozen=True)
class Charge:
    """A charge to a data set.

    ``token`` allows the process to run the mechanism. Only the caller who reserved the charge, or resumed it,
    has the token; for others it is None. A ``SETTLED`` charge has its ``answer``, which costs nothing more. A
    ``FORFEITED`` charge stays spent and has no answer.

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
        spent: the total cost so far, as integers; see :attr:`Budget.slots`. If the data set has blocks (parts
            that share no person), it is that of the block nearest to the cap.
        spent_epsilon, spent_delta: the same total as epsilon and delta. What is guaranteed is the cap, not
            this.
        cap_epsilon, cap_delta: the cap, the limit on all releases together.
        remaining_epsilon: the largest epsilon of one more release, if its delta is 0.
        charges: the number of charges in each state: ``RESERVED`` (no answer yet), ``SETTLED`` (answered) or
            ``FORFEITED`` (ended without an answer).
        blocks: the total cost of each block, including charges to the whole data set.
        fingerprint: the keyed hash of the newest content; None if no content is registered.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> status = ledger.status("visits")
    >>> status.cap_epsilon, status.spent_epsilon, status.remaining_epsilon
    (1.0, 0.0, 1.0)
    >>> status
    DatasetStatus('visits': epsilon 0 at delta 0 spent, of epsilon 1.00 at delta 0; 0 charges)
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
        spent = f"epsilon {shown_epsilon(self.spent_epsilon)} at delta {self.spent_delta:g}"
        cap = f"epsilon {shown_epsilon(self.cap_epsilon)} at delta {self.cap_delta:g}"
        count = sum(self.charges.values())
        charges = f"{count:,} {'charge' if count == 1 else 'charges'}"
        return f"DatasetStatus({self.name!r}: {spent} spent, of {cap}; {charges})"
