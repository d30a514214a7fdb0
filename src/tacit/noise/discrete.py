"""Exact noise on integers: the discrete Laplace and Gaussian distributions, without floats."""

# Canonne, Kamath & Steinke 2020, "The Discrete Gaussian for Differential Privacy" (2004.00010).  The low bits
# of a float can reveal the number before the noise.  Here parameters are rational, every coin is an
# integer comparison, and the draws have exactly the distribution of the formula.
#
# **Guarantee**
#
# * If the bits are uniform and independent, each draw follows its distribution exactly: nothing is rounded,
#   cut off or approximated, at any scale.
# * By default the bits are the operating system's (``os.urandom``).  No bit is used twice, and none is
#   stored after the call, so a forked process shares nothing.
# * Not covered: time.  Larger noise takes longer to draw, independently of the data.

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isqrt
from typing import TypeAlias

from tacit.errors import InvalidInput, check_integer

Bits: TypeAlias = Callable[[int], int]  # k >= 1 -> a uniform integer of k bits

_POOL = 256  # bytes per request to the operating system


def discrete_laplace(scale: Fraction | int, size: int, *, bits: Bits | None = None) -> list[int]:
    """Draw ``size`` independent integers; P(k) is proportional to exp(-|k| / scale).

    This is algorithm 2 of the paper, with scale = t / s.  ``bits`` is the source of randomness, for tests.

    >>> noise = discrete_laplace(Fraction(1, 3), 1000)
    >>> len(noise), max(map(abs, noise)) < 20
    (1000, True)
    """
    t, s = _positive("scale", scale).as_integer_ratio()
    source = bits or _bits_of_the_system()
    return [_laplace(t, s, source) for _ in range(check_integer("size", size, low=0))]


def discrete_gaussian(sigma_squared: Fraction | int, size: int, *, bits: Bits | None = None) -> list[int]:
    """Draw ``size`` independent integers; P(k) is proportional to exp(-k^2 / (2 sigma_squared)).

    This is algorithm 3 of the paper: a discrete Laplace draw of scale t = floor(sigma) + 1, kept with
    probability exp(-(|k| - sigma^2 / t)^2 / (2 sigma^2)).

    Args:
        sigma_squared: positive, in the squared units of k; the variance of the draws is at most this.
        bits: the source of randomness, for tests; None for the operating system.

    Raises:
        InvalidInput: ``sigma_squared`` is not a positive fraction, or ``size`` is negative.

    >>> noise = discrete_gaussian(Fraction(25, 4), 1000)
    >>> len(noise), max(map(abs, noise)) < 30
    (1000, True)
    """
    n, d = _positive("sigma_squared", sigma_squared).as_integer_ratio()
    source = bits or _bits_of_the_system()
    t = isqrt(n // d) + 1
    return [_gaussian(n, d, t, source) for _ in range(check_integer("size", size, low=0))]


def rounded_gaussian(sigma: Fraction | int, size: int, *, bits: Bits | None = None) -> list[int]:
    """Draw ``size`` independent normal numbers of standard deviation ``sigma``, each rounded to an integer.

    An integer plus such a draw is the integer plus a normal number, rounded.  Rounding is post-processing, so
    it costs as much as the same normal noise, in any number of dimensions.

    >>> noise = rounded_gaussian(Fraction(5, 2), 1000)
    >>> len(noise), max(map(abs, noise)) < 30
    (1000, True)
    """
    a, b = _positive("sigma", sigma).as_integer_ratio()
    source = bits or _bits_of_the_system()
    return [_rounded(a, b, source) for _ in range(check_integer("size", size, low=0))]


def exponential_choice(losses: Sequence[int], rate: Fraction | int, *, bits: Bits | None = None) -> int:
    """Draw a position i with probability proportional to exp(-rate losses[i]): the exponential mechanism.

    A uniform position is kept with probability exp(-rate (losses[i] - min(losses))), and else drawn again.

    Args:
        losses: integers, of any sign.
        rate: positive; epsilon / (2 Delta) for losses that one unit changes by at most Delta.
        bits: the source of randomness, for tests; None for the operating system.

    Raises:
        InvalidInput: there are no losses, or ``rate`` is not a positive fraction.

    >>> exponential_choice([5000, -7], rate=1)
    1
    """
    n, d = _positive("rate", rate).as_integer_ratio()
    if not losses:
        raise InvalidInput("losses must be one or more integers; got none.")
    least, source = min(losses), bits or _bits_of_the_system()
    while not _exp_minus(n * (losses[place := _below(len(losses), source)] - least), d, source):
        pass
    return place


# --- one draw; n, d, s, t, k are integers -----------------------------------------------------------------


def _laplace(t: int, s: int, bits: Bits) -> int:
    """Draw |k| = floor(x / s), where x = u + t v is geometric with ratio exp(-1 / t); then draw a sign."""
    while True:
        u = _below(t, bits)
        if not _exp_minus(u, t, bits):
            continue
        v = 0
        while _exp_minus(1, 1, bits):
            v += 1
        k = (u + t * v) // s
        negative = bits(1)
        if not (negative and k == 0):  # else 0 would be drawn with both signs
            return -k if negative else k


def _gaussian(n: int, d: int, t: int, bits: Bits) -> int:
    """Draw k for sigma^2 = n / d, where the exponent is (|k| d t - n)^2 / (2 n d t^2)."""
    while True:
        k = _laplace(t, 1, bits)
        if _exp_minus((abs(k) * d * t - n) ** 2, 2 * n * d * t * t, bits):
            return k


def _rounded(a: int, b: int, bits: Bits) -> int:
    """Draw |y| = k + x of a normal number y by Karney's algorithm N (1303.6257), and round y a / b."""
    while True:
        k = 0
        while _exp_minus(1, 2, bits):
            k += 1
        x = _Uniform(bits)
        if (
            _exp_minus(k * (k - 1), 2, bits)
            and all(x.exp_minus() for _ in range(k))
            and x.exp_minus_half_square()
        ):
            break

    # Of x only some bits are known: draw more until all numbers with these bits round to one integer.
    while True:
        low, one = 2 * a * ((k << x.known) + x.value) + (b << x.known), 2 * b << x.known
        n = low // one
        if low + 2 * a <= (n + 1) * one:
            return -n if bits(1) else n
        x.bit(x.known)


class _Uniform:
    """A uniform real number in [0, 1], of which bits are drawn when they are needed."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self.value, self.known = 0, 0

    def bit(self, place: int) -> int:
        if place == self.known:
            self.value, self.known = 2 * self.value + self._bits(1), self.known + 1
        return self.value >> (self.known - 1 - place) & 1

    def heads(self) -> bool:
        """Return True with probability x: whether another uniform number is below x."""
        place = 0
        while (other := self._bits(1)) == self.bit(place):
            place += 1
        return not other

    def exp_minus(self) -> bool:
        """Return True with probability exp(-x), as :func:`_exp_minus_fraction` does."""
        k = 1
        while self.heads() and not _below(k, self._bits):
            k += 1
        return k % 2 == 1

    def exp_minus_half_square(self) -> bool:
        """Return True with probability exp(-x^2 / 2)."""
        k = 1
        while self._bits(1) and self.heads() and self.heads() and not _below(k, self._bits):
            k += 1
        return k % 2 == 1


def _exp_minus(n: int, d: int, bits: Bits) -> bool:
    """Return True with probability exp(-n / d), for n / d >= 0 (Algorithm 1)."""
    while n > d:
        if not _exp_minus_fraction(1, 1, bits):
            return False
        n -= d
    return _exp_minus_fraction(n, d, bits)


def _exp_minus_fraction(n: int, d: int, bits: Bits) -> bool:
    """Return True with probability exp(-n / d), for n / d <= 1.

    Coins that show heads with probability n/d, n/2d, n/3d, ... are tossed up to the first tails.  The number
    of tosses is odd with probability 1 - n/d + (n/d)^2/2! - ...
    """
    k = 1
    while _below(d * k, bits) < n:
        k += 1
    return k % 2 == 1


def _below(n: int, bits: Bits) -> int:
    """Draw a uniform integer of 0, ..., n - 1."""
    width = (n - 1).bit_length()
    if width == 0:
        return 0
    while (value := bits(width)) >= n:
        pass
    return value


def _bits_of_the_system() -> Bits:
    """Return a source of ``os.urandom`` bits, which requests them in blocks and holds one block at a time."""
    pool, left = 0, 0

    def bits(width: int) -> int:
        nonlocal pool, left
        if left < width:
            size = _POOL + width // 8
            pool, left = int.from_bytes(os.urandom(size), "little"), 8 * size
        value = pool & ((1 << width) - 1)
        pool >>= width
        left -= width
        return value

    return bits


def _positive(name: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, Fraction | int) or value <= 0:
        raise InvalidInput(
            f"{name} must be a positive Fraction or int; got {value!r}. Floats are not exact: write 1/10 as "
            "Fraction(1, 10)."
        )
    return Fraction(value)
