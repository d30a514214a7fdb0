"""Renyi differential privacy, at any real order, with the best conversion to (epsilon, delta).

For alpha > 1, eps_RDP(alpha) = log E_Q (P/Q)^alpha / (alpha - 1) = log E_P e^{(alpha-1) L} / (alpha - 1)
(Mironov 2017, 1702.07476, Definition 4).  It adds up over steps (Proposition 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.accounting.flatten import Steps, in_units_of
from tacit.accounting.price import Array, Price
from tacit.accounting.renyi.conversion import epsilon_at_orders, log_delta_at_orders
from tacit.accounting.renyi.divergences import largest_order, renyi, summed
from tacit.events import Adjacency

_UP = 1.0 + 1e-12  # rounding, relative
_LEAST, _STRIDE, _BLOCK = 1e-3, 0.3, 12  # of alpha - 1: the first, the step in its log, the number in a block
_CLOSER = 4


@dataclass(frozen=True)
class RenyiPrice(Price):
    """The best conversion over all orders of a Renyi curve.  Every order gives a valid bound.

    ``total(orders)`` is eps_RDP of the whole event, in the shape of ``orders``.  ``largest`` is the largest
    alpha - 1.
    """

    total: Callable[[Array], Array]
    largest: float

    def epsilon(self, delta: float) -> float:
        return max(0.0, self._least(lambda orders, gamma: epsilon_at_orders(orders, gamma, delta)))

    def delta(self, epsilon: float) -> float:
        log_delta = self._least(lambda orders, gamma: log_delta_at_orders(orders, gamma, epsilon))
        return math.exp(min(0.0, log_delta)) * _UP

    def _least(self, convert: Callable[[Array, Array], Array]) -> float:
        """Minimise ``convert`` over the orders: in blocks upwards until one gains nothing, then locally."""
        least, log_a = math.inf, math.log(_LEAST)
        for block in _blocks(self.largest):
            values = self._values(block, convert)
            best = int(np.argmin(values))
            if not values[best] < least and least < math.inf:
                break
            if values[best] < least:
                least, log_a = float(values[best]), float(block[best])
        width = _STRIDE
        for _ in range(_CLOSER):
            closer = log_a + width * np.linspace(-0.75, 0.75, 7)
            values = self._values(np.minimum(closer, math.log(self.largest)), convert)
            best = int(np.argmin(values))
            if values[best] < least:
                least, log_a = float(values[best]), float(closer[best])
            width /= 4.0
        return least

    def _values(self, log_a: Array, convert: Callable[[Array, Array], Array]) -> Array:
        orders = 1.0 + np.exp(log_a)
        gamma = self.total(orders)
        values = np.full_like(gamma, math.inf)
        finite = gamma < math.inf
        if finite.any():
            values[finite] = convert(orders[finite], gamma[finite])
        return values


@lru_cache(maxsize=16)
def _blocks(largest: float) -> tuple[Array, ...]:
    """Return log(alpha - 1) in blocks of a dozen, from 1e-3 to ``largest``, log-spaced."""
    logs = np.arange(math.log(_LEAST), math.log(largest), _STRIDE)
    return tuple(logs[first : first + _BLOCK] for first in range(0, logs.size, _BLOCK))


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by Renyi divergences, and refuse, by name, mechanisms without a proven one.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.  Every order gives one, and the least is used.
    * Both directions of add-remove are covered at every order.
    """
    units = in_units_of(adjacency, steps)
    least = [renyi(base, np.array([1.0 + _LEAST]), adjacency) for base, _ in units]  # raises if none is known
    if any(math.isinf(float(divergence[0])) for divergence in least):  # then it is at larger orders, too
        return RenyiPrice(lambda orders: np.full_like(orders, math.inf), 1.0)
    return RenyiPrice(
        lambda orders: summed(units, orders, adjacency),
        min((largest_order(base, adjacency) for base, _ in units), default=1e9),
    )
