"""Inversion of the transform of delta along a line in the complex plane, with a proven bracket.

The transform of (1 - e^{eps-L})_+ in eps is e^{zL}/(z (z+1)).  So, with K(z) = sum_j T_j log E_P e^{z L_j}
and any c > 0,

    delta(eps) = (1/2 pi i) int_{c-i inf}^{c+i inf} F(z) dz,   F(z) = e^{K(z) - z eps} / (z (z+1)).

The trapezoid rule with nodes c + inh gives, by Poisson's summation formula with period D = 2 pi/h,

    delta_h(eps) = sum_k e^{ckD} delta(eps + kD) >= delta(eps),

so the error of the rule is one-sided, and bounded by values of delta a period away.  The bracket also allows
for the nodes left out (:mod:`tacit.accounting.pld.contour_saddle`), and for quadrature in x and rounding
(:mod:`tacit.accounting.pld.transform`).  c is the saddle point of F, where the terms do not cancel, so that
delta is relatively accurate however small it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.pld.contour_saddle import EDGES, Plain, Term, log_decay
from tacit.accounting.pld.saddle import Saddle
from tacit.accounting.pld.transform import EXTENDED, UNIT, Mixture, Tilted, TooDear
from tacit.accounting.price import Array

_SHARE = 1e-9  # of delta: target of the trapezoid rule's error; that of the nodes left out is a tenth
_FURTHER = (1.0, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05)  # further tilts for Chernoff's bound on delta a period away
_SMALLER = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
_FEW_NODES, _MANY_NODES = 48, 4096
_NEWTON, _WIDEN = 40, 12
_NEAR = 1e-7  # relative; after such a step of Newton's, the next one would be about 1e-14
_FEW_SINES, _MANY_SINES = 1 << 16, 1 << 25  # pairs of u and l that are computed slowly and accurately
_MOST_NODES, MANY_PRODUCTS = 1 << 16, 1 << 27


Complex: TypeAlias = NDArray[np.complex128]


@dataclass(frozen=True)
class Line:
    """The transform along c + iu at N nodes u = 0, h, 2h, ..., for any counts of the J terms.

    For one copy of each term, ``log_size`` and ``angle`` (J, N) are log |phi| and arg phi, and ``error``
    (J, N) bounds the error of phi relative to |phi|.  ``value`` (J,) is K(c), and ``value_error`` (J,) bounds
    its error.  ``decay`` (J, intervals) bounds log |phi| on each interval of u, also beyond the last node.
    ``further`` has pairs of a c' > c and upper bounds on K(c') (J,).
    """

    tilt: float
    h: float
    u: Array
    log_size: Array
    angle: Array
    error: Array
    value: Array
    value_error: Array
    decay: Array
    further: tuple[tuple[float, Array], ...]

    @cached_property
    def _kernels(self) -> tuple[Complex, Complex]:
        """The factors (h/pi) / (z (z+1)) and (h/pi) / (z+1) at the nodes, halved at the first; each (N,)."""
        z = self.tilt + 1j * self.u
        weights = np.full(self.u.size, self.h / math.pi)
        weights[0] /= 2.0
        over: Complex = weights / (z + 1.0)
        return over / z, over

    @cached_property
    def _sizes(self) -> Array:
        """An upper bound on |log phi| of each term at each node; (J, N)."""
        return np.abs(self.log_size) + np.abs(self.angle)

    def _terms(self, counts: Array, epsilon: Array) -> tuple[Complex, Array]:
        """Compute e^{K(z) - K(c) - iu eps} at the nodes, and the phase; each (Q, N)."""
        phase = counts @ self.angle - np.multiply.outer(epsilon, self.u)
        exponent = 1j * phase
        exponent.real = counts @ self.log_size
        terms: Complex = np.exp(exponent)
        return terms, phase

    def _scaled(self, counts: Array, epsilon: Array) -> tuple[Array, Array]:
        """Compute delta / e^{K(c) - c eps} and a bound on its error, each (Q,); counts (Q, J)."""
        terms, phase = self._terms(counts, epsilon)
        inside = terms * self._kernels[0]
        size = np.abs(inside)
        # log1p(e/|phi|) <= e/|phi| bounds the error of a product of transforms, in log
        off = counts @ self.error + 4.0 * UNIT * (8.0 + counts @ self._sizes + np.abs(phase))
        error = (size * np.expm1(np.minimum(off, 700.0))).sum(axis=1) + self._left_out(counts)
        return inside.real.sum(axis=1), error

    def _left_out(self, counts: Array) -> Array:
        """Bound (h/pi) sum over the nodes u > U of |F| <= sup |phi| / (pi U), as |z (z+1)| >= u^2."""
        last = float(self.u[-1])
        first = max(0, int(np.searchsorted(EDGES, last, side="right")) - 1)
        log_sup = (counts @ self.decay[:, first:]).max(axis=1)
        bound: Array = np.exp(log_sup) / (math.pi * last)
        return bound

    def _log_peak(self, counts: Array, epsilon: Array) -> tuple[Array, Array]:
        """Compute K(c) - c eps and a bound on its error."""
        value = counts @ self.value
        error = counts @ (self.value_error + 4.0 * UNIT * np.abs(self.value)) + 8.0 * UNIT * (
            np.abs(value) + self.tilt * np.abs(epsilon)
        )
        return value - self.tilt * epsilon, error

    def _log_aliasing(self, counts: Array, epsilon: Array) -> Array:
        """Bound the log of the sum over other periods: by e^{-ckD} on the left, by Chernoff on the right.

        Far from the epsilon for which the line was drawn, the bound itself may overflow.
        """
        period = 2.0 * math.pi / self.h
        left = -math.log(math.expm1(min(700.0, self.tilt * period)))
        right = np.full(epsilon.shape, math.inf)
        for tilt, value in self.further:
            log_bound = _log_chernoff(tilt) + counts @ value - tilt * epsilon
            log_bound = log_bound - math.log(math.expm1(min(700.0, (tilt - self.tilt) * period)))
            right = np.minimum(right, log_bound)
        both: Array = np.logaddexp(left, right)
        return both

    def log_delta(self, counts: Array, epsilon: Array) -> tuple[Array, Array]:
        """Bound log delta: (lower, upper), each (Q,), for counts (Q, J) and epsilon (Q,)."""
        scaled, error = self._scaled(counts, epsilon)
        peak, off = self._log_peak(counts, epsilon)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            alias = np.exp(self._log_aliasing(counts, epsilon) - peak + off)
            lower = np.log(np.maximum(scaled - error - alias, 0.0)) + peak - off
            upper = np.log(np.maximum(scaled, 0.0) + error) + peak + off
        return lower, upper

    def log_delta_slope(self, counts: Array, epsilon: Array) -> tuple[Array, Array]:
        """Estimate log delta and its derivative in eps, for Newton's method."""
        terms, _ = self._terms(counts, epsilon)
        scaled, slope = ((terms @ kernel).real for kernel in self._kernels)
        peak = counts @ self.value - self.tilt * epsilon
        safe = np.maximum(scaled, 1e-300)
        return np.log(safe) + peak, np.where(scaled > 0.0, -slope / safe, -self.tilt)

    def error_parts(self, counts: Array, epsilon: float) -> dict[str, float]:
        """Compute how far each error may widen the bracket at ``epsilon``, in nats; counts (J,)."""
        row, at = counts[None], np.array([epsilon])
        scaled, error = self._scaled(row, at)
        peak, off = self._log_peak(row, at)
        _, slope = self.log_delta_slope(row, at)
        left_out = self._left_out(row)
        log_scaled = np.log(np.maximum(scaled, 1e-300))
        aliasing = np.exp(np.minimum(self._log_aliasing(row, at) - peak - log_scaled, 700.0))
        relative = {
            "discretisation": aliasing,
            "truncation": 2.0 * left_out / np.exp(log_scaled),
            "rounding": 2.0 * (error - left_out) / np.exp(log_scaled) + 2.0 * off,
        }
        return {name: float(part[0] / abs(slope[0])) for name, part in relative.items()}

    def epsilon(self, counts: Array, log_delta: float, start: Array) -> tuple[Array, Array]:
        """Bound the epsilon at which delta is e^log_delta: (lower, upper), each (Q,); NaN if not found.

        Newton's method finds a root.  Both ends then move outwards until the bounds on delta confirm them.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # far from the line's epsilon, the result is NaN
            return self._epsilon(counts, log_delta, start)

    def _epsilon(self, counts: Array, log_delta: float, start: Array) -> tuple[Array, Array]:
        root = start.astype(np.float64)
        for _ in range(_NEWTON):
            value, slope = self.log_delta_slope(counts, root)
            move = np.clip(
                (log_delta - value) / np.minimum(slope, -1e-300),
                -0.5 - 0.5 * np.abs(root),
                0.5 + 0.5 * np.abs(root),
            )
            root = root + move
            if np.all(np.abs(move) <= _NEAR * (1e-3 + np.abs(root))):
                break
        lower, upper = self.log_delta(counts, root)
        steep = np.maximum(np.abs(slope), 1e-300)
        steps = np.maximum(np.stack([log_delta - lower, upper - log_delta]) / steep * 1.05, 0.0)
        below, above = self._certified(counts, log_delta, root, steps)
        return below, above

    def _certified(self, counts: Array, log_delta: float, root: Array, steps: Array) -> Array:
        """Find ends of the bracket (2, Q), at least ``steps`` away from ``root``; NaN if not confirmed."""
        step = steps + 4.0 * UNIT * (np.abs(root) + 1e-3)
        for _ in range(_WIDEN):
            ends = np.stack([root - step[0], root + step[1]])
            lower, upper = self.log_delta(np.concatenate([counts, counts]), ends.ravel())
            good = np.stack([lower[: root.size] >= log_delta, upper[root.size :] <= log_delta])
            if np.all(good | ~np.isfinite(ends)):
                break
            step = np.where(good, step, 2.0 * step)
        return np.where(good & np.isfinite(ends), ends, math.nan)


def log_chernoff(terms: tuple[Term, ...], counts: Array, tilt: float, epsilon: float) -> float:
    """Compute Chernoff's upper bound on log delta, at any tilt > 0."""
    return _log_chernoff(tilt) + float(counts @ _values_above(terms, tilt)) - tilt * epsilon * (1.0 - 1e-12)


def _log_chernoff(tilt: float) -> float:
    """Return log of m = max (1 - e^{-u}) e^{-cu} = c^c / (1+c)^{1+c}, with delta <= m e^{K(c) - c eps}."""
    return tilt * (math.log(tilt) - math.log1p(tilt)) - math.log1p(tilt)


@dataclass(frozen=True)
class _Layout:
    """The nodes of a line: multiples of ``h`` up to ``largest``."""

    tilt: float
    h: float
    largest: float
    values: list[tuple[float, float]]
    decay: Array
    further: tuple[tuple[float, Array], ...]

    @property
    def nodes(self) -> float:
        return 2.0 + self.largest / self.h


def draw(
    terms: tuple[Term, ...],
    counts: Array,
    saddle: Saddle,
    most: int = MANY_PRODUCTS,
    *,
    accurate: bool = False,
    share: float = _SHARE,
) -> Line:
    """Draw a line with enough nodes for the counts (J,) near the point ``saddle``, or raise :class:`TooDear`.

    With ``accurate``, sums use long doubles.  If these are only doubles, sums use a sine for every pair of u
    and l.  The trapezoid rule and the nodes left out should have an error of about ``share`` of delta.

    The tilt is that of the saddle, or smaller: if rare large losses make K explode just beyond the saddle, a
    smaller tilt allows a wider spacing, but loses some digits.
    """
    layout = partial(_lay_out, terms, counts, saddle, share=share, accurate=accurate)
    best = layout(saddle.tilt)
    if best.nodes > _FEW_NODES:
        layouts = [layout(saddle.tilt * factor, fine=True) for factor in _SMALLER]
        fewest = min(layout.nodes for layout in layouts)
        enough = max(fewest, min(4.0 * fewest, _MANY_NODES))  # the larger tilt keeps more digits
        best = next(layout for layout in layouts if layout.nodes <= enough)
    if best.nodes > _MOST_NODES:
        raise TooDear(f"{best.nodes:.0f} nodes")
    count = math.ceil(best.nodes)
    parts = [_characteristic(term, best.tilt, best.h, count, most, accurate) for term in terms]
    log_size, angle, error = (np.array([part[i] for part in parts]) for i in range(3))
    value, value_error = (np.array([pair[i] for pair in best.values]) for i in range(2))
    u: Array = best.h * np.arange(count, dtype=np.float64)
    return Line(best.tilt, best.h, u, log_size, angle, error, value, value_error, best.decay, best.further)


def _lay_out(
    terms: tuple[Term, ...],
    counts: Array,
    saddle: Saddle,
    tilt: float,
    *,
    share: float,
    accurate: bool,
    fine: bool = False,
) -> _Layout:
    tilt = _short(tilt)
    values = [_value(term, tilt, accurate) for term in terms]
    decay = np.array(
        [_decay(term, tilt, value, fine) for term, (value, _) in zip(terms, values, strict=True)]
    )
    peak = float(counts @ [value for value, _ in values]) - tilt * saddle.epsilon
    h, further = _spacing(terms, counts, saddle, tilt, saddle.log_delta + math.log(share))
    largest = _largest(counts, decay, saddle.log_delta - peak + math.log(share / 10.0))
    return _Layout(tilt, _short(h * (1.0 - 1e-7)), largest, values, decay, further)


def _spacing(
    terms: tuple[Term, ...], counts: Array, saddle: Saddle, tilt: float, log_error: float
) -> tuple[float, tuple[tuple[float, Array], ...]]:
    """Find the widest h at which delta a period away, on either side, adds at most e^log_error to delta.

    The bound is e^{-cD} on the left, for the period D = 2 pi/h, and e^{-(c'-c)D} times Chernoff's bound at c'
    on the right.
    """
    period, further, least = -log_error / tilt, [], math.inf
    for factor in _FURTHER:
        c = tilt + factor * saddle.tilt
        values = _values_above(terms, c)
        log_bound = _log_chernoff(c) + float(counts @ values) - c * saddle.epsilon
        further.append((c, values))
        least = min(least, max(log_bound - log_error, 1.0) / (c - tilt))
        if least <= period:
            break
    return 2.0 * math.pi / max(period, least), tuple(further)


def _largest(counts: Array, decay: Array, log_error: float) -> float:
    """Find the u beyond which the nodes left out add less than e^log_error."""
    log_sup = np.maximum.accumulate((counts @ decay)[::-1])[::-1]
    enough = np.flatnonzero(log_sup - np.log(math.pi * EDGES) <= log_error)
    return float(EDGES[enough[0]]) if enough.size else math.inf


def _short(x: float) -> float:
    """Round x to 24 bits, so that 1 + x and n x are exact: tilts are above 2^-28, nodes below 2^28."""
    return float(np.float32(x))


def _value(term: Term, tilt: float, accurate: bool = False) -> tuple[float, float]:
    """Compute K(c) and a bound on its error."""
    if isinstance(term, Plain):
        value = tilt * (tilt + 1.0) / 2.0
        return value, 4.0 * UNIT * value
    tilted = _tilted(term, tilt, 0.0, accurate)
    return tilted.log_value, tilted.log_error


@lru_cache(maxsize=256)
def _tilted(term: Mixture, tilt: float, largest: float, accurate: bool) -> Tilted:
    return term.tilted(tilt, largest, extended=accurate)


def _values_above(terms: tuple[Term, ...], tilt: float) -> Array:
    """Bound K at a tilt from above, for each term; infinite if no bound is available."""
    return np.array([sum(_value(term, tilt)) for term in terms])


def _decay(term: Term, tilt: float, value: float, fine: bool) -> Array:
    if isinstance(term, Plain):
        return -np.square(EDGES) / 2.0
    return log_decay(term, tilt, value, fine=fine)


def _characteristic(
    term: Term, tilt: float, h: float, count: int, most: int, accurate: bool
) -> tuple[Array, Array, Array]:
    """Compute log |phi|, arg phi and the relative error of phi at each node."""
    if isinstance(term, Plain):
        u: Array = h * np.arange(count, dtype=np.float64)
        return -np.square(u) / 2.0, u * (tilt + 0.5), np.zeros_like(u)
    tilted = _tilted(term, tilt, h * (count - 1), accurate)
    if count * tilted.losses.size > most:
        raise TooDear(f"{count} nodes of {tilted.losses.size} points")
    most_sines = _MANY_SINES if accurate and not EXTENDED else _FEW_SINES
    log_size, angle, error = tilted.log_characteristic(h, count, most_sines)
    with np.errstate(over="ignore"):
        return log_size, angle, error / np.exp(np.maximum(log_size, -700.0))
