"""How are curves made from other curves? The least of several, for groups of records, for two releases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tacit.accounting.price import Array, Price

_UP = 1.0 + 1e-12
_SHARES = 1.0 / (1.0 + np.exp(-np.linspace(-10.0, 10.0, 21)))  # of delta, in a sum of two curves


@dataclass(frozen=True)
class LeastPrice(Price):
    """The least upper bound of several ``roads`` to the same price, by name.

    Lower ends are those of the first road, and 0 where another road shows that its dominating pair costs more
    than the mechanism.  The others are not asked where the first is tight, nor taken where they are less by
    no more than ``alike``, relative.
    """

    roads: Mapping[str, Price]
    alike: float = 0.0

    @property
    def first(self) -> Price:
        """The road that is asked first."""
        return next(iter(self.roads.values()))

    def road(self, delta: float) -> str:
        """The road that gives ``epsilon(delta)``."""
        return self._least(delta)[1]

    def _least(self, delta: float) -> tuple[float, str]:
        (name, first), *others = self.roads.items()
        best = first.epsilon(delta), name
        for name, road in [] if best[0] == 0.0 or first.is_tight(delta) else others:
            if (found := road.epsilon(delta)) < best[0] * (1.0 - self.alike):
                best = found, name
        return best

    def epsilon(self, delta: float) -> float:
        return self._least(delta)[0]

    def delta(self, epsilon: float) -> float:
        tight = self.first.tight_delta(epsilon)
        return min(road.delta(epsilon) for road in self.roads.values()) if tight is None else tight

    def near(self, delta: float) -> float:
        if self.first.is_tight(delta):
            return self.first.near(delta)
        return min(road.near(delta) for road in self.roads.values())

    def is_tight(self, delta: float) -> bool:
        return self.first.is_tight(delta)

    def tight_delta(self, epsilon: float) -> float | None:
        return self.first.tight_delta(epsilon)

    def epsilons(self, deltas: Array) -> Array:
        found = self.first.epsilons(deltas)
        if np.isfinite(found).all():
            return found
        for road in list(self.roads.values())[1:]:
            found = np.minimum(found, road.epsilons(deltas))
        return found

    def deltas(self, epsilons: Array) -> Array:
        found = self.first.deltas(epsilons)
        if not (found >= 1.0).any():
            return found
        for road in list(self.roads.values())[1:]:
            found = np.minimum(found, road.deltas(epsilons))
        return found

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        lower = self.first.epsilon_bounds(delta)[0] if upper > 0.0 else 0.0
        return (lower if lower <= upper else 0.0), upper

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        lower, upper = self.first.delta_bounds(epsilon)[0], self.delta(epsilon)
        return (lower if lower <= upper else 0.0), upper

    def by_direction(self, delta: float) -> Mapping[str, float]:
        return self.first.by_direction(delta)


@dataclass(frozen=True)
class GroupPrice(Price):
    """k records from one: (k e, d(e) (e^{k e} - 1) / (e^e - 1)) for every e >= 0."""

    one: Price
    size: int

    def _delta(self, each: float) -> float:
        return self._grown(each, self.one.delta(each))

    def _grown(self, each: float, delta: float) -> float:
        """The group's delta from (each, delta) of one record; 1.0 where it says nothing."""
        log_factor = math.log(self.size) if each == 0.0 else _log_expm1(self.size * each) - _log_expm1(each)
        if delta <= 0.0 or math.log(delta) + log_factor >= 0.0:
            return 0.0 if delta <= 0.0 else 1.0
        return math.exp(math.log(delta) + log_factor) * _UP

    def delta(self, epsilon: float) -> float:
        # the bound may rise with epsilon before it falls; what holds at 0 holds further up
        return min(self._delta(epsilon / self.size / _UP), self._delta(0.0))

    def deltas(self, epsilons: Array) -> Array:
        each = np.append(epsilons / self.size / _UP, 0.0)
        found = np.array([self._grown(*pair) for pair in zip(each, self.one.deltas(each), strict=True)])
        least: Array = np.minimum(found[:-1], found[-1])
        return least

    def epsilon(self, delta: float) -> float:
        if self._delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, max(1e-9, self.one.epsilon(delta))
        if not math.isfinite(high):
            return math.inf
        for _ in range(60):
            if self._delta(high) <= delta:
                break
            low, high = high, 2.0 * high
        else:
            return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self._delta(middle) <= delta else (middle, high)
        return self.size * high * _UP

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        return min(self.one.epsilon_bounds(delta)[0], upper), upper


@dataclass(frozen=True)
class SumPrice(Price):
    """Two releases by basic composition: epsilons add up, and delta is shared."""

    first: Price
    second: Price

    def epsilon(self, delta: float) -> float:
        first, second = (
            self.first.epsilons(_SHARES * delta),
            self.second.epsilons(_SHARES[::-1] * delta / _UP),
        )
        return float((first + second).min()) * _UP

    def delta(self, epsilon: float) -> float:
        shares = np.concatenate([[0.0], _SHARES, [1.0]]) * epsilon
        together = self.first.deltas(shares / _UP) + self.second.deltas(shares[::-1] / _UP)
        return float(together.min()) * _UP

    def deltas(self, epsilons: Array) -> Array:
        shares = np.concatenate([[0.0], _SHARES, [1.0]])
        table = np.multiply.outer(epsilons, shares)  # of (epsilon, share)
        first = self.first.deltas((table / _UP).ravel()).reshape(table.shape)
        second = self.second.deltas(table[:, ::-1].ravel()).reshape(table.shape)
        least: Array = (first + second).min(axis=1) * _UP
        return least

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """Forgetting one of the releases is post-processing, so the larger of the lower ends holds."""
        upper = self.epsilon(delta)
        lower = max(self.first.epsilon_bounds(delta)[0], self.second.epsilon_bounds(delta)[0])
        return min(lower, upper), upper


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
