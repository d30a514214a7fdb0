"""What do shadow models say of each record? The data of every membership attack that compares models.

A shadow model is trained as the target was, on a random half of the records.  Its scores of records that it
was trained on, and of others, show which of the two the target's score resembles.

Letters: K shadows, n records, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


def log_probability(logits: ArrayLike, labels: ArrayLike) -> Array:
    """log p of the true class, of shape (..., n): the negative loss, in float64.

    :param logits: of shape (..., n, c).
    :param labels: integers in [0, c), of shape (n,).

    >>> log_probability([[0.0, 0.0]], [1]).round(6).tolist()
    [-0.693147]
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    return true - logsumexp(z, axis=-1)


def logit_margin(logits: ArrayLike, labels: ArrayLike) -> Array:
    """phi = log p_y - log(1 - p_y), of shape (..., n), from the logits themselves: no probability is rounded
    to 1, so no constant is needed to keep it finite (Carlini et al. 2022, 2112.03570, section IV.C).

    :param logits: of shape (..., n, c) with c >= 2.
    :param labels: integers in [0, c), of shape (n,).

    >>> logit_margin([[50.0, 0.0, 0.0]], [0]).round(6).tolist()  # log p would be 0 to 16 digits
    [49.306853]
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    others = z.copy()
    np.put_along_axis(others, y, -np.inf, axis=-1)
    return true - logsumexp(others, axis=-1)


@dataclass(frozen=True, eq=False)
class World:
    """How often a record was in the one or the other world, and its mean score and spread there.

    ``count``, ``mean`` and ``squares`` (the sum of squares about the mean) are of shape (n,).
    """

    count: NDArray[np.int64]
    mean: Array
    squares: Array

    def pooled_mean(self) -> float:
        """The mean of all scores."""
        return float((self.count * self.mean).sum() / self.count.sum())

    def pooled_variance(self) -> float:
        """The variance *within* records: the sum of squares about each record's own mean, over the number of
        scores less the number of records.

        :raises InvalidInput: if no record was seen twice.
        """
        freedom = int(self.count.sum()) - int((self.count > 0).sum())
        if freedom < 1:
            raise InvalidInput(
                "No record is in this world in two shadow models, so its scores have no spread to estimate. "
                "Train more shadow models: 16 do well, 4 are few."
            )
        return float(self.squares.sum() / freedom)


@final
@dataclass(frozen=True, eq=False)
class ShadowScores:
    """The target's scores of n records, and those of K shadow models.

    ``target`` is of shape (n,); ``shadows`` of shape (K, n), any score of which higher says member;
    ``trained_on`` of shape (K, n), boolean: whether that shadow model was trained on that record.

    :raises InvalidInput: if shapes do not match, a score is not finite, or a record was in (or out of) all.
    """

    target: Array
    shadows: Array
    trained_on: Bools

    def __init__(self, target: ArrayLike, shadows: ArrayLike, trained_on: ArrayLike) -> None:
        object.__setattr__(self, "target", np.array(target, dtype=np.float64))
        object.__setattr__(self, "shadows", np.array(shadows, dtype=np.float64))
        mask = np.array(trained_on)
        object.__setattr__(self, "trained_on", mask)
        if self.target.ndim != 1 or self.shadows.ndim != 2 or self.shadows.shape[1:] != self.target.shape:
            raise InvalidInput(
                f"The shadows' scores, of shape {self.shadows.shape}, must be one row per shadow model and "
                f"one column for each of the target's scores, of shape {self.target.shape}."
            )
        if mask.dtype != np.bool_ or mask.shape != self.shadows.shape:
            raise InvalidInput(
                f"trained_on must hold one boolean per score of a shadow, {self.shadows.shape}; got "
                f"{mask.dtype} of shape {mask.shape}."
            )
        for name, scores in (("target", self.target), ("shadow models", self.shadows)):
            if not np.isfinite(scores).all():
                raise InvalidInput(
                    f"{int((~np.isfinite(scores)).sum())} scores of the {name} are not finite. Score from "
                    "logits with logit_margin or log_probability, in float64."
                )

    def world(self, *, member: bool) -> World:
        """The shadows that were trained on a record, or those that were not.

        :raises InvalidInput: if some record has no shadow there.
        """
        here = self.trained_on if member else ~self.trained_on
        count = here.sum(axis=0)
        if (count == 0).any():
            kind = "trained on it" if member else "not trained on it"
            raise InvalidInput(
                f"{int((count == 0).sum())} records have no shadow model that was {kind}: there is nothing "
                "to compare with. Put every record into exactly half of the shadows' training sets."
            )
        mean = np.where(here, self.shadows, 0.0).sum(axis=0) / count
        squares = np.where(here, (self.shadows - mean) ** 2, 0.0).sum(axis=0)
        return World(count, mean, squares)


def _classified(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """The logits, and the labels as an index along their last axis."""
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if z.ndim < 2 or z.shape[-1] < 2 or not np.issubdtype(y.dtype, np.integer) or y.shape != z.shape[-2:-1]:
        raise InvalidInput(
            f"logits must have shape (..., n, c) with c >= 2 and labels be n integers; got {z.shape} and "
            f"{y.dtype} of shape {y.shape}."
        )
    if y.size and not (y.min() >= 0 and y.max() < z.shape[-1]):
        raise InvalidInput(f"labels must lie in [0, {z.shape[-1] - 1}]; got {y.min()} to {y.max()}.")
    index = np.broadcast_to(y.astype(np.int64)[:, None], (*z.shape[:-1], 1))
    return z, index
