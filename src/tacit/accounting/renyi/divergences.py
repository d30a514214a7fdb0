"""Renyi divergences of the mechanisms, and their conversion to (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.closed_form import exchanged, is_amplified, pure_epsilon
from tacit.accounting.flatten import Base, Steps, flatten, in_units_of
from tacit.accounting.pld.losses import log_one_over_gamma
from tacit.accounting.price import Array
from tacit.accounting.renyi.quadrature import (
    LARGEST_ORDER,
    balls_in_bins,
    law_of,
    log_moments,
    log_moments_exchanged,
    log_moments_of_law,
    log_moments_of_mixture,
    points_needed,
)
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    BallsInBins,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    WithoutReplacement,
    ZeroConcentratedDP,
)

# From Renyi divergences to (epsilon, delta): the best conversion at each order, and the best order.
#
# A mechanism with eps_RDP(alpha) = gamma keeps D_alpha <= gamma after any post-processing.  Post-process to
# one bit, "L > eps", with probability p under P and q under Q (Asoodeh et al. 2020, 2001.05990, Theorem 3):
#
#   f(p, q) = p^alpha q^(1-alpha) + (1-p)^alpha (1-q)^(1-alpha) <= e^{(alpha-1) gamma},   delta = p - e^eps q.
#
# The largest p - e^eps q under this constraint is a valid delta, and the least that gamma alone implies.  f
# is jointly convex, so {f <= f(p, q)} lies on one side of its tangent at (p, q).  Hence *every* point (p,
# q) with q < p and f(p, q) >= e^{(alpha-1) gamma} proves
#
#     e^eps = -(df/dq) / (df/dp),   delta = p - e^eps q.                                            (tangent)
#
# Without the second summand of f the optimum is the closed form of Canonne, Kamath & Steinke 2020
# (2004.00010, Proposition 12), at which the search starts.  The second summand is about 1.  It matters if
# e^{(alpha-1) gamma} is not much larger than 1, as for few steps at a small sampling rate.
#
# Legend: a = alpha - 1, u = log p, l = log(p/q), m = log((1-q)/(1-p)), w = l + m.

_ROUNDS = 12  # of the secant method; five are usually enough
_MARGIN = 1e-9  # the secant method aims this far below its target
_FAINT = -670.0  # the least log p, so that p and 1/p stay finite
_LEAST_GAP = 1e-12  # the least w: rounding of a smaller w is relatively large; epsilon moves by less
_UNIT = 2.0**-53


def epsilon_at_orders(orders: Array, renyi: Array, delta: float) -> Array:
    """Compute an epsilon for ``delta`` from each order alone, in the shape of ``orders``.

    Args:
        orders: alpha > 1.
        renyi: eps_RDP(alpha), >= 0; infinity is allowed.
        delta: in (0, 1).

    **Guarantee**

    * The result is never below the least epsilon that eps_RDP(alpha) implies, and at most 1e-14 above the
      closed form.
    """
    # A negative result means that epsilon is 0.
    closed = renyi + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    closed = closed + 8.0 * _UNIT * (np.abs(closed) + abs(math.log(delta)) / (orders - 1.0))
    near = _second_summand_matters(orders, renyi) & (closed > 0.0)
    if near.any():
        a, gamma = orders[near] - 1.0, renyi[near]

        def excess(u: Array) -> tuple[Array, Array]:
            epsilon, log_delta = _tangent(u, a, gamma)
            return log_delta - math.log(delta), epsilon

        refined = _least(excess, math.log(delta) + np.log(orders[near]), np.ones_like(a))
        closed[near] = np.minimum(closed[near], refined)
    return closed


def log_delta_at_orders(orders: Array, renyi: Array, epsilon: float) -> Array:
    """Compute log delta for ``epsilon`` >= 0 from each order alone.  A positive result means delta = 1."""
    closed = (orders - 1.0) * (renyi - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    closed = closed + 8.0 * _UNIT * (np.abs(closed) + (orders - 1.0) * (renyi + epsilon))
    near = _second_summand_matters(orders, renyi)
    if near.any():
        a, gamma = orders[near] - 1.0, renyi[near]

        def excess(u: Array) -> tuple[Array, Array]:
            at, log_delta = _tangent(u, a, gamma)
            return at - epsilon, log_delta

        refined = _least(excess, closed[near] + np.log(orders[near]), -1.0 / a)
        closed[near] = np.minimum(closed[near], refined)
    return closed


def _second_summand_matters(orders: Array, renyi: Array) -> NDArray[np.bool_]:
    """Return where the second summand lowers epsilon by more than 1e-8 / alpha, and by more than rounding."""
    exponent = (orders - 1.0) * renyi
    return np.asarray((exponent < 18.0) & (exponent > 1e-200) & (orders < 1e6))


def _tangent(u: Array, a: Array, gamma: Array) -> tuple[Array, Array]:
    """Compute the (epsilon, log delta) that a point of the curve f(p, q) = e^{a gamma} proves; p = e^u."""
    # e^eps = (a/alpha) e^l (1 - e^{-alpha w}) / (1 - e^{-a w}), and
    # delta = p (1 - e^{eps - l}) = p (1 - e^{-a w} (1 + a (1 - e^{-w}))) / (alpha (1 - e^{-a w})).
    p, alpha = np.exp(u), a + 1.0
    ratio = _log_ratio(u, a, gamma)
    w = np.maximum(ratio + np.log1p(-p * np.exp(-ratio)) - np.log1p(-p), _LEAST_GAP)
    log_lost = np.log(-np.expm1(-a * w))
    epsilon = np.log(a / alpha) + ratio + np.log(-np.expm1(-alpha * w)) - log_lost
    inner = np.log1p(-a * np.expm1(-w)) - a * w  # <= 0, with a rounding error of some units of a w
    share = -np.expm1(np.minimum(inner, 0.0)) + 8.0 * _UNIT * a * w
    return epsilon + _LEAST_GAP + 8.0 * _UNIT * (ratio + 1.0 / alpha), u + np.log(share) - np.log(
        alpha
    ) - log_lost + _MARGIN / 4


def _log_ratio(u: Array, a: Array, gamma: Array) -> Array:
    """Find l with f(p, p e^{-l}) = e^{a gamma} by Newton's method from above, as f is convex in l."""
    p, total = np.exp(u), np.expm1(a * gamma)
    total = total + 16.0 * _UNIT * (total + (a + 1.0) * p)  # the rounding error of f - 1
    log_kept = (a + 1.0) * np.log1p(-p)
    ratio = np.log1p(a + total / p) / a  # as (1-p)^alpha (1-q)^{-a} >= 1 - alpha p
    for _ in range(40):
        log_other = np.log1p(-p * np.exp(-ratio))
        first, second = p * np.exp(a * ratio), log_kept - a * log_other  # the second summand of f in logs
        value = first + np.expm1(second) - total
        slope = a * (first - np.exp(second + u - ratio - log_other))
        step = value / slope
        ratio = ratio - step
        if bool((np.abs(step) <= 1e-12 * ratio).all()):
            break
    return np.asarray(ratio + 1e-11 * ratio, dtype=np.float64)


def _least(excess: Callable[[Array], tuple[Array, Array]], start: Array, slope: Array) -> Array:
    """Search for the root in u of an excess, and return the least answer at points with excess <= 0."""
    # ``excess(u)`` returns the excess and the answer.  The secant method aims ``_MARGIN`` below 0.  The
    # result is infinite if no such point is found, for instance if the excess has no root with p < 1.
    u = np.clip(start, _FAINT, math.log(0.9))
    value, answer = excess(u)
    best = np.where(value <= 0.0, answer, math.inf)
    for _ in range(_ROUNDS):
        miss = value + _MARGIN
        if bool((np.abs(miss) <= _MARGIN).all()):
            break
        step = np.clip(-miss / slope, -3.0, 3.0)
        new = np.clip(u + step, _FAINT, u / 4.0)  # u stays below 0
        new_value, answer = excess(new)
        best = np.where(new_value <= 0.0, np.minimum(best, answer), best)
        moved = (new != u) & (np.abs(new_value - value) > 1e-13)
        quotient = (new_value - value) / np.where(moved, new - u, 1.0)
        slope = np.where(moved & (np.sign(quotient) == np.sign(slope)), quotient, slope)
        u, value = new, new_value
    return best


# Renyi divergences of the mechanisms, at any real order alpha > 1 (Mironov 2017, 1702.07476, Definition 4):
#
# eps_RDP(alpha) = log E_Q (P/Q)^alpha / (alpha - 1).
#
# For the best of a random number of runs (Papernot & Steinke 2022, 2110.03620), one run costs eps(alpha).
# The number of runs K is random and secret, and only the best outcome is released:
#
# * Poisson, mean mu (Theorem 6): eps(alpha) + mu delta' + log(mu) / (alpha - 1), if a run is
#   (log(1 + 1/(alpha - 1)), delta')-DP.
# * Truncated negative binomial, shape eta > -1 and parameter gamma (Theorem 2), for any beta >= 1:
#   eps(alpha) + (1 + eta) ((1 - 1/beta) eps(beta) + log(1/gamma) / beta) + log(E K) / (alpha - 1).

_UP = 1.0 + 1e-12  # rounding, relative
_MOST_POINTS = 1e5


def renyi(base: Base, orders: Array, adjacency: Adjacency) -> Array:
    """Compute eps_RDP of ``base`` at ``orders`` > 1 (shape (S,)), in units of ``adjacency``, rounded up."""
    # The result covers both directions of add-remove.  As the noise is symmetric, the loss of P against Q
    # and that of Q against P have one distribution.  Then sampling costs most in the direction of removal
    # (Mironov, Talwar & Zhang 2019, 1908.10530, Theorem 5).
    match base:
        case Gaussian(sigma):
            return _line(0.5, sigma, orders)
        case DiscreteGaussian(scale, sensitivity):  # Canonne, Kamath & Steinke 2020 (2004.00010), Theorem 4
            return _line(0.5, scale / sensitivity, orders)
        case ZeroConcentratedDP(rho):
            return rho * orders
        case Laplace(scale):
            return _laplace(1.0 / scale, orders)
        case ExponentialMechanism(epsilon):
            return _bounded_range(epsilon, orders) * _UP
        case PoissonSampled(rate, Gaussian(sigma)) if adjacency is not Adjacency.REPLACE_ONE:
            return log_moments(rate, sigma, orders) / (orders - 1.0) * _UP
        case PoissonSampled(rate, Gaussian(sigma)):
            return _mixture(GaussianMixture(sigma, (0.0, 1.0), (1.0 - rate, rate)), orders, adjacency)
        case GaussianMixture():
            return _mixture(base, orders, adjacency)
        case PrivateSelection():
            return _selection(base, orders, adjacency)
        case GroupPrivacy(inner, size) if pure_epsilon(base, adjacency) is None:
            return _group(inner, size, orders, adjacency)
    costs = _by_law(base, orders, adjacency)
    if costs is None:
        raise UnsupportedEvent(
            f"method 'rdp' has no proven Renyi divergence for {base!r} under adjacency {adjacency.value!r}. "
            "Use method 'pld', or state a guarantee of the mechanism, such as ZeroConcentratedDP."
        )
    return costs


def _line(half: float, sigma: float, orders: Array) -> Array:
    """Return alpha ``half`` / sigma^2, rounded up: alpha / (2 sigma^2) for ``half`` = 1/2."""
    with np.errstate(over="ignore"):
        return np.asarray(half * orders / sigma / sigma * _UP)


def _laplace(top: float, orders: Array) -> Array:
    """Compute log(a/(2a-1) e^{(a-1)/b} + (a-1)/(2a-1) e^{-a/b}) / (a-1) (Mironov 2017, Proposition 6)."""
    first = np.log(orders / (2.0 * orders - 1.0)) + (orders - 1.0) * top
    second = np.log((orders - 1.0) / (2.0 * orders - 1.0)) - orders * top
    total = np.logaddexp(first, second) + 2.0**-50  # the rounding error of the logarithms, near 0
    return np.asarray(np.minimum(np.maximum(0.0, total) / (orders - 1.0), top) * _UP)


def _by_law(base: Base, orders: Array, adjacency: Adjacency) -> Array | None:
    """Compute the divergences from the outcomes of a pair, sampled or not."""
    largest = 2.0 ** math.ceil(math.log2(float(orders.max())))
    match base:
        case BallsInBins(bins, Gaussian(sigma)) if adjacency is not Adjacency.REPLACE_ONE:
            return balls_in_bins(bins, sigma, orders) * _UP
        case PoissonSampled(rate, inner):
            law, fixed_size = None, False
            if is_amplified(inner, adjacency):
                law = _law(inner, adjacency, largest)
        case WithoutReplacement(records, batch, inner):
            unit = exchanged(inner, adjacency)
            rate, fixed_size = batch / records, True
            law = None if unit is None else _law(unit, Adjacency.REPLACE_ONE, largest)
        case _:
            rate, law, fixed_size = 1.0, _law(base, adjacency, largest), False
    if law is None:
        return None
    return log_moments_of_law(law, rate, orders, exchanged=fixed_size) / (orders - 1.0) * _UP


_law = lru_cache(maxsize=64)(law_of)


def _mixture(base: GaussianMixture, orders: Array, adjacency: Adjacency) -> Array:
    """Compute the divergences of a Gaussian of random sensitivity, in units of the largest one."""
    # For adding, removing and exchanging a record, the pairs on a line dominate those in the plane.  An
    # exchange has the shifts s_i on one side and -s_i on the other: see ``pairs_mixture``.
    largest = max(base.sensitivities)
    if largest == 0.0:
        return np.zeros_like(orders)
    shifts, sigma = tuple(shift / largest for shift in base.sensitivities), base.noise_multiplier / largest
    if adjacency is Adjacency.REPLACE_ONE:
        return log_moments_exchanged(base.probabilities, shifts, sigma, orders) / (orders - 1.0) * _UP
    remove = log_moments_of_mixture(base.probabilities, shifts, sigma, orders)
    add = log_moments_of_mixture(base.probabilities, shifts, sigma, 1.0 - orders)
    return np.maximum(remove, add) / (orders - 1.0) * _UP


def _bounded_range(epsilon: float, orders: Array) -> Array:
    """Maximise log(p e^{(a-1) t} + (1-p) e^{(a-1)(t-eps)}) / (a-1) over t in [0, eps]."""
    # The worst pairs have losses t and t - eps, with p = (e^eps - e^t) / (e^eps - 1) (Dong, Durfee & Rogers
    # 2020, 1909.13830, Lemma 3.3).  In x = e^t the moment is x^{a-1} (A - B x), largest at x = (a-1) A / (a
    # B).  Here A and B are divided by e^eps / (e^eps - 1).  The result is at most alpha eps^2 / 8 (Cesar &
    # Rogers 2021).
    a = orders - 1.0
    log_c = -a * epsilon - epsilon
    log_a, log_b = np.log(-np.expm1(log_c)), np.log(-np.expm1(-a * epsilon)) - epsilon
    total = (
        log_a - math.log(-math.expm1(-epsilon)) - np.log(orders) + a * (np.log(a / orders) + log_a - log_b)
    )
    return np.asarray(
        np.minimum(np.maximum(total + 2.0**-48, 0.0) / a, np.minimum(epsilon, orders * epsilon**2 / 8))
    )


def _group(inner: Base, size: int, orders: Array, adjacency: Adjacency) -> Array:
    """Compute 3^c eps(2^c alpha) for a group of 2^c records and alpha >= 2 (Mironov 2017, Proposition 2)."""
    doublings = (size - 1).bit_length()
    units = in_units_of(adjacency, ((inner, 1),))
    return 3.0**doublings * summed(units, 2.0**doublings * np.maximum(orders, 2.0), adjacency)


def _selection(event: PrivateSelection, orders: Array, adjacency: Adjacency) -> Array:
    units = in_units_of(adjacency, flatten(event.event))
    most = min((largest_order(base, adjacency) for base, _ in units), default=1e9)
    grid = 1.0 + np.geomspace(0.2, min(most, 2e3), 32)

    def run(at: Array) -> Array:  # a few orders at a time, as those of one call share one grid
        return np.concatenate([summed(units, at[i : i + 8], adjacency) for i in range(0, at.size, 8)])

    if event.shape is None:
        return of_poisson(run, event.mean, orders, grid)
    return of_negative_binomial(run, event.mean, event.shape, orders, grid)


@lru_cache(maxsize=4096)
def _cached(base: Base, orders: bytes, adjacency: Adjacency) -> Array:
    """Cache :func:`renyi`: events with one more step or another delta use the same orders of a mechanism."""
    return renyi(base, np.frombuffer(orders, dtype=np.float64), adjacency)


def summed(units: Steps, orders: Array, adjacency: Adjacency) -> Array:
    """Compute eps_RDP of the composition of ``units``, in units of ``adjacency`` (Mironov 2017, Prop. 1)."""
    key = orders.tobytes()
    summed = np.zeros_like(orders)
    for base, count in units:
        summed = summed + count * _cached(base, key, adjacency)
    return summed * _UP


def largest_order(base: Base, adjacency: Adjacency) -> float:
    """Return the largest alpha - 1 for which quadrature takes at most 1e5 points."""
    exchanged = adjacency is Adjacency.REPLACE_ONE
    match base:
        case PoissonSampled(_, Gaussian(sigma)) if not exchanged:
            return _affordable(lambda power: points_needed(sigma, power))
        case PoissonSampled(_, Gaussian(sigma)):
            return _affordable(lambda power: 2.0 * points_needed(sigma, -power))
        case GaussianMixture(sigma, sensitivities):
            terms = len(sensitivities) * (2.0 if exchanged else 1.0)
            largest = max(*sensitivities, 1e-9)
            return _affordable(lambda power: terms * points_needed(sigma / largest, -power))
        case PoissonSampled(_, inner) | WithoutReplacement(_, _, inner) | GroupPrivacy(inner):
            return min(1e4, largest_order(inner, adjacency))
        case BallsInBins():
            return LARGEST_ORDER - 1.0
        case PrivateSelection(inner):
            return min((largest_order(part, adjacency) for part, _ in flatten(inner)), default=1e9)
    return 1e9


def _affordable(points: Callable[[float], float]) -> float:
    """Find the largest power that takes no more than ``_MOST_POINTS`` points, to a factor of 1.5."""
    power = 1e9
    while points(power) > _MOST_POINTS and power > 1.0:
        power /= 1.5
    return max(1.0, power)


def of_poisson(run: Callable[[Array], Array], mean: float, orders: Array, grid: Array) -> Array:
    """Apply Theorem 6; ``grid`` holds increasing orders, from which delta' of a run is computed."""
    price = np.minimum.accumulate(run(grid)[::-1])[::-1]  # no divergence is above that of a larger order
    epsilons = np.log1p(1.0 / (orders - 1.0))
    log_deltas = [float(log_delta_at_orders(grid, price, float(epsilon)).min()) for epsilon in epsilons]
    deltas = np.exp(np.minimum(log_deltas, 0.0))
    price = run(orders) + mean * deltas + math.log(mean) / (orders - 1.0)
    return np.maximum(price * _UP, 0.0)


def of_negative_binomial(
    run: Callable[[Array], Array], mean: float, shape: float, orders: Array, grid: Array
) -> Array:
    """Apply Theorem 2; ``grid`` holds the values of beta to try after 1, log-spaced in beta - 1."""
    cost = log_one_over_gamma(mean, shape)

    def at(beta: Array) -> Array:
        return (1.0 - 1.0 / beta) * run(beta) + cost / beta

    values = at(grid)
    best, least = float(grid[int(np.argmin(values))]), min(cost, float(values.min()))
    for width in (0.4, 0.1, 0.025):
        beta = 1.0 + (best - 1.0) * np.exp(width * np.linspace(-1.0, 1.0, 8))
        values = at(beta)
        best, least = float(beta[int(np.argmin(values))]), min(least, float(values.min()))
    return np.asarray((run(orders) + (1.0 + shape) * least + math.log(mean) / (orders - 1.0)) * _UP)
