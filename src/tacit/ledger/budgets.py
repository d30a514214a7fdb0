"""What is a budget counted in? A cap, the price of an event, and whether a total still fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, final

from tacit.accounting import account
from tacit.accounting.additive import decimal, pure_cost
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import Adjacency, Event
from tacit.ledger.counting import (
    DELTA_UNIT,
    UNIT,
    Budget,
    Cost,
    check_limit,
    units_down,
    units_up,
)
from tacit.ledger.renyi import RenyiBudget, ZeroConcentratedBudget


@final
@dataclass(frozen=True)
class PureBudget(Budget):
    """Epsilons add up; no delta (Dwork et al. 2006; as a filter Rogers et al. 2016, 1605.08294).

    For query-only data with Laplace noise.

    >>> from tacit.events import ApproximateDP
    >>> budget = PureBudget(1.2)
    >>> budget.price(ApproximateDP(0.2), Adjacency.ADD_REMOVE), budget.cap
    ((200000000000,), (1200000000000,))
    """

    mode: ClassVar[str] = "pure"
    epsilon: float

    def __post_init__(self) -> None:
        check_limit(self, self.epsilon)

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
        return (units_down(decimal(self.epsilon), UNIT),)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """The sum of the epsilons; an event with a delta is refused."""
        found = pure_cost(event, adjacency)
        if found is None or found[1] > 0:
            raise UnsupportedEvent(
                f"a budget of pure epsilon cannot hold {event!r}: it has no guarantee with delta 0. Use "
                "Laplace noise, or open the data set with a budget that has a delta."
            )
        return (units_up(found[0], UNIT),)

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

    An event without an epsilon, such as Gaussian noise or a training run, is charged as a whole at the delta
    that the caller names, by the tight accountant.

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
        return units_down(decimal(self.epsilon), UNIT), units_down(decimal(self.delta), DELTA_UNIT)

    def price(self, event: Event, adjacency: Adjacency, *, delta: float | None = None) -> Cost:
        """By plain addition where that is possible and no delta is given, else as one event at ``delta``."""
        if delta is None:
            found = pure_cost(event, adjacency)
            if found is None:
                raise InvalidInput(
                    f"{event!r} has no epsilon without a delta. Name the delta at which to charge it, such "
                    f"as delta=1e-7 out of the {self.delta!r} of the budget."
                )
            return units_up(found[0], UNIT), units_up(found[1], DELTA_UNIT)
        epsilon = _epsilon_as_one(event, adjacency, delta)
        if not math.isfinite(epsilon):
            raise UnsupportedEvent(f"{event!r} has no finite epsilon at delta {delta!r}. Use a larger delta.")
        return units_up(Fraction(epsilon), UNIT), units_up(decimal(delta), DELTA_UNIT)

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
    """By the tightest accountant that knows all of ``event``, with parameters fixed beforehand."""
    refused: UnsupportedEvent | None = None
    for method in ("pld", "rdp", "basic"):
        try:
            return account(event, adjacency=adjacency, method=method).epsilon(delta)
        except UnsupportedEvent as problem:
            refused = refused or problem
    assert refused is not None
    raise refused


_BUDGETS: dict[str, type[Any]] = {
    kind.mode: kind for kind in (PureBudget, ApproximateBudget, ZeroConcentratedBudget, RenyiBudget)
}


def budget_from_data(data: object) -> Budget:
    """Read a budget written by ``to_data``.

    >>> budget_from_data({"mode": "pure", "epsilon": 1.0})
    PureBudget(epsilon=1.0)
    """
    mode = data.get("mode") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(mode, str) or mode not in _BUDGETS:
        raise InvalidInput(f"a budget is an object whose mode is one of {', '.join(_BUDGETS)}; got {data!r}.")
    kind = _BUDGETS[mode]
    fields = {str(key): value for key, value in data.items() if key != "mode"}
    known = set(kind.__dataclass_fields__) - {"mode"}
    if not set(fields) <= known:
        raise InvalidInput(
            f"a budget of mode {mode!r} has the fields {', '.join(sorted(known))}; "
            f"got {', '.join(sorted(set(fields) - known))}."
        )
    try:
        budget: Budget = kind(**fields)
    except TypeError:
        raise InvalidInput(
            f"a budget of mode {mode!r} needs {', '.join(sorted(known))}; got {data!r}."
        ) from None
    return budget
