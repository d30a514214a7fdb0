"""The characteristic function of one step's loss, with a bound on its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

from tacit.accounting.pair import COUNTED
from tacit.accounting.price import Array, Direction
from tacit.events import GaussianMixture

# For a Gaussian whose record has the sensitivity s_k with probability w_k (on a Poisson sample: 1 with
# probability q, else 0), with x ~ N(0, sigma^2) and m(x) = sum_k w_k e^{y_k(x)}, where y_k(x) is
# s_k (2x - s_k) / (2 sigma^2),
#
#     E_P e^{zL} = E m(x)^{1+z}   (remove),   E m(x)^{-z}   (add),   E m(x)^{1+z} m(-x)^{-z}   (replace).
#
# On the line z = c + iu this is e^{K(c)} phi(u), phi the characteristic function of L in the measure tilted
# by e^{cL}.  The trapezoid rule in x converges geometrically: at Im x = a the terms of m have angles between
# 0 and theta = a S / sigma^2, S the largest sensitivity, so that |m| >= m(Re x) cos(theta/2) has no zero for
# theta < pi (Trefethen & Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1).

Complex: TypeAlias = NDArray[np.complex128]

UNIT = 2.0**-53
EXTENDED: bool = np.finfo(np.longdouble).nmant in (63, 112)
"""Whether numpy's long double is longer than a double (64 or 113 bits) and rounds as IEEE prescribes."""
_LOG_TAIL = math.log(1e-22)  # mass cut off at either end in x, relative
_LOG_QUADRATURE = math.log(1e-22)  # target of the trapezoid rule's error, relative
_PANELS = 128  # of the bound on the integrand off the real line
_ANGLES = np.array([0.1, 0.3, 0.7, 1.1, 1.5])[:, None]  # below pi/2
_COUNTED = np.arange(_PANELS + 1.0)
_BLOCK = 1 << 17  # sines at a time
_CHUNK = 64  # points of x at a time, in matrix products
_SUM_UNITS = 48.0  # numpy's pairwise sums of up to 2^20 terms, and the products in them
MOST_POINTS = 1 << 17


@dataclass(frozen=True)
class Mixture:
    """A Gaussian of noise ``sigma`` and of sensitivity ``shifts[k]`` with probability ``shares[k]``.

    It has one ``direction``.  The first shift is 0, the last one is the largest, and no share is 0, except,
    where only :meth:`log_m` is used, the first.

    ``off`` bounds the relative error of the shares.
    """

    shares: tuple[float, ...]
    shifts: tuple[float, ...]
    sigma: float
    direction: Direction
    off: float = 0.0

    @classmethod
    def poisson(cls, q: float, sigma: float, direction: Direction) -> Mixture:
        return cls((1.0 - q, q), (0.0, 1.0), sigma, direction)

    @classmethod
    def of(cls, event: GaussianMixture, direction: Direction) -> Mixture | None:
        """Make the term of an event; None if the record always, or never, makes a difference."""
        shares: dict[float, float] = {}
        for shift, share in sorted(zip(event.sensitivities, event.probabilities, strict=True)):
            if share > 0.0:
                shares[shift] = shares.get(shift, 0.0) + share
        if 0.0 not in shares or len(shares) == 1:
            return None
        return cls(tuple(shares.values()), tuple(shares), event.noise_multiplier, direction, COUNTED)

    @cached_property
    def terms(self) -> tuple[tuple[float, float, float], ...]:
        """Sensitivities above 0, their probabilities, and the logs of the probabilities."""
        return tuple((s, w, math.log(w)) for s, w in zip(self.shifts[1:], self.shares[1:], strict=True))

    @cached_property
    def log_never(self) -> float:
        """log w_0, which is a lower bound on log m."""
        rest = math.fsum(self.shares[1:])
        if rest < 0.5:
            return math.log1p(-rest)
        return math.log(self.shares[0]) if self.shares[0] > 0.0 else -math.inf

    def powers(self, tilt: float) -> tuple[float, float]:
        """Return a and b with E_P e^{cL} = E m(x)^a m(-x)^b."""
        if self.direction == "add":
            return -tilt, 0.0
        return 1.0 + tilt, -tilt if self.direction == "replace" else 0.0

    def y(self, x: Array, shift: float) -> Array:
        """Compute the log ratio of the mechanism at sensitivity ``shift`` to that without the record."""
        sigma, s = x.dtype.type(self.sigma), x.dtype.type(shift)
        ratio: Array = s * (2.0 * x - s) / (2.0 * sigma * sigma)
        return ratio

    def log_m(self, x: Array) -> Array:
        """Compute log m at real x, which may be sorted either way; from m - 1 if that is small."""
        last = x[[0, -1]].max(keepdims=True)
        largest = max(float(self.y(last, s)[0]) for s in self.shifts[1:])
        if self.shares[0] >= 0.5 and largest <= 30.0:
            return np.log1p(sum(w * np.expm1(self.y(x, s)) for s, w, _ in self.terms))
        return self._large_log_m(x)

    def _large_log_m(self, x: Array) -> Array:
        """Compute log m for x at which e^y may overflow, or 1 - m may lose digits."""
        top = self._top(x)
        small, total, less_one = top <= 30.0, np.exp(self.log_never - top), np.zeros_like(x)
        for s, w, log_w in self.terms:
            y = self.y(x, s)
            total += np.exp(log_w + y - top)
            less_one += w * np.expm1(np.where(small, y, 0.0))
        near = small & (less_one > -0.5)
        return np.where(near, np.log1p(np.where(near, less_one, 0.0)), top + np.log(total))

    def _top(self, x: Array) -> Array:
        """Return the largest y, that of the sensitivity 0 included."""
        top = np.full_like(x, 0.0 if self.shares[0] > 0.0 else -math.inf)
        for s in self.shifts[1:]:
            np.maximum(top, self.y(x, s), out=top)
        return top

    def posterior(self, x: Array, log_m: Array) -> tuple[Array, Array]:
        # They are d log m / dx and d^2 log m / dx^2, times sigma^2 and sigma^4.
        shares = [np.exp(np.minimum(log_w + self.y(x, s) - log_m, 0.0)) for s, _, log_w in self.terms]
        mean = np.zeros_like(x)
        for s, r in zip(self.shifts[1:], shares, strict=True):
            mean += s * r
        square = np.exp(np.minimum(self.log_never - log_m, 0.0)) * np.square(mean)
        for s, r in zip(self.shifts[1:], shares, strict=True):
            square = square + r * np.square(s - mean)
        return mean, square

    def loss(self, x: Array) -> Array:
        """Compute L at x drawn under P, or -L under ``add``, so that it always increases."""
        return self.log_m(x) - self.log_m(-x) if self.direction == "replace" else self.log_m(x)

    def log_normal(self, x: Array) -> Array:
        real = x.dtype.type
        constant = np.log(real(self.sigma)) + np.log(8.0 * np.arctan(real(1.0))) / 2.0
        density: Array = -np.square(x / real(self.sigma)) / 2.0 - constant
        return density

    def reach(self, tilt: float, log_tail: float = _LOG_TAIL) -> tuple[float, float]:
        """Return [low, high] with less than e^{log_tail} of E m(x)^a m(-x)^b outside, at either end."""
        # That mean is E_P e^{cL}, at least 1 by Jensen.  Where all y <= 0, m <= 1; where all y >= 0,
        # m >= 1; and m >= w_0.  On the right m <= k e^{y_S} with k = sum of w e^{y - y_S} at ``high``, which
        # leaves k^a e^{a (a-1) S^2 / (2 sigma^2)} Phi((aS - high)/sigma) of m^a.
        sigma, largest = self.sigma, self.shifts[-1]
        a, b = self.powers(tilt)
        far = -sigma * float(ndtri_exp(log_tail))
        if a < 0.0:
            return sigma * float(ndtri_exp(log_tail - a * self.log_never)), max(far, largest / 2.0)
        least = largest / 2.0
        low, high = -far if b == 0.0 else -max(far, least), max(far, least)
        for _ in range(3):  # each is a valid end, as k only falls with its end
            point = np.array([high])
            log_k = float((self._large_log_m(point) - self.y(point, largest))[0])
            rest = log_tail - a * log_k - a * (a - 1.0) * (largest / sigma) ** 2 / 2.0 - b * self.log_never
            needed = a * largest - sigma * float(ndtri_exp(rest)) if rest < -1e-3 else least
            if needed > high:
                high = needed
                break
            high = max(needed, least, (high + needed) / 2.0)
        return low, high

    def tilted(self, tilt: float, largest: float, *, extended: bool = False) -> Tilted:
        """Make the quadrature for phi(u) at this tilt, for 0 <= u <= ``largest``."""
        # ``extended`` uses long doubles if 1 + tilt is exact, all shares except the first add up to at most
        # 1/2, and long doubles are longer than doubles.
        low, high = self.reach(tilt)
        step = self._spacing(tilt, largest)
        points = 1 + math.ceil((high - low) / step)
        if points > MOST_POINTS:
            raise TooDear(f"{points} points in x")
        exact = self.direction == "add" or self.powers(tilt)[0] - 1.0 == tilt
        longer = extended and EXTENDED and exact and self.log_never >= math.log(0.5)
        nodes: Array = np.arange(points).astype(np.longdouble if longer else np.float64)
        x = low + step * nodes
        return Tilted.make(self, tilt, x, np.log(x.dtype.type(step)) + self.log_normal(x))

    def _spacing(self, tilt: float, largest: float) -> float:
        """Find the widest step with a proven error, relative to E m^a m^b, of at most e^{_LOG_QUADRATURE}."""
        # |error| <= 2 I / (e^{2 pi d/h} - 1) with I the integral of |integrand| along Im x = d, which grows
        # with d.  With theta = d S / sigma^2 < pi/2 every factor is monotone in x, so that the ends of panels
        # bound it: |m(x+id)| increases and is at most m(x), |arg m(x+id)| increases, the density gains
        # e^{d^2/(2 sigma^2)}.
        if largest == 0.0:
            return self._real_spacing(tilt)
        a, b = self.powers(tilt)
        angle = float(_ANGLES[-1, 0]) * (1.0 if b == 0.0 else 2.0)
        low, high = self.reach(tilt, _LOG_TAIL - largest * angle)  # outside, |arg m| <= theta
        edges = low + (high - low) / _PANELS * _COUNTED
        far = np.abs(edges)
        near, far = np.minimum(far[:-1], far[1:]), np.maximum(far[:-1], far[1:])
        near[edges[:-1] * edges[1:] < 0.0] = 0.0
        above, below, beyond = self.log_normal(near)[None], self.log_normal(far), 0.0
        ends = slice(None, -1), slice(1, None)  # of the panels: m(x) grows from left to right, m(-x) falls
        for power, x, low_m, high_m in ((a, edges, *ends), (b, -edges, *ends[::-1])):
            if power == 0.0:
                continue
            log_m = self.log_m(x)
            modulus, turned = self._off_axis(x)
            above = above + largest * turned[:, high_m]
            if power > 0.0:
                above, below = above + power * log_m[high_m], below + power * log_m[low_m]
            else:
                above, below = above + power * modulus[:, low_m], below + power * log_m[high_m]
                beyond = max(0.0, power * float(modulus[:, int(x.argmax())].min()))
        top = above.max(axis=1)
        log_above = top + np.log(np.exp(above - top[:, None]).sum(axis=1))
        log_ratio = np.logaddexp(log_above - _log_sum(below), _LOG_TAIL + beyond)
        d = _ANGLES[:, 0] * self.sigma**2 / self.shifts[-1]
        log_strip = log_ratio + np.square(d / self.sigma) / 2.0 + math.log(4.0)
        return float((2.0 * math.pi * d / (log_strip - _LOG_QUADRATURE)).max())

    def _off_axis(self, x: Array) -> tuple[Array, Array]:
        """Compute log |m| and arg m at x + id, for each of ``_ANGLES`` as theta: (angles, x)."""
        top = self._top(x)
        real = np.exp(self.log_never - top) * np.ones(_ANGLES.shape)
        imaginary = np.zeros_like(real)
        for s, _, log_w in self.terms:
            size, angle = np.exp(log_w + self.y(x, s) - top), _ANGLES * (s / self.shifts[-1])
            real, imaginary = real + size * np.cos(angle), imaginary + size * np.sin(angle)
        return top + np.log(np.hypot(real, imaginary)), np.arctan2(imaginary, real)

    def _real_spacing(self, tilt: float) -> float:
        """Find the widest step for u = 0, from m cos(theta/2) <= |m(x+id)| <= m, for theta < pi."""
        best, negative = 0.0, sum(min(power, 0.0) for power in self.powers(tilt))
        for theta in (0.3, 0.7, 1.2, 1.8, 2.4, 3.0):
            d = theta * self.sigma * self.sigma / self.shifts[-1]
            log_strip = (
                (d / self.sigma) ** 2 / 2.0 + negative * math.log(math.cos(theta / 2.0)) + math.log(4.0)
            )
            best = max(best, 2.0 * math.pi * d / (log_strip - _LOG_QUADRATURE))
        return best

    def rounded(self, x: Array, log_m: Array) -> Array:
        """Bound the error of ``log_m`` at x, from rounding of log m, y and m - 1 and from the shares."""
        unit, count = float(np.finfo(x.dtype).eps) / 2.0, len(self.terms) - 1
        error = unit * 8.0 * np.abs(log_m)
        for s, w, log_w in self.terms:
            y = self.y(x, s)
            posterior, without = np.exp(np.minimum(log_w + y - log_m, 0.0)), w * np.exp(-log_m)
            error += unit * (2.0 * np.abs(y) + count) * posterior + self.off * (posterior + without)
            if count:  # terms of both signs, which may cancel
                error += unit * (8.0 + count) * np.abs(posterior - without)
        return error


class TooDear(Exception):
    """Raised if the quadrature would take too many points."""


def _log_sum(logs: Array) -> np.floating:
    top = logs.max()
    total: np.floating = top + np.log(np.exp(logs - top).sum())
    return total


@dataclass(frozen=True)
class Tilted:
    """Quadrature under the measure tilted by e^{cL}: ``losses``, and ``weights`` that add up to 1.

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
    def make(cls, base: Mixture, tilt: float, x: Array, log_weights: Array) -> Tilted:
        """Normalise the weights, and bound their rounding errors."""
        # A weight e^{a+b} is off by |a| + |b| units, pairwise sums by a few dozen (Higham, Accuracy and
        # Stability of Numerical Algorithms, 2nd ed., sections 1.18 and 4.2), and losses as in
        # :meth:`Mixture.rounded`.
        unit = float(np.finfo(x.dtype).eps) / 2.0
        exponents, losses = np.zeros_like(x), np.zeros_like(x)
        of_exponents, of_losses = np.zeros_like(x), np.zeros_like(x)
        for power, sign, points in zip(base.powers(tilt), (1.0, -1.0), (x, -x), strict=True):
            if power == 0.0:
                continue
            log_m = base.log_m(points)
            off = base.rounded(points, log_m)
            exponents, of_exponents = exponents + power * log_m, of_exponents + abs(power) * off
            losses = losses + (-sign if base.direction == "add" else sign) * log_m
            of_losses = of_losses + off
        total = _log_sum(log_weights + exponents)
        weights = np.exp(log_weights + exponents - total)
        of_weights = 2.0 * (_SUM_UNITS * unit + unit * np.abs(log_weights) + of_exponents)
        cut = 4.0 * math.exp(_LOG_TAIL) + math.exp(_LOG_QUADRATURE)
        if total > 0.1:
            value, error = float(total), float(np.dot(weights, of_weights)) + 2.0 * unit * abs(float(total))
        else:  # E m^s - 1 without the rounding of a sum near 1
            plain = np.exp(log_weights)
            large = exponents > 1.0
            grown = np.where(
                large, weights * np.exp(total) - plain, plain * np.expm1(np.where(large, 0.0, exponents))
            )
            value = float(np.log1p(grown.sum()))
            error = 2.0 * float(np.dot(np.abs(grown), of_weights)) + float(np.dot(plain, of_exponents))
        return cls(
            losses,
            weights,
            value,
            error + 2.0 * cut,
            2.0 * cut,
            2.0 * float(np.dot(weights, of_weights)),
            float(np.dot(weights * np.abs(losses), of_weights)),
            float(np.dot(weights, of_losses)),
        )

    def log_characteristic(self, h: float, count: int, most_sines: int) -> tuple[Array, Array, Array]:
        """Compute log |phi|, arg phi in (-pi, pi] and an error bound on phi at u = 0, h, ..., (count-1) h."""
        # phi - 1 = sum of w (e^{iul} - 1) keeps digits that a sum near 1 would lose.  Above ``most_sines``
        # pairs of u and l, a faster method is used, with a bound ten times larger.
        u = h * np.arange(count, dtype=self.losses.dtype)
        by_products = count * self.losses.size > most_sines
        less_one = self._by_products(h, count) if by_products else self._directly(u)
        real, imaginary = less_one.real, less_one.imag
        square = 2.0 * real + real * real + imaginary * imaginary
        small = square < -0.5  # 1 + square would lose digits
        logs = 0.5 * np.log1p(np.where(small, 0.0, square))
        with np.errstate(divide="ignore"):
            logs[small] = np.log(np.hypot(1.0 + real[small], imaginary[small]))
        # sums of n complex products are off by 2n units of their sizes; |AB| + |A| + |B| <= min(8, 2 u |l|)
        sums = 2.0 * (_CHUNK + 8.0) / _SUM_UNITS if by_products else 0.5
        error = self.fixed + sums * np.minimum(4.0 * self.bound, 2.0 * self.slope * u) + self.drift * u
        least = np.log(error)  # a |phi| below its own error counts as large as the error
        parts = (
            np.maximum(logs, least),
            np.arctan2(imaginary, 1.0 + real),
            np.where(logs < least, 2.0, 1.0) * error,
        )
        log_size, angle, off = (np.asarray(part, dtype=np.float64) for part in parts)
        return log_size, angle, off

    def _directly(self, u: Array) -> Complex:
        """Compute phi - 1 at each of ``u``, by -2 sin^2(ul/2) + i sin(ul)."""
        result = np.empty(u.size, dtype=np.result_type(u, np.complex64))
        block = max(1, _BLOCK // self.losses.size)
        for start in range(0, u.size, block):
            part = slice(start, start + block)
            half = np.multiply.outer(u[part] / 2.0, self.losses)
            sine = np.sin(half)
            weighted = sine * self.weights
            result[part].real = -2.0 * (weighted * sine).sum(axis=1)
            result[part].imag = 2.0 * (weighted * np.cos(half, out=half)).sum(axis=1)
        return result

    def _by_products(self, h: float, count: int) -> Complex:
        """Compute phi - 1 at u = (j + k b) h from A = e^{ijhl} - 1 and B = e^{ikbhl} - 1, as AB + A + B."""
        # A matrix product replaces a sine for every pair of u and l.  Chunks limit its rounding error.
        width = max(2, math.isqrt(count))
        short, long = np.arange(width), width * np.arange(-(-count // width))
        result = np.zeros((long.size, width), dtype=np.result_type(self.losses, np.complex64))
        rounding = np.zeros_like(result)  # the rounding of the sum so far (Kahan)
        for start in range(0, self.losses.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            a = _expm1(np.multiply.outer(h * short, self.losses[part]))
            b = _expm1(np.multiply.outer(h * long, self.losses[part])) * self.weights[part]
            more = b @ a.T + (a @ self.weights[part]) + b.sum(axis=1)[:, None] - rounding
            total = result + more
            result, rounding = total, (total - result) - more
        flat: Complex = result.ravel()[:count]
        return flat


def _expm1(angle: Array) -> Complex:
    """Compute e^{i angle} - 1, to relative accuracy."""
    sine, cosine = np.sin(angle / 2.0), np.cos(angle / 2.0)
    result: Complex = 2.0 * sine * (1j * cosine - sine)
    return result


@dataclass(frozen=True)
class Cumulant:
    """K and its first two derivatives, from weighted samples of each loss: (losses, log masses, count).

    Gaussians without sampling add mu^2 z (z+1) / 2, with their total mu^2 in ``plain``."""

    parts: tuple[tuple[Array, Array, float], ...]
    plain: float = 0.0

    def __call__(self, z: float) -> tuple[float, float, float]:
        value, slope, curvature = self.plain * z * (z + 1.0) / 2.0, self.plain * (z + 0.5), self.plain
        for losses, logs, count in self.parts:
            exponents = logs + z * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            total = float(weights.sum())
            mean = float(np.dot(weights, losses)) / total
            value += count * (top + math.log(total))
            slope += count * mean
            curvature += count * float(np.dot(weights, (losses - mean) ** 2)) / total
        return value, slope, curvature


@dataclass(frozen=True)
class Saddle:
    """An estimate: the point (epsilon, log delta) of the curve at the tilt ``tilt``."""

    tilt: float
    epsilon: float
    log_delta: float
    variance: float = math.nan


def saddle_at(cumulant: Cumulant, tilt: float) -> Saddle:
    value, slope, curvature = cumulant(tilt)
    epsilon = slope - 1.0 / tilt - 1.0 / (tilt + 1.0)
    spread = curvature + 1.0 / tilt**2 + 1.0 / (tilt + 1.0) ** 2
    log_delta = (
        value - tilt * epsilon - math.log(tilt * (tilt + 1.0)) - 0.5 * math.log(2.0 * math.pi * spread)
    )
    return Saddle(tilt, epsilon, log_delta, curvature)


def log_peak(tilt: float) -> float:
    """Return log of m = max (1 - e^{-u}) e^{-cu} = c^c / (1+c)^{1+c}, with delta <= m e^{K(c) - c eps}."""
    return (tilt * (math.log(tilt) - math.log1p(tilt)) if tilt > 0.0 else 0.0) - math.log1p(tilt)
