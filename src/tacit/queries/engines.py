"""What must an engine do? The interface, and the one error that it may show after a charge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.ledger.policy import Policy
from tacit.queries.expressions import syntax
from tacit.queries.statements import SOURCE, Statement


class EngineFailure(TacitError):
    """An engine failed on a statement.  The message is always the same: the reason may depend on the data,
    and then it would be an answer without noise."""

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. The curator can run the statement on the data to see it."
        )


@dataclass(frozen=True)
class Places:
    """The rows of a finding, for the curator alone.

    Attributes:
        count: in how many rows.
        rows: which, from 0; None for a database, where rows have no order.
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
    * Only the result of :meth:`rows` leaves it, and only the noise is added to that.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What a certificate says of it."""

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Refuse a table that lacks a column of the policy, or has it in a type that does not fit its kind.

        Reads the schema alone, before anything is charged.

        Raises:
            InvalidInput: the message names the column and the type that it should have.
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
        """Read what has to be read once, before anything is charged; a second call does nothing.

        Raises:
            MalformedTable: a file's rows are no table.
        """
        return

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """By column, the cells that are not what it declares, and objects of another type; both count as
        missing.

        Raises:
            MalformedTable: a file's rows are no table.
        """
        return {}, {}

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """The content in bytes, for its keyed fingerprint: other bytes are another version."""

    @abstractmethod
    def close(self) -> None:
        """Free its resources."""
