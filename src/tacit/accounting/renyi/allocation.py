"""Renyi divergence of one epoch of balls in bins, with any noise (Feldman & Shenfeld 2025, 2502.08202).

As in ``pld.pairs_bins``, P/Q = S/t, S the sum of t independent W, E_Q W^n = e^{n (n - 1) / (2 sigma^2)}, and

    remove:  E_Q (S/t)^n = n! t^{-n} [x^n] (sum_j E W^j x^j / j!)^t  for whole n; its logarithm is convex in n
             (Holder), so that the chord is above it in between;
    add:     E_Q S^{-b} = int u^{b - 1} phi(u)^t du / Gamma(b), b = alpha - 1, with phi(u) = E_Q e^{-u W}.

phi is convex in u, and so is phi^t, so that chords are above it; e^{-u w} is convex in w, so that W may be
spread over the ends of cells, its mean kept.  In log u, log phi is concave (a convolution of two log-concave
functions), and so phi falls at least as fast beyond any u as before it, where phi(u) >= e^{-u}.  No
divergence is more than alpha / (2 sigma^2), where the bin is known.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr

from tacit.accounting.price import Array

LARGEST_ORDER = 128
_ORDERS = np.arange(LARGEST_ORDER + 1.0)
_FAR, _POINTS = 12.0, 2048  # deviations of log W, and points of W and of u
_FIRST, _LAST = -20.0, 14.0  # of log u, but for the bins and the spread of W
_SURE = 1e-8  # allowance for rounding, on logarithms
_ROUNDED = 2.0**-46  # relative to the terms of the logarithms


def balls_in_bins(bins: int, sigma: float, orders: Array) -> Array:
    """The larger of both directions, at ``orders`` > 1.

    >>> balls_in_bins(100, 0.5, np.array([2.0, 4.0])).round(3).tolist()
    [0.429, 3.396]
    """
    remove = np.interp(orders, _ORDERS, _log_moments(bins, sigma)) / (orders - 1.0)
    add = np.array([_log_inverse(bins, sigma, float(b)) / b for b in orders - 1.0])
    known = orders / (2.0 * sigma**2)
    return np.where(orders > LARGEST_ORDER, known, np.minimum(known, np.maximum(remove, add)))


def _log_inverse(bins: int, sigma: float, b: float) -> float:
    """log E_Q (S/t)^{-b}, rounded up; infinite where the integral is not bounded."""
    y, log_psi = _laplace(bins, sigma)
    step = float(y[1] - y[0])
    fall = (-bins - log_psi[-1]) / y[-1] - b  # of log u^b phi^t from u = 1 on, per nat, and of more beyond
    if not fall > 0.0:
        return math.inf
    # the mean of u in a cell, under u^{b-1}, as the share of its upper end; the same in every cell
    mean = b / (b + 1.0) * math.expm1((b + 1.0) * step) / math.expm1(b * step)
    share = (mean - 1.0) / math.expm1(step)
    chords = np.logaddexp(log_psi[:-1] + math.log1p(-share), log_psi[1:] + math.log(share))
    inside = logsumexp(b * y[:-1] + chords) + math.log(math.expm1(b * step) / b)
    ends = [inside, b * y[0] - math.log(b), b * y[-1] + log_psi[-1] - math.log(fall)]
    return float(logsumexp(ends) + b * math.log(bins) - gammaln(b)) + _SURE * (1.0 + b + bins * 1e-4)


@lru_cache(maxsize=64)
def _laplace(bins: int, sigma: float) -> tuple[Array, Array]:
    """log u, equally spaced, and t log phi(u) there, rounded up."""
    s = 1.0 / sigma
    z = np.linspace(-_FAR, _FAR + s, _POINTS)
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
def _log_moments(bins: int, sigma: float) -> Array:
    """log E_Q (S/t)^n for n = 0, 1, ..., rounded up; 0 for the first two."""
    w = _ORDERS * (_ORDERS - 1.0) / (2.0 * sigma**2)
    power, total = w - gammaln(_ORDERS + 1.0), np.where(_ORDERS == 0.0, 0.0, -math.inf)
    for bit in reversed(f"{bins:b}"):
        total = _product(total, power) if bit == "1" else total
        power = _product(power, power)
    rounding = _ROUNDED * (w + 2.0 * gammaln(_ORDERS + 1.0) + _ORDERS * math.log(bins))
    return np.where(_ORDERS > 1.0, total + gammaln(_ORDERS + 1.0) - _ORDERS * math.log(bins) + rounding, 0.0)


def _product(a: Array, b: Array) -> Array:
    """Of two power series, by the logarithms of their coefficients."""
    return np.array([logsumexp(a[: n + 1] + b[n::-1]) for n in range(a.size)])
