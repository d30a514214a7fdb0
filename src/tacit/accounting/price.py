"""What must an accountant answer? The interface of all accountants: the cost of one event."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

_LEAST_DELTA = 1e-300


@dataclass(frozen=True)
class ErrorBudget:
    """Where the width of the bracket at one delta comes from; all figures in nats.

    ``parts`` says by name how far each source of error (``discretisation``, ``truncation``, ``rounding``)
    may have moved the ends of the bracket apart; it is empty where an accountant does not tell.

    >>> ErrorBudget(delta=1e-5, lower=0.5, upper=0.75, parts={"rounding": 0.01}).width
    0.25
    """

    delta: float
    lower: float
    upper: float
    parts: Mapping[str, float]

    @property
    def width(self) -> float:
        """Upper less lower end; infinite if the upper end is."""
        return self.upper - self.lower


class Price(ABC):
    """What one accountant knows of one event.  ``delta`` in (0, 1), ``epsilon`` >= 0, finite.

    Three answers are asked of every accountant; the others follow from them, and an accountant overrides
    those that it can give faster or tighter.
    """

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at ``delta``."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at ``epsilon``."""

    @abstractmethod
    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """A lower and an upper bound on epsilon; the lower one is 0.0 where none is known."""

    def near(self, delta: float) -> float:
        """epsilon to a few digits, on either side, for a search that is certified later; cheaper, if it can
        be."""
        return self.epsilon(delta)

    def is_tight(self, delta: float) -> bool:
        """Whether it is known that no other accountant can prove less at ``delta``, but for a few digits."""
        return False

    def tight_delta(self, epsilon: float) -> float | None:
        """``delta(epsilon)`` where it is known that no other accountant can prove less, but for a few digits;
        else None."""
        return None

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """A lower and an upper bound on delta; the lower one is 0.0 where none is known."""
        upper = min(1.0, self.delta(epsilon))
        return _least_delta(lambda delta: self.epsilon_bounds(delta)[0], epsilon, upper), upper

    def epsilons(self, deltas: Array) -> Array:
        """Upper bounds on epsilon at each of ``deltas``, of shape (n,).  One computation may serve them
        all, at the price of a few digits."""
        return np.array([self.epsilon(float(delta)) for delta in deltas], dtype=np.float64)

    def deltas(self, epsilons: Array) -> Array:
        """Upper bounds on delta at each of ``epsilons``, of shape (n,); as :meth:`epsilons`."""
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons], dtype=np.float64)

    def by_direction(self, delta: float) -> Mapping[str, float]:
        """Upper bounds on epsilon by direction of the adjacency; empty where they are not distinguished."""
        return {}

    def error_budget(self, delta: float) -> ErrorBudget:
        """The bracket at ``delta``, and where its width comes from."""
        lower, upper = self.epsilon_bounds(delta)
        return ErrorBudget(delta, lower, upper, {})


def _least_delta(lower_epsilon: Callable[[float], float], epsilon: float, upper: float) -> float:
    """A delta that the mechanism exceeds at ``epsilon``: there, the lower bound on epsilon is above it.

    If the least epsilon at d is above ``epsilon``, then delta(epsilon) > d.  Looked for from ``upper`` down.
    """

    def exceeded(log_gap: float) -> bool:
        delta = upper * math.exp(-math.exp(log_gap))
        return _LEAST_DELTA < delta < 1.0 and lower_epsilon(delta) > epsilon

    too_near = math.log(1e-11)
    for enough in np.log(10.0 ** np.arange(-10.0, 3.0)):
        if exceeded(float(enough)):
            break
        too_near = float(enough)
    else:
        return 0.0
    for _ in range(4):
        middle = (too_near + float(enough)) / 2.0
        too_near, enough = (too_near, middle) if exceeded(middle) else (middle, enough)
    return upper * math.exp(-math.exp(float(enough)))
