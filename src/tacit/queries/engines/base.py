"""The interface of engines, and the one error that they may show after a charge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from tacit.errors import TacitError
from tacit.ledger.policy import Policy
from tacit.queries.statements import Statement

__all__ = ["Engine", "EngineFailure"]


class EngineFailure(TacitError):
    """An engine failed on a statement.  The message is always the same: why it failed may depend on the data,
    and then the reason would be an answer without noise."""

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. Whoever may see the data can run the statement on it directly."
        )


class Engine(ABC):
    """A table, and how to run statements over it.

    **Guarantee**

    * An engine runs trees that Tacit built, never a text that a user wrote.
    * Nothing but what :meth:`rows` returns leaves it, and that goes to the noise alone.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What a certificate says of it."""

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Refuse a table that lacks a column of the policy, or has it in a type that does not fit its kind.

        Looks at the schema alone, before anything is charged.

        Raises:
            InvalidInput: which column, and what it should be.
        """

    @abstractmethod
    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Keys and integers of every group, as the statement says, before any noise.

        Raises:
            EngineFailure: whatever went wrong, without its reason.
        """

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """The content in bytes, for its keyed fingerprint: other bytes are another version."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds."""
