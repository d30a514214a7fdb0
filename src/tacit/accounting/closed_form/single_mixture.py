"""One Gaussian of random sensitivity, performed once: delta by its threshold, epsilon from that.

The losses are monotone in the noise x, so the best test is a threshold c.  With
m(x) = sum_i w_i e^{(2 s_i x - s_i^2) / (2 sigma^2)}, P the law with the record and Q the one without it:

    remove:   log m(c) = eps,             delta = P(x > c) - e^eps Q(x > c),  P = sum_i w_i N(s_i), Q = N(0);
    add:      log m(c) = -eps,            delta = Q(x < c) - e^eps P(x < c);
    replace:  log m(c) - log m(-c) = eps, delta = P(x > c) - e^eps P(x < -c), P against its mirror image.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from tacit.accounting.directions import Direction, directions
from tacit.accounting.price import Array
from tacit.accounting.roots import brent
from tacit.events import Adjacency, GaussianMixture

_UP = 1.0 + 1e-12
_SLACK = 2.0**-46  # rounding of logarithms, for each unit of their size
_ENDLESS = 1e5  # epsilon
_FAR = 1e4  # deviations


def mixture_delta(base: GaussianMixture, epsilon: float, adjacency: Adjacency, side: float = 1.0) -> float:
    """The delta of ``base`` at ``epsilon`` >= 0, rounded up; down at ``side`` -1.

    >>> mixture = GaussianMixture(1.0, sensitivities=(0.0, 1.0), probabilities=(0.5, 0.5))
    >>> round(mixture_delta(mixture, 0.0, Adjacency.ADD_REMOVE), 6)  # half of 2 Phi(1/2) - 1
    0.191462
    """
    return max(_delta(base, epsilon, direction, side) for direction in directions(adjacency))


def _delta(base: GaussianMixture, epsilon: float, direction: Direction, side: float) -> float:
    sigma = base.noise_multiplier
    taken = [i for i, chance in enumerate(base.probabilities) if chance > 0.0]
    shifts = np.array(base.sensitivities)[taken]
    log_weights = np.log(np.array(base.probabilities)[taken])

    def log_m(x: float) -> float:
        y = shifts * (2.0 * x - shifts) / (2.0 * sigma * sigma)
        return _log_sum(y + log_weights)

    def log_above(c: float, sign: float) -> float:
        """log of the mass of sum_i w_i N(sign s_i) above c."""
        return _log_sum(log_ndtr((sign * shifts - c) / sigma) + log_weights)

    def excess(c: float) -> float:
        if direction == "remove":
            return log_m(c) - epsilon
        if direction == "add":
            return log_m(c) + epsilon
        return log_m(c) - log_m(-c) - epsilon

    far = _FAR * max(sigma, 1.0)
    low, high = -far, max(far, sigma * sigma * epsilon / max(float(shifts.max()), 1e-12))
    if excess(low) >= 0.0 or excess(high) <= 0.0:  # the loss does not come up to epsilon
        return 0.0
    c = brent(excess, low, high, xtol=1e-15, rtol=1e-14)
    if direction == "remove":
        first, second = log_above(c, 1.0), float(log_ndtr(-c / sigma))
    elif direction == "add":
        first, second = float(log_ndtr(c / sigma)), log_above(-c, -1.0)
    else:
        first, second = log_above(c, 1.0), log_above(c, -1.0)
    gap = -math.expm1(min(0.0, second + epsilon - first))
    slack = _SLACK * (1.0 + abs(first) + abs(second) + epsilon)
    return min(1.0, math.exp(first) * max(0.0, gap + side * slack))


def _log_sum(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def mixture_epsilon(base: GaussianMixture, delta: float, adjacency: Adjacency, side: float = 1.0) -> float:
    """The least epsilon of ``base`` at ``delta``, rounded up; down at ``side`` -1.

    >>> mixture = GaussianMixture(1.0, sensitivities=(0.0, 1.0), probabilities=(0.99, 0.01))
    >>> round(mixture_epsilon(mixture, 1e-5, Adjacency.ADD_REMOVE), 6)
    0.19945
    """

    def excess(epsilon: float) -> float:
        value = mixture_delta(base, epsilon, adjacency, side)
        return math.log(value / delta) if value > 0.0 else -800.0

    if excess(0.0) <= 0.0:
        return 0.0
    high = 0.1
    while excess(high) > 0.0:
        high *= 2.0
        if high > _ENDLESS:
            return math.inf
    epsilon, step = brent(excess, 0.0, high, xtol=1e-14, rtol=1e-13), 1e-13
    while epsilon > 0.0 and side * excess(epsilon) > 0.0:  # rounding may have left it on the wrong side
        epsilon, step = max(0.0, epsilon + side * step * (1.0 + epsilon)), 2.0 * step
    return epsilon * _UP if side > 0.0 else epsilon / _UP
