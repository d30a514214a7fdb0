"""Exact closed forms for one mechanism that is performed once.

On a sample, e^eps' = 1 + q (e^eps - 1) and delta' = q delta(eps) under add-remove, and these are attained
(Balle, Barthe & Gaboardi 2018, 1807.01647, Theorem 8; Li, Qardaji & Su 2012).

For a Gaussian of random sensitivity, delta follows from the threshold of the best test, and epsilon from
delta.  The losses are monotone in the noise x, so the best test is a threshold c.  Let
m(x) = sum_i w_i e^{(2 s_i x - s_i^2) / (2 sigma^2)}, and let P and Q be the distributions with and without
the record:

    remove:   log m(c) = eps,             delta = P(x > c) - e^eps Q(x > c),  P = sum_i w_i N(s_i), Q = N(0);
    add:      log m(c) = -eps,            delta = Q(x < c) - e^eps P(x < c);
    replace:  log m(c) - log m(-c) = eps, delta = P(x > c) - e^eps P(x < -c), P against its mirror image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from tacit.accounting.closed_form.gaussian import gaussian_delta_above, gaussian_epsilon
from tacit.accounting.closed_form.pure import amplified
from tacit.accounting.flatten import Base
from tacit.accounting.price import Array, Direction, ExactPrice, directions
from tacit.accounting.roots import brent
from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Gaussian, GaussianMixture, Laplace, PoissonSampled

_UP = 1.0 + 2e-13  # rounding goes towards more epsilon and more delta
_MIXED_UP = 1.0 + 1e-12  # the same for mixtures
_SLACK = 2.0**-46  # rounding of logarithms, relative
_ENDLESS = 1e5  # a larger epsilon counts as infinite
_FAR = 1e4  # the range of c, in standard deviations


def is_single(base: Base, adjacency: Adjacency) -> bool:
    """Return whether ``base`` has a closed form.  Sampled Laplace noise under replace-one has none."""
    match base:
        case Gaussian() | Laplace() | GaussianMixture() | PoissonSampled(_, Gaussian()):
            return True
        case PoissonSampled(_, Laplace()):
            return adjacency is not Adjacency.REPLACE_ONE
    return False


def single_delta(base: Base, epsilon: float) -> float:
    """Compute the smallest delta of ``base`` at ``epsilon`` >= 0, rounded up.

    >>> round(single_delta(Laplace(1.0), 0.5), 6)
    0.221199
    """
    match base:
        case PoissonSampled(rate, (Gaussian() | Laplace()) as inner):
            return rate * single_delta(inner, _unamplified(epsilon, rate) / _UP) * _UP
        case Gaussian(sigma):
            return min(1.0, gaussian_delta_above(epsilon, 1.0 / sigma) * _UP)
        case Laplace(scale):  # losses: 1/b w.p. 1/2, then density e^{-(1/b - l)/2} / 4
            return -math.expm1(min(0.0, (epsilon - 1.0 / scale) / 2.0)) * _UP
    raise _no_closed_form(base)


def single_epsilon(base: Base, delta: float) -> float:
    """Compute the smallest epsilon >= 0 of ``base`` at ``delta`` in (0, 1), rounded up.

    >>> round(single_epsilon(PoissonSampled(0.01, Gaussian(1.0)), 1e-5), 6)
    0.19945
    """
    match base:
        case PoissonSampled(rate, (Gaussian() | Laplace()) as inner):
            return amplified(single_epsilon(inner, delta / rate / _UP), rate, _UP) if delta < rate else 0.0
        case Gaussian(sigma):
            return gaussian_epsilon(delta, 1.0 / sigma)
        case Laplace(scale):
            return max(0.0, (1.0 / scale + 2.0 * math.log1p(-delta)) * _UP)
    raise _no_closed_form(base)


def _no_closed_form(base: Base) -> UnsupportedEvent:
    return UnsupportedEvent(f"Tacit has no closed form for {base!r}. Use method 'pld' or 'rdp'.")


def _unamplified(epsilon: float, rate: float) -> float:
    """Return log(1 + (e^eps - 1) / q), which inverts the amplification."""
    if epsilon > 30.0:
        return epsilon + math.log((1.0 - (1.0 - rate) * math.exp(-epsilon)) / rate)
    return math.log1p(math.expm1(epsilon) / rate)


@dataclass(frozen=True)
class SinglePrice(ExactPrice):
    """The price of one mechanism performed once, exact up to rounding."""

    base: Base
    adjacency: Adjacency

    @property
    def _mixture(self) -> GaussianMixture | None:
        """The mechanism as a mixture, if it has no simpler closed form."""
        match self.base:
            case PoissonSampled(rate, Gaussian(sigma)) if self.adjacency is Adjacency.REPLACE_ONE:
                return GaussianMixture(sigma, (0.0, 1.0), (1.0 - rate, rate))
        return self.base if isinstance(self.base, GaussianMixture) else None

    def epsilon(self, delta: float) -> float:
        if (mixture := self._mixture) is not None:
            return mixture_epsilon(mixture, delta, self.adjacency)
        return single_epsilon(self.base, delta)

    def delta(self, epsilon: float) -> float:
        if (mixture := self._mixture) is not None:
            return mixture_delta(mixture, epsilon, self.adjacency)
        return single_delta(self.base, epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        if (mixture := self._mixture) is not None:
            return mixture_epsilon(mixture, delta, self.adjacency, side=-1.0), upper
        return upper * (1.0 - 1e-9), upper


def mixture_delta(base: GaussianMixture, epsilon: float, adjacency: Adjacency, side: float = 1.0) -> float:
    """Compute the delta of ``base`` at ``epsilon`` >= 0, rounded up, or rounded down if ``side`` is -1.

    >>> mixture = GaussianMixture(1.0, sensitivities=(0.0, 1.0), probabilities=(0.5, 0.5))
    >>> round(mixture_delta(mixture, 0.0, Adjacency.ADD_REMOVE), 6)  # half of 2 Phi(1/2) - 1
    0.191462
    """
    return max(_mixture_delta(base, epsilon, direction, side) for direction in directions(adjacency))


def _mixture_delta(base: GaussianMixture, epsilon: float, direction: Direction, side: float) -> float:
    sigma = base.noise_multiplier
    possible = [i for i, chance in enumerate(base.probabilities) if chance > 0.0]
    shifts = np.array(base.sensitivities)[possible]
    log_weights = np.log(np.array(base.probabilities)[possible])

    def log_m(x: float) -> float:
        y = shifts * (2.0 * x - shifts) / (2.0 * sigma * sigma)
        return _log_sum(y + log_weights)

    def log_above(c: float, sign: float) -> float:
        """Compute the log of the mass of sum_i w_i N(sign s_i) above c."""
        return _log_sum(log_ndtr((sign * shifts - c) / sigma) + log_weights)

    def excess(c: float) -> float:
        if direction == "remove":
            return log_m(c) - epsilon
        if direction == "add":
            return log_m(c) + epsilon
        return log_m(c) - log_m(-c) - epsilon

    far = _FAR * max(sigma, 1.0)
    low, high = -far, max(far, sigma * sigma * epsilon / max(float(shifts.max()), 1e-12))
    if excess(low) >= 0.0 or excess(high) <= 0.0:  # the loss does not reach epsilon
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
    """Compute the least epsilon of ``base`` at ``delta``, rounded up, or rounded down if ``side`` is -1.

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
    while epsilon > 0.0 and side * excess(epsilon) > 0.0:  # rounding may leave epsilon on the wrong side
        epsilon, step = max(0.0, epsilon + side * step * (1.0 + epsilon)), 2.0 * step
    return epsilon * _MIXED_UP if side > 0.0 else epsilon / _MIXED_UP
