"""What a ledger refuses, by kind."""

from __future__ import annotations

from tacit.errors import BudgetExceeded, PrivacyRefusal, TacitError

__all__ = ["Conflict", "LeaseLost", "LedgerUnavailable", "Refused", "StillRunning"]


class Conflict(PrivacyRefusal):
    """What is asked contradicts what the ledger holds: another policy, another request under the same key."""


class LeaseLost(PrivacyRefusal):
    """A charge is no longer in the hands of the caller: nothing may be released under it."""


class StillRunning(PrivacyRefusal):
    """The same request is being answered by someone else; ask again with the same key later."""


class LedgerUnavailable(TacitError):
    """The ledger cannot be read or written: no charge, hence no release; exit code 2."""


class Refused(BudgetExceeded):
    """A charge that does not fit.  Nothing is charged; the refusal is in the ledger's history.

    :param requested: epsilon by which the balance would grow.
    :param remaining: epsilon by which it may still grow.
    :param difference: epsilon that is missing: ``requested - remaining``.
    :param would_fit: the largest epsilon of one further release without delta that does fit.
    """

    def __init__(
        self, message: str, *, requested: float, remaining: float, difference: float, would_fit: float
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining
        self.difference = difference
        self.would_fit = would_fit
