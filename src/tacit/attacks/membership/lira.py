"""Is a record a member, by LiRA? The likelihood-ratio attack (Carlini et al. 2022, 2112.03570, Algorithm 1).

A record's scores under models that were trained on it (in) and that were not (out) count as Gaussian (section
V):

    online:   log N(phi; mean_in, s_in^2) - log N(phi; mean_out, s_out^2)
    offline:  log Phi((phi - mean_out) / s_out)

The offline attack asks only how unusual the score would be for a non-member, on the one side that training
moves it to; a density instead of Phi would call very *badly* fitted records members too.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tacit.attacks.membership.shadows import ShadowScores, World
from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]

PER_RECORD_VARIANCE = (
    64  # shadows from which on a record's own variance is a better estimate than the pooled one
)


def lira_online(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """The log-likelihood ratio of each record, of shape (n,).

    :param pooled: one variance per world for all records; None: below 64 shadow models.
    :raises InvalidInput: if some record is in or out of all shadows, or a variance is zero or unknown.

    >>> scores = ShadowScores([5.0], [[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]])
    >>> lira_online(scores).round(6).tolist()  # (4.5^2 - 0.5^2) / (2 * 0.5)
    [20.0]
    """
    member, other = scores.world(member=True), scores.world(member=False)
    return _log_normal(scores.target, member, _variance(scores, member, pooled)) - _log_normal(
        scores.target, other, _variance(scores, other, pooled)
    )


def lira_offline(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """The log of the share of non-member scores below the target's, of shape (n,); uses no in-scores.

    :param pooled: one variance for all records; None: below 64 shadow models.
    :raises InvalidInput: if some record is in all shadows, or a variance is zero or unknown.
    """
    other = scores.world(member=False)
    z = (scores.target - other.mean) / np.sqrt(_variance(scores, other, pooled))
    tail: Array = log_ndtr(z)
    return tail


def _variance(scores: ShadowScores, world: World, pooled: bool | None) -> Array:
    """Within-record variances, of shape (n,)."""
    if pooled is None:
        pooled = scores.shadows.shape[0] < PER_RECORD_VARIANCE
    if pooled:
        variance = np.full(world.mean.shape, world.pooled_variance())
    else:
        variance = world.squares / np.maximum(world.count - 1, 1)
    if not (variance > 0.0).all():
        raise InvalidInput(
            f"{int((variance <= 0.0).sum())} records score the same in all shadow models of a world, so that "
            "their variance is 0. Use pooled=True, or train more shadow models with other random numbers."
        )
    return variance


def _log_normal(x: Array, world: World, variance: Array) -> Array:
    return -((x - world.mean) ** 2) / (2.0 * variance) - np.log(2.0 * np.pi * variance) / 2.0
