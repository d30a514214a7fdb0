"""What do shadow models say of each record? The data of every attack that compares models.

A shadow model is trained as the target was, on a random half of the records.  Its scores of records that it
was trained on, and of others, show which of the two the target's score resembles.

How exposed a single record is follows from them, in standard deviations:

    v_i = (mean I_i - mean O_i) / sqrt((s_I^2 + s_O^2) / 2)

with I_i the scores of record i in shadow models that were trained on it and O_i in those that were not.  It
is the record's own mu: a test of it is one of N(0, 1) against N(v_i, 1), to be compared with the mu of
Gaussian differential privacy (Dong, Roth & Su 2019, 1905.02383).

Letters: K shadows, n records, c classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

PER_RECORD_VARIANCE = 64  # shadows from which on a record's variance is better estimated than the pooled one


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

    def spread(self, worlds: Sequence[World], pooled: bool | None) -> Array:
        """The mean variance of a record's scores in ``worlds``, of shape (n,).

        :param pooled: one for all records; None: below 64 shadow models.
        :raises InvalidInput: if it is zero.
        """
        if pooled is None:
            pooled = len(self.shadows) < PER_RECORD_VARIANCE
        parts = [
            np.full(self.target.shape, world.pooled_variance())
            if pooled
            else world.squares / np.maximum(world.count - 1, 1)
            for world in worlds
        ]
        variance: Array = np.mean(parts, axis=0)
        if not (variance > 0.0).all():
            raise InvalidInput(
                f"{int((variance <= 0.0).sum())} records score the same in all shadow models of a world, so "
                "that their variance is 0: there is no spread to compare with. Use pooled=True, or train the "
                "shadow models with other random numbers."
            )
        return variance


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


def vulnerability(shadows: ArrayLike, trained_on: ArrayLike, *, pooled: bool | None = None) -> Array:
    """v_i of each record, of shape (n,).

    :param shadows: (K, n) scores, best :func:`logit_margin`.
    :param trained_on: (K, n) booleans.
    :param pooled: one variance per world for all records; None: below 64 shadow models.
    :raises InvalidInput: if a record is in or out of all shadows, or nothing ever varies.

    >>> vulnerability([[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]]).round(6).tolist()
    [5.656854]
    """
    table = np.asarray(shadows, dtype=np.float64)
    scores = ShadowScores(table[0], table, trained_on)  # the target's own score plays no part
    inside, outside = scores.world(member=True), scores.world(member=False)
    value: Array = (inside.mean - outside.mean) / np.sqrt(scores.spread([inside, outside], pooled))
    return value


def ranked_and_reported(shadows: ArrayLike, trained_on: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    """Records from the most exposed to the least by one half of the shadows, and v_i by the other half.

    The largest of many estimates is too large; the other half is independent of the choice.  Returns the (n,)
    order and the (n,) values, both by record number.

    :param trained_on: (K, n) with every record in and out in either half, as
        :func:`tacit.attacks.shadows.paired_halves` makes them.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.tile([[True], [False]], (8, 500))
    >>> order, value = ranked_and_reported(rng.normal(size=(16, 500)), trained_on)  # nobody is exposed
    >>> bool(abs(value[order[:50]].mean()) < 0.5)
    True
    """
    table, mask = np.asarray(shadows, dtype=np.float64), np.asarray(trained_on)
    half = len(table) // 4 * 2  # whole pairs
    order = np.argsort(-vulnerability(table[:half], mask[:half]), kind="stable")
    return order, vulnerability(table[half:], mask[half:])


def by_chance(shadows: ArrayLike, trained_on: ArrayLike) -> Array:
    """How large chance makes v_i of :func:`ranked_and_reported` for a record that is not exposed; (n,).

    Two standard deviations.  One is sqrt(8 / K), as v_i is of K / 4 shadow models with the record and as
    many without it, in units of the spread of all records; a record whose own scores spread further strays
    further, and it is such records that chance ranks first.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.tile([[True], [False]], (8, 500))
    >>> scores = rng.normal(size=(16, 500))
    >>> order, value = ranked_and_reported(scores, trained_on)
    >>> bool(np.mean(value[order] > by_chance(scores, trained_on)[order]) < 0.05)
    True
    """
    table = np.asarray(shadows, dtype=np.float64)
    scores = ShadowScores(table[0], table, trained_on)
    worlds = [scores.world(member=member) for member in (True, False)]
    pooled = sum(world.pooled_variance() for world in worlds) / 2.0
    own = sum(world.squares for world in worlds) / (len(table) - 2)
    found: Array = 2.0 * np.sqrt(8.0 / len(table) * np.maximum(1.0, own / pooled))
    return found
