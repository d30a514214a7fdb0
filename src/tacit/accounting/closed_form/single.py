"""One mechanism performed once: closed forms, exact.

Sampling: for e^eps' = 1 + q (e^eps - 1), delta' = q delta(eps), under add-remove; it is attained
(Balle, Barthe & Gaboardi 2018, 1807.01647, Theorem 8; Li, Qardaji & Su 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.accounting.closed_form.gaussian import gaussian_delta_above, gaussian_epsilon
from tacit.accounting.closed_form.single_mixture import mixture_delta, mixture_epsilon
from tacit.accounting.flatten import Base
from tacit.accounting.price import Price
from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Gaussian, GaussianMixture, Laplace, PoissonSampled

_UP = 1.0 + 2e-13  # rounding goes towards more epsilon and more delta


def is_single(base: Base, adjacency: Adjacency) -> bool:
    """Whether there are closed forms; sampled Laplace noise under replace-one has none."""
    match base:
        case Gaussian() | Laplace() | GaussianMixture() | PoissonSampled(_, Gaussian()):
            return True
        case PoissonSampled(_, Laplace()):
            return adjacency is not Adjacency.REPLACE_ONE
    return False


def single_delta(base: Base, epsilon: float) -> float:
    """The smallest delta of ``base`` at ``epsilon`` >= 0, rounded up.

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
    """The smallest epsilon >= 0 of ``base`` at ``delta`` in (0, 1), rounded up.

    >>> round(single_epsilon(PoissonSampled(0.01, Gaussian(1.0)), 1e-5), 6)
    0.19945
    """
    match base:
        case PoissonSampled(rate, (Gaussian() | Laplace()) as inner):
            if delta >= rate:
                return 0.0
            return _amplified(single_epsilon(inner, delta / rate / _UP), rate) * _UP
        case Gaussian(sigma):
            return gaussian_epsilon(delta, 1.0 / sigma)
        case Laplace(scale):
            return max(0.0, (1.0 / scale + 2.0 * math.log1p(-delta)) * _UP)
    raise _no_closed_form(base)


def _no_closed_form(base: Base) -> UnsupportedEvent:
    return UnsupportedEvent(
        f"no closed form for one performance of {base!r} is implemented. Use method 'pld' or 'rdp'."
    )


def _amplified(epsilon: float, rate: float) -> float:
    """log(1 + q (e^eps - 1))."""
    if epsilon > 30.0:
        return epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def _unamplified(epsilon: float, rate: float) -> float:
    """log(1 + (e^eps - 1) / q)."""
    if epsilon > 30.0:
        return epsilon + math.log((1.0 - (1.0 - rate) * math.exp(-epsilon)) / rate)
    return math.log1p(math.expm1(epsilon) / rate)


@dataclass(frozen=True)
class SinglePrice(Price):
    """Exact up to rounding."""

    base: Base
    adjacency: Adjacency

    @property
    def _mixture(self) -> GaussianMixture | None:
        """What has no closed form above, as a mixture."""
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

    def is_tight(self, delta: float) -> bool:
        return True

    def tight_delta(self, epsilon: float) -> float | None:
        return self.delta(epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        if (mixture := self._mixture) is not None:
            return mixture_epsilon(mixture, delta, self.adjacency, side=-1.0), upper
        return upper * (1.0 - 1e-9), upper
