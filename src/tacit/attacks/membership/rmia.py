"""Is a record a member, by RMIA? The robust membership inference attack (Zarifzadeh et al. 2024, 2312.03262).

How much more likely a record is to the target than to an average model is compared with the same for records
z that no model was trained on:

    Pr over z of  (p_T(x) / p(x)) / (p_T(z) / p(z)) >= gamma

with p the probability of the true class.  p(x) averages over models, half of them trained on x.  Where only
models that were not are available, (1 + b) / 2 times their mean plus (1 - b) / 2 stands for that average, for
both x and z (equations 5 to 10 and appendix B.2.2 of the paper).

Letters: K shadows, n records, z records outside.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp

from tacit.attacks.membership.shadows import ShadowScores
from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]

_TIE = 1e-9  # below the step 1/z of any reasonable number of outside records: it orders ties, nothing else


def rmia_online(
    scores: ShadowScores, outside_target: ArrayLike, outside_shadows: ArrayLike, *, gamma: float = 1.0
) -> Array:
    """The share of outside records that each record beats by ``gamma``, of shape (n,), in [0, 1].

    :param scores: *log* probabilities of the true class (:func:`log_probability`).
    :param outside_target: the target's, of shape (z,), for records that no model was trained on.
    :param outside_shadows: the shadow models', of shape (K, z).
    :param gamma: how far a record must be ahead, > 0.
    :raises InvalidInput: if shapes do not match, a log probability is above 0, or a world is empty.
    """
    outside = _Outside(scores, outside_target, outside_shadows)
    inside, out = _mean_in(scores, member=True), _mean_in(scores, member=False)
    at_large = np.logaddexp(inside, out) - np.log(2.0)
    return _share_beaten(scores.target - at_large, outside.target - outside.mean, gamma)


def rmia_offline(
    scores: ShadowScores,
    outside_target: ArrayLike,
    outside_shadows: ArrayLike,
    *,
    slope: float,
    gamma: float = 1.0,
) -> Array:
    """As :func:`rmia_online`, from models that were not trained on the record alone.

    :param slope: b in [0, 1], how the mean over all models grows with that over models not trained on a
        record; 0.3 to 0.5 in practice, best fitted on a pair of models one of which was.
    """
    b = check_real("slope", slope, low=0.0, high=1.0)
    outside = _Outside(scores, outside_target, outside_shadows)
    at_large = _blend(_mean_in(scores, member=False), b)
    return _share_beaten(scores.target - at_large, outside.target - _blend(outside.mean, b), gamma)


class _Outside:
    """log p_T(z) and log p(z), each of shape (z,)."""

    def __init__(self, scores: ShadowScores, target: ArrayLike, shadows: ArrayLike) -> None:
        self.target = np.asarray(target, dtype=np.float64)
        table = np.asarray(shadows, dtype=np.float64)
        if self.target.ndim != 1 or table.shape != (scores.shadows.shape[0], self.target.size):
            raise InvalidInput(
                f"outside_shadows must hold one row for each of the {scores.shadows.shape[0]} shadow models "
                f"and one column for each outside record; got {table.shape} for {self.target.shape}."
            )
        if self.target.size == 0:
            raise InvalidInput("RMIA needs records that no model was trained on; there are none. Give some.")
        for values in (scores.target, scores.shadows, self.target, table):
            if not (values <= 0.0).all():  # NaN is refused too
                raise InvalidInput(
                    "RMIA takes log probabilities of the true class, at most 0; some are larger. Use "
                    "log_probability on the logits."
                )
        self.mean = logsumexp(table, axis=0) - np.log(table.shape[0])


def _mean_in(scores: ShadowScores, *, member: bool) -> Array:
    """log of the mean probability over the shadows in one world, of shape (n,)."""
    count = scores.world(member=member).count
    here = scores.trained_on if member else ~scores.trained_on
    total = logsumexp(np.where(here, scores.shadows, -np.inf), axis=0)
    return np.asarray(total - np.log(count), dtype=np.float64)


def _blend(log_mean: Array, b: float) -> Array:
    """log of ((1 + b) mean + 1 - b) / 2."""
    constant = np.log1p(-b) if b < 1.0 else -np.inf
    return np.asarray(np.logaddexp(np.log1p(b) + log_mean, constant) - np.log(2.0), dtype=np.float64)


def _share_beaten(log_ratio: Array, outside: Array, gamma: float) -> Array:
    """Shares of ``outside`` at most ``log_ratio - log gamma``; ties are ordered by the ratio itself."""
    check_real("gamma", gamma, low=0.0, open_low=True)
    beaten = np.searchsorted(np.sort(outside), log_ratio - np.log(gamma), side="right") / outside.size
    order: Array = expit(log_ratio)
    return np.asarray((beaten + _TIE * order) / (1.0 + _TIE), dtype=np.float64)
