"""Does a question fit the policy? Its columns must exist, types must match, and no person may be named.

The check reads only public facts, so a refusal says nothing about the data and costs nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from tacit.columns import Column
from tacit.columns.moments import as_moment
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger.policy import Policy
from tacit.queries.predicates import Compare, In, IsNull, Value
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

_ORDERED = ("number", "integer", "date", "datetime")
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
        kind = column_of(name, policy).kind
        if kind in _NO_GROUPS:
            raise InvalidInput(f"column {name!r} is a {kind}, and {_NO_GROUPS[kind]}")
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
            if column.kind not in _ORDERED and op not in _EQUALITY:
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
    "date": lambda value: isinstance(value, str) and bool(as_moment("value", "date", value)),
    "datetime": lambda value: isinstance(value, str) and bool(as_moment("value", "datetime", value)),
    "text": lambda _: False,
}
_WORDS = {
    "number": "a number",
    "integer": "a number",
    "category": "a text",
    "boolean": "True or False",
    "date": "a date as a text, such as '2020-01-31'",
    "datetime": "a datetime as a text, such as '2020-01-31 14:05:00'",
    "text": "nothing, for it tells persons apart",
}
_NO_GROUPS = {
    "number": "every different number would be a group. Use a histogram, or declare the column as integer or "
    "category.",
    "date": "every day would be a group. Ask for one range of days after the other in WHERE, or declare a "
    "category of months or years.",
    "datetime": "every moment would be a group. Ask for one range after the other in WHERE, or declare a "
    "category of months or hours.",
    "text": "every person could be a group. Declare a column of kind category, with its values.",
}
"""Why the columns of a kind make no groups, and what to do."""


def _check_value(name: str, column: Column, value: Value) -> None:
    if not _FITS[column.kind](value):
        raise InvalidInput(
            f"column {name!r} is of kind {column.kind!r} and is compared with {_WORDS[column.kind]}; got "
            f"{value!r}."
        )


def _check_number(name: str, policy: Policy, aggregate: str) -> None:
    kind = column_of(name, policy).kind
    if kind in ("date", "datetime"):
        raise InvalidInput(
            f"{aggregate} needs a column of numbers; {name!r} is a {kind}, which can be counted and "
            "compared. Prepare a column of numbers, such as the days since a public day, with bounds."
        )
    if kind not in ("number", "integer"):
        raise InvalidInput(f"{aggregate} needs a column of numbers; {name!r} is of kind {kind!r}.")
