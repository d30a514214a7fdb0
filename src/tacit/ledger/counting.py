"""How do budgets count? The interface of all budgets, the units, and rounding.

Totals are tuples of integers, so that no order of additions and no rounding can lose anything.  The units are
1e-12 for epsilon, rho and Renyi divergences, 1e-18 for delta.  Prices are rounded up, caps down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from tacit.accounting.additive import decimal
from tacit.accounting.flatten import flatten
from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, ApproximateDP, Event

Cost: TypeAlias = tuple[int, ...]

UNIT = 10**12
"""Units of epsilon, rho and Renyi divergences in 1."""
DELTA_UNIT = 10**18
"""Units of delta in 1."""
ENDLESS = 10**30
"""The cost at an order without a known bound: above every cap, for good."""

_LARGEST = 1e6  # epsilon of a budget: more is no privacy, and less than ENDLESS in units


class Budget(ABC):
    """The interface: a limit (epsilon, delta) on everything that is ever released, and how it is counted.

    Guarantee
    ---------
    * As long as ``admits(total)`` held after every charge, all releases together are (epsilon, delta)-DP,
      even if each was chosen in view of all earlier ones.
    * A price is never below the cost of its event: it is rounded up, and the cap down.
    * An event with no proven price is refused by name (:class:`~tacit.errors.UnsupportedEvent`).

    >>> from tacit.events import Laplace
    >>> from tacit.ledger import PureBudget
    >>> budget = PureBudget(1.0)
    >>> price = budget.price(Laplace(4.0), Adjacency.ADD_REMOVE)
    >>> budget.limit, budget.admits(price), budget.epsilon_of(price)
    ((1.0, 0.0), True, (0.25, 0.0))
    """

    mode: ClassVar[str]

    @property
    @abstractmethod
    def limit(self) -> tuple[float, float]:
        """The (epsilon, delta) that holds for all releases together."""

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """The name of each number of a cost, for people."""

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
        """The (epsilon, delta) of a total: a balance, rounded up; epsilon may be infinite."""

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
            if self.admits(sum_of(spent, self.price(ApproximateDP(guess), adjacency)), cap):
                return guess
            guess, less = guess * (1.0 - less), 2.0 * less
        return 0.0


def sum_of(first: Cost, second: Cost) -> Cost:
    """Slot by slot."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def units_up(value: Fraction, unit: int) -> int:
    """``value`` in units, rounded up."""
    return math.ceil(value * unit)


def units_down(value: Fraction, unit: int) -> int:
    """``value`` in units, rounded down."""
    return math.floor(value * unit)


def least_cost(event: Event) -> int:
    """One unit for an event that releases something, even where its divergence is too small for a float."""
    return 1 if flatten(event) else 0


def above(units: int) -> float:
    """A float that is not below the number of units."""
    return math.nextafter(units / UNIT, math.inf)


def check_limit(budget: Budget, epsilon: object, *deltas: object) -> None:
    """Set the checked limits of a budget: epsilon, and delta unless the budget has none.

    :raises InvalidInput: if one is not a number, or is smaller than the unit of counting.
    """
    checked = check_real("epsilon of a budget", epsilon, low=0.0, high=_LARGEST, open_low=True)
    if decimal(checked) * UNIT < 1:
        raise InvalidInput(
            f"epsilon of a budget must be at least 1e-12, the unit of counting; got {checked!r}."
        )
    object.__setattr__(budget, "epsilon", checked)
    for delta in deltas:
        checked = check_real("delta of a budget", delta, low=0.0, high=1.0, open_low=True, open_high=True)
        if decimal(checked) * DELTA_UNIT < 1:
            raise InvalidInput(f"delta of a budget must be at least 1e-18, the unit; got {checked!r}.")
        object.__setattr__(budget, "delta", checked)


def check_share(budget: Budget, name: str, value: object, delta: float) -> None:
    """Set the part of delta of a budget that is for thresholds."""
    share = check_real(name, value, low=0.0, high=delta, open_high=True)
    object.__setattr__(budget, name, share)


def conversion_delta(delta: float, threshold: float) -> float:
    """The rest of delta, for the conversion, rounded down."""
    left = decimal(delta) - decimal(threshold)
    found = float(left)
    return found if Fraction(found) <= left else math.nextafter(found, 0.0)


def balance_delta(counted: int, conversion: float, leaks: int) -> float:
    """The delta of a balance: the conversion's if anything was counted, and the leaks."""
    return (conversion if counted else 0.0) + leaks / DELTA_UNIT
