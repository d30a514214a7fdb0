"""The characteristic function of one step's privacy loss, with a bound on its error.

For a Gaussian on a Poisson sample, with x ~ N(0, sigma^2) and m(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)},

    E_P e^{zL} = E m(x)^{1+z}   (remove),      E_P e^{zL} = E m(x)^{-z}   (add).

On the line z = c + iu this is e^{K(c)} phi(u), phi the characteristic function of L = +-log m in the
measure tilted by e^{cL}.  The trapezoid rule in x converges geometrically, for m has no zero in the strip
|Im x| < pi sigma^2 (Trefethen & Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

from tacit.accounting.directions import Direction
from tacit.accounting.pld.pair import log_mixture
from tacit.accounting.price import Array

__all__ = ["EXTENDED", "MOST_POINTS", "UNIT", "Sampled", "Tilted", "TooDear"]

Complex: TypeAlias = NDArray[np.complex128]

UNIT = 2.0**-53
EXTENDED: bool = np.finfo(np.longdouble).nmant in (63, 112)
"""Whether numpy's long double has more digits than a double here: 64 or 113 bits, and IEEE's rounding."""
_LOG_TAIL = math.log(1e-22)  # mass cut off at either end in x, relative
_LOG_QUADRATURE = math.log(1e-22)  # wanted error of the trapezoid rule, relative
_PANELS = 128  # of the bound on the integrand beside the real line
_ANGLES = np.array([0.1, 0.3, 0.7, 1.1, 1.5])[:, None]  # below pi/2
_COS, _SIN = np.cos(_ANGLES), np.sin(_ANGLES)
_COUNTED = np.arange(_PANELS + 1.0)
_BLOCK = 1 << 17  # sines at a time
_CHUNK = 64  # points of x at a time, in matrix products
_SUM_UNITS = 48.0  # numpy's pairwise sums of up to 2^20 terms, and the products in them
MOST_POINTS = 1 << 17


@dataclass(frozen=True)
class Sampled:
    """A Gaussian of noise ``sigma`` on a Poisson sample of rate ``q`` in (0, 1), in one direction."""

    q: float
    sigma: float
    direction: Direction

    @property
    def sign(self) -> float:
        """+1 where L = log m, -1 where L = -log m."""
        return 1.0 if self.direction == "remove" else -1.0

    def power(self, tilt: float) -> float:
        """The s with E_P e^{cL} = E m^s."""
        return 1.0 + tilt if self.direction == "remove" else -tilt

    def y(self, x: Array) -> Array:
        """The log ratio of the mechanism with the record to that without it."""
        sigma = x.dtype.type(self.sigma)
        ratio: Array = (2.0 * x - 1.0) / (2.0 * sigma * sigma)
        return ratio

    def log_m(self, x: Array) -> Array:
        """log m at real x."""
        return log_mixture(self.y(x), self.q)

    def log_normal(self, x: Array) -> Array:
        """The log density of x."""
        if x.dtype == np.float64:
            return -((x / self.sigma) ** 2) / 2.0 - math.log(self.sigma * math.sqrt(2.0 * math.pi))
        real = x.dtype.type
        constant = np.log(real(self.sigma)) + np.log(8.0 * np.arctan(real(1.0))) / 2.0
        density: Array = -np.square(x / real(self.sigma)) / 2.0 - constant
        return density

    def reach(self, power: float, log_tail: float = _LOG_TAIL) -> tuple[float, float]:
        """[low, high] outside of which E m^s has less than e^{log_tail} of its value, at either end.

        The value is at least 1, by Jensen, for s >= 1 and for s <= 0.  s >= 1: on the left m <= 1, which
        leaves Phi(low/sigma); on the right m <= k e^y with k = q + (1-q) e^{-y(high)}, which leaves
        k^s e^{s(s-1)/(2 sigma^2)} Phi((s-high)/sigma).  s <= 0: (1-q)^s Phi(low/sigma), Phi(-high/sigma).
        """
        sigma, q = self.sigma, self.q
        far = -sigma * float(ndtri_exp(log_tail))
        if power < 0.0:
            return sigma * float(ndtri_exp(log_tail + power * -math.log1p(-q))), far
        high = max(far, 0.5)
        for _ in range(3):  # each is a valid end, for k only falls with the end it is taken at
            log_k = math.log(q + (1.0 - q) * math.exp(-(2.0 * high - 1.0) / (2.0 * sigma * sigma)))
            rest = log_tail - power * log_k - power * (power - 1.0) / (2.0 * sigma * sigma)
            needed = power - sigma * float(ndtri_exp(rest)) if rest < -1e-3 else 0.5
            if needed > high:
                high = needed
                break
            high = max(needed, 0.5, (high + needed) / 2.0)
        return -far, high

    def tilted(self, tilt: float, largest: float, *, extended: bool = False) -> Tilted:
        """Quadrature for phi(u) at this tilt, for 0 <= u <= ``largest``.

        With ``extended`` in long doubles, where 1 + tilt is exact, the rate is at most 1/2 and long doubles
        are longer than doubles; else in doubles.
        """
        power = self.power(tilt)
        low, high = self.reach(power)
        step = self._spacing(power, largest)
        points = 1 + math.ceil((high - low) / step)
        if points > MOST_POINTS:
            raise TooDear(f"{points} points in x")
        exact = self.direction == "add" or power - 1.0 == tilt
        longer = extended and EXTENDED and exact and self.q <= 0.5
        nodes: Array = np.arange(points).astype(np.longdouble if longer else np.float64)
        x = low + step * nodes
        return Tilted.make(self, tilt, x, np.log(x.dtype.type(step)) + self.log_normal(x))

    def _spacing(self, power: float, largest: float) -> float:
        """The widest step whose proven error, relative to E m^s, is at most e^{_LOG_QUADRATURE}.

        |error| <= 2 S / (e^{2 pi a/h} - 1) with S the integral of |integrand| along Im x = a, which grows
        with a.  With theta = a/sigma^2 < pi/2 every factor is monotone in x, so that the ends of panels bound
        it: |m(x+ia)| increases and is at most m(x), |arg m(x+ia)| increases, the density gains
        e^{a^2/(2 sigma^2)}.
        """
        if largest == 0.0:
            return self._real_spacing(power)
        low, high = self.reach(power, _LOG_TAIL - largest * float(_ANGLES[-1, 0]))  # beyond, |arg m| <= theta
        edges = low + (high - low) / _PANELS * _COUNTED
        far = np.abs(edges)
        near, far = np.minimum(far[:-1], far[1:]), np.maximum(far[:-1], far[1:])
        near[edges[:-1] * edges[1:] < 0.0] = 0.0
        log_m = self.log_m(edges)
        odds = self.q * np.exp(np.minimum(self.y(edges), 300.0))
        real, imaginary = (1.0 - self.q) + odds * _COS, odds * _SIN  # of m(x+ia), (angles, edges)
        beyond = 0.0  # log of how much larger |m(x+ia)|^s may be than m^s to the right of the panels
        if power < 0.0:
            above = power * np.log(np.hypot(real, imaginary))[:, :-1]
            below = power * log_m[1:]
            beyond = max(0.0, power * math.log(math.hypot(1.0 - self.q, float(odds[-1]))))
        else:
            above, below = power * log_m[1:], power * log_m[:-1]
        above = above + largest * np.arctan2(imaginary, real)[:, 1:] + self.log_normal(near)
        top = above.max(axis=1)
        log_above = top + np.log(np.exp(above - top[:, None]).sum(axis=1))
        log_ratio = np.logaddexp(log_above - _log_sum(below + self.log_normal(far)), _LOG_TAIL + beyond)
        a = _ANGLES[:, 0] * self.sigma**2
        log_strip = log_ratio + a * _ANGLES[:, 0] / 2.0 + math.log(4.0)
        return float((2.0 * math.pi * a / (log_strip - _LOG_QUADRATURE)).max())

    def _real_spacing(self, power: float) -> float:
        """The same for u = 0, where m cos(theta/2) <= |m(x+ia)| <= m is enough, for a < pi sigma^2."""
        best = 0.0
        for theta in (0.3, 0.7, 1.2, 1.8, 2.4, 3.0):
            a = theta * self.sigma * self.sigma
            log_strip = theta * a / 2.0 + min(power, 0.0) * math.log(math.cos(theta / 2.0)) + math.log(4.0)
            best = max(best, 2.0 * math.pi * a / (log_strip - _LOG_QUADRATURE))
        return best


class TooDear(Exception):
    """The quadrature would take more points than is sensible."""


def _log_sum(logs: Array) -> np.floating:
    top = logs.max()
    total: np.floating = top + np.log(np.exp(logs - top).sum())
    return total


@dataclass(frozen=True)
class Tilted:
    """Quadrature under the measure tilted by e^{cL}: ``losses`` and ``weights`` (of sum 1).

    ``log_value`` is K(c) = log E_P e^{cL}, with absolute error at most ``log_error``.
    The error of phi(u) is at most ``fixed + min(bound, slope u) + drift u``.
    """

    losses: Array
    weights: Array
    log_value: float
    log_error: float
    fixed: float
    bound: float
    slope: float
    drift: float

    @classmethod
    def make(cls, base: Sampled, tilt: float, x: Array, log_weights: Array) -> Tilted:
        """Weights relative to their sum, and what rounding may do to them.

        A weight e^{a+b} is off by |a| + |b| units, pairwise sums by a few dozen (Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd ed., sections 1.18 and 4.2); l by a few units of itself, and by
        y's own, |y| units times dl/dy.
        """
        power, unit = base.power(tilt), float(np.finfo(x.dtype).eps) / 2.0
        y = base.y(x)
        # in long doubles e^y is far from overflow, and 1 - q would be rounded to a double
        log_m = log_mixture(y, base.q) if x.dtype == np.float64 else np.log1p(base.q * np.expm1(y))
        exponents = power * log_m
        total = _log_sum(log_weights + exponents)
        weights = np.exp(log_weights + exponents - total)
        from_y = np.abs(y) * np.exp(np.minimum(math.log(base.q) + y - log_m, 0.0))  # |y| dl/dy
        of_losses = unit * (8.0 * np.abs(log_m) + 2.0 * from_y)
        of_weights = 2.0 * (_SUM_UNITS * unit + unit * np.abs(log_weights) + abs(power) * of_losses)
        cut = 4.0 * math.exp(_LOG_TAIL) + math.exp(_LOG_QUADRATURE)
        if total > 0.1:
            value, error = float(total), float(np.dot(weights, of_weights)) + 2.0 * unit * abs(float(total))
        else:  # E m^s - 1 without the rounding of a sum that is nearly 1
            plain = np.exp(log_weights)
            large = exponents > 1.0
            grown = np.where(
                large, weights * np.exp(total) - plain, plain * np.expm1(np.where(large, 0.0, exponents))
            )
            value = float(np.log1p(grown.sum()))
            error = 2.0 * float(np.dot(np.abs(grown), of_weights)) + float(
                np.dot(plain, abs(power) * of_losses)
            )
        return cls(
            base.sign * log_m,
            weights,
            value,
            error + 2.0 * cut,
            2.0 * cut,
            2.0 * float(np.dot(weights, of_weights)),
            float(np.dot(weights * np.abs(log_m), of_weights)),
            float(np.dot(weights, of_losses)),
        )

    def log_characteristic(self, h: float, count: int, most_sines: int) -> tuple[Array, Array, Array]:
        """log |phi|, arg phi (in (-pi, pi]) and a bound on the error of phi, at u = 0, h, ..., (count-1) h.

        phi - 1 = sum of w (e^{iul} - 1) keeps what a sum near 1 would round away.  Above ``most_sines``
        pairs of u and l, a faster way is taken, with a bound ten times larger.
        """
        u = h * np.arange(count, dtype=self.losses.dtype)
        many = count * self.losses.size > most_sines
        less_one = self._by_products(h, count) if many else self._directly(u)
        real, imaginary = less_one.real, less_one.imag
        square = 2.0 * real + real * real + imaginary * imaginary
        small = square < -0.5  # there 1 + square would be rounding
        logs = 0.5 * np.log1p(np.where(small, 0.0, square))
        with np.errstate(divide="ignore"):
            logs[small] = np.log(np.hypot(1.0 + real[small], imaginary[small]))
        # sums of n complex products are off by 2n units of their sizes; |AB| + |A| + |B| <= min(8, 2 u |l|)
        sums = 2.0 * (_CHUNK + 8.0) / _SUM_UNITS if many else 0.5
        error = self.fixed + sums * np.minimum(4.0 * self.bound, 2.0 * self.slope * u) + self.drift * u
        least = np.log(error)  # a |phi| below its own error is said to be as large as the error
        found = (
            np.maximum(logs, least),
            np.arctan2(imaginary, 1.0 + real),
            np.where(logs < least, 2.0, 1.0) * error,
        )
        log_size, angle, off = (np.asarray(part, dtype=np.float64) for part in found)
        return log_size, angle, off

    def _directly(self, u: Array) -> Complex:
        """phi - 1 at each of ``u``, by -2 sin^2(ul/2) + i sin(ul)."""
        found = np.empty(u.size, dtype=np.result_type(u, np.complex64))
        block = max(1, _BLOCK // self.losses.size)
        for start in range(0, u.size, block):
            part = slice(start, start + block)
            half = np.multiply.outer(u[part] / 2.0, self.losses)
            sine = np.sin(half)
            weighted = sine * self.weights
            found[part].real = -2.0 * (weighted * sine).sum(axis=1)
            found[part].imag = 2.0 * (weighted * np.cos(half, out=half)).sum(axis=1)
        return found

    def _by_products(self, h: float, count: int) -> Complex:
        """phi - 1 at u = (j + k b) h from A = e^{ijhl} - 1 and B = e^{ikbhl} - 1, as AB + A + B.

        A matrix product instead of a sine for every pair of u and l; in chunks, for the sake of rounding.
        """
        few = max(2, math.isqrt(count))
        short, long = np.arange(few), few * np.arange(-(-count // few))
        found = np.zeros((long.size, few), dtype=np.result_type(self.losses, np.complex64))
        lost = np.zeros_like(found)  # by the sum so far, Kahan's way
        for start in range(0, self.losses.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            a = _expm1(np.multiply.outer(h * short, self.losses[part]))
            b = _expm1(np.multiply.outer(h * long, self.losses[part])) * self.weights[part]
            more = b @ a.T + (a @ self.weights[part]) + b.sum(axis=1)[:, None] - lost
            total = found + more
            found, lost = total, (total - found) - more
        flat: Complex = found.ravel()[:count]
        return flat


def _expm1(angle: Array) -> Complex:
    """e^{i angle} - 1, to relative accuracy."""
    sine, cosine = np.sin(angle / 2.0), np.cos(angle / 2.0)
    found: Complex = 2.0 * sine * (1j * cosine - sine)
    return found
