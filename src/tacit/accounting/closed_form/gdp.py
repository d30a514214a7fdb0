"""Gaussian differential privacy: one number mu, which adds up in squares (Dong, Roth & Su 2019, 1905.02383).

mu-GDP means: no easier to tell apart than N(0, 1) and N(mu, 1) (Definition 4).  mu composes as the root of
the sum of squares, a group of k has k mu, and delta(eps) is that of the Gaussian.

Only mechanisms that *are* mu-GDP have a cost here: Gaussians without sampling, exactly, and pure ones, by a
bound. The central limit theorem for sampled Gaussians is :func:`clt_estimate`: an estimate, not a bound, and
not to be had through ``account``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri_exp

from tacit.accounting.closed_form.gaussian import GaussianPrice, gaussian_epsilon
from tacit.accounting.closed_form.pure import pure_epsilon
from tacit.accounting.flatten import Base, Steps, in_units_of
from tacit.accounting.price import Price
from tacit.errors import UnsupportedEvent, check_integer, check_probability, check_real
from tacit.events import Adjacency, Gaussian, GroupPrivacy

_UP = 1.0 + 1e-12


def mu(base: Base, adjacency: Adjacency) -> float:
    """mu of one mechanism, in units of ``adjacency``, rounded up.

    >>> round(mu(Gaussian(2.0), Adjacency.ADD_REMOVE), 9)
    0.5
    """
    match base:
        case Gaussian(sigma):
            return 1.0 / sigma
        case GroupPrivacy(inner, size):
            return size * mu(inner, adjacency) * _UP
    pure = pure_epsilon(base, adjacency)
    if pure is not None:
        return _of_pure(pure)
    raise UnsupportedEvent(
        f"method 'gdp' has no mu for {base!r} under adjacency {adjacency.value!r}: a mechanism with a delta, "
        "or with samples of an unbounded loss, is mu-GDP for no known mu, and the central limit theorem is "
        "no bound. Use method 'pld'."
    )


def _of_pure(epsilon: float) -> float:
    """2 Phi^{-1}(e^eps / (1 + e^eps)), the least mu that every eps-DP mechanism has.

    The trade-off function of the worst one is two straight lines that meet in (c, c), c = 1/(1 + e^eps).
    G_mu is convex and has the same ends, so it lies below them as soon as G_mu(c) <= c, that is
    Phi(-mu/2) <= c.
    """
    return -2.0 * float(ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon)))) * _UP + 1e-15


@dataclass(frozen=True)
class UpperPrice(Price):
    """The Gaussian of ``mu``, as an upper bound alone."""

    mu: float

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        return GaussianPrice(self.mu).delta(epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, self.epsilon(delta)


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by Gaussian differential privacy; what is mu-GDP for no mu is refused by name.

    Guarantee
    ---------
    * Exact for compositions of Gaussians without sampling.
    * An upper bound where pure mechanisms take part.
    """
    units = in_units_of(adjacency, steps)
    total = math.hypot(*(math.sqrt(count) * mu(base, adjacency) for base, count in units))
    if all(isinstance(base, Gaussian) for base, _ in units):
        return GaussianPrice(total)
    return UpperPrice(total * _UP)


def clt_estimate(*, sampling_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """epsilon of a Poisson-sampled Gaussian by the central limit theorem.  **An estimate, not a bound.**

    mu = q sqrt(T (e^{1/sigma^2} - 1)) (Bu, Dong, Long & Su 2020, 1911.11607, Corollary 4), under add-remove.
    It is what some libraries report as "GDP"; it lies below the truth for most settings of DP-SGD, at worst
    by nine tenths.  For instance, a proven *lower* bound is larger here:

    >>> from tacit.accounting import account
    >>> from tacit.events import PoissonSampled, Repeat
    >>> event = Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000)
    >>> lower, _ = account(event, adjacency="add-remove").epsilon_bounds(1e-5)
    >>> estimate = clt_estimate(sampling_rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5)
    >>> round(estimate, 2), round(lower, 2)
    (1.62, 1.83)

    :returns: epsilon, in nats, on neither side of the truth for certain.
    """
    rate = check_probability("sampling_rate", sampling_rate)
    sigma = check_real("noise_multiplier", noise_multiplier, low=0.05)
    count = check_integer("steps", steps, low=1)
    target = check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    return gaussian_epsilon(target, rate * math.sqrt(count * math.expm1(1.0 / sigma**2)))
