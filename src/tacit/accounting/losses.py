"""The privacy loss of each base mechanism; a mechanism without a proven pair is refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from tacit.accounting.bins import LEAST_BIN_NOISE, balls_in_bins, coarse_tail
from tacit.accounting.closed_form import exchanged
from tacit.accounting.flatten import LEAST_NOISE, Base, NoiseOutOfRange
from tacit.accounting.pair import (
    NOTHING,
    Loss,
    Pair,
    bounded_range_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    gaussian_mixture,
    gaussian_pair,
    gaussian_replaced,
    laplace_pair,
    laplace_replaced,
    poisson_sampled,
    private_pair,
    response_pair,
    sampled_without_replacement,
    truncated,
    unsampled,
)
from tacit.accounting.price import Array, Direction, Price, brent
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    ShuffledReports,
    SparseVector,
    TruncatedPoissonSampled,
    WithoutReplacement,
)

# The loss of the best of a random number of runs, from the (epsilon, delta) curve of one run.
#
# Let K have the generating function f, and break ties between runs at random, so that the outcomes y of a run
# are ordered.  Let v(y), v'(y) be the probabilities under neighbours that a run is better than y, and
# g(v) = f'(1 - v).  The best of K is y with density g(v) p(y) against g(v') p'(y), and K = 0 has the same
# probability on both sides.  If a run is (e, d(e))-DP for every e, in both directions, then
#
#     v' <= V(v) = min over e of  e^e v + d(e)  and  1 - e^{-e} (1 - v - d(e)),
#
# and g decreases, so that with L the loss of one run, for every epsilon >= 0,
#
#     delta(epsilon) <= E max over v of  (g(v) - e^{epsilon - L} g(V(v)))_+ = E H(e^{epsilon - L}).
#
# H is convex and decreasing, H(0) = f'(1) = E K.  If H is piecewise linear with kinks at z_i, it is a sum of
# w_i (1 - z / z_i)_+, and so delta(epsilon) <= sum_i w_i d(epsilon - log z_i).  Koskela, Redberg & Wang 2024
# (2402.06701) use one kink z, a bound on g(v) / g(v') for all v together: E K d(epsilon - log z).

_UP, UNIT = 1.0 + 1e-12, 2.0**-53
_LEVELS = np.geomspace(1e-24, 0.5, 48)  # of delta: the curve ends at the first one with a finite epsilon
_POINTS, _PLACES, _FINER = 1024, 1500, 2  # epsilons of a run; values of v; times as many of the selection
_LEAST_PLACE = 1e-8  # of v, times E K
_FARTHEST = 300.0  # the largest epsilon of a run, and the most that selection adds to it, in nats


@dataclass(frozen=True, eq=False)
class KnownCurve(Event):
    """A mechanism of which only the curve is known, which is the same in both directions."""

    name: str
    loss: Loss

    def __repr__(self) -> str:
        return self.name


def selected(run: Price, event: PrivateSelection) -> KnownCurve:
    """Compute the curve of the best of K runs."""
    # * The loss dominates that of the selection, for any outcomes and any order of them with which a run has
    #   its curve.
    reach = next((e for level in _LEVELS if (e := run.epsilon(float(level))) < math.inf), 0.0) + 1e-9
    epsilons = np.linspace(0.0, min(reach, _FARTHEST), _POINTS)
    d_run = np.minimum(run.deltas(epsilons), 1.0)
    a, b = _lines(event, epsilons, d_run)
    top = min(math.log(float((a / np.maximum(b, 1e-300)).max())), _FARTHEST)
    h = (float(epsilons[-1]) + top) / _FINER / _POINTS
    right, count = math.ceil(top / h) + 1, _FINER * _POINTS + 3  # some more, for weights up to ``right``
    # the weights of a piecewise linear function above H with kinks at z, and its last value
    z = np.exp(h * np.arange(-count, right + 1.0))
    values = np.array([max(0.0, float((a - b * each).max())) for each in z])
    slopes = np.diff(values, prepend=a.max()) / np.diff(z, prepend=0.0)
    weights, left = np.maximum(np.diff(slopes, append=0.0), 0.0) * z, float(values[-1])
    # d at -right h, ..., 2 count h: below its chords in e^epsilon, and after the last at most its last value
    d = np.interp(np.exp(np.minimum(h * np.arange(2.0 * count + 1.0), _FARTHEST)), np.exp(epsilons), d_run)
    x = np.exp(h * np.arange(-right, 0.0))
    d = np.concatenate([1.0 - x * (1.0 - d[right:0:-1]), d])
    deltas = (np.convolve(d, weights, "valid") + left) * _UP + 8.0 * UNIT * event.mean
    return KnownCurve(repr(event), _loss(h * np.arange(count + 1.0), np.minimum(deltas, 1.0)))


def _lines(event: PrivateSelection, epsilons: Array, d: Array) -> tuple[Array, Array]:
    """Return a and b with H(z) <= max_j (a_j - b_j z)_+."""
    # Between two values of v, g lies below its chord.  g(V), which is convex as V is concave, lies above its
    # tangent in the middle.  The difference of these two lines is linear, so it is largest at an end.
    ends = np.concatenate([[0.0], np.geomspace(_LEAST_PLACE / max(event.mean, 1.0), 1.0, _PLACES)])
    middles = (ends[1:] + ends[:-1]) / 2.0
    slopes = np.concatenate([np.exp(np.minimum(epsilons, _FARTHEST)), np.exp(-epsilons), [0.0]])
    starts = np.concatenate([d, 1.0 - slopes[d.size : -1] * (1.0 - d), [1.0]])
    best = np.array([int((starts + slopes * v).argmin()) for v in middles])
    b, steep = _weight(event, starts[best] + slopes[best] * middles)
    rise = -steep * slopes[best] * np.diff(ends) / 2.0
    (a, _), least = _weight(event, ends), float(_weight(event, np.ones(1))[0][0])
    return np.concatenate([a[:-1], a[1:]]), np.concatenate([b + rise, np.maximum(b - rise, least)])


def _weight(event: PrivateSelection, v: Array) -> tuple[Array, Array]:
    """Return g(v) = f'(1 - v) and its slope: m e^{-m v}, or m (1 + (1/gamma - 1) v)^{-(1 + eta)}; m = E K."""
    m = event.mean
    if event.shape is None:
        g = m * np.exp(-m * v)
        return g, -m * g
    more = math.expm1(log_one_over_gamma(m, event.shape))
    g = m * np.exp(-(1.0 + event.shape) * np.log1p(more * v))
    return g, -(1.0 + event.shape) * more / (1.0 + more * v) * g


def _loss(epsilons: Array, deltas: Array) -> Loss:
    """Make the loss of a symmetric pair with at least ``deltas`` at ``epsilons``, which increase from 0."""
    # delta is convex in x = e^epsilon, and linear between atoms, where its slope is minus the Q-mass of all
    # larger losses.  The mirror image of a point (x, delta) is (1/x, 1 - (1 - delta) / x), and the chord
    # between both has the slope -(1 - delta) / (1 + x).  The lowest of all these chords comes first.
    x = np.exp(epsilons)
    first = int((deltas + (1.0 - deltas) * np.tanh(epsilons / 2.0)).argmin())
    x, deltas = x[first:], deltas[first:]
    falls = np.concatenate([[(1.0 - deltas[0]) / (1.0 + x[0])], -np.diff(deltas) / np.diff(x), [0.0]])
    q = -np.diff(np.maximum.accumulate(falls[::-1])[::-1])
    losses, masses = np.concatenate([-epsilons[first:][::-1], epsilons[first:]]), np.append(q[::-1], x * q)
    atoms = np.stack([losses, masses * _UP], axis=1)[masses > 0.0] if q.any() else np.zeros((1, 2))
    return Loss((), atoms, float(deltas[-1]), 0.0, float(atoms[-1, 0]), under=lambda: NOTHING)


def log_one_over_gamma(mean: float, shape: float) -> float:
    """Compute log(1/gamma) of the truncated negative binomial with E K = ``mean`` > 1, rounded up."""
    # E K is eta (1 - gamma) / (gamma (1 - gamma^eta)), or, at eta = 0, (1/gamma - 1) / log(1/gamma)
    # (Definition 1).

    def excess(cost: float) -> float:
        """Compute log E K - log mean, which increases with ``cost`` = log(1/gamma)."""
        grown = cost + math.log(-math.expm1(-cost))  # log(1/gamma - 1)
        if abs(shape) * cost < 1e-8:
            return grown - math.log(cost) - math.log(mean)
        return grown + math.log(shape / -math.expm1(-shape * cost)) - math.log(mean)

    low, high = 1e-12, 1.0
    while excess(high) < 0.0:
        high *= 2.0
    return brent(excess, low, high, xtol=1e-13) * _UP + 1e-12


# The loss of shuffled reports, of any local randomiser or of k-ary randomised response.
#
# n people send one report each, of an e-DP randomiser R, and only the multiset of reports is seen.  One
# person has the value 0 or 1.  The values of the others are known.
#
# * Any R (Feldman, McMillan & Talwar 2021, 2012.12803, Theorem 3.1): R(0) = a Q_0 + b Q_1,
#   R(1) = b Q_0 + a Q_1
#   with a / b = e^e, a + b = 1, and each of the others sends, with probability e^{-e}, a report from Q_0 or
#   Q_1, both equally likely.  (Probability 2 / (e^e + 1), as in 2208.04591, holds for some R only: see its
#   errata.)
# * k-ary randomised response (Balle, Bell, Gascon & Nissim 2019, 1903.02837): each of the others sends, with
#   probability k a, a = 1 / (e^e + k - 1), a uniform one of the k categories, and else the truth, which the
#   attacker removes.
#
# There remain m reports that are 0 or 1, n_0 of them 0, and r others.  m and r reveal nothing, and
#
#     P / Q = (e^e n_0 + n_1 + r) / (n_0 + e^e n_1 + r),
#
# as each report is equally likely to be that of the person.  With a probability w, that report is among the
# m. Then n_0 is the sum of a coin of probability a / (a + b) and m - 1 fair coins, else the sum of m fair
# coins. A smaller w is post-processing (sometimes all coins are replaced by fair ones), and so is a larger
# m (one more fair coin).  Hence a block of (m, r) is dominated by its least m with its largest w, and
# dominates its largest m with its least w.

_DEVIATIONS = 13.0
_RARE = math.exp(-(_DEVIATIONS**2) / 2.0)  # probability of values so far from the mean: 2e-37
_BLOCKS, _OTHERS = 64, (16, 100)  # blocks of m; fewest and most blocks of r for each of them
_OUTCOMES = 1e5  # outcomes of the coins, over all blocks of r
_CELLS = 4096  # of the losses on either side of 0
_EXACT = 2.0**-48  # relative error of masses, per unit of a log-factorial

_Cell: TypeAlias = tuple[int, list[tuple[float, float]]]  # m, and pairs of w and the mass


@lru_cache(maxsize=16)  # one entry serves any tail
def shuffled_reports(records: int, epsilon: float, categories: int | None) -> Loss:
    """Return the symmetric loss of one person's value."""
    # * The loss dominates that of the shuffle, whatever the values of the others.
    # * ``dominated`` is dominated by the loss of the pair above.
    share = 1.0 / (math.exp(epsilon) + (categories or 2) - 1.0)
    rate = math.exp(-epsilon) if categories is None else 2.0 * share
    neutral = (categories - 2) * share / (1.0 - rate) if categories not in (None, 2) else 0.0
    among = 1.0 if neutral == 0.0 else (math.exp(epsilon) + 1.0) * share
    first, chances = _binomial(records - 1, rate)
    masses = among * np.append(0.0, chances) + (1.0 - among) * np.append(chances, 0.0)
    cells: list[_Cell] = []
    for low, high, mass in _blocks(first, masses, records, _BLOCKS):
        blocks = int(np.clip(_OUTCOMES / (1.0 + _DEVIATIONS * math.sqrt(low)), *_OTHERS))
        # r falls as m grows; it is one larger if the report of the person is certainly among the r
        fewest = _blocks(*_binomial(records - high, neutral), records, blocks)
        most = _blocks(*_binomial(max(records - 1 - low, 0), neutral), records, blocks)
        cells.append((max(low, 1), [(_chance(high, r, epsilon), mass * part) for r, _, part in fewest]))
        cells.append((max(high, 1), [(_chance(low, r + 1, epsilon), mass * part) for _, r, part in most]))
    if neutral == 0.0:
        cells = [(m, [(1.0, sum(part for _, part in parts))]) for m, parts in cells]
    error = _EXACT * (1.0 + float(gammaln(records + 1.0)))
    upper, lower = _spread(cells[::2], epsilon), _merged(cells[1::2], epsilon)
    return replace(upper, mass_error=error, under=lambda: replace(lower, mass_error=error))


def _chance(m: int, r: int, epsilon: float) -> float:
    """Return w, the probability that the person's report is among ``m`` reports rather than ``r`` others."""
    among = m * (math.exp(epsilon) + 1.0) / 2.0
    return among / (among + r) if among > 0.0 else 0.0


def _binomial(count: int, rate: float) -> tuple[int, Array]:
    """Return the first outcome and the probabilities from there on; each side loses less than ``_RARE``."""
    # The lower cut is by Okamoto's bound for rates up to 1/2, else by Hoeffding's; the upper one by
    # Bernstein's.
    mean, deviation = count * rate, math.sqrt(count * rate * max(1.0 - rate, 0.5))
    low = max(0, math.floor(mean - _DEVIATIONS * deviation))
    high = min(count, math.ceil(mean + _DEVIATIONS * (deviation + _DEVIATIONS)))
    k = np.arange(low, high + 1.0)
    return low, np.exp(log_binomial(count, k, rate))


def log_binomial(count: int, k: Array, rate: float) -> Array:
    """Compute log P(Binomial(count, rate) = k), off by a few units of log count! and of k log rate."""
    choices = gammaln(count + 1.0) - gammaln(k + 1.0) - gammaln(count - k + 1.0)
    return np.asarray(choices + xlogy(k, rate) + xlog1py(count - k, -rate))


def _blocks(first: int, masses: Array, most: int, number: int) -> list[tuple[int, int, float]]:
    """Return (least, largest, mass) of about ``number`` blocks, and of the outcomes below and above."""
    x = np.linspace(-1.0, 1.0, number + 1)
    edges = np.unique(
        np.rint((1.0 + x * np.abs(x)) / 2.0 * masses.size).astype(np.int64)
    )  # narrow in the middle
    inside = [
        (first + int(start), first + int(end) - 1, float(mass))
        for start, end, mass in zip(edges, edges[1:], np.add.reduceat(masses, edges[:-1]), strict=False)
    ]
    last = first + masses.size - 1
    below = [(0, first - 1, _RARE)] if first > 0 else []
    return below + inside + ([(last + 1, most, _RARE)] if last < most else [])


def _laws(cells: list[_Cell], epsilon: float) -> tuple[list[tuple[Array, Array]], float]:
    """Return ratios P/Q and P-masses of the coins, for each m, and the width of a cell of the lattice."""
    grown, laws = math.exp(epsilon), []
    for m, parts in cells:
        first, even = _binomial(m, 0.5)
        w, mass = np.array(parts).T[:, :, None]
        share, zeros = w * 2.0 / (grown + 1.0), (first + np.arange(even.size)) / m
        p = (1.0 - w + share) + (share * (grown - 1.0)) * zeros
        q = (1.0 - w + share) + (share * (grown - 1.0)) * (1.0 - zeros)
        laws.append(((p / q).ravel(), (mass * even * p).ravel()))
    ends = [float(end) for ratios, _ in laws for end in (ratios.min(), ratios.max())]
    return laws, max(abs(math.log(end)) for end in ends) / _CELLS


def _spread(cells: list[_Cell], epsilon: float) -> Loss:
    """Move each loss to the ends of its cell, with P and Q kept, and rare ones to that of an open report."""
    (laws, h), masses = _laws(cells, epsilon), np.zeros(2 * _CELLS + 1)
    losses: Array = h * np.arange(-_CELLS, _CELLS + 1.0)
    nodes = np.exp(losses)
    for ratios, each in laws:
        place = np.clip(np.floor(np.log(ratios) / h).astype(np.int64) + _CELLS, 0, 2 * _CELLS - 1)
        share = np.clip((1.0 - nodes[place] / ratios) / -math.expm1(-h), 0.0, 1.0)
        masses[:-1] += np.bincount(place, each * (1.0 - share), 2 * _CELLS)
        masses[1:] += np.bincount(place, each * share, 2 * _CELLS)
    atoms = np.stack([losses, masses], axis=1)[masses > 0.0]
    rare = (2.0 + 2.0 * len(cells)) * _RARE
    return Loss((), np.append(atoms, [[epsilon, rare]], axis=0), 0.0, 0.0, epsilon * _UP)


def _merged(cells: list[_Cell], epsilon: float) -> Loss:
    """Merge the losses of each cell of the lattice, which is post-processing."""
    (laws, h), p, q = _laws(cells, epsilon), np.zeros(2 * _CELLS + 3), np.zeros(2 * _CELLS + 3)
    for ratios, each in laws:
        place = np.floor(np.log(ratios) / h).astype(np.int64) + _CELLS + 1
        p += np.bincount(place, each, p.size)
        q += np.bincount(place, each / ratios, q.size)
    possible = (p > 0.0) & (q > 0.0)
    return Loss(
        (), np.stack([np.log(p[possible] / q[possible]), p[possible]], axis=1), 0.0, 0.0, epsilon * _UP
    )


# The privacy loss of each base mechanism, from its dominating pair.
#
# ``pair`` has the pairs of noise mechanisms and the effect of sampling on them, ``pairs_mixture`` those of
# Gaussians of random sensitivity.  A mechanism without a proven pair is refused by name.

_LARGEST_SHIFT = 1 << 20  # the most outcomes of discrete noise


def loss_of(base: Base, direction: Direction, tail: float) -> Loss:
    """Return the loss of ``base``.  Mechanisms without sampling are already in units of the adjacency."""
    # tail: the P-mass that may be cut off on either side, if outcomes are unbounded.
    match base:
        case KnownCurve(_, loss):
            return loss
        case BallsInBins(_, Gaussian()):
            check_loss(base, direction, tail)
            return _loss_of_bins(base, direction, coarse_tail(tail))
    return _loss_of(base, direction, tail)


def check_loss(base: Base, direction: Direction, tail: float) -> None:
    """Refuse what :func:`loss_of` refuses, without the slow computation for balls in bins."""
    match base:
        case BallsInBins(_, Gaussian(sigma)):
            _check_bins(base, sigma, direction)
        case _:
            loss_of(base, direction, tail)


@lru_cache(maxsize=12)  # megabytes each
def _loss_of_bins(base: BallsInBins, direction: Direction, tail: float) -> Loss:
    assert isinstance(base.event, Gaussian)
    return balls_in_bins(base.bins, base.event.noise_multiplier, remove=direction == "remove", tail=tail)


@lru_cache(maxsize=256)
def _loss_of(base: Base, direction: Direction, tail: float) -> Loss:
    match base:
        case PoissonSampled(rate, inner):
            _check_noise(base, inner)
            return _poisson(base, rate, inner, direction, tail)
        case TruncatedPoissonSampled(rate, records, largest, Gaussian(sigma) as inner):
            _check_noise(base, inner)

            def step(q: float, noise: float) -> Loss:
                return _poisson(base, q, Gaussian(noise), direction, tail)

            return truncated(rate, records, largest, sigma, step, tail)
        case WithoutReplacement(records, batch_size, inner):
            # blanking a record is one way of replacing it, so the pair covers zero-out too
            unit = exchanged(inner, Adjacency.REPLACE_ONE if direction == "replace" else Adjacency.ZERO_OUT)
            pair = None if unit is None else pair_of(unit, tail)
            if pair is not None:
                return sampled_without_replacement(pair, batch_size / records)
        case ShuffledReports(records, epsilon, categories):
            return shuffled_reports(records, epsilon, categories)
        case GaussianMixture(sigma, sensitivities, probabilities):
            return gaussian_mixture(sigma, sensitivities, probabilities, direction, tail)
        case _:
            pair = pair_of(base, tail)
            if pair is not None:
                return unsampled(pair)
    raise UnsupportedEvent(
        f"method 'pld' has no proven bound for {base!r}. Use method 'rdp', or describe the mechanism as "
        "ApproximateDP with its proven epsilon and delta."
    )


def _poisson(base: Base, rate: float, inner: Event, direction: Direction, tail: float) -> Loss:
    match inner:
        case Gaussian(sigma) if direction == "replace":
            return gaussian_replaced(rate, sigma, tail)
        case Laplace(scale) if direction == "replace":
            return laplace_replaced(rate, scale)
        case RandomizedResponse():
            pair = None  # who does not report is visible, so the sample is not secret
        case _:
            pair = pair_of(inner, tail)
    if pair is None or direction == "replace":
        raise UnsupportedEvent(
            f"method 'pld' has no proven bound for {base!r} in direction {direction!r} (adjacency "
            "'replace-one' has direction 'replace'). Account under 'add-remove' or 'zero-out', sample only "
            "Gaussian or Laplace noise, or do not sample."
        )
    return poisson_sampled(pair, rate, direction)


def pair_of(base: Event, tail: float) -> Pair | None:
    """Return the symmetric pair of a mechanism without sampling; None if no pair is known."""
    match base:
        case Gaussian(sigma):
            _check_noise(base, base)
            return gaussian_pair(sigma, tail)
        case Laplace(scale):
            _check_noise(base, base)
            return laplace_pair(scale)
        case DiscreteGaussian(scale, shift) | DiscreteLaplace(scale, shift):
            _check_outcomes(base, scale, shift, tail)
            if isinstance(base, DiscreteGaussian):
                return discrete_gaussian_pair(scale, shift, tail)
            return discrete_laplace_pair(scale, shift)
        case RandomizedResponse(noise, categories):
            return response_pair(noise, categories)
        case ApproximateDP(epsilon, delta):
            return private_pair(epsilon, delta)
        case SparseVector(threshold, queries):  # Lyu, Su & Li 2017 (1603.01699), Theorem 4
            return private_pair((threshold + queries) * (1.0 + 1e-15), 0.0)
        case ExponentialMechanism(epsilon):
            return bounded_range_pair(epsilon)
    return None


def _check_noise(base: Base, inner: Event) -> None:
    if isinstance(inner, Gaussian | Laplace) and inner.noise_multiplier < LEAST_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' supports noise multipliers from {LEAST_NOISE:g} in a mixed or sampled "
            f"composition; got {base!r}, which protects nothing. Use more noise.",
            too_small=True,
        )


def _check_bins(base: Base, sigma: float, direction: Direction) -> None:
    if direction == "replace":
        raise UnsupportedEvent(
            f"method 'pld' has no proven bound for {base!r} under adjacency 'replace-one'. Use Poisson "
            "sampling, or account under 'add-remove' or 'zero-out'."
        )
    if sigma < LEAST_BIN_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' supports balls in bins from noise multiplier {LEAST_BIN_NOISE:g}, because less "
            f"noise has too long a tail; got {base!r}. Use method 'best' or 'rdp', or more noise.",
            too_small=True,
        )


def _check_outcomes(base: Event, scale: float, shift: int, tail: float) -> None:
    reach = scale * math.sqrt(-2.0 * math.log(tail)) if isinstance(base, DiscreteGaussian) else 0.0
    if shift + 2.0 * reach > _LARGEST_SHIFT:
        problem = (
            f"method 'pld' supports at most {_LARGEST_SHIFT} outcomes of discrete noise; {base!r} has more. "
            "Use method 'rdp', or round to a coarser unit."
        )
        if shift > _LARGEST_SHIFT:
            raise UnsupportedEvent(problem)
        raise NoiseOutOfRange(problem, too_small=False)
    if shift / scale > 10.0 / LEAST_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' supports noise from a hundredth of the sensitivity; got {base!r}, which protects "
            "nothing. Use more noise.",
            too_small=True,
        )
