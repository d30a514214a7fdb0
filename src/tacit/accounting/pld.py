"""The tight accountant, by privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import bdtrc

from tacit.accounting.closed_form import GaussianPrice, SinglePrice, is_single
from tacit.accounting.contour import ContourPrice, Plain, Term
from tacit.accounting.convolve import FAINT, saddle_at_delta
from tacit.accounting.flatten import LEAST_NOISE, Base, Steps, flatten, in_units_of, merged, total_mu
from tacit.accounting.grid_price import PldPrice
from tacit.accounting.losses import KnownCurve, check_loss, selected
from tacit.accounting.pair import counted
from tacit.accounting.price import Array, Direction, LeastPrice, Price, directions, last_whole
from tacit.accounting.transform import Mixture
from tacit.events import (
    Adjacency,
    BallsInBins,
    Gaussian,
    GaussianMixture,
    PoissonSampled,
    PrivateSelection,
    TruncatedPoissonSampled,
)

# The price of Poisson batches cut at L records, which is a little above that of uncut ones if cuts are rare.
#
# The pair of one step (:func:`tacit.accounting.pair.truncated`) reveals whether at least L others
# are sampled, which has probability c.  An event with the same probability under both neighbours may also be
# revealed, so each step is known to be one of three cases:
#
# * with probability 1 - c: Poisson's pair;
# * with probability a = c p = L/N P[Bin(N, q) > L]: the pair of the record itself among those kept;
# * with probability c (1 - p): the same distribution on both sides.
#
# The weights are the same under both neighbours, and the hockey-stick divergence is jointly convex.  If the
# second case occurs in none of the T steps, which has probability (1 - a)^T, these cost at most T Poisson
# steps.  Otherwise the divergence is at most 1:
#
#     delta(eps) <= (1 - A) delta_Poisson(eps) + A,    A = 1 - (1 - a)^T.
#
# The pair shows which batches were cut, so its divergence is a sum over these patterns, and one term is
# that of no cut at all: delta(eps) >= (1 - c)^T delta_Poisson(eps).
#
# Both bounds also hold for compositions, with products over their steps instead of powers.  They need only a
# binomial tail, whereas a bound by total variation has a factor 1 + e^eps.
#
# A does not depend on the noise.  So a plan need not price truncated samples: they need the same noise
# as whole samples at a smaller delta (:func:`left_for_poisson`).  If A is above a tenth of delta, the
# accountant's grid has a better bound, which takes seconds.

_MOST = 0.1  # of delta: the share that a plan may spend on cut batches
_ENOUGH = 0.01  # of delta: the share that the truncation may add
_LEAST = 1e-300  # a tail that is too small for a float is below this
_ROUNDED = 1e-14


def uncut(steps: Steps) -> Steps:
    """Replace truncated samples by Poisson ones, except at a rate of 1, which cuts every batch."""

    def whole(base: Base) -> Base:
        match base:
            case TruncatedPoissonSampled(rate, _, _, inner) if rate < 1.0:
                return PoissonSampled(rate, inner)
        return base

    return merged((whole(base), count) for base, count in steps)


@dataclass(frozen=True)
class TruncatedPrice(Price):
    """The cost of ``steps`` with truncated samples, by ``whole`` samples or the ``grid``; both are proven.

    The cost by whole samples is used if the truncation adds at most 1 % to delta.
    """

    steps: Steps
    whole: Price
    grid: Price

    @cached_property
    def overflow(self) -> float:
        """A, the probability that the record is ever in a batch that was cut, rounded up."""
        return overflow_of(self.steps)

    @cached_property
    def cut(self) -> float:
        """The probability 1 - (1 - c)^T that the others ever fill a batch, rounded up."""
        return _ever(self.steps, lambda base: tail_of_batch(base.largest_batch - 1, base, others=True))

    def is_enough(self, delta: float) -> bool:
        return self.overflow <= _ENOUGH * delta

    def _at(self, delta: float) -> tuple[Price, float]:
        """Return the cost to use at ``delta``, and its share of delta, rounded down."""
        return (self.whole, delta_left(delta, self.overflow)) if self.is_enough(delta) else (self.grid, delta)

    def epsilon(self, delta: float) -> float:
        price, left = self._at(delta)
        return price.epsilon(left)

    def near(self, delta: float) -> float:
        price, left = self._at(delta)
        return price.near(left)

    def by_direction(self, delta: float) -> Mapping[str, float]:
        price, left = self._at(delta)
        return price.by_direction(left)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        if not self.is_enough(delta):
            return self.grid.epsilon_bounds(delta)
        more = delta / (1.0 - self.cut) * (1.0 + _ROUNDED) if self.cut < 1.0 else 1.0
        lower = self.whole.epsilon_bounds(more)[0] if more < 1.0 else 0.0
        return lower, self.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        near = self._with_overflow(self.whole.delta(epsilon))
        return near if self.is_enough(near) else self.grid.delta(epsilon)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        lower, upper = self.whole.delta_bounds(epsilon)
        if not self.is_enough(self._with_overflow(upper)):
            return self.grid.delta_bounds(epsilon)
        return lower * (1.0 - self.cut) * (1.0 - _ROUNDED), self._with_overflow(upper)

    def _with_overflow(self, delta: float) -> float:
        return min(1.0, ((1.0 - self.overflow) * min(delta, 1.0) + self.overflow) * (1.0 + _ROUNDED))

    def epsilons(self, deltas: Array) -> Array:
        enough = self.overflow <= _ENOUGH * deltas
        bounds = np.empty(deltas.shape)
        if enough.any():
            left = [delta_left(float(delta), self.overflow) for delta in deltas[enough]]
            bounds[enough] = self.whole.epsilons(np.array(left))
        if not enough.all():
            bounds[~enough] = self.grid.epsilons(deltas[~enough])
        return bounds

    def deltas(self, epsilons: Array) -> Array:
        bounds = np.array([self._with_overflow(float(delta)) for delta in self.whole.deltas(epsilons)])
        rest = self.overflow > _ENOUGH * bounds
        if rest.any():
            bounds[rest] = self.grid.deltas(epsilons[rest])
        return bounds


def overflow_of(steps: Steps) -> float:
    """Return A, the probability that a record is kept in a cut batch in any of ``steps``, rounded up."""
    return _ever(
        steps, lambda base: base.largest_batch / base.records * tail_of_batch(base.largest_batch, base)
    )


def delta_left(delta: float, overflow: float) -> float:
    """Return what whole samples may spend of ``delta`` if A is ``overflow`` < ``delta``, rounded down."""
    return (delta - overflow) / (1.0 - overflow) * (1.0 - _ROUNDED)


def _ever(steps: Steps, once: Callable[[TruncatedPoissonSampled], float]) -> float:
    """Return the probability that an event of probability ``once`` in a step ever occurs, rounded up."""
    logs = [
        count * math.log1p(-min(once(base), 1.0 - _ROUNDED))
        for base, count in steps
        if isinstance(base, TruncatedPoissonSampled)
    ]
    return min(1.0, -math.expm1(sum(logs)) * (1.0 + _ROUNDED))


def tail_of_batch(size: int, base: TruncatedPoissonSampled, *, others: bool = False) -> float:
    """Return P[Binomial(n, q) > ``size``], rounded up; n is the number of records, or of the ``others``."""
    count = base.records - 1 if others else base.records
    if size >= count:
        return 0.0
    return min(1.0, float(bdtrc(size, count, base.sampling_rate)) * (1.0 + counted(count)) + _LEAST)


def chance_of_cut(sampling_rate: float, records: int, largest_batch: int) -> float:
    """Return the probability that a Poisson sample has more than ``largest_batch`` records, rounded up.

    >>> f"{chance_of_cut(0.01, 60_000, 750):.1e}"
    '1.3e-09'
    """
    return tail_of_batch(largest_batch, _step(sampling_rate, records, largest_batch))


def left_for_poisson(
    sampling_rate: float, records: int, largest_batch: int, steps: int, delta: float
) -> float | None:
    """Return the delta at which Poisson's epsilon bounds that of truncated samples at ``delta``.

    The result is in [0.9 delta, delta], rounded down; None if more than a tenth of delta would go to cut
    batches.  The epsilon of T Poisson samples at the result bounds that of T truncated ones at ``delta``, for
    every mechanism.

    >>> round(left_for_poisson(0.01, 60_000, 750, 1000, 1e-5), 8)
    9.98e-06
    >>> left_for_poisson(0.01, 60_000, 650, 1000, 1e-5) is None
    True
    """
    overflow = overflow_of(((_step(sampling_rate, records, largest_batch), steps),))
    return delta_left(delta, overflow) if overflow <= _MOST * delta else None


def smallest_largest_batch(sampling_rate: float, records: int, steps: int, delta: float) -> int:
    """Return the least L, at most ``records``, for which at most a tenth of ``delta`` goes to cut batches.

    >>> smallest_largest_batch(0.01, 60_000, 1000, 1e-5)
    732
    """

    def too_small(largest_batch: int) -> bool:
        return left_for_poisson(sampling_rate, records, largest_batch, steps, delta) is None

    return last_whole(too_small, 0, records) + 1


def _step(sampling_rate: float, records: int, largest_batch: int) -> TruncatedPoissonSampled:
    return TruncatedPoissonSampled(sampling_rate, records, largest_batch, Gaussian(1.0))


# The accountant by privacy loss distributions, which is tight, with proven upper and lower bounds.
#
# It prices a composition by a closed form if there is one (``gaussian``, ``single``), by inversion along a
# contour if it consists of Gaussians, sampled or not (``inversion``), and otherwise, if it has a dominating
# pair, on the grid (``grid_price``).
# Truncated samples are priced like whole ones if a sample is rarely cut (``truncated``).


def _units(steps: Steps, adjacency: Adjacency) -> Steps:
    return tuple(
        (_selected(base, adjacency) if isinstance(base, PrivateSelection) else base, count)
        for base, count in in_units_of(adjacency, steps)
    )


@lru_cache(maxsize=64)
def _selected(event: PrivateSelection, adjacency: Adjacency) -> KnownCurve:
    run = price(flatten(event.event), adjacency)
    # many deltas take one composition on the grid, which is faster than one contour each
    return selected(run.grid if isinstance(run, ContourPrice) else run, event)


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost of any composition of mechanisms with dominating pairs."""
    # * ``epsilon`` and ``delta`` are upper bounds: connect-the-dots on the grid, with allowances for
    #   rounding, aliasing, cut tails and quadrature.
    # * The lower ends of ``epsilon_bounds`` and ``delta_bounds`` are lower bounds for the dominating pair.
    # * Under add-remove and zero-out both directions are composed, and the larger price counts.
    # * The best of several runs is priced from the curve of one run: an upper bound, not a dominating pair.
    # * Mechanisms without a proven dominating pair are refused by name.
    #
    # Gaussians without sampling, and Gaussian or Laplace noise performed once, have closed forms.
    units = _units(steps, adjacency)
    result = _priced(units, adjacency)
    if any(isinstance(base, BallsInBins) for base, _ in units):
        # if the bins were known, these were plain Gaussians, which can only cost more
        known = merged(
            (base.event if isinstance(base, BallsInBins) else base, count) for base, count in steps
        )
        return LeastPrice({"pld": result, "without bins": price(known, adjacency)})
    return result


def _priced(units: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost of ``units`` (steps in units of the adjacency), without the bound for known bins."""
    mu = total_mu(units)
    rest: Steps = tuple((base, count) for base, count in units if not isinstance(base, Gaussian))
    if not rest:
        return GaussianPrice(mu)
    once = mu == 0.0 and sum(count for _, count in rest) == 1  # the slowest case of the contour integral
    if once and is_single(rest[0][0], adjacency):
        return SinglePrice(rest[0][0], adjacency)
    whole: Steps = ((Gaussian(1.0 / mu), 1), *rest) if mu > 0.0 else rest
    grid = PldPrice(whole, directions(adjacency))
    ways = {way: contour_terms(whole, way) for way in directions(adjacency)}
    if not once and all(terms is not None for terms in ways.values()):
        counts = ((mu * mu,) if mu > 0.0 else ()) + tuple(float(count) for _, count in rest)
        return ContourPrice({way: terms for way, terms in ways.items() if terms}, counts, grid)
    for way in ways:
        for base, _ in whole:
            check_loss(base, way, FAINT)
    poisson = uncut(whole)
    return grid if poisson == whole else TruncatedPrice(whole, _priced(poisson, adjacency), grid)


def contour_terms(steps: Steps, way: Direction) -> tuple[Term, ...] | None:
    """Return ``steps`` as terms for the inversion along a contour; None if one of them is not supported."""
    terms: list[Term] = []
    for base, _ in steps:
        match base:
            case Gaussian(sigma) if sigma >= LEAST_NOISE:
                terms.append(Plain())
            case PoissonSampled(rate, Gaussian(sigma)) if sigma >= LEAST_NOISE:
                terms.append(Mixture.poisson(rate, sigma, way))
            case GaussianMixture() if (mixture := Mixture.of(base, way)) is not None:
                terms.append(mixture)
            case _:
                return None
    return tuple(terms)


def estimate(steps: Steps, adjacency: Adjacency, delta: float) -> float:
    """Estimate epsilon by the saddle point alone, within a few percent, in a millisecond.  Not a bound."""
    units = _units(steps, adjacency)

    def one(way: Direction) -> float:
        infinite = PldPrice(units, (way,)).infinite(way)
        return saddle_at_delta(units, way, delta - infinite).epsilon if infinite < delta else math.inf

    return max(0.0, *(one(way) for way in directions(adjacency))) if units else 0.0
