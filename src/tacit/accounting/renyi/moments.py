"""The moments accountant, as published.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang 2016 (1607.00133), section 3.2.  With mu0 the
density of N(0, sigma^2), mu1 that of N(1, sigma^2) and mu = (1-q) mu0 + q mu1,

    E1 = E_{z ~ mu0} (mu0(z) / mu(z))^l,   E2 = E_{z ~ mu} (mu(z) / mu0(z))^l,   alpha(l) = log max(E1, E2),

alpha adds up over steps (Theorem 2.1), and delta = min over l <= 32 of exp(alpha(l) - l eps) (Theorem 2.2).
E2 is the larger one (Mironov, Talwar & Zhang 2019, 1908.10530, Theorem 5), so alpha(l) is l times the Renyi
divergence of order l + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.accounting.flatten import Base, Steps, in_units_of, refuse_sampled_replacement
from tacit.accounting.price import Array, Price
from tacit.accounting.renyi.divergences import summed
from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Gaussian, PoissonSampled

ORDERS = np.arange(1.0, 33.0)
"""The orders l that the paper uses: it is "usually sufficient to compute alpha(l) for l <= 32"."""


def log_moments(base: Base) -> Array:
    """Compute alpha(l) of one step, in units of the adjacency, for l in ``ORDERS``; shape (32,), rounded up.

    >>> np.round(log_moments(Gaussian(2.0))[:2], 9).tolist()  # l (l + 1) / (2 sigma^2)
    [0.25, 0.75]
    """
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


def price(steps: Steps, adjacency: Adjacency) -> Price:
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
