"""Does a question fit the policy? Its columns must exist, types must match, and no person may be named.

The check reads only public facts, so a refusal says nothing about the data and costs nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger.policy import Column, Policy
from tacit.queries.fields import Value
from tacit.queries.predicates import Compare, In, IsNull
from tacit.queries.query import (
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)

__all__ = ["check_query", "column_of"]

_NUMBERS = ("number", "integer")
_EQUALITY = ("=", "!=")


def column_of(name: str, policy: Policy) -> Column:
    """What the policy says of a column that a question names.

    Raises:
        PrivacyRefusal: it is the unit column, whose values identify persons.
        InvalidInput: the policy does not declare it.
    """
    if name == policy.unit_column:
        raise PrivacyRefusal(
            f"column {name!r} says which {policy.unit} a row belongs to: a question about it is a question "
            f"about one {policy.unit}. Only the number of different ones can be asked for: CountUnits(), or "
            f"in SQL count(DISTINCT {name})."
        )
    if name in policy.columns:
        return policy.columns[name]
    near = difflib.get_close_matches(name, list(policy.columns), n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join(sorted(policy.columns)) or "none"
    raise InvalidInput(f"the policy declares no column {name!r}.{hint} Declared: {known}.")


def check_query(query: Query, policy: Policy) -> None:
    """Refuse what the policy does not allow.

    Raises:
        InvalidInput: an unknown column, a value or an aggregate that does not fit its kind.
        PrivacyRefusal: the unit column is named.
    """
    for leaf in query.leaves():
        _check_leaf(leaf, column_of(leaf.column, policy))
    for name in query.by:
        if column_of(name, policy).kind == "number":
            raise InvalidInput(
                f"column {name!r} is a number, and every different number would be a group. Use a histogram, "
                "or declare the column as integer or category."
            )
    for item in query.aggregates:
        match item:
            case Count(None) | CountUnits():
                pass
            case Count(str(name)):
                column_of(name, policy)
            case Sum(name) | Mean(name) | Variance(name) | StandardDeviation(name) | Quantile(name):
                _check_number(name, policy, type(item).__name__)
            case Histogram(name):
                _check_number(name, policy, "Histogram")


def _check_leaf(leaf: Compare | IsNull | In, column: Column) -> None:
    match leaf:
        case Compare(name, op, value):
            if column.kind not in _NUMBERS and op not in _EQUALITY:
                raise InvalidInput(
                    f"column {name!r} is of kind {column.kind!r}, which has no order: only = and != compare "
                    f"it; got {op!r}."
                )
            _check_value(name, column, value)
        case In(name, values):
            for value in values:
                _check_value(name, column, value)


_FITS: dict[str, Callable[[Any], bool]] = {
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "category": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
}
_WORDS = {"number": "a number", "integer": "a number", "category": "a text", "boolean": "True or False"}


def _check_value(name: str, column: Column, value: Value) -> None:
    if not _FITS[column.kind](value):
        raise InvalidInput(
            f"column {name!r} is of kind {column.kind!r} and is compared with {_WORDS[column.kind]}; got "
            f"{value!r}."
        )


def _check_number(name: str, policy: Policy, aggregate: str) -> None:
    kind = column_of(name, policy).kind
    if kind not in _NUMBERS:
        raise InvalidInput(f"{aggregate} needs a column of numbers; {name!r} is of kind {kind!r}.")
