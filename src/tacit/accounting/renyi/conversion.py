"""From Renyi divergences to (epsilon, delta): the best conversion at each order, and the best order.

A mechanism with eps_RDP(alpha) = gamma keeps D_alpha <= gamma after any post-processing.  Post-process to one
bit, "L > eps", with probability p under P and q under Q (Asoodeh et al. 2020, 2001.05990, Theorem 3):

    f(p, q) = p^alpha q^(1-alpha) + (1-p)^alpha (1-q)^(1-alpha) <= e^{(alpha-1) gamma},   delta = p - e^eps q.

The largest p - e^eps q under this constraint is a valid delta, and the least that gamma alone implies.  f is
jointly convex, so {f <= f(p, q)} lies on one side of its tangent at (p, q).  Hence *every* point (p, q) with
q < p and f(p, q) >= e^{(alpha-1) gamma} proves

    e^eps = -(df/dq) / (df/dp),   delta = p - e^eps q.                                            (tangent)

Without the second summand of f the optimum is the closed form of Canonne, Kamath & Steinke 2020 (2004.00010,
Proposition 12), at which the search starts.  The second summand is about 1.  It matters if
e^{(alpha-1) gamma} is not much larger than 1, as for few steps at a small sampling rate.

Legend: a = alpha - 1, u = log p, l = log(p/q), m = log((1-q)/(1-p)), w = l + m.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.price import Array

_ROUNDS = 12  # of the secant method; five are usually enough
_MARGIN = 1e-9  # the secant method aims this far below its target
_FAINT = -670.0  # the least log p, so that p and 1/p stay finite
_LEAST_GAP = 1e-12  # the least w: rounding of a smaller w is relatively large; epsilon moves by less
_UNIT = 2.0**-53


def epsilon_at_orders(orders: Array, renyi: Array, delta: float) -> Array:
    """Compute an epsilon for ``delta`` from each order alone, in the shape of ``orders``.

    A negative result means that epsilon is 0.

    Args:
        orders: alpha > 1.
        renyi: eps_RDP(alpha), >= 0; infinity is allowed.
        delta: in (0, 1).

    **Guarantee**

    * The result is never below the least epsilon that eps_RDP(alpha) implies, and at most 1e-14 above the
      closed form.

    >>> np.round(epsilon_at_orders(np.array([8.0]), np.array([0.5]), 1e-5), 4).tolist()
    [1.7097]
    """
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
    """Compute log delta for ``epsilon`` >= 0 from each order alone.  A positive result means delta = 1.

    >>> np.round(log_delta_at_orders(np.array([8.0]), np.array([0.5]), 1.7097), 3).tolist()
    [-11.513]
    """
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
    """Compute the (epsilon, log delta) that a point of the curve f(p, q) = e^{a gamma} proves; p = e^u.

    e^eps = (a/alpha) e^l (1 - e^{-alpha w}) / (1 - e^{-a w}), and
    delta = p (1 - e^{eps - l}) = p (1 - e^{-a w} (1 + a (1 - e^{-w}))) / (alpha (1 - e^{-a w})).
    """
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
    """Search for the root in u of an excess, and return the least answer at points with excess <= 0.

    ``excess(u)`` returns the excess and the answer.  The secant method aims ``_MARGIN`` below 0.  The result
    is infinite if no such point is found, for instance if the excess has no root with p < 1.
    """
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
