"""The accountants by Renyi divergences: RDP, the moments accountant of 2016, zero-concentrated DP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.accounting.closed_form import pure_epsilon
from tacit.accounting.flatten import Base, Steps, in_units_of, refuse_sampled_replacement
from tacit.accounting.price import Array, Price
from tacit.accounting.renyi.divergences import (
    epsilon_at_orders,
    largest_order,
    log_delta_at_orders,
    renyi,
    summed,
)
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    GroupPrivacy,
    PoissonSampled,
    ZeroConcentratedDP,
)

# Renyi differential privacy, at any real order, with the best conversion to (epsilon, delta).
#
# For alpha > 1, eps_RDP(alpha) = log E_Q (P/Q)^alpha / (alpha - 1) = log E_P e^{(alpha-1) L} / (alpha - 1)
# (Mironov 2017, 1702.07476, Definition 4).  It adds up over steps (Proposition 1).

_UP = 1.0 + 1e-12  # rounding, relative
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
        for block in _blocks(self.largest):
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


@lru_cache(maxsize=16)
def _blocks(largest: float) -> tuple[Array, ...]:
    """Return log(alpha - 1) in blocks of a dozen, from 1e-3 to ``largest``, log-spaced."""
    logs = np.arange(math.log(_LEAST), math.log(largest), _STRIDE)
    return tuple(logs[first : first + _BLOCK] for first in range(0, logs.size, _BLOCK))


def rdp_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by Renyi divergences, and refuse, by name, mechanisms without a proven one.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.  Every order gives one, and the least is used.
    * Both directions of add-remove are covered at every order.
    """
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


def log_moments(base: Base) -> Array:
    """Compute alpha(l) of one step, in units of the adjacency, for l in ``ORDERS``, rounded up."""
    match base:
        case Gaussian() | PoissonSampled(_, Gaussian()):
            return ORDERS * summed(((base, 1),), ORDERS + 1.0, Adjacency.ADD_REMOVE)
    raise UnsupportedEvent(
        f"method 'moments' is published for the Gaussian and the Poisson-sampled Gaussian; it has no moments "
        f"for {base!r}. Use method 'pld'."
    )


@dataclass(frozen=True)
class MomentsPrice(Price):
    """The price from alpha(l) of the whole event, for every l in ``ORDERS``."""

    alpha: Array

    def epsilon(self, delta: float) -> float:
        """Apply Theorem 2.2 of the paper, solved for epsilon."""
        return max(0.0, float(((self.alpha - math.log(delta)) / ORDERS).min()))

    def delta(self, epsilon: float) -> float:
        """Apply Theorem 2.2 of the paper."""
        return math.exp(min(0.0, float((self.alpha - ORDERS * epsilon).min())))


def moments_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price as the paper does, with integer orders up to 32 and Markov's inequality for the tail.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.  Under add-remove and zero-out they hold for Gaussians with
      or without Poisson sampling, under replace-one only for Gaussians without sampling.
    * Everything else is refused by name.
    """
    refuse_sampled_replacement(steps, adjacency, "moments")
    alpha = np.zeros(ORDERS.size)
    for base, count in in_units_of(adjacency, steps):
        alpha = alpha + count * log_moments(base)
    return MomentsPrice(alpha)


# Zero-concentrated differential privacy: one number rho that adds up (Bun & Steinke 2016, 1605.02065).
#
# rho-zCDP means eps_RDP(alpha) <= rho alpha at every order alpha > 1 (Definition 1.1).  It composes by
# addition (Lemma 1.7).  The conversion to (epsilon, delta) uses the best order, and the best conversion of
# one order.

_UP = 1.0 + 1e-12
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
        f"method 'zcdp' has no rho for {base!r} under adjacency {adjacency.value!r}: none is known for a "
        "mechanism with a delta, or for a sampled one without a pure epsilon. Use method 'pld' or 'rdp'."
    )


def zcdp_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by zero-concentrated differential privacy.  Of sampled mechanisms only pure ones are supported.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.
    * ``epsilon`` is never above rho + 2 sqrt(rho log(1/delta)), the conversion of the paper.
    """
    units = in_units_of(adjacency, steps)
    return zcdp_curve(sum(count * rho(base, adjacency) for base, count in units) * _UP)


def zcdp_curve(rho: float) -> RenyiPrice:
    """Return the (epsilon, delta) curve of rho-zCDP."""
    return RenyiPrice(lambda orders: rho * orders, _LARGEST)
