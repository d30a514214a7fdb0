"""What do scikit-learn's checks of arrays say? Their errors are raised again without the cells they print."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tacit.errors import InvalidInput, TacitError, without_values

T = TypeVar("T")

_SHOWN = 5  # columns

# Those of scikit-learn's messages that name shapes, types and columns, and no cell.
_HARMLESS = re.compile(
    r"X has \d+ features|Feature names are only supported if |Found array with |Found input variables with |"
    r"Sparse data was passed|Unknown label type: |Input [Xy] contains |Input contains |y should be a 1d "
    r"array|"
    r"This \w+ estimator requires y|setting an array element with a sequence|"
    r"float\(\) argument must be a string or a real number|Classification metrics can't handle a mix of "
)


class WrongType(InvalidInput, TypeError):
    """A cell, or an argument, of a type that is not a number; as scikit-learn raises it."""


def checked(check: Callable[[], T], X: object, y: object = None) -> T:
    """What ``check`` returns; its errors become Tacit's, without any value of ``X`` (n, d) or ``y`` (n,).

    Raises:
        InvalidInput: the check failed, a TypeError too where it failed with one.
    """
    try:
        return check()
    except TacitError:
        raise
    except (TypeError, ValueError, OverflowError) as problem:
        kind = WrongType if isinstance(problem, TypeError) else InvalidInput
        message = _without_cells(problem, X, y)
    raise kind(message)  # outside the handler: the first error prints cells and must not be its context


def _without_cells(problem: Exception, X: object, y: object) -> str:
    text = str(problem)
    if text.startswith("Complex data not supported"):
        return (
            "Complex data not supported: X must hold real numbers. Give real and imaginary parts as columns."
        )
    if text.startswith("Expected 2D array"):
        return (
            "Expected 2D array: X must have rows and columns, (n, d). Reshape your data, by X.reshape(-1, "
            "1) for one column, or X.reshape(1, -1) for one record."
        )
    if text.startswith("The feature names should match"):
        return f"{text}Give the columns of fit in their order, X[list(model.feature_names_in_)]."
    if _HARMLESS.match(text):
        return text if text.endswith(".") else f"{text}."
    columns = _no_numbers(X)
    if columns:
        return (
            f"X must hold numbers, and has other cells: {columns}. Declare what the columns of the data "
            "frame are, in columns=..., or leave such columns out; their values are not shown here."
        )
    targets = _not_floats(y)
    if targets:
        return f"y must hold numbers; {targets} of its values are none, and are not shown here. Give numbers."
    return (
        f"X or y is not what scikit-learn takes ({without_values(problem)}); its own words are left out, as "
        "they may hold values of records. Give X as an array (n, d) of numbers, and y as an array (n,)."
    )


def _no_numbers(X: object) -> str:
    """The columns with cells that are not numbers, and how many each."""
    table = np.asarray(X, dtype=object)
    if table.ndim != 2:
        return ""
    names = getattr(
        X, "column_names", getattr(X, "columns", range(table.shape[1]))
    )  # Arrow's columns are cells
    counts = {name: _not_floats(table[:, place]) for place, name in enumerate(names)}
    found = [f"{count} in column {name!r}" for name, count in counts.items() if count]
    more = f" and {len(found) - _SHOWN} more columns" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _not_floats(values: Any) -> int:
    """How many of ``values`` (n,) are not numbers."""
    return (
        0
        if values is None
        else sum(not _is_float(value) for value in np.ravel(np.asarray(values, dtype=object)))
    )


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
