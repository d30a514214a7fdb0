"""Zeros of functions, without ``scipy.optimize``, which is slow to import.

The algorithm is Brent's ("Algorithms for Minimization without Derivatives", 1973, chapter 4) as in SciPy's
``brentq``.  It evaluates the same points, and finds the same root to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
