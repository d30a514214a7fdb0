"""The one thing that every accountant returns: epsilon as a function of delta, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from tacit.errors import check_real
from tacit.events import Adjacency, Event

__all__ = ["Price", "PrivacyCurve"]


class Price(ABC):
    """What one accountant knows of one event.  ``delta`` in (0, 1), ``epsilon`` >= 0, finite."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at ``delta``."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at ``epsilon``."""

    @abstractmethod
    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """A lower and an upper bound on epsilon; the lower one is 0.0 where none is known."""


@final
@dataclass(frozen=True)
class PrivacyCurve:
    """The (epsilon, delta) pairs that an event satisfies, as one accountant sees them.

    ``method`` and ``adjacency`` are those that the curve was made with; ``event`` is what was priced.

    Guarantee
    ---------
    * ``epsilon(delta)`` is an upper bound: the event is (epsilon(delta), delta)-DP under ``adjacency``.
    * ``delta(epsilon)`` is an upper bound: the event is (epsilon, delta(epsilon))-DP.
    * ``epsilon_bounds(delta)`` brackets the smallest epsilon for which the dominating pair of the event
      satisfies (epsilon, delta); its upper end is ``epsilon(delta)``.
    * No value is negative or NaN; epsilon is infinite only where no finite value is known.

    >>> from tacit.accounting import account
    >>> from tacit.events import Gaussian
    >>> curve = account(Gaussian(1.0), adjacency="add-remove")
    >>> round(curve.epsilon(1e-5), 6), round(curve.delta(1.0), 6)
    (4.377178, 0.126937)
    """

    method: str
    adjacency: Adjacency
    event: Event
    _price: Price = field(repr=False, compare=False)

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def epsilon(self, delta: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """An upper bound on epsilon.

        :param delta: in (0, 1); a number, or an array of any shape.
        :returns: a number, or an array of the same shape; in natural units (nats), >= 0.
        :raises InvalidInput: if a delta is not in (0, 1).
        """
        if isinstance(delta, np.ndarray):
            return _each(self._epsilon, delta)
        return self._epsilon(delta)

    def _epsilon(self, delta: float) -> float:
        return _not_negative(self._price.epsilon(_check_delta(delta)))

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def delta(self, epsilon: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """An upper bound on delta.

        :param epsilon: >= 0, in nats; a number, or an array of any shape.
        :returns: a number in [0, 1], or an array of the same shape.
        :raises InvalidInput: if an epsilon is negative or not finite.
        """
        if isinstance(epsilon, np.ndarray):
            return _each(self._delta, epsilon)
        return self._delta(epsilon)

    def _delta(self, epsilon: float) -> float:
        return min(1.0, _not_negative(self._price.delta(check_real("epsilon", epsilon, low=0.0))))

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """A lower and an upper bound on the epsilon of the event's dominating pair at ``delta``.

        The lower end is 0.0 where the accountant knows no better.

        :raises InvalidInput: if delta is not in (0, 1).
        """
        lower, upper = self._price.epsilon_bounds(_check_delta(delta))
        return _not_negative(lower), _not_negative(upper)


def _check_delta(delta: object) -> float:
    return check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)


def _not_negative(value: float) -> float:
    if math.isnan(value):  # pragma: no cover - a defect of an accountant, never let through
        raise ArithmeticError("an accountant returned NaN; please report the event and the method.")
    return max(0.0, value)


def _each(function: Callable[[float], float], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([function(float(value)) for value in values.ravel()]).reshape(values.shape)
