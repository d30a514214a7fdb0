"""Advanced ("strong") composition (Dwork, Rothblum & Vadhan, "Boosting and Differential Privacy", FOCS 2010,
Theorem III.3; Dwork & Roth 2014, Theorem 3.20).

T mechanisms, each (eps_t, delta_t)-DP, are together (eps, sum_t delta_t + delta')-DP with

    eps = sqrt(2 ln(1/delta') sum_t eps_t^2) + sum_t eps_t (e^{eps_t} - 1):

each loss is at most eps_t in size and eps_t (e^{eps_t} - 1) in mean, and Azuma's inequality does the rest.
Poisson sampling turns (eps_0, delta_0) into (log(1 + q (e^{eps_0} - 1)), q delta_0), not into (q eps_0, ..);
what the 2016 paper and talk drew instead is in :mod:`tacit.experiments.published_composition`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.accounting.composition.basic import BasicPrice
from tacit.accounting.composition.per_mechanism import (
    least_delta,
    least_value,
    mechanism_epsilon,
    shared_out,
)
from tacit.accounting.flatten import Steps, in_units_of
from tacit.accounting.price import Price
from tacit.events import Adjacency

_UP = 1.0 + 1e-12


def advanced_composition(parts: list[tuple[float, int]], delta_prime: float) -> float:
    """epsilon of mechanisms that are eps_t-DP; ``parts`` are pairs (eps_t, count).

    The plain sum of the eps_t holds too, and is returned where it is smaller.

    >>> round(advanced_composition([(0.1, 100)], 1e-5), 4)
    5.8502
    """
    total = sum(epsilon * count for epsilon, count in parts)
    if not parts or max(epsilon for epsilon, _ in parts) > 700.0:
        return total
    squares = sum(epsilon * epsilon * count for epsilon, count in parts)
    drift = sum(epsilon * math.expm1(epsilon) * count for epsilon, count in parts)
    return min(total, math.sqrt(2.0 * math.log(1.0 / delta_prime) * squares) + drift) * _UP


def _delta_prime(parts: list[tuple[float, int]], epsilon: float) -> float:
    """The least delta' with which ``parts`` compose to ``epsilon``: the theorem, solved; rounded up."""
    total = sum(each * count for each, count in parts)
    if total * _UP <= epsilon:
        return 0.0
    if max(each for each, _ in parts) > 700.0:
        return 1.0
    squares = sum(each * each * count for each, count in parts)
    left = epsilon / _UP - sum(each * math.expm1(each) * count for each, count in parts) * _UP
    return math.exp(-left * left / (2.0 * squares)) * (1.0 + 1e-9) if left > 0.0 else 1.0


@dataclass(frozen=True)
class StrongPrice(Price):
    """Half of the work is the split of delta between the mechanisms and the composition."""

    steps: Steps
    adjacency: Adjacency

    def _parts(self, each: list[float]) -> list[tuple[float, int]]:
        return [
            (mechanism_epsilon(base, own, self.adjacency), count)
            for (base, count), own in zip(self.steps, each, strict=True)
        ]

    def epsilon(self, delta: float) -> float:
        def at(log_odds: float) -> float:
            """epsilon with a share of delta left to the mechanisms, evenly, and the rest to delta'."""
            shared = shared_out(self.steps, delta, 1.0 / (1.0 + math.exp(-log_odds)))
            return math.inf if shared is None else advanced_composition(self._parts(shared[0]), shared[1])

        return least_value(at, -12.0, 12.0)

    def delta(self, epsilon: float) -> float:
        def at(log_even: float) -> float:
            """log delta of the whole, where each mechanism gets e^{log_even} above its least delta."""
            each = [min(1.0, least_delta(base) * _UP + math.exp(log_even)) for base, _ in self.steps]
            spent = sum(own * count for own, (_, count) in zip(each, self.steps, strict=True)) * _UP
            rest = _delta_prime(self._parts(each), epsilon) if max(each) < 1.0 else 1.0
            return math.log(min(1.0, spent + rest))

        most = math.log(0.5 / sum(count for _, count in self.steps))
        plain = BasicPrice(self.steps, self.adjacency).delta(epsilon)  # the plain sum holds, too
        return min(plain, math.exp(least_value(at, -100.0, most)) * _UP)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, self.epsilon(delta)


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by advanced composition of what each mechanism costs by itself, with the best split of delta.

    Guarantee
    ---------
    * ``epsilon`` and ``delta`` are upper bounds; sampling enters by its theorem.
    * A mechanism of which no (epsilon, delta) is known is refused by name.
    """
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        mechanism_epsilon(base, 0.5, adjacency)  # refuses what has no (epsilon, delta)
    return StrongPrice(units, adjacency)
