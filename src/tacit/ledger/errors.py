"""What a ledger refuses, by kind."""

from __future__ import annotations

from functools import partial
from typing import Any

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

    :param dataset: whose budget does not hold it: the one that was asked, or one that it is derived from.
    :param over: the slots of the budget that are over their caps, such as ``epsilon``.
    :param requested: epsilon by which the balance would grow; infinite where no order of a budget holds it.
    :param remaining: epsilon by which it may still grow.
    :param difference: epsilon that is missing: ``requested - remaining``; 0 where it is delta that is over.
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
        """The numbers as plain data, for JSON; nothing is lost but the message."""
        return {
            "dataset": self.dataset,
            "over": list(self.over),
            "requested_epsilon": self.requested,
            "remaining_epsilon": self.remaining,
            "missing_epsilon": self.difference,
            "would_fit_epsilon": self.would_fit,
        }

    def with_message(self, message: str) -> Refused:
        """The same numbers, said in other words."""
        return Refused(
            message,
            dataset=self.dataset,
            over=self.over,
            requested=self.requested,
            remaining=self.remaining,
            difference=self.difference,
            would_fit=self.would_fit,
        )

    def __reduce__(self) -> tuple[Any, ...]:  # between processes an exception is made again from its args
        return partial(_again, vars(self), str(self)), ()


def _again(numbers: dict[str, Any], message: str) -> Refused:
    return Refused(message, **numbers)
