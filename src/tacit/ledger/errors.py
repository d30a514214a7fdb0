"""The errors that a ledger raises."""

from __future__ import annotations

from functools import partial
from typing import Any

from tacit.errors import BudgetExceeded, PrivacyRefusal, TacitError


class Conflict(PrivacyRefusal):
    """A request contradicts the ledger: another policy, or another request under the same key."""


class LeaseLost(PrivacyRefusal):
    """The caller no longer holds a charge, so nothing may be released under that charge."""


class StillRunning(PrivacyRefusal):
    """Another process is answering the same request; ask again with the same key later.

    >>> issubclass(StillRunning, PrivacyRefusal)
    True
    """


class LedgerUnavailable(TacitError):
    """The ledger cannot be read or written, so there is no charge and no release; the exit code is 2."""


class Refused(BudgetExceeded):
    """A charge does not fit; nothing is charged, and the refusal is in the ledger's history.

    Args:
        dataset: the data set whose budget is too small: the charged one, or one that it is derived from.
        over: the names of the costs that would exceed their caps, such as ``epsilon``.
        requested: the epsilon by which the total would grow; infinite if no order of the budget bounds it.
        remaining: the epsilon by which the total may still grow.
        difference: the missing epsilon, ``requested - remaining``; 0 if only delta exceeds its cap.
        would_fit: the largest epsilon of one further release without delta that would fit.
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
        """Return all fields but the message as plain data, for JSON."""
        return {
            "dataset": self.dataset,
            "over": list(self.over),
            "requested_epsilon": self.requested,
            "remaining_epsilon": self.remaining,
            "missing_epsilon": self.difference,
            "would_fit_epsilon": self.would_fit,
        }

    def with_message(self, message: str) -> Refused:
        """Return a copy with another message."""
        return Refused(message, **self._numbers())

    def _numbers(self) -> dict[str, Any]:
        names = ("dataset", "over", "requested", "remaining", "difference", "would_fit")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would call the class with the message alone
        return partial(Refused, str(self), **self._numbers()), ()
