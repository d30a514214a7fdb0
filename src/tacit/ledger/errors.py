"""Which errors does a ledger raise?"""

from __future__ import annotations

from functools import partial
from typing import Any

from tacit.errors import BudgetExceeded, PrivacyRefusal, TacitError


class Conflict(PrivacyRefusal):
    """A request contradicts the ledger: another policy, or another request under the same key."""


class LeaseLost(PrivacyRefusal):
    """The caller no longer holds a charge: nothing may be released under it."""


class StillRunning(PrivacyRefusal):
    """Another process is answering the same request; ask again with the same key later.

    >>> issubclass(StillRunning, PrivacyRefusal)
    True
    """


class LedgerUnavailable(TacitError):
    """The ledger cannot be read or written: no charge, hence no release; exit code 2."""


class Refused(BudgetExceeded):
    """A charge that does not fit.  Nothing is charged; the refusal is in the ledger's history.

    :param dataset: the data set that it does not fit: the one asked, or one that it is derived from.
    :param over: the slots of the budget that are over their caps, such as ``epsilon``.
    :param requested: epsilon by which the balance would grow; infinite where it fits at no order of the
        budget.
    :param remaining: epsilon by which it may still grow.
    :param difference: epsilon that is missing: ``requested - remaining``; 0 where only delta is over.
    :param would_fit: the largest epsilon of one further release without delta that does fit.
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
        """The numbers as plain data, for JSON; all but the message."""
        return {
            "dataset": self.dataset,
            "over": list(self.over),
            "requested_epsilon": self.requested,
            "remaining_epsilon": self.remaining,
            "missing_epsilon": self.difference,
            "would_fit_epsilon": self.would_fit,
        }

    def with_message(self, message: str) -> Refused:
        """The same numbers, with another message."""
        return Refused(message, **self._numbers())

    def _numbers(self) -> dict[str, Any]:
        names = ("dataset", "over", "requested", "remaining", "difference", "would_fit")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:  # a process makes a received exception again from its args
        return partial(Refused, str(self), **self._numbers()), ()
