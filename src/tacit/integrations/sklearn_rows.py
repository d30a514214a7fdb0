"""Conversion of records X and y to numbers, by declared columns or bounds.

Letters: n records; d columns of X; f features of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from tacit.columns import Encoder
from tacit.columns.column import parse_columns
from tacit.columns.sniffing import repeated_in_frame
from tacit.columns.tables import has_column_names, names_of_frame
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, without_values
from tacit.integrations.sklearn_declared import WrongType, bounds_of, scaled
from tacit.integrations.sklearn_features import Given, is_additive, takes_given
from tacit.recipes import BINS
from tacit.training import UserRecords
from tacit.training.records import Data

T = TypeVar("T")

Estimator = Any  # PrivateClassifier or PrivateRegressor, which import this file


def check_unit(estimator: Estimator, X: object, owners: object) -> None:
    """Refuse a data frame with a column that seems to identify the units and has repeated values."""
    if owners is not None or estimator.one_record_per_unit or not has_column_names(X):
        return
    columns = {} if estimator.columns is None else parse_columns(estimator.columns)
    kinds = {name: column.kind for name, column in columns.items()}
    name, unit = repeated_in_frame(X, estimator.unit, kinds), estimator.unit
    if name is not None:
        raise PrivacyRefusal(
            f"unit={unit!r}, and column {name!r} of X has repeated values: a {unit} seems to have several "
            "rows, and each row would be protected separately. Give rows_per_user to the estimator and "
            f'owners=X["{name}"] to fit, so that a record is a {unit} with all rows; or, to protect single '
            f'rows, unit="row"; or, if each row is another {unit}, one_record_per_unit=True.'
        )


def records_of(
    estimator: Estimator, X: object, y: object, check_targets: Callable[[NDArray[Any]], NDArray[Any]]
) -> tuple[Tensor | Given, NDArray[Any]]:
    """Return the inputs of the model, float32 (n, f) in [-1, 1], and the targets (n,).

    If ``features`` takes X as given, the inputs are X itself in a ``Given``, before its features are
    computed.

    This sets ``encoder_``, ``n_features_in_`` and, if X has column names, ``feature_names_in_``.

    **Guarantee**

    * A record's input depends on that record and on the estimator's arguments alone.
    * Error messages contain columns, counts and row numbers, but no value of X or y.
    """
    rows = np.asarray(y, dtype=object).size
    estimator.additive_ = is_additive(estimator, rows, 0)
    estimator.encoder_ = _encoder(estimator, rows)
    if takes_given(estimator):
        records = Given(estimator, X)
        return records, _targets(estimator, records, y, check_targets)
    if estimator.encoder_ is None:
        values, targets = checked(
            lambda: _validated(estimator, X, y, check_targets, dtype=np.float64, ensure_all_finite=False),
            X,
            y,
        )
        estimator.additive_ = is_additive(estimator, rows, values.shape[1])
        return _by_bounds(estimator, values), targets
    inputs = _by_columns(estimator.encoder_, X)
    if not len(inputs):
        raise InvalidInput("X holds no records. Give at least one.")
    targets = _targets(estimator, inputs, y, check_targets)
    names = estimator.encoder_.inputs_of
    estimator.feature_names_in_ = np.array(names, dtype=object)
    estimator.n_features_in_ = len(names)
    return inputs, targets


def _targets(
    estimator: Estimator, inputs: Sized, y: object, check_targets: Callable[[NDArray[Any]], NDArray[Any]]
) -> NDArray[Any]:
    def check() -> NDArray[Any]:
        targets: NDArray[Any] = check_targets(validate_data(estimator, y=y))
        check_consistent_length(inputs, targets)
        return targets

    return checked(check, None, y)


def outputs_of(estimator: Estimator, X: object) -> Tensor:
    """Return the (n, outputs) float64 outputs of the trained model for (n, d) records."""
    check_is_fitted(estimator)
    if takes_given(estimator):
        inputs = Given(estimator, X).compute(width=estimator.n_features_in_)
    elif estimator.encoder_ is not None:
        inputs = _by_columns(estimator.encoder_, X)
    else:

        def check() -> NDArray[np.float64]:
            values: NDArray[np.float64] = validate_data(
                estimator, X, reset=False, dtype=np.float64, ensure_all_finite=False
            )
            _refuse_dates(X)
            return values

        inputs = _by_bounds(estimator, checked(check, X))
    with torch.no_grad():
        outputs: Tensor = estimator.model_(inputs).double()
    return outputs


def _validated(
    estimator: Estimator,
    X: object,
    y: object,
    check_targets: Callable[[NDArray[Any]], NDArray[Any]],
    **options: Any,
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    values, targets = validate_data(estimator, X, y, **options)
    _refuse_dates(X)
    return values, check_targets(targets)


@dataclass(frozen=True)
class Rows:
    """The records of a fit: inputs (n, f) in [-1, 1], targets, and optional weights and owners, (n,) each."""

    inputs: Tensor | Given
    targets: Tensor
    weights: NDArray[np.float64] | None
    owners: Any

    def records(self, inputs: Tensor, rows_per_user: int | None) -> tuple[Data | UserRecords, int]:
        """Return the rows, or the people with their rows, and the number of units."""
        weights = () if self.weights is None else (torch.from_numpy(self.weights).float(),)
        parts = (inputs, self.targets, *weights)
        if (self.owners is None) != (rows_per_user is None):
            names = ("owners", "rows_per_user")
            present, missing = names if rows_per_user is None else names[::-1]
            raise InvalidInput(
                f"{present} is given and {missing} is not. For people with several rows, give both: to the "
                "estimator rows_per_user, the number of rows of a person that a step reads, and to fit "
                "owners, the person of each row. In a pipeline, put the name of the step before owners: "
                "fit(X, y, privateclassifier__owners=...)."
            )
        if rows_per_user is None:
            return parts, len(inputs)
        people = UserRecords(parts, self.owners, rows_per_user=rows_per_user)
        if people.shared:
            raise PrivacyRefusal(
                "owners must name one person for each row; got lists of several owners. The estimators draw "
                "people with separate rows. Train by tacit.PrivateSession with a plan that draws rows "
                "(Plan.calibrate(rows_per_user=...)); or join people who share rows into groups, and give "
                "each row the name of one."
            )
        return people, len(people)


# --- arrays ----------------------------------------------------------------------------------------------


def _refuse_dates(X: Any) -> None:
    """Refuse dates, which NumPy would convert to numbers in an undeclared unit."""
    head = np.asarray(X[:1] if hasattr(X, "columns") else X)
    if head.dtype.kind in "mM":
        raise InvalidInput(
            "X holds dates or times, which are no numbers. Declare them in columns of a data frame, as "
            'kind = "date" or "datetime", or convert them to numbers since a public day.'
        )


def _by_bounds(estimator: Estimator, values: NDArray[np.float64]) -> Tensor:
    """Scale (n, d) raw values to float32 in [-1, 1], by the declared bounds."""
    if not np.isfinite(values).all():
        raise InvalidInput(
            "X holds NaN or infinite values, which no bound can clamp. Remove such records, or fill "
            "them by a fixed rule: missing of a declared column (columns=...), or SimpleImputer(strategy="
            "'constant', keep_empty_features=True); a mean or median of the data would leak."
        )
    names = getattr(estimator, "feature_names_in_", None)
    low, high = bounds_of(
        "bounds", estimator.bounds, values.shape[1], None if names is None else names.tolist()
    )
    return torch.from_numpy(scaled(values, low, high))


# --- frames ----------------------------------------------------------------------------------------------


def _encoder(estimator: Estimator, rows: int) -> Encoder | None:
    """Return the encoder of the declared columns, and set ``additive_``; None for bounds."""
    if estimator.columns is None:
        return None
    if estimator.bounds is not None:
        raise InvalidInput(
            "columns and bounds are both given: declare each column's bounds in columns, as in "
            'columns={"age": Column(kind="number", lower=0, upper=120)}. Leave bounds out.'
        )
    columns = parse_columns(estimator.columns)
    with_bins = {name: column.with_bins(BINS) for name, column in columns.items()}
    numbers = sum(with_bins[name] != columns[name] for name in columns)
    estimator.additive_ = is_additive(estimator, rows, numbers)
    return Encoder(with_bins if estimator.additive_ else columns)


def _by_columns(encoder: Encoder, X: object) -> Tensor:
    _check_columns(encoder, X)
    return torch.from_numpy(encoder.frame(X, source="X"))


def _check_columns(encoder: Encoder, X: object) -> None:
    try:
        names = names_of_frame(X)
    except InvalidInput:
        raise InvalidInput(
            f"X must be a data frame; got {type(X).__module__}.{type(X).__name__}, and columns declares "
            "columns by name. Give a pandas or Polars DataFrame, a pyarrow Table, or a mapping from names to "
            "columns. Or give bounds in place of columns."
        ) from None
    if type(X).__module__.startswith("pandas") and any(not isinstance(name, str) for name in X.columns):  # type: ignore[attr-defined]
        raise InvalidInput(
            "the columns of X have names that are not texts. Rename them, such as by "
            "X.columns = X.columns.astype(str)."
        )
    if extra := [name for name in names if name not in encoder.columns]:
        raise InvalidInput(
            f"X has columns that are not declared: {', '.join(map(repr, extra))}. Drop them, or declare "
            'them in columns, with kind="text" those that the model must not see, such as an identifier.'
        )


# --- scikit-learn's checks, without the values that they print -------------------------------------------

_SHOWN = 5  # columns

# Messages of scikit-learn that contain shapes, types and columns, but no value of the data.
_HARMLESS = re.compile(
    r"X has \d+ features|Feature names are only supported if |Found array with |Found input variables with |"
    r"Sparse data was passed|Unknown label type: |Input [Xy] contains |Input contains |y should be a 1d "
    r"array|"
    r"This \w+ estimator requires y|setting an array element with a sequence|"
    r"float\(\) argument must be a string or a real number|Classification metrics can't handle a mix of "
)


def checked(check: Callable[[], T], X: object, y: object = None) -> T:
    """Call ``check`` and return its result; replace its errors by errors without values of ``X`` or ``y``."""
    try:
        return check()
    except TacitError:
        raise
    except (TypeError, ValueError, OverflowError) as problem:
        kind = WrongType if isinstance(problem, TypeError) else InvalidInput
        message = _without_cells(problem, X, y)
    raise kind(message)  # outside the handler: the first error prints values, and must not be its context


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
    columns = _columns_of_non_numbers(X)
    if columns:
        return (
            f"X must hold numbers, and has other cells: {columns}. Declare the columns of the data frame in "
            "columns=..., or leave such columns out; their values are not shown here."
        )
    targets = _count_non_numbers(y)
    if targets:
        return f"y must hold numbers; {targets} of its values are not numbers, and are not shown here."
    return (
        f"scikit-learn does not accept X or y ({without_values(problem)}); the text of the error is left "
        "out, as it may contain values of records. Give X as an array (n, d) of numbers, and y as an array "
        "(n,)."
    )


def _columns_of_non_numbers(X: object) -> str:
    """Describe the columns with values that are not numbers, and count these; "" if there are none."""
    table = np.asarray(X, dtype=object)
    if table.ndim != 2:
        return ""
    names = getattr(
        X, "column_names", getattr(X, "columns", range(table.shape[1]))
    )  # ``columns`` of an Arrow table holds the values
    counts = {name: _count_non_numbers(table[:, place]) for place, name in enumerate(names)}
    parts = [f"{count} in column {name!r}" for name, count in counts.items() if count]
    more = f" and {len(parts) - _SHOWN} more columns" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _count_non_numbers(values: Any) -> int:
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
