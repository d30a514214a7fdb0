"""The analytic Gaussian mechanism: an exact closed form for compositions of Gaussians without sampling.

Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018, 1805.06530),
Theorem 8.  With mu = Delta / sigma,

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),

and T compositions have mu^2 = sum_t mu_t^2 (Dong, Roth & Su 2019, 1905.02383, Corollary 3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from tacit.accounting.flatten import Steps, in_units_of, total_mu
from tacit.accounting.price import ExactPrice, Price
from tacit.accounting.roots import brent
from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Gaussian

_MOST = 1e-12  # above any relative rounding error of delta
_SMALL, _FAR = 0.5, 20.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Compute delta of a Gaussian at any real ``epsilon``; ``mu`` is the sensitivity divided by the noise.

    The result is relatively accurate, however small it is.  With a = eps/mu - mu/2 and b = eps/mu + mu/2 the
    two terms share the factor phi(a), so delta = phi(a) (R(a) - R(b)) with R(t) = Phi(-t)/phi(t).

    >>> round(gaussian_delta(1.0, 1.0), 8)
    0.12693674
    """
    if mu == 0.0:
        return max(0.0, -math.expm1(epsilon))
    a, b = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if (
        mu < _SMALL and a > -1.0
    ):  # the difference of Mills ratios as an integral: no cancellation, however small mu
        fall = _mills_fall(a + mu * (1.0 + _NODES) / 2.0)
        return math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) * mu / 2.0 * float(_WEIGHTS @ fall)
    if a < 0.0:
        head = float(log_ndtr(-a))
        return math.exp(head) * -math.expm1(min(0.0, epsilon + float(log_ndtr(-b)) - head))
    mills = math.sqrt(math.pi / 2.0) * (float(erfcx(a / math.sqrt(2.0))) - float(erfcx(b / math.sqrt(2.0))))
    return math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) * mills


def gaussian_delta_above(epsilon: float, mu: float) -> float:
    """Bound :func:`gaussian_delta` from above, with an allowance for rounding of 64 + 6 a^2 units.

    phi(a) = e^{-a^2/2} is off by a^2 units, and 1 - t R(t), about 1/t^2, by some t^2 units.  A test measures
    the rounding.
    """
    a = epsilon / mu - mu / 2.0 if mu > 0.0 else 0.0
    slack = 2.0**-53 * (64.0 + 6.0 * a * a)
    return gaussian_delta(epsilon, mu) * (1.0 + min(slack, _MOST))


def _mills_fall(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute -R'(t) = 1 - t R(t) for t > -1; for large t, where it cancels, by an asymptotic series."""
    squared = 1.0 / np.square(np.clip(t, _FAR, 1e150))  # the square of a larger t overflows
    series = np.ones_like(t)
    for odd in range(23, 1, -2):
        series = 1.0 - odd * squared * series
    near = np.minimum(t, _FAR)
    return np.where(
        t > _FAR, squared * series, 1.0 - near * math.sqrt(math.pi / 2.0) * erfcx(near / math.sqrt(2.0))
    )


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Find the smallest epsilon >= 0 with ``gaussian_delta(epsilon, mu) <= delta``, rounded up.

    >>> round(gaussian_epsilon(1e-5, 1.0), 6)
    4.377178
    """
    if mu == 0.0 or gaussian_delta_above(0.0, mu) <= delta:
        return 0.0
    if not math.isfinite(mu * mu):
        return math.inf

    def excess(epsilon: float) -> float:
        value = gaussian_delta_above(epsilon, mu)
        return math.log(value / delta) if value > 0.0 else -1.0

    high = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + mu  # P(L > eps) <= delta
    high *= 1.0 + 1e-13  # if mu^2 is so large that rounding loses the other terms
    epsilon = brent(excess, 0.0, high, xtol=1e-300, rtol=1e-14)
    step = 1e-13 * max(epsilon, 1e-280)
    while excess(epsilon) > 0.0:  # rounding may leave epsilon on the wrong side
        epsilon, step = epsilon + step, 2.0 * step
    return epsilon


@dataclass(frozen=True)
class GaussianPrice(ExactPrice):
    """The price of Gaussians, exact up to rounding.  Epsilon is rounded up."""

    mu: float

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        return gaussian_delta_above(epsilon, self.mu) if math.isfinite(self.mu) else 1.0

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        lower = gaussian_epsilon(min(delta * (1.0 + 4.0 * _MOST), 0.5 + delta / 2.0), self.mu)
        return (lower * (1.0 - 1e-12) if math.isfinite(upper) else 0.0), upper


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price a composition of Gaussians in closed form, and refuse any other mechanism by name.

    **Guarantee**

    * The price is exact: both ends of ``epsilon_bounds`` agree with the closed form to 1e-10.
    * It is never below the closed form, as rounding goes up.
    """
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        if not isinstance(base, Gaussian):
            raise UnsupportedEvent(
                f"method 'gaussian' has no closed form for {base!r} under adjacency {adjacency.value!r}: "
                "it is for Gaussians without sampling. Use method 'pld'."
            )
    return GaussianPrice(total_mu(units))
