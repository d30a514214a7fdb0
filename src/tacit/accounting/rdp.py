"""Renyi differential privacy, by quadrature at any real order, and its best conversion.

For alpha > 1, eps_RDP(alpha) = log E_Q (P/Q)^alpha / (alpha - 1) = log E_P e^{(alpha-1) L} / (alpha - 1)
(Mironov 2017, 1702.07476, Definition 4); it adds up over steps (Proposition 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar

from tacit.accounting.curve import Price
from tacit.accounting.losses import Array, Direction, directions, log_mixture
from tacit.accounting.steps import Base, Steps, in_units_of, refuse_sampled_replacement
from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Gaussian, Laplace, PoissonSampled

__all__ = ["RdpPrice", "price", "renyi"]

_UP = 1.0 + 1e-12  # quadrature and rounding, relative
_UNIT = 2.0**-53


@lru_cache(maxsize=65536)
def renyi(base: Base, order: float, direction: Direction) -> float:
    """eps_RDP of ``base`` at ``order`` > 1 (in units of the adjacency), rounded up.

    >>> round(renyi(Gaussian(2.0), 3.0, "remove"), 9)  # alpha / (2 sigma^2)
    0.375
    """
    match base:
        case Gaussian(sigma):
            return order / sigma / sigma / 2.0 * _UP
        case Laplace(scale):
            return _laplace(1.0 / scale, order) * _UP
        case PoissonSampled(rate, Gaussian(sigma)):
            power = order if direction == "remove" else 1.0 - order  # E_P e^{(alpha-1) L} = E_{without} m^s
            return log_moment(rate, sigma, power) / (order - 1.0) * _UP
    raise UnsupportedEvent(
        f"method 'rdp' has no Renyi divergence for {base!r} (direction {direction!r}). Use method 'pld'."
    )


def _laplace(top: float, order: float) -> float:
    """Mironov 2017, Proposition 6: log(a/(2a-1) e^{(a-1)/b} + (a-1)/(2a-1) e^{-a/b}) / (a-1)."""
    first = math.log(order / (2.0 * order - 1.0)) + (order - 1.0) * top
    second = math.log((order - 1.0) / (2.0 * order - 1.0)) - order * top
    return max(0.0, float(np.logaddexp(first, second))) / (order - 1.0)


def _width(sigma: float) -> float:
    """Spacing of the trapezoid rule: small against sigma, and against the pole of log m at pi sigma^2."""
    return min(sigma / 8.0, sigma * sigma / 3.0)


def _largest_order(steps: Steps) -> float:
    """Beyond it quadrature would take more than 2e5 points."""
    widths = [
        _width(base.event.noise_multiplier)
        for base, _ in steps
        if isinstance(base, PoissonSampled) and isinstance(base.event, Gaussian)
    ]
    return min([1e5, *(2e5 * width for width in widths)])


def log_moment(rate: float, sigma: float, power: float) -> float:
    """log E_{x ~ N(0, sigma^2)} m(x)^s, m = 1 - q + q e^{(2x-1)/(2 sigma^2)}, any real s; rounded up.

    Mironov, Talwar & Zhang 2019 (1908.10530), equation (3), for fractional orders too: the trapezoid rule
    converges geometrically for this analytic integrand.  As E m = 1, the mean of the nonnegative
    m^s - 1 - s (m - 1) is E m^s - 1, without cancellation between points.
    """
    low, high = min(power, 0.0) - 12.0 * sigma, max(power, 1.0) + 12.0 * sigma
    x = np.linspace(low, high, 2 + math.ceil((high - low) / _width(sigma)))
    log_m = log_mixture((2.0 * x - 1.0) / (2.0 * sigma * sigma), rate)
    log_weights = math.log((x[1] - x[0]) / (sigma * math.sqrt(2.0 * math.pi))) - (x / sigma) ** 2 / 2.0
    logs = log_weights + power * log_m
    top = float(logs.max())
    total = top + math.log(float(np.exp(logs - top).sum()))
    if total > 0.1:
        return total + 8.0 * _UNIT * (abs(power) * float(np.abs(log_m).max()) + 4.0)
    near = log_weights > -745.0
    log_weights, log_m = log_weights[near], log_m[near]
    grown, linear = _weighted_expm1(log_weights, power * log_m), power * _weighted_expm1(log_weights, log_m)
    slack = 8.0 * _UNIT * float((np.abs(grown) + np.abs(linear)).sum())
    return math.log1p(float(np.maximum(grown - linear, 0.0).sum()) + slack)


def _weighted_expm1(log_weights: Array, exponents: Array) -> Array:
    """w (e^t - 1), where e^t alone may overflow."""
    weights = np.exp(log_weights)
    near = weights * np.expm1(np.minimum(exponents, 1.0))
    return np.where(exponents > 1.0, np.exp(log_weights + exponents) - weights, near)


@dataclass(frozen=True)
class RdpPrice(Price):
    """The best conversion over all orders in a range."""

    steps: Steps
    ways: tuple[Direction, ...]

    def _total(self, order: float) -> float:
        """eps_RDP of all steps: Mironov 2017, Proposition 1; the larger of the directions."""
        return max(sum(count * renyi(base, order, way) for base, count in self.steps) for way in self.ways)

    def epsilon(self, delta: float) -> float:
        """Canonne, Kamath & Steinke 2020 (2004.00010), Proposition 12; Balle et al. 2020 (1905.09982)."""

        def at(order: float) -> float:
            gained = math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
            return self._total(order) + gained

        return max(0.0, _least(at, _largest_order(self.steps)))

    def delta(self, epsilon: float) -> float:
        def at(order: float) -> float:
            exponent = self._total(order) - epsilon + math.log1p(-1.0 / order)
            return (order - 1.0) * exponent - math.log(order)

        return math.exp(min(0.0, _least(at, _largest_order(self.steps))))

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, self.epsilon(delta)


def _least(value: Callable[[float], float], largest: float) -> float:
    """The least value over orders in (1, largest]; every order gives a bound, so any will do."""
    logs = np.linspace(math.log(1e-3), math.log(largest), 49)
    values = [value(1.0 + math.exp(log)) for log in logs]
    best = int(np.argmin(values))
    span = (float(logs[max(best - 1, 0)]), float(logs[min(best + 1, logs.size - 1)]))
    refined = minimize_scalar(
        lambda log: value(1.0 + math.exp(log)), bounds=span, method="bounded", options={"xatol": 1e-5}
    )
    return min(values[best], float(refined.fun))


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by Renyi divergences: Gaussian, Laplace, and the Poisson-sampled Gaussian (not replace-one).

    Guarantee
    ---------
    * ``epsilon`` and ``delta`` are upper bounds: every order gives one, and the least is taken.
    * Both directions of add-remove are taken at every order.
    """
    refuse_sampled_replacement(steps, adjacency, "rdp")
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        renyi(base, 2.0, "remove")  # refuses what it has no divergence for
    return RdpPrice(units, directions(adjacency))
