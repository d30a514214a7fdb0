"""The interface of engines, and the one error that they may show after a charge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.ledger.policy import Policy
from tacit.queries.statements import SOURCE, Statement, syntax

__all__ = ["Engine", "EngineFailure", "Places"]


class EngineFailure(TacitError):
    """An engine failed on a statement.  The message is always the same: why it failed may depend on the data,
    and then the reason would be an answer without noise."""

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. Whoever may see the data can run the statement on it directly."
        )


@dataclass(frozen=True)
class Places:
    """Where something was found, for the curator alone.

    Attributes:
        count: in how many rows.
        rows: which, from 0; None for a database, whose rows have no order.
    """

    count: int
    rows: NDArray[np.int64] | None

    @classmethod
    def at(cls, rows: NDArray[np.int64]) -> Self:
        """In these rows."""
        return cls(len(rows), rows)


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

    def places(self, condition: Any) -> Places:
        """The rows for which ``condition``, a tree over one row, is true: for the curator's check.

        Raises:
            EngineFailure: whatever went wrong, without its reason.
        """
        exp = syntax()
        tree = exp.select(exp.Count(this=exp.Star())).from_(SOURCE).where(condition)
        ((count,),) = self.rows(Statement((), tree, 0, False))
        return Places(int(count), None)

    def load(self) -> None:
        """Read what has to be read once, before anything is charged; again it is nothing.

        Raises:
            MalformedTable: a file's rows are no table.
        """
        return

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """By column, the cells that were no such thing as it declares, and objects of another type; both
        have been taken for missing.

        Raises:
            MalformedTable: a file's rows are no table.
        """
        return {}, {}

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """The content in bytes, for its keyed fingerprint: other bytes are another version."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds."""
