"""Budgets that count Renyi divergences: zCDP, for all orders at once, or a grid of orders.

``docs/ledger.md`` proves that a total below its cap bounds all releases ever made, even if the questions were
chosen adaptively.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np

from tacit.accounting.additive import renyi_cost, zcdp_cost
from tacit.accounting.price import Array, decimal, halved, last_whole
from tacit.accounting.renyi.divergences import epsilon_at_orders
from tacit.accounting.renyi.rdp import zcdp_curve
from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, Event
from tacit.ledger.budgets import (
    DELTA_UNIT,
    ENDLESS,
    UNIT,
    Budget,
    Cost,
    above,
    balance_delta,
    check_limit,
    check_share,
    conversion_delta,
    least_cost,
    units_down,
    units_up,
)


@final
@dataclass(frozen=True)
class ZeroConcentratedBudget(Budget):
    """A zCDP budget, in which the rho of all releases adds up (Bun & Steinke 2016, 1605.02065).

    It suits Gaussian noise without sampling. The sum also holds if questions are chosen adaptively under a
    fixed budget (Feldman & Zrnic 2021, 2008.11193). ``threshold_delta`` is the part of ``delta`` for releases
    whose guarantee fails with a small probability, such as groups found by a threshold. Such a release must
    be a single step, as every query is: there is no theorem for interactive mechanisms that overlap in time.

    >>> budget = ZeroConcentratedBudget(1.0, 1e-6)
    >>> round(budget.cap[0] / UNIT, 4)  # rho + 2 sqrt(rho log(1/delta)) = 1 would give 0.0175
    0.0244
    """

    mode: ClassVar[str] = "zcdp"
    epsilon: float
    delta: float
    threshold_delta: float = 0.0

    def __post_init__(self) -> None:
        check_limit(self, self.epsilon, self.delta)
        check_share(self, "threshold_delta", self.threshold_delta, self.delta)
        if self.cap[0] == 0:
            raise InvalidInput(
                f"epsilon {self.epsilon!r} at delta {self.delta!r} is too small for zCDP: its rho is below "
                "1e-12, the unit of counting, so nothing would ever fit. Use a larger epsilon, or a pure "
                "budget."
            )

    slots = ("rho", "delta")

    @cached_property
    def cap(self) -> Cost:
        """The largest rho that implies (epsilon, delta - threshold_delta)-DP at the best order."""
        rho = _largest_rho(self.epsilon, conversion_delta(self.delta, self.threshold_delta))
        return rho, units_down(decimal(self.threshold_delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the event's rho, and the probability with which its guarantee fails."""
        rho, leak = zcdp_cost(event, adjacency)
        return max(least_cost(event), units_up(rho, UNIT)), units_up(leak, DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the epsilon and delta of a total, converted at the best order."""
        conversion = conversion_delta(self.delta, self.threshold_delta)
        epsilon = zcdp_curve(above(spent[0])).epsilon(conversion) if spent[0] else 0.0
        return epsilon, balance_delta(spent[0], conversion, spent[1])

    def _pure_room(self, room: Cost) -> float:
        return math.sqrt(2.0 * max(room[0], 0) / UNIT)  # a pure epsilon is epsilon^2 / 2-zCDP


@final
@dataclass(frozen=True)
class RenyiBudget(Budget):
    """A budget of Renyi divergences, which add up at each order of a grid declared in advance.

    Laplace and Gaussian noise, sampled or not, count in the same units. Each of the ``orders`` has an equal
    part of delta, and a separate cap, which the tight conversion gives for that part. A total is admitted
    while at least one order is under its cap. For one order, this is Theorem 4.3 of Feldman & Zrnic 2021
    (2008.11193). For several, the parts of delta add up, as ``docs/ledger.md`` proves. ``threshold_delta`` is
    the part of ``delta`` for releases whose guarantee fails with a small probability, such as groups found by
    a threshold.

    Attributes:
        orders: the Renyi orders, each above 1; by default five around the best one for Gaussian noise.

    >>> budget = RenyiBudget(3.0, 1e-6, orders=(8.0, 16.0, 32.0))
    >>> [round(cap / UNIT, 4) for cap in budget.cap[:-1]]
    [1.3, 2.2551, 2.6624]
    """

    mode: ClassVar[str] = "renyi"
    epsilon: float
    delta: float
    orders: tuple[float, ...] = ()
    threshold_delta: float = 0.0

    def __post_init__(self) -> None:
        check_limit(self, self.epsilon, self.delta)
        check_share(self, "threshold_delta", self.threshold_delta, self.delta)
        if not isinstance(self.orders, list | tuple):  # JSON gives a list
            raise InvalidInput(f"orders must be a list of numbers above 1; got {self.orders!r}.")
        candidates = tuple(self.orders) or _usual_orders(self.epsilon, self.delta)
        orders = tuple(check_real("order", order, low=1.0, high=1e9, open_low=True) for order in candidates)
        if list(orders) != sorted(set(orders)):
            raise InvalidInput(f"orders must be strictly increasing; got {orders!r}.")
        object.__setattr__(self, "orders", orders)
        useless = [
            order for order, cap in zip(orders, self.cap, strict=False) if cap * 1000 < self.epsilon * UNIT
        ]
        if useless:
            raise InvalidInput(
                f"orders {useless} allow almost nothing at epsilon {self.epsilon!r} and delta "
                f"{self.delta!r}: each uses 1/{len(orders)} of delta for nothing. Leave them out."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of a cost's numbers: one per order, then the delta of thresholds."""
        return (*(f"order {order:g}" for order in self.orders), "delta")

    @property
    def order_delta(self) -> float:
        """The part of delta for the conversion at each order, rounded down."""
        conversion = conversion_delta(self.delta, self.threshold_delta)
        return math.nextafter(conversion / len(self.orders), 0.0)

    @cached_property
    def cap(self) -> Cost:
        """The largest divergence at each order that implies (epsilon, order_delta)-DP, converted tightly."""
        most = _largest_divergences(self.epsilon, self.order_delta, self.orders)
        return (*most, units_down(decimal(self.threshold_delta), DELTA_UNIT))

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Return whether the delta of thresholds fits and at least one order is under its cap."""
        most = self.cap if cap is None else cap
        orders = zip(total[:-1], most[:-1], strict=True)
        return total[-1] <= most[-1] and any(part <= limit for part, limit in orders)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the Renyi divergence at every order, and the probability that the guarantee fails."""
        return _renyi_price(event, self.orders, adjacency)

    def _pure_room(self, room: Cost) -> float:
        parts = zip(self.orders, room[:-1], strict=True)
        return max((_pure_fit(order, part) for order, part in parts if part > 0), default=0.0)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the epsilon and delta of a total, converted at the best order with its part of delta."""
        conversion = conversion_delta(self.delta, self.threshold_delta)
        totals = [min(part, ENDLESS) for part in spent[:-1]]
        epsilon = float(_epsilons(totals, self.orders, self.order_delta).min()) if any(spent[:-1]) else 0.0
        if all(part >= ENDLESS for part in totals):
            epsilon = math.inf
        return epsilon, balance_delta(max(spent[:-1]), conversion, spent[-1])


def _epsilons(totals: Sequence[int], orders: tuple[float, ...], delta: float) -> Array:
    """Return, for each order, the epsilon at ``delta`` that follows from its divergence alone."""
    divergences = np.array([above(total) for total in totals])
    return np.maximum(epsilon_at_orders(np.array(orders), divergences, delta), 0.0)


@lru_cache(maxsize=256)
def _largest_divergences(epsilon: float, delta: float, orders: tuple[float, ...]) -> Cost:
    """Return the largest divergence at every order that implies (epsilon, delta)-DP."""
    low, high = [0] * len(orders), [math.ceil(2 * epsilon * UNIT)] * len(orders)
    for _ in range(high[0].bit_length()):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        within = _epsilons(middle, orders, delta) <= epsilon
        low = [m if ok else a for a, m, ok in zip(low, middle, within, strict=True)]
        high = [b if ok else m for b, m, ok in zip(high, middle, within, strict=True)]
    return tuple(low)


@lru_cache(maxsize=256)
def _largest_rho(epsilon: float, delta: float) -> int:
    """Return the largest rho that implies (epsilon, delta)-DP, below 2 epsilon unless delta is near 1."""

    def fits(rho: int) -> bool:
        return zcdp_curve(above(rho)).epsilon(delta) <= epsilon

    return last_whole(fits, 0, math.ceil(2 * epsilon * UNIT))


def _pure_fit(order: float, room: int) -> float:
    """Return about the pure epsilon whose worst case, randomized response, has divergence ``room``.

    With p = e^eps / (1 + e^eps), its divergence at order a is
    log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a)) / (a - 1).
    """
    target, high = room / UNIT, 1.0

    def divergence(epsilon: float) -> float:
        both = math.log1p(math.exp(-(2.0 * order - 1.0) * epsilon)) - math.log1p(math.exp(-epsilon))
        return epsilon + both / (order - 1.0)

    while divergence(high) < target:
        high *= 2.0
    return halved(lambda epsilon: divergence(epsilon) < target, 0.0, high, 60)[0]


@lru_cache(maxsize=4096)
def _renyi_price(event: Event, orders: tuple[float, ...], adjacency: Adjacency) -> Cost:
    divergences, leak = renyi_cost(event, orders, adjacency)
    least = least_cost(event)
    parts = (
        max(least, units_up(Fraction(value), UNIT)) if value < 1e15 else ENDLESS
        for value in divergences.tolist()
    )
    return (*parts, units_up(leak, DELTA_UNIT))


def _usual_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Return five orders around the best one for Gaussian noise, 1 + sqrt(log(1/delta) / rho).

    Here rho is the solution of epsilon = rho + 2 sqrt(rho log(1/delta)). Lower orders suit training, higher
    orders a few counts.
    """
    log = -math.log(delta)
    root = math.sqrt(log + epsilon) - math.sqrt(log)  # sqrt(rho)
    best = math.sqrt(log) / root
    return tuple(1.0 + float(f"{factor * best:.3g}") for factor in (0.7, 1.0, 1.5, 2.5, 6.0))
