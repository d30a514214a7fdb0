"""Dominating pairs, their privacy losses, and the effect of sampling on both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from scipy.special import bdtrc, ndtri

from tacit.accounting.flatten import NoiseOutOfRange
from tacit.accounting.price import Array, Direction

# A dominating pair, its privacy loss, and the effect of sampling on both.
#
# For neighbours with output densities P and Q the loss is L = log dP/dQ, drawn under P.  A pair here has a
# real outcome x with smooth densities p and q, on which the log ratio y(x) = log p/q increases, and atoms.
# With
#
#     m(y) = 1 - q + q e^y
#
# a mechanism with the pair (P, Q), performed on a sample, has these losses (Zhu, Dong & Wang 2022,
# 2106.08567, Theorem 11; Balle, Barthe & Gaboardi 2018, 1807.01647):
#
#     Poisson, remove:       L =  log m(y),   the record may take part under P, never under Q
#     Poisson, add:          L = -log m(y),   the record may take part under Q, never under P
#     without replacement:   L =  log m(y) where y > 0 and -log m(-y) where y < 0, the rest of the mass at 0
#
# This file also has the pair of each noise mechanism and of each stated guarantee, in units of the adjacency.


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


NOTHING = Loss((), np.array([[0.0, 1.0]]), 0.0, 0.0, 0.0)
"""The loss of an output that does not depend on the records; every loss dominates it."""


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
    branch = Branch(pair.ratio, pair.position, pair.p, pair.panels)
    return _loss(pair, [branch], pair.atoms[:, 0], pair.atoms[:, 1], pair.supremum)


def _grown(pair: Pair, rate: float, panels: Array) -> Branch:
    return Branch(
        lambda x: log_mixture(pair.ratio(x), rate),
        lambda loss: pair.position(log_ratio(loss, rate)),
        lambda x: rate * pair.p(x) + (1.0 - rate) * pair.q(x),
        panels,
    )


def poisson_sampled(pair: Pair, rate: float, direction: Direction) -> Loss:
    y, p, q = pair.atoms.T
    if direction == "remove":
        branch = _grown(pair, rate, pair.panels)
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
    """Return the loss of replacing a record of a random subset, for a symmetric pair."""
    # The hockey-stick divergence H_a is that of ((1-q) Q + q P, Q) for a >= 1, and that of (P, (1-q) P + q Q)
    # for a < 1.
    middle = pair.position(np.zeros(1))
    above = np.concatenate([middle, pair.panels[pair.panels > middle]]) if pair.panels.size else pair.panels
    below = np.concatenate([pair.panels[pair.panels < middle], middle]) if pair.panels.size else pair.panels
    grown = _grown(pair, rate, above)
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
    """Return the least pair that dominates every mechanism of ``epsilon``-bounded range."""
    # The worst case for a given t in [0, eps] has log ratios t and t - eps (Dong, Durfee & Rogers 2020,
    # 1909.13830, Lemma 3.2), and H_{e^x} = (e^eps - e^t)(1 - e^{x-t}) / (e^eps - 1).  Its maximum over t is
    # at t = (eps + x) / 2:
    #
    #     H_{e^x} = (e^{eps/2} - e^{x/2})^2 / (e^eps - 1),   |x| <= eps.
    #
    # This is convex in e^x, so it is the curve of a pair (Zhu, Dong & Wang 2022, 2106.08567, Proposition
    # 8).  Its log ratio y has density e^{y/2} / (4 sinh(eps/2)) under P.  The pair covers a different t in
    # every step, and so every adaptive composition.  A composition with the same t in all steps costs a
    # little less.
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
    """Return the pair of discrete Gaussians around ``shift`` and 0."""
    # The log ratio at k is shift (2k - shift) / (2 scale^2).
    #
    # The noise is log-concave, so a smaller shift is dominated by a larger one.
    # sum_{k > K} e^{-k^2 / (2 s^2)} <= (1 + s) e^{-K^2 / (2 s^2)}, and the normaliser is at least 1
    reach = scale * math.sqrt(2.0 * (math.log1p(scale) - math.log(tail)))
    k = np.arange(-math.ceil(reach), shift + math.ceil(reach) + 1.0)
    weights = np.exp(-((k / scale) ** 2) / 2.0)
    total = math.fsum(weights)
    y = shift * (2.0 * k - shift) / (2.0 * scale * scale)
    p = np.exp(-(((k - shift) / scale) ** 2) / 2.0)
    return Pair.of_atoms(atoms_of(y, p / total, weights / total), tail)


def discrete_laplace_pair(scale: float, shift: int) -> Pair:
    """Return geometric noise around ``shift`` and 0, with log ratios (2j - shift) / scale, j = 0..shift."""
    j = np.arange(shift + 1.0)
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


# Losses of Gaussians of random sensitivity: samples, groups and truncated batches.
#
# All use one inequality.  Let S be any set of outcomes and a = N(0)(S) its probability, with noise of scale
# sigma in any dimension.  By the lemma of Neyman and Pearson, a shift by a vector of length at most s changes
# the probability to a number between Phi(Phi^{-1}(a) - s/sigma) and Phi(Phi^{-1}(a) + s/sigma).  If the
# shifts lie on one line, a half space attains both ends for all s at once.  So
#
#     sum_i w_i N(u_i) (S) - e^eps sum_i w_i N(v_i) (S),   |u_i|, |v_i| <= s_i,
#
# is largest if all lie on one line, with u_i = s_i and v_i = -s_i (replace-one), v_i = 0 (remove), or u_i = 0
# (add).
# The same holds for Laplace noise, as its likelihood ratios are also monotone.

_NO_ATOMS = np.empty((0, 2))
_MOST_PANELS = 1_000_000
_LARGEST_EXPONENT = 700.0
_BLOCK = 2**13
COUNTED = 1e-11  # relative error of binomial probabilities
_COUNTED_EACH = 4e-15  # further relative error of a binomial tail, for each record


def gaussian_replaced(rate: float, sigma: float, tail: float) -> Loss:
    """Return the loss of (1-q) N(0) + q N(1) against its mirror image: log m(y(x)) - log m(y(-x)) at x."""
    reach = -float(ndtri(tail)) * sigma
    variance = sigma * sigma
    log_k = math.log1p(-rate) - math.log(rate) + 1.0 / (2.0 * variance)

    def value(x: Array) -> Array:
        plus, minus = (2.0 * x - 1.0) / (2.0 * variance), (-2.0 * x - 1.0) / (2.0 * variance)
        return log_mixture(plus, rate) - log_mixture(minus, rate)

    def density(x: Array) -> Array:
        return (1.0 - rate) * normal(x, 0.0, sigma) + rate * normal(x, 1.0, sigma)

    branch = Branch(
        value,
        lambda loss: variance * _replaced_ratio(loss, log_k),
        density,
        gaussian_panels(-reach, 1.0 + reach, sigma),
    )
    return Loss((branch,), _NO_ATOMS, 0.0, tail, math.inf)


def _replaced_ratio(loss: Array, log_k: float) -> Array:
    """Solve u/w - w/u = 2 k sinh(L/2), w = e^{L/2}, k = (1-q) e^{s} / q, and return log u."""
    half = np.abs(loss) / 2.0
    with np.errstate(divide="ignore"):
        log_s = log_k + half + np.log(-np.expm1(-2.0 * half) / 2.0)
    grown = np.where(log_s > 300.0, log_s + math.log(2.0), np.arcsinh(np.exp(np.minimum(log_s, 300.0))))
    return np.sign(loss) * (half + grown)


def laplace_replaced(rate: float, scale: float) -> Loss:
    """Return the loss of (1-q) Lap(0) + q Lap(1) against its mirror image, at noise x of scale b."""
    # The loss is constant for |x| >= 1, and smooth and increasing on either side of 0.
    top = 1.0 / scale

    def value(x: Array) -> Array:
        near = np.clip(x, -1.0, 1.0)
        plus = (np.abs(near) - np.abs(near - 1.0)) * top
        minus = (np.abs(near) - np.abs(near + 1.0)) * top
        return log_mixture(plus, rate) - log_mixture(minus, rate)

    def position(loss: Array) -> Array:
        # for x in [0, 1] the second mixture is constant: log m((2x - 1) top) = |L| + log m(-top)
        y = log_ratio(np.abs(loss) + log_mixture(np.array(-top), rate), rate)
        return np.sign(loss) * np.clip((y / top + 1.0) / 2.0, 0.0, 1.0)

    def density(x: Array) -> Array:
        return ((1.0 - rate) * np.exp(-np.abs(x) * top) + rate * np.exp(-np.abs(x - 1.0) * top)) * top / 2.0

    ends = value(np.array([1.0, -1.0]))
    right = ((1.0 - rate) * math.exp(-top) + rate) / 2.0
    left = ((1.0 - rate) * math.exp(-top) + rate * math.exp(-2.0 * top)) / 2.0
    panels = 2 + math.ceil(40.0 * top)
    halves = (np.linspace(-1.0, 0.0, panels), np.linspace(0.0, 1.0, panels))
    atoms = np.stack([ends, np.array([right, left])], axis=1)
    branches = tuple(Branch(value, position, density, half) for half in halves)
    return Loss(branches, atoms, 0.0, 0.0, float(ends[0]))


def gaussian_mixture(
    sigma: float, shifts: tuple[float, ...], shares: tuple[float, ...], direction: Direction, tail: float
) -> Loss:
    """Return the loss of sum_i w_i N(s_i) against N(0), or, under replace-one, against sum_i w_i N(-s_i)."""
    # See Ganesh 2024 (2401.10294), Theorem 3.1, for add and remove.
    parts = [(s, math.log(w)) for s, w in zip(shifts, shares, strict=True) if w > 0.0]
    largest = max(s for s, _ in parts)
    if largest == 0.0:
        return NOTHING
    reach, variance = -float(ndtri(tail)) * sigma, sigma * sigma
    if 20.0 * largest * (largest + reach) > _MOST_PANELS * variance:
        raise NoiseOutOfRange(
            "method 'pld' supports mixtures of Gaussians with sensitivities up to some hundred times the "
            f"noise; got {largest:g} at noise multiplier {sigma:g}, which protects nothing. Use more "
            "noise.",
            too_small=True,
        )
    panels = gaussian_panels(-largest - reach, largest + reach, sigma, largest)

    # adding e^terms, where these do not overflow, is three times as fast as logaddexp
    fits = largest * (largest + 2.0 * reach) / (2.0 * variance) < _LARGEST_EXPONENT

    def log_sum(x: Array) -> Array:
        terms = (w + (2.0 * x - s) * (s / (2.0 * variance)) for s, w in parts)
        total: Array = np.log(reduce(np.add, map(np.exp, terms))) if fits else reduce(np.logaddexp, terms)
        return total

    def log_of(x: Array) -> Array:
        return _in_blocks(log_sum, x)

    def mixed(x: Array) -> Array:
        return _in_blocks(
            lambda part: reduce(np.add, (math.exp(w) * normal(part, s, sigma) for s, w in parts)), x
        )

    value: Callable[[Array], Array]
    if direction == "remove":
        value, density = log_of, mixed
    elif direction == "add":
        value, density = (lambda x: -log_of(-x)), (lambda x: normal(x, 0.0, sigma))
    else:
        value, density = (lambda x: log_of(x) - log_of(-x)), mixed
    never = sum(math.exp(w) for s, w in parts if s == 0.0)
    supremum = -math.log(never) if direction == "add" and never > 0.0 else math.inf
    branch = Branch(value, _inverse(value, panels), density, panels)
    return Loss((branch,), _NO_ATOMS, 0.0, tail, supremum, COUNTED)


def _in_blocks(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply a function to each number, in blocks that fit in the cache with all intermediate results."""
    if x.size <= _BLOCK:
        return function(x)
    result = np.empty_like(x)
    for start in range(0, x.size, _BLOCK):
        result[start : start + _BLOCK] = function(x[start : start + _BLOCK])
    return result


def _inverse(value: Callable[[Array], Array], panels: Array) -> Callable[[Array], Array]:
    """Invert an increasing function by regula falsi within a panel, with the Illinois rule."""
    losses = value(panels)

    def position(loss: Array) -> Array:
        right = np.clip(np.searchsorted(losses, loss), 1, panels.size - 1)
        a, b = panels[right - 1], panels[right]
        f_a, f_b = losses[right - 1] - loss, losses[right] - loss
        x = np.where(np.abs(f_a) < np.abs(f_b), a, b)
        for _ in range(6):
            width = f_b - f_a
            x = np.where(width > 0.0, np.clip(b - f_b * (b - a) / np.where(width > 0.0, width, 1.0), a, b), x)
            f = value(x) - loss
            low = f <= 0.0
            # if an end stays for the second time, halve its value
            f_b, f_a = np.where(low, f_b / 2.0, f), np.where(low, f, f_a / 2.0)
            a, b = np.where(low, x, a), np.where(low, b, x)
        return x

    return position


def counted(records: int) -> float:
    """Bound the relative error of ``bdtrc`` as a tail of Binomial(records, q)."""
    # The bound is 2 to 10 times the error measured against 40-digit arithmetic, for up to 1e9 records.
    return COUNTED + _COUNTED_EACH * records


def truncated(
    rate: float, records: int, largest: int, sigma: float, step: Callable[[float, float], Loss], tail: float
) -> Loss:
    """Return the loss of batches cut at ``largest``; ``step(q, sigma)`` returns that of a Poisson sample."""
    # Of the others, m ~ Binomial(n - 1, q) are sampled.  Whether m >= B depends on them alone, so it may be
    # revealed.  If m < B nothing is cut.  Otherwise the batch without the record is a random B-subset of
    # the others.  With the record it is the same, except that with probability p = q B E[1 / (m + 1) | m >=
    # B] the record replaces one member: a change of norm at most 2 (Chua et al. 2024, 2411.04205, section
    # 3.2).  Where a zeroed record keeps its place, both means are at most 2 from the common one, as under
    # replace-one.
    off = counted(records)
    cut = float(bdtrc(largest - 1, records - 1, rate)) if records > largest else 0.0
    if cut == 0.0:
        return step(rate, sigma)
    beyond = float(bdtrc(largest, records, rate))
    # p <= q B / (B + 1), as m >= B; the only bound if the tails underflow
    inside = min(rate, beyond * largest / (cut * records) * (1.0 + off)) or rate
    usual, exchanged = step(rate, sigma), gaussian_replaced(inside, sigma / 2.0, tail)
    return Loss(
        branches=(
            *(branch.scaled(1.0 - cut) for branch in usual.branches),
            *(branch.scaled(cut) for branch in exchanged.branches),
        ),
        atoms=_NO_ATOMS,
        infinite=0.0,
        tail=tail,
        supremum=math.inf,
        mass_error=off,
    )
