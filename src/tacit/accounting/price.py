"""The interface of all accountants, prices that combine others, and zeros of functions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.events import Adjacency

# Zeros of functions, without ``scipy.optimize``, which is slow to import.
#
# The algorithm is Brent's ("Algorithms for Minimization without Derivatives", 1973, chapter 4) as in SciPy's
# ``brentq``.  It evaluates the same points, and finds the same root to the last bit.

_MOST_STEPS = 100  # of interpolation; Brent's worst case takes the square of the steps of bisection
_RTOL = 4.0 * 2.0**-52


def brent(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12, rtol: float = _RTOL
) -> float:
    """Find a point within ``xtol + rtol |x|`` of a sign change of ``function``, on either side of it.

    After 100 steps only bisection is used, so that the search ends for every function.

    Args:
        low: one end of the interval.
        high: the other end.  ``function`` has opposite signs at the two ends, or is 0 at one of them.
        xtol: absolute tolerance, > 0.
        rtol: relative tolerance, at least 8.9e-16, which is four rounding errors.

    Raises:
        ArithmeticError: if both ends have the same sign, or a value is NaN.

    >>> round(brent(lambda x: x * x - 2.0, 0.0, 2.0), 9)
    1.414213562
    """
    before, x = low, high
    f_before, f = _value(function, before), _value(function, x)
    if f_before == 0.0:
        return before
    if f == 0.0:
        return x
    if (f_before > 0.0) == (f > 0.0):
        raise ArithmeticError(f"no change of sign between {low!r} and {high!r}: {f_before!r} and {f!r}")
    across, f_across, last, step, steps = before, f_before, x - before, x - before, 0
    while True:
        if (f_before > 0.0) != (f > 0.0):  # the root lies between the last two points
            across, f_across, last, step = before, f_before, x - before, x - before
        if abs(f_across) < abs(f):
            before, x, across, f_before, f, f_across = x, across, x, f, f_across, f
        near, half = (xtol + rtol * abs(x)) / 2.0, (across - x) / 2.0
        if f == 0.0 or abs(half) < near:
            return x
        guess = math.nan
        if abs(last) > near and abs(f) < abs(f_before) and steps < _MOST_STEPS:
            guess = _interpolated(before, x, across, f_before, f, f_across)
        if 2.0 * abs(guess) < min(abs(last), 3.0 * abs(half) - near):
            last, step = step, guess
        else:
            last, step = half, half
        before, f_before, steps = x, f, steps + 1
        x += step if abs(step) > near else math.copysign(near, half)
        f = _value(function, x)


def last_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Find the largest integer n with ``holds(n)``, given that ``low`` satisfies it and ``high`` does not.

    >>> last_whole(lambda n: n * n <= 50, 0, 100)
    7
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def halved(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> tuple[float, float]:
    """Bisect ``halvings`` times; ``holds`` is true at ``low`` and false at ``high``.

    >>> halved(lambda x: x * x <= 2.0, 0.0, 2.0, 3)
    (1.25, 1.5)
    """
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _interpolated(a: float, x: float, b: float, f_a: float, f: float, f_b: float) -> float:
    """Return the step from x to the zero of a line through two points, or of an inverse parabola."""
    if a == b:
        return -f * (x - a) / (f - f_a)
    slope_a, slope_b = (f_a - f) / (a - x), (f_b - f) / (b - x)
    below = slope_b * slope_a * (f_b - f_a)
    return -f * (f_b * slope_b - f_a * slope_a) / below if below != 0.0 else math.nan


def _value(function: Callable[[float], float], x: float) -> float:
    value = float(function(x))
    if math.isnan(value):
        raise ArithmeticError(f"no root can be found: the function is NaN at {x!r}")
    return value


# The interface of all accountants, and prices that combine others.  Long: each price has all methods.
#
# Combined prices are the least of several prices, the price of a group, and the price of two releases.

Array: TypeAlias = NDArray[np.float64]

_LEAST_DELTA = 1e-300
_UP = 1.0 + 1e-12
_SHARES = 1.0 / (1.0 + np.exp(-np.linspace(-10.0, 10.0, 21)))  # of delta, for the first of two releases


@dataclass(frozen=True)
class ErrorBudget:
    """The bracket at one delta and the sources of its width, in nats.

    ``parts`` maps each source of error (``discretisation``, ``truncation``, ``rounding``) to how far it may
    widen the bracket.  It is empty if the accountant does not know its errors.

    >>> ErrorBudget(delta=1e-5, lower=0.5, upper=0.75, parts={"rounding": 0.01}).width
    0.25
    """

    delta: float
    lower: float
    upper: float
    parts: Mapping[str, float]

    @property
    def width(self) -> float:
        """The upper end less the lower one; infinite if the upper end is infinite."""
        return self.upper - self.lower


class Price(ABC):
    """The price of one event by one accountant, for ``delta`` in (0, 1) and finite ``epsilon`` >= 0.

    Every accountant implements ``epsilon`` and ``delta``.  The other methods by default use these two.
    An accountant overrides those that it can compute faster or more tightly.
    """

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon at ``delta``."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon``."""

    @property
    def pure_epsilon(self) -> float | None:
        """Return an upper bound on epsilon at delta 0, or None if it is infinite or unknown."""
        return None

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """Return a lower and an upper bound on epsilon; the lower one is 0.0 if none is known."""
        return 0.0, self.epsilon(delta)

    def near(self, delta: float) -> float:
        """Estimate epsilon to a few digits, above or below, for a search that certifies its result later."""
        return self.epsilon(delta)

    def is_tight(self, delta: float) -> bool:
        """Return whether ``epsilon(delta)`` is known to be tight, within a few digits."""
        return False

    def tight_delta(self, epsilon: float) -> float | None:
        """Return ``delta(epsilon)`` if it is known to be tight, within a few digits, else None."""
        return None

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Return a lower and an upper bound on delta; the lower one is 0.0 if none is known."""
        upper = min(1.0, self.delta(epsilon))
        return _least_delta(lambda delta: self.epsilon_bounds(delta)[0], epsilon, upper), upper

    def epsilons(self, deltas: Array) -> Array:
        """Return upper bounds on epsilon at each of ``deltas``, of shape (n,).

        An accountant may compute them together, with fewer digits than :meth:`epsilon`."""
        return np.array([self.epsilon(float(delta)) for delta in deltas], dtype=np.float64)

    def deltas(self, epsilons: Array) -> Array:
        """Return upper bounds on delta at each of ``epsilons``, of shape (n,); see :meth:`epsilons`."""
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons], dtype=np.float64)

    def by_direction(self, delta: float) -> Mapping[str, float]:
        """Return upper bounds on epsilon by direction (remove or add), if they are distinguished."""
        return {}

    def error_budget(self, delta: float) -> ErrorBudget:
        """Return the bracket at ``delta`` and the sources of its width."""
        lower, upper = self.epsilon_bounds(delta)
        return ErrorBudget(delta, lower, upper, {})


@dataclass(frozen=True)
class BoundedPrice(Price):
    """The price of mechanisms with a largest privacy loss: ``inner``, and (``most``, ``leak``)-DP.

    ``most`` and ``leak`` are exact.  Where an accountant rounds, they are less than what it proves.
    """

    inner: Price
    most: Fraction
    leak: Fraction

    @property
    def pure_epsilon(self) -> float | None:
        return _rounded_up(self.most) if self.leak == 0 else None

    def epsilon(self, delta: float) -> float:
        if _decimal(delta) < self.leak:
            return self.inner.epsilon(delta)
        most = _rounded_up(self.most)
        return most if delta == 0.0 else min(most, self.inner.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        if _decimal(epsilon) < self.most:
            return self.inner.delta(epsilon)
        return min(_rounded_up(self.leak), self.inner.delta(epsilon))

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        return min(self.inner.epsilon_bounds(delta)[0], upper), upper

    def near(self, delta: float) -> float:
        if _decimal(delta) < self.leak:
            return self.inner.near(delta)
        return min(_rounded_up(self.most), self.inner.near(delta))

    def is_tight(self, delta: float) -> bool:
        return self.inner.is_tight(delta)

    def tight_delta(self, epsilon: float) -> float | None:
        return None if self.inner.tight_delta(epsilon) is None else self.delta(epsilon)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        upper = self.delta(epsilon)
        return min(self.inner.delta_bounds(epsilon)[0], upper), upper

    def epsilons(self, deltas: Array) -> Array:
        enough = np.array([_decimal(float(delta)) >= self.leak for delta in deltas], dtype=np.bool_)
        least: Array = np.minimum(
            self.inner.epsilons(deltas), np.where(enough, _rounded_up(self.most), math.inf)
        )
        return least

    def deltas(self, epsilons: Array) -> Array:
        enough = np.array([_decimal(float(epsilon)) >= self.most for epsilon in epsilons], dtype=np.bool_)
        least: Array = np.minimum(
            self.inner.deltas(epsilons), np.where(enough, _rounded_up(self.leak), math.inf)
        )
        return least

    def by_direction(self, delta: float) -> Mapping[str, float]:
        return self.inner.by_direction(delta)

    def error_budget(self, delta: float) -> ErrorBudget:
        return self.inner.error_budget(delta)


def _decimal(number: float) -> Fraction:
    """Return the exact decimal that a float prints as, as claims are meant."""
    return Fraction(repr(number))


def _rounded_up(number: Fraction) -> float:
    value = float(number)
    return value if _decimal(value) >= number else math.nextafter(value, math.inf)


class ExactPrice(Price):
    """A price with a closed form, which no accountant can improve by more than rounding."""

    def is_tight(self, delta: float) -> bool:
        return True

    def tight_delta(self, epsilon: float) -> float | None:
        return self.delta(epsilon)


def _least_delta(lower_epsilon: Callable[[float], float], epsilon: float, upper: float) -> float:
    """Find a lower bound on delta at ``epsilon``, as large as possible and below ``upper``.

    If the lower bound on epsilon at d is above ``epsilon``, then delta(epsilon) > d.
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
    _, gap = halved(lambda log_gap: not exceeded(log_gap), too_near, float(enough), 4)
    return upper * math.exp(-math.exp(gap))


Direction: TypeAlias = Literal["remove", "add", "replace"]


def directions(adjacency: Adjacency) -> tuple[Direction, ...]:
    """Return the directions of ``adjacency``, one per dominating pair.  The largest of their prices counts.

    Replacing is symmetric, so one direction is enough.  Zeroing out a record has the same dominating pairs as
    removing and adding one (Kairouz et al. 2021, 2103.00039, section 2).
    """
    return ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")


@dataclass(frozen=True)
class LeastPrice(Price):
    """The least upper bound of several ``prices`` of one event, by name.

    Lower ends are those of the first price.  They are 0 if another price's upper bound is below them, which
    shows that the first price's dominating pair costs more than the mechanism.  If the first price is tight,
    the others are not computed.  Another price is used only if it is less by more than ``alike``, relative.
    """

    prices: Mapping[str, Price]
    alike: float = 0.0

    @property
    def first(self) -> Price:
        """The price that is computed first.  If it is tight, it is the only one."""
        return next(iter(self.prices.values()))

    @property
    def pure_epsilon(self) -> float | None:
        return self.first.pure_epsilon

    def best_method(self, delta: float) -> str:
        """Return the name of the accountant whose bound is ``epsilon(delta)``."""
        return self._least(delta)[1]

    def _least(self, delta: float) -> tuple[float, str]:
        (name, first), *rest = self.prices.items()
        best = first.epsilon(delta), name
        for name, price in [] if best[0] == 0.0 or delta == 0.0 or first.is_tight(delta) else rest:
            if (epsilon := price.epsilon(delta)) < best[0] * (1.0 - self.alike):
                best = epsilon, name
        return best

    def epsilon(self, delta: float) -> float:
        return self._least(delta)[0]

    def delta(self, epsilon: float) -> float:
        tight = self.first.tight_delta(epsilon)
        return min(price.delta(epsilon) for price in self.prices.values()) if tight is None else tight

    def near(self, delta: float) -> float:
        if self.first.is_tight(delta):
            return self.first.near(delta)
        return min(price.near(delta) for price in self.prices.values())

    def is_tight(self, delta: float) -> bool:
        return self.first.is_tight(delta)

    def tight_delta(self, epsilon: float) -> float | None:
        return self.first.tight_delta(epsilon)

    def epsilons(self, deltas: Array) -> Array:
        least = self.first.epsilons(deltas)
        if np.isfinite(least).all():
            return least
        for price in list(self.prices.values())[1:]:
            least = np.minimum(least, price.epsilons(deltas))
        return least

    def deltas(self, epsilons: Array) -> Array:
        least = self.first.deltas(epsilons)
        if not (least >= 1.0).any():
            return least
        for price in list(self.prices.values())[1:]:
            least = np.minimum(least, price.deltas(epsilons))
        return least

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
    """The price of k records from that of one: (k e, d(e) (e^{k e} - 1) / (e^e - 1)) for every e >= 0."""

    one: Price
    size: int

    @property
    def pure_epsilon(self) -> float | None:
        each = self.one.pure_epsilon
        return None if each is None else self.size * each * _UP

    def _delta(self, each: float) -> float:
        return self._grown(each, self.one.delta(each))

    def _grown(self, each: float, delta: float) -> float:
        """Compute the group's delta, at most 1.0, if one record is (``each``, ``delta``)-DP."""
        log_factor = math.log(self.size) if each == 0.0 else _log_expm1(self.size * each) - _log_expm1(each)
        if delta <= 0.0 or math.log(delta) + log_factor >= 0.0:
            return 0.0 if delta <= 0.0 else 1.0
        return math.exp(math.log(delta) + log_factor) * _UP

    def delta(self, epsilon: float) -> float:
        # the bound may rise with epsilon before it falls, but its value at 0 holds at every epsilon
        return min(self._delta(epsilon / self.size / _UP), self._delta(0.0))

    def deltas(self, epsilons: Array) -> Array:
        each = np.append(epsilons / self.size / _UP, 0.0)
        bounds = np.array([self._grown(*pair) for pair in zip(each, self.one.deltas(each), strict=True)])
        least: Array = np.minimum(bounds[:-1], bounds[-1])
        return least

    def epsilon(self, delta: float) -> float:
        if self._delta(0.0) <= delta:
            return 0.0
        if delta == 0.0:
            return math.inf if self.pure_epsilon is None else self.pure_epsilon
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
    """The price of two releases by basic composition: epsilons add up, and both share delta."""

    first: Price
    second: Price

    @property
    def pure_epsilon(self) -> float | None:
        first, second = self.first.pure_epsilon, self.second.pure_epsilon
        return None if first is None or second is None else (first + second) * _UP

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
        """Return bounds; the lower one is the larger of both, as dropping a release is post-processing."""
        upper = self.epsilon(delta)
        lower = max(self.first.epsilon_bounds(delta)[0], self.second.epsilon_bounds(delta)[0])
        return min(lower, upper), upper


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
