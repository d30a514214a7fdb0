"""The trade-off function that a run claims, and the trade-off functions of mu-GDP and (epsilon, delta)-DP.

A trade-off function f maps a false-positive rate to the least false-negative rate of any membership test
(Dong, Roth & Su 2019, 1905.02383).  Audits compare a run with f, never with a single pair (epsilon, delta),
because such a pair allows far more than f does.
"""

from __future__ import annotations

from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from tacit.accounting import PrivacyCurve, account
from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, Gaussian

Array: TypeAlias = NDArray[np.float64]

_NODES = 256  # on either side of one half; half of them are geometric up to _SMALL, the rest evenly spaced
_LEAST, _SMALL = 1e-8, 0.02
_ROUNDING = 1e-13  # the rounding error of an extrapolated chord


@final
class Claim:
    """The trade-off curve of an accounted run as a table, and the delta at which its epsilon is stated.

    **Guarantee**

    * ``false_negatives`` is at most the curve's trade-off function f, at every rate.  f is convex, so chords
      that are extended beyond their ends stay below it.

    >>> from tacit.events import PoissonSampled, Repeat
    >>> curve = account(Repeat(PoissonSampled(0.1, Gaussian(1.0)), 200), adjacency="add-remove")
    >>> claim = Claim(curve, delta=1e-5)
    >>> round(claim.epsilon, 2)
    9.97
    >>> bool(0.0 < curve.false_negative_rate(0.05) - claim.false_negatives(0.05) < 1e-4)
    True
    """

    def __init__(self, curve: PrivacyCurve, *, delta: float, nodes: int = _NODES) -> None:
        """Tabulate ``curve`` at about 2 ``nodes`` rates.  ``delta`` must be in (0, 1).

        Raises:
            InvalidInput: if the curve is that of a group of records, because canaries are single records.
        """
        check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
        if curve.records != 1:
            raise InvalidInput(
                f"the curve is for {curve.records} records together; an audit plants single records. Give "
                "the curve of one record."
            )
        self.curve, self.delta = curve, delta
        self.epsilon: float = curve.epsilon(delta)
        side = np.concatenate(
            [np.geomspace(_LEAST, _SMALL, nodes // 2, endpoint=False), np.linspace(_SMALL, 0.5, nodes // 2)]
        )
        self._a = np.concatenate([[0.0], side, 1.0 - side[-2::-1], [1.0]])
        self._f = curve.false_negative_rate(self._a)
        slope = np.diff(self._f) / np.diff(self._a)
        self._before = np.concatenate([[0.0], slope[:-1]])  # the slope of the chord before each interval
        self._after = np.concatenate([slope[1:], [0.0]])  # the slope of the chord after each interval

    def false_negatives(self, rates: ArrayLike) -> Array:
        """Bound f from below at false-positive rates in [0, 1], in the shape of ``rates``."""
        a = np.asarray(rates, dtype=np.float64)
        i = np.clip(np.searchsorted(self._a, a, side="right") - 1, 0, self._a.size - 2)
        before = np.where(i > 0, self._f[i] + self._before[i] * (a - self._a[i]), 0.0)
        after = np.where(
            i < self._a.size - 2, self._f[i + 1] - self._after[i] * (self._a[i + 1] - a), self._f[i + 1]
        )
        return np.maximum(np.maximum(before, after) - _ROUNDING, self._f[i + 1])


def gaussian_false_negatives(rates: ArrayLike, mu: float) -> Array:
    """Return f of N(0, 1) against N(mu, 1): Phi(Phi^-1(1 - a) - mu) (1905.02383, equation 6).

    >>> gaussian_false_negatives([0.05, 0.5], 1.0).round(6).tolist()
    [0.740489, 0.158655]
    """
    value: Array = ndtr(-ndtri(np.asarray(rates, dtype=np.float64)) - mu)
    return value


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon at ``delta``, rounded down, of a Gaussian with sensitivity / noise = ``mu`` >= 0.

    >>> round(gaussian_epsilon(0.9249, 1e-5), 3), gaussian_epsilon(0.0, 1e-5)
    (4.0, 0.0)
    """
    if mu <= 0.0:
        return 0.0
    return account(Gaussian(1.0 / mu), adjacency=Adjacency.ADD_REMOVE).epsilon_bounds(delta)[0]


def plain_false_negatives(rates: ArrayLike, epsilon: float, delta: float) -> Array:
    """Return f of (epsilon, delta)-DP: max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a)).

    See 1905.02383, equation 5.

    >>> plain_false_negatives([0.0, 0.25, 1.0], 0.0, 0.1).tolist()
    [0.9, 0.65, 0.0]
    """
    a = np.asarray(rates, dtype=np.float64)
    steep, flat = 1.0 - delta - np.exp(epsilon) * a, np.exp(-epsilon) * (1.0 - delta - a)
    return np.asarray(np.maximum(0.0, np.maximum(steep, flat)), dtype=np.float64)
