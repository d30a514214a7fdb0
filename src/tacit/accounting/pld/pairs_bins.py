"""The loss of one epoch of balls in bins: a sum of lognormals, by convex order.

A record is in one of t bins, and step i adds Gaussian noise to the sum of bin i.  With x_i ~ N(0, sigma^2)
under Q and one x_i shifted by 1 under P (Chua et al. 2024, 2412.16802),

    P = (1/t) sum_i N(e_i),  Q = N(0),  dP/dQ = S / t,  S = sum of t independent W = e^{(2x - 1)/(2 sigma^2)}.

It dominates every adaptive run: what step i really releases, f + g 1[the record is in bin i] + noise with
|g| <= 1, is made of x_i by scaling, adding noise and f, and f and g are known by then.

For a >= 0, (P, Q) -> E_Q (S/t - a)_+ is all that delta knows of the pair, also in compositions, and it is
convex and increasing in every W.  So W may be replaced by a law on a linear grid of spacing d:

    upper:  each W is spread over its two neighbours with its mean kept, which no convex function misses;
    lower:  a law whose E (W - a)_+ is at every a at most the true one: the interpolant of
            E (W - x_i)_+ - c_i,  c_i = d^2/8 sup f between x_{i-1} and x_{i+1},
            as a chord is above a convex function of second derivative f by d^2/8 sup f at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.fft
from scipy.special import ndtr, ndtri

from tacit.accounting.pld.grid import UNIT
from tacit.accounting.pld.pair import Loss, unsampled
from tacit.accounting.pld.pairs_noise import gaussian_pair
from tacit.accounting.pld.pairs_selection import NOTHING
from tacit.accounting.price import Array

__all__ = ["LEAST_BIN_NOISE", "balls_in_bins"]

LEAST_BIN_NOISE = 0.8
"""Below it, a lognormal spreads over too many decades for a linear grid; ``renyi.allocation`` has a bound."""

_FINE = 1.0 / 60.0  # the grid against the spread of log W
_MOST_POINTS = 1 << 19
_LEAST_TAIL = 1e-22  # below, nothing is gained over the Gaussian without bins
_COARSER = 1e4  # the tail cut off, against what pld asks for: still 1e-5 of delta
_SURE = 1e-12  # allowance for quadrature and rounding, relative, on the law of one W
_SHARES = np.array([0.1, 0.2, 0.35, 0.5, 0.7])  # of the tilt that shows where the window ends
_LET_GO = 4  # points next to the cut
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def balls_in_bins(bins: int, sigma: float, *, remove: bool, tail: float) -> Loss:
    """The loss of removing (or adding) a record, with one that it dominates in ``dominated``.

    Guarantee
    ---------
    * The loss dominates that of every adaptive epoch, whatever ``tail``: below 1e-26 it is that of a record
      whose bin is known.
    * ``dominated`` is dominated by that of the epoch in which every gradient has norm 1 in one direction.
    """
    if tail * _COARSER < _LEAST_TAIL:
        return replace(unsampled(gaussian_pair(sigma, tail)), dominated=NOTHING)
    law = _Lognormal(sigma)
    cut = law.cut(tail * _COARSER / bins)
    d = _FINE / sigma
    while True:
        low, high = law.cells(d, cut)
        spread = np.append(low, 0.0) + np.append(0.0, high)
        window = _window(spread, bins, d, tail * _COARSER)
        if window.size <= _MOST_POINTS:
            break
        d *= 1.05 * window.size / _MOST_POINTS
    dominated = NOTHING
    if remove:
        pmf, error, wrapped = _sum(law.below(low + high, spread, d), bins, window)
        dominated = _without_top(_loss(np.maximum(pmf - error, 0.0), bins, window, remove, 0.0), wrapped)
    pmf, error, _ = _sum(spread, bins, window)  # what wraps around only adds
    outside = 2.0 * tail * _COARSER + bins * law.above(cut)
    loss = _loss(np.maximum(pmf, 0.0) + error, bins, window, remove, outside)
    return replace(loss, dominated=dominated)


@dataclass(frozen=True)
class _Lognormal:
    """W = e^{s z - s^2/2}, s = 1/sigma, z standard normal: of mean 1, and by size e^{s^2} times as large."""

    sigma: float

    def cut(self, share: float) -> float:
        """The W above which E W 1[W > cut] is ``share``."""
        s = 1.0 / self.sigma
        return math.exp(s * s / 2.0 - s * float(ndtri(share)))

    def above(self, cut: float) -> float:
        """E (W + 1) 1[W > cut]: t times it is above both P and Q of any W > cut."""
        s, log_cut = 1.0 / self.sigma, math.log(cut)
        return float(ndtr(s / 2.0 - log_cut / s) + ndtr(-s / 2.0 - log_cut / s))

    def density(self, w: Array) -> Array:
        s = 1.0 / self.sigma
        safe = np.maximum(w, 1e-300)
        z = np.log(safe) / s + s / 2.0
        return np.where(w > 0.0, np.exp(-z * z / 2.0) / (safe * s * math.sqrt(2.0 * math.pi)), 0.0)

    def cells(self, d: float, cut: float) -> tuple[Array, Array]:
        """The mass of W <= cut in every cell of a grid, shared between its ends with the mean kept."""
        s = 1.0 / self.sigma
        ends = np.exp(np.linspace(-s * s / 2.0 - 38.0 * s, math.log(cut), 2 + math.ceil(3000 * (1.0 + s))))
        lines = d * np.arange(math.ceil(cut / d))
        edges = np.unique(np.concatenate([ends, lines[lines > ends[0]]]))
        half = np.diff(edges)[:, None] / 2.0
        w = (edges[:-1, None] + half + half * _NODES).ravel()
        masses = (half * _WEIGHTS).ravel() * self.density(w)
        cell = np.floor(w / d).astype(np.int64)
        share = np.clip(w / d - cell, 0.0, 1.0)
        low, high = np.bincount(cell, masses * (1.0 - share)), np.bincount(cell, masses * share)
        return low.astype(np.float64), high.astype(np.float64)

    def below(self, cells: Array, spread: Array, d: float) -> Array:
        """Masses at 0, d, 2d, ... of a law that is below W in increasing convex order.

        The second differences of the chords are ``spread``; those of c are taken off.  Next to 0, where W
        has too little mass for that, c is constant, so that the mean is c below 1.  At the cut, a few points
        are let go: more than what c would still be there.  On too coarse a grid W is rounded down.
        """
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


@dataclass(frozen=True)
class _Window:
    """S in ``d * (first + 0..size-1)``, and the tilts with which it is computed, from left to right."""

    d: float
    first: int
    size: int
    tilts: tuple[float, ...]


def _log_mean(masses: Array, x: Array, tilt: float) -> float:
    """log of sum masses e^{tilt x}."""
    there = masses > 0.0
    exponents = tilt * x[there]
    top = float(exponents.max())
    return top + math.log(float(np.dot(masses[there], np.exp(exponents - top))))


def _window(masses: Array, bins: int, d: float, rest: float) -> _Window:
    """Outside lies at most ``rest`` of P and of Q on either side, by Chernoff's bound.

    E_Q (S/t) e^{z S} = m'(z) m(z)^{t-1}; to the right of it, if above t, Q has less than P.
    """
    x: Array = d * np.arange(masses.size, dtype=np.float64)
    deviation = math.sqrt(bins * float(np.dot(masses, (x - 1.0) ** 2)))
    high, right, low, left = math.inf, 0.0, 0.0, 0.0
    for z in np.geomspace(1e-2, 3e1, 19) / deviation:
        log_m = _log_mean(masses, x, z)
        weighted = _log_mean(masses * x, x, z)
        end = (weighted + (bins - 1) * log_m - math.log(rest)) / z
        high, right = (end, float(z)) if end < high else (high, right)
        start = (math.log(rest) - bins * _log_mean(masses, x, -z)) / z
        low, left = (start, float(z)) if start > low else (low, left)
    first = math.floor(low / d) if low > 0.5 * high else 0
    size = scipy.fft.next_fast_len(math.ceil(1.3 * max(high / d, bins / d) - first) + 16, real=True)
    return _Window(d, first, size, (-0.6 * left, -0.3 * left, 0.0, *(right * _SHARES)))


def _sum(masses: Array, bins: int, window: _Window) -> tuple[Array, Array, float]:
    """The law of a sum of ``bins`` terms in the window, a bound on the rounding of each value, and one on the
    P-mass that was outside of the window, and has wrapped around to add to the values.

    Each value is taken from the tilt by which it is best.
    """
    size, s = window.size, window.d * (window.first + np.arange(window.size))
    weight = np.maximum(s / bins, 1.0)
    value, error, least, wrapped = np.zeros(size), np.zeros(size), np.full(size, math.inf), np.zeros(size)
    for tilt in window.tilts:
        pmf, rounding, outside = _tilted_sum(masses, bins, window, tilt)
        better = rounding + outside < least
        least = np.where(better, rounding + outside, least)
        value, error = np.where(better, pmf, value), np.where(better, rounding, error)
        wrapped = np.where(better, outside * weight, wrapped)
    # all that wraps at one tilt is ``outside`` in sum; over all tilts, as many times the largest
    return value, error, float(wrapped.max()) * len(window.tilts)


def _tilted_sum(masses: Array, bins: int, window: _Window, tilt: float) -> tuple[Array, Array, Array]:
    """Values, the rounding of each, and what all that wraps around would be at each."""
    d, size = window.d, window.size
    x: Array = d * np.arange(masses.size, dtype=np.float64)
    log_m = _log_mean(masses, x, tilt)
    tilted = masses * np.exp(tilt * x - log_m)
    if tilted.size > size:
        tilted = np.pad(tilted, (0, -tilted.size % size)).reshape(-1, size).sum(axis=0)
    transform = scipy.fft.rfft(tilted, size)
    # as in convolve: a few units for each of log2(size) butterflies, and the rounding of the exponents
    unit = UNIT * (8.0 * math.log2(size) + 8.0 * (1.0 + abs(tilt) * float(x[-1]) + abs(log_m)))
    magnitude = np.maximum(np.abs(transform), unit)
    log_size = np.log(magnitude)
    power = np.exp(bins * (log_size + 1j * np.angle(transform)))
    relative = bins * (2.0 * unit / magnitude + 4.0 * UNIT * (math.pi + np.abs(log_size)))
    spectrum = np.exp(bins * log_size) * (np.expm1(np.minimum(relative, 700.0)) + unit)
    error = 2.0 * float(spectrum.sum()) / size * (1.0 + 1e-9)
    pmf = np.roll(scipy.fft.irfft(power, size), -(window.first % size))
    untilt = np.exp(np.minimum(bins * log_m - tilt * d * (window.first + np.arange(size)), 700.0))
    return pmf * untilt, error * untilt, _alias(masses, bins, window, tilt, log_m) * untilt


def _alias(masses: Array, bins: int, window: _Window, tilt: float, log_m: float) -> float:
    """The tilted mass outside of the window, which wraps around: by Chernoff's bound."""
    x: Array = window.d * np.arange(masses.size, dtype=np.float64)
    ends = window.d * np.array([window.first, window.first + window.size])
    least = np.zeros(2)
    for share in np.array([0.15, 0.3, 0.5, 0.8, 1.2]):
        down, up = share * abs(window.tilts[0]) / 0.6, share * window.tilts[-1] / 0.7
        below = bins * (_log_mean(masses, x, tilt - down) - log_m) + down * ends[0]
        above = bins * (_log_mean(masses, x, tilt + up) - log_m) - up * ends[1]
        least = np.minimum(least, [below, above])
    return float(np.exp(least).sum()) if window.first > 0 else float(np.exp(least[1]))


def _loss(pmf: Array, bins: int, window: _Window, remove: bool, outside: float) -> Loss:
    s = window.d * (window.first + np.arange(window.size))
    there = (pmf > 0.0) & (s > 0.0)
    ratio = np.log(s[there] / bins)
    p = pmf[there] * s[there] / bins
    atoms = np.stack([ratio, p] if remove else [-ratio[::-1], pmf[there][::-1]], axis=1)
    lost = float(pmf[s <= 0.0].sum()) if not remove else 0.0
    return Loss((), atoms, 0.0, outside + lost, math.inf, bins * _SURE)


def _without_top(loss: Loss, mass: float) -> Loss:
    """``loss`` without ``mass`` of its largest values: no more of it is anywhere above any value."""
    losses, masses = loss.atoms.T
    above = np.cumsum(masses[::-1])[::-1]  # with the atom itself
    left = np.clip(above - mass, 0.0, masses)
    return replace(loss, atoms=np.stack([losses[left > 0.0], left[left > 0.0]], axis=1))
