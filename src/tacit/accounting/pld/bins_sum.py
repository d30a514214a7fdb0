"""The distribution of a sum of i.i.d. terms on a grid, by tilted Fourier transforms with bounded errors.

The terms take the values 0, d, 2d, ...  Each value of the sum is computed with the tilt that is best there.
A difference of two transforms can leave out the sums whose terms all come from one part of the distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from tacit.accounting.pld.grid import UNIT
from tacit.accounting.price import Array

Complex: TypeAlias = NDArray[np.complex128]

_NOTHING = 70.0  # nats below 1: less than the rounding of a sum
_THIN, _FEW = 16, 1 << 10  # points merged into one for Chernoff's bound, if there are more than _FEW
_TILTS = 33  # tilts that are tried for Chernoff's bound
_SHARES = (0.1, 0.35, 1.0)  # of the tilt that gives the end of the window
_ROOM, _CHEAP = 1.3, 1 << 15  # the window is longer by this factor, so that little wraps around; 2 if cheap


@dataclass(frozen=True)
class Window:
    """The window of the sum S: the values ``d * (first + i)`` for 0 <= i < ``size``.

    With the tilts ``left`` and ``right``, Chernoff's bound gives its ends.
    """

    d: float
    first: int
    size: int
    left: float
    right: float

    def values(self) -> Array:
        """Return the values of S, of shape (size,)."""
        return self.d * (self.first + np.arange(self.size, dtype=np.float64))

    def tilts(self, *, down: bool) -> tuple[float, ...]:
        """Return 0 and some negative tilts if ``down``, else 0 and some positive ones."""
        further = -self.left if down else self.right
        return (0.0, *(further * share for share in _SHARES))


def _thinned(masses: Array, d: float) -> tuple[Array, Array]:
    """Return masses and values on a coarser grid: the mean is kept, and means of convex functions grow."""
    if masses.size <= _FEW:
        return masses, d * np.arange(masses.size, dtype=np.float64)
    cells = np.pad(masses, (0, -masses.size % _THIN)).reshape(-1, _THIN)
    up = np.arange(_THIN) / _THIN
    coarse = np.append(cells @ (1.0 - up), 0.0) + np.append(0.0, cells @ up)
    return coarse, d * _THIN * np.arange(coarse.size, dtype=np.float64)


def _log_mean(masses: Array, x: Array, tilt: float) -> float:
    """Compute the log of sum masses e^{tilt x}."""
    positive = masses > 0.0
    exponents = tilt * x[positive]
    top = float(exponents.max())
    return top + math.log(float(np.dot(masses[positive], np.exp(exponents - top))))


def window_of(masses: Array, d: float, bins: int, below: float, above: float) -> Window | None:
    """Choose a window for the sum by Chernoff's bound.

    P and Q each have at most the mass ``below`` to the left of the window and ``above`` to the right.  The
    result is None if the whole sum has so little mass.

    The bound on P uses E_Q (S/t) e^{z S} = m'(z) m(z)^{t-1}.  Where S > t, Q has less mass than P.
    """
    points = masses.size - 1
    masses, x = _thinned(masses, d)
    total = float(masses.sum())
    mean = float(np.dot(masses, x)) / total
    deviation = math.sqrt(bins * float(np.dot(masses, (x - mean) ** 2)) / total) + d
    # from the tilt for the largest term alone to that for the bulk
    tilts = np.geomspace(min(1e-2 / deviation, 1.0 / float(x[-1])), 3e1 / deviation, _TILTS)
    ups, downs = (bins * np.array([_log_mean(masses, x, sign * z) for z in tilts]) for sign in (1.0, -1.0))
    weighted = np.array([_log_mean(masses * x, x, z) for z in tilts]) - ups / bins
    ends, starts = (ups + weighted - math.log(above)) / tilts, (math.log(below) - downs) / tilts
    high, low = float(ends.min()), float(starts.max())
    if low >= high:
        return None
    first = math.floor(low / d) if low > 0.5 * high else 0
    last = max(high / d, bins / d if total > 0.5 else 0.0)
    size = math.ceil(_ROOM * last - first) + 16
    size = min(max(size, min(2 * size, _CHEAP)), max(bins * points + 1 - first, 16))  # the whole sum, at most
    left, right = float(tilts[starts.argmax()]), float(tilts[ends.argmin()])
    return Window(d, first, scipy.fft.next_fast_len(size, real=True), left, right)


def sum_of(head: Array, tail: Array, bins: int, window: Window, *, down: bool) -> tuple[Array, Array, float]:
    """Compute the distribution of the sum of ``bins`` terms, at least one of which comes from ``tail``.

    A term has the distribution ``head + tail``.  ``tail`` has no mass below the last point of ``head``, which
    may be empty.  If ``down``, small sums are precise, else large ones.

    Returns:
        The masses in the window, a bound on the rounding error of each, and a bound on the P-mass outside of
        the window, which wraps around and adds to the masses.
    """
    size, s, tilts = window.size, window.values(), window.tilts(down=down)
    weight = np.maximum(s / bins, 1.0)
    value, error, least, wrapped = np.zeros(size), np.zeros(size), np.full(size, math.inf), np.zeros(size)
    for tilt in tilts:
        pmf, rounding, outside = _tilted_sum(head, tail, bins, window, tilt)
        better = rounding + outside < least
        least = np.where(better, rounding + outside, least)
        value, error = np.where(better, pmf, value), np.where(better, rounding, error)
        wrapped = np.where(better, np.minimum(outside, 1.0) * weight, wrapped)
    if head.size:  # at least one term is no smaller than the last point of ``head``
        none = s < window.d * (head.size - 1.5)
        value[none], error[none] = 0.0, 0.0
    # at one tilt at most ``outside`` wraps around in all, and the bounds of several tilts add up
    return value, error, float(wrapped.max()) * len(tilts)


def _tilted_sum(
    head: Array, tail: Array, bins: int, window: Window, tilt: float
) -> tuple[Array, Array, Array]:
    """Compute the masses, with bounds on the rounding error of each and on the wrapped mass."""
    d, size = window.d, window.size
    x: Array = d * np.arange(tail.size, dtype=np.float64)
    whole = tail + np.pad(head, (0, tail.size - head.size))
    log_m = _log_mean(whole, x, tilt)
    growth = np.exp(tilt * x - log_m)
    # as in convolve: a few units for each of log2(size) butterflies, and the rounding of the exponents
    unit = UNIT * (8.0 * math.log2(size) + 8.0 * (1.0 + abs(tilt) * float(x[-1]) + abs(log_m)))
    power, errors = _power(head * growth[: head.size], tail * growth, bins, size, unit)
    error = 2.0 * errors / size * (1.0 + 1e-9)
    pmf = np.roll(scipy.fft.irfft(power, size), -(window.first % size))
    untilt = np.exp(np.minimum(bins * log_m - tilt * window.values(), 700.0))
    return pmf * untilt, error * untilt, _alias(whole, bins, window, tilt, log_m) * untilt


def _power(head: Array, tail: Array, bins: int, size: int, unit: float) -> tuple[Complex, float]:
    """Transform the sum of ``bins`` terms, at least one of which comes from ``tail``.

    ``head + tail`` has total mass 1.  Also return a bound on the sum of the errors.

    With the transforms B of ``head``, L of ``tail`` and A = B + L, that is A^t - B^t = L sum_i A^i B^{t-1-i}.
    Its relative accuracy is that of L, however small.  Errors of A and B grow t-fold.  The transform of a
    smooth sum is 0 nearly everywhere, and is not computed there.
    """
    of_tail = _transform(tail, size)
    of_head = _transform(head, size) if head.size else np.zeros_like(of_tail)
    largest = np.maximum(np.abs(of_head + of_tail), np.abs(of_head))
    large = np.flatnonzero(largest >= math.exp(-_NOTHING / bins) - 2.0 * unit)
    of_head, of_tail, largest = of_head[large], of_tail[large], np.maximum(largest[large], unit)
    power = np.zeros(size // 2 + 1, dtype=np.complex128)
    power[large] = of_tail * _geometric(of_head + of_tail, of_head, bins)
    relative = np.minimum(bins * (2.0 * unit / largest + 16.0 * UNIT), 700.0)
    most = bins * np.exp((bins - 1) * np.log(largest))
    of_error = unit * float(tail.sum())
    errors = most * (np.abs(of_tail) * (np.expm1(relative) + unit) + of_error * np.exp(relative))
    return power, float(errors.sum()) + 2.0 * (power.size - large.size) * math.exp(-_NOTHING)


def _transform(masses: Array, size: int) -> Complex:
    if masses.size > size:
        masses = np.pad(masses, (0, -masses.size % size)).reshape(-1, size).sum(axis=0)
    transform: Complex = scipy.fft.rfft(masses, size)
    return transform


def _geometric(a: Complex, b: Complex, count: int) -> Complex:
    """Sum a^i b^(count-1-i) over i < count, by doubling: G_2n = G_n (a^n + b^n), G_n+1 = a G_n + b^n."""
    total, of_a, of_b = np.ones_like(a), a, b
    for bit in bin(count)[3:]:
        total, of_a, of_b = total * (of_a + of_b), of_a * of_a, of_b * of_b
        if bit == "1":
            total, of_a, of_b = a * total + of_b, of_a * a, of_b * b
    return total


def _alias(masses: Array, bins: int, window: Window, tilt: float, log_m: float) -> float:
    """Bound the tilted mass outside of the window, which wraps around, by Chernoff's bound."""
    if window.first == 0 and window.size > bins * (masses.size - 1):
        return 0.0
    masses, x = _thinned(masses, window.d)  # this can only raise the bound
    ends = window.d * np.array([window.first, window.first + window.size])
    least = np.zeros(2)
    for share in np.array([0.15, 0.3, 0.5, 0.8, 1.2]):
        down, up = share * window.left, share * window.right
        below = bins * (_log_mean(masses, x, tilt - down) - log_m) + down * ends[0]
        above = bins * (_log_mean(masses, x, tilt + up) - log_m) - up * ends[1]
        least = np.minimum(least, [below, above])
    return float(np.exp(least).sum()) if window.first > 0 else float(np.exp(least[1]))
