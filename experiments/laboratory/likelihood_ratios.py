"""Other membership attacks by likelihood ratios, beside ``tacit.audits.attacks.bavaria``.

**Loss threshold** (Yeom et al. 2018, 1709.01604) takes a small loss as a sign of membership.  It needs no
other model.  It fails at low false-positive rates, because easy non-members have a small loss too.

**LiRA**, the likelihood-ratio attack (Carlini et al. 2022, 2112.03570, Algorithm 1), fits two Gaussians to a
record's scores (section V), one to those by models that were trained on it (in) and one to the others (out):

    online:   log N(phi; mean_in, s_in^2) - log N(phi; mean_out, s_out^2)
    offline:  log Phi((phi - mean_out) / s_out)

The offline attack computes only how unusually high the score would be for a non-member.  A density instead of
Phi would also call very *badly* fitted records members.

**RMIA**, the robust membership inference attack (Zarifzadeh et al. 2024, 2312.03262), divides the target
model's probability of a record by the average probability under shadow models.  It compares this ratio with
the ratios of records z that no model was trained on:

    Pr over z of  (p_T(x) / p(x)) / (p_T(z) / p(z)) >= gamma

with p_T and p the probabilities of the true class.  p(x) averages over shadow models, of which half are
trained on x.  If only models that were not trained on x are available, this average is replaced, for both x
and z, by (1 + b) / 2 times their mean plus (1 - b) / 2 (equations 5 to 10 and appendix B.2.2 of the paper).

Letters: K shadow models, n records, z outside records (on which no model was trained).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr, logsumexp
from scipy.stats import norm

from tacit.audits.attacks import ShadowScores, World
from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]

PER_RECORD_VARIANCE = 64  # from this many shadow models on, per-record variances beat the pooled variance


def loss_threshold(losses: ArrayLike) -> Array:
    """Return the negative loss of the target model on each record, in the shape of ``losses``.

    >>> loss_threshold([0.1, 2.0]).tolist()
    [-0.1, -2.0]
    """
    return -np.asarray(losses, dtype=np.float64)


def spread(scores: ShadowScores, worlds: Sequence[World], pooled: bool | None) -> Array:
    """Return the variance of each record's scores, averaged over ``worlds``, of shape (n,).

    Args:
        worlds: the scores in, the scores out, or both.
        pooled: whether all records share one variance.  By default they do if there are fewer than 64
            shadow models.

    Raises:
        InvalidInput: if a variance is zero.
    """
    if pooled is None:
        pooled = len(scores.shadows) < PER_RECORD_VARIANCE
    parts = [
        np.full(scores.target.shape, world.pooled_variance())
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


def lira_online(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """Compute the log-likelihood ratio of each record, of shape (n,).

    Args:
        pooled: whether all records share one variance (in) and one (out).  By default they do if there are
            fewer than 64 shadow models.

    Raises:
        InvalidInput: if some record is in the training data of all shadow models or of none, or a variance is
            zero or unknown.

    >>> scores = ShadowScores([5.0], [[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]])
    >>> lira_online(scores).round(6).tolist()  # (4.5^2 - 0.5^2) / (2 * 0.5)
    [20.0]
    """
    inside, outside = (
        norm.logpdf(scores.target, world.mean, np.sqrt(spread(scores, [world], pooled)))
        for world in (scores.world(member=True), scores.world(member=False))
    )
    return np.asarray(inside - outside, dtype=np.float64)


def lira_offline(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """Compute log Phi((phi - mean_out) / s_out) of each record, of shape (n,).

    This is the log of the share of non-member scores that are below the target's score.  No model that was
    trained on the record is used.

    Args:
        pooled: whether all records share one variance.  By default they do if there are fewer than 64 shadow
            models.

    Raises:
        InvalidInput: if some record is in the training data of all shadow models, or a variance is zero or
            unknown.
    """
    other = scores.world(member=False)
    z = (scores.target - other.mean) / np.sqrt(spread(scores, [other], pooled))
    tail: Array = log_ndtr(z)
    return tail


_TIE = 1e-9  # breaks ties only, as it is below 1/z for any reasonable number of outside records


def rmia_online(
    scores: ShadowScores, outside_target: ArrayLike, outside_shadows: ArrayLike, *, gamma: float = 1.0
) -> Array:
    """Compute the share of outside records that each record beats by ``gamma``, of shape (n,), in [0, 1].

    Args:
        scores: *log* probabilities of the true class (:func:`log_probability`).
        outside_target: (z,) log probabilities by the target, for records that no model was trained on.
        outside_shadows: (K, z) log probabilities by the shadow models, for the same records.
        gamma: a factor > 0.  A record beats an outside record if its ratio is at least gamma times as large.

    Raises:
        InvalidInput: if shapes do not match, a log probability is above 0, or a record is in the training
            data of all shadow models or of none.
    """
    target, mean = _outside(scores, outside_target, outside_shadows)
    inside, out = _mean_in(scores, member=True), _mean_in(scores, member=False)
    at_large = np.logaddexp(inside, out) - np.log(2.0)
    return _share_beaten(scores.target - at_large, target - mean, gamma)


def rmia_offline(
    scores: ShadowScores,
    outside_target: ArrayLike,
    outside_shadows: ArrayLike,
    *,
    slope: float,
    gamma: float = 1.0,
) -> Array:
    """Compute the scores of :func:`rmia_online` from only the models that were not trained on the record.

    Args:
        slope: b in [0, 1], the slope of a line that predicts a record's mean probability over all models from
            its mean over models that were not trained on it.  In practice b is 0.3 to 0.5.  Fit it on a pair
            of models of which one was trained on the record.
    """
    b = check_real("slope", slope, low=0.0, high=1.0)
    target, mean = _outside(scores, outside_target, outside_shadows)
    at_large = _blend(_mean_in(scores, member=False), b)
    return _share_beaten(scores.target - at_large, target - _blend(mean, b), gamma)


def _outside(scores: ShadowScores, outside_target: ArrayLike, shadows: ArrayLike) -> tuple[Array, Array]:
    """Check and return log p_T(z) and log p(z), each of shape (z,)."""
    target, table = np.asarray(outside_target, dtype=np.float64), np.asarray(shadows, dtype=np.float64)
    if target.ndim != 1 or table.shape != (scores.shadows.shape[0], target.size):
        raise InvalidInput(
            f"outside_shadows must be a table of models by outside records; got {table.shape} for "
            f"{scores.shadows.shape[0]} shadow models and outside_target of shape {target.shape}."
        )
    if target.size == 0:
        raise InvalidInput("RMIA needs records that no model was trained on; outside_target is empty.")
    if not all((values <= 0.0).all() for values in (scores.target, scores.shadows, target, table)):  # nor NaN
        raise InvalidInput(
            "RMIA takes log probabilities of the true class; some scores are above 0. Use log_probability on "
            "the logits."
        )
    return target, np.asarray(logsumexp(table, axis=0) - np.log(table.shape[0]), dtype=np.float64)


def _mean_in(scores: ShadowScores, *, member: bool) -> Array:
    """Compute the (n,) logs of the records' mean probabilities over models trained on them, or the others."""
    count = scores.world(member=member).count
    here = scores.trained_on if member else ~scores.trained_on
    total = logsumexp(np.where(here, scores.shadows, -np.inf), axis=0)
    return np.asarray(total - np.log(count), dtype=np.float64)


def _blend(log_mean: Array, b: float) -> Array:
    """Compute the log of ((1 + b) mean + 1 - b) / 2."""
    constant = np.log1p(-b) if b < 1.0 else -np.inf
    return np.asarray(np.logaddexp(np.log1p(b) + log_mean, constant) - np.log(2.0), dtype=np.float64)


def _share_beaten(log_ratio: Array, outside: Array, gamma: float) -> Array:
    """Compute the share of values in ``outside`` <= ``log_ratio - log gamma``.  The ratio breaks ties."""
    check_real("gamma", gamma, low=0.0, open_low=True)
    beaten = np.searchsorted(np.sort(outside), log_ratio - np.log(gamma), side="right") / outside.size
    order: Array = expit(log_ratio)
    return np.asarray((beaten + _TIE * order) / (1.0 + _TIE), dtype=np.float64)
