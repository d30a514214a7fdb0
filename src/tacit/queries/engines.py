"""The interface of engines, and the one error that an engine may show after a charge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.columns.names import check_names
from tacit.errors import InvalidInput, TacitError
from tacit.ledger.policy import Policy
from tacit.queries.expressions import exp
from tacit.queries.statements import SOURCE, Statement

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_FLOATS = ("FLOAT", "DOUBLE", "DECIMAL")
_UNIT_TYPES = (  # types whose equal values have equal texts, up to signs, zeros and points at the ends
    *_NUMBERS,
    *("VARCHAR", "TEXT", "CHARACTER VARYING", "CHARACTER", "CHAR", "NAME", "ENUM", "UUID", "OID", "BOOLEAN"),
    *("STRING", "BLOB", "BYTEA", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", '"NULL"'),
    *("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
)
_TIMES = (
    *("DATE", "TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
)


class EngineFailure(TacitError):
    """An engine failed on a statement, for a reason that is not shown.

    The message is always the same: the reason may depend on the data, and then it would be an answer without
    noise.
    """

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. The curator can run the statement on the data to see it."
        )


@dataclass(frozen=True)
class Places:
    """The rows that the curator's check finds; they are confidential.

    Attributes:
        count: the number of rows.
        rows: their indices, from 0; None for a database, where rows have no order.
    """

    count: int
    rows: NDArray[np.int64] | None

    @classmethod
    def at(cls, rows: NDArray[np.int64]) -> Self:
        """Return the places with these indices."""
        return cls(len(rows), rows)

    def without(self, others: Places) -> Places:
        """Return these rows without ``others``; unchanged if some indices are unknown."""
        if self.rows is None or others.rows is None:
            return self
        return Places.at(np.setdiff1d(self.rows, others.rows))


class Engine(ABC):
    """A table that runs statements; the base class of engines.

    **Guarantee**

    * An engine runs trees that Tacit built, never a text that a user wrote.
    * To answer a question, it returns only the result of :meth:`rows`, and Tacit adds noise to that.
    """

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Refuse a table that lacks a column of the policy, or has a column whose type does not fit its kind.

        This reads only the schema, before anything is charged.

        Raises:
            InvalidInput: if a column is absent or does not fit; the message names it.
        """

    @abstractmethod
    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Run a statement, and return the keys and integers of every group, without noise.

        Raises:
            EngineFailure: if anything fails; the reason is not given.
        """

    def places(self, condition: Any) -> Places:
        """Return the rows for which ``condition``, an SQL tree, is true; only for the curator's check.

        Raises:
            EngineFailure: if anything fails; the reason is not given.
        """
        tree = exp.select(exp.Count(this=exp.Star())).from_(SOURCE).where(condition)
        ((count,),) = self.rows(Statement((), tree, 0))
        return Places(int(count), None)

    def load(self) -> None:
        """Read the file now if it is to be read only once, before any charge; a second call does nothing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """Return the unreadable cells and the objects of another type, by column; both count as missing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return {}, {}

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """Return the content as bytes, for its keyed fingerprint; different bytes are another version."""

    @abstractmethod
    def close(self) -> None:
        """Free the engine's resources."""


# --- types -----------------------------------------------------------------------------------------------


def check_types(types: Mapping[str, str], policy: Policy) -> None:
    """Refuse a table that lacks a column, or whose types do not fit the policy's kinds.

    Raises:
        InvalidInput: if a column is absent or does not fit; the message names it.

    >>> from tacit.ledger import Column, Policy, PureBudget
    >>> age = {"age": Column(kind="number", lower=0, upper=120)}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=age)
    >>> check_types({"age": "VARCHAR"}, policy)
    Traceback (most recent call last):
    tacit.errors.InvalidInput: column 'age' is declared a number, but the table has it as VARCHAR. ...
    """
    check_names(list(types), policy.needed_columns, "the table")
    if policy.unit_column is not None:
        kind = types[policy.unit_column]
        if _base(kind) not in _UNIT_TYPES:
            raise InvalidInput(
                f"the unit column {policy.unit_column!r} cannot be of type {kind}: one unit may be written "
                "in several forms, and count several times. Convert it to a number or a text, such as in "
                "a view."
            )
    for name, column in policy.columns.items():
        if name == policy.unit_column:
            continue  # always read as text, whatever is declared: 007 and 7 are two people
        kind = _base(types[name])
        fits = {
            "number": kind in _NUMBERS,
            "integer": kind in _NUMBERS,
            "boolean": kind == "BOOLEAN",
            "date": kind == "DATE",
            "datetime": kind in _TIMES,
            "text": kind in _UNIT_TYPES,
            "category": kind not in (*_FLOATS, "BOOLEAN") and not kind.startswith(("STRUCT", "MAP", "BLOB")),
        }
        if not fits[column.kind]:
            article = "an" if column.kind == "integer" else "a"
            raise InvalidInput(
                f"column {name!r} is declared {article} {column.kind}, but the table has it as "
                f"{types[name]}. Convert the column, or declare what it is."
            )


def _base(name: str) -> str:
    """Return the name of a type without its parameters; for unsigned numbers, that of the signed type."""
    base = name.upper().split("(")[0]
    return base.removeprefix("U") if base.removeprefix("U") in _NUMBERS else base
