"""Renyi divergences of the mechanisms, their conversion to (epsilon, delta), and their accountants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from tacit.accounting.closed_form import exactly_pure, exchanged, is_amplified, pure_epsilon, with_leak
from tacit.accounting.flatten import (
    Base,
    Steps,
    check_scale,
    flatten,
    in_units_of,
    refuse_sampled_replacement,
)
from tacit.accounting.losses import log_one_over_gamma
from tacit.accounting.pair import discrete_laplace_pair, log_mixture, private_pair, response_pair
from tacit.accounting.price import Array, Price, decimal
from tacit.accounting.transform import Mixture
from tacit.errors import UnsupportedEvent, check_real
from tacit.events import (
    Adjacency,
    BallsInBins,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    WithoutReplacement,
    ZeroConcentratedDP,
)

# Moments by integrals with a proven error bound, for Poisson samples and for an epoch of balls in bins.
#
# Moments of the Poisson-sampled Gaussian, by the trapezoid rule:
#
#     log E_{x ~ N(0, sigma^2)} m(x)^s,   m(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)},   any real s
#
# (Mironov, Talwar & Zhang 2019, 1908.10530, equation (3)).  The result allows for three errors:
#
# * **Spacing.**  The integrand phi m^s is analytic for |Im x| < pi sigma^2, where m vanishes first.  For
#   0 < b < pi sigma^2 and t = b / sigma^2, on the line Im x = b: |phi| = phi(Re x) e^{b^2 / (2 sigma^2)}
#   and m cos(t/2) <= |m(x + ib)| <= m, as |u + v e^{it}| >= (u + v) cos(t/2).  So the rule is off by
#   a factor within 1 +- 2 e^{b^2 / (2 sigma^2)} cos(t/2)^{min(0, s)} / (e^{2 pi b / h} - 1)
#   (Trefethen & Weideman 2014, Theorem 5.1).  h is chosen so that this factor is within 1 +- e^{-42}.
# * **Tails.**  The slope of log(phi m^s) is (s r - x) / sigma^2 for some r(x) in [0, 1].  Beyond
#   max(s, 1) + k sigma the integrand thus falls at least like a normal density k deviations out, and the tail
#   is below (sigma / k) times its value at the end.  The same holds on the left.
# * **Rounding**: a few units in the last place of every exponent.
#
# Renyi divergence of one epoch of balls in bins, with any noise (Feldman & Shenfeld 2025, 2502.08202).
#
# As in ``bins``, P/Q = S/t, S the sum of t independent W, E_Q W^n = e^{n (n - 1) / (2 sigma^2)},
# and
#
#   remove:  E_Q (S/t)^n = n! t^{-n} [x^n] (sum_j E W^j x^j / j!)^t  for whole n; its logarithm is convex in n
#              (Holder), so that a chord is above it between whole n;
#     add:     E_Q S^{-b} = int u^{b - 1} phi(u)^t du / Gamma(b), b = alpha - 1, with phi(u) = E_Q e^{-u W}.
#
# phi is convex in u, and so is phi^t, so that chords are above it.  e^{-u w} is convex in w, so that W may be
# spread over the ends of cells with its mean kept.  In log u, log phi is concave (a convolution of two
# log-concave functions).  So beyond any u phi falls at least as fast as before it, where phi(u) >= e^{-u}.
# No divergence is more than alpha / (2 sigma^2), the divergence if the bin is known.

LARGEST_ORDER = 128
_ORDERS = np.arange(LARGEST_ORDER + 1.0)
_FARTHEST, _POINTS = 12.0, 2048  # deviations of log W, and points of W and of u
_FIRST, _LAST = -20.0, 14.0  # range of log u, before corrections for the number of bins and the spread of W
_SURE = 1e-8  # allowance for rounding, on logarithms
_ROUNDED = 2.0**-46  # relative to the terms of the logarithms

_UNIT = 2.0**-53
_SPACING_ERROR = 42.0  # minus the log of the relative error of the rule
_DEVIATIONS = 10.0


def _spacing(sigma: float, power: float) -> float:
    """Return the h with 2 pi b / h - b^2 / (2 sigma^2) + min(0, s) log cos(t/2) >= 42 for some height b."""
    b = min(sigma * math.sqrt(2.0 * _SPACING_ERROR), 0.98 * math.pi * sigma * sigma) * np.linspace(
        0.2, 1.0, 9
    )
    dearer = _SPACING_ERROR + math.log(2.0) + (b / sigma) ** 2 / 2.0
    dearer += min(0.0, power) * np.log(np.cos(b / (2.0 * sigma * sigma)))
    return float((2.0 * math.pi * b / dearer).max())


def points_needed(sigma: float, power: float) -> float:
    return (abs(power) + 1.0 + 2.0 * _DEVIATIONS * sigma) / _spacing(sigma, power)


def log_moments(term: Mixture, powers: Array) -> Array:
    """Compute log E m^s, rounded up, for every s in ``powers`` (shape (S,)); shifts are in [0, 1]."""
    # Small values keep their relative accuracy: as E m = 1, E m^s - 1 is the mean of m^s - 1 - s (m - 1),
    # which is nonnegative for s outside of (0, 1).  For several shifts the error bounds hold as well, as all
    # summands of m(x + ib) have phases in [0, t].
    low, high = min(0.0, float(powers.min())), max(1.0, float(powers.max()))
    spacing = min(_spacing(term.sigma, low), _spacing(term.sigma, high))
    x = _nodes(term.sigma, spacing, low, high)
    log_weights = term.log_normal(x) + math.log(spacing)
    return _log_mean(log_weights, term.log_m(x), powers, term.sigma / spacing)


def log_moments_exchanged(term: Mixture, orders: Array) -> Array:
    """Compute log E_Q (P/Q)^alpha for alpha > 1, with P of density phi(x) m(x) and Q its mirror image."""
    # For phi m(x)^alpha m(-x)^{1-alpha} the error bounds of this file hold, except that the slope of its
    # log is (r - x) / sigma^2 with r in [0, 2 alpha - 1].
    most = float(orders.max())
    spacing = _spacing(term.sigma, 1.0 - most)
    x = _nodes(term.sigma, spacing, -1.0, 2.0 * most - 1.0)
    log_q = term.log_m(-x)
    log_weights = term.log_normal(x) + math.log(spacing) + log_q
    return _log_mean(log_weights, term.log_m(x) - log_q, orders, term.sigma / spacing)


def _nodes(sigma: float, spacing: float, low: float, high: float) -> Array:
    """Return nodes that reach ``_DEVIATIONS`` deviations beyond ``low`` and ``high``."""
    low, high = low - _DEVIATIONS * sigma, high + _DEVIATIONS * sigma
    nodes: Array = low + spacing * np.arange(2.0 + math.ceil((high - low) / spacing))
    return nodes


def _log_mean(log_weights: Array, log_m: Array, powers: Array, sigma_over_h: float) -> Array:
    """Compute log sum w m^s, given that sum w = sum w m = 1."""
    exponents = powers[:, None] * log_m
    total = _log_sum(log_weights, exponents, sigma_over_h)
    small = total <= 0.1
    if small.any():
        total[small] = _log1p_sum(powers[small, None], log_weights, log_m, exponents[small], sigma_over_h)
    return total


def _log_sum(log_weights: Array, exponents: Array, sigma_over_h: float) -> Array:
    logs = log_weights + exponents
    top = logs.max(axis=1, keepdims=True)
    masses = np.exp(logs - top)
    tails = sigma_over_h / _DEVIATIONS * (masses[:, 0] + masses[:, -1])
    rounding = 8.0 * _UNIT * (np.abs(exponents).max(axis=1) + float(np.abs(log_weights).max()) + 4.0)
    return np.asarray(top[:, 0] + np.log(masses.sum(axis=1) + tails) + rounding + math.exp(-_SPACING_ERROR))


def _log1p_sum(
    powers: Array, log_weights: Array, log_m: Array, exponents: Array, sigma_over_h: float
) -> Array:
    weights = np.exp(np.maximum(log_weights, -740.0))
    linear = powers * _weighted_expm1(weights, log_weights, log_m)
    grown = _weighted_expm1(weights, log_weights, exponents)
    at_ends = np.exp(
        np.minimum(log_weights[[0, -1]] + exponents[:, [0, -1]], 700.0)
    )  # the ends of m^s, to which those of 1 and s m are added
    of_m = np.exp(np.minimum(log_weights[[0, -1]] + log_m[[0, -1]], 700.0))
    at_ends += weights[[0, -1]] * (1.0 + np.abs(powers)) + np.abs(powers) * of_m
    tails = sigma_over_h / _DEVIATIONS * at_ends.sum(axis=1)
    rounding = 8.0 * _UNIT * (np.abs(grown) + np.abs(linear)).sum(axis=1)
    spacing = (3.0 + np.abs(powers[:, 0])) * math.exp(-_SPACING_ERROR)  # errors for m^s, for 1 and for s m
    excess = np.maximum(grown - linear, 0.0).sum(axis=1)
    return np.asarray(np.log1p(excess + tails + rounding + spacing) * (1.0 + 1e-13))


def _weighted_expm1(weights: Array, log_weights: Array, exponents: Array) -> Array:
    near = weights * np.expm1(np.minimum(exponents, 1.0))
    return np.where(exponents > 1.0, np.exp(np.minimum(log_weights + exponents, 700.0)) - weights, near)


def balls_in_bins(bins: int, sigma: float, orders: Array) -> Array:
    """Compute the Renyi divergence of the direction that costs more, at ``orders`` > 1."""
    remove = np.interp(orders, _ORDERS, _log_moments_of_bins(bins, sigma)) / (orders - 1.0)
    add = np.array([_log_inverse(bins, sigma, float(b)) / b for b in orders - 1.0])
    gaussian = orders / (2.0 * sigma**2)
    return np.where(orders > LARGEST_ORDER, gaussian, np.minimum(gaussian, np.maximum(remove, add)))


def _log_inverse(bins: int, sigma: float, b: float) -> float:
    """Compute log E_Q (S/t)^{-b}, rounded up; infinite if the integral is not bounded."""
    y, log_psi = _laplace_transform(bins, sigma)
    step = float(y[1] - y[0])
    fall = (-bins - log_psi[-1]) / y[-1] - b  # the least fall per nat of log u^b phi^t, from u = 1 on
    if not fall > 0.0:
        return math.inf
    # the mean of u in a cell, under u^{b-1}, as the share of its upper end; it is the same in every cell
    mean = b / (b + 1.0) * math.expm1((b + 1.0) * step) / math.expm1(b * step)
    share = (mean - 1.0) / math.expm1(step)
    chords = np.logaddexp(log_psi[:-1] + math.log1p(-share), log_psi[1:] + math.log(share))
    inside = logsumexp(b * y[:-1] + chords) + math.log(math.expm1(b * step) / b)
    ends = [inside, b * y[0] - math.log(b), b * y[-1] + log_psi[-1] - math.log(fall)]
    return float(logsumexp(ends) + b * math.log(bins) - gammaln(b)) + _SURE * (1.0 + b + bins * 1e-4)


@lru_cache(maxsize=64)
def _laplace_transform(bins: int, sigma: float) -> tuple[Array, Array]:
    """Compute log u, equally spaced, and t log phi(u) there, rounded up."""
    s = 1.0 / sigma
    z = np.linspace(-_FARTHEST, _FARTHEST + s, _POINTS)
    w = np.exp(s * z - s * s / 2.0)
    masses = np.where(z[1:] < s / 2.0, np.diff(ndtr(z)), -np.diff(ndtr(-z)))
    means = np.where(z[1:] < s, np.diff(ndtr(z - s)), -np.diff(ndtr(s - z)))
    shares = np.clip((means / masses - w[:-1]) / np.diff(w), 0.0, 1.0)
    spread = np.append(masses * (1.0 - shares), float(ndtr(-z[-1])))
    spread[1:] += masses * shares
    y = np.linspace(_FIRST - math.log(bins), _LAST + 6.0 * s, _POINTS)
    phi = np.array([float(spread @ np.exp(-u * w)) for u in np.exp(y)]) + float(ndtr(z[0]))
    return y, bins * np.log(phi)


@lru_cache(maxsize=64)
def _log_moments_of_bins(bins: int, sigma: float) -> Array:
    """Compute log E_Q (S/t)^n, rounded up, for n = 0, 1, ...; it is 0 for the first two."""
    w = _ORDERS * (_ORDERS - 1.0) / (2.0 * sigma**2)
    power, total = w - gammaln(_ORDERS + 1.0), np.where(_ORDERS == 0.0, 0.0, -math.inf)
    for bit in reversed(f"{bins:b}"):
        total = _product(total, power) if bit == "1" else total
        power = _product(power, power)
    rounding = _ROUNDED * (w + 2.0 * gammaln(_ORDERS + 1.0) + _ORDERS * math.log(bins))
    return np.where(_ORDERS > 1.0, total + gammaln(_ORDERS + 1.0) - _ORDERS * math.log(bins) + rounding, 0.0)


def _product(a: Array, b: Array) -> Array:
    n = np.arange(a.size)
    rest = n[:, None] - n
    sums: Array = logsumexp(np.where(rest >= 0, a + b[rest], -math.inf), axis=1)
    return sums


# Dominating pairs as lists of outcomes, for Renyi divergences.
#
# A law holds the log ratio y = log dP/dQ of every outcome and its mass under Q.  Every pair here is
# symmetric: y under Q and -y under P have the same distribution.  A continuous pair is cut into cells, and
# the mass of a cell is moved to its two ends without changing its P-mass and Q-mass ("connect the dots").
# The true pair is a post-processing of the result, so every divergence goes up, relatively by about (cell
# width)^2.

_LAW_DEVIATIONS = 12.0  # from the mode of any integrand; outcomes farther away weigh less than e^{-72}
_CELLS = 4000
_MOST_OUTCOMES = 200_000


Law: TypeAlias = tuple[Array, Array]  # log ratios y, and log masses under Q


def law_of(base: Base, adjacency: Adjacency, largest: float) -> Law | None:
    """Return the law of ``base`` in units of ``adjacency``, up to the order ``largest``; None if unknown."""
    match base:
        case DiscreteGaussian(scale, sensitivity):
            return _discrete_gaussian(scale, sensitivity, largest)
        case Laplace(scale):
            return _law_of_laplace(1.0 / scale)
        case Gaussian(sigma):
            return _gaussian(sigma, largest)
        case RandomizedResponse(noise, categories) if noise > 0.0:
            pair = response_pair(noise, categories)
        case DiscreteLaplace(scale, sensitivity) if sensitivity <= _MOST_OUTCOMES:
            pair = discrete_laplace_pair(scale, sensitivity)
        case _:
            pure = pure_epsilon(base, adjacency)
            if pure is None:
                return None
            pair = private_pair(pure, 0.0)  # it post-processes to every pure pair
    possible = pair.atoms[:, 1:].max(axis=1) > 0.0
    y, p, q = pair.atoms[possible].T
    # the larger of P and Q has not underflowed
    return y, np.where(y > 0.0, np.log(np.maximum(p, q)) - y, np.log(np.maximum(p, q)))


def _discrete_gaussian(scale: float, sensitivity: int, largest: float) -> Law | None:
    """Return Q(k) prop. to e^{-k^2/(2 s^2)} and P, the same around D; integrands peak in [0, largest * D]."""
    low, high = (
        math.ceil(_LAW_DEVIATIONS * scale) + 1,
        math.ceil(largest * sensitivity + _LAW_DEVIATIONS * scale) + 1,
    )
    if low + high > _MOST_OUTCOMES:
        return None
    k = np.arange(-float(low), high + 1.0)
    weights = -((k / scale) ** 2) / 2.0
    total = float(np.logaddexp.reduce(weights))
    return (2.0 * k - sensitivity) * sensitivity / (2.0 * scale * scale), weights - total


def _law_of_laplace(top: float) -> Law:
    """Return y with atoms at both ends of [-1/b, 1/b] and Q-density e^{-(1/b + y)/2} / 4 in between."""
    # In the cell [y, y + h], Q has mass w = e^{-(1/b + y)/2} (1 - e^{-h/2}) / 2 and P has mass e^{y + h/2} w.
    edges = np.linspace(-top, top, _CELLS + 1)
    half = top / _CELLS  # h/2
    cells = -(top + edges[:-1]) / 2.0 + math.log(-math.expm1(-half) / 2.0)
    right = cells - math.log1p(math.exp(half))
    atoms = np.array([math.log(0.5), math.log(0.5) - top])
    ratios = np.concatenate([[-top, top], edges[:-1], edges[1:]])
    return ratios, np.concatenate([atoms, right + half, right])


def _gaussian(sigma: float, largest: float) -> Law:
    """Return N(0, sigma^2) and N(1, sigma^2) on outcomes with ratio at least 1; no others are used."""
    x = np.linspace(0.5, largest + _LAW_DEVIATIONS * sigma, _CELLS + 1)
    y = (x - 0.5) / (sigma * sigma)
    q, p = _log_cells(x / sigma), _log_cells((x - 1.0) / sigma)
    right = np.clip(np.expm1(p - q - y[:-1]) / np.expm1(y[1] - y[0]), 1e-9, 1.0 - 1e-9)
    ratios = np.concatenate([y[:-1], y[1:]])
    return ratios, np.concatenate([q + np.log1p(-right), q + np.log(right)])


def _log_cells(z: Array) -> Array:
    above = log_ndtr(-z)
    return np.asarray(above[:-1] + np.log(-np.expm1(above[1:] - above[:-1])))


def log_moments_of_law(law: Law, rate: float, orders: Array, *, exchanged: bool = False) -> Array:
    """Compute log E_Q m^alpha, rounded up, at every order (shape (S,)), with m = 1 - q + q e^y."""
    # As E m = 1, it is log(1 + E g_alpha(m)) with g_s(m) = m^s - 1 - s (m - 1) >= 0.
    #
    # ``exchanged`` is for sampling without replacement under an exchange of a record.  Then delta at e^eps
    # >= 1 is that of ((1-q) Q + q P, Q), in either direction (Balle, Barthe & Gaboardi 2018, 1807.01647,
    # Theorem 9), and the divergence, int alpha (alpha-1) t^{alpha-2} delta(log t) dt over t > 0, becomes E
    # 1{m > 1} (g_alpha(m) + g_{1-alpha}(m)).
    log_ratios, log_masses = law
    log_m = log_mixture(log_ratios, rate)
    if exchanged:
        above = log_ratios > 0.0
        log_m, log_masses = log_m[above], log_masses[above]
    powers = orders[:, None]
    logs = log_masses + _log_gap(log_m, powers)
    if exchanged:
        logs = np.logaddexp(logs, log_masses + _log_gap(log_m, 1.0 - powers))
    total = np.logaddexp.reduce(np.concatenate([logs, np.full_like(powers, math.log(1e-25))], axis=1), axis=1)
    largest = np.abs(powers[:, 0]) * float(np.abs(log_m).max(initial=0.0)) + float(np.abs(log_masses).max())
    return np.asarray(np.logaddexp(0.0, total + 16.0 * _UNIT * (largest + 10.0)))


def _log_gap(log_m: Array, power: Array) -> Array:
    """Compute log(m^s - 1 - s (m - 1)), s > 1 or s < 0, rounded up; s < 0 requires m >= 1."""
    t = power * log_m
    small_m, small_t = np.minimum(log_m, 1.0), np.minimum(t, 1.0)
    grown, linear = np.expm1(small_t), power * np.expm1(small_m)
    near = np.maximum(grown - linear, 0.0) + 8.0 * _UNIT * (np.abs(grown) + np.abs(linear)) + 1e-300
    up, m = np.maximum(t, 1.0), np.maximum(log_m, 1.0)
    # s > 1: m^s (1 - s m^{1-s} + (s-1) m^{-s});  s < 0: m (-s + (m^s - 1 + s) / m)
    rising = up + np.log1p(
        np.maximum((power - 1.0) * np.exp(-up) - power * np.exp(np.minimum(log_m - up, 0.0)), _UNIT - 1.0)
    )
    falling = m + np.log(np.maximum(-power + (np.expm1(np.minimum(t, 0.0)) + power) * np.exp(-m), 1e-300))
    far = np.where(power > 0.0, rising, falling)
    return np.asarray(np.where(np.where(power > 0.0, t, log_m) <= 1.0, np.log(near), far))


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


def epsilon_at_orders(orders: Array, renyi: Array, delta: float) -> Array:
    """Compute an epsilon for ``delta`` from each order alone, in the shape of ``orders``."""
    # ``orders`` are alpha > 1, and ``renyi`` is eps_RDP(alpha) >= 0, which may be infinite.  The result is
    # never below the least epsilon that eps_RDP(alpha) implies, and at most 1e-14 above the closed form.
    #
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
            return log_moments(Mixture.poisson(rate, sigma, "remove"), orders) / (orders - 1.0) * _UP
        case PoissonSampled(rate, Gaussian(sigma)):
            return _mixture((0.0, 1.0), (1.0 - rate, rate), sigma, orders, adjacency)
        case GaussianMixture(sigma, sensitivities, probabilities):
            return _mixture(sensitivities, probabilities, sigma, orders, adjacency)
        case PrivateSelection():
            return _selection(base, orders, adjacency)
        case GroupPrivacy(inner, size) if pure_epsilon(base, adjacency) is None:
            # 3^c eps(2^c alpha) for a group of 2^c records and alpha >= 2 (Mironov 2017, Proposition 2)
            doublings = (size - 1).bit_length()
            units = in_units_of(adjacency, ((inner, 1),))
            return 3.0**doublings * summed(units, 2.0**doublings * np.maximum(orders, 2.0), adjacency)
    costs = _by_law(base, orders, adjacency)
    if costs is None:
        raise UnsupportedEvent(
            f"method 'rdp' has no proven bound for {base!r} under adjacency {adjacency.value!r}. Use method "
            "'pld', or describe the mechanism by its proven guarantee, such as ZeroConcentratedDP."
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


def _mixture(
    sensitivities: tuple[float, ...],
    probabilities: tuple[float, ...],
    sigma: float,
    orders: Array,
    adjacency: Adjacency,
) -> Array:
    # For adding, removing and exchanging a record, the pairs on a line dominate those in the plane.  An
    # exchange has the shifts s_i on one side and -s_i on the other: see ``pair.gaussian_mixture``.
    largest = max(sensitivities)
    if largest == 0.0:
        return np.zeros_like(orders)
    parts = sorted((s / largest, w) for s, w in zip(sensitivities, probabilities, strict=True) if w > 0.0)
    if parts[0][0] > 0.0:
        parts.insert(0, (0.0, 0.0))
    shifts, shares = zip(*parts, strict=True)
    term = Mixture(shares, shifts, sigma / largest, "remove")
    if adjacency is Adjacency.REPLACE_ONE:
        return log_moments_exchanged(term, orders) / (orders - 1.0) * _UP
    remove, add = log_moments(term, orders), log_moments(term, 1.0 - orders)
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


# Renyi differential privacy, at any real order, with the best conversion to (epsilon, delta).
#
# For alpha > 1, eps_RDP(alpha) = log E_Q (P/Q)^alpha / (alpha - 1) = log E_P e^{(alpha-1) L} / (alpha - 1)
# (Mironov 2017, 1702.07476, Definition 4).  It adds up over steps (Proposition 1).

_LEAST, _STRIDE, _BLOCK = 1e-3, 0.3, 12  # of alpha - 1: the first, the step in its log, the number in a block
_CLOSER = 4


@dataclass(frozen=True)
class RenyiPrice(Price):
    """The best conversion over all orders of a Renyi curve.  Every order gives a valid bound.

    ``total(orders)`` is eps_RDP of the whole event, in the shape of ``orders``.  ``largest`` is the largest
    alpha - 1.
    """

    total: Callable[[Array], Array]
    largest: float

    def epsilon(self, delta: float) -> float:
        return max(0.0, self._least(lambda orders, gamma: epsilon_at_orders(orders, gamma, delta)))

    def delta(self, epsilon: float) -> float:
        log_delta = self._least(lambda orders, gamma: log_delta_at_orders(orders, gamma, epsilon))
        return math.exp(min(0.0, log_delta)) * _UP

    def _least(self, convert: Callable[[Array, Array], Array]) -> float:
        """Minimise ``convert`` over the orders: in blocks upwards until one gains nothing, then locally."""
        least, log_a = math.inf, math.log(_LEAST)
        logs = np.arange(math.log(_LEAST), math.log(self.largest), _STRIDE)
        for first in range(0, logs.size, _BLOCK):
            block = logs[first : first + _BLOCK]
            values = self._values(block, convert)
            best = int(np.argmin(values))
            if not values[best] < least and least < math.inf:
                break
            if values[best] < least:
                least, log_a = float(values[best]), float(block[best])
        width = _STRIDE
        for _ in range(_CLOSER):
            closer = log_a + width * np.linspace(-0.75, 0.75, 7)
            values = self._values(np.minimum(closer, math.log(self.largest)), convert)
            best = int(np.argmin(values))
            if values[best] < least:
                least, log_a = float(values[best]), float(closer[best])
            width /= 4.0
        return least

    def _values(self, log_a: Array, convert: Callable[[Array, Array], Array]) -> Array:
        orders = 1.0 + np.exp(log_a)
        gamma = self.total(orders)
        values = np.full_like(gamma, math.inf)
        finite = gamma < math.inf
        if finite.any():
            values[finite] = convert(orders[finite], gamma[finite])
        return values


def rdp_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost by Renyi divergences; refuse, by name, mechanisms without a proven one."""
    # * ``epsilon`` and ``delta`` are upper bounds.  Every order gives one, and the least is used.
    # * Both directions of add-remove are covered at every order.
    units = in_units_of(adjacency, steps)
    least = [renyi(base, np.array([1.0 + _LEAST]), adjacency) for base, _ in units]  # raises if none is known
    if any(math.isinf(float(divergence[0])) for divergence in least):  # then it is at larger orders, too
        return RenyiPrice(lambda orders: np.full_like(orders, math.inf), 1.0)
    return RenyiPrice(
        lambda orders: summed(units, orders, adjacency),
        min((largest_order(base, adjacency) for base, _ in units), default=1e9),
    )


# The moments accountant, as published.
#
# Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang 2016 (1607.00133), section 3.2.  With mu0 the
# density of N(0, sigma^2), mu1 that of N(1, sigma^2) and mu = (1-q) mu0 + q mu1,
#
#     E1 = E_{z ~ mu0} (mu0(z) / mu(z))^l,   E2 = E_{z ~ mu} (mu(z) / mu0(z))^l,   alpha(l) = log max(E1, E2),
#
# alpha adds up over steps (Theorem 2.1), and delta = min over l <= 32 of exp(alpha(l) - l eps) (Theorem 2.2).
# E2 is the larger one (Mironov, Talwar & Zhang 2019, 1908.10530, Theorem 5), so alpha(l) is l times the Renyi
# divergence of order l + 1.

ORDERS = np.arange(1.0, 33.0)
"""The orders l that the paper uses: it is "usually sufficient to compute alpha(l) for l <= 32"."""


def paper_moments(base: Base) -> Array:
    """Compute alpha(l) of one step, in units of the adjacency, for l in ``ORDERS``, rounded up."""
    match base:
        case Gaussian() | PoissonSampled(_, Gaussian()):
            return ORDERS * summed(((base, 1),), ORDERS + 1.0, Adjacency.ADD_REMOVE)
    raise UnsupportedEvent(
        f"method 'moments' only supports Gaussian noise, with or without Poisson sampling, not {base!r}. Use "
        "method 'pld'."
    )


@dataclass(frozen=True)
class MomentsPrice(Price):
    alpha: Array

    def epsilon(self, delta: float) -> float:
        """Apply Theorem 2.2 of the paper, solved for epsilon."""
        return max(0.0, float(((self.alpha - math.log(delta)) / ORDERS).min()))

    def delta(self, epsilon: float) -> float:
        """Apply Theorem 2.2 of the paper."""
        return math.exp(min(0.0, float((self.alpha - ORDERS * epsilon).min())))


def moments_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost as in the paper: integer orders up to 32, and Markov's inequality for the tail."""
    # * ``epsilon`` and ``delta`` are upper bounds.  Under add-remove and zero-out they hold for Gaussians
    #   with or without Poisson sampling, under replace-one only for Gaussians without sampling.
    # * Everything else is refused by name.
    refuse_sampled_replacement(steps, adjacency, "moments")
    alpha = np.zeros(ORDERS.size)
    for base, count in in_units_of(adjacency, steps):
        alpha = alpha + count * paper_moments(base)
    return MomentsPrice(alpha)


# Zero-concentrated differential privacy: one number rho that adds up (Bun & Steinke 2016, 1605.02065).
#
# rho-zCDP means eps_RDP(alpha) <= rho alpha at every order alpha > 1 (Definition 1.1).  It composes by
# addition (Lemma 1.7).  The conversion to (epsilon, delta) uses the best order, and the best conversion of
# one order.

_LARGEST = 1e9  # alpha - 1


def rho(base: Base, adjacency: Adjacency) -> float:
    """Compute rho of one mechanism, in units of ``adjacency``, rounded up."""
    match base:
        case Gaussian(sigma):  # Bun & Steinke 2016, Proposition 1.6
            return 0.5 / sigma / sigma * _UP
        case DiscreteGaussian(scale, sensitivity):  # Canonne, Kamath & Steinke 2020 (2004.00010), Theorem 4
            return 0.5 * (sensitivity / scale) * (sensitivity / scale) * _UP  # ** would raise, not overflow
        case ZeroConcentratedDP(value):
            return value
        case ExponentialMechanism(epsilon):  # Cesar & Rogers 2021 (2004.07223), Lemma 3.2
            return epsilon * epsilon / 8.0 * _UP
        case GroupPrivacy(inner, size):  # Bun & Steinke 2016, Proposition 1.9
            return size * size * rho(inner, adjacency) * _UP
    pure = pure_epsilon(base, adjacency)
    if pure is not None:  # Bun & Steinke 2016, Proposition 1.4
        return pure * pure / 2.0 * _UP
    raise UnsupportedEvent(
        f"method 'zcdp' has no proven cost (rho) for {base!r} under adjacency {adjacency.value!r}. Use "
        "method 'pld' or 'rdp'."
    )


def zcdp_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost by zCDP.  Sampled mechanisms must be pure."""
    # * ``epsilon`` and ``delta`` are upper bounds.
    # * ``epsilon`` is never above rho + 2 sqrt(rho log(1/delta)), the conversion of the paper.
    units = in_units_of(adjacency, steps)
    return zcdp_curve(sum(count * rho(base, adjacency) for base, count in units) * _UP)


def zcdp_curve(rho: float) -> RenyiPrice:
    return RenyiPrice(lambda orders: rho * orders, _LARGEST)


# Costs that add up from release to release, see ``closed_form``.

_LEAST_NOISE = 1e-4  # relative to the sensitivity: less noise has an epsilon above 1e4, or 1e8 at order 2


def zcdp_cost(event: Event, adjacency: Adjacency | str) -> tuple[Fraction, Fraction]:
    """Compute (rho, leak) of ``event``, rounded up: the event is rho-zCDP except with probability ``leak``.

    >>> from tacit.events import Gaussian
    >>> round(float(zcdp_cost(Gaussian(2.0), "add-remove")[0]), 9)
    0.125
    """
    relation, steps, leak = with_leak(event, adjacency)
    return sum((count * _rho(base, relation) for base, count in steps), Fraction(0)), leak


def _rho(base: Base, adjacency: Adjacency) -> Fraction:
    """Compute rho of ``base``.  Pure mechanisms have epsilon^2 / 2 (Bun & Steinke 2016, Proposition 1.4)."""
    if isinstance(base, ZeroConcentratedDP):
        return decimal(base.rho)
    cost, pure = rho(base, adjacency), exactly_pure(base, adjacency)
    exact = None if pure is None else pure * pure / 2
    if not math.isfinite(cost):
        if exact is None:
            raise UnsupportedEvent(
                f"{base!r} has an infinite cost (rho): it protects nothing. Use more noise."
            )
        return exact
    return Fraction(cost) if exact is None else min(Fraction(cost), exact)  # some are below epsilon^2 / 2


def renyi_cost(event: Event, orders: Sequence[float], adjacency: Adjacency | str) -> tuple[Array, Fraction]:
    """Compute the Renyi divergences of ``event`` at ``orders`` and its leak, both rounded up.

    A divergence is infinite if no finite one is known.  For neighbours D, D' and every order > 1, except with
    probability ``leak``, the Renyi divergence of the outputs is at most the result, in both directions.  It
    adds up over adaptively chosen releases.

    >>> from tacit.events import ApproximateDP
    >>> divergences, leak = renyi_cost(ApproximateDP(1.0, 1e-6), (8.0,), "add-remove")
    >>> divergences.round(6).tolist(), float(leak)
    ([0.955248], 1e-06)
    """
    relation, steps, leak = with_leak(event, adjacency)
    at = np.array([check_real("order", order, low=1.0, open_low=True) for order in orders])
    for base, _ in steps:
        if not _reveals(base, relation):
            check_scale(base, "rdp")
            renyi(base, np.array([2.0]), relation)  # raises for mechanisms without a divergence
    most = min((largest_order(base, relation) for base, _ in steps), default=1e9)
    divergences = np.full(at.shape, np.inf)
    near = at - 1.0 <= most
    if near.any() and not any(_reveals(base, relation) for base, _ in steps):
        divergences[near] = summed(steps, at[near], relation)
    if (
        np.isnan(divergences).any() or (divergences < 0.0).any()
    ):  # pragma: no cover - a defect, never let through
        raise ArithmeticError(f"a Renyi divergence of {event!r} came out as {divergences}; please report it.")
    return divergences, leak


def _reveals(base: Base, adjacency: Adjacency) -> bool:
    """Return whether the noise is so small that it gives no privacy and floats overflow."""
    match base:
        case Gaussian(sigma) | PoissonSampled(_, Gaussian(sigma)) | GaussianMixture(sigma):
            return sigma < _LEAST_NOISE
        case DiscreteGaussian(scale, sensitivity):
            return scale < _LEAST_NOISE * sensitivity
    pure = pure_epsilon(base, adjacency)
    return pure is not None and pure > 1.0 / _LEAST_NOISE
