"""The loss of one epoch of balls in bins, a sum of lognormals, bounded in convex order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from tacit.accounting.grid import UNIT
from tacit.accounting.pair import NOTHING, Loss
from tacit.accounting.price import Array

# The distribution of a sum of i.i.d. terms on a grid, by tilted Fourier transforms with bounded errors.
#
# The terms take the values 0, d, 2d, ...  Each value of the sum is computed with the tilt that is best there.
# A difference of two transforms can leave out the sums whose terms all come from one part of the
# distribution.

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
    positive = masses > 0.0
    exponents = tilt * x[positive]
    top = float(exponents.max())
    return top + math.log(float(np.dot(masses[positive], np.exp(exponents - top))))


def window_of(masses: Array, d: float, bins: int, below: float, above: float) -> Window | None:
    """Choose a window for the sum by Chernoff's bound."""
    # P and Q each have at most the mass ``below`` to the left of the window and ``above`` to the right.  The
    # result is None if the whole sum has so little mass.
    #
    # The bound on P uses E_Q (S/t) e^{z S} = m'(z) m(z)^{t-1}.  Where S > t, Q has less mass than P.
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
    """Compute the distribution of the sum of ``bins`` terms, at least one of which comes from ``tail``."""
    # The result is the masses in the window, a bound on the rounding error of each, and a bound on the P-mass
    # outside of the window, which wraps around and adds to the masses.
    #
    # A term has the distribution ``head + tail``.  ``tail`` has no mass below the last point of ``head``,
    # which may be empty.  If ``down``, small sums are precise, else large ones.
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
    """Transform the sum of ``bins`` terms, at least one of which comes from ``tail``."""
    # ``head + tail`` has total mass 1.  Also return a bound on the sum of the errors.
    #
    # With the transforms B of ``head``, L of ``tail`` and A = B + L, that is A^t - B^t = L sum_i A^i
    # B^{t-1-i}.  Its relative accuracy is that of L, however small.  Errors of A and B grow t-fold.  The
    # transform of a smooth sum is 0 nearly everywhere, and is not computed there.
    of_tail = wrapped_transform(tail, size)
    of_head = wrapped_transform(head, size) if head.size else np.zeros_like(of_tail)
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


def wrapped_transform(masses: Array, size: int) -> Complex:
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


# The loss of one epoch of balls in bins, a sum of lognormals, bounded in convex order.
#
# A record is in one of t bins, and step i adds Gaussian noise to the sum of bin i.  With x_i ~ N(0, sigma^2)
# under Q and one x_i shifted by 1 under P (Chua et al. 2024, 2412.16802),
#
#   P = (1/t) sum_i N(e_i),  Q = N(0),  dP/dQ = S / t,  S = sum of t independent W = e^{(2x - 1)/(2 sigma^2)}.
#
# This pair dominates every adaptive run.  Step i releases f + g 1[record in bin i] + noise with |g| <= 1,
# where f and g are known by then.  That is a post-processing of x_i: scale it, then add f and more noise.
#
# Delta depends on the pair only through E_Q (S/t - a)_+ for a >= 0, also in compositions, and this is convex
# and increasing in every W.  So W may be replaced by a distribution on a linear grid of spacing d:
#
#     upper:  each W is spread over its two neighbours with its mean kept, which raises every convex function;
#     lower:  a distribution with an E (W - a)_+ that is at most the true one at every a: the interpolant of
#             E (W - x_i)_+ - c_i,  c_i = d^2/8 sup f between x_{i-1} and x_{i+1},
#             as a chord is at most d^2/8 sup f above a convex function with second derivative f.
#
# A lognormal spreads over decades, and no grid of one spacing fits them all.  So S is split by its largest W
# into *levels*, each with a separate grid: given which W are above a level, they are still independent, and
# may be spread over any grid.  The distribution of S on the level c_{k-1} < max W <= c_k is that of sums
# with all W <= c_k less that of sums with all W <= c_{k-1}, both on the grid of level k.  For the lower
# bound on a later level, W <= c_{k-1} are replaced by their mean, which lowers every convex function, and
# larger ones are rounded down.

LEAST_BIN_NOISE = 0.3
"""With less noise, a lognormal needs too many levels, and epsilon is above 10; method ``rdp`` has a bound."""

_FINE = 1.0 / 60.0  # spacing of the grid relative to the spread of log W
_MOST_POINTS, _MOST_UNDER = 1 << 18, 1 << 19  # of the sum on the first level; of that for the lower bound
_LEVEL, _NEXT = 1 << 14, 16  # points of one W on a level, and how many times farther the next level reaches
_LEVELS = 12
_UNDER, _STEPS = 1 << 15, 1 << 10  # lower bound: points of the first level; later steps from mean to start
_SUM = 1 << 14  # points of the sum on a level of small W
_LEAST_TAIL = 1e-30  # for a smaller one, the bound by the Gaussian without bins is good enough
_COARSER = 1e4  # the tail cut off, relative to the one that pld requests: still 1e-5 of delta
_DECADES = 4.0  # decades by which tails are rounded down, so that losses can be reused
_LOWER_TAIL = 1e1  # the mass that the lower bound may leave out, relative to the upper bound
_FARTHER = 1e-4  # the mass that may wrap around, relative to that; as much of the top losses is dropped
_SHIFT = 1e-6  # of the divergence of a pass: what clipping large W may add to a loss, when adding a record
_SURE = 1e-12  # allowance for quadrature and rounding, relative, on the distribution of one W
_LET_GO = 4  # points next to the cut that are dropped
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def coarse_tail(tail: float) -> float:
    """Round ``tail`` down to one of a few values, or up to the least one, as smaller tails gain nothing."""
    return max(float(10.0 ** (_DECADES * math.floor(math.log10(tail) / _DECADES + 1e-9))), _LEAST_TAIL)


def balls_in_bins(bins: int, sigma: float, *, remove: bool, tail: float) -> Loss:
    """Return the loss of removing (or adding) a record; its ``dominated`` is a lower bound."""
    # * The loss dominates that of every adaptive epoch, whatever ``tail``.
    # * ``dominated`` is dominated by the loss of the epoch in which every gradient is the same unit vector.
    law, rest = _Lognormal(sigma), tail * _COARSER
    if remove:
        return replace(_removed(law, bins, rest), under=lambda: _under(law, bins, rest * _LOWER_TAIL))
    return replace(_added(law, bins, rest), under=lambda: NOTHING)


@dataclass(frozen=True)
class _Level:
    """Sums whose largest W has ``start`` < W/d <= ``points``, on a grid of spacing ``d``."""

    d: float
    points: int
    start: int


def _spread(low: Array, high: Array) -> Array:
    """Return masses at the grid points, from the masses at the ``low`` and ``high`` ends of the cells."""
    lines: Array = np.append(low, 0.0) + np.append(0.0, high)
    return lines


def _sums(
    law: _Lognormal, levels: list[_Level], bins: int, below: float, above: float, *, down: bool
) -> Iterator[tuple[Array, Array]]:
    """Yield the values of S on each level, and its masses there, rounded up; see `window_of`, `sum_of`."""
    for number, level in enumerate(levels):
        low, high = law.cells(level.d, level.points)
        if down and number == 0:  # larger W are clipped
            high[-1] += float(law.mass_above(np.array(level.d * level.points)))
        window = window_of(_spread(low, high), level.d, bins, below, above)
        if window is None:
            continue

        start = level.start
        head = _spread(low[:start], high[:start]) if start else np.empty(0)
        later = np.arange(low.size) >= start
        tail = _spread(low * later, high * later)
        pmf, error, _ = sum_of(head, tail, bins, window, down=down)  # mass that wraps around only adds
        yield window.values(), np.maximum(pmf, 0.0) + error


def _first_grid(
    law: _Lognormal, bins: int, reach: float, most: int, rest: float, size: int = _MOST_POINTS
) -> tuple[float, int, Window]:
    """Choose spacing, points of W and window of the first level, as fine as W needs if that is affordable."""
    # ``reach`` is the largest W on this level, which has at most ``most`` points; the sum has ``size``.
    d = _FINE / law.sigma
    while True:
        points = min(most, math.ceil(reach / d))
        window = window_of(_spread(*law.cells(d, points)), d, bins, rest, rest)
        if window is not None and window.size <= size:
            return d, points, window
        d *= 2.0 if window is None else 1.05 * window.size / size


def _removed(law: _Lognormal, bins: int, rest: float) -> Loss:
    """Compute the loss of removing a record.  Large S matter, so levels go up until little is left out."""
    cut = law.cut(rest / bins)
    d, points, _ = _first_grid(law, bins, cut, _LEVEL, rest)
    levels = [_Level(d, points, 0)]
    while d * points < cut:
        d *= _NEXT
        points, start = min(_LEVEL, math.ceil(cut / d)), points // _NEXT
        levels.append(_Level(d, max(points, start + 1), start))
        points = levels[-1].points
    share = rest / len(levels)
    parts = list(_sums(law, levels, bins, share, share, down=False))
    s, masses = (np.concatenate(column) for column in zip(*parts, strict=True))
    ratios, p = np.log(np.maximum(s, 1e-300) / bins), masses * s / bins
    return _loss(ratios, p, 2.0 * rest + bins * law.above(d * points), bins)


def _added(law: _Lognormal, bins: int, rest: float) -> Loss:
    """Compute the loss of adding a record.  Small S matter, so large W are clipped and levels go down."""
    cut = law.clip(bins)
    levels = _downwards(law, bins, cut, rest)
    share = rest / len(levels)
    parts, missing = list(_sums(law, levels, bins, share, _SURE, down=True)), 0.0
    for s, masses in parts:
        masses[-1] += _SURE * max(1.0, bins / float(s[-1]))  # outside the window S is larger and costs less
        missing += float(masses[s <= 0.0].sum())
    s, masses = (np.concatenate(column) for column in zip(*parts, strict=True))
    positive = s > 0.0
    return _loss(-np.log(s[positive] / bins), masses[positive], 2.0 * rest + missing, bins)


def _downwards(law: _Lognormal, bins: int, cut: float, rest: float) -> list[_Level]:
    """Make levels from ``cut`` down, until all W lie below the next one with much less than mass ``rest``."""
    d, _, _ = _first_grid(law, bins, cut, _MOST_POINTS, rest)
    levels: list[_Level] = []
    top = cut
    for _ in range(_LEVELS):
        d = min(d, bins * top / _SUM) if levels else d
        points = _NEXT * math.ceil(top / d / _NEXT)
        d = top / points
        last = bins * law.log_mass_below(top / _NEXT) < math.log(1e-3 * rest)
        levels.append(_Level(d, points, 0 if last else points // _NEXT))
        if last:
            break
        top /= _NEXT
    levels[-1] = replace(levels[-1], start=0)
    return levels


def _under(law: _Lognormal, bins: int, rest: float) -> Loss:
    """Compute a loss that removing a record dominates, on the first level by :meth:`_Lognormal.below`."""
    cut, far = law.cut(rest / bins), _FARTHER * rest
    d, points, window = _first_grid(law, bins, cut, _UNDER, far, _MOST_UNDER)
    low, high = law.cells(d, points)
    below = law.below(low + high, _spread(low, high), d)
    parts = [_part_under(np.empty(0), below, bins, window, 0.0)]
    top = d * points
    while top < cut:
        mean = law.mean_below(top)
        d = (top - mean) / _STEPS
        edges = top + d * np.arange(min(_NEXT * _STEPS, math.ceil((cut - top) / d)) + 1.0)
        tail = np.append(np.zeros(_STEPS), -np.diff(law.mass_above(edges)))
        head = np.array([math.exp(law.log_mass_below(top))])
        span = window_of(tail + np.pad(head, (0, tail.size - 1)), d, bins, far, far)
        if span is not None:
            parts.append(_part_under(head, tail, bins, span, mean))
        top = float(edges[-1])
    s, masses, wrapped = (np.concatenate(column) for column in zip(*parts, strict=True))
    loss = _loss(np.log(np.maximum(s, 1e-300) / bins), masses * s / bins, 0.0, bins)
    # dropping as much mass of the largest values as may wrap around lowers the tail everywhere
    losses, masses = loss.atoms.T
    above = np.cumsum(masses[::-1])[::-1]  # with the atom itself
    left = np.clip(above - float(wrapped.sum()), 0.0, masses)
    return replace(loss, atoms=np.stack([losses[left > 0.0], left[left > 0.0]], axis=1))


def _part_under(
    head: Array, tail: Array, bins: int, window: Window, mean: float
) -> tuple[Array, Array, Array]:
    """Compute S, its masses, and a bound on the wrapped mass; ``mean`` was subtracted from every W."""
    pmf, error, wrapped = sum_of(head, tail, bins, window, down=False)
    return bins * mean + window.values(), np.maximum(pmf - error, 0.0), np.array([(1.0 + mean) * wrapped])


@dataclass(frozen=True)
class _Lognormal:
    """W = e^{s z - s^2/2} with s = 1/sigma, z standard normal.  It has mean 1, or e^{s^2} weighted by W."""

    sigma: float

    def cut(self, share: float) -> float:
        """Return the cut with E W 1[W > cut] = ``share``."""
        s = 1.0 / self.sigma
        return math.exp(s * s / 2.0 - s * float(ndtri(share)))

    def above(self, cut: float) -> float:
        """Return E (W + 1) 1[W > cut].  Times t, it bounds both P and Q of the event that some W > cut."""
        s, log_cut = 1.0 / self.sigma, math.log(cut)
        return float(ndtr(s / 2.0 - log_cut / s) + ndtr(-s / 2.0 - log_cut / s))

    def clip(self, bins: int) -> float:
        """Return where W may be clipped when adding a record, where large W mean small losses."""
        # Clipping adds E (W - clip)_+ / t to the mean loss, or at most about P(W > clip).  The divergence
        # of a pass is about (e^{s^2} - 1) / 2t.
        s = 1.0 / self.sigma
        diverges = math.expm1(s * s)
        often = _SHIFT * min(1.0, diverges / bins)
        log_clip = -s * s / 2.0 - s * float(ndtri(often))
        return min(self.cut(min(0.5, _SHIFT * diverges)), math.exp(log_clip))

    def mass_above(self, level: Array) -> Array:
        mass: Array = ndtr(-np.log(level) * self.sigma - 0.5 / self.sigma)
        return mass

    def mean_below(self, level: float) -> float:
        """Bound E (W given W <= level) from below."""
        x = math.log(level) * self.sigma
        return float(ndtr(x - 0.5 / self.sigma) / ndtr(x + 0.5 / self.sigma)) * (1.0 - _SURE)

    def log_mass_below(self, level: float) -> float:
        return float(log_ndtr(math.log(level) * self.sigma + 0.5 / self.sigma))

    def density(self, w: Array) -> Array:
        s = 1.0 / self.sigma
        safe = np.maximum(w, 1e-300)
        z = np.log(safe) / s + s / 2.0
        return np.where(w > 0.0, np.exp(-z * z / 2.0) / (safe * s * math.sqrt(2.0 * math.pi)), 0.0)

    def cells(self, d: float, points: int) -> tuple[Array, Array]:
        """Split the mass of W in each of ``points`` cells between its two ends, and keep the mean."""
        s, cut = 1.0 / self.sigma, d * points
        ends = np.exp(np.linspace(-s * s / 2.0 - 38.0 * s, math.log(cut), 2 + math.ceil(3000 * (1.0 + s))))
        lines = d * np.arange(points)
        edges = np.unique(np.concatenate([ends, lines[lines > ends[0]]]))
        half = np.diff(edges)[:, None] / 2.0
        w = (edges[:-1, None] + half + half * _NODES).ravel()
        masses = (half * _WEIGHTS).ravel() * self.density(w)
        cell = np.minimum(np.floor(w / d).astype(np.int64), points - 1)
        share = np.clip(w / d - cell, 0.0, 1.0)
        low = np.bincount(cell, masses * (1.0 - share), points)
        high = np.bincount(cell, masses * share, points)
        return low.astype(np.float64), high.astype(np.float64)

    def below(self, cells: Array, spread: Array, d: float) -> Array:
        """Return masses at 0, d, 2d, ... of a distribution that is below W in increasing convex order."""
        # ``spread`` holds the second differences of the chords, from which those of c are subtracted.  Near
        # 0, where W has too little mass for that, c is constant, so that the mean is c below 1.  At the
        # cut, a few points are dropped, with more mass than c has there.  If the grid is too coarse, W is
        # rounded down.
        x: Array = d * np.arange(-1.0, spread.size + 1.0)
        f = self.density(x)
        highest = np.maximum(np.maximum(f[:-2], f[1:-1]), f[2:])
        mode = math.exp(-1.5 / self.sigma**2)
        around = np.abs(x[1:-1] - mode) <= d
        highest[around] = float(self.density(np.array([mode]))[0])
        c = d * d / 8.0 * highest
        scarce = np.flatnonzero((np.diff(c, 2) / d > 0.9 * spread[1:-1])[:-_LET_GO])
        first = int(scarce[-1]) + 2 if scarce.size else 0
        while first < spread.size - _LET_GO and c[first + 1] - c[first] > 0.9 * d * spread[first]:
            first += 1
        c[:first] = float(c[: first + 1].max())
        bend = np.diff(np.concatenate([c[:1], c, c[-1:]]), 2) / d
        masses = (spread - bend)[:-_LET_GO]
        return cells if (masses < 0.1 * spread[:-_LET_GO]).any() else masses


def _loss(ratios: Array, masses: Array, outside: float, bins: int) -> Loss:
    """Make the loss of these atoms, sorted; ``outside`` bounds the P-mass that is in none of them."""
    positive = np.flatnonzero(masses > 0.0)
    positive = positive[np.argsort(ratios[positive], kind="stable")]
    atoms = np.stack([ratios[positive], masses[positive]], axis=1)
    return Loss((), atoms, 0.0, outside, math.inf, bins * _SURE)
