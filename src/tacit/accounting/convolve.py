"""Compositions on a grid, by an exponentially tilted FFT with bounded errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import scipy.fft

from tacit.accounting.bins import wrapped_transform
from tacit.accounting.flatten import Base, Steps
from tacit.accounting.grid import (
    MASS_ERROR,
    UNIT,
    Layout,
    Masses,
    aligned,
    dominated,
    dominating,
    lattice,
)
from tacit.accounting.losses import loss_of
from tacit.accounting.pair import Loss
from tacit.accounting.price import Array, Direction, brent
from tacit.accounting.transform import Cumulant, Saddle, log_peak, saddle_at

# Compositions of losses on a grid, by an exponentially tilted FFT with bounded errors.
#
# With K(z) = sum_j T_j log E e^{z L_j} and the sum S of all losses,
#
#     delta(eps) = E (1 - e^{eps - S})_+ = e^{K(theta) - theta eps} E_theta[g(S - eps)],
#     g(u) = e^{-theta u} (1 - e^{-u}) for u > 0, else 0,
#
# where E_theta is the expectation in the measure tilted by e^{theta S}.  If the tilt moves the mean of S
# close to eps, delta has full *relative* accuracy, however small it is.

FAINT = 1e-290
"""A mass too small to affect any delta."""


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
        epsilon -= self.origin
        missing = math.exp(log_peak(self.tilt)) * self.below if epsilon < self.h * self.first else 0.0
        expectation = self._expectation(epsilon) + (1.0 + 2e-6) * self.rounding + missing
        inside = self._scaled(epsilon, expectation, self._relative(epsilon))
        return inside + self.beyond + self.infinite

    def uppers(self, first: int, last: int) -> Array:
        """Compute ``upper`` at the grid points ``first`` to ``last`` - 1, and make the values decrease."""
        # The tilted mass beyond x, a(x) = E_theta e^{-theta (S - x)} 1[S > x], and E_theta g(S - x) satisfy
        #
        #     a(x) = e^{-theta h} (mass(x+h) + a(x+h)),
        #     E_theta g(S - x) = (1 - e^{-h}) a(x) + e^{-(1+theta) h} E_theta g(S - (x+h)).
        #
        # Masses that rounding made negative are raised to 0, so these are sums of positive numbers.
        inside = np.maximum(self.masses[max(first + 1 - self.first, 0) :], 0.0)
        before = max(self.first - first - 1, 0)
        masses = np.pad(inside, (before, max(last - first - before - inside.size, 0)))
        beyond = math.exp(-self.tilt * self.h) * _decayed(masses, self.tilt * self.h)
        expectation = -math.expm1(-self.h) * _decayed(beyond, (1.0 + self.tilt) * self.h)[: last - first]
        point = self.h * np.arange(first, last, dtype=np.float64)
        expectation = expectation * (1.0 + 1e-12) + self.rounding + FAINT
        expectation[point < self.h * self.first] += math.exp(log_peak(self.tilt)) * self.below
        relative = self.relative + 16.0 * UNIT * (abs(self.scale) + np.abs(self.tilt * point) + 4.0)
        log_bounds = self.scale - self.tilt * point + relative + np.log(expectation)
        bounds = np.exp(np.minimum(log_bounds, 700.0)) + (self.beyond + self.infinite)
        # if all values overflow, delta is still at most 1
        decreasing: Array = np.minimum.accumulate(np.where(bounds < 1.0, bounds, 1.0))
        return decreasing

    def lower(self, epsilon: float) -> float:
        epsilon -= self.origin
        inside = (
            self._expectation(epsilon)
            - self.rounding
            - math.exp(log_peak(self.tilt)) * (self.below + self.above)
        )
        return self._scaled(epsilon, inside, -self._relative(epsilon)) + self.infinite

    def _relative(self, epsilon: float) -> float:
        return self.relative + 16.0 * UNIT * (abs(self.scale) + abs(self.tilt * epsilon) + 4.0)


def compose(parts: list[tuple[Masses, int]], h: float, window: Window) -> Composition:
    """Compose independent losses; ``parts`` has pairs of a loss and its number of copies."""
    # * ``Composition.upper`` is at least the delta of the composed grid, and ``Composition.lower`` is at most
    #   that delta, with allowances for rounding and aliasing.
    theta = window.tilt
    origin = sum(count * part.origin for part, count in parts)
    # a power of two, or three quarters of it if that is enough
    least = (window.high - window.low) / h + 1.0
    size = 1 << max(4, math.ceil(math.log2(least)))
    size = 3 * size // 4 if 3 * size // 4 >= least else size
    first = math.floor((window.low - origin) / h)
    log_f = np.zeros(size // 2 + 1, dtype=np.complex128)
    log_floor, error = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    base = 0
    for part, count in parts:
        # a pmf wrapped around ``size`` points.  Each value of its transform is a sum of terms of total size
        # 1.  It goes through log2(size) butterflies, each with an error of a few units (Higham, Accuracy
        # and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2).
        tilted = _tilted(part, h, theta)
        transform = wrapped_transform(tilted, size)
        unit = 8.0 * UNIT * math.log2(size)
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
    """Convolve ``count`` copies of one loss directly, without a transform; this is for few points."""
    # The terms are positive, so no tilt is needed.  A tilt would even underflow losses that are 800 below the
    # largest, and lose their P-mass.  The guarantee is that of :func:`compose`.
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
    """Sum e^{-rate (i-k)} values_i over i >= k, for every k.  Positive values are summed to a few units."""
    # The spans double: the sum of 2n terms is that of the first n plus the decayed sum of the next n.
    sums, span = values.copy(), 1
    while span < sums.size and rate * span < 700.0:  # beyond, the decayed terms are below FAINT
        sums[:-span] += math.exp(-rate * span) * sums[span:]
        span *= 2
    return sums


def _cumulant(parts: list[tuple[Masses, int]], h: float, z: float) -> float:
    total = 0.0
    for part, count in parts:
        cells = np.flatnonzero(part.masses)
        exponents = np.log(part.masses[cells]) + z * h * (part.first + cells)
        top = exponents.max()
        total += count * float(top + math.log(np.exp(exponents - top).sum()))
    return total


def _rounding(log_floor: Array, error: Array, size: int, theta: float, h: float) -> float:
    """Bound |sum of error * g| over the window by ||error|| ||g||, with ||error|| from Parseval's theorem."""
    # ||g||^2 <= (1/h) int g^2 + max g^2, and int g^2 = 1 / (2 theta (theta+1) (2 theta+1)).
    power = np.exp(log_floor)
    unit = 8.0 * UNIT * math.log2(size)
    spectrum = power * (np.expm1(np.minimum(error, 700.0)) + unit)
    of_error = math.sqrt(2.0 * float(np.dot(spectrum, spectrum)) / size)
    of_g = math.sqrt(
        1.0 / (2.0 * theta * (theta + 1.0) * (2.0 * theta + 1.0) * h) + math.exp(log_peak(theta)) ** 2
    )
    return of_error * of_g


# The saddle point of a composition.
#
# It is an estimate.  The bounds of the composition hold for any estimate, and are tight for a good one.
#
# With the cumulant function of the sum of all losses, K(z) = sum_j T_j log E e^{z L_j},
#
#     log delta(eps) ~ K(c) - c eps - log c(c+1) - log(2 pi v) / 2
#
# at the saddle c, where eps = K'(c) - 1/c - 1/(c+1) and v = K''(c) + 1/c^2 + 1/(c+1)^2 (Alghamdi et al. 2022,
# 2208.09595).

_MANY_ATOMS = 4000


@lru_cache(maxsize=64)
def samples(base: Base, direction: Direction, tail: float) -> tuple[Array, Array]:
    """Compute losses and log masses of ``base`` for the estimates, by the midpoint rule."""
    loss = loss_of(base, direction, tail)
    losses, masses = loss.atoms.T
    if losses.size > _MANY_ATOMS:
        # neighbouring atoms are merged at their mean
        place = ((losses - losses.min()) / float(np.ptp(losses)) * _MANY_ATOMS).astype(np.int64)
        total = np.bincount(place, masses).astype(np.float64)
        positive = total > 0.0
        losses, masses = np.bincount(place, masses * losses)[positive] / total[positive], total[positive]
    for branch in reversed(loss.branches):
        edges = np.linspace(branch.panels[0], branch.panels[-1], min(1000, 8 * branch.panels.size))
        x = (edges[1:] + edges[:-1]) / 2.0
        losses = np.concatenate([branch.value(x), losses])
        masses = np.concatenate([(edges[1] - edges[0]) * branch.density(x), masses])
    return losses[masses > 0.0], np.log(masses[masses > 0.0])


def cumulant_of(steps: Steps, direction: Direction, tail: float, cap: float = math.inf) -> Cumulant:
    parts = []
    for base, count in steps:
        losses, logs = samples(base, direction, tail)
        above = losses > cap
        if above.any():
            # losses above ``cap`` are replaced by their mean
            masses = np.exp(logs[above] - logs[above].max())
            mean = cap - math.log(float(np.dot(masses, np.exp(cap - losses[above])) / masses.sum()))
            losses = np.where(above, mean, losses)
        parts.append((losses, logs, float(count)))
    return Cumulant(tuple(parts))


def tail_of(steps: Steps, log_delta: float) -> float:
    """Return the P-mass to cut off at each end of a loss: a billionth of delta in all, rounded for caches."""
    log_tail = log_delta - math.log(1e9 * sum(count for _, count in steps))
    return float(10.0 ** math.floor(max(log_tail, math.log(FAINT)) / math.log(10.0)))


def curve_of(cumulant: Cumulant) -> list[Saddle]:
    """Return the points of the curve at increasing tilts, over the whole range that matters."""
    return [saddle_at(cumulant, float(tilt)) for tilt in np.geomspace(1e-3, 1e7, 121)]


def find(cumulant: Cumulant, excess: Callable[[Saddle], float]) -> Saddle:
    """Find the saddle at which ``excess``, which increases with the tilt, is 0, or the nearest end."""
    low, high = math.log(1e-3), math.log(1e7)

    def at(log_tilt: float) -> float:
        return excess(saddle_at(cumulant, math.exp(log_tilt)))

    if at(low) >= 0.0:
        return saddle_at(cumulant, math.exp(low))
    if at(high) <= 0.0:
        return saddle_at(cumulant, math.exp(high))
    return saddle_at(cumulant, math.exp(brent(at, low, high, xtol=1e-3)))


def saddle_at_delta(steps: Steps, way: Direction, delta: float) -> Saddle:
    """Return the point of the curve at ``delta``."""
    cumulant = cumulant_of(steps, way, tail_of(steps, math.log(delta)))
    return find(cumulant, lambda point: math.log(delta) - point.log_delta)


def _window(cumulant: Cumulant, tilt: float, rest: float = 1e-16) -> Window:
    """Choose a window with less than ``rest`` of the tilted mass outside, by Chernoff's bound."""
    value, _, curvature = cumulant(tilt)
    log_rest = -math.log(rest)
    unit = math.sqrt(2.0 * log_rest / max(curvature, 1e-300))  # the best further tilt if all were Gaussian
    low, down, high, up = -math.inf, 0.0, math.inf, 0.0
    for further in unit * 2.0 ** np.arange(-8.0, 3.0):
        right = (cumulant(tilt + further)[0] - value + log_rest) / further
        left = (value - cumulant(tilt - further)[0] - log_rest) / further
        low, down = (left, float(further)) if left > low else (low, down)
        high, up = (right, float(further)) if right < high else (high, up)
    return Window(tilt, low, high, down, up)


def narrowest(cumulant: Cumulant, saddle: Saddle, steps: int, share: float = 1e-7) -> Window:
    """Choose the tilt, at most the saddle's, with the window of the fewest points."""
    # With rare large losses and a narrow bulk (tiny sampling rates), the saddle's tilt makes the large losses
    # common and the window wide.  A smaller tilt is used as long as rounding, about 3e-14 a step, stays below
    # ``share`` of delta.

    def rounding(tilt: float) -> float:  # log of its share of delta
        return cumulant(tilt)[0] - tilt * saddle.epsilon + math.log(3e-14 * steps) - saddle.log_delta

    top = saddle.tilt
    usual = 8.0 / math.sqrt(max(cumulant(0.0)[2], 1e-300))
    while top > usual and top * top * cumulant(top)[2] < 0.25 and rounding(top / 2.0) < math.log(1e-8):
        top /= 2.0  # all of the mass is at one point, so that such a tilt gains nothing
    best = _window(cumulant, top)
    for tilt in top * 0.7 ** np.arange(1.0, 9.0):
        if rounding(float(tilt)) > math.log(share):
            break
        window = _window(cumulant, float(tilt))
        best = window if window.high - window.low < 0.9 * (best.high - best.low) else best
    return best


# Compositions on a grid, laid out for the neighbourhood of a saddle point.
#
# This file chooses the width of the grid's cells, the losses in the window and their tilt.  The bounds of
# :mod:`tacit.accounting.convolve` hold for any choice, and are tight for a good one.

_TIGHTNESS = 2e-7  # target of the relative error in epsilon that the grid adds
_WIDEST = 3.1e-5  # spacing, if affordable: a third of the usual 1e-4
_CHEAP = 1 << 14  # so few points are cheap, and are always used
_LARGEST_SUM, _LARGEST_STEP = 1 << 19, 1 << 20  # points; beyond, the grid gets coarser and the bounds looser
_ROUNDED_DOWN = 3e-4  # target of the relative error in epsilon from rounding atoms down
_DIRECT = 1 << 12  # points of a lattice that are convolved directly
_FEW, _FEW_POINTS = 32, 1 << 14  # steps and points that are also convolved directly, if no tilt helps
_SAMPLES = 2001  # of a loss, for the widths of its cells
_HIGHER = 1.15  # a composition is accurate up to this multiple of epsilon
_BEYOND = 1e-10  # of delta: the share that may depend on losses beyond the last cell
_STEEPEST = 0.1  # the most by which the width of cells grows per distance from a narrow one

_SHARE = 1.0 / 16.0  # the error that wider cells may add, relative to the error of cells of width h
_ALONE = 1e-4  # spacing for a mechanism that is performed once, relative to epsilon
_AT_ZERO = 1e-3  # the same at epsilon 0, relative to the standard deviation of a loss with atoms only
_ERROR = 1e-7  # target of the error that the grid adds to the trade-off curve
_FLOOR = 1e-9  # share of the mass that is raised to a larger loss, to save points
_MANY = 1 << 19  # points of the window, or of one step, if a composition serves many epsilons
_COARSE = 2.0  # cells wider than this multiple of the target are too wide
_ROUNDING = 1e-9  # of delta: the rounding error that the tilt of such a composition may cause


@lru_cache(maxsize=24)
def _grid(
    base: Base,
    direction: Direction,
    h: float,
    tail: float,
    end: Literal[0, 1],
    tilt: float = 0.0,
    cap: float = math.inf,
    floor: float = -math.inf,
) -> Masses:
    loss = loss_of(base, direction, tail)
    if end == 0 and (lower := loss.dominated) is not None:
        return dominated(lower, h)
    layout = _layout(loss, h, tilt, cap) if tilt > 0.0 else None
    return dominated(loss, h, layout) if end == 0 else dominating(loss, h, floor, layout)


def _alone(
    base: Base, direction: Direction, h: float, tail: float, end: Literal[0, 1], epsilon: float, cap: float
) -> Masses:
    loss = loss_of(base, direction, tail)
    if loss.atoms.size or loss.under or epsilon < 0.0 or cap == math.inf:
        return _grid(base, direction, h, tail, end)
    least = min(float(branch.value(branch.panels[:1])[0]) for branch in loss.branches)
    low = epsilon / _HIGHER
    places = np.array([min(least, low) - 1.0, low, cap])
    layout = Layout(places, h + _STEEPEST * np.maximum(low - places, 0.0), cap)
    return dominated(loss, h, layout) if end == 0 else dominating(loss, h, layout=layout)


def _layout(loss: Loss, h: float, tilt: float, cap: float) -> Layout | None:
    """Make the cells of rare losses wider, for about the same total error as cells of width h."""
    # The error of cells of widths w is the integral of f w^2, with f the tilted density.  Their number is the
    # integral of 1/w.  For a given number, the error is least if w is proportional to f^{-1/3}.
    if loss.atoms.size or loss.under:
        return None
    parts = []
    for branch in loss.branches:
        x = np.linspace(branch.panels[0], branch.panels[-1], _SAMPLES)
        ends, masses = branch.value(x), branch.density((x[1:] + x[:-1]) / 2.0) * (x[1] - x[0])
        parts.append((ends, masses, np.diff(ends)))
    between = np.unique(np.concatenate([ends for ends, _, _ in parts]))
    if between[-1] - between[0] < _CHEAP * h and between[-1] <= cap:
        return None
    middle, density = (between[1:] + between[:-1]) / 2.0, np.zeros(between.size - 1)
    for ends, masses, width in parts:
        place = np.clip(np.searchsorted(ends, middle, side="right") - 1, 0, masses.size - 1)
        inside = (ends[0] <= middle) & (middle <= ends[-1]) & (width[place] > 0.0)
        density[inside] += masses[place[inside]] / width[place[inside]]
    logs, tilted = np.log(np.maximum(density, FAINT)), np.zeros_like(density)
    for power in (0.0, tilt / 2.0, tilt):
        weights = np.exp(logs + power * middle - (logs + power * middle).max())
        tilted += weights / np.dot(weights, np.diff(between))
    share = np.cbrt(tilted)
    scale = _SHARE / math.sqrt(np.dot(share, np.diff(between)))
    widths = h * np.maximum(scale / np.maximum(share, 1e-30), 1.0)
    # neighbouring cells get similar widths, as only such cells can be balanced
    left, slope = between[:-1], _STEEPEST * between[:-1]
    widths = np.minimum.accumulate(widths - slope) + slope
    return Layout(left, np.minimum.accumulate((widths + slope)[::-1])[::-1] - slope, cap)


def _spacing(
    epsilon: float, variance: float, steps: int, window: Window, reach: float, atoms: Array, finer: float
) -> float:
    """Choose h so that the error is small relative to epsilon, rounded so that grids can be reused."""
    # The grid adds about h^2 / 6 to the variance of each loss.  Epsilon changes by half that relative
    # change.  For the lower bound, atoms that are not on the grid are rounded down, each by up to h.
    epsilon = max(epsilon, 1e-6)
    spacing = min(_WIDEST, math.sqrt(_TIGHTNESS * min(epsilon, 12.0 * variance) / steps))
    width = window.high - window.low
    least = max(width / _LARGEST_SUM, reach / _LARGEST_STEP) / finer
    h, cost = aligned(_rounded(max(min(spacing, width / _CHEAP) / finer, least)), atoms)
    if cost > _ROUNDED_DOWN * epsilon:
        h, _ = aligned(_rounded(max(h * _ROUNDED_DOWN * epsilon / cost, least)), atoms)
    return h


def _rounded(h: float) -> float:
    return float(2.0 ** (math.floor(2.0 * math.log2(h)) / 2.0))


def _atoms(steps: Steps, way: Direction, tail: float) -> Array:
    """Collect all atoms, of shape (n, 2): rows (loss, mass times count)."""
    parts = [loss_of(base, way, tail).atoms * (1.0, count) for base, count in steps]
    return np.concatenate(parts)


def composition(
    steps: Steps, way: Direction, saddle: Saddle, end: Literal[0, 1], finer: float = 1.0
) -> Composition:
    """Make a composition near ``saddle``: a lower bound if ``end`` is 0, an upper one if it is 1."""
    tail = tail_of(steps, saddle.log_delta)
    total = sum(count for _, count in steps)
    reach = max(float(np.ptp(samples(base, way, tail)[0])) for base, _ in steps)
    atoms = _atoms(steps, way, tail)
    if total == 1:
        ((base, _),) = steps
        spacing = _ALONE * saddle.epsilon
        if saddle.epsilon <= 0.0 and not loss_of(base, way, tail).branches:  # 0 is on the grid, and is exact
            spacing = _AT_ZERO * math.sqrt(cumulant_of(steps, way, tail)(0.0)[2])
        h, _ = aligned(_rounded(max(spacing, reach / _LARGEST_STEP) / finer), atoms)
        cap = _HIGHER * saddle.epsilon
        if saddle.epsilon <= 0.0:  # a coarse grid may show that the answer is elsewhere
            cap = _CHEAP * h if finer >= 1.0 else math.inf
        return directly(_alone(base, way, h, tail, end, saddle.epsilon, cap), 1, h)
    exact = lattice(loss_of(steps[0][0], way, tail)) if len(steps) == 1 else 0.0
    if 0.0 < exact * _DIRECT > total * reach:
        return directly(_grid(steps[0][0], way, exact, tail, end), total, exact)
    if len(steps) == 1 and total <= _FEW and saddle.tilt**2 * saddle.variance < 0.25:
        # all losses are near their supremum, where no tilt helps
        h, _ = aligned(_rounded(total * reach / _FEW_POINTS), atoms)
        return directly(_grid(steps[0][0], way, h, tail, end), total, h)
    cap, cumulant = math.inf, cumulant_of(steps, way, tail)
    if not exact and not atoms.size:
        # the sum of all losses but one almost always exceeds ``least`` under Q; if the last loss is above
        # epsilon less that, it does not matter by how much
        rest = saddle.log_delta - max(saddle.epsilon, 0.0) + math.log(_BEYOND)
        deviation = math.sqrt(max(cumulant(-1.0)[2], 1e-300))
        tilts: list[float] = (2.0 ** np.arange(-3.0, 8.0) / deviation).tolist()
        least = max((rest - cumulant(-1.0 - tilt)[0]) / tilt for tilt in tilts)
        cap = _HIGHER * saddle.epsilon - least
        cumulant = cumulant_of(steps, way, tail, cap)
        at_epsilon = find(cumulant, lambda point: point.epsilon - saddle.epsilon)
        saddle = replace(at_epsilon, epsilon=saddle.epsilon, log_delta=saddle.log_delta)
    window = narrowest(cumulant, saddle, total)
    reach = min(reach, cap - window.low)
    h = exact or _spacing(saddle.epsilon, cumulant(window.tilt)[2], total, window, reach, atoms, finer)
    tilt = 0.0 if exact else window.tilt
    return compose([(_grid(base, way, h, tail, end, tilt, cap), count) for base, count in steps], h, window)


def dominating_composition(
    steps: Steps, way: Direction, saddle: Saddle, steepest: float, tail: float
) -> tuple[Composition, bool]:
    """Make the upper composition for all epsilons around ``saddle``."""
    # Also return whether its cells are narrow enough.  ``steepest`` bounds how fast log delta falls there,
    # per nat.  ``tail`` is the P-mass that is cut off each loss.
    #
    # The grid adds T h^2 / 12 times the density of the sum to delta (:func:`_spacing`).  The density is at
    # most about 1 / (standard deviation of the sum), and at most ``steepest`` times the mass beyond.
    total = sum(count for _, count in steps)
    atoms = _atoms(steps, way, tail)
    floors, reach = [], 0.0
    for base, _ in steps:
        # a loss with about that share of the P-mass below; raising that mass to it adds that to delta
        losses, logs = samples(base, way, tail)
        order = np.argsort(losses)
        below = np.cumsum(np.exp(logs[order]))
        floors.append(float(losses[order][max(int(np.searchsorted(below, _FLOOR / total)) - 1, 0)]))
        reach = max(reach, float(losses.max()) - floors[-1])
    cumulant = cumulant_of(steps, way, tail)
    spacing = math.sqrt(12.0 * _ERROR / total * min(cumulant(0.0)[2], 1.0 / steepest))
    if total == 1:
        h, _ = aligned(_rounded(max(spacing, reach / _MANY)), atoms)
        return directly(_grid(steps[0][0], way, h, tail, 1, floor=floors[0]), 1, h), True
    exact = lattice(loss_of(steps[0][0], way, tail)) if len(steps) == 1 else 0.0
    if 0.0 < exact * _DIRECT > total * reach:
        return directly(_grid(steps[0][0], way, exact, tail, 1), total, exact), True
    window = narrowest(cumulant, saddle, total, _ROUNDING)
    width = window.high - window.low
    spacing = max(min(spacing, width / _CHEAP), reach / _MANY)
    h = exact or aligned(_rounded(max(spacing, width / _MANY)), atoms)[0]
    parts = [
        (_grid(base, way, h, tail, 1, floor=floor), count)
        for (base, count), floor in zip(steps, floors, strict=True)
    ]
    return compose(parts, h, window), exact > 0.0 or width / _MANY <= _COARSE * spacing
