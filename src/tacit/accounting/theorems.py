"""Basic, advanced and optimal composition, from the (epsilon, delta) of each mechanism."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import bdtrc, gammaln

from tacit.accounting import pld
from tacit.accounting.closed_form import (
    SinglePrice,
    amplified,
    exchanged,
    is_amplified,
    pure_epsilon,
    single_delta,
)
from tacit.accounting.flatten import Base, Steps, in_units_of
from tacit.accounting.losses import log_binomial
from tacit.accounting.price import Array, Price, crossing, last_whole, least_epsilon, log_growth
from tacit.accounting.renyi import rdp_price, rho, zcdp_curve
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    DiscreteGaussian,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    ShuffledReports,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

# The epsilon of one mechanism at a given delta, for basic, advanced and optimal composition.

# rounds an upper bound up, by more than the errors of a few operations in floating point
_UP = 1.0 + 1e-12
_LEAST_DELTA = 1e-300
_ENDLESS = 1e6  # epsilon
_MOST_DRAWS = 64  # of one record: if it is drawn more often, its privacy counts as lost


@lru_cache(maxsize=4096)
def mechanism_epsilon(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Return an epsilon of ``base`` at ``delta`` in (0, 1), in units of ``adjacency``; it may be infinite."""
    match base:
        case ApproximateDP(epsilon, spent):
            return _relaxed(epsilon, spent, delta)
        case DiscreteGaussian() | ZeroConcentratedDP():
            return zcdp_curve(rho(base, adjacency)).epsilon(delta)
        case Gaussian() | Laplace() | GaussianMixture() | PoissonSampled(_, Gaussian()):
            return SinglePrice(base, adjacency).epsilon(delta)
        case PoissonSampled(rate, inner) if is_amplified(inner, adjacency):
            return _sampled(rate, inner, delta, adjacency)
        case WithoutReplacement(records, batch, inner) if (unit := exchanged(inner, adjacency)) is not None:
            return _sampled(batch / records, unit, delta, Adjacency.REPLACE_ONE)
        case WithReplacement(records, batch, inner):
            unit = exchanged(inner, adjacency)
            if isinstance(unit, Gaussian | Laplace):
                return _with_replacement(records, batch, unit, delta)
        case GroupPrivacy(inner, size) if pure_epsilon(base, adjacency) is None:
            return _of_group(lambda share: mechanism_epsilon(inner, share, adjacency), size, delta)
        case PrivateSelection():
            return _of_selection(base, delta, adjacency)
        case TruncatedPoissonSampled() | PoissonSampled(_, Laplace()) | ShuffledReports():
            return _by_grid(base, delta, adjacency)
    pure = pure_epsilon(base, adjacency)
    if pure is not None:
        return _relaxed(pure, 0.0, delta)
    raise UnsupportedEvent(
        f"composition theorems need an (epsilon, delta) of each mechanism, and none is known for {base!r} "
        f"under adjacency {adjacency.value!r}. Use method 'pld' or 'rdp', or describe it as ApproximateDP "
        "with its proven epsilon and delta."
    )


def _by_grid(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Compute epsilon by the privacy loss distribution.  Rounding ``delta`` down makes the cache useful."""
    return _by_grid_at(base, math.floor(2.0 * math.log2(delta)), adjacency)


@lru_cache(maxsize=1024)
def _by_grid_at(base: Base, halves: int, adjacency: Adjacency) -> float:
    return pld.price(((base, 1),), adjacency).epsilon(2.0 ** (halves / 2.0))


def _of_selection(base: Base, delta: float, adjacency: Adjacency) -> float:
    """Return the lesser of two bounds, by one run's curve and by its Renyi divergences."""
    by_renyi = math.inf
    with suppress(UnsupportedEvent):
        by_renyi = rdp_price(((base, 1),), adjacency).epsilon(delta)
    try:
        return min(by_renyi, _by_grid(base, delta, adjacency))
    except UnsupportedEvent:
        if by_renyi == math.inf:
            raise
        return by_renyi


def least_delta(base: Base) -> float:
    """Return the delta below which no epsilon of ``base`` is known: 0 except for (epsilon, delta) claims."""
    match base:
        case ApproximateDP(_, delta):
            return delta
        case PoissonSampled(rate, inner):
            return rate * least_delta(inner) * _UP
        case WithoutReplacement(records, batch, inner):
            return batch / records * least_delta(inner) * _UP
    return 0.0


def delta_shares(steps: Steps, delta: float, share: float) -> tuple[list[float], float] | None:
    """Split ``delta`` into a share for each mechanism in ``steps`` and a rest; None if it is too small."""
    # Each mechanism gets its least delta, and an equal part of ``share`` times the remaining delta.
    spent = sum(count * least_delta(base) for base, count in steps) * _UP
    if spent >= delta:
        return None
    even = share * (delta - spent) / sum(count for _, count in steps) / _UP
    return [least_delta(base) * _UP + even for base, _ in steps], (1.0 - share) * (delta - spent) / _UP


def least_value(value: Callable[[float], float], low: float, high: float) -> float:
    """Find the least value on a coarse grid in [low, high], refined near the best grid point."""
    # Every point gives a valid bound, so the result need not be the true minimum.
    points = np.linspace(low, high, 13)
    values = [value(float(point)) for point in points]
    best = int(np.argmin(values))
    if not math.isfinite(values[best]):
        return values[best]
    span = (float(points[max(best - 1, 0)]), float(points[min(best + 1, points.size - 1)]))
    from scipy.optimize import minimize_scalar  # imported here, as it is slow to import and seldom needed

    refined = minimize_scalar(value, bounds=span, method="bounded", options={"xatol": 1e-4})
    return min(values[best], float(refined.fun))


def _relaxed(epsilon: float, spent: float, delta: float) -> float:
    """Return eps' at ``delta`` of the worst (epsilon, spent)-DP mechanism."""
    # It solves (e^eps - e^eps') / (1 + e^eps) = (delta - spent) / (1 - spent) for the worst-case coin of
    # Kairouz, Oh & Viswanath 2015.
    if delta < spent:
        return math.inf
    share = (delta - spent) / (1.0 - spent) * (1.0 + math.exp(-epsilon))
    return max(0.0, (epsilon + math.log1p(-share)) * _UP + 1e-15) if share < 1.0 else 0.0


def _sampled(rate: float, unit: Base, delta: float, adjacency: Adjacency) -> float:
    """Account for Poisson samples, and samples without replacement (Balle et al. 2018, Theorems 8 and 9)."""
    if delta >= rate:
        return 0.0
    return amplified(mechanism_epsilon(unit, delta / rate / _UP, adjacency), rate)


def _with_replacement(records: int, batch: int, unit: Gaussian | Laplace, delta: float) -> float:
    """Account for samples with replacement by Balle, Barthe & Gaboardi 2018, Theorem 10."""
    # delta is the mean of delta_k(eps) over the number k of times that the record is drawn, where delta_k is
    # delta at k times the sensitivity.  eps is amplified by P(k > 0).
    log_miss = math.log1p(-1.0 / records) if records > 1 else -math.inf
    chance = -math.expm1(batch * log_miss)
    draws = np.arange(1.0, min(batch, _MOST_DRAWS) + 1.0)
    weights = np.exp(log_binomial(batch, draws, 1.0 / records)) * (1.0 + 1e-9)
    more = float(bdtrc(_MOST_DRAWS, batch, 1.0 / records)) * (1.0 + 1e-9) if batch > _MOST_DRAWS else 0.0
    noises = [type(unit)(unit.noise_multiplier / k) for k in draws]

    def delta_at(epsilon: float) -> float:
        deltas = [single_delta(noise, epsilon) for noise in noises]
        return more + float(np.dot(weights, deltas))

    epsilon = least_epsilon(delta_at, delta, 1.0, most=_ENDLESS)
    return amplified(epsilon, min(1.0, chance * _UP)) if epsilon > 0.0 else 0.0


def _of_group(epsilon_at: Callable[[float], float], size: int, delta: float) -> float:
    """Return k eps, where eps = ``epsilon_at(delta_1)`` and delta_1 (e^{k eps} - 1) / (e^eps - 1) = delta."""
    # See Vadhan 2017, "The Complexity of Differential Privacy", Lemma 2.2.

    def excess(log_share: float) -> float:
        epsilon = epsilon_at(math.exp(log_share))
        if math.isinf(epsilon):
            return math.inf
        return log_share + log_growth(size, epsilon) - math.log(delta / _UP)

    low, high = math.log(_LEAST_DELTA), math.log(delta / size / _UP)
    if excess(low) > 0.0:
        return math.inf
    share = high
    if excess(high) > 0.0:
        share = crossing(lambda at: -excess(at), low, high, side=-1.0, xtol=1e-9, rtol=2.0**-50)
    return size * epsilon_at(math.exp(share)) * _UP


# Three composition theorems, which use only the (epsilon, delta) of each mechanism.
#
# Basic composition: epsilons and deltas add up (Dwork & Lei 2009; Dwork & Roth 2014, Theorem 3.16).
#
# Every mechanism gets the same share of delta, and its smallest epsilon at that share.
#
# Advanced ("strong") composition (Dwork, Rothblum & Vadhan, "Boosting and Differential Privacy", FOCS 2010,
# Theorem III.3; Dwork & Roth 2014, Theorem 3.20).
#
# T mechanisms, each (eps_t, delta_t)-DP, are together (eps, sum_t delta_t + delta')-DP with
#
#     eps = sqrt(2 ln(1/delta') sum_t eps_t^2) + sum_t eps_t (e^{eps_t} - 1):
#
# as each loss is at most eps_t in absolute value with mean at most eps_t (e^{eps_t} - 1), and Azuma's
# inequality bounds the tail.  Poisson sampling turns (eps_0, delta_0) into
# (log(1 + q (e^{eps_0} - 1)), q delta_0), not into (q eps_0, ..); the curves of the 2016 paper and talk are
# in :mod:`tacit.experiments.published_composition`.
#
# Optimal composition of (epsilon, delta) guarantees (Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 3.3).
#
# If each of T mechanisms is (eps_t, delta_t)-DP and nothing else is known, the worst case of their
# composition is T independent coins.  With probability delta_t coin t reveals the record.  Otherwise its
# privacy loss is +eps_t with probability e^{eps_t} / (1 + e^{eps_t}), else -eps_t.  They compose to (eps,
# delta)-DP if and only if
#
#     delta >= 1 - prod_t (1 - delta_t) (1 - d(eps)),   d(eps) = E (1 - e^{eps - sum_t L_t})_+ .
#
# For equal eps_t the sum is binomial, and this is the formula of the theorem.  For unequal eps_t exact
# computation is #P-complete (Murtagh & Vadhan 2016, 1507.03113).  This file is exact as long as the sum takes
# at most two million values.  Otherwise it rounds losses up to a grid, which only increases d.

_Parts: TypeAlias = list[tuple[float, float, int]]  # (eps_t, delta_t, count)

_UP = 1.0 + 1e-12
_UNIT = 2.0**-53
_LEAST_DELTA = 1e-300
_FAINT = 350.0  # minus the log of the probability mass that is cut off
_MOST_VALUES = 2**21
_GRID = 2**14


def invert(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Find a delta near the least one with ``epsilon_at(delta) <= epsilon``; 1.0 if there is none."""

    def excess(log_delta: float) -> float:
        return epsilon_at(math.exp(log_delta)) - epsilon

    low, high = math.log(_LEAST_DELTA), math.log1p(-1e-15)
    if excess(low) <= 0.0:
        return _LEAST_DELTA
    if excess(high) > 0.0:
        return 1.0
    return math.exp(crossing(excess, low, high, xtol=1e-9, rtol=2.0**-50))


def advanced_composition(parts: list[tuple[float, int]], delta_prime: float) -> float:
    # ``parts`` holds pairs (eps_t, count).  The sum of the eps_t is also a bound, and is returned if it is
    # smaller.
    total = sum(epsilon * count for epsilon, count in parts)
    if not parts or max(epsilon for epsilon, _ in parts) > 700.0:
        return total
    squares = sum(epsilon * epsilon * count for epsilon, count in parts)
    drift = sum(epsilon * math.expm1(epsilon) * count for epsilon, count in parts)
    return min(total, math.sqrt(2.0 * math.log(1.0 / delta_prime) * squares) + drift) * _UP


@dataclass(frozen=True)
class Coins:
    """A distribution of L: increasing ``losses``, their ``masses`` (rounded up), and P(L = infinity)."""

    losses: Array
    masses: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Compute E (1 - e^{eps - L})_+, rounded up."""
        above = int(np.searchsorted(self.losses, epsilon, side="right"))
        gained = -np.expm1(epsilon - self.losses[above:])
        return self.infinite + float(np.dot(self.masses[above:], gained)) * _UP

    def epsilon(self, delta: float) -> float:
        """Find the least epsilon >= 0 with ``delta(epsilon) <= delta``; infinite if there is none."""
        # Between two losses delta(eps) is A - e^eps B, so the equation has a closed-form solution.
        if delta <= self.infinite:
            return math.inf
        last = self.losses.size - 1  # ``infinite`` < delta there
        high = 1 + last_whole(lambda at: self.delta(float(self.losses[at])) > delta, -1, last)
        top = float(self.losses[high])
        masses = self.masses[high:] * _UP
        rest = float(np.dot(masses, np.exp(top - self.losses[high:])))
        left = float(masses.sum()) + self.infinite - delta
        return max(0.0, top + math.log(left / rest) + 1e-13 * (1.0 + abs(top))) if left > 0.0 else 0.0


def _binomial(epsilon: float, count: int) -> Coins:
    """Return the distribution of a sum of ``count`` losses +-epsilon; the right tail moves to infinity."""
    reach = math.sqrt(0.5 * _FAINT * count) + 1.0  # Hoeffding: outside, less than e^{-350}
    mean = count / (1.0 + math.exp(epsilon)) if epsilon < 700.0 else 0.0
    heads = np.arange(max(0.0, math.floor(mean - reach)), min(count, math.ceil(mean + reach)) + 1.0)
    logs = log_binomial(count, heads, math.exp(-epsilon) / (1.0 + math.exp(-epsilon)))
    rounding = 16.0 * _UNIT * (float(gammaln(count + 1.0)) + count * min(epsilon, 1.0) + 10.0)
    masses = np.exp(logs + rounding)[::-1]
    losses = ((count - 2.0 * heads) * epsilon)[::-1]
    return Coins(losses, masses, math.exp(-_FAINT) if heads[0] > 0.0 else 0.0)


def _sum(first: Coins, second: Coins) -> Coins:
    infinite = first.infinite + second.infinite
    if first.losses.size * second.losses.size > _MOST_VALUES:  # round both up to multiples of one width
        spans = [float(coins.losses[-1] - coins.losses[0]) for coins in (first, second)]
        width = sum(spans) / _GRID
        start, on_grid = 0, list[Array]()
        for coins in (first, second):
            cells = np.ceil(coins.losses / width * (1.0 - 4.0 * _UNIT)).astype(np.int64)
            cells = np.where(cells * width < coins.losses, cells + 1, cells)
            start += int(cells[0])
            on_grid.append(np.bincount(cells - cells[0], weights=coins.masses).astype(np.float64))
        summed: Array = np.convolve(on_grid[0], on_grid[1])
        return Coins(width * (start + np.arange(float(summed.size))), summed * _UP, infinite)
    losses = np.add.outer(first.losses, second.losses).ravel()
    order = np.argsort(losses, kind="stable")
    masses = np.multiply.outer(first.masses, second.masses).ravel()
    return Coins(losses[order], masses[order], infinite)


def _compose(parts: list[tuple[float, int]]) -> Coins:
    counts: dict[float, int] = {}
    for epsilon, count in parts:
        counts[epsilon] = counts.get(epsilon, 0) + count
    coins = [_binomial(epsilon, count) for epsilon, count in counts.items() if epsilon > 0.0]
    coins.sort(key=lambda each: each.losses.size)
    total = Coins(np.zeros(1), np.ones(1), 0.0)
    for each in coins:
        total = _sum(total, each)
    return total


def optimal_composition(parts: list[tuple[float, float, int]], delta: float) -> float:
    """Compute the least epsilon of a composition, from each mechanism's (eps_t, delta_t) alone."""
    # parts: triples (eps_t, delta_t, count), eps_t >= 0 in nats.
    # delta: of the composition, in (0, 1).  If the delta_t alone exceed it, the result is infinite.
    if any(own >= 1.0 for _, own, _ in parts):
        return math.inf
    # left is d with 1 - prod (1 - delta_t) (1 - d) = delta, rounded down
    log_kept = sum(count * math.log1p(-own) for _, own, count in parts)
    left = -math.expm1(math.log1p(-delta) - log_kept * _UP) * (1.0 - 1e-12)
    if left <= 0.0:
        return math.inf
    if any(math.isinf(epsilon) for epsilon, _, _ in parts):
        return math.inf
    total = sum(epsilon * count for epsilon, _, count in parts) * _UP
    return min(total, _compose([(epsilon, count) for epsilon, _, count in parts]).epsilon(left))


@dataclass(frozen=True)
class TheoremPrice(Price):
    """The costs of the mechanisms in ``steps``, in units of the adjacency, composed by a theorem.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.  Sampling amplifies by its own theorem.
    """

    steps: Steps
    adjacency: Adjacency

    def _parts(self, each: list[float]) -> _Parts:
        return [
            (mechanism_epsilon(base, own, self.adjacency), own, count)
            for (base, count), own in zip(self.steps, each, strict=True)
        ]


class BasicPrice(TheoremPrice):
    """The sum of the epsilons, with delta shared evenly; exact for one mechanism performed once."""

    def epsilon(self, delta: float) -> float:
        shared = delta_shares(self.steps, delta, 1.0)
        if shared is None:
            return math.inf
        return sum(count * epsilon for epsilon, _, count in self._parts(shared[0])) * _UP

    def delta(self, epsilon: float) -> float:
        return invert(self.epsilon, epsilon)


class SplitPrice(TheoremPrice):
    """A cost by a theorem that spends part of delta; the mechanisms share the rest evenly."""

    @abstractmethod
    def _composed(self, parts: _Parts, delta: float, rest: float) -> float:
        """Compute epsilon at ``delta``; the deltas of ``parts`` leave ``rest`` of it."""

    @abstractmethod
    def _spent(self, parts: _Parts, epsilon: float) -> float:
        """Compute delta at ``epsilon``; all parts have finite epsilons and deltas below 1."""

    def epsilon(self, delta: float) -> float:
        def at(log_odds: float) -> float:
            shared = delta_shares(self.steps, delta, 1.0 / (1.0 + math.exp(-log_odds)))
            return math.inf if shared is None else self._composed(self._parts(shared[0]), delta, shared[1])

        return least_value(at, -12.0, 12.0)

    def delta(self, epsilon: float) -> float:
        def at(log_even: float) -> float:
            """Compute log delta of the whole if each mechanism gets its least delta plus e^{log_even}."""
            each = [min(1.0, least_delta(base) * _UP + math.exp(log_even)) for base, _ in self.steps]
            parts = self._parts(each)
            if max(each) >= 1.0 or any(math.isinf(part) for part, _, _ in parts):
                return 0.0
            return math.log(min(1.0, max(self._spent(parts, epsilon), _LEAST_DELTA)))

        most = math.log(0.5 / sum(count for _, count in self.steps))
        return min(1.0, math.exp(least_value(at, -100.0, most)) * (1.0 + 1e-11))


class StrongPrice(SplitPrice):
    def _composed(self, parts: _Parts, delta: float, rest: float) -> float:
        return advanced_composition([(epsilon, count) for epsilon, _, count in parts], rest)

    def _spent(self, parts: _Parts, epsilon: float) -> float:
        # the theorem, solved for the least delta', rounded up
        if sum(each * count for each, _, count in parts) * _UP <= epsilon:
            rest = 0.0
        elif max(each for each, _, _ in parts) > 700.0:
            rest = 1.0
        else:
            squares = sum(each * each * count for each, _, count in parts)
            left = epsilon / _UP - sum(each * math.expm1(each) * count for each, _, count in parts) * _UP
            rest = math.exp(-left * left / (2.0 * squares)) * (1.0 + 1e-9) if left > 0.0 else 1.0
        return sum(own * count for _, own, count in parts) * _UP + rest

    def delta(self, epsilon: float) -> float:
        return min(BasicPrice(self.steps, self.adjacency).delta(epsilon), super().delta(epsilon))


class OptimalPrice(SplitPrice):
    """Optimal composition.  For a given split of delta, the (eps_t, delta_t) alone imply no smaller bound."""

    def _composed(self, parts: _Parts, delta: float, rest: float) -> float:
        return optimal_composition(parts, delta)

    def _spent(self, parts: _Parts, epsilon: float) -> float:
        composed = _compose([(part, count) for part, _, count in parts]).delta(epsilon)
        if composed >= 1.0:
            return 1.0
        return -math.expm1(math.log1p(-composed) + sum(count * math.log1p(-own) for _, own, count in parts))


def theorem_price(theorem: type[TheoremPrice], steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost by a theorem.  Refuse, by name, a mechanism without a known (epsilon, delta)."""
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        mechanism_epsilon(base, 0.5, adjacency)  # raises for mechanisms without (epsilon, delta)
    return theorem(units, adjacency)
