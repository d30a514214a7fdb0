"""The interface of all accountants, combined costs, and zeros of functions."""

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

Array: TypeAlias = NDArray[np.float64]
Direction: TypeAlias = Literal["remove", "add", "replace"]

_UP = 1.0 + 1e-12
_LEAST_DELTA = 1e-300
# of delta, for the first of two releases
_SHARES = 1.0 / (1.0 + np.exp(-np.linspace(-10.0, 10.0, 21)))


def directions(adjacency: Adjacency) -> tuple[Direction, ...]:
    """Return the directions of ``adjacency``, one per dominating pair; the one that costs most counts."""
    # Replacing is symmetric.  Zeroing out a record has the same dominating pairs as removing and adding one
    # (Kairouz et al. 2021, 2103.00039, section 2).
    return ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")


# --- zeros of functions, without ``scipy.optimize``, which is slow to import ------------------------------


def brent(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    xtol: float = 2e-12,
    rtol: float = 2.0**-50,
) -> float:
    """Find a point within ``xtol + rtol |x|`` of a sign change of ``function``, on either side of it."""
    # The function has opposite signs at ``low`` and ``high``, or is 0 at one.  The points and the root are
    # those of SciPy's ``brentq`` to the last bit (Brent, "Algorithms for Minimization without Derivatives",
    # 1973, chapter 4).  After 100 steps only bisection is used, so that the search ends.

    def value(at: float) -> float:
        result = float(function(at))
        if math.isnan(result):
            raise ArithmeticError(f"no root can be found: the function is NaN at {at!r}")
        return result

    before, x = low, high
    f_before, f = value(before), value(x)
    if f_before == 0.0:
        return before
    if f == 0.0:
        return x
    if (f_before > 0.0) == (f > 0.0):
        raise ArithmeticError(f"no change of sign between {low!r} and {high!r}: {f_before!r} and {f!r}")
    across, f_across, last, step, steps = before, f_before, x - before, x - before, 0
    while True:
        # the root lies between x and ``across``; x is the better of the two
        if (f_before > 0.0) != (f > 0.0):
            across, f_across, last, step = before, f_before, x - before, x - before
        if abs(f_across) < abs(f):
            before, x, across, f_before, f, f_across = x, across, x, f, f_across, f
        near = (xtol + rtol * abs(x)) / 2.0
        half = (across - x) / 2.0
        if f == 0.0 or abs(half) < near:
            return x

        guess = math.nan
        if abs(last) > near and abs(f) < abs(f_before) and steps < 100:
            guess = _interpolated(before, x, across, f_before, f, f_across)
        if 2.0 * abs(guess) < min(abs(last), 3.0 * abs(half) - near):
            last, step = step, guess
        else:
            last, step = half, half
        before, f_before, steps = x, f, steps + 1
        x += step if abs(step) > near else math.copysign(near, half)
        f = value(x)


def _interpolated(a: float, x: float, b: float, f_a: float, f: float, f_b: float) -> float:
    """Return the step from x to the zero of a line through two points, or of an inverse parabola."""
    if a == b:
        return -f * (x - a) / (f - f_a)
    slope_a, slope_b = (f_a - f) / (a - x), (f_b - f) / (b - x)
    below = slope_b * slope_a * (f_b - f_a)
    return -f * (f_b * slope_b - f_a * slope_a) / below if below != 0.0 else math.nan


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


def crossing(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    side: float = 1.0,
    xtol: float = 1e-300,
    rtol: float = 1e-14,
) -> float:
    """Find the root of a decreasing function, and go up from it (down, if ``side`` is -1) past rounding."""
    root = brent(excess, low, high, xtol=xtol, rtol=rtol)
    step = max(xtol, 10.0 * rtol * abs(root))
    while side * excess(root) > 0.0:
        root, step = min(max(root + side * step, low), high), 2.0 * step
    return root


def least_epsilon(
    delta_at: Callable[[float], float],
    delta: float,
    high: float,
    *,
    most: float = math.inf,
    side: float = 1.0,
) -> float:
    """Find the least epsilon >= 0 with ``delta_at(epsilon) <= delta``, or just below it if ``side`` is -1."""

    # ``high`` > 0 is where the search begins.  The result is infinite if it is above ``most``.
    def excess(epsilon: float) -> float:
        value = delta_at(epsilon)
        return math.log(value / delta) if value > 0.0 else -800.0

    if excess(0.0) <= 0.0:
        return 0.0
    while excess(high) > 0.0:
        high *= 2.0
        if high > most:
            return math.inf
    return crossing(excess, 0.0, high, side=side)


def log_growth(size: int, epsilon: float) -> float:
    """Compute log (e^{k eps} - 1) / (e^eps - 1) = log(1 + e^eps + ... + e^{(k-1) eps}), k = ``size``."""
    if epsilon == 0.0:
        return math.log(size)
    return (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))


# --- prices -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorBudget:
    """The bracket of epsilon at one delta, and its sources of error, in nats.

    ``parts`` maps each source (``discretisation``, ``truncation``, ``rounding``) to the width that it may add
    to the bracket. It is empty if the accountant does not know its errors.

    >>> ErrorBudget(delta=1e-5, lower=0.5, upper=0.75, parts={"rounding": 0.01}).width
    0.25
    """

    delta: float
    lower: float
    upper: float
    parts: Mapping[str, float]

    @property
    def width(self) -> float:
        """The upper end minus the lower end; infinite if the upper end is."""
        return self.upper - self.lower


class Price(ABC):
    """The cost of one event by one accountant, for ``delta`` in (0, 1) and finite ``epsilon`` >= 0.

    All methods by default use ``epsilon`` and ``delta``, the upper bounds.  Lower bounds are 0.0 if none is
    known.  ``epsilons`` and ``deltas`` are for arrays (n,), and may have fewer digits.
    """

    @abstractmethod
    def epsilon(self, delta: float) -> float: ...

    @abstractmethod
    def delta(self, epsilon: float) -> float: ...

    @property
    def pure_epsilon(self) -> float | None:
        """An upper bound on epsilon at delta 0; None if it is infinite or unknown."""
        return None

    def near(self, delta: float) -> float:
        """Estimate epsilon to a few digits, above or below, for a search that certifies its result later."""
        return self.epsilon(delta)

    def is_tight(self, delta: float) -> bool:
        """Return whether ``epsilon(delta)`` is known to be tight, within a few digits."""
        return False

    def tight_delta(self, epsilon: float) -> float | None:
        """Return ``delta(epsilon)`` if it is known to be tight, within a few digits, else None."""
        return None

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, self.epsilon(delta)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        upper = min(1.0, self.delta(epsilon))

        # if the lower bound on epsilon at d is above ``epsilon``, then delta(epsilon) > d
        def exceeded(log_gap: float) -> bool:
            delta = upper * math.exp(-math.exp(log_gap))
            return _LEAST_DELTA < delta < 1.0 and self.epsilon_bounds(delta)[0] > epsilon

        too_near = math.log(1e-11)
        for enough in np.log(10.0 ** np.arange(-10.0, 3.0)):
            if exceeded(float(enough)):
                _, gap = halved(lambda log_gap: not exceeded(log_gap), too_near, float(enough), 4)
                return upper * math.exp(-math.exp(gap)), upper
            too_near = float(enough)
        return 0.0, upper

    def epsilons(self, deltas: Array) -> Array:
        return np.array([self.epsilon(float(delta)) for delta in deltas], dtype=np.float64)

    def deltas(self, epsilons: Array) -> Array:
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons], dtype=np.float64)

    def by_direction(self, delta: float) -> Mapping[str, float]:
        """Return upper bounds on epsilon by direction (remove or add), if they are distinguished."""
        return {}

    def error_budget(self, delta: float) -> ErrorBudget:
        lower, upper = self.epsilon_bounds(delta)
        return ErrorBudget(delta, lower, upper, {})


class ExactPrice(Price):
    """A cost with a closed form, which no accountant can improve by more than rounding."""

    def is_tight(self, delta: float) -> bool:
        return True

    def tight_delta(self, epsilon: float) -> float | None:
        return self.delta(epsilon)


def decimal(number: float) -> Fraction:
    """Return the exact decimal that a float prints as, as claims are meant.

    >>> decimal(0.1), Fraction(0.1) == Fraction(1, 10)
    (Fraction(1, 10), False)
    """
    return Fraction(repr(float(number)))


def _rounded_up(number: Fraction) -> float:
    value = float(number)
    return value if decimal(value) >= number else math.nextafter(value, math.inf)


@dataclass(frozen=True)
class BoundedPrice(Price):
    """The cost of mechanisms with a largest privacy loss: ``inner``, and (``most``, ``leak``)-DP.

    ``most`` and ``leak`` are exact.  Where an accountant rounds, they are less than what it proves.
    """

    inner: Price
    most: Fraction
    leak: Fraction

    def _epsilon(self, delta: float) -> float:
        return _rounded_up(self.most) if decimal(delta) >= self.leak else math.inf

    def _delta(self, epsilon: float) -> float:
        return _rounded_up(self.leak) if decimal(epsilon) >= self.most else math.inf

    @property
    def pure_epsilon(self) -> float | None:
        return _rounded_up(self.most) if self.leak == 0 else None

    def epsilon(self, delta: float) -> float:
        most = self._epsilon(delta)
        return most if delta == 0.0 else min(most, self.inner.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        return min(self._delta(epsilon), self.inner.delta(epsilon))

    def near(self, delta: float) -> float:
        return min(self._epsilon(delta), self.inner.near(delta))

    def is_tight(self, delta: float) -> bool:
        return self.inner.is_tight(delta)

    def tight_delta(self, epsilon: float) -> float | None:
        return None if self.inner.tight_delta(epsilon) is None else self.delta(epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        return min(self.inner.epsilon_bounds(delta)[0], upper), upper

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        upper = self.delta(epsilon)
        return min(self.inner.delta_bounds(epsilon)[0], upper), upper

    def epsilons(self, deltas: Array) -> Array:
        return np.minimum(self.inner.epsilons(deltas), [self._epsilon(delta) for delta in deltas])

    def deltas(self, epsilons: Array) -> Array:
        return np.minimum(self.inner.deltas(epsilons), [self._delta(epsilon) for epsilon in epsilons])

    def by_direction(self, delta: float) -> Mapping[str, float]:
        return self.inner.by_direction(delta)

    def error_budget(self, delta: float) -> ErrorBudget:
        return self.inner.error_budget(delta)


@dataclass(frozen=True)
class LeastPrice(Price):
    """The least upper bound of several ``prices`` of one event, by name.

    Lower ends are the first price's. They are 0 if another price's upper bound is below them: then the first
    dominating pair costs more than the mechanism. If the first price is tight, the others are not computed.
    Another price is used only if it is less by more than ``alike``, relative.
    """

    prices: Mapping[str, Price]
    alike: float = 0.0

    @property
    def first(self) -> Price:
        return next(iter(self.prices.values()))

    @property
    def pure_epsilon(self) -> float | None:
        return self.first.pure_epsilon

    def best(self, delta: float) -> tuple[float, str]:
        """Return ``epsilon(delta)`` and the name of the accountant that proves it."""
        (name, first), *rest = self.prices.items()
        best = first.epsilon(delta), name
        if best[0] == 0.0 or delta == 0.0 or first.is_tight(delta):
            return best
        for name, price in rest:
            epsilon = price.epsilon(delta)
            if epsilon < best[0] * (1.0 - self.alike):
                best = epsilon, name
        return best

    def epsilon(self, delta: float) -> float:
        return self.best(delta)[0]

    def delta(self, epsilon: float) -> float:
        tight = self.first.tight_delta(epsilon)
        return min(price.delta(epsilon) for price in self.prices.values()) if tight is None else tight

    def near(self, delta: float) -> float:
        prices = [self.first] if self.first.is_tight(delta) else self.prices.values()
        return min(price.near(delta) for price in prices)

    def is_tight(self, delta: float) -> bool:
        return self.first.is_tight(delta)

    def tight_delta(self, epsilon: float) -> float | None:
        return self.first.tight_delta(epsilon)

    def epsilons(self, deltas: Array) -> Array:
        least = self.first.epsilons(deltas)
        if np.isfinite(least).all():
            return least
        others = [price.epsilons(deltas) for price in list(self.prices.values())[1:]]
        smallest: Array = np.min([least, *others], axis=0)
        return smallest

    def deltas(self, epsilons: Array) -> Array:
        least = self.first.deltas(epsilons)
        if (least < 1.0).all():
            return least
        others = [price.deltas(epsilons) for price in list(self.prices.values())[1:]]
        smallest: Array = np.min([least, *others], axis=0)
        return smallest

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
    """The cost of k records from that of one: (k e, d(e) (e^{k e} - 1) / (e^e - 1)) for every e >= 0."""

    one: Price
    size: int

    @property
    def pure_epsilon(self) -> float | None:
        each = self.one.pure_epsilon
        return None if each is None else self.size * each * _UP

    def _grown(self, each: float, delta: float | None = None) -> float:
        """Compute the group's delta, at most 1.0, if one record is (``each``, ``delta``)-DP."""
        if delta is None:
            delta = self.one.delta(each)
        if delta <= 0.0:
            return 0.0
        log_grown = math.log(delta) + log_growth(self.size, each)
        return 1.0 if log_grown >= 0.0 else math.exp(log_grown) * _UP

    def delta(self, epsilon: float) -> float:
        # the bound may rise with epsilon before it falls, but its value at 0 holds at every epsilon
        return min(self._grown(epsilon / self.size / _UP), self._grown(0.0))

    def deltas(self, epsilons: Array) -> Array:
        each = np.append(epsilons / self.size / _UP, 0.0)
        bounds = np.array([self._grown(*pair) for pair in zip(each, self.one.deltas(each), strict=True)])
        smallest: Array = np.minimum(bounds[:-1], bounds[-1])
        return smallest

    def epsilon(self, delta: float) -> float:
        if self._grown(0.0) <= delta:
            return 0.0
        if delta == 0.0:
            return math.inf if self.pure_epsilon is None else self.pure_epsilon
        low, high = 0.0, max(1e-9, self.one.epsilon(delta))
        if not math.isfinite(high):
            return math.inf
        for _ in range(60):
            if self._grown(high) <= delta:
                break
            low, high = high, 2.0 * high
        else:
            return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self._grown(middle) <= delta else (middle, high)
        return self.size * high * _UP

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        return min(self.one.epsilon_bounds(delta)[0], upper), upper


@dataclass(frozen=True)
class SumPrice(Price):
    """The cost of two releases by basic composition: epsilons add up, and both share delta."""

    first: Price
    second: Price

    @property
    def pure_epsilon(self) -> float | None:
        first, second = self.first.pure_epsilon, self.second.pure_epsilon
        return None if first is None or second is None else (first + second) * _UP

    def epsilon(self, delta: float) -> float:
        first = self.first.epsilons(_SHARES * delta)
        second = self.second.epsilons(_SHARES[::-1] * delta / _UP)
        return float((first + second).min()) * _UP

    def delta(self, epsilon: float) -> float:
        return float(self.deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: Array) -> Array:
        # a table of (epsilon, share of the first release)
        table = np.multiply.outer(epsilons, np.concatenate([[0.0], _SHARES, [1.0]]))
        first = self.first.deltas((table / _UP).ravel())
        second = self.second.deltas(table[:, ::-1].ravel())
        return np.asarray((first + second).reshape(table.shape).min(axis=1) * _UP)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        # dropping a release is post-processing
        upper = self.epsilon(delta)
        lower = max(self.first.epsilon_bounds(delta)[0], self.second.epsilon_bounds(delta)[0])
        return min(lower, upper), upper
