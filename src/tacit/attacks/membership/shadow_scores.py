"""Scores by the target and by shadow models, which all attacks that compare models use.

A shadow model is trained like the target, but on a random half of the records.  A record's scores by the
shadow models that were trained on it, and by the others, show which of the two the target's score resembles.

These scores also give the exposure of a single record, in standard deviations:

    v_i = (mean I_i - mean O_i) / sqrt((s_I^2 + s_O^2) / 2)

with I_i the scores of record i by shadow models that were trained on it and O_i those by the others.  v_i is
the record's mu, in the sense that a test of its membership is a test of N(0, 1) against N(v_i, 1).  Compare
it with the mu of Gaussian differential privacy (Dong, Roth & Su 2019, 1905.02383).

Letters: K shadow models, n records, c classes.
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

PER_RECORD_VARIANCE = 64  # from this many shadow models on, per-record variances beat the pooled variance


def log_probability(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Compute log p of the true class, which is the negative loss, in float64 and of shape (..., n).

    Args:
        logits: of shape (..., n, c).
        labels: integers in [0, c), of shape (n,).

    >>> log_probability([[0.0, 0.0]], [1]).round(6).tolist()
    [-0.693147]
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    return true - logsumexp(z, axis=-1)


def logit_margin(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Compute phi = log p_y - log(1 - p_y), of shape (..., n), directly from the logits.

    No probability is rounded to 1, so no constant is needed to keep phi finite (Carlini et al. 2022,
    2112.03570, section IV.C).

    Args:
        logits: of shape (..., n, c) with c >= 2.
        labels: integers in [0, c), of shape (n,).

    >>> logit_margin([[50.0, 0.0, 0.0]], [0]).round(6).tolist()  # log p would be 0 to 16 digits
    [49.306853]
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    rest = z.copy()
    np.put_along_axis(rest, y, -np.inf, axis=-1)
    return true - logsumexp(rest, axis=-1)


@dataclass(frozen=True, eq=False)
class World:
    """Each record's scores by the shadow models that were trained on it (in), or by the others (out).

    ``count``, ``mean`` and ``squares`` (the sum of squares about the mean) are of shape (n,).
    """

    count: NDArray[np.int64]
    mean: Array
    squares: Array

    def pooled_mean(self) -> float:
        """Return the mean of all scores."""
        return float((self.count * self.mean).sum() / self.count.sum())

    def pooled_variance(self) -> float:
        """Return the variance *within* records.

        It is the sum of squares about each record's mean, divided by the number of scores minus the number of
        records.

        Raises:
            InvalidInput: if no record has two scores.
        """
        freedom = int(self.count.sum()) - int((self.count > 0).sum())
        if freedom < 1:
            raise InvalidInput(
                "the spread of scores cannot be estimated: no record was trained on twice, or none was left "
                "out twice. Train more shadow models: 16 are enough, 4 are few."
            )
        return float(self.squares.sum() / freedom)


@final
@dataclass(frozen=True, eq=False)
class ShadowScores:
    """The scores of n records by the target and by K shadow models.

    ``target`` is of shape (n,), and ``shadows`` of shape (K, n).  Any score that is higher for members will
    do.  ``trained_on``, of shape (K, n), says whether each shadow model was trained on each record.

    Raises:
        InvalidInput: if shapes do not match, or a score is not finite.
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
                f"shadows must be a table of models by records; got shape {self.shadows.shape} for target of "
                f"shape {self.target.shape}."
            )
        if mask.dtype != np.bool_ or mask.shape != self.shadows.shape:
            raise InvalidInput(
                f"trained_on must hold one boolean per shadow score; got {mask.dtype} of shape {mask.shape} "
                f"for shadows of shape {self.shadows.shape}."
            )
        for name, scores in (("target's", self.target), ("shadow models'", self.shadows)):
            if not np.isfinite(scores).all():
                raise InvalidInput(
                    f"{int((~np.isfinite(scores)).sum())} of the {name} scores are not finite. Score from "
                    "logits with logit_margin or log_probability, in float64."
                )

    def world(self, *, member: bool) -> World:
        """Return each record's scores by the shadow models that were trained on it, or by the others.

        Raises:
            InvalidInput: if some record has no such shadow model.
        """
        here = self.trained_on if member else ~self.trained_on
        count = here.sum(axis=0)
        if (count == 0).any():
            kind = "trained on it" if member else "not trained on it"
            raise InvalidInput(
                f"{int((count == 0).sum())} of the records lack a shadow model {kind}: there is nothing to "
                "compare with. Put every record into exactly half of the shadows' training sets."
            )
        mean = np.where(here, self.shadows, 0.0).sum(axis=0) / count
        squares = np.where(here, (self.shadows - mean) ** 2, 0.0).sum(axis=0)
        return World(count, mean, squares)

    def spread(self, worlds: Sequence[World], pooled: bool | None) -> Array:
        """Return the variance of each record's scores, averaged over ``worlds``, of shape (n,).

        Args:
            worlds: the scores in, the scores out, or both.
            pooled: whether all records share one variance.  By default they do if there are fewer than 64
                shadow models.

        Raises:
            InvalidInput: if a variance is zero.
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
                f"the scores of {int((variance <= 0.0).sum())} of the records never vary between shadow "
                "models. Their variance is 0, so there is no spread to compare with. Use pooled=True, or "
                "train the shadow models with other random numbers."
            )
        return variance


def _classified(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Check and return the logits, and the labels as indices along the last axis of the logits."""
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if z.ndim < 2 or z.shape[-1] < 2 or not np.issubdtype(y.dtype, np.integer) or y.shape != z.shape[-2:-1]:
        raise InvalidInput(
            f"logits must be (..., n, c), labels n integers; got {z.shape} and {y.dtype} of shape {y.shape}. "
            "c must be at least 2."
        )
    if y.size and not (y.min() >= 0 and y.max() < z.shape[-1]):
        raise InvalidInput(f"labels must lie in [0, {z.shape[-1] - 1}]; got {y.min()} to {y.max()}.")
    index = np.broadcast_to(y.astype(np.int64)[:, None], (*z.shape[:-1], 1))
    return z, index


def vulnerability(shadows: ArrayLike, trained_on: ArrayLike, *, pooled: bool | None = None) -> Array:
    """Compute the exposure v_i of each record, of shape (n,).

    Args:
        shadows: (K, n) scores, preferably :func:`logit_margin`.
        trained_on: (K, n) booleans.
        pooled: whether all records share one variance (in) and one (out).  By default they do if there are
            fewer than 64 shadow models.

    Raises:
        InvalidInput: if a record is in the training data of all shadow models or of none, or if scores never
            vary.

    >>> vulnerability([[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]]).round(6).tolist()
    [5.656854]
    """
    table = np.asarray(shadows, dtype=np.float64)
    scores = ShadowScores(table[0], table, trained_on)  # the target's score is not used
    inside, outside = scores.world(member=True), scores.world(member=False)
    value: Array = (inside.mean - outside.mean) / np.sqrt(scores.spread([inside, outside], pooled))
    return value


def ranked_and_reported(shadows: ArrayLike, trained_on: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    """Rank records by exposure with half of the shadow models, and compute v_i with the other half.

    The largest of many estimates is biased upwards, but the other half is independent of the ranking.  The
    result is the (n,) record numbers, with the most exposed record first, and the (n,) values v_i by record
    number.

    Args:
        trained_on: (K, n) booleans.  In either half of the models, some must be trained on a record and some
            not, as in :func:`tacit.attacks.shadows.paired_halves`.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.tile([[True], [False]], (8, 500))
    >>> order, value = ranked_and_reported(rng.normal(size=(16, 500)), trained_on)  # no record is exposed
    >>> bool(abs(value[order[:50]].mean()) < 0.5)
    True
    """
    table, mask = np.asarray(shadows, dtype=np.float64), np.asarray(trained_on)
    half = len(table) // 4 * 2  # whole pairs
    order = np.argsort(-vulnerability(table[:half], mask[:half]), kind="stable")
    return order, vulnerability(table[half:], mask[half:])


def by_chance(shadows: ArrayLike, trained_on: ArrayLike) -> Array:
    """Compute the (n,) values v_i that a record may have in :func:`ranked_and_reported` by chance alone.

    The values are two standard deviations of the v_i of a record that is not exposed.  One standard deviation
    is sqrt(8 / K), because v_i comes from K / 4 shadow models with the record and K / 4 without it, in units
    of the spread of all records.  It is larger for a record whose scores have a larger spread, because chance
    more often ranks such records first.

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
    limits: Array = 2.0 * np.sqrt(8.0 / len(table) * np.maximum(1.0, own / pooled))
    return limits
