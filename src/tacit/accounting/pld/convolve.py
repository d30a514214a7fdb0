"""Compositions of losses on a grid, by an exponentially tilted FFT with bounded errors.

With K(z) = sum_j T_j log E e^{z L_j} and the sum S of all losses,

    delta(eps) = E (1 - e^{eps - S})_+ = e^{K(theta) - theta eps} E_theta[g(S - eps)],
    g(u) = e^{-theta u} (1 - e^{-u}) for u > 0, else 0,

where E_theta is the expectation in the measure tilted by e^{theta S}.  If the tilt moves the mean of S close
to eps, delta has full *relative* accuracy, however small it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from tacit.accounting.pld.grid import MASS_ERROR, UNIT, Masses
from tacit.accounting.price import Array

_FAINT = 1e-290


@dataclass(frozen=True)
class Window:
    """The window [low, high] of the sum of losses, after tilting by ``tilt``.

    With the further tilts ``down`` and ``up``, Chernoff's bound shows that little mass lies outside."""

    tilt: float
    low: float
    high: float
    down: float
    up: float


@dataclass(frozen=True)
class Composition:
    """The tilted distribution of the sum of all losses, with bounds on its errors.

    ``masses[i]`` is the mass of the loss ``origin + h * (first + i)``.  The origin is subtracted from the sum
    and from epsilon, and ``scale`` is K(tilt) after that.  In the tilted measure, ``rounding`` bounds the
    error of E_theta g.  ``below`` and ``above`` bound the mass on either side of the window, which is missing
    there and wraps around into the window.  ``beyond`` bounds the P-mass above the window, ``infinite`` is
    P(S = infinity), and ``relative`` bounds the relative error of all masses.
    """

    h: float
    tilt: float
    first: int
    masses: Array
    scale: float
    rounding: float
    below: float
    above: float
    beyond: float
    infinite: float
    relative: float
    origin: float

    def _expectation(self, epsilon: float) -> float:
        """Compute E_theta g(S - eps) over the window, to within a millionth of ``rounding``."""
        start = max(math.floor(epsilon / self.h) + 1 - self.first, 0)
        if start >= self.masses.size:
            return 0.0
        rest, (decay, gain) = max(self.h * (self.first + start) - epsilon, 0.0), self._weights
        masses = self.masses[start : start + decay.size]
        # 1 - e^{-(r + hk)} = (1 - e^{-r}) + e^{-r} (1 - e^{-hk})
        first, further = (
            float(np.dot(masses, decay[: masses.size])),
            float(np.dot(masses, gain[: masses.size])),
        )
        return math.exp(-self.tilt * rest) * (math.exp(-rest) * further - math.expm1(-rest) * first)

    @cached_property
    def _weights(self) -> tuple[Array, Array]:
        """The weights e^{-theta h k} and e^{-theta h k} (1 - e^{-hk}), for k = 0, 1, ..."""
        cells = float(self.masses.size)
        if self.rounding > 0.0:  # beyond these cells, g is below a millionth of the allowance
            cells = min(-math.log(1e-6 * self.rounding) / (self.tilt * self.h), cells)
        above = self.h * np.arange(math.ceil(cells))
        decay = np.exp(-self.tilt * above)
        return decay, decay * -np.expm1(-above)

    def _scaled(self, epsilon: float, expectation: float, relative: float) -> float:
        exponent = self.scale - self.tilt * epsilon + relative
        return math.exp(min(700.0, exponent + math.log(expectation))) if expectation > 0.0 else 0.0

    def upper(self, epsilon: float) -> float:
        """Bound the delta of the composed grid at ``epsilon`` from above."""
        epsilon -= self.origin
        missing = _peak(self.tilt) * self.below if epsilon < self.h * self.first else 0.0
        expectation = self._expectation(epsilon) + (1.0 + 2e-6) * self.rounding + missing
        inside = self._scaled(epsilon, expectation, self._relative(epsilon))
        return inside + self.beyond + self.infinite

    def uppers(self, first: int, last: int) -> Array:
        """Compute ``upper`` at the grid points ``first`` to ``last`` - 1, and make the values decrease.

        The tilted mass beyond x, a(x) = E_theta e^{-theta (S - x)} 1[S > x], and E_theta g(S - x) satisfy

            a(x) = e^{-theta h} (mass(x+h) + a(x+h)),
            E_theta g(S - x) = (1 - e^{-h}) a(x) + e^{-(1+theta) h} E_theta g(S - (x+h)).

        Masses that rounding made negative are raised to 0, so these are sums of positive numbers.
        """
        inside = np.maximum(self.masses[max(first + 1 - self.first, 0) :], 0.0)
        before = max(self.first - first - 1, 0)
        masses = np.pad(inside, (before, max(last - first - before - inside.size, 0)))
        beyond = math.exp(-self.tilt * self.h) * _decayed(masses, self.tilt * self.h)
        expectation = -math.expm1(-self.h) * _decayed(beyond, (1.0 + self.tilt) * self.h)[: last - first]
        point = self.h * np.arange(first, last, dtype=np.float64)
        expectation = expectation * (1.0 + 1e-12) + self.rounding + _FAINT
        expectation[point < self.h * self.first] += _peak(self.tilt) * self.below
        relative = self.relative + 16.0 * UNIT * (abs(self.scale) + np.abs(self.tilt * point) + 4.0)
        log_bounds = self.scale - self.tilt * point + relative + np.log(expectation)
        bounds = np.exp(np.minimum(log_bounds, 700.0)) + (self.beyond + self.infinite)
        # if all values overflow, delta is still at most 1
        decreasing: Array = np.minimum.accumulate(np.where(bounds < 1.0, bounds, 1.0))
        return decreasing

    def lower(self, epsilon: float) -> float:
        """Bound the delta of the composed grid at ``epsilon`` from below."""
        epsilon -= self.origin
        inside = self._expectation(epsilon) - self.rounding - _peak(self.tilt) * (self.below + self.above)
        return self._scaled(epsilon, inside, -self._relative(epsilon)) + self.infinite

    def _relative(self, epsilon: float) -> float:
        return self.relative + 16.0 * UNIT * (abs(self.scale) + abs(self.tilt * epsilon) + 4.0)


def compose(parts: list[tuple[Masses, int]], h: float, window: Window) -> Composition:
    """Compose independent losses; ``parts`` has pairs of a loss and its number of copies.

    **Guarantee**

    * ``Composition.upper`` is at least the delta of the composed grid, and ``Composition.lower`` is at most
      that delta, with allowances for rounding and aliasing.
    """
    theta = window.tilt
    origin = sum(count * part.origin for part, count in parts)
    size = _length((window.high - window.low) / h + 1.0)
    first = math.floor((window.low - origin) / h)
    log_f = np.zeros(size // 2 + 1, dtype=np.complex128)
    log_floor, error = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    base = 0
    for part, count in parts:
        tilted = _tilted(part, h, theta)
        transform, unit = _transform(tilted, size)
        unit += 4.0 * UNIT * (1.0 + theta * h * max(abs(part.first), abs(part.first + part.masses.size)))
        magnitude = np.maximum(np.abs(transform), unit)
        logarithm = np.log(magnitude)
        log_f += count * (logarithm + 1j * np.angle(transform))
        log_floor += count * logarithm
        error += count * (2.0 * unit / magnitude + 4.0 * UNIT * (math.pi + np.abs(logarithm)))
        base += count * part.first
    power = np.exp(log_f)
    masses = np.roll(scipy.fft.irfft(power, size), (base - first) % size)
    scale = _cumulant(parts, h, theta)
    down, up = _cumulant(parts, h, theta - window.down), _cumulant(parts, h, theta + window.up)
    last = h * (first + size - 1)
    above = math.exp(min(0.0, up - scale - window.up * last))  # Chernoff, in the tilted measure
    below = math.exp(min(0.0, down - scale + window.down * h * first))
    return Composition(
        h=h,
        tilt=theta,
        first=first,
        masses=masses,
        scale=scale,
        rounding=_rounding(log_floor, error, size, theta, h),
        below=below,
        above=above,
        beyond=math.exp(min(0.0, up - (theta + window.up) * last)),
        infinite=-math.expm1(sum(count * math.log1p(-part.infinite) for part, count in parts)),
        relative=sum(count * (MASS_ERROR + 8.0 * UNIT) for _, count in parts),
        origin=origin,
    )


def directly(part: Masses, count: int, h: float) -> Composition:
    """Convolve ``count`` copies of one loss directly, without a transform; this is for few points.

    The terms are positive, so no tilt is needed.  A tilt would even underflow losses that are 800 below the
    largest, and lose their P-mass.  The guarantee is that of :func:`compose`.
    """
    masses, square, left, theta = np.ones(1), part.masses, count, 0.0
    while left:
        masses = np.convolve(masses, square) if left % 2 else masses
        left //= 2
        square = np.convolve(square, square) if left else square
    infinite = -math.expm1(count * math.log1p(-part.infinite))
    whole = Masses(count * part.first, masses, infinite)
    return Composition(
        h=h,
        tilt=theta,
        first=whole.first,
        masses=_tilted(whole, h, theta),
        scale=_cumulant([(whole, 1)], h, theta),
        rounding=0.0,
        below=0.0,
        above=0.0,
        beyond=0.0,
        infinite=infinite,
        relative=count * MASS_ERROR + 4.0 * UNIT * masses.size,
        origin=count * part.origin,
    )


def _tilted(part: Masses, h: float, theta: float) -> Array:
    cells = np.flatnonzero(part.masses)
    exponents = theta * h * (part.first + cells)
    exponents -= exponents[np.argmax(np.log(part.masses[cells]) + exponents)]
    tilted = np.zeros_like(part.masses)
    tilted[cells] = part.masses[cells] * np.exp(np.minimum(exponents, 700.0))  # no mass has a larger exponent
    return tilted / float(tilted.sum())


def _decayed(values: Array, rate: float) -> Array:
    """Sum e^{-rate (i-k)} values_i over i >= k, for every k.  Positive values are summed to a few units.

    The spans double: the sum of 2n terms is that of the first n plus the decayed sum of the next n.
    """
    sums, span = values.copy(), 1
    while span < sums.size and rate * span < 700.0:  # beyond, the decayed terms are below _FAINT
        sums[:-span] += math.exp(-rate * span) * sums[span:]
        span *= 2
    return sums


def _cumulant(parts: list[tuple[Masses, int]], h: float, z: float) -> float:
    """Compute K(z) of the finite losses on the grid."""
    total = 0.0
    for part, count in parts:
        cells = np.flatnonzero(part.masses)
        exponents = np.log(part.masses[cells]) + z * h * (part.first + cells)
        top = exponents.max()
        total += count * float(top + math.log(np.exp(exponents - top).sum()))
    return total


def _transform(masses: Array, size: int) -> tuple[NDArray[np.complex128], float]:
    """Transform a pmf wrapped around ``size`` points, and bound the error of each value.

    Each value is a sum of terms of total size 1.  It goes through log2(size) butterflies, each with an
    error of a few units (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2).
    """
    if masses.size > size:
        masses = np.pad(masses, (0, -masses.size % size)).reshape(-1, size).sum(axis=0)
    return scipy.fft.rfft(masses, size), 8.0 * UNIT * math.log2(size)


def _rounding(log_floor: Array, error: Array, size: int, theta: float, h: float) -> float:
    """Bound |sum of error * g| over the window by ||error|| ||g||, with ||error|| from Parseval's theorem.

    ||g||^2 <= (1/h) int g^2 + max g^2, and int g^2 = 1 / (2 theta (theta+1) (2 theta+1)).
    """
    power = np.exp(log_floor)
    unit = 8.0 * UNIT * math.log2(size)
    spectrum = power * (np.expm1(np.minimum(error, 700.0)) + unit)
    of_error = math.sqrt(2.0 * float(np.dot(spectrum, spectrum)) / size)
    of_g = math.sqrt(1.0 / (2.0 * theta * (theta + 1.0) * (2.0 * theta + 1.0) * h) + _peak(theta) ** 2)
    return of_error * of_g


def _peak(theta: float) -> float:
    """Return max_u e^{-theta u} (1 - e^{-u}) = theta^theta / (1 + theta)^{1 + theta}; 1 at theta = 0."""
    if theta == 0.0:
        return 1.0
    return math.exp(theta * (math.log(theta) - math.log1p(theta)) - math.log1p(theta))


def _length(least: float) -> int:
    """Return the least power of two from ``least`` on, or three quarters of it if that is enough."""
    power = 1 << max(4, math.ceil(math.log2(least)))
    return 3 * power // 4 if 3 * power // 4 >= least else power
