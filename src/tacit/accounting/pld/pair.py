"""A dominating pair, its privacy loss, and the effect of sampling on both.

For neighbours with output densities P and Q the loss is L = log dP/dQ, drawn under P.  A pair here has a real
outcome x with smooth densities p and q, on which the log ratio y(x) = log p/q increases, and atoms.  With

    m(y) = 1 - q + q e^y

a mechanism with the pair (P, Q), performed on a sample, has these losses (Zhu, Dong & Wang 2022, 2106.08567,
Theorem 11; Balle, Barthe & Gaboardi 2018, 1807.01647):

    Poisson, remove:       L =  log m(y),   the record may take part under P, never under Q
    Poisson, add:          L = -log m(y),   the record may take part under Q, never under P
    without replacement:   L =  log m(y) where y > 0 and -log m(-y) where y < 0, the rest of the mass at 0

This file also has the pair of each noise mechanism and of each stated guarantee, in units of the adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from tacit.accounting.price import Array, Direction


@dataclass(frozen=True)
class Branch:
    """A part of a loss: L = ``value(x)``, an increasing function with the inverse ``position(l)``.

    ``density(x)`` is that of x under P.  It is smooth between neighbouring ``panels``, and negligible outside
    of them."""

    value: Callable[[Array], Array]
    position: Callable[[Array], Array]
    density: Callable[[Array], Array]
    panels: Array

    def scaled(self, share: float) -> Branch:
        """Return the same losses with ``share`` of the mass."""
        density = self.density
        return Branch(self.value, self.position, lambda x: share * density(x), self.panels)


@dataclass(frozen=True)
class Loss:
    """The privacy loss L under P: branches, atoms, and the mass ``infinite`` at infinite loss.

    ``atoms`` of shape (n, 2) has rows (loss, mass).  ``tail`` bounds the P-mass, on either side, that is in
    none of these.  ``supremum`` bounds finite losses.  Masses have a relative error of ``mass_error``, on top
    of rounding.  If this loss dominates the true one without being equal to it, ``under`` makes a loss that
    the true one dominates.
    """

    branches: tuple[Branch, ...]
    atoms: Array
    infinite: float
    tail: float
    supremum: float
    mass_error: float = 0.0
    under: Callable[[], Loss] | None = None

    @cached_property
    def dominated(self) -> Loss | None:
        """The loss that ``under`` makes.  It is made on first use, as upper bounds do not need it."""
        return None if self.under is None else self.under()


@dataclass(frozen=True)
class Pair:
    """A pair P against Q: ``ratio(x)`` is log p/q, increasing, with the inverse ``position``.

    ``p`` and ``q`` are the densities.  ``atoms`` of shape (n, 3) has rows (log ratio, P-mass, Q-mass), whose
    ratios may be infinite.  ``overlap`` is P(y < 0) + Q(y > 0) + P(y = 0), which is 1 minus the total
    variation distance.  ``tail`` bounds the mass that P and Q each have outside of the panels and the atoms.
    """

    ratio: Callable[[Array], Array]
    position: Callable[[Array], Array]
    p: Callable[[Array], Array]
    q: Callable[[Array], Array]
    panels: Array
    atoms: Array
    tail: float
    supremum: float
    overlap: float

    @staticmethod
    def of_atoms(atoms: Array, tail: float = 0.0) -> Pair:
        """Make a pair of atoms alone.  A row with an infinite log ratio has no mass under P or under Q."""
        y, p, q = atoms.T
        overlap = math.fsum(np.minimum(p, q))
        supremum = float(y[(p > 0.0) & np.isfinite(y)].max(initial=0.0))
        return Pair(_same, _same, np.zeros_like, np.zeros_like, np.empty(0), atoms, tail, supremum, overlap)


def _same(x: Array) -> Array:
    return x


def unsampled(pair: Pair) -> Loss:
    """Return the loss of the pair without sampling."""
    branch = Branch(pair.ratio, pair.position, pair.p, pair.panels)
    return _loss(pair, [branch], pair.atoms[:, 0], pair.atoms[:, 1], pair.supremum)


def poisson_sampled(pair: Pair, rate: float, direction: Direction) -> Loss:
    """Return the loss of the pair on a Poisson sample."""
    y, p, q = pair.atoms.T
    if direction == "remove":
        branch = Branch(
            lambda x: log_mixture(pair.ratio(x), rate),
            lambda loss: pair.position(log_ratio(loss, rate)),
            lambda x: rate * pair.p(x) + (1.0 - rate) * pair.q(x),
            pair.panels,
        )
        masses = rate * p + (1.0 - rate) * q
        supremum = float(log_mixture(np.array([pair.supremum]), rate)[0])
        return _loss(pair, [branch], log_mixture(y, rate), masses, supremum)
    mirrored = Branch(  # x is mirrored, so that the loss increases again
        lambda x: -log_mixture(pair.ratio(-x), rate),
        lambda loss: -pair.position(log_ratio(-loss, rate)),
        lambda x: pair.q(-x),
        -pair.panels[::-1],
    )
    # -log m decreases in y, so the supremum is at the least ratio: no less than log(1 - q)
    least = -math.log1p(-rate) if rate < 1.0 else math.inf
    return _loss(pair, [mirrored], -log_mixture(y, rate), q, least)


def sampled_without_replacement(pair: Pair, rate: float) -> Loss:
    """Return the loss of replacing a record of a random subset, for a symmetric pair.

    The hockey-stick divergence H_a is that of ((1-q) Q + q P, Q) for a >= 1, and that of (P, (1-q) P + q Q)
    for a < 1.
    """
    middle = pair.position(np.zeros(1))
    above = np.concatenate([middle, pair.panels[pair.panels > middle]]) if pair.panels.size else pair.panels
    below = np.concatenate([pair.panels[pair.panels < middle], middle]) if pair.panels.size else pair.panels
    grown = Branch(
        lambda x: log_mixture(pair.ratio(x), rate),
        lambda loss: pair.position(log_ratio(loss, rate)),
        lambda x: rate * pair.p(x) + (1.0 - rate) * pair.q(x),
        above,
    )
    shrunk = Branch(
        lambda x: -log_mixture(-pair.ratio(x), rate),
        lambda loss: pair.position(-log_ratio(-loss, rate)),
        pair.p,
        below,
    )
    y, p, q = pair.atoms.T
    losses = np.where(y > 0.0, log_mixture(y, rate), -log_mixture(-y, rate))
    masses = np.where(y > 0.0, rate * p + (1.0 - rate) * q, p) * (y != 0.0)
    # the rest: 1 - (q P+ + (1-q) Q+) - P- with Q+ = P- by symmetry
    even = math.fsum(p[y == 0.0])
    at_zero = (1.0 - rate) * (1.0 - pair.overlap) + even
    supremum = float(log_mixture(np.array([pair.supremum]), rate)[0])
    return _loss(
        pair, [shrunk, grown], np.append(losses, 0.0), np.append(masses, max(0.0, at_zero)), supremum
    )


def _loss(pair: Pair, branches: list[Branch], losses: Array, masses: Array, supremum: float) -> Loss:
    positive = masses > 0.0
    finite = positive & np.isfinite(losses)
    if not (finite.any() or pair.panels.size):  # nothing is hidden
        losses, masses, finite = np.append(losses, 0.0), np.append(masses, 0.0), np.append(finite, True)
        positive = np.append(positive, False)
    return Loss(
        branches=tuple(branch for branch in branches if branch.panels.size > 1),
        atoms=np.stack([losses[finite], masses[finite]], axis=1),
        infinite=math.fsum(masses[positive & (losses == math.inf)]),
        tail=pair.tail,
        supremum=supremum,
    )


def atoms_of(losses: Array, p: Array, q: Array) -> Array:
    """Make rows (log ratio, P-mass, Q-mass)."""
    return np.stack([losses, p, q], axis=1)


def log_mixture(y: Array, rate: float) -> Array:
    """Compute log m(y) = log(1 - q + q e^y), with an error of a few units in the last place of max(1, y)."""
    if rate == 1.0:
        return y
    if rate <= 0.5 and y.max(initial=0.0) <= 30.0:
        return np.log1p(rate * np.expm1(y))
    grown = rate * np.expm1(np.minimum(y, 30.0))
    small = np.where(
        grown > -0.5,
        np.log1p(np.maximum(grown, -0.5)),
        np.log((1.0 - rate) + rate * np.exp(np.minimum(y, 30.0))),
    )
    return np.where(y > 30.0, y + np.log(rate + (1.0 - rate) * np.exp(-np.maximum(y, 30.0))), small)


def log_ratio(loss: Array, rate: float) -> Array:
    """Return the y with log m(y) = loss; minus infinity if there is none."""
    if rate == 1.0:
        return loss
    with np.errstate(divide="ignore"):
        low = np.log1p(np.maximum(np.expm1(np.minimum(loss, 30.0)) / rate, -1.0))
    return np.where(
        loss > 30.0, loss + np.log((1.0 - (1.0 - rate) * np.exp(-np.maximum(loss, 30.0))) / rate), low
    )


def normal(x: Array, mean: float, sigma: float) -> Array:
    """Compute the density of N(mean, sigma^2) at ``x``."""
    return np.exp(-(((x - mean) / sigma) ** 2) / 2.0) / (sigma * math.sqrt(2.0 * math.pi))


def gaussian_panels(low: float, high: float, sigma: float, largest: float = 1.0) -> Array:
    """Make panels for four-point quadrature: narrow relative to sigma, and y changes by at most 0.1."""
    width = min(sigma / 40.0, sigma * sigma / (10.0 * largest))
    return np.linspace(low, high, 2 + math.ceil((high - low) / width))


def gaussian_pair(sigma: float, tail: float) -> Pair:
    """Return the pair N(1, sigma^2) against N(0, sigma^2)."""
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
    """Return the pair of Lap(b) around 1 and around 0: log ratios in [-1/b, 1/b], with atoms at both ends."""
    top, light = 1.0 / scale, 0.5 * math.exp(-1.0 / scale)
    return Pair(
        ratio=_same,
        position=_same,
        p=lambda y: np.exp(-(top - y) / 2.0) / 4.0,
        q=lambda y: np.exp(-(top + y) / 2.0) / 4.0,
        panels=np.linspace(-top, top, 2 + math.ceil(20.0 * top)),
        atoms=np.array([[top, 0.5, light], [-top, light, 0.5]]),
        tail=0.0,
        supremum=top,
        overlap=math.exp(-top / 2.0),
    )


def bounded_range_pair(epsilon: float) -> Pair:
    """Return the least pair that dominates every mechanism of ``epsilon``-bounded range.

    The worst case for a given t in [0, eps] has log ratios t and t - eps (Dong, Durfee & Rogers 2020,
    1909.13830, Lemma 3.2), and H_{e^x} = (e^eps - e^t)(1 - e^{x-t}) / (e^eps - 1).  Its maximum over t is at
    t = (eps + x) / 2:

        H_{e^x} = (e^{eps/2} - e^{x/2})^2 / (e^eps - 1),   |x| <= eps.

    This is convex in e^x, so it is the curve of a pair (Zhu, Dong & Wang 2022, 2106.08567, Proposition 8).
    Its log ratio y has density e^{y/2} / (4 sinh(eps/2)) under P.  The pair covers a different t in every
    step, and so every adaptive composition.  A composition with the same t in all steps costs a little less.
    """
    weight = -2.0 * math.expm1(-epsilon)
    return Pair(
        ratio=_same,
        position=_same,
        p=lambda y: np.exp((y - epsilon) / 2.0) / weight,
        q=lambda y: np.exp((-y - epsilon) / 2.0) / weight,
        panels=np.linspace(-epsilon, epsilon, 2 + math.ceil(20.0 * epsilon)),
        atoms=np.empty((0, 3)),
        tail=0.0,
        supremum=epsilon,
        overlap=1.0 - math.tanh(epsilon / 4.0),
    )


def discrete_gaussian_pair(scale: float, shift: int, tail: float) -> Pair:
    """Return the pair of discrete Gaussians around ``shift`` and 0.

    The log ratio at k is shift (2k - shift) / (2 scale^2).

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
    """Return geometric noise around ``shift`` and 0, with log ratios (2j - shift) / scale, j = 0..shift."""
    j = _integers(0, shift)
    ratio = math.exp(-1.0 / scale)
    y = (2.0 * j - shift) / scale
    p = np.exp(-(shift - j) / scale) * (1.0 - ratio) / (1.0 + ratio)
    p[0], p[-1] = math.exp(-shift / scale) / (1.0 + ratio), 1.0 / (1.0 + ratio)
    return Pair.of_atoms(atoms_of(y, p, p[::-1]))


def response_pair(noise: float, categories: int) -> Pair:
    """Return the pair of k-ary randomised response to two different true answers."""
    wrong = noise / categories
    right = 1.0 - noise + wrong
    top = math.log1p((1.0 - noise) / wrong) if wrong > 0.0 else math.inf
    rest = (categories - 2) * wrong
    return Pair.of_atoms(
        np.array([[top, right, wrong], [0.0, rest, rest], [-top, wrong, right]])
        if top > 0.0
        else np.array([[0.0, 1.0, 1.0]])
    )


def private_pair(epsilon: float, delta: float) -> Pair:
    """Return the worst (epsilon, delta)-DP pair (Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 3.3)."""
    heavy = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    light = heavy * math.exp(-epsilon)
    ends = [[math.inf, delta, 0.0], [-math.inf, 0.0, delta]]
    if epsilon == 0.0:
        return Pair.of_atoms(np.array([[0.0, 1.0 - delta, 1.0 - delta], *ends]))
    return Pair.of_atoms(np.array([[epsilon, heavy, light], [-epsilon, light, heavy], *ends]))


def _integers(low: int, high: int) -> Array:
    return np.arange(low, high + 1, dtype=np.float64)
