"""Budgets: their units and caps, the prices of events, and the test whether a total still fits.

Costs and totals are tuples of integers, with one slot for each quantity, such as epsilon or delta. So neither
rounding nor the order of additions can change them. One unit is 1e-12 of epsilon, rho or a Renyi divergence,
or 1e-18 of delta. Prices are rounded up, caps down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias, final

from tacit.accounting import account
from tacit.accounting.additive import pure_cost
from tacit.accounting.flatten import flatten
from tacit.accounting.price import decimal
from tacit.columns.column import check_settings
from tacit.errors import InvalidInput, UnsupportedEvent, check_in, check_real
from tacit.events import Adjacency, ApproximateDP, Event

Cost: TypeAlias = tuple[int, ...]
Spent: TypeAlias = Mapping[str, Cost]
"""The total of the charges to each block; the empty name stands for charges to the whole data set."""

UNIT = 10**12
"""The number of units in an epsilon, rho or Renyi divergence of 1."""
DELTA_UNIT = 10**18
"""The number of units in a delta of 1."""
ENDLESS = 10**30
"""The cost at an order at which the divergence has no known bound; it is above every cap."""

_LARGEST = 1e6  # the largest epsilon of a budget: more is no privacy; in units, it is below ENDLESS


class Budget(ABC):
    """A limit (epsilon, delta) on all releases ever made; the base class of budgets.

    **Guarantee**

    * If ``admits(total)`` held after every charge, all releases together are (epsilon, delta)-DP, even if
      each was chosen in view of all earlier ones.
    * A price is never below the cost of its event: prices are rounded up, and the cap is rounded down.
    * An event without a proven price is refused by an error that names the event
      (:class:`~tacit.errors.UnsupportedEvent`).

    >>> from tacit.events import Laplace
    >>> from tacit.ledger import PureBudget
    >>> budget = PureBudget(1.0)
    >>> price = budget.price(Laplace(4.0), Adjacency.ADD_REMOVE)
    >>> budget.limit, budget.admits(price), budget.epsilon_of(price)
    ((1.0, 0.0), True, (0.25, 0.0))
    """

    mode: ClassVar[str]
    epsilon: float

    @property
    def limit(self) -> tuple[float, float]:
        """The (epsilon, delta) that all releases together may cost."""
        return self.epsilon, getattr(self, "delta", 0.0)

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """The printable names of the numbers in a cost."""

    @property
    @abstractmethod
    def cap(self) -> Cost:
        """The largest total, slot by slot."""

    @abstractmethod
    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the cost of ``event``, rounded up.

        Args:
            event: the mechanism.
            adjacency: the neighbouring relation.
            delta: the delta at which the event is charged, for a budget of (epsilon, delta).

        Raises:
            UnsupportedEvent: if this budget has no proven price for the event.
        """

    @abstractmethod
    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the (epsilon, delta) that a total costs, rounded up; epsilon may be infinite."""

    def to_data(self) -> dict[str, Any]:
        """Return the budget as plain data, for JSON; :func:`budget_from_data` reads it back."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        return {"mode": self.mode, **plain}

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Return whether ``total`` stays within ``cap`` (by default this budget's cap) in every slot."""
        return all(part <= most for part, most in zip(total, self.cap if cap is None else cap, strict=True))

    def check_cost(self, cost: Sequence[object]) -> Cost:
        """Return ``cost`` as a tuple; refuse it unless it is one non-negative integer per slot."""
        right = len(cost) == len(self.slots) and all(type(part) is int and part >= 0 for part in cost)
        if not right:
            raise InvalidInput(
                f"a cost in mode {self.mode!r} must have one non-negative integer for each of "
                f"{', '.join(self.slots)}; got {cost!r}."
            )
        return tuple(part for part in cost if type(part) is int)

    def _pure_room(self, room: Cost) -> float:
        """Return about the largest pure epsilon whose price fits into ``room``; slots may be negative."""
        return room[0] / UNIT

    def would_fit(self, spent: Cost, cap: Cost, adjacency: Adjacency) -> float:
        """Return the largest epsilon of one more release without delta that fits on top of ``spent``."""
        room = tuple(most - part for part, most in zip(spent, cap, strict=True))
        guess, less = self._pure_room(room), 2.0**-52
        while guess >= 1.0 / UNIT:
            if self.admits(sum_of(spent, self.price(ApproximateDP(guess), adjacency)), cap):
                return guess
            guess, less = guess * (1.0 - less), 2.0 * less
        return 0.0


def sum_of(first: Cost, second: Cost) -> Cost:
    """Add two costs slot by slot."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def units_up(value: Fraction, unit: int) -> int:
    """Return ``value`` in units, rounded up."""
    return math.ceil(value * unit)


def units_down(value: Fraction, unit: int) -> int:
    """Return ``value`` in units, rounded down."""
    return math.floor(value * unit)


def least_cost(event: Event) -> int:
    """Return 1 unit if an event releases anything, even if its divergence underflows, else 0."""
    return 1 if flatten(event) else 0


def above(units: int) -> float:
    """Return a float that is at least the value of this number of units."""
    return math.nextafter(units / UNIT, math.inf)


def check_limit(budget: Budget, epsilon: object, *deltas: object) -> None:
    """Check and set the limits of a budget: epsilon, and delta if the budget has one.

    Raises:
        InvalidInput: if a limit is not a number, or is smaller than the unit in which the ledger counts.
    """
    checked = check_real("epsilon of a budget", epsilon, low=0.0, high=_LARGEST, open_low=True)
    if decimal(checked) * UNIT < 1:
        raise InvalidInput(
            f"epsilon of a budget must be at least 1e-12; got {checked!r}. The ledger counts in that unit."
        )
    object.__setattr__(budget, "epsilon", checked)
    for delta in deltas:
        checked = check_real("delta of a budget", delta, low=0.0, high=1.0, open_low=True, open_high=True)
        if decimal(checked) * DELTA_UNIT < 1:
            raise InvalidInput(
                f"delta of a budget must be at least 1e-18; got {checked!r}. The ledger counts in that unit."
            )
        object.__setattr__(budget, "delta", checked)


def check_share(budget: Budget, name: str, value: object, delta: float) -> None:
    """Check and set the part of a budget's delta that is for thresholds."""
    share = check_real(name, value, low=0.0, high=delta, open_high=True)
    object.__setattr__(budget, name, share)


def conversion_delta(delta: float, threshold: float) -> float:
    """Return the part of delta that thresholds leave for the conversion to epsilon, rounded down."""
    rest = decimal(delta) - decimal(threshold)
    rounded = float(rest)
    return rounded if Fraction(rounded) <= rest else math.nextafter(rounded, 0.0)


def balance_delta(total: int, conversion: float, leaks: int) -> float:
    """Return the delta of a total: that of thresholds, and that of the conversion if anything was charged."""
    return (conversion if total else 0.0) + leaks / DELTA_UNIT


@final
@dataclass(frozen=True)
class PureBudget(Budget):
    """A budget of pure epsilons, which add up.

    It is for data that only queries with Laplace noise read. Basic composition is from Dwork et al. 2006. It
    also holds if events are chosen adaptively under a fixed budget (Rogers et al. 2016, 1605.08294).

    >>> from tacit.events import ApproximateDP
    >>> budget = PureBudget(1.2)
    >>> budget.price(ApproximateDP(0.2), Adjacency.ADD_REMOVE), budget.cap
    ((200000000000,), (1200000000000,))
    """

    mode: ClassVar[str] = "pure"
    epsilon: float

    def __post_init__(self) -> None:
        check_limit(self, self.epsilon)

    slots = ("epsilon",)

    @cached_property
    def cap(self) -> Cost:
        """The limit on epsilon, as a number of the ledger's smallest steps."""
        return (units_down(decimal(self.epsilon), UNIT),)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the sum of the event's epsilons; refuse an event that has a delta."""
        cost = pure_cost(event, adjacency)
        if cost is None or cost[1] > 0:
            raise UnsupportedEvent(
                f"a budget of pure epsilon cannot hold {event!r}: it has no guarantee with delta 0. Use "
                "Laplace noise, or open the data set with a budget that has a delta."
            )
        return (units_up(cost[0], UNIT),)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the sum of epsilons, with delta 0."""
        return spent[0] / UNIT, 0.0


@final
@dataclass(frozen=True)
class ApproximateBudget(Budget):
    """A budget whose epsilons and deltas add up (Dwork & Lei 2009).

    This also holds for mechanisms that overlap in time (Haney et al. 2023, 2309.05901). An event without an
    epsilon of its own, such as Gaussian noise or a training run, is charged as a whole: the tight accountant
    computes its epsilon at the delta that the caller names.

    >>> from tacit.events import ApproximateDP
    >>> budget = ApproximateBudget(1.0, 1e-6)
    >>> budget.price(ApproximateDP(0.5, 1e-7), Adjacency.ADD_REMOVE)
    (500000000000, 100000000000)
    """

    mode: ClassVar[str] = "approximate"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_limit(self, self.epsilon, self.delta)

    slots = ("epsilon", "delta")

    @cached_property
    def cap(self) -> Cost:
        """The limits on epsilon and delta, in units."""
        return units_down(decimal(self.epsilon), UNIT), units_down(decimal(self.delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the sums of the event's epsilons and deltas or, given ``delta``, its epsilon as a whole."""
        if delta is None:
            cost = pure_cost(event, adjacency)
            if cost is None:
                raise InvalidInput(
                    f"{event!r} has no epsilon without a delta. Name the delta at which to charge it, such "
                    f"as delta=1e-7; it is taken from the budget's delta, {self.delta!r}."
                )
            return units_up(cost[0], UNIT), units_up(cost[1], DELTA_UNIT)
        epsilon = _epsilon_as_one(event, adjacency, delta)
        if not math.isfinite(epsilon):
            raise UnsupportedEvent(f"{event!r} has no finite epsilon at delta {delta!r}. Use a larger delta.")
        return units_up(Fraction(epsilon), UNIT), units_up(decimal(delta), DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the sums of epsilons and deltas."""
        return spent[0] / UNIT, spent[1] / DELTA_UNIT


@lru_cache(maxsize=1024)
def _epsilon_as_one(event: Event, adjacency: Adjacency, delta: float) -> float:
    """Return the epsilon of an event as one release, by the tightest accountant that supports all of it."""
    refusal: UnsupportedEvent | None = None
    for method in ("pld", "rdp", "basic"):
        try:
            return account(event, adjacency=adjacency, method=method).epsilon(delta)
        except UnsupportedEvent as problem:
            refusal = refusal or problem
    assert refusal is not None
    raise refusal


def budget_from_data(data: object, where: str = "a budget") -> Budget:
    """Read a budget from the data of :meth:`Budget.to_data` or from the section of a policy file.

    >>> budget_from_data({"mode": "pure", "epsilon": 1.0})
    PureBudget(epsilon=1.0)
    """
    kinds: dict[str, Any] = {kind.mode: kind for kind in Budget.__subclasses__()}
    section = check_settings(where, data, data if isinstance(data, Mapping) else (), ["mode"])
    mode = check_in(f"{where} mode", section["mode"], tuple(kinds))
    attributes = fields(kinds[mode])
    required = [field.name for field in attributes if field.default is MISSING]
    names = ["mode", *(field.name for field in attributes)]
    settings = check_settings(f"{where} of mode {mode!r}", section, names, required)
    del settings["mode"]
    try:
        budget: Budget = kinds[mode](**settings)
    except InvalidInput as problem:
        raise InvalidInput(f"{where}: {problem}") from None
    return budget
