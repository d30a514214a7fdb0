"""What must users declare that scikit-learn would read from the data? Classes, and the range of values.

Letters: n records; d columns; k classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput

__all__ = ["bounds_of", "class_numbers", "declared_classes", "scaled"]


def scaled(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Clamp (n, d) to [low, high], (d,) each, and scale that to [-1, 1]."""
    clamped = np.clip(values, low, high)
    return ((clamped - low) / (high - low) * 2 - 1).astype(np.float32)


def bounds_of(
    name: str, bounds: ArrayLike | None, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A pair (2,) or an array (d, 2) to lower and upper bounds, (d,) each."""
    if bounds is None:
        raise InvalidInput(
            f"{name} is missing: the range of the values must be a public figure, because a range that is "
            "read from the data leaks the extreme records exactly. Give the range that anyone who knows the "
            f"quantity would declare, such as {name}=(0, 16), wide enough for nearly all values; what lies "
            "outside is clamped."
        )
    try:
        pairs = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must hold numbers; got {bounds!r}.") from None
    if pairs.shape not in ((2,), (columns, 2)):
        wanted = "one pair (low, high)" + (f" or an array ({columns}, 2)" if name == "bounds" else "")
        raise InvalidInput(f"{name} must be {wanted}; got shape {pairs.shape}.")
    low, high = np.broadcast_to(pairs, (columns, 2)).T
    if not (np.isfinite(pairs).all() and (low < high).all()):
        raise InvalidInput(f"{name} must be finite numbers with low < high; got {pairs.tolist()}.")
    return low, high


def declared_classes(classes: Sequence[Any] | NDArray[Any] | None) -> NDArray[Any]:
    """The declared classes, sorted, (k,)."""
    if classes is None:
        raise InvalidInput(
            "classes is missing: the labels that may occur must be declared, because a class that is read "
            "from y reveals that a record of that class is there. Give all that are possible, such as "
            "classes=[0, 1] or classes=range(10)."
        )
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise InvalidInput(f"classes must be a list of labels, such as [0, 1]; got {classes!r}.")
    given = np.asarray(list(classes))
    found = np.unique(given)
    if given.ndim != 1 or len(found) != len(given) or len(found) < 2:
        raise InvalidInput(f"classes must be two or more different labels; got {classes!r}.")
    return found


def class_numbers(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) labels to (n,) positions in ``classes``."""
    positions = {label: position for position, label in enumerate(classes.tolist())}
    found = np.array([positions.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (found < 0).any():
        raise InvalidInput(
            f"y holds labels that are not among the declared classes {classes.tolist()}. Declare every "
            "label that may occur, or remove such records by a rule that does not read the others."
        )
    return found
