"""Exposure, a measure of a true secret's rank among all candidates (Carlini et al. 2019, 1802.08232).

    exposure = log2 R - log2 rank

with ``rank`` the rank of the true secret among R candidates by the model's scores.  A model that never saw
the secret gives it any rank with equal probability, so Pr[exposure >= e] <= 2^-e.  The event exposure >= e is
thus a test for membership with false-positive rate at most 2^-e.  So training with the trade-off curve f has

    Pr[exposure >= e] <= 1 - f(2^-e)

for a secret in one record.  For c copies, 1 - f is applied c times (Dong, Roth & Su 2019, 1905.02383, Theorem
2.14).  Scores are log-likelihoods, so a *higher* score is more likely, as in every attack here.

Letters: R candidates, N of them drawn as a reference sample, c copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]

_FEWEST_FOR_A_FIT = 100
_FITTED = 5000  # the most candidates to which a skew normal is fitted; more take longer and change nothing
_LEAST_P_VALUE = 0.01


def exact_exposure(scores: ArrayLike, secret: int) -> float:
    """Compute log2 R - log2 rank, in bits in [0, log2 R], from the scores of all R candidates.

    The rank counts the candidates with a score of *at least* the secret's.  A model that gives all candidates
    the same score therefore exposes no secret.

    Args:
        scores: (R,) log-likelihoods of the candidates.  One of the candidates is the secret.
        secret: the position of the true secret among the candidates.

    >>> exact_exposure([-1.0, -5.0, -4.0, -3.0], 0), exact_exposure([-1.0, -1.0, -1.0, -1.0], 0)
    (2.0, 0.0)
    """
    values = _scores("scores", scores)
    place = check_integer("secret", secret, low=0, high=values.size - 1)
    rank = int((values >= values[place]).sum())
    return math.log2(values.size / rank)


def sampled_exposure(secret: float, others: ArrayLike) -> float:
    """Compute the exposure among N other candidates, drawn uniformly, in bits.  It is at most log2(N + 1).

    The rank also counts the secret.  Under a model that never saw the secret, all N + 1 are exchangeable.
    Therefore Pr[exposure >= e] <= 2^-e holds for the sample too.

    Args:
        secret: the log-likelihood of the true secret.
        others: (N,) log-likelihoods of candidates that were drawn independently of the secret.

    >>> sampled_exposure(-1.0, [-2.0, -3.0, -4.0])
    2.0
    """
    values = _scores("others", others)
    own = check_real("secret", secret)
    return math.log2((values.size + 1) / (1 + int((values >= own).sum())))


@dataclass(frozen=True)
class Extrapolated:
    """An exposure that is extrapolated from the candidates that were scored.

    ``exposure`` is in bits.  ``p_value`` is that of the Kolmogorov-Smirnov test of the fit.  It is biased
    upwards, as the distribution was fitted to the same scores.  So a small value means a bad fit, but a large
    value does not prove a good one.
    """

    exposure: float
    p_value: float


def extrapolated_exposure(
    secret: float, others: ArrayLike, *, least_p_value: float = _LEAST_P_VALUE
) -> Extrapolated:
    """Compute -log2 F(-secret), with F a skew normal fitted to the log-perplexities of other candidates.

    The result does not come from a rank (section 4.3).  It may exceed log2 R, and is only as accurate as the
    fitted tail.

    Args:
        secret: the log-likelihood of the true secret.
        others: (N,) log-likelihoods of candidates that were drawn independently of the secret, N >= 100.
        least_p_value: the smallest p-value of an accepted fit.

    Raises:
        InvalidInput: if the scores do not follow a skew normal distribution, or do not vary.
    """
    from scipy import stats  # imported here, as it takes longer than everything else in this file

    values = -_scores("others", others)  # log-perplexities
    own = -check_real("secret", secret)
    check_real("least_p_value", least_p_value, low=0.0, high=1.0, open_high=True)
    if values.size < _FEWEST_FOR_A_FIT or np.ptp(values) == 0.0:
        raise InvalidInput(
            f"others must be at least {_FEWEST_FOR_A_FIT} scores, not all equal; got {values.size} with "
            f"a range of {np.ptp(values):g}. A skew normal distribution is fitted to them."
        )
    thinned = values[:: math.ceil(values.size / _FITTED)]
    mean, std = float(thinned.mean()), float(thinned.std())
    z = (thinned - mean) / std
    shape, place, scale = stats.skewnorm.fit(z, *_moments_start(z))
    p_value = float(stats.kstest(z, stats.skewnorm(shape, place, scale).cdf).pvalue)
    if p_value < least_p_value:
        raise InvalidInput(
            "the scores of others do not follow a skew normal distribution. The Kolmogorov-Smirnov p-value "
            f"is {p_value:.2g}, below {least_p_value:g}: the tail would not show the secret's rank. Score "
            "all candidates (exact_exposure) or more of them (sampled_exposure)."
        )
    log_tail = skew_normal_log_cdf(((own - mean) / std - place) / scale, shape)
    return Extrapolated(max(0.0, -log_tail / math.log(2.0)), p_value)


def skew_normal_log_cdf(z: float, shape: float) -> float:
    """Compute the log of the integral of 2 phi(u) Phi(shape u) over u <= z.

    It has about nine correct digits, even in a far tail.  The closed form with Owen's T subtracts values near
    0 or 1, so it would lose all digits there.

    >>> round(skew_normal_log_cdf(0.0, 0.0), 9) == round(math.log(0.5), 9)
    True
    """
    # The integrand is log-concave.  Nearly all of its mass is within a few widths below min(z, its mode).
    mode = _mode(shape)
    top = min(z, mode + 12.0)
    if top > mode + 8.0:
        return 0.0  # all but 1e-15 of the mass
    end = min(top, mode)
    slope = abs(
        -end + shape * math.exp(-0.5 * (shape * end) ** 2 - 0.918938533204672 - log_ndtr(shape * end))
    )
    width = min(45.0 / max(slope, 1e-9), 12.0)
    u = np.linspace(end - width, top, 40001)
    log_density = math.log(2.0 / math.sqrt(2.0 * math.pi)) - 0.5 * u * u + log_ndtr(shape * u)
    weight = np.ones(u.size)
    weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0  # Simpson
    return min(0.0, float(logsumexp(log_density, b=weight * (u[1] - u[0]) / 3.0)))


def exposure_bound(
    false_negative_rate: Callable[[Array], Array], exposures: ArrayLike, *, copies: int = 1
) -> Array:
    """Bound, for each of ``exposures``, the probability that a planted secret has at least that exposure.

    Args:
        false_negative_rate: f, such as ``curve.false_negative_rate`` of a
            :class:`tacit.accounting.PrivacyCurve`.
        exposures: exposures >= 0, in bits.
        copies: the number of records with the secret.

    **Guarantee**

    * The bound holds for a secret that is drawn uniformly and independently of all else, whatever the
      attacker does with the model.  Its probability is over the draw of the secret and the training.

    >>> from tacit.accounting import account
    >>> from tacit.events import Gaussian
    >>> f = account(Gaussian(1.0), adjacency="add-remove").false_negative_rate
    >>> exposure_bound(f, [5.0, 10.0]).round(3).tolist()
    [0.194, 0.018]
    """
    bits = np.asarray(exposures, dtype=np.float64)
    if not ((bits >= 0.0).all() and np.isfinite(bits).all()):
        raise InvalidInput(f"exposures are numbers of bits >= 0; got {exposures!r}.")
    rate: Array = np.exp2(-bits).ravel()
    for _ in range(check_integer("copies", copies, low=1)):
        rate = np.maximum(rate, 1.0 - false_negative_rate(rate))
    return np.clip(rate, 0.0, 1.0).reshape(bits.shape)


def _mode(shape: float) -> float:
    """Find the maximum of 2 phi(u) Phi(shape u), the root of u = shape phi(shape u) / Phi(shape u)."""
    low, high = min(0.0, -1.0), 1.0
    for _ in range(80):
        u = (low + high) / 2.0
        ratio = math.exp(-0.5 * (shape * u) ** 2 - 0.918938533204672 - float(log_ndtr(shape * u)))
        low, high = (low, u) if u > shape * ratio else (u, high)
    return (low + high) / 2.0


def _moments_start(z: Array) -> tuple[float]:
    """Estimate a starting value of the shape from the sample's skewness.

    It is clipped to [-0.95, 0.95], because a skew normal has a skewness below 0.9953.
    """
    skew = float(np.clip(np.mean(z**3), -0.95, 0.95))
    power = abs(skew) ** (2.0 / 3.0)
    delta = math.sqrt(math.pi / 2.0 * power / (power + ((4.0 - math.pi) / 2.0) ** (2.0 / 3.0)))
    delta = min(delta, 0.995)
    return (math.copysign(delta / math.sqrt(1.0 - delta * delta), skew),)


def _scores(name: str, values: ArrayLike) -> Array:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise InvalidInput(
            f"{name} must be a row of finite log-likelihoods; got shape {row.shape} with "
            f"{int((~np.isfinite(row)).sum())} that are not finite."
        )
    return row
