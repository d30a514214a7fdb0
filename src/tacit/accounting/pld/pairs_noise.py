"""Dominating pairs of noise on a sum, and of claims: one pair a mechanism, in units of the adjacency."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from tacit.accounting.pld.pair import Pair, atoms_of, normal
from tacit.accounting.price import Array


def gaussian_panels(low: float, high: float, sigma: float, largest: float = 1.0) -> Array:
    """Panels narrow enough for four-point quadrature: narrow against sigma, and y changes by <= 0.1."""
    width = min(sigma / 40.0, sigma * sigma / (10.0 * largest))
    return np.linspace(low, high, 2 + math.ceil((high - low) / width))


def gaussian_pair(sigma: float, tail: float) -> Pair:
    """N(1, sigma^2) against N(0, sigma^2)."""
    reach, variance = -float(ndtri(tail)) * sigma, sigma * sigma
    return Pair(
        ratio=lambda x: (2.0 * x - 1.0) / (2.0 * variance),
        position=lambda y: variance * y + 0.5,
        p=lambda x: normal(x, 1.0, sigma),
        q=lambda x: normal(x, 0.0, sigma),
        panels=gaussian_panels(-reach, 1.0 + reach, sigma),
        atoms=np.empty((0, 3)),
        tail=tail,
        supremum=math.inf,
        overlap=math.erfc(1.0 / (2.0 * math.sqrt(2.0) * sigma)),
    )


def laplace_pair(scale: float) -> Pair:
    """Lap(b) around 1 against around 0: the log ratio is in [-1/b, 1/b], with atoms at both ends."""
    top, light = 1.0 / scale, 0.5 * math.exp(-1.0 / scale)
    return Pair(
        ratio=_itself,
        position=_itself,
        p=lambda y: np.exp(-(top - y) / 2.0) / 4.0,
        q=lambda y: np.exp(-(top + y) / 2.0) / 4.0,
        panels=np.linspace(-top, top, 2 + math.ceil(20.0 * top)),
        atoms=np.array([[top, 0.5, light], [-top, light, 0.5]]),
        tail=0.0,
        supremum=top,
        overlap=math.exp(-top / 2.0),
    )


def bounded_range_pair(epsilon: float) -> Pair:
    """The least pair that dominates every mechanism of ``epsilon``-bounded range.

    With a log ratio of t or t - eps, the worst there is for a given t in [0, eps] (Dong, Durfee & Rogers
    2020, 1909.13830, Lemma 3.2), H_{e^x} = (e^eps - e^t)(1 - e^{x-t}) / (e^eps - 1).  Its maximum over t is
    at t = (eps + x) / 2:

        H_{e^x} = (e^{eps/2} - e^{x/2})^2 / (e^eps - 1),   |x| <= eps,

    convex in e^x, so itself the curve of a pair (Zhu, Dong & Wang 2022, 2106.08567, Proposition 8): the
    one with density e^{y/2} / (4 sinh(eps/2)) of the log ratio y under P.  It covers every step's own t,
    and thereby every adaptive composition; a composition with one and the same t costs a little less.
    """
    weight = -2.0 * math.expm1(-epsilon)
    return Pair(
        ratio=_itself,
        position=_itself,
        p=lambda y: np.exp((y - epsilon) / 2.0) / weight,
        q=lambda y: np.exp((-y - epsilon) / 2.0) / weight,
        panels=np.linspace(-epsilon, epsilon, 2 + math.ceil(20.0 * epsilon)),
        atoms=np.empty((0, 3)),
        tail=0.0,
        supremum=epsilon,
        overlap=1.0 - math.tanh(epsilon / 4.0),
    )


def discrete_gaussian_pair(scale: float, shift: int, tail: float) -> Pair:
    """Discrete Gaussians around ``shift`` and 0: log ratio shift (2k - shift) / (2 scale^2) at the integer k.

    The noise is log-concave, so a smaller shift is dominated by a larger one.
    """
    # sum_{k > K} e^{-k^2 / (2 s^2)} <= (1 + s) e^{-K^2 / (2 s^2)}, and the normaliser is at least 1
    reach = scale * math.sqrt(2.0 * (math.log1p(scale) - math.log(tail)))
    k = _integers(-math.ceil(reach), shift + math.ceil(reach))
    weights = np.exp(-((k / scale) ** 2) / 2.0)
    total = math.fsum(weights)
    y = shift * (2.0 * k - shift) / (2.0 * scale * scale)
    p = np.exp(-(((k - shift) / scale) ** 2) / 2.0)
    return Pair.of_atoms(atoms_of(y, p / total, weights / total), tail)


def discrete_laplace_pair(scale: float, shift: int) -> Pair:
    """Geometric noise around ``shift`` and 0: the log ratio is (2j - shift) / scale for j = 0..shift."""
    j = _integers(0, shift)
    ratio = math.exp(-1.0 / scale)
    y = (2.0 * j - shift) / scale
    p = np.exp(-(shift - j) / scale) * (1.0 - ratio) / (1.0 + ratio)
    p[0], p[-1] = math.exp(-shift / scale) / (1.0 + ratio), 1.0 / (1.0 + ratio)
    return Pair.of_atoms(atoms_of(y, p, p[::-1]))


def response_pair(noise: float, categories: int) -> Pair:
    """k-ary randomised response to two different true answers."""
    wrong = noise / categories
    right = 1.0 - noise + wrong
    top = math.log1p((1.0 - noise) / wrong) if wrong > 0.0 else math.inf
    others = (categories - 2) * wrong
    return Pair.of_atoms(
        np.array([[top, right, wrong], [0.0, others, others], [-top, wrong, right]])
        if top > 0.0
        else np.array([[0.0, 1.0, 1.0]])
    )


def private_pair(epsilon: float, delta: float) -> Pair:
    """The worst of all that is (epsilon, delta)-DP (Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 3.3)."""
    heavy = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    light = heavy * math.exp(-epsilon)
    ends = [[math.inf, delta, 0.0], [-math.inf, 0.0, delta]]
    if epsilon == 0.0:
        return Pair.of_atoms(np.array([[0.0, 1.0 - delta, 1.0 - delta], *ends]))
    return Pair.of_atoms(np.array([[epsilon, heavy, light], [-epsilon, light, heavy], *ends]))


def _integers(low: int, high: int) -> Array:
    return np.arange(low, high + 1, dtype=np.float64)


def _itself(y: Array) -> Array:
    return y
