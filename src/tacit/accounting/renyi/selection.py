"""Renyi divergence of the best of a random number of runs (Papernot & Steinke 2022, 2110.03620).

A run costs eps(alpha); K runs are made, K random and secret, and the best outcome alone is released.

* Poisson, mean mu (Theorem 6): eps(alpha) + mu delta' + log(mu) / (alpha - 1), if a run is
  (log(1 + 1/(alpha - 1)), delta')-DP.
* Truncated negative binomial, shape eta > -1 and parameter gamma (Theorem 2), for any beta >= 1:
  eps(alpha) + (1 + eta) ((1 - 1/beta) eps(beta) + log(1/gamma) / beta) + log(E K) / (alpha - 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.accounting.pld.pairs_selection import log_one_over_gamma
from tacit.accounting.price import Array
from tacit.accounting.renyi.conversion import log_delta_at_orders

_UP = 1.0 + 1e-12


def of_poisson(run: Callable[[Array], Array], mean: float, orders: Array, others: Array) -> Array:
    """Theorem 6; ``others`` are increasing orders at which a run is accounted for, to find delta'.

    >>> of_poisson(lambda a: 1e-4 * a, 10.0, np.array([20.0]), np.array([20.0, 50.0])).round(4).tolist()
    [0.1251]
    """
    price = np.minimum.accumulate(run(others)[::-1])[::-1]  # no divergence is above that of a larger order
    epsilons = np.log1p(1.0 / (orders - 1.0))
    log_deltas = [float(log_delta_at_orders(others, price, float(epsilon)).min()) for epsilon in epsilons]
    deltas = np.exp(np.minimum(log_deltas, 0.0))
    price = run(orders) + mean * deltas + math.log(mean) / (orders - 1.0)
    return np.maximum(price * _UP, 0.0)


def of_negative_binomial(
    run: Callable[[Array], Array], mean: float, shape: float, orders: Array, others: Array
) -> Array:
    """Theorem 2; ``others`` are the beta that are tried first, besides 1, log-spaced in beta - 1.

    >>> order, other = np.array([50.0]), np.array([15.0])
    >>> of_negative_binomial(lambda a: 0.01 * a, 10.0, 1.0, order, other).round(4).tolist()
    [1.134]
    """
    cost = log_one_over_gamma(mean, shape)

    def at(beta: Array) -> Array:
        return (1.0 - 1.0 / beta) * run(beta) + cost / beta

    values = at(others)
    best, least = float(others[int(np.argmin(values))]), min(cost, float(values.min()))
    for width in (0.4, 0.1, 0.025):
        beta = 1.0 + (best - 1.0) * np.exp(width * np.linspace(-1.0, 1.0, 8))
        values = at(beta)
        best, least = float(beta[int(np.argmin(values))]), min(least, float(values.min()))
    return np.asarray((run(orders) + (1.0 + shape) * least + math.log(mean) / (orders - 1.0)) * _UP)
