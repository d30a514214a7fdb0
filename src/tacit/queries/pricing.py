"""Which scale of noise does a share of the budget give? In exact arithmetic, always towards more noise.

Scales are numbers of 50 bits, rounded up: doubles that events hold exactly, and small fractions for the exact
samplers.  Where the quotient is a short number, as 1 / 0.1 = 10, nothing is rounded and the price is exactly
the one requested.
"""

from __future__ import annotations

import math
from fractions import Fraction

from tacit.accounting.renyi.zcdp import curve
from tacit.errors import InvalidInput, check_real

_BITS = 50


def exact(name: str, value: object, *, high: float = 1e6, low: float = 1e-9) -> Fraction:
    """A parameter as the decimal that was written: 0.1 is 1/10.

    >>> exact("epsilon", 0.1)
    Fraction(1, 10)
    """
    number = check_real(name, value, low=0.0, high=high, open_low=True)
    if number < low:
        raise InvalidInput(
            f"{name} must be at least {low:g}, below which an answer is nothing but noise; got {value!r}."
        )
    return Fraction(repr(number))


def _exponent(value: Fraction) -> int:
    """e with 2^(_BITS - 1) <= value / 2^e < 2^(_BITS + 1)."""
    return value.numerator.bit_length() - value.denominator.bit_length() - _BITS


def _power(e: int) -> Fraction:
    return Fraction(2) ** e


def rounded_down(value: Fraction) -> Fraction:
    """The largest number of 50 bits that is not above.

    >>> rounded_down(Fraction(1, 4)), float(rounded_down(Fraction(1, 3))) < 1 / 3
    (Fraction(1, 4), True)
    """
    unit = _power(_exponent(value))
    return math.floor(value / unit) * unit


def root_down(value: Fraction) -> Fraction:
    """A number of 50 bits that is not above the square root, and near it.

    >>> root_down(Fraction(1, 4))
    Fraction(1, 2)
    """
    half = _exponent(value) // 2 - _BITS // 2
    return math.isqrt(math.floor(value / _power(2 * half))) * _power(half)


def laplace_scale(sensitivity: int, epsilon: Fraction) -> Fraction:
    """The smallest scale of 50 bits with sensitivity / scale <= epsilon.

    >>> laplace_scale(1, Fraction(1, 10))
    Fraction(10, 1)
    """
    value = sensitivity / epsilon
    unit = _power(_exponent(value))
    return math.ceil(value / unit) * unit


def gaussian_sigma(squared: int, rho: Fraction) -> Fraction:
    """The smallest sigma of 50 bits with squared / (2 sigma^2) <= rho, ``squared`` the squared L2
    sensitivity.

    >>> gaussian_sigma(1, Fraction(1, 2))
    Fraction(1, 1)
    """
    value = Fraction(squared) / (2 * rho)
    half = _exponent(value) // 2 - _BITS // 2
    scaled = value / _power(2 * half)
    root = math.isqrt(math.ceil(scaled))
    while root * root < scaled:
        root += 1
    return root * _power(half)


def rho_within(epsilon: Fraction, delta: float) -> Fraction:
    """The largest rho (of 50 bits) whose zero-concentrated guarantee is (epsilon, delta)-DP, by the best
    order.

    Raises:
        InvalidInput: delta is not in (0, 1).

    >>> round(float(rho_within(Fraction(1), 1e-6)), 4)
    0.0244
    """
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    target = float(epsilon) * (1.0 - 1e-15)
    low, high = 0.0, float(epsilon)  # rho = epsilon is more than any delta < 1/2 allows
    while curve(high).epsilon(delta) <= target:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if curve(middle).epsilon(delta) <= target else (low, middle)
    return rounded_down(Fraction(low))
