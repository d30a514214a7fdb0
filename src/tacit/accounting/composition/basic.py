"""Basic composition: epsilons and deltas add up (Dwork & Lei 2009; Dwork & Roth 2014, Theorem 3.16).

Every mechanism gets the same share of delta, and its own smallest epsilon for that share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit.accounting.composition.per_mechanism import mechanism_epsilon, shared_out
from tacit.accounting.flatten import Steps, in_units_of
from tacit.accounting.price import Price
from tacit.accounting.roots import brent
from tacit.events import Adjacency

_UP = 1.0 + 1e-12
_LEAST_DELTA = 1e-300


@dataclass(frozen=True)
class BasicPrice(Price):
    """The sum of the single epsilons, delta shared evenly."""

    steps: Steps
    adjacency: Adjacency

    def epsilon(self, delta: float) -> float:
        shared = shared_out(self.steps, delta, 1.0)
        if shared is None:
            return math.inf
        parts = zip(self.steps, shared[0], strict=True)
        return (
            sum(count * mechanism_epsilon(base, each, self.adjacency) for (base, count), each in parts) * _UP
        )

    def delta(self, epsilon: float) -> float:
        return invert(self.epsilon, epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, self.epsilon(delta)


def invert(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """A delta with ``epsilon_at(delta) <= epsilon``, near the least one; 1.0 if there is none."""

    def excess(log_delta: float) -> float:
        return epsilon_at(math.exp(log_delta)) - epsilon

    low, high = math.log(_LEAST_DELTA), math.log1p(-1e-15)
    if excess(low) <= 0.0:
        return _LEAST_DELTA
    if excess(high) > 0.0:
        return 1.0
    root = brent(excess, low, high, xtol=1e-9)
    step = 1e-9
    while excess(root) > 0.0:  # rounding may have left it on the wrong side
        root, step = min(root + step, high), 2.0 * step
    return math.exp(root)


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by adding up what each mechanism costs by itself.

    Guarantee
    ---------
    * ``epsilon`` and ``delta`` are upper bounds; for one mechanism performed once epsilon is exact.
    * A mechanism of which no (epsilon, delta) is known is refused by name.
    """
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        mechanism_epsilon(base, 0.5, adjacency)  # refuses what has no (epsilon, delta)
    return BasicPrice(units, adjacency)
