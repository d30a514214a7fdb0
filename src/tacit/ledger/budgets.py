"""What a budget is counted in: a cap, the price of an event, and whether a total still fits.

Totals are tuples of integers, so that no order of additions and no rounding can lose anything: 1e-12 for
epsilon, rho and Renyi divergences, 1e-18 for delta.  Prices are rounded up, caps down.  ``docs/ledger.md``
proves why a total below its cap bounds everything that was ever released, however adaptively it was asked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from tacit.accounting import account
from tacit.accounting.additive import decimal, pure_cost, renyi_cost, zcdp_cost
from tacit.accounting.conversion import epsilon_at_orders
from tacit.accounting.losses import Array
from tacit.accounting.steps import flatten
from tacit.accounting.zcdp import curve
from tacit.errors import InvalidInput, UnsupportedEvent, check_real
from tacit.events import Adjacency, ApproximateDP, Event

__all__ = [
    "DELTA_UNIT",
    "ENDLESS",
    "UNIT",
    "ApproximateBudget",
    "Budget",
    "Cost",
    "PureBudget",
    "RenyiBudget",
    "ZeroConcentratedBudget",
    "budget_from_data",
]

Cost: TypeAlias = tuple[int, ...]

UNIT = 10**12
"""Units of epsilon, rho and Renyi divergences in 1."""
DELTA_UNIT = 10**18
"""Units of delta in 1."""
ENDLESS = 10**30
"""The cost at an order at which nothing is known: above every cap, for good."""

_LARGEST = 1e6  # epsilon of a budget: more is no privacy, and less than ENDLESS in units


class Budget(ABC):
    """The interface: a limit (epsilon, delta) on everything that is ever released, and how it is counted.

    Guarantee
    ---------
    * As long as ``admits(total)`` held after every charge, all releases together are (epsilon, delta)-DP,
      even if each was chosen in view of all earlier ones.
    * A price is never below the cost of its event: it is rounded up, and the cap down.
    * An event with no proven price is refused by name (:class:`~tacit.errors.UnsupportedEvent`).
    """

    mode: ClassVar[str]

    @property
    @abstractmethod
    def limit(self) -> tuple[float, float]:
        """(epsilon, delta) that everything together stays within."""

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """What each number of a cost counts, for people."""

    @property
    @abstractmethod
    def cap(self) -> Cost:
        """The largest total, slot by slot."""

    @abstractmethod
    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """What ``event`` costs, rounded up.

        :param delta: at which delta to state the event, where the budget is one of (epsilon, delta).
        :raises UnsupportedEvent: if it has no proven price here.
        """

    @abstractmethod
    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """What a total comes to as (epsilon, delta): a balance, rounded up; epsilon may be infinite."""

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """The budget as plain data, for JSON; :func:`budget_from_data` reads it back."""

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Whether ``total`` stays within ``cap`` (this budget's own by default) in every slot."""
        return all(part <= most for part, most in zip(total, self.cap if cap is None else cap, strict=True))

    def check_cost(self, cost: Sequence[object]) -> Cost:
        """``cost`` as a tuple, if it is one of this budget: non-negative integers, one per slot."""
        right = len(cost) == len(self.slots) and all(type(part) is int and part >= 0 for part in cost)
        if not right:
            raise InvalidInput(
                f"a cost in mode {self.mode!r} is {len(self.slots)} non-negative integers, for "
                f"{', '.join(self.slots)}; got {cost!r}."
            )
        return tuple(part for part in cost if type(part) is int)

    @abstractmethod
    def _pure_room(self, room: Cost) -> float:
        """About the largest epsilon without delta whose price is ``room``; slots may be negative."""

    def would_fit(self, spent: Cost, cap: Cost, adjacency: Adjacency) -> float:
        """The largest epsilon of one more release without delta that fits on top of ``spent``, or 0."""
        room = tuple(most - part for part, most in zip(spent, cap, strict=True))
        guess, less = self._pure_room(room), 2.0**-52
        while guess >= 1.0 / UNIT:
            if self.admits(_sum(spent, self.price(ApproximateDP(guess), adjacency)), cap):
                return guess
            guess, less = guess * (1.0 - less), 2.0 * less
        return 0.0


def _sum(first: Cost, second: Cost) -> Cost:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _up(value: Fraction, unit: int) -> int:
    return math.ceil(value * unit)


def _down(value: Fraction, unit: int) -> int:
    return math.floor(value * unit)


def _least(event: Event) -> int:
    """One unit for whatever releases something, even where its divergence is too small for a float."""
    return 1 if flatten(event) else 0


def _above(units: int) -> float:
    """A float that is not below the number of units."""
    return math.nextafter(units / UNIT, math.inf)


def _check(budget: Budget, epsilon: object, delta: object | None) -> None:
    checked = check_real("epsilon of a budget", epsilon, low=0.0, high=_LARGEST, open_low=True)
    if decimal(checked) * UNIT < 1:
        raise InvalidInput(
            f"epsilon of a budget must be at least 1e-12, the unit of counting; got {checked!r}."
        )
    object.__setattr__(budget, "epsilon", checked)
    if delta is not None:
        checked = check_real("delta of a budget", delta, low=0.0, high=1.0, open_low=True, open_high=True)
        if decimal(checked) * DELTA_UNIT < 1:
            raise InvalidInput(f"delta of a budget must be at least 1e-18, the unit; got {checked!r}.")
        object.__setattr__(budget, "delta", checked)


def _share(budget: Budget, name: str, value: object, delta: float) -> None:
    share = check_real(name, value, low=0.0, high=delta, open_high=True)
    object.__setattr__(budget, name, share)


@final
@dataclass(frozen=True)
class PureBudget(Budget):
    """Epsilons add up; no delta (Dwork et al. 2006; as a filter Rogers et al. 2016, 1605.08294).

    For query-only data with Laplace noise.

    >>> budget = PureBudget(1.2)
    >>> budget.price(ApproximateDP(0.2), Adjacency.ADD_REMOVE), budget.cap
    ((200000000000,), (1200000000000,))
    """

    mode: ClassVar[str] = "pure"
    epsilon: float

    def __post_init__(self) -> None:
        _check(self, self.epsilon, None)

    @property
    def limit(self) -> tuple[float, float]:
        """(epsilon, 0)."""
        return self.epsilon, 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """One: epsilon."""
        return ("epsilon",)

    @cached_property
    def cap(self) -> Cost:
        """Epsilon in units."""
        return (_down(decimal(self.epsilon), UNIT),)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """The sum of the epsilons; what has a delta is refused."""
        found = pure_cost(event, adjacency)
        if found is None or found[1] > 0:
            raise UnsupportedEvent(
                f"a budget of pure epsilon cannot hold {event!r}: it has no guarantee with delta 0. Use "
                "Laplace noise, or open the data set with a budget that has a delta."
            )
        return (_up(found[0], UNIT),)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """The sum itself."""
        return spent[0] / UNIT, 0.0

    def _pure_room(self, room: Cost) -> float:
        return room[0] / UNIT

    def to_data(self) -> dict[str, Any]:
        """Mode and epsilon."""
        return {"mode": self.mode, "epsilon": self.epsilon}


@final
@dataclass(frozen=True)
class ApproximateBudget(Budget):
    """Epsilons and deltas add up (Dwork & Lei 2009; also where they overlap: Haney et al. 2023, 2309.05901).

    What has no epsilon of its own, as Gaussian noise or a training run, is charged as a whole at the delta
    that is asked for, by the tight accountant.

    >>> budget = ApproximateBudget(1.0, 1e-6)
    >>> budget.price(ApproximateDP(0.5, 1e-7), Adjacency.ADD_REMOVE)
    (500000000000, 100000000000)
    """

    mode: ClassVar[str] = "approximate"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check(self, self.epsilon, self.delta)

    @property
    def limit(self) -> tuple[float, float]:
        """(epsilon, delta)."""
        return self.epsilon, self.delta

    @property
    def slots(self) -> tuple[str, ...]:
        """Two: epsilon and delta."""
        return ("epsilon", "delta")

    @cached_property
    def cap(self) -> Cost:
        """Both in their units."""
        return _down(decimal(self.epsilon), UNIT), _down(decimal(self.delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """By plain addition where that is possible and no delta is given, else as one event at ``delta``."""
        if delta is None:
            found = pure_cost(event, adjacency)
            if found is None:
                raise InvalidInput(
                    f"{event!r} has no epsilon without a delta: say at which delta to charge it, as "
                    f"delta=1e-7 out of the {self.delta!r} of the budget."
                )
            return _up(found[0], UNIT), _up(found[1], DELTA_UNIT)
        epsilon = _epsilon_as_one(event, adjacency, delta)
        if not math.isfinite(epsilon):
            raise UnsupportedEvent(f"{event!r} has no finite epsilon at delta {delta!r}. Use a larger delta.")
        return _up(Fraction(epsilon), UNIT), _up(decimal(delta), DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """The sums themselves."""
        return spent[0] / UNIT, spent[1] / DELTA_UNIT

    def _pure_room(self, room: Cost) -> float:
        return room[0] / UNIT

    def to_data(self) -> dict[str, Any]:
        """Mode, epsilon and delta."""
        return {"mode": self.mode, "epsilon": self.epsilon, "delta": self.delta}


@lru_cache(maxsize=1024)
def _epsilon_as_one(event: Event, adjacency: Adjacency, delta: float) -> float:
    """By the tightest accountant that knows all of ``event``, whose parameters are fixed beforehand."""
    refused: UnsupportedEvent | None = None
    for method in ("pld", "rdp", "basic"):
        try:
            return account(event, adjacency=adjacency, method=method).epsilon(delta)
        except UnsupportedEvent as problem:
            refused = refused or problem
    assert refused is not None
    raise refused


@final
@dataclass(frozen=True)
class ZeroConcentratedBudget(Budget):
    """rho adds up (Bun & Steinke 2016, 1605.02065; as a filter Feldman & Zrnic 2021, 2008.11193).

    For Gaussian noise without sampling.  ``threshold_delta`` is the part of ``delta`` for releases that hold
    but for a chance of their own, as groups found by a threshold; such a release must happen at one moment,
    which every charge of a query does (there is no theorem for interactive mechanisms that overlap).

    >>> budget = ZeroConcentratedBudget(1.0, 1e-6)
    >>> round(budget.cap[0] / UNIT, 4)  # rho + 2 sqrt(rho log(1/delta)) = 1 would give 0.0175
    0.0244
    """

    mode: ClassVar[str] = "zcdp"
    epsilon: float
    delta: float
    threshold_delta: float = 0.0

    def __post_init__(self) -> None:
        _check(self, self.epsilon, self.delta)
        _share(self, "threshold_delta", self.threshold_delta, self.delta)

    @property
    def limit(self) -> tuple[float, float]:
        """(epsilon, delta)."""
        return self.epsilon, self.delta

    @property
    def slots(self) -> tuple[str, ...]:
        """Two: rho and the delta of thresholds."""
        return ("rho", "delta")

    @cached_property
    def cap(self) -> Cost:
        """The largest rho that is (epsilon, delta - threshold_delta)-DP by the best order."""
        rho = _largest_rho(self.epsilon, _conversion_delta(self.delta, self.threshold_delta))
        return rho, _down(decimal(self.threshold_delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """rho, and the chance of a leak."""
        found, leak = zcdp_cost(event, adjacency)
        return max(_least(event), _up(found, UNIT)), _up(leak, DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """By the best order."""
        conversion = _conversion_delta(self.delta, self.threshold_delta)
        epsilon = curve(_above(spent[0])).epsilon(conversion) if spent[0] else 0.0
        return epsilon, _balance_delta(spent[0], conversion, spent[1])

    def _pure_room(self, room: Cost) -> float:
        return math.sqrt(2.0 * max(room[0], 0) / UNIT)  # a pure epsilon is epsilon^2 / 2-zCDP

    def to_data(self) -> dict[str, Any]:
        """Mode, epsilon, delta and its part for thresholds."""
        return {
            "mode": self.mode,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "threshold_delta": self.threshold_delta,
        }


@final
@dataclass(frozen=True)
class RenyiBudget(Budget):
    """Renyi divergences add up, order by order, over a grid of orders that is declared in advance.

    Laplace and Gaussian noise, sampled or not, count in one currency.  Each of the ``orders`` has an equal
    part of the delta and its own cap, from the tight conversion at that part; a total is admitted while at
    least one order is under its cap.  One order alone is Theorem 4.3 of Feldman & Zrnic 2021 (2008.11193);
    for several the parts of delta add up, as ``docs/ledger.md`` proves.  ``threshold_delta`` is the part of
    ``delta`` for releases that hold but for a chance of their own, as groups found by a threshold.

    :param orders: each > 1; by default five around the best one for Gaussian noise.

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
        _check(self, self.epsilon, self.delta)
        _share(self, "threshold_delta", self.threshold_delta, self.delta)
        given = tuple(self.orders) or _usual_orders(self.epsilon, self.delta)
        orders = tuple(check_real("order", order, low=1.0, high=1e6, open_low=True) for order in given)
        if list(orders) != sorted(set(orders)):
            raise InvalidInput(f"orders must increase, each once; got {orders!r}.")
        object.__setattr__(self, "orders", orders)
        useless = [
            order for order, cap in zip(orders, self.cap, strict=False) if cap * 1000 < self.epsilon * UNIT
        ]
        if useless:
            raise InvalidInput(
                f"at epsilon {self.epsilon!r} and delta {self.delta!r} over {len(orders)} orders, the orders "
                f"{useless} allow next to nothing: their share of delta is lost. Leave them out, or use larger ones."
            )

    @property
    def limit(self) -> tuple[float, float]:
        """(epsilon, delta)."""
        return self.epsilon, self.delta

    @property
    def slots(self) -> tuple[str, ...]:
        """One per order, then the delta of thresholds."""
        return (*(f"order {order:g}" for order in self.orders), "delta")

    @property
    def order_delta(self) -> float:
        """The part of delta that each order has for its conversion, rounded down."""
        conversion = _conversion_delta(self.delta, self.threshold_delta)
        return math.nextafter(conversion / len(self.orders), 0.0)

    @cached_property
    def cap(self) -> Cost:
        """At each order the largest divergence that is (epsilon, order_delta)-DP, by the tight conversion."""
        most = _largest_divergences(self.epsilon, self.order_delta, self.orders)
        return (*most, _down(decimal(self.threshold_delta), DELTA_UNIT))

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Whether the delta of thresholds fits and at least one order is under its cap."""
        most = self.cap if cap is None else cap
        orders = zip(total[:-1], most[:-1], strict=True)
        return total[-1] <= most[-1] and any(part <= limit for part, limit in orders)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """The Renyi divergence at every order, and the chance of a leak."""
        return _renyi_price(event, self.orders, adjacency)

    def _pure_room(self, room: Cost) -> float:
        parts = zip(self.orders, room[:-1], strict=True)
        return max((_pure_fit(order, part) for order, part in parts if part > 0), default=0.0)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """By the best of the orders, each at its own part of delta."""
        conversion = _conversion_delta(self.delta, self.threshold_delta)
        known = [min(part, ENDLESS) for part in spent[:-1]]
        epsilon = float(_epsilons(known, self.orders, self.order_delta).min()) if any(spent[:-1]) else 0.0
        if all(part >= ENDLESS for part in known):
            epsilon = math.inf
        return epsilon, _balance_delta(max(spent[:-1]), conversion, spent[-1])

    def to_data(self) -> dict[str, Any]:
        """Mode, epsilon, delta, orders, and the part of delta for thresholds."""
        return {
            "mode": self.mode,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "orders": list(self.orders),
            "threshold_delta": self.threshold_delta,
        }


def _epsilons(totals: Sequence[int], orders: tuple[float, ...], delta: float) -> Array:
    """Epsilon at ``delta`` of a divergence at every order, by itself."""
    divergences = np.array([_above(total) for total in totals])
    return np.maximum(epsilon_at_orders(np.array(orders), divergences, delta), 0.0)


@lru_cache(maxsize=256)
def _largest_divergences(epsilon: float, delta: float, orders: tuple[float, ...]) -> Cost:
    """At every order the largest divergence that is (epsilon, delta)-DP."""
    low, high = [0] * len(orders), [math.ceil(2 * epsilon * UNIT)] * len(orders)
    for _ in range(high[0].bit_length()):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        within = _epsilons(middle, orders, delta) <= epsilon
        low = [m if ok else a for a, m, ok in zip(low, middle, within, strict=True)]
        high = [b if ok else m for b, m, ok in zip(high, middle, within, strict=True)]
    return tuple(low)


@lru_cache(maxsize=256)
def _largest_rho(epsilon: float, delta: float) -> int:
    """The largest rho that is (epsilon, delta)-DP; it is below 2 epsilon, but where delta is near 1."""
    low, high = 0, math.ceil(2 * epsilon * UNIT)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if curve(_above(middle)).epsilon(delta) <= epsilon else (low, middle)
    return low


def _pure_fit(order: float, room: int) -> float:
    """About the epsilon whose worst mechanism, a coin, has the divergence ``room`` at ``order``.

    With p = e^eps / (1 + e^eps): log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a)) / (a - 1).
    """
    target, low, high = room / UNIT, 0.0, 1.0

    def divergence(epsilon: float) -> float:
        both = math.log1p(math.exp(-(2.0 * order - 1.0) * epsilon)) - math.log1p(math.exp(-epsilon))
        return epsilon + both / (order - 1.0)

    while divergence(high) < target:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if divergence(middle) < target else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _renyi_price(event: Event, orders: tuple[float, ...], adjacency: Adjacency) -> Cost:
    divergences, leak = renyi_cost(event, orders, adjacency)
    least = _least(event)
    parts = (
        max(least, _up(Fraction(value), UNIT)) if value < 1e15 else ENDLESS for value in divergences.tolist()
    )
    return (*parts, _up(leak, DELTA_UNIT))


def _usual_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Five orders around the best one for Gaussian noise, 1 + sqrt(log(1/delta) / rho), where
    epsilon = rho + 2 sqrt(rho log(1/delta)); lower ones serve training, higher ones a few counts."""
    log = -math.log(delta)
    root = math.sqrt(log + epsilon) - math.sqrt(log)  # of rho
    best = math.sqrt(log) / root
    return tuple(float(f"{1.0 + factor * best:.3g}") for factor in (0.7, 1.0, 1.5, 2.5, 6.0))


def _conversion_delta(delta: float, threshold: float) -> float:
    """What is left of delta for the conversion, rounded down."""
    left = decimal(delta) - decimal(threshold)
    found = float(left)
    return found if Fraction(found) <= left else math.nextafter(found, 0.0)


def _balance_delta(counted: int, conversion: float, leaks: int) -> float:
    return (conversion if counted else 0.0) + leaks / DELTA_UNIT


_BUDGETS: dict[str, type[Any]] = {
    kind.mode: kind for kind in (PureBudget, ApproximateBudget, ZeroConcentratedBudget, RenyiBudget)
}


def budget_from_data(data: object) -> Budget:
    """Read a budget written by ``to_data``.

    >>> budget_from_data({"mode": "pure", "epsilon": 1.0})
    PureBudget(epsilon=1.0)
    """
    if not isinstance(data, Mapping) or data.get("mode") not in _BUDGETS:
        raise InvalidInput(f"a budget is an object whose mode is one of {', '.join(_BUDGETS)}; got {data!r}.")
    kind = _BUDGETS[data["mode"]]
    fields = {str(key): value for key, value in data.items() if key != "mode"}
    known = set(kind.__dataclass_fields__) - {"mode"}
    if not set(fields) <= known:
        raise InvalidInput(
            f"a budget of mode {data['mode']!r} has the fields {', '.join(sorted(known))}; "
            f"got {', '.join(sorted(set(fields) - known))}."
        )
    if "orders" in fields:
        fields["orders"] = tuple(fields["orders"])
    try:
        budget: Budget = kind(**fields)
    except TypeError:
        raise InvalidInput(
            f"a budget of mode {data['mode']!r} needs {', '.join(sorted(known))}; got {data!r}."
        ) from None
    return budget
