"""Records X and y as numbers: by declared columns or bounds, or as fixed features.

Letters: n records; d columns; f features; k classes.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Never, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from tacit.columns import Encoder
from tacit.columns.column import parse_columns
from tacit.columns.sniffing import repeated_in_frame
from tacit.columns.tables import has_column_names, names_of_frame
from tacit.errors import (
    InvalidInput,
    PrivacyRefusal,
    TacitError,
    check_in,
    check_real,
    of_device,
    without_values,
)
from tacit.models.additive import Binned
from tacit.pretrained.model import Pretrained
from tacit.recipes import BINS, additive_pays
from tacit.training import UserRecords
from tacit.training.records import Data

T = TypeVar("T")
_LARGEST_WEIGHT = 1e6  # clipping bounds the effect of any weight; this limit avoids overflow in float32


class WrongType(InvalidInput, TypeError):
    """Raised for a value or argument of a wrong type; a TypeError too, as scikit-learn raises one."""


def scaled(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float32]:
    clamped = np.clip(values, low, high)
    return ((clamped - low) / (high - low) * 2 - 1).astype(np.float32)


def bounds_of(
    name: str,
    bounds: ArrayLike | Mapping[str, ArrayLike] | None,
    columns: int,
    names: Sequence[str] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper bounds, (d,) each, from a pair (2,), an array (d, 2) or pairs by column name."""
    if bounds is None:
        raise InvalidInput(
            f"{name} must be declared: a range computed from the data reveals its smallest and largest "
            f"value. Give a public range of nearly all values, such as {name}=(0, 16); others are clamped "
            "to it." + (" Or declare columns, for a data frame." if name == "bounds" else "")
        )
    ordered = _in_order(name, bounds, names) if isinstance(bounds, Mapping) else bounds
    try:
        pairs = np.asarray(ordered, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must contain numbers; got {bounds!r}.") from None
    if pairs.shape not in ((2,), (columns, 2)):
        form = "one pair (low, high)"
        if name == "bounds":
            form += f", an array ({columns}, 2), or for a data frame a dict from each column to its pair"
        raise InvalidInput(f"{name} must be {form}; got shape {pairs.shape}.")
    low, high = np.broadcast_to(pairs, (columns, 2)).T
    if not (np.isfinite(pairs).all() and (low < high).all()):
        raise InvalidInput(f"{name} must be finite numbers with low < high; got {pairs.tolist()}.")
    return low, high


def _in_order(name: str, bounds: Mapping[str, ArrayLike], names: Sequence[str] | None) -> list[ArrayLike]:
    if name != "bounds" or names is None:
        raise InvalidInput(
            f"{name} is a dict, but "
            + (
                "X has no column names. Give a data frame, or"
                if name == "bounds"
                else "there is one range. Give"
            )
            + " one pair (low, high)."
        )
    missing = [column for column in names if column not in bounds]
    extra = [column for column in bounds if column not in names]
    if missing or extra:
        quoted = ", ".join(map(repr, missing or extra))
        problem = "lacks a pair (low, high) for" if missing else "names columns that X does not have:"
        raise InvalidInput(
            f"bounds {problem} {quoted}; X has {', '.join(map(repr, names))}. Give one pair for each column."
        )
    return [bounds[column] for column in names]


def declared_classes(classes: Sequence[Any] | NDArray[Any] | None) -> NDArray[Any]:
    if classes is None:
        raise InvalidInput(
            "classes must be declared: a label read from y reveals that some record has it. Give all "
            "possible labels, such as classes=[0, 1] or classes=range(10)."
        )
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise InvalidInput(f"classes must be a list of labels, such as [0, 1]; got {classes!r}.")
    labels = np.asarray(list(classes))
    unique = np.unique(labels)
    if labels.ndim != 1 or len(unique) != len(labels) or len(unique) < 2:
        raise InvalidInput(f"classes must be two or more different labels; got {classes!r}.")
    return unique


def class_numbers(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    positions = {label: position for position, label in enumerate(classes.tolist())}
    numbers = np.array([positions.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (numbers < 0).any():
        raise InvalidInput(
            f"y has labels outside the declared classes {classes.tolist()}. Declare every label that may "
            "occur, or remove such records by a rule that reads one record at a time."
        )
    return numbers


def times_and_events(y: Any, low: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return times and events, (n,) each, of a structured array with an event and then a time."""
    fields = getattr(getattr(y, "dtype", None), "names", None) or ()
    kinds = [y[name].dtype.kind for name in fields]
    if len(kinds) != 2 or y.ndim != 1 or kinds[0] not in "biu" or kinds[1] not in "biuf":
        raise WrongType(
            "y must be a structured array (n,) of two fields: the event, true or false, and the time, a "
            "number. Make it with numpy.rec.fromarrays([events, times], names='event, time') or "
            "sksurv.util.Surv. Convert events from words: table['died'] == 'yes'."
        )
    events, times = (y[name] for name in fields)
    if wrong := int(((events != 0) & (events != 1)).sum()):
        raise InvalidInput(
            f"y contains {wrong:,} events that are neither 0 nor 1. Correct these records, or convert other "
            "codes: table['died'] == 2."
        )
    if wrong := int((~np.isfinite(times) | (times < low)).sum()):
        raise InvalidInput(
            f"y contains {wrong:,} times that are missing, infinite, or below the lower bound {low:g} of "
            "time_bounds. Remove or correct these records, or lower the bound."
        )
    return times.astype(np.float64), events.astype(np.bool_)


def refuse_ends(X: Any, y: Any, times: NDArray[np.float64]) -> None:
    """Refuse the time or the event as features, because they are unknown at prediction."""
    frame = hasattr(X, "columns")
    names = [*X.columns] if frame else range(X.shape[1] if getattr(X, "ndim", 0) == 2 else 0)
    for name in names:
        column = np.asarray(X[name] if frame else X[:, name])
        number = column.dtype.kind in "iuf" and np.array_equal(column, times)
        if number or (isinstance(name, str) and name in y.dtype.names):
            raise InvalidInput(
                f"column {name!r} of X has the name or the values of a field of y, which is unknown at "
                "prediction. Remove it from X; or, if it means something else, rename the field of y."
            )


def class_weights(
    weights: Mapping[Any, float] | str | None, classes: NDArray[Any]
) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    if isinstance(weights, str):
        raise PrivacyRefusal(
            f"class_weight must be declared; got {weights!r}, which would be computed from the records, so "
            "one record would change the weights of all others. Give weights from public knowledge, such as "
            "class_weight={0: 0.2, 1: 1.0}."
        )
    if not isinstance(weights, Mapping):
        raise InvalidInput(f"class_weight must be a dict from classes to weights; got {weights!r}.")
    labels = classes.tolist()
    if extra := [label for label in weights if label not in labels]:
        raise InvalidInput(
            f"class_weight names {extra!r}, which is not among the declared classes {labels}. Add it to "
            "classes, or remove it."
        )
    by_label = {
        label: check_real(f"class_weight of {label!r}", weight, low=0.0, high=_LARGEST_WEIGHT)
        for label, weight in weights.items()
    }
    return np.array([by_label.get(label, 1.0) for label in labels])


def sample_weights(
    weights: ArrayLike | None, largest: float | None, records: int
) -> NDArray[np.float64] | None:
    """Return the weight of each record, (n,), clamped to the declared [0, largest]; None without weights.

    **Guarantee**

    * The result for a record depends only on its weight and on ``largest``.
    """
    if weights is None:
        return None
    if largest is None:
        raise InvalidInput(
            "max_sample_weight must be declared: weights are private, so their largest value must be a "
            "public number. Set it in the constructor, such as max_sample_weight=10; larger weights are "
            "clamped."
        )
    largest = check_real("max_sample_weight", largest, low=0.0, high=_LARGEST_WEIGHT, open_low=True)
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = None  # raised below, outside the handler: the first error prints a weight
    if numbers is None:
        raise InvalidInput("sample_weight must contain one number for each record.")
    if numbers.shape != (records,):
        raise InvalidInput(
            f"sample_weight must have shape ({records},), one number for each record; got {numbers.shape}."
        )
    if wrong := int((~np.isfinite(numbers) | (numbers < 0)).sum()):
        raise InvalidInput(
            f"sample_weight contains {wrong:,} values that are negative, NaN or infinite. Give numbers from "
            "0 to max_sample_weight."
        )
    return np.minimum(numbers, largest)


def refuse_unknown_arguments(estimator: type[T]) -> type[T]:
    """Return the class ``estimator`` with a constructor that refuses unknown arguments, with the reason."""
    cls: Any = estimator
    init = cls.__init__
    names = tuple(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def constructor(self: object, **settings: Any) -> None:
        for name in settings:
            if name not in names:
                _refuse_argument(name, names)
        init(self, **settings)

    cls.__init__ = constructor
    return estimator


def _refuse_argument(name: str, names: Sequence[str]) -> Never:
    if name == "random_state":
        raise PrivacyRefusal(
            "random_state cannot be set: an attacker who knows the seed can subtract the noise. Remove it; "
            "each call of fit draws new secret noise."
        )
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f"Did you mean {near[0]!r}?" if near else f"Its arguments are {', '.join(names)}."
    raise WrongType(f"this estimator has no argument {name!r}. {hint}")


Estimator = Any  # PrivateClassifier or PrivateRegressor, which import this file

_PIECE = 64  # records per call, so that texts of some hundred tokens, or pictures, fit into memory
_TRIED = 8  # the number of records whose features are computed again, each alone
_SAME = 1e-3  # relative to a row's length; summing in another order in float32 changes far less


# --- X as given ------------------------------------------------------------------------------------------


def takes_given(estimator: Estimator) -> bool:
    return estimator.features is not None and estimator.bounds is None and estimator.columns is None


def is_additive(estimator: Estimator, rows: int, numbers: int) -> bool:
    """Return whether numbers get bins, as in an additive model.

    ``rows``, the number of rows of X, counts only if ``records`` is not declared; then it is public.
    """
    model = check_in("model", estimator.model, ("auto", "linear", "additive"))
    conflicts_of = {
        "features": estimator.features is not None,
        "hidden": bool(estimator.hidden),
        "normalise=True": estimator.normalise,
        'head="least-squares"': estimator.head == "least-squares",
    }
    against = [name for name, conflicts in conflicts_of.items() if conflicts]
    if model == "additive" and against:
        raise InvalidInput(
            f'model="additive" is a sum of one curve per declared column, and does not support {against[0]}. '
            f"Remove {against[0]}, or use another model."
        )
    if model != "auto":
        return model == "additive"
    records = rows if estimator.records is None else estimator.records
    return not against and additive_pays(
        max(1, records), estimator.epsilon, numbers
    )  # an empty X is refused later


@dataclass(frozen=True)
class Given:
    estimator: Estimator
    X: Any

    def __post_init__(self) -> None:
        if not callable(self.estimator.features):
            raise InvalidInput(
                "features must be callable: a torch module, or a function that maps records to numbers, such "
                f"as model.encode of sentence-transformers; got {type(self.estimator.features).__name__}."
            )
        if isinstance(self.X, str | bytes) or not hasattr(self.X, "__len__"):
            raise InvalidInput(
                f"X must be a list, array or column of a data frame; got {type(self.X).__name__}. Put a "
                "single record into a list."
            )
        if not len(self.X):
            raise InvalidInput("X has no records. Give at least one.")

    def __len__(self) -> int:
        return len(self.X)

    def compute(self, *, width: int | None = None) -> Tensor:
        """Return (n, f) float32 features, each row of mean 0 and length 1; a constant row becomes 0.

        ``width`` is f for a fitted estimator; without it, as in fit, features that mix records are refused.

        **Guarantee**

        * In fit, some records of the first piece are computed again, each alone, before and after the other
          pieces, and must get the same features.  As far as this check shows, a record's features depend on
          that record alone.
        """
        from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

        features, total = self.estimator.features, len(self.X)
        rows: list[NDArray[np.float64]] = []
        title: dict[str, Any] = {"desc": "features", "unit": "record", "dynamic_ncols": True}
        with tqdm(total=total, disable=not self.estimator.verbose, **title) as bar:
            for start in range(0, total, _PIECE):
                piece = _slice(self.X, start, min(start + _PIECE, total))
                rows.append(_rows(features, piece, rows[0].shape[1] if rows else width))
                if width is None and not start:
                    self._compare_alone(rows[0])
                bar.update(len(piece))
        if width is None:
            self._compare_alone(rows[0])
        return torch.from_numpy(np.concatenate([_unit(part) for part in rows]).astype(np.float32))

    def _compare_alone(self, together: NDArray[np.float64]) -> None:
        for index in np.unique(np.linspace(0, len(together) - 1, _TRIED).astype(int)):
            alone = _rows(self.estimator.features, _slice(self.X, index, index + 1), together.shape[1])[0]
            if np.linalg.norm(alone - together[index]) > _SAME * np.linalg.norm(alone):
                raise PrivacyRefusal(
                    "features of a record change with its batch or from call to call. One record could then "
                    "change the inputs of others, which no budget covers. Map each record alone: use eval "
                    "mode and 32 bits, mask the padding, and avoid batch statistics and random numbers."
                )


def name_of(features: Any) -> str:
    """Return the name for the statement: a public model's name and digest, or a class or function name."""
    if isinstance(features, Pretrained):
        return f"{features.name} (SHA-256 {features.digest})"
    return str(getattr(features, "__qualname__", type(features).__name__))


def _slice(X: Any, start: int, stop: int) -> Any:
    return X.iloc[start:stop] if hasattr(X, "iloc") else X[start:stop]


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)  # no overflow of squares
    rows = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _rows(features: Any, piece: Any, width: int | None) -> NDArray[np.float64]:
    """Return (n, f) features of a piece; check that they are finite, and f = ``width`` if that is given."""
    output = _output_of(features, piece)
    if isinstance(output, Tensor):
        output = output.detach().cpu().double()
    elif hasattr(output, "toarray"):  # a sparse matrix, as of HashingVectorizer
        output = output.toarray()
    numbers: NDArray[np.float64] | None = None
    with suppress(TypeError, ValueError):  # the error's text would contain a value
        numbers = np.asarray(output, dtype=np.float64)
    if numbers is None:
        raise InvalidInput(
            f"features must return numbers (n, f); got {type(output).__name__}, whose values are no numbers "
            "or whose rows differ in length. Return an array or tensor, such as last_hidden_state.mean(1)."
        )
    rows = numbers
    if rows.ndim != 2 or len(rows) != len(piece) or rows.shape[1] < 2:
        raise InvalidInput(
            f"features must have shape ({len(piece)}, f) with f >= 2; got {rows.shape}. Flatten each record "
            "with rows.reshape(len(rows), -1), or average over words or positions."
        )
    if width is not None and rows.shape[1] != width:
        raise InvalidInput(
            f"features returned {rows.shape[1]} numbers for one record and {width} for others. Return the "
            "same number for each, for example by a mean over the words of a text."
        )
    if wrong := int((~np.isfinite(rows).all(axis=1)).sum()):
        raise InvalidInput(
            f"features returned NaN or infinite numbers for {wrong} of {len(rows)} records. Return zeros for "
            "such a record (perhaps an empty text), or remove it."
        )
    return rows


def _output_of(features: Any, piece: Any) -> Any:
    """Return the output of ``features`` for a piece of X. Errors contain no value of a record."""
    try:
        if isinstance(features, Pretrained):  # embed batches texts of similar length
            return features.embed(_inputs(features, piece))
        if isinstance(features, nn.Module):
            with _eval_mode(features), torch.no_grad():
                return features(_inputs(features, piece))
        return features(piece)
    except TacitError:
        raise
    except Exception as problem:
        if of_device(problem):
            raise
        summary = without_values(problem)
    raise InvalidInput(  # outside the handler: the first error may print a record
        f"features failed on {len(piece)} record{'s' * (len(piece) > 1)} ({summary}); the original message "
        "is hidden, because it may contain values of records. Call features(X[:8]) and features(X[:1]) "
        "yourself: they must return numbers (n, f). If features is a torch module that reads scaled "
        "numbers, declare bounds."
    )


def _inputs(features: nn.Module, piece: Any) -> Tensor:
    tokens = getattr(features, "tokens", None)
    if callable(tokens):
        inputs: Tensor = tokens(list(piece))
    else:
        values = piece if isinstance(piece, Tensor) else torch.from_numpy(np.ascontiguousarray(piece))
        inputs = values.float() / 255 if values.dtype == torch.uint8 else values.float()
    weights = next(chain(features.parameters(), features.buffers()), None)
    return inputs if weights is None else inputs.to(weights.device)


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


# --- scaled values ---------------------------------------------------------------------------------------


class _Fixed(nn.Module):
    """Maps records in [-1, 1] to [0, 1], and applies the user's module."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        rows: Tensor = self.features((inputs + 1) / 2)
        return rows


def front_of(estimator: Estimator, columns: int, *, least_squares: bool) -> nn.Module:
    """Return the fixed module in front of the model; it maps each record once, before all steps."""
    if takes_given(estimator):
        return nn.Identity()
    if estimator.additive_ and estimator.encoder_ is None:
        return Binned(BINS)
    if estimator.features is None:
        first = estimator.normalise and least_squares  # the models of DP-SGD have a layer for it
        return nn.LayerNorm(columns, elementwise_affine=False) if first else nn.Identity()
    if not isinstance(estimator.features, nn.Module):
        raise InvalidInput(
            "with bounds or columns, features must be a torch module such as "
            f"tacit.models.PictureFeatures(28, 28); got {type(estimator.features).__name__}. To use another "
            "function, which reads X unchanged, remove bounds and columns."
        )
    front = _Fixed(copy.deepcopy(estimator.features))
    samples = torch.rand(3, columns, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        together, alone = front(samples), torch.cat([front(row[None]) for row in samples])
    if together.ndim != 2 or len(together) != 3:
        raise InvalidInput(f"features must have shape (3, f) for 3 records; got {tuple(together.shape)}.")
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max())):
        raise PrivacyRefusal(
            "features depend on the other records of a batch, so one record would change the inputs of "
            "others. Use a module that maps each record alone."
        )
    return front


def check_unit(estimator: Estimator, X: object, owners: object) -> None:
    """Refuse a data frame with a column that seems to identify the units and has repeated values."""
    if owners is not None or estimator.one_record_per_unit or not has_column_names(X):
        return
    columns = {} if estimator.columns is None else parse_columns(estimator.columns)
    kinds = {name: column.kind for name, column in columns.items()}
    name, unit = repeated_in_frame(X, estimator.unit, kinds), estimator.unit
    if name is not None:
        raise PrivacyRefusal(
            f"unit={unit!r}, but column {name!r} of X has repeated values: a {unit} seems to have several "
            f"rows, and each row would be protected separately. To protect a {unit} with all rows, set "
            f'rows_per_user and call fit with owners=X["{name}"]. To protect single rows, set unit="row". If '
            f"each row is another {unit}, set one_record_per_unit=True."
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
        raise InvalidInput("X has no records. Give at least one.")
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
                f"{present} is given without {missing}. For people with several rows, give the estimator "
                "rows_per_user (the rows per person that a step reads) and give fit owners (the person of "
                "each row). In a pipeline, write fit(X, y, privateclassifier__owners=...)."
            )
        if rows_per_user is None:
            return parts, len(inputs)
        people = UserRecords(parts, self.owners, rows_per_user=rows_per_user)
        if people.shared:
            raise PrivacyRefusal(
                "owners must name one person for each row; got lists of owners. For shared rows, use "
                "tacit.PrivateSession with a plan that samples rows (Plan.calibrate(rows_per_user=...)). Or "
                "join people who share rows into groups, and name the group of each row."
            )
        return people, len(people)


# --- arrays ----------------------------------------------------------------------------------------------


def _refuse_dates(X: Any) -> None:
    """Refuse dates, which NumPy would convert to numbers in an undeclared unit."""
    head = np.asarray(X[:1] if hasattr(X, "columns") else X)
    if head.dtype.kind in "mM":
        raise InvalidInput(
            "X contains dates or times. Declare them in columns of a data frame, with "
            'kind = "date" or "datetime", or convert them to days since a public day.'
        )


def _by_bounds(estimator: Estimator, values: NDArray[np.float64]) -> Tensor:
    """Scale (n, d) raw values to float32 in [-1, 1], by the declared bounds."""
    if not np.isfinite(values).all():
        raise InvalidInput(
            "X contains NaN or infinite values. Remove such records, or fill in a constant: set `missing` of "
            "a column in `columns`, or use SimpleImputer(strategy='constant', keep_empty_features=True). A "
            "mean or median would leak the data."
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
            "columns and bounds are both given. Remove bounds, and declare each column's bounds as in "
            'columns={"age": Column(kind="number", lower=0, upper=120)}.'
        )
    columns = parse_columns(estimator.columns)
    with_bins = {name: column.with_bins(BINS) for name, column in columns.items()}
    numbers = sum(with_bins[name] != columns[name] for name in columns)
    estimator.additive_ = is_additive(estimator, rows, numbers)
    return Encoder(with_bins if estimator.additive_ else columns)


def _by_columns(encoder: Encoder, X: object) -> Tensor:
    try:
        names = names_of_frame(X)
    except InvalidInput:
        raise InvalidInput(
            f"with columns, X must be a data frame; got {type(X).__module__}.{type(X).__name__}. Give a "
            "pandas or Polars DataFrame, a pyarrow Table, or a mapping from names to columns. Or declare "
            "bounds instead of columns."
        ) from None
    if type(X).__module__.startswith("pandas") and any(not isinstance(name, str) for name in X.columns):  # type: ignore[attr-defined]
        raise InvalidInput(
            "the column names of X must be strings. Convert them: X.columns = X.columns.astype(str)."
        )
    if extra := [name for name in names if name not in encoder.columns]:
        raise InvalidInput(
            f"X has columns that are not declared: {', '.join(map(repr, extra))}. Drop them, or declare them "
            'in columns. The model ignores columns of kind="text", such as an identifier.'
        )
    return torch.from_numpy(encoder.frame(X, source="X"))


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
        return "Complex data not supported. Give real and imaginary parts of X as separate columns."
    if text.startswith("Expected 2D array"):
        return (
            "Expected 2D array: X must have shape (n, d). Reshape your data with X.reshape(-1, 1) for one "
            "column, or X.reshape(1, -1) for one record."
        )
    if text.startswith("The feature names should match"):
        return f"{text}Give the columns in the order of fit: X[list(model.feature_names_in_)]."
    if _HARMLESS.match(text):
        return text if text.endswith(".") else f"{text}."
    columns = _columns_of_non_numbers(X)
    if columns:
        return (
            f"X has cells that are not numbers: {columns} (values hidden). Declare the columns of the data "
            "frame in columns=..., or drop such columns."
        )
    targets = _count_non_numbers(y)
    if targets:
        return f"y must contain numbers; {targets} of its values are not numbers (values hidden)."
    return (
        f"scikit-learn does not accept X or y ({without_values(problem)}); its message is hidden, because it "
        "may contain values of records. Give X as an array (n, d) of numbers, and y as an array (n,)."
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
