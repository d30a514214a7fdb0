"""The policy of a data set with its budget, fixed before any query; its TOML file.

A policy is public, and nothing in it is read from the data.
"""

from __future__ import annotations

import json
import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from tacit.accounting import account
from tacit.accounting.closed_form import pure_cost
from tacit.accounting.flatten import flatten
from tacit.accounting.price import Array, decimal, halved, last_whole
from tacit.accounting.renyi import epsilon_at_orders, renyi_cost, zcdp_cost, zcdp_curve
from tacit.columns import Column, Dialect
from tacit.columns.column import check_settings, parse_columns
from tacit.columns.sections import refuse_blanks, setting
from tacit.errors import InvalidInput, UnsupportedEvent, check_in, check_integer, check_real, reason_of
from tacit.events import Adjacency, ApproximateDP, Event
from tacit.serial import parse_json

# --- budgets -----------------------------------------------------------------------------------------------
#
# Costs and totals are tuples of integers, with one slot for each quantity, such as epsilon or delta. So
# neither rounding nor the order of additions can change them. One unit is 1e-12 of epsilon, rho or a Renyi
# divergence, or 1e-18 of delta. Prices are rounded up, caps down. Budgets of Renyi divergences bound all
# releases ever made, even if the questions were chosen adaptively; ``docs/how-to/ledger.md`` proves it.

Cost: TypeAlias = tuple[int, ...]
Spent: TypeAlias = Mapping[str, Cost]
"""The total cost per block; the empty name is for charges to the whole data set."""

UNIT = 10**12
"""The number of units in an epsilon, rho or Renyi divergence of 1."""
DELTA_UNIT = 10**18
"""The number of units in a delta of 1."""
ENDLESS = 10**30
"""The cost at an order without a known bound on the divergence; it exceeds every cap."""

_LARGEST = 1e6  # the largest epsilon of a budget: more is no privacy; in units, it is below ENDLESS


class Budget(ABC):
    """A limit (epsilon, delta) on all releases ever made; the base class of budgets.

    **Guarantee**

    * All releases together are (epsilon, delta)-DP if ``admits(total)`` was true after every charge. You may
      choose each release after you have seen all earlier ones.
    * The cost of each event is rounded up, and the limit is rounded down.
    * An event without a proven cost is refused; the error names the event
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
    delta: float  # not of every budget, as the next one
    threshold_delta: float

    def __post_init__(self) -> None:
        for name, unit, most in (("epsilon", UNIT, _LARGEST), ("delta", DELTA_UNIT, 1.0)):
            if not hasattr(self, name):
                continue
            limit = check_real(
                f"{name} of a budget",
                getattr(self, name),
                low=0.0,
                high=most,
                open_low=True,
                open_high=name == "delta",
            )
            if decimal(limit) * unit < 1:
                raise InvalidInput(
                    f"{name} of a budget must be at least {1 / unit:g}, the smallest amount that the ledger "
                    f"can count; got {limit!r}."
                )
            object.__setattr__(self, name, limit)
        if hasattr(self, "threshold_delta"):
            share = check_real(
                "threshold_delta", self.threshold_delta, low=0.0, high=self.delta, open_high=True
            )
            object.__setattr__(self, "threshold_delta", share)

    @property
    def limit(self) -> tuple[float, float]:
        """The (epsilon, delta) limit on all releases together."""
        return self.epsilon, getattr(self, "delta", 0.0)

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """The names of the integers in a cost, such as ``("epsilon", "delta")``."""

    @property
    @abstractmethod
    def cap(self) -> Cost:
        """The limit on the total cost: one integer for each name in :attr:`slots`."""

    @abstractmethod
    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the cost of ``event``, rounded up.

        Args:
            event: the description of the mechanism, such as ``Laplace(4.0)``.
            adjacency: how neighbouring data sets differ, such as by one added record
                (``Adjacency.ADD_REMOVE``).
            delta: for an :class:`ApproximateBudget` only: the delta to charge. Epsilon is computed at this
                delta.

        Raises:
            UnsupportedEvent: if the event has no proven cost in this kind of budget.
        """

    @abstractmethod
    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return the total cost ``spent`` as (epsilon, delta), rounded up; epsilon may be infinite."""

    def to_data(self) -> dict[str, Any]:
        """Return the budget as a dict for JSON; :func:`budget_from_data` reads it back."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        return {"mode": self.mode, **plain}

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Return whether the total cost ``total`` fits: each of its integers is at most the one in ``cap``.

        By default, ``cap`` is :attr:`cap`, the limit of this budget.
        """
        return all(part <= most for part, most in zip(total, self.cap if cap is None else cap, strict=True))

    def check_cost(self, cost: Sequence[object]) -> Cost:
        """Check a cost, and return it as a tuple.

        Raises:
            InvalidInput: if ``cost`` is not one non-negative integer for each name in :attr:`slots`.
        """
        right = len(cost) == len(self.slots) and all(type(part) is int and part >= 0 for part in cost)
        if not right:
            raise InvalidInput(
                f"cost in mode {self.mode!r} must be non-negative integers for {', '.join(self.slots)}; got "
                f"{cost!r}."
            )
        return tuple(part for part in cost if type(part) is int)

    @property
    def _conversion(self) -> float:
        """The part of delta left for the conversion to epsilon, after thresholds; rounded down."""
        rest = decimal(self.delta) - decimal(self.threshold_delta)
        rounded = float(rest)
        return rounded if Fraction(rounded) <= rest else math.nextafter(rounded, 0.0)

    def _delta_of(self, spent: Cost) -> float:
        """Return the delta of thresholds, and that of the conversion if anything was charged."""
        return (self._conversion if any(spent[:-1]) else 0.0) + spent[-1] / DELTA_UNIT

    def _pure_room(self, room: Cost) -> float:
        """Return about the largest pure epsilon that fits into ``room``; slots may be negative."""
        return room[0] / UNIT

    def would_fit(self, spent: Cost, cap: Cost, adjacency: Adjacency) -> float:
        """Return the largest epsilon that still fits, for one more release with delta 0.

        Args:
            spent: the total cost so far.
            cap: the limit on the total cost.
            adjacency: as for :meth:`price`.
        """
        room = tuple(most - part for part, most in zip(spent, cap, strict=True))
        guess, less = self._pure_room(room), 2.0**-52
        while guess >= 1.0 / UNIT:
            if self.admits(sum_of(spent, self.price(ApproximateDP(guess), adjacency)), cap):
                return guess
            guess, less = guess * (1.0 - less), 2.0 * less
        return 0.0


def sum_of(first: Cost, second: Cost) -> Cost:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def units_up(value: Fraction, unit: int) -> int:
    return math.ceil(value * unit)


def units_down(value: Fraction, unit: int) -> int:
    return math.floor(value * unit)


def least_cost(event: Event) -> int:
    """Return 1 unit if an event releases anything, even with a divergence that underflows, else 0."""
    return 1 if flatten(event) else 0


def above(units: int) -> float:
    """Return a float that is at least the value of this number of units."""
    return math.nextafter(units / UNIT, math.inf)


@final
@dataclass(frozen=True)
class PureBudget(Budget):
    """A pure-DP budget: the epsilons of all releases add up, and delta is 0.

    Use it if you only ask queries with Laplace noise. The sum is basic composition (Dwork et al. 2006). For a
    fixed budget, it also holds if you choose each release after you have seen the earlier ones (Rogers et al.
    2016, 1605.08294).

    >>> from tacit.events import ApproximateDP
    >>> budget = PureBudget(1.2)
    >>> budget.price(ApproximateDP(0.2), Adjacency.ADD_REMOVE), budget.cap  # units of 1e-12
    ((200000000000,), (1200000000000,))
    """

    mode: ClassVar[str] = "pure"
    epsilon: float

    slots = ("epsilon",)

    @cached_property
    def cap(self) -> Cost:
        """The limit on epsilon, as an integer in the scale of :meth:`price`."""
        return (units_down(decimal(self.epsilon), UNIT),)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the event's epsilon as an integer, in units of 1e-12, rounded up.

        It is the sum over all mechanisms in the event. An event with a delta is refused.
        """
        cost = pure_cost(event, adjacency)
        if cost is None or cost[1] > 0:
            raise UnsupportedEvent(
                f"this data set has a pure budget (delta 0), and {event!r} needs a delta. Use Laplace noise, "
                "or open the data set with a budget that has a delta."
            )
        return (units_up(cost[0], UNIT),)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Convert a total cost from an integer to a float; return (epsilon, 0.0)."""
        return spent[0] / UNIT, 0.0


@final
@dataclass(frozen=True)
class ApproximateBudget(Budget):
    """An (epsilon, delta) budget: the epsilons of all releases add up, and so do their deltas.

    The epsilon of Gaussian noise and of training depends on the delta you choose. Pass this ``delta`` to
    :meth:`price`, which then computes the epsilon of the whole event at this delta. The sums are basic
    composition (Dwork & Lei 2009), which also holds for mechanisms that overlap in time (Haney et al. 2023,
    2309.05901).

    >>> from tacit.events import ApproximateDP
    >>> budget = ApproximateBudget(1.0, 1e-6)
    >>> budget.price(ApproximateDP(0.5, 1e-7), Adjacency.ADD_REMOVE)  # units of 1e-12 and 1e-18
    (500000000000, 100000000000)
    """

    mode: ClassVar[str] = "approximate"
    epsilon: float
    delta: float

    slots = ("epsilon", "delta")

    @cached_property
    def cap(self) -> Cost:
        """The limits on epsilon and delta, as integers in the scale of :meth:`price`."""
        return units_down(decimal(self.epsilon), UNIT), units_down(decimal(self.delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return two integers: epsilon in units of 1e-12, and delta in units of 1e-18.

        Without ``delta``, each is the sum over all mechanisms in the event. With ``delta``, the cost is this
        delta and the epsilon of the whole event at it.
        """
        if delta is None:
            cost = pure_cost(event, adjacency)
            if cost is None:
                raise InvalidInput(
                    f"{event!r} has a finite epsilon only with a delta. Set one, such as delta=1e-7; it is "
                    f"taken from the budget's delta, {self.delta!r}."
                )
            return units_up(cost[0], UNIT), units_up(cost[1], DELTA_UNIT)
        epsilon = _epsilon_as_one(event, adjacency, delta)
        if not math.isfinite(epsilon):
            raise UnsupportedEvent(f"{event!r} has no finite epsilon at delta {delta!r}. Use a larger delta.")
        return units_up(Fraction(epsilon), UNIT), units_up(decimal(delta), DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Convert a total cost from integers to floats: (epsilon, delta)."""
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
    kinds: dict[str, Any] = {
        kind.mode: kind for kind in (PureBudget, ApproximateBudget, ZeroConcentratedBudget, RenyiBudget)
    }
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


@final
@dataclass(frozen=True)
class ZeroConcentratedBudget(Budget):
    """A budget of zero-concentrated DP (zCDP): the rhos of all releases add up.

    Use it for Gaussian noise without sampling. Rho is then s² / (2 sigma²): sigma is the standard deviation
    of the noise, and s (the sensitivity) is the most that one unit can change the sum, in L2 norm. The
    addition of rhos is from Bun & Steinke 2016 (1605.02065). For a fixed budget, it also holds if you choose
    each query after you have seen the earlier answers (Feldman & Zrnic 2021, 2008.11193).

    ``threshold_delta`` is the part of ``delta`` for releases with their own delta, such as groups selected by
    a noisy threshold. Such a release must be a single step, as every query is: no theorem covers interactive
    mechanisms that overlap in time.

    >>> budget = ZeroConcentratedBudget(1.0, 1e-6)
    >>> round(budget.cap[0] / UNIT, 4)  # the largest rho; the usual formula gives only 0.0175
    0.0244
    """

    mode: ClassVar[str] = "zcdp"
    epsilon: float
    delta: float
    threshold_delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap[0] == 0:
            raise InvalidInput(
                f"epsilon {self.epsilon!r} at delta {self.delta!r} is too small for zCDP: its rho is below "
                "1e-12, the smallest cost that the ledger can count. Use a larger epsilon, or a budget with "
                "delta 0."
            )

    slots = ("rho", "delta")

    @cached_property
    def cap(self) -> Cost:
        """The limits: the largest rho that implies (epsilon, delta - threshold_delta)-DP, and a delta.

        The delta is ``threshold_delta``. Both are integers in the scale of :meth:`price`.
        """
        rho = _largest_rho(self.epsilon, self._conversion)
        return rho, units_down(decimal(self.threshold_delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the event's rho, and the probability that its guarantee fails.

        Both are integers, rounded up: rho in units of 1e-12, the probability in units of 1e-18.
        """
        rho, leak = zcdp_cost(event, adjacency)
        return max(least_cost(event), units_up(rho, UNIT)), units_up(leak, DELTA_UNIT)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return a total cost as (epsilon, delta)."""
        epsilon = zcdp_curve(above(spent[0])).epsilon(self._conversion) if spent[0] else 0.0
        return epsilon, self._delta_of(spent)

    def _pure_room(self, room: Cost) -> float:
        return math.sqrt(2.0 * max(room[0], 0) / UNIT)  # a pure epsilon is epsilon^2 / 2-zCDP


@final
@dataclass(frozen=True)
class RenyiBudget(Budget):
    """A Renyi-DP budget: at each of a few fixed orders, the Renyi divergences of all releases add up.

    Use it if you mix Laplace and Gaussian noise, with or without sampling. A Renyi divergence measures
    privacy loss. Each order has a limit on its total, and a charge fits while at least one order is within
    its limit.

    Delta is divided equally among the orders. The limit of an order is the largest divergence that implies
    epsilon at its part of delta. For one order, the guarantee is Theorem 4.3 of Feldman & Zrnic 2021
    (2008.11193). For several orders, ``docs/how-to/ledger.md`` proves it.

    Attributes:
        threshold_delta: the part of ``delta`` for releases with their own delta, such as groups selected by a
            noisy threshold.
        orders: the Renyi orders, each above 1; by default five around the best one for Gaussian noise.

    >>> budget = RenyiBudget(3.0, 1e-6, orders=(8.0, 16.0, 32.0))
    >>> [round(cap / UNIT, 4) for cap in budget.cap[:-1]]  # the limit of each order
    [1.3, 2.2551, 2.6624]
    """

    mode: ClassVar[str] = "renyi"
    epsilon: float
    delta: float
    orders: tuple[float, ...] = ()
    threshold_delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
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
                f"orders {useless} are useless at epsilon {self.epsilon!r} and delta {self.delta!r}, and "
                f"each takes 1/{len(orders)} of delta. Leave them out."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the integers in a cost: one for each order, then ``delta``.

        ``delta`` is the probability that the guarantee of a release fails.
        """
        return (*(f"order {order:g}" for order in self.orders), "delta")

    @property
    def _order_delta(self) -> float:
        """The delta at which each order's divergence is converted to epsilon; rounded down."""
        return math.nextafter(self._conversion / len(self.orders), 0.0)

    @cached_property
    def cap(self) -> Cost:
        """The limits: for each order, the largest divergence that implies (epsilon, share of delta)-DP.

        The last number is the limit on the delta of thresholds. All are integers in the scale of
        :meth:`price`.
        """
        most = _largest_divergences(self.epsilon, self._order_delta, self.orders)
        return (*most, units_down(decimal(self.threshold_delta), DELTA_UNIT))

    def admits(self, total: Cost, cap: Cost | None = None) -> bool:
        """Return whether ``total`` fits: at least one order is within its limit, and so is ``delta``."""
        most = self.cap if cap is None else cap
        orders = zip(total[:-1], most[:-1], strict=True)
        return total[-1] <= most[-1] and any(part <= limit for part, limit in orders)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """Return the event's Renyi divergence at each order, and the probability that its guarantee fails.

        All are integers, rounded up: divergences in units of 1e-12, the probability in units of 1e-18.
        """
        return _renyi_price(event, self.orders, adjacency)

    def _pure_room(self, room: Cost) -> float:
        parts = zip(self.orders, room[:-1], strict=True)
        return max((_pure_fit(order, part) for order, part in parts if part > 0), default=0.0)

    def epsilon_of(self, spent: Cost) -> tuple[float, float]:
        """Return a total cost as (epsilon, delta).

        Each order implies an epsilon at its share of delta; the smallest counts.
        """
        totals = [min(part, ENDLESS) for part in spent[:-1]]
        epsilon = float(_epsilons(totals, self.orders, self._order_delta).min()) if any(spent[:-1]) else 0.0
        if all(part >= ENDLESS for part in totals):
            epsilon = math.inf
        return epsilon, self._delta_of(spent)


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
    """Return about the pure epsilon whose worst case, randomized response, has divergence ``room``."""
    # With p = e^eps / (1 + e^eps), its divergence at order a is log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a)) / (a -
    # 1).
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
    """Return five orders around the best one for Gaussian noise, 1 + sqrt(log(1/delta) / rho)."""
    # Here rho is the solution of epsilon = rho + 2 sqrt(rho log(1/delta)). Lower orders suit training, higher
    # orders a few counts.
    log = -math.log(delta)
    root = math.sqrt(log + epsilon) - math.sqrt(log)  # sqrt(rho)
    best = math.sqrt(log) / root
    return tuple(1.0 + float(f"{factor * best:.3g}") for factor in (0.7, 1.0, 1.5, 2.5, 6.0))


# --- the policy --------------------------------------------------------------------------------------------

OWNED_BY = "owned by the column"
"""The words before the unit column in the label of a training charge, if a record is a person's rows."""
_LARGEST_TABLE = 2**62
_TYPES: tuple[tuple[str, Any, str], ...] = (
    ("budget", Budget, "a Budget, such as PureBudget(1.0)"),
    ("columns", Mapping, "an object of columns by name"),
    ("blocks", list | tuple, "a list of names"),
    ("dialect", Dialect, "a Dialect"),
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The public facts about a data set: the unit of privacy, the budget, and the columns.

    Attributes:
        unit: a word for what the guarantee protects, such as ``patient`` or ``row``.
        adjacency: how neighbouring data sets differ: ``add-remove``, ``replace-one`` or ``zero-out``; see
            :class:`~tacit.events.Adjacency`.
        budget: the limit on epsilon and delta; its class determines how costs add up.
        unit_column: the column that identifies the unit of each row, such as the patient's number. None if
            each row is a unit.
        rows_per_unit: the most rows that a query counts for each unit; it drops further rows.
        groups_per_unit: the most groups of an answer in which the same unit counts; ``rows_per_unit`` by
            default.
        largest_table: an upper bound on the table's number of rows, now and later.
        public_records: the number of records, if it is public; ``replace-one`` needs it.
        columns: the public facts about each column, by name.
        dialect: the format of the data set's CSV files.
        blocks: the names of the blocks, which are parts of the data set that share no person. Charges to
            different blocks do not add up (under ``replace-one``, those to two blocks do).
        parent: the name of the data set that this one is derived from. Every charge to this data set is also
            charged to the parent.
        parent_block: the block of the parent that contains this data set.
        note: who approved the policy, why, and until when; the certificate prints it.

    >>> from tacit.ledger import PureBudget
    >>> policy = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))
    >>> Policy.from_json(policy.to_json()) == policy
    True
    """

    unit: str
    adjacency: Adjacency | str
    budget: Budget
    unit_column: str | None = None
    rows_per_unit: int = 1
    groups_per_unit: int | None = None
    largest_table: int = 10**9
    public_records: int | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    dialect: Dialect = field(default_factory=Dialect)
    blocks: tuple[str, ...] = ()
    parent: str | None = None
    parent_block: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("unit", "note"):
            _check_text(name, getattr(self, name), empty=name == "note")
        for name in ("unit_column", "parent", "parent_block"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        put("adjacency", Adjacency.parse(self.adjacency))
        for name, kind, words in _TYPES:
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} must be {words}; got {getattr(self, name)!r}.")
        check_integer("rows_per_unit", self.rows_per_unit, low=1)
        check_integer("largest_table", self.largest_table, low=1, high=_LARGEST_TABLE)
        if self.groups_per_unit is not None:
            check_integer("groups_per_unit", self.groups_per_unit, low=1, high=self.rows_per_unit)
        if self.public_records is not None:
            check_integer("public_records", self.public_records, low=1, high=self.largest_table)
        put("columns", MappingProxyType(dict(self.columns)))
        put("blocks", tuple(self.blocks))
        self._check_together()

    def _check_together(self) -> None:
        if self.unit_column is None and self.rows_per_unit != 1:
            raise InvalidInput(
                f"rows_per_unit is {self.rows_per_unit}, but without unit_column each row is a unit. Set "
                "unit_column to the column that identifies a row's unit."
            )
        if self.adjacency is Adjacency.REPLACE_ONE and self.public_records is None:
            raise InvalidInput(
                "adjacency replace-one makes the number of records public. Set public_records, or use "
                "add-remove, which hides the number."
            )
        if self.adjacency is Adjacency.ADD_REMOVE and self.public_records is not None:
            raise InvalidInput(
                "public_records is not allowed with add-remove, which hides the number of records. Leave "
                "it out, or use replace-one."
            )
        for name, column in self.columns.items():
            _check_text("name of a column", name)
            if not isinstance(column, Column):
                raise InvalidInput(f"columns[{name!r}] must be a Column; got {column!r}.")
        for block in self.blocks:
            _check_text("name of a block", block)
            if not block.isprintable():
                raise InvalidInput(f"the name of a block must be printable; got {block!r}.")
        if len(set(self.blocks)) != len(self.blocks):
            raise InvalidInput(f"blocks must have distinct names; got {self.blocks!r}.")
        if self.parent_block is not None and self.parent is None:
            raise InvalidInput(
                f"parent_block {self.parent_block!r} needs parent, the data set with that block. Set parent."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Policy.from_json, (self.to_json(),)

    @property
    def relation(self) -> Adjacency:
        """The adjacency as a member of :class:`~tacit.events.Adjacency`."""
        return Adjacency.parse(self.adjacency)

    @property
    def needed_columns(self) -> list[str]:
        """The columns that a table must have: the unit column and the declared columns."""
        return list(dict.fromkeys([*([self.unit_column] if self.unit_column else []), *self.columns]))

    def to_data(self) -> dict[str, Any]:
        """Return all fields of the policy as a dict for JSON."""
        data: dict[str, Any] = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("columns", "dialect")
        }
        changed = {
            "adjacency": self.relation.value,
            "budget": self.budget.to_data(),
            "blocks": list(self.blocks),
            "columns": {name: column.to_data() for name, column in self.columns.items()},
        }
        dialect = self.dialect.to_data()
        return data | changed | ({"dialect": dialect} if dialect else {})

    def to_json(self) -> str:
        """Return the policy as JSON; :meth:`from_json` reads it back."""
        return json.dumps(self.to_data(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """Read a policy from JSON.

        Raises:
            InvalidInput: if ``text`` is not a policy, or has an unknown field.
        """
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as problem:  # not JSON, a huge number, equal keys, or too deep
            raise InvalidInput(f"not a policy in JSON: {problem}.") from None
        return cls.from_data(data)

    @classmethod
    def from_data(cls, data: object) -> Policy:
        """Read a policy from a dict like that of :meth:`to_data`; fields with defaults may be absent."""
        names = [item.name for item in fields(cls)]
        settings = check_settings("a policy", data, names, ["unit", "adjacency", "budget"])
        parts = {
            "budget": budget_from_data(settings["budget"]),
            "columns": parse_columns(settings.get("columns", {}), source="a policy: "),
            "dialect": Dialect.from_data(settings.get("dialect", {}), "dialect"),
        }
        return cls(**settings | parts)


def _check_text(name: str, value: object, *, empty: bool = False) -> None:
    if not isinstance(value, str) or (not value and not empty) or "\x00" in value:
        raise InvalidInput(f"{name} must be a string{'' if empty else ' that is not empty'}; got {value!r}.")


_NOT_HERE = ("budget", "columns", "dialect")  # these have separate sections


def read_policy(path: Path | str) -> Policy:
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no policy at {path}. `tacit init TABLE --policy --out {path}` writes one to fill in."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"the policy {path} cannot be read: {reason_of(problem)}. Check the path."
        ) from None
    return parse_policy(text, source=str(path))


def parse_policy(text: str, *, source: str = "the policy") -> Policy:
    refuse_blanks(text, source)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # not TOML, a number of thousands of digits, or too deep
        raise InvalidInput(f"{source} is not TOML: {problem}. Correct that place.") from None
    check_settings(source, data, ("policy", "budget", "columns", "table"), ("policy", "budget"))
    place = f"{source}: [policy]"
    names = [field.name for field in fields(Policy) if field.name not in _NOT_HERE]
    settings = check_settings(place, data["policy"], names, ("unit", "adjacency"))
    budget = budget_from_data(data["budget"], f"{source}: [budget]")
    columns = parse_columns(data.get("columns", {}), source=f"{source}: ")
    dialect = Dialect.from_data(data.get("table", {}), f"{source}: [table]")
    try:
        return Policy(**settings, budget=budget, columns=columns, dialect=dialect)
    except InvalidInput as problem:
        raise InvalidInput(f"{place}: {problem}") from None


NO_COLUMN = "none"
"""The value of ``unit_column`` for data in which each row is a unit."""

_HEAD = """\
# The policy of a data set: the unit that it protects, its budget, and public facts of its columns. It is
# fixed when the data set is opened. Replace every "FILL IN".
#
# Do not take bounds and values from the table: the largest value of a column belongs to a person, and so does
# a value that only one person has. Take them from public knowledge: an age is from 0 to 120, and the wards
# are on the hospital's web page. Numbers outside the bounds are clipped to them.
"""
_LIMITS = """\
rows_per_unit = 1                 # the most rows per unit that count; more rows need more noise
{adjacency}
{largest_table}
# public_records = 1000           # only if the number of records is public; "replace-one" needs it
# groups_per_unit = 1             # the most groups of an answer that one unit counts in
# blocks = ["2024", "2025"]       # parts that share no person, if you will charge each one separately
# parent = "visits"               # the data set that this one is derived from, which is charged too
{note}
"""
_UNIT_COLUMN = "identifies a row's unit; delete the line if each row is a unit"
_LARGEST_TABLE_HINT = "an upper bound on the table's rows, now and later, such as 100000"
_COLUMNS = """\
# Delete the columns that no query needs, and the one that identifies the unit. Kinds and formats were
# proposed from the table; they become public with this policy: check them.
"""


def policy_template(
    sections: Sequence[str] = (),
    *,
    unit: str | None = None,
    unit_column: str | None = None,
    largest_table: int | None = None,
    adjacency: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    note: str | None = None,
) -> str:
    """Return a policy in TOML, to fill in from public knowledge of the data."""
    policy = [setting("unit", unit, 'the unit of privacy, such as "patient" or "customer"')]
    if unit_column != NO_COLUMN:
        policy.append(setting("unit_column", unit_column, _UNIT_COLUMN))
    policy.append(
        _LIMITS.format(
            adjacency=setting(
                "adjacency",
                adjacency,
                '"add-remove" hides whether a unit is there, "replace-one" its values',
            ),
            largest_table=setting("largest_table", largest_table, _LARGEST_TABLE_HINT),
            note=setting("note", note, "who approved this budget, when, why, until when"),
        )
    )
    budget = [
        setting("mode", "renyi", 'trainings and queries; "pure": Laplace noise; "zcdp": Gaussian noise'),
        setting("epsilon", epsilon, "for all releases together: 1 is strong, above 10 is weak"),
        setting("delta", delta, 'a tenth of 1 / largest_table, or less; not for "pure"'),
        setting("# threshold_delta", 1e-7, "the part of delta for undeclared groups and other tools' deltas"),
    ]
    parts = [_HEAD, "\n".join(["[policy]", *policy]), "\n".join(["[budget]", *budget]) + "\n"]
    columns = [section for section in sections if section.startswith("[columns.")]
    if columns:
        tables = [section for section in sections if section not in columns]
        parts += [*tables, _COLUMNS, *columns]
    return "\n".join(parts)
