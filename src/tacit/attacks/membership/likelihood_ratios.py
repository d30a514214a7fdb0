"""Membership attacks by likelihood ratios, most of them with shadow models.

**Loss threshold** (Yeom et al. 2018, 1709.01604): a member's loss is small.  It needs no other model, and
fails at low false-positive rates: an easy record has a small loss either way.

**LiRA**, the likelihood-ratio attack (Carlini et al. 2022, 2112.03570, Algorithm 1), models a record's scores
under models that were trained on it (in) and that were not (out) as Gaussian (section V):

    online:   log N(phi; mean_in, s_in^2) - log N(phi; mean_out, s_out^2)
    offline:  log Phi((phi - mean_out) / s_out)

The offline attack computes only how unusual the score would be for a non-member, on the side to which
training moves it.  A density instead of Phi would also call very *badly* fitted records members.

**BaVarIA-t**, the Bayesian variance-free likelihood ratio, is the default attack (Brännvall 2026,
2603.11799).  Each record's mean and variance, in or out, have a normal-inverse-gamma prior around those of
all records.  With few shadow models the other records count more, with many the record itself.  With n scores
of mean m and sum of squares SS about it, prior mean mu0 and variance v0, worth k0 scores and nu0 degrees of
freedom,

    k = k0 + n,  mu = (k0 mu0 + n m) / k,  nu = nu0 + n,
    s^2 = (nu0 v0 + SS + k0 n (m - mu0)^2 / k) / nu,

the next score is Student t with nu degrees of freedom about mu, of squared scale s^2 (1 + 1/k) (Murphy 2007,
"Conjugate Bayesian analysis of the Gaussian distribution", section 3.3).  The score is log t_in - log t_out.

**RMIA**, the robust membership inference attack (Zarifzadeh et al. 2024, 2312.03262), divides the target's
probability of a record by that of an average model.  It compares this ratio with those of records z that no
model was trained on:

    Pr over z of  (p_T(x) / p(x)) / (p_T(z) / p(z)) >= gamma

with p the probability of the true class.  p(x) averages over models, half of them trained on x.  If only
models that were not trained on x are available, (1 + b) / 2 times their mean plus (1 - b) / 2 replaces that
average, for both x and z (equations 5 to 10 and appendix B.2.2 of the paper).

Letters: K shadows, n records, z records outside.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr, logsumexp
from scipy.stats import norm, t

from tacit.attacks.membership.shadow_scores import ShadowScores, World
from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]


def loss_threshold(losses: ArrayLike) -> Array:
    """Return minus the target's loss on each record, in the shape of ``losses``.

    >>> loss_threshold([0.1, 2.0]).tolist()
    [-0.1, -2.0]
    """
    return -np.asarray(losses, dtype=np.float64)


def lira_online(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """Compute the log-likelihood ratio of each record, of shape (n,).

    Args:
        pooled: whether all records share one variance in and one out.  None means below 64 shadow models.

    Raises:
        InvalidInput: if some record is in or out of all shadows, or a variance is zero or unknown.

    >>> scores = ShadowScores([5.0], [[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]])
    >>> lira_online(scores).round(6).tolist()  # (4.5^2 - 0.5^2) / (2 * 0.5)
    [20.0]
    """
    inside, outside = (
        norm.logpdf(scores.target, world.mean, np.sqrt(scores.spread([world], pooled)))
        for world in (scores.world(member=True), scores.world(member=False))
    )
    return np.asarray(inside - outside, dtype=np.float64)


def lira_offline(scores: ShadowScores, *, pooled: bool | None = None) -> Array:
    """Compute the log of the share of non-member scores below the target's, of shape (n,), without in-scores.

    Args:
        pooled: whether all records share one variance.  None means below 64 shadow models.

    Raises:
        InvalidInput: if some record is in all shadows, or a variance is zero or unknown.
    """
    other = scores.world(member=False)
    z = (scores.target - other.mean) / np.sqrt(scores.spread([other], pooled))
    tail: Array = log_ndtr(z)
    return tail


# Chosen on MNIST with 2 to 64 shadows: a record's own mean counts from its first scores, its variance later.
_PRIOR_SCORES, _PRIOR_FREEDOM = 0.01, 4.0


def bavaria(
    scores: ShadowScores, *, prior_scores: float = _PRIOR_SCORES, prior_freedom: float = _PRIOR_FREEDOM
) -> Array:
    """Compute the log ratio of the two predictive densities of each record, of shape (n,).

    Args:
        prior_scores: k0 > 0, the number of scores that the common mean is worth.
        prior_freedom: nu0 > 0, the number of scores that the common variance is worth.

    Raises:
        InvalidInput: if some record is in or out of all shadows, or no record's score ever varies.

    >>> scores = ShadowScores([5.0], [[5.0], [4.0], [1.0], [0.0]], [[True], [True], [False], [False]])
    >>> bool(bavaria(scores)[0] > 0.0)
    True
    """
    check_real("prior_scores", prior_scores, low=0.0, open_low=True)
    check_real("prior_freedom", prior_freedom, low=0.0, open_low=True)
    inside, outside = (
        _log_predictive(scores.target, scores.world(member=member), prior_scores, prior_freedom)
        for member in (True, False)
    )
    return inside - outside


def _log_predictive(x: Array, world: World, k0: float, nu0: float) -> Array:
    """Compute the log density of the next score at ``x``, of shape (n,)."""
    mu0, v0 = world.pooled_mean(), world.pooled_variance()
    if v0 <= 0.0:
        raise InvalidInput(
            "the scores of the shadow models never vary. Were they trained with the same random numbers, or "
            "is it one model given many times?"
        )
    n = world.count
    k, nu = k0 + n.astype(np.float64), nu0 + n.astype(np.float64)
    mu = (k0 * mu0 + n * world.mean) / k
    s2 = (nu0 * v0 + world.squares + k0 * n * (world.mean - mu0) ** 2 / k) / nu
    return np.asarray(t.logpdf(x, nu, mu, np.sqrt(s2 * (1.0 + 1.0 / k))), dtype=np.float64)


_TIE = 1e-9  # orders ties only: less than the step 1/z of any reasonable number of outside records


def rmia_online(
    scores: ShadowScores, outside_target: ArrayLike, outside_shadows: ArrayLike, *, gamma: float = 1.0
) -> Array:
    """Compute the share of outside records that each record beats by ``gamma``, of shape (n,), in [0, 1].

    Args:
        scores: *log* probabilities of the true class (:func:`log_probability`).
        outside_target: those of the target, of shape (z,), for records that no model was trained on.
        outside_shadows: those of the shadow models for the same records, of shape (K, z).
        gamma: the factor by which a record must be ahead, > 0.

    Raises:
        InvalidInput: if shapes do not match, a log probability is above 0, or a world is empty.
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
        slope: b in [0, 1], the slope of the mean over all models against that over models not trained on a
            record.  It is 0.3 to 0.5 in practice.  Fit it on a pair of models, one of them trained on the
            record.
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
    """Compute the log of the mean probability over the shadows in, or out, of shape (n,)."""
    count = scores.world(member=member).count
    here = scores.trained_on if member else ~scores.trained_on
    total = logsumexp(np.where(here, scores.shadows, -np.inf), axis=0)
    return np.asarray(total - np.log(count), dtype=np.float64)


def _blend(log_mean: Array, b: float) -> Array:
    """Compute the log of ((1 + b) mean + 1 - b) / 2."""
    constant = np.log1p(-b) if b < 1.0 else -np.inf
    return np.asarray(np.logaddexp(np.log1p(b) + log_mean, constant) - np.log(2.0), dtype=np.float64)


def _share_beaten(log_ratio: Array, outside: Array, gamma: float) -> Array:
    """Compute the shares of ``outside`` at most ``log_ratio - log gamma``, with ties ordered by the ratio."""
    check_real("gamma", gamma, low=0.0, open_low=True)
    beaten = np.searchsorted(np.sort(outside), log_ratio - np.log(gamma), side="right") / outside.size
    order: Array = expit(log_ratio)
    return np.asarray((beaten + _TIE * order) / (1.0 + _TIE), dtype=np.float64)
