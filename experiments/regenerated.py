"""A search for training pictures that a generative model reproduces.

A generated picture g reproduces a training picture x if it is much closer to x than to other training
pictures (Carlini et al. 2023, 2301.13188, equation 2):

    l(g, x) = |g - x| / (alpha mean distance of g to its k nearest training pictures)

with alpha = 1/2 and k = 50.  A picture x counts as extracted if l < 1.  Copies of a picture count once here:
16 copies among the 50 nearest would make the mean small, and hide the pictures that leak most.

Letters: g generated, n training, d pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]

_NEIGHBOURS = 50
_ALPHA = 0.5
_CHUNK = 1024  # generated pictures per chunk


@dataclass(frozen=True, eq=False)
class Regenerated:
    """The distance of the generated pictures to each training picture.

    ``closeness``: (n,) -l of the nearest generated picture. A higher value means a more likely member.
    ``by``: (n,) the index of that generated picture.
    """

    closeness: Array
    by: NDArray[np.int64]

    @property
    def extracted(self) -> NDArray[np.bool_]:
        """Return whether l < 1, (n,)."""
        return self.closeness > -1.0


def regenerated(
    generated: ArrayLike,
    pictures: ArrayLike,
    *,
    neighbours: int = _NEIGHBOURS,
    alpha: float = _ALPHA,
) -> Regenerated:
    """Search for each of ``pictures`` among ``generated``.

    As a control, add pictures on which the model was not trained: the number of them that are "extracted" is
    due to chance and similarity alone.

    Args:
        generated: (g, ...) pictures from the model.
        pictures: (n, ...) pictures of the same shape. Copies are compared once, and get the same result.
        neighbours: k, at most the number of distinct pictures.
        alpha: > 0.

    Raises:
        InvalidInput: if shapes do not match, pixels are not finite, or there are fewer than k pictures.
    """
    made, real = _rows("generated", generated), _rows("pictures", pictures)
    if made.shape[1] != real.shape[1]:
        raise InvalidInput(f"generated pictures have {made.shape[1]} pixels, the others {real.shape[1]}.")
    check_real("alpha", alpha, low=0.0, open_low=True)
    distinct, which = np.unique(real, axis=0, return_inverse=True)
    check_integer("neighbours", neighbours, low=1)
    if neighbours > len(distinct):
        raise InvalidInput(
            f"{neighbours} nearest neighbours need as many distinct pictures; got {len(distinct)}."
        )
    best, by = np.full(len(distinct), np.inf), np.zeros(len(distinct), dtype=np.int64)
    for start in range(0, len(made), _CHUNK):
        distance = _distances(made[start : start + _CHUNK], distinct)
        nearest = np.partition(distance, neighbours - 1, axis=1)[:, :neighbours]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(distance > 0.0, distance / (alpha * nearest.mean(axis=1, keepdims=True)), 0.0)
        here = ratio.min(axis=0)
        by = np.where(here < best, start + ratio.argmin(axis=0), by)
        best = np.minimum(here, best)
    return Regenerated(-best[which.ravel()], by[which.ravel()])


def _distances(a: Array, b: Array) -> Array:
    """Return Euclidean distances, (g, n), from differences where the fast formula would lose digits."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :]
    found = squares - 2.0 * a @ b.T
    for i, j in np.argwhere(found < 1e-6 * squares):
        found[i, j] = ((a[i] - b[j]) ** 2).sum()
    distance: Array = np.sqrt(np.maximum(found, 0.0))
    return distance


def _rows(name: str, values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim < 2 or found.size == 0 or not np.isfinite(found).all():
        raise InvalidInput(f"{name} must be at least one picture of finite pixels; got shape {found.shape}.")
    return found.reshape(len(found), -1)
