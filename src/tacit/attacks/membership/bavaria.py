"""Is a record a member, by BaVarIA-t? The Bayesian variance-free likelihood ratio: the default attack.

Brännvall 2026, 2603.11799.  Each record's mean and variance in a world have a normal-inverse-gamma prior
around
those of all records: with few shadow models the other records count more, with many the record itself.  With
n scores of mean m and sum of squares SS about it, prior mean mu0 and variance v0, worth k0 scores and nu0
degrees of freedom,

    k = k0 + n,  mu = (k0 mu0 + n m) / k,  nu = nu0 + n,
    s^2 = (nu0 v0 + SS + k0 n (m - mu0)^2 / k) / nu,

the next score is Student t with nu degrees of freedom about mu, of squared scale s^2 (1 + 1/k) (Murphy 2007,
"Conjugate Bayesian analysis of the Gaussian distribution", section 3.3).  The score is log t_in - log t_out.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from tacit.attacks.membership.shadows import ShadowScores, World
from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]

# Chosen on MNIST with 2 to 64 shadows; a record's own mean counts almost at once, its variance after a few.
_PRIOR_SCORES, _PRIOR_FREEDOM = 0.01, 4.0


def bavaria(
    scores: ShadowScores, *, prior_scores: float = _PRIOR_SCORES, prior_freedom: float = _PRIOR_FREEDOM
) -> Array:
    """The log ratio of the two predictive densities of each record, of shape (n,).

    :param prior_scores: k0 > 0, how many scores the common mean is worth.
    :param prior_freedom: nu0 > 0, how many scores the common variance is worth.
    :raises InvalidInput: if some record is in or out of all shadows, or no record's score ever varies.

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
    """log density of the next score at ``x``; of shape (n,)."""
    mu0, v0 = world.pooled_mean(), world.pooled_variance()
    if v0 <= 0.0:
        raise InvalidInput(
            "Every record scores the same in all shadow models of a world. Were they trained with the same "
            "random numbers, or is it one model given many times?"
        )
    n = world.count
    k, nu = k0 + n.astype(np.float64), nu0 + n.astype(np.float64)
    mu = (k0 * mu0 + n * world.mean) / k
    s2 = (nu0 * v0 + world.squares + k0 * n * (world.mean - mu0) ** 2 / k) / nu
    scale2: Array = s2 * (1.0 + 1.0 / k)
    return _log_student((x - mu) ** 2 / scale2, nu) - np.log(scale2) / 2.0


def _log_student(z2: Array, nu: Array) -> Array:
    """log density of a standard Student t with ``nu`` degrees of freedom where its square is ``z2``."""
    constant: Array = gammaln((nu + 1.0) / 2.0) - gammaln(nu / 2.0) - np.log(nu * np.pi) / 2.0
    return constant - (nu + 1.0) / 2.0 * np.log1p(z2 / nu)
