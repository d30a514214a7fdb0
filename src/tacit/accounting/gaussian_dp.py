"""The Gaussian mechanism that bounds a privacy curve, and its regret."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

# A mechanism is mu-GDP (Dong, Roth & Su 2019, 1905.02383) if its trade-off function f is at least
# G_mu(a) = Phi(Phi^-1(1 - a) - mu). In terms of delta, with x = e^eps (their Corollary 2.13):
#
#     delta(eps) <= delta_mu(eps) = Phi(mu/2 - eps/mu) - x Phi(-mu/2 - eps/mu)    for all eps >= 0.
#
# Both sides are convex in x. Between two epsilons delta is at most its chord, and delta_mu at least its
# tangent at any m, which is the same formula with m in place of eps inside Phi. So it suffices that the two
# ends of each interval lie below the tangent at its middle. The epsilons up to mu (r - mu/2) decide about all
# a from Phi(-r) up, as G_mu has slope -e^eps at a = Phi(-mu/2 - eps/mu).

Array: TypeAlias = NDArray[np.float64]

LEAST_RATE = 1e-10
"""Tests with smaller error rates are left out: there, sampling does not help."""

_FARTHEST = -float(ndtri(LEAST_RATE))  # r
_SMALLEST, _LARGEST = 1e-3, 12.0  # mu; from 12.7 on, no test is left
_COARSE, _FINE = 33, 1025  # epsilons
_CLOSE = 1e-6  # relative, of mu
_ROUNDING = 16.0 * 2.0**-53  # of Phi, relative to it


@dataclass(frozen=True)
class GaussianDP:
    """The result of :meth:`PrivacyCurve.gaussian_dp`: one number, mu, for a whole privacy curve.

    A membership test guesses whether a record took part. Under Gaussian DP, this is at least as hard as to
    tell one draw of N(0, 1) from one of N(``mu``, 1). A smaller ``mu`` is more private.

    Attributes:
        mu: the bound, for all tests whose error rates are 1e-10 or more; infinite if no finite bound is
            known.
        regret: how much ``mu`` exaggerates the power of tests: at most this much in each error rate. It is 0
            for Gaussian noise. Below 0.01, ``mu`` describes the curve well (Gomez et al. 2025, 2503.10945).

    >>> from tacit.accounting import account
    >>> from tacit.events import Laplace
    >>> bound = account(Laplace(1.0), adjacency="add-remove").gaussian_dp()
    >>> round(bound.mu, 3), round(bound.regret, 3)
    (1.03, 0.037)
    """

    mu: float
    regret: float


def gaussian_bound(deltas: Callable[[Array], Array], missed: Callable[[Array], Array]) -> GaussianDP:
    """Find the least mu for a curve.

    Args:
        deltas: computes upper bounds on delta at an array of epsilons >= 0.
        missed: computes lower bounds on the false-negative rate at an array of false-positive rates.
    """
    # A first mu that holds, at few epsilons, then at many.
    most = _SMALLEST
    for count in (_COARSE, _FINE):
        nodes = _epsilons(most, count)
        at_nodes = deltas(nodes)
        while not _holds(most, nodes, at_nodes):
            most *= 1.5
            if most > _LARGEST:
                return GaussianDP(math.inf, 1.0)
            nodes = _epsilons(most, count)
            at_nodes = deltas(nodes)

    # The least one, at the same epsilons.
    least = 0.0
    while most - least > _CLOSE * most:
        middle = (least + most) / 2.0
        if _holds(middle, nodes, at_nodes):
            most = middle
        else:
            least = middle
    return GaussianDP(most, _regret(most, missed))


def _epsilons(mu: float, count: int) -> Array:
    """Return epsilons from 0 to the largest one that a mu up to this one needs."""
    widest = min(mu, _FARTHEST)
    return np.linspace(0.0, widest * (_FARTHEST - widest / 2.0), count)


def _holds(mu: float, epsilons: Array, deltas: Array) -> bool:
    needed = epsilons[:-1] <= mu * (_FARTHEST - mu / 2.0)
    middle = (epsilons[:-1] + epsilons[1:])[needed] / 2.0
    first = np.exp(log_ndtr(mu / 2.0 - middle / mu))
    for ends in (slice(None, -1), slice(1, None)):
        second = np.exp(epsilons[ends][needed] + log_ndtr(-mu / 2.0 - middle / mu))
        tangent = first - second - _ROUNDING * (1.0 + middle) * (first + second)
        if (deltas[ends][needed] > tangent).any():
            return False
    return True


def _regret(mu: float, missed: Callable[[Array], Array]) -> float:
    """Return the least shift d, towards both smaller error rates, that puts the curve below that of mu."""
    quantiles = np.concatenate([[-np.inf], np.linspace(-_FARTHEST, _FARTHEST, _FINE), [np.inf]])
    rates = ndtr(quantiles)
    curve = missed(rates)
    bound = ndtr(-quantiles - mu)
    least, most = 0.0, 1.0
    while most - least > _CLOSE:
        shift = (least + most) / 2.0
        # f is convex, so a straight line between two points is above it.
        shifted = np.interp(np.minimum(rates + shift, 1.0), rates, curve) - shift
        if (shifted <= bound).all():
            most = shift
        else:
            least = shift
    return most
