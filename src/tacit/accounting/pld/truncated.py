"""The price of Poisson batches cut at L records, which is a little above that of uncut ones if cuts are rare.

The pair of one step (:func:`tacit.accounting.pld.pairs_mixture.truncated`) reveals whether at least L others
are sampled, which has probability c.  An event with the same probability under both neighbours may also be
revealed, so each step is known to be one of three cases:

* with probability 1 - c: Poisson's pair;
* with probability a = c p = L/N P[Bin(N, q) > L]: the pair of the record itself among those kept;
* with probability c (1 - p): the same distribution on both sides.

The weights are the same under both neighbours, and the hockey-stick divergence is jointly convex.  If the
second case occurs in none of the T steps, which has probability (1 - a)^T, these cost at most T Poisson
steps.  Otherwise the divergence is at most 1:

    delta(eps) <= (1 - A) delta_Poisson(eps) + A,    A = 1 - (1 - a)^T.

The pair shows which batches were cut, so its divergence is a sum over these patterns, and one term is that of
no cut at all: delta(eps) >= (1 - c)^T delta_Poisson(eps).

Both bounds also hold for compositions, with products over their steps instead of powers.  They need only a
binomial tail, whereas a bound by total variation has a factor 1 + e^eps.

A does not depend on the noise.  So a plan need not price truncated samples: they need the same noise
as whole samples at a smaller delta (:func:`left_for_poisson`).  If A is above a tenth of delta, the
accountant's grid has a better bound, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import bdtrc

from tacit.accounting.flatten import Base, Steps, merged
from tacit.accounting.pld.pairs_mixture import counted
from tacit.accounting.price import Array, Price
from tacit.accounting.roots import last_whole
from tacit.events import Gaussian, PoissonSampled, TruncatedPoissonSampled

_MOST = 0.1  # of delta: the share that a plan may spend on cut batches
_ENOUGH = 0.01  # of delta: the share that the truncation may add
_LEAST = 1e-300  # a tail that is too small for a float is below this
_ROUNDED = 1e-14


def uncut(steps: Steps) -> Steps:
    """Replace truncated samples in ``steps`` by Poisson ones, except at a rate of 1, which cuts every batch.

    >>> from tacit.events import Gaussian
    >>> uncut(((TruncatedPoissonSampled(0.1, 100, 30, Gaussian(1.0)), 5),))
    ((PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0)), 5),)
    """

    def whole(base: Base) -> Base:
        match base:
            case TruncatedPoissonSampled(rate, _, _, inner) if rate < 1.0:
                return PoissonSampled(rate, inner)
        return base

    return merged((whole(base), count) for base, count in steps)


@dataclass(frozen=True)
class TruncatedPrice(Price):
    """The price of ``steps`` with truncated samples, by the ``whole`` ones or the ``grid``: both are proven.

    The price of the whole ones is used if the truncation adds at most 1 % to delta.
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
        """Return whether the price of the whole samples is used at ``delta``."""
        return self.overflow <= _ENOUGH * delta

    def _at(self, delta: float) -> tuple[Price, float]:
        """Return the price that is used at ``delta``, and the delta that it may spend, rounded down."""
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

    Args:
        sampling_rate: q in (0, 1).
        records: N; at most ``largest_batch`` of the records are kept in a step.
        steps: T, all of them truncated.
        delta: of the truncated samples, in (0, 1).

    Returns:
        A number in [0.9 delta, delta], rounded down; None if more than a tenth of delta would go to cut
        batches.

    **Guarantee**

    * The epsilon of T Poisson samples at the result is an upper bound on that of T truncated ones at
      ``delta``, for every mechanism.

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
