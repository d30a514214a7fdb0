"""Checks of declared classes, ranges and weights, which scikit-learn would read from the data.

Letters: n records; d columns; k classes.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, PrivacyRefusal, check_real

T = TypeVar("T")
_LARGEST_WEIGHT = 1e6  # clipping bounds the effect of any weight; this limit avoids overflow in float32


class WrongType(InvalidInput, TypeError):
    """Raised for a value or argument of a wrong type; a TypeError too, as scikit-learn raises one."""


def scaled(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Clamp (n, d) values to [low, high], (d,) each, and scale this range to [-1, 1]."""
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
            f"{name} must be declared: a range that is read from the data leaks the extreme records exactly. "
            f"Give a public range, such as {name}=(0, 16), that is wide enough for nearly all values; others "
            "are clamped to it." + (" Or declare columns, for a data frame." if name == "bounds" else "")
        )
    ordered = _in_order(name, bounds, names) if isinstance(bounds, Mapping) else bounds
    try:
        pairs = np.asarray(ordered, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must hold numbers; got {bounds!r}.") from None
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
            "classes must be declared: a class that is read from y reveals that a record of it is there. "
            "Give all possible labels, such as classes=[0, 1] or classes=range(10)."
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
            f"y has labels that are not among the declared classes {classes.tolist()}. Declare every label "
            "that may occur, or remove such records by a rule that does not read the others."
        )
    return numbers


def class_weights(
    weights: Mapping[Any, float] | str | None, classes: NDArray[Any]
) -> NDArray[np.float64] | None:
    """Return the weight of each class, (k,), 1 by default; None if ``weights`` is None."""
    if weights is None:
        return None
    if isinstance(weights, str):
        raise PrivacyRefusal(
            f"class_weight must be declared; got {weights!r}, which counts the records: one record would "
            "change the weights of all others, which no budget covers. Give weights from public knowledge, "
            "such as class_weight={0: 0.2, 1: 1.0}."
        )
    if not isinstance(weights, Mapping):
        raise InvalidInput(f"class_weight must be a dict from classes to weights; got {weights!r}.")
    labels = classes.tolist()
    if extra := [label for label in weights if label not in labels]:
        raise InvalidInput(
            f"class_weight names {extra!r}, not among the declared classes {labels}. Declare it in classes, "
            "or leave it out."
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
            "max_sample_weight must be declared: sample_weight is part of the records, so its range must be "
            "a public figure. Give it in the constructor, such as max_sample_weight=10; larger weights are "
            "clamped to it."
        )
    largest = check_real("max_sample_weight", largest, low=0.0, high=_LARGEST_WEIGHT, open_low=True)
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = None  # raised below, outside the handler: the first error prints a weight
    if numbers is None:
        raise InvalidInput("sample_weight must hold numbers, one for each record.")
    if numbers.shape != (records,):
        raise InvalidInput(
            f"sample_weight must have shape ({records},), one number for each record; got {numbers.shape}."
        )
    if wrong := int((~np.isfinite(numbers) | (numbers < 0)).sum()):
        raise InvalidInput(
            f"sample_weight holds {wrong:,} values that are negative, NaN or infinite. Give numbers from 0 "
            "to max_sample_weight."
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
            "random_state cannot be set: an attacker who knows the seed of the noise can subtract it, and "
            "then nothing protects the records. Leave it out; the key of the noise comes from the operating "
            "system, and two calls of fit differ."
        )
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
    raise WrongType(f"this estimator has no argument {name!r}. {hint}")
