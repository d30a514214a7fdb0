"""The epsilon of one mechanism at a given delta, for basic, advanced and optimal composition."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import numpy as np
from scipy.special import bdtrc, gammaln, xlogy

from tacit.accounting.closed_form.pure import amplified, exchanged, is_amplified, pure_epsilon
from tacit.accounting.closed_form.single import SinglePrice, single_delta
from tacit.accounting.flatten import Base, Steps
from tacit.accounting.pld import accountant as pld
from tacit.accounting.renyi import rdp, zcdp
from tacit.accounting.roots import brent
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    DiscreteGaussian,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    ShuffledReports,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

_UP = 1.0 + 1e-12
_FAINT = 1e-300
_ENDLESS = 1e6  # epsilon
_MOST_DRAWS = 64  # of one record: if it is drawn more often, its privacy counts as lost


@lru_cache(maxsize=4096)
def mechanism_epsilon(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Return an epsilon of ``base`` at ``delta`` in (0, 1), in units of ``adjacency``; it may be infinite.

    Raises:
        UnsupportedEvent: if there is no proven bound.

    >>> round(mechanism_epsilon(PoissonSampled(0.01, Gaussian(1.0)), 1e-5, Adjacency.ADD_REMOVE), 6)
    0.19945
    """
    match base:
        case ApproximateDP(epsilon, spent):
            return _relaxed(epsilon, spent, delta)
        case DiscreteGaussian() | ZeroConcentratedDP():
            return zcdp.curve(zcdp.rho(base, adjacency)).epsilon(delta)
        case Gaussian() | Laplace() | GaussianMixture() | PoissonSampled(_, Gaussian()):
            return SinglePrice(base, adjacency).epsilon(delta)
        case PoissonSampled(rate, inner) if is_amplified(inner, adjacency):
            return _sampled(rate, inner, delta, adjacency)
        case WithoutReplacement() | WithReplacement():
            return _fixed_size(base, delta, adjacency)
        case GroupPrivacy(inner, size) if pure_epsilon(base, adjacency) is None:
            return _of_group(lambda share: mechanism_epsilon(inner, share, adjacency), size, delta)
        case PrivateSelection():
            return _of_selection(base, delta, adjacency)
        case TruncatedPoissonSampled() | PoissonSampled(_, Laplace()) | ShuffledReports():
            return _by_grid(base, delta, adjacency)
    pure = pure_epsilon(base, adjacency)
    if pure is not None:
        return _relaxed(pure, 0.0, delta)
    raise _unknown(base, adjacency)


def _by_grid(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Compute epsilon by the privacy loss distribution.  Rounding ``delta`` down makes the cache useful."""
    return _by_grid_at(base, math.floor(2.0 * math.log2(delta)), adjacency)


@lru_cache(maxsize=1024)
def _by_grid_at(base: Base, halves: int, adjacency: Adjacency) -> float:
    return pld.price(((base, 1),), adjacency).epsilon(2.0 ** (halves / 2.0))


def _of_selection(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Return the lesser of two bounds: by the curve of one run, and by its Renyi divergences."""
    by_renyi = math.inf
    with suppress(UnsupportedEvent):
        by_renyi = rdp.price(((base, 1),), adjacency).epsilon(delta)
    try:
        return min(by_renyi, _by_grid(base, delta, adjacency))
    except UnsupportedEvent:
        if by_renyi == math.inf:
            raise
        return by_renyi


def _unknown(base: Base, adjacency: Adjacency) -> UnsupportedEvent:
    return UnsupportedEvent(
        f"no (epsilon, delta) is known for {base!r} under adjacency {adjacency.value!r}: composition "
        "theorems need one for every mechanism. State its guarantee as ApproximateDP, or use method 'pld' "
        "or 'rdp'."
    )


def least_delta(base: Base) -> float:
    """Return the delta below which no epsilon of ``base`` is known: 0 except for (epsilon, delta) claims.

    >>> least_delta(ApproximateDP(1.0, 1e-6))
    1e-06
    """
    match base:
        case ApproximateDP(_, delta):
            return delta
        case PoissonSampled(rate, inner):
            return rate * least_delta(inner) * _UP
        case WithoutReplacement(records, batch, inner):
            return batch / records * least_delta(inner) * _UP
    return 0.0


def delta_shares(steps: Steps, delta: float, share: float) -> tuple[list[float], float] | None:
    """Split ``delta`` into a share for each mechanism in ``steps`` and a rest; None if it is too small.

    Each mechanism gets its least delta, and an equal part of ``share`` times the remaining delta.
    """
    spent = sum(count * least_delta(base) for base, count in steps) * _UP
    if spent >= delta:
        return None
    even = share * (delta - spent) / sum(count for _, count in steps) / _UP
    return [least_delta(base) * _UP + even for base, _ in steps], (1.0 - share) * (delta - spent) / _UP


def least_value(value: Callable[[float], float], low: float, high: float) -> float:
    """Find the least value on a coarse grid in [low, high], refined near the best grid point.

    Every point gives a valid bound, so the result need not be the true minimum.

    >>> round(least_value(lambda x: (x - 1.0) ** 2, -12.0, 12.0), 6)
    0.0
    """
    points = np.linspace(low, high, 13)
    values = [value(float(point)) for point in points]
    best = int(np.argmin(values))
    if not math.isfinite(values[best]):
        return values[best]
    span = (float(points[max(best - 1, 0)]), float(points[min(best + 1, points.size - 1)]))
    from scipy.optimize import minimize_scalar  # imported here, as it is slow to import and seldom needed

    refined = minimize_scalar(value, bounds=span, method="bounded", options={"xatol": 1e-4})
    return min(values[best], float(refined.fun))


def _relaxed(epsilon: float, spent: float, delta: float) -> float:
    """Return eps' at ``delta`` of the worst (epsilon, spent)-DP mechanism.

    It solves (e^eps - e^eps') / (1 + e^eps) = (delta - spent) / (1 - spent) for the worst-case coin of
    Kairouz, Oh & Viswanath 2015.
    """
    if delta < spent:
        return math.inf
    share = (delta - spent) / (1.0 - spent) * (1.0 + math.exp(-epsilon))
    return max(0.0, (epsilon + math.log1p(-share)) * _UP + 1e-15) if share < 1.0 else 0.0


def _fixed_size(base: WithoutReplacement | WithReplacement, delta: float, adjacency: Adjacency) -> float:
    unit = exchanged(base.event, adjacency)
    match base:
        case WithoutReplacement(records, batch) if unit is not None:
            return _sampled(batch / records, unit, delta, Adjacency.REPLACE_ONE)
        case WithReplacement(records, batch) if isinstance(unit, Gaussian | Laplace):
            return _with_replacement(records, batch, unit, delta)
    raise _unknown(base, adjacency)


def _sampled(rate: float, unit: Base, delta: float, adjacency: Adjacency) -> float:
    """Account for Poisson samples, and samples without replacement (Balle et al. 2018, Theorems 8 and 9)."""
    if delta >= rate:
        return 0.0
    return amplified(mechanism_epsilon(unit, delta / rate / _UP, adjacency), rate)


def _with_replacement(records: int, batch: int, unit: Gaussian | Laplace, delta: float) -> float:
    """Account for samples with replacement by Balle, Barthe & Gaboardi 2018, Theorem 10.

    delta is the mean of delta_k(eps) over the number k of times that the record is drawn, where delta_k is
    delta at k times the sensitivity.  eps is amplified by P(k > 0).
    """
    log_miss = math.log1p(-1.0 / records) if records > 1 else -math.inf
    chance = -math.expm1(batch * log_miss)
    draws = np.arange(1.0, min(batch, _MOST_DRAWS) + 1.0)
    weights = np.exp(
        gammaln(batch + 1.0)
        - gammaln(draws + 1.0)
        - gammaln(batch - draws + 1.0)
        - draws * math.log(records)
        + xlogy(batch - draws, -math.expm1(-math.log(records)))
    ) * (1.0 + 1e-9)
    more = float(bdtrc(_MOST_DRAWS, batch, 1.0 / records)) * (1.0 + 1e-9) if batch > _MOST_DRAWS else 0.0
    noises = [type(unit)(unit.noise_multiplier / k) for k in draws]

    def excess(epsilon: float) -> float:
        mean = sum(w * single_delta(noise, epsilon) for w, noise in zip(weights, noises, strict=True))
        return float(mean) + more - delta

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
        if high > _ENDLESS:
            return math.inf
    root = brent(excess, 0.0, high, xtol=1e-12)
    while excess(root) > 0.0:
        root += 1e-11 * (1.0 + root)
    return amplified(root, min(1.0, chance * _UP))


def _of_group(epsilon_at: Callable[[float], float], size: int, delta: float) -> float:
    """Return k eps, where eps = ``epsilon_at(delta_1)`` and delta_1 (e^{k eps} - 1) / (e^eps - 1) = delta.

    See Vadhan 2017, "The Complexity of Differential Privacy", Lemma 2.2.
    """

    def excess(log_share: float) -> float:
        epsilon = epsilon_at(math.exp(log_share))
        return log_share + _log_geometric(epsilon, size) - math.log(delta / _UP)

    low, high = math.log(_FAINT), math.log(delta / size / _UP)
    if excess(low) > 0.0:
        return math.inf
    share = high if excess(high) <= 0.0 else brent(excess, low, high, xtol=1e-9)
    while excess(share) > 0.0:
        share -= 1e-9
    return size * epsilon_at(math.exp(share)) * _UP


def _log_geometric(epsilon: float, size: int) -> float:
    """Return log(1 + e^eps + ... + e^{(k-1) eps})."""
    if epsilon == 0.0:
        return math.log(size)
    if math.isinf(epsilon):
        return math.inf
    return (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))
