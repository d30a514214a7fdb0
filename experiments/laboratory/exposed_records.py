"""The exposure of single records, from their scores by shadow models, in standard deviations:

    v_i = (mean I_i - mean O_i) / sqrt((s_I^2 + s_O^2) / 2)

with I_i the scores of record i by shadow models that were trained on it and O_i those by the others.  v_i is
the record's mu, in the sense that a test of its membership is a test of N(0, 1) against N(v_i, 1).  Compare
it with the mu of Gaussian differential privacy (Dong, Roth & Su 2019, 1905.02383).

Letters: K shadow models, n records.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.laboratory.likelihood_ratios import spread
from tacit.audits.attacks import ShadowScores

Array: TypeAlias = NDArray[np.float64]


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
    value: Array = (inside.mean - outside.mean) / np.sqrt(spread(scores, [inside, outside], pooled))
    return value


def ranked_and_reported(shadows: ArrayLike, trained_on: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    """Rank records by exposure with half of the shadow models, and compute v_i with the other half.

    The largest of many estimates is biased upwards, but the other half is independent of the ranking.  The
    result is the (n,) record numbers, with the most exposed record first, and the (n,) values v_i by record
    number.

    Args:
        trained_on: (K, n) booleans.  In either half of the models, some must be trained on a record and some
            not, as in :func:`tacit.audits.attacks.paired_halves`.

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
