"""Moments of likelihood ratios with a bound on the error: by integrals, or over lists of outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from tacit.accounting.closed_form import pure_epsilon
from tacit.accounting.flatten import Base
from tacit.accounting.pld.pair import log_mixture, response_pair
from tacit.accounting.price import Array
from tacit.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    RandomizedResponse,
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
# As in ``pld.pairs_bins``, P/Q = S/t, S the sum of t independent W, E_Q W^n = e^{n (n - 1) / (2 sigma^2)},
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
    """Return the number of points that the trapezoid rule takes for ``power``."""
    return (abs(power) + 1.0 + 2.0 * _DEVIATIONS * sigma) / _spacing(sigma, power)


def log_moments(rate: float, sigma: float, powers: Array) -> Array:
    """Compute log E m^s, rounded up, for every s in ``powers`` (shape (S,)) on one grid.

    Args:
        rate: q in (0, 1).
        sigma: the noise divided by the sensitivity, > 0.

    **Guarantee**

    * The result is never below the exact value.
    * Small values keep their relative accuracy: as E m = 1, E m^s - 1 is the mean of m^s - 1 - s (m - 1),
      which is nonnegative for s outside of (0, 1).
    """
    return _trapezoid(lambda x: log_mixture((2.0 * x - 1.0) / (2.0 * sigma * sigma), rate), sigma, powers)


def log_moments_of_mixture(
    probabilities: tuple[float, ...], shifts: tuple[float, ...], sigma: float, powers: Array
) -> Array:
    """Compute log E m^s of a mixture m(x) = sum_i w_i e^{(2 s_i x - s_i^2) / (2 sigma^2)}, s_i in [0, 1]."""
    # The error bounds of this file also hold here, as all summands of m(x + ib) have phases in [0, t].
    return _trapezoid(_mixture(probabilities, shifts, sigma), sigma, powers)


def log_moments_exchanged(
    probabilities: tuple[float, ...], shifts: tuple[float, ...], sigma: float, orders: Array
) -> Array:
    """Compute log E_Q (P/Q)^alpha for alpha > 1, with P of density phi(x) m(x) and Q its mirror image."""
    # For phi m(x)^alpha m(-x)^{1-alpha} the error bounds of this file hold, except that the slope of its
    # log is (r - x) / sigma^2 with r in [0, 2 alpha - 1].
    log_m = _mixture(probabilities, shifts, sigma)
    spacing = _spacing(sigma, 1.0 - float(orders.max()))
    low, high = -1.0 - _DEVIATIONS * sigma, 2.0 * float(orders.max()) - 1.0 + _DEVIATIONS * sigma
    x: Array = low + spacing * np.arange(2.0 + math.ceil((high - low) / spacing))
    log_q = log_m(-x)
    log_weights = _log_normal(x, spacing, sigma) + log_q
    return _log_mean(log_weights, log_m(x) - log_q, orders, sigma / spacing)


def _mixture(
    probabilities: tuple[float, ...], shifts: tuple[float, ...], sigma: float
) -> Callable[[Array], Array]:
    """Return log m as a function of x."""
    weights, centres = np.array(probabilities)[:, None], np.array(shifts)[:, None]
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)

    def log_m(x: Array) -> Array:
        y = (2.0 * centres * x - centres * centres) / (2.0 * sigma * sigma)
        grown = (weights * np.expm1(np.minimum(y, 1.0))).sum(axis=0)
        near = (y.max(axis=0) <= 1.0) & (grown > -0.5)
        logs = log_weights + y
        top = logs.max(axis=0)
        far = top + np.log(np.exp(logs - top).sum(axis=0))
        return np.where(near, np.log1p(np.where(near, grown, 0.0)), far)

    return log_m


def _trapezoid(log_m: Callable[[Array], Array], sigma: float, powers: Array) -> Array:
    low, high = min(0.0, float(powers.min())), max(1.0, float(powers.max()))
    spacing = min(_spacing(sigma, low), _spacing(sigma, high))
    low, high = low - _DEVIATIONS * sigma, high + _DEVIATIONS * sigma
    x: Array = low + spacing * np.arange(2.0 + math.ceil((high - low) / spacing))
    return _log_mean(_log_normal(x, spacing, sigma), log_m(x), powers, sigma / spacing)


def _log_normal(x: Array, spacing: float, sigma: float) -> Array:
    return math.log(spacing / (sigma * math.sqrt(2.0 * math.pi))) - (x / sigma) ** 2 / 2.0


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
    """Compute w (e^t - 1), where e^t may overflow."""
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
    """Multiply two power series, given by the logarithms of their coefficients."""
    return np.array([logsumexp(a[: n + 1] + b[n::-1]) for n in range(a.size)])


# Dominating pairs as lists of outcomes, for Renyi divergences.
#
# A ``Law`` holds the log ratio y = log dP/dQ of every outcome and its mass under Q.  Every pair here is
# symmetric: y under Q and -y under P have the same distribution.  A continuous pair is cut into cells, and
# the mass of a cell is moved to its two ends without changing its P-mass and Q-mass ("connect the dots").
# The true pair is a post-processing of the result, so every divergence goes up, relatively by about (cell
# width)^2.

_UNIT = 2.0**-53
_LAW_DEVIATIONS = 12.0  # from the mode of any integrand; outcomes farther away weigh less than e^{-72}
_CELLS = 4000
_MOST_OUTCOMES = 200_000


@dataclass(frozen=True)
class Law:
    """A pair as ``log_ratios`` y and ``log_masses`` under Q, both of shape (outcomes,)."""

    log_ratios: Array
    log_masses: Array


def law_of(base: Base, adjacency: Adjacency, largest: float) -> Law | None:
    """Return the law of ``base`` in units of ``adjacency``, up to the order ``largest``; None if unknown."""
    match base:
        case RandomizedResponse(noise, categories) if noise > 0.0:
            y, _, q = response_pair(noise, categories).atoms.T
            return Law(y[q > 0.0], np.log(q[q > 0.0]))
        case DiscreteLaplace(scale, sensitivity) if sensitivity <= _MOST_OUTCOMES:
            return _discrete_laplace(scale, sensitivity)
        case DiscreteGaussian(scale, sensitivity):
            return _discrete_gaussian(scale, sensitivity, largest)
        case Laplace(scale):
            return _laplace(1.0 / scale)
        case Gaussian(sigma):
            return _gaussian(sigma, largest)
    pure = pure_epsilon(base, adjacency)
    return None if pure is None else _coin(pure)


def _coin(epsilon: float) -> Law:
    """Return the pair that post-processes to every epsilon-DP pair (Kairouz et al. 2015, Theorem 3.2)."""
    light = -epsilon - math.log1p(math.exp(-epsilon))
    return Law(np.array([epsilon, -epsilon]), np.array([light, light + epsilon]))


def _discrete_laplace(scale: float, sensitivity: int) -> Law:
    """Return the pair Q(k) prop. to e^{-|k|/s} and P, the same around D; k <= 0 and k >= D are merged."""
    rest = -math.log1p(math.exp(-1.0 / scale))  # Q(k <= 0) = 1 / (1 + r)
    k = np.arange(sensitivity + 1.0)
    masses = rest + math.log(-math.expm1(-1.0 / scale)) - k / scale
    masses[0], masses[-1] = rest, rest - sensitivity / scale
    return Law((2.0 * k - sensitivity) / scale, masses)


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
    return Law((2.0 * k - sensitivity) * sensitivity / (2.0 * scale * scale), weights - total)


def _laplace(top: float) -> Law:
    """Return y with atoms at both ends of [-1/b, 1/b] and Q-density e^{-(1/b + y)/2} / 4 in between."""
    # In the cell [y, y + h], Q has mass w = e^{-(1/b + y)/2} (1 - e^{-h/2}) / 2 and P has mass e^{y + h/2} w.
    edges = np.linspace(-top, top, _CELLS + 1)
    half = top / _CELLS  # h/2
    cells = -(top + edges[:-1]) / 2.0 + math.log(-math.expm1(-half) / 2.0)
    right = cells - math.log1p(math.exp(half))
    atoms = np.array([math.log(0.5), math.log(0.5) - top])
    ratios = np.concatenate([[-top, top], edges[:-1], edges[1:]])
    return Law(ratios, np.concatenate([atoms, right + half, right]))


def _gaussian(sigma: float, largest: float) -> Law:
    """Return N(0, sigma^2) and N(1, sigma^2) on outcomes with ratio at least 1; no others are used."""
    x = np.linspace(0.5, largest + _LAW_DEVIATIONS * sigma, _CELLS + 1)
    y = (x - 0.5) / (sigma * sigma)
    q, p = _log_cells(x / sigma), _log_cells((x - 1.0) / sigma)
    right = np.clip(np.expm1(p - q - y[:-1]) / np.expm1(y[1] - y[0]), 1e-9, 1.0 - 1e-9)
    ratios = np.concatenate([y[:-1], y[1:]])
    return Law(ratios, np.concatenate([q + np.log1p(-right), q + np.log(right)]))


def _log_cells(z: Array) -> Array:
    """Compute the log of the standard normal mass between neighbours of ``z``."""
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
    log_m = log_mixture(law.log_ratios, rate)
    log_masses = law.log_masses
    if exchanged:
        above = law.log_ratios > 0.0
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
