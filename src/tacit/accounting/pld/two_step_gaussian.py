"""Two steps of sampled Gaussians: one integral over the first, the second in closed form.

    delta(eps) = E_P[ h(e^{eps - L_1}) ],   h(a) = P_2(L_2 > log a) - a Q_2(L_2 > log a),

where h, the hockey stick of the second step, is convex and decreasing in a.  On a panel of outcomes of the
first step, of masses p under P and q under Q, the mean of e^{eps - L_1} under P is e^eps q / p.  So

    p h(e^eps q / p)  <=  its share of delta  <=  p times the chord of h between the ends of the panel, there,

by Jensen's inequality on the left and convexity on the right.  A grid, or a line in the complex plane, has
the most trouble where there are fewest steps.

Legend: s the outcome, in units in which L increases; J panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from tacit.accounting.directions import Direction
from tacit.accounting.pld.pair import log_mixture, log_ratio
from tacit.accounting.pld.pairs_mixture import gaussian_replaced
from tacit.accounting.price import Array, Price
from tacit.accounting.roots import brent

__all__ = ["SampledPair", "TwoStepPrice"]

UNIT = 2.0**-53
_WIDTH, _CELLS = 2e-2, 1 << 11  # of a coarse panel: at most so much of L, at least so many
_PANELS = 1 << 16  # fine ones
_LEFT_OUT = 1e-14  # of delta: the mass beyond the last panel
_WIDEN = 40
_WIDE, _WANTED, _MOST_PANELS = 1e-8, 5e-10, 1 << 19  # nats of epsilon between the ends: more panels for fewer
_ROUNDED = 1e-7  # a bracket that is wider, relative to epsilon, is so by rounding: more panels do not help
_LARGEST_LOG = 600.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


@dataclass(frozen=True)
class SampledPair:
    """A Gaussian of noise ``sigma`` on a Poisson sample of rate ``q``: P against Q, in s, where L increases.

    P is (1-q) N(0) + q N(1) and Q is N(0) (remove); N(0) and (1-q) N(0) + q N(-1) (add); the two mixtures
    (replace).
    """

    q: float
    sigma: float
    way: Direction

    def loss(self, s: Array) -> Array:
        """L(s)."""
        variance = self.sigma**2
        plus = log_mixture((2.0 * s - 1.0) / (2.0 * variance), self.q) if self.way != "add" else 0.0
        minus = log_mixture((-2.0 * s - 1.0) / (2.0 * variance), self.q) if self.way != "remove" else 0.0
        found: Array = np.asarray(plus - minus, dtype=np.float64)
        return found

    def position(self, loss: Array) -> Array:
        """The s at which L is ``loss``; infinite where it never is.

        It is a few units off, which costs nothing: where P(L > l) - e^l Q(L > l) is cut does not matter to
        first order, and any cut gives a lower bound.
        """
        variance = self.sigma**2
        if self.way == "replace":
            return gaussian_replaced(self.q, self.sigma, 0.5).branches[0].position(loss)
        if self.way == "remove":
            return np.where(loss > math.log1p(-self.q), variance * log_ratio(loss, self.q) + 0.5, -math.inf)
        return np.where(-loss > math.log1p(-self.q), -variance * log_ratio(-loss, self.q) - 0.5, math.inf)

    def tails(self, cut: Array) -> tuple[Array, Array, Array, Array]:
        """P and Q of the outcomes above ``cut``, each with a bound on its error."""
        return self._mixed(lambda center: _tail((cut - center) / self.sigma))

    def masses(self, low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
        """P and Q of the outcomes in [low, high], each with a bound on its error."""
        return self._mixed(lambda center: _mass((low - center) / self.sigma, (high - low) / self.sigma))

    def _mixed(self, normal: Callable[[float], tuple[Array, Array]]) -> tuple[Array, Array, Array, Array]:
        """P and Q from ``normal``, that of the normal law around a center."""

        def mixture(center: float) -> tuple[Array, Array]:
            moved, more = normal(center)
            return (1.0 - self.q) * still + self.q * moved, (1.0 - self.q) * off + self.q * more

        still, off = normal(0.0)
        p, p_off = (still, off) if self.way == "add" else mixture(1.0)
        q, q_off = (still, off) if self.way == "remove" else mixture(-1.0)
        return p, p_off + 8.0 * UNIT * p, q, q_off + 8.0 * UNIT * q

    def hockey_stick(self, log_a: Array) -> tuple[Array, Array]:
        """h at a = e^{log_a}, from below and from above."""
        cut = self.position(log_a)
        p, p_off, q, q_off = self.tails(cut)
        a = np.exp(np.minimum(log_a, _LARGEST_LOG))
        scaled, off = a * q, p_off + a * (q_off + 4.0 * UNIT * (1.0 + np.abs(log_a)) * q)
        found = np.maximum(p - scaled - off, 0.0), np.clip(p - scaled + off, 0.0, 1.0)
        huge = log_a > _LARGEST_LOG
        return np.where(huge, 0.0, found[0]), np.where(huge, np.minimum(p + p_off, 1.0), found[1])


def _tail(z: Array) -> tuple[Array, Array]:
    """Phi(-z) and a bound on its error: z's own rounding makes a relative one of z^2 units."""
    tail = ndtr(-z)
    return tail, 8.0 * UNIT * tail * (1.0 + np.square(np.where(np.isfinite(z), z, 0.0)))


def _mass(z: Array, width: Array) -> tuple[Array, Array]:
    """Phi(z + width) - Phi(z) and a bound on its error, by Gauss's rule of three points.

    The rule is off by width^7 phi^(6) / 2,016,000 in the panel, and |phi^(6)| <= (|z| + 2.5)^6 phi.
    """
    total = np.zeros_like(z)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        total += weight * np.exp(-np.square(z + width * (1.0 + node) / 2.0) / 2.0)
    mass = width * total / (2.0 * math.sqrt(2.0 * math.pi))
    far = np.abs(z) + width
    rule = (width * (far + 2.5)) ** 6 * np.exp(width * far) / 2_016_000.0
    return mass, mass * (8.0 * UNIT * (2.0 + far * far) + 2.0 * rule)


@dataclass(frozen=True)
class _Panels:
    """The first step, cut into panels: ``ends`` (J+1,), L at the ends, P (J,) and its error, log Q/P (J,) and
    its error, and the mass beyond the panels on either side, at most."""

    ends: Array
    losses: Array
    p: Array
    p_off: Array
    log_mean: Array
    mean_off: Array
    beyond: float

    @classmethod
    def of(cls, first: SampledPair, ends: Array, beyond: float) -> _Panels:
        losses = first.loss(ends)
        p, p_off, q, q_off = first.masses(ends[:-1], ends[1:])
        there = (p > 4.0 * p_off) & (q > 4.0 * q_off)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_mean = np.where(there, np.log(q) - np.log(p), -losses[:-1])
            mean_off = np.where(there, 2.0 * (p_off / p + q_off / q) + 4.0 * UNIT, math.inf)
        return cls(ends, losses, p, p_off, log_mean, mean_off, beyond)

    @classmethod
    def coarse(cls, first: SampledPair, beyond: float) -> _Panels:
        """L moves by at most about ``_WIDTH`` in a panel."""
        reach = 1.0 - float(ndtri(beyond)) * first.sigma
        ends = np.linspace(-reach, reach, _CELLS + 1)
        parts = np.maximum(np.ceil(np.diff(first.loss(ends)) / _WIDTH), 1.0)
        return cls.of(first, _cut(ends, parts), beyond)

    def finer(
        self, first: SampledPair, second: SampledPair, epsilon: float, panels: int = _PANELS
    ) -> _Panels:
        """Panels cut where it pays: k parts leave 1/k^2 of a gap, so that k goes with its cubic root."""
        lower, upper = self.shares(second, epsilon)
        roots = np.cbrt(np.maximum(upper - lower, 0.0))
        parts = np.ceil(1.0 + panels * roots / max(float(roots.sum()), 1e-300))
        return _Panels.of(first, _cut(self.ends, parts), self.beyond)

    def shares(self, second: SampledPair, epsilon: float) -> tuple[Array, Array]:
        """What each panel adds to delta: from below, from above."""
        log_a = epsilon - self.losses
        left, right = log_a[:-1], log_a[1:]  # left >= right
        mean = np.clip(epsilon + self.log_mean, right, left)
        off = self.mean_off + 4.0 * UNIT * (1.0 + np.abs(mean))
        below = second.hockey_stick(np.minimum(mean + off, left))[0]
        gap = np.expm1(left - right)
        with np.errstate(divide="ignore", invalid="ignore"):
            # the weight of the left end in the chord at the mean, from below
            weight = (np.expm1(mean - right) - off * np.exp(mean - right)) / gap
        weight = np.where(gap > 0.0, np.clip(np.nan_to_num(weight), 0.0, 1.0), 0.0) * (1.0 - 8.0 * UNIT)
        ends = second.hockey_stick(log_a)[1]
        high, low = np.maximum(ends[1:], ends[:-1]), ends[:-1]
        return np.maximum(self.p - self.p_off, 0.0) * below, (self.p + self.p_off) * (
            high - weight * (high - low)
        )

    def delta(self, second: SampledPair, epsilon: float) -> tuple[float, float]:
        """Bounds on delta.  Beyond the panels, h is at most 1."""
        lower, upper = self.shares(second, epsilon)
        rounding = 1.0 + UNIT * (4.0 * math.log2(lower.size + 2.0) + 64.0)
        return float(lower.sum()) / rounding, min(1.0, float(upper.sum()) * rounding + 2.0 * self.beyond)


def _cut(ends: Array, parts: Array) -> Array:
    """``ends`` with each gap cut into so many equal ``parts``."""
    many = parts.astype(np.int64)
    step = np.repeat(np.diff(ends) / many, many)
    inside = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    return np.append(np.repeat(ends[:-1], many) + inside * step, ends[-1])


@dataclass(frozen=True)
class TwoStepPrice(Price):
    """``pairs``: for each direction of the adjacency, the first and the second step.  ``many``, a price of
    the same, answers many questions at once, where there is one.

    Guarantee
    ---------
    * Both ends of ``delta_bounds`` and of ``epsilon_bounds`` are bounds for the dominating pair, with
      rounding, quadrature and what lies beyond the panels allowed for.
    """

    pairs: tuple[tuple[SampledPair, SampledPair], ...]
    many: Price | None = None

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        lower, upper = 0.0, 0.0
        for first, second in self.pairs:
            rough = _Panels.coarse(first, 1e-20).delta(second, epsilon)[1]
            panels = _Panels.coarse(first, max(_LEFT_OUT * rough, 1e-290)).finer(first, second, epsilon)
            found = panels.delta(second, epsilon)
            lower, upper = max(lower, found[0]), max(upper, found[1])
        return lower, upper

    def delta(self, epsilon: float) -> float:
        return self.delta_bounds(epsilon)[1]

    def deltas(self, epsilons: Array) -> Array:
        return super().deltas(epsilons) if self.many is None else self.many.deltas(epsilons)

    def epsilons(self, deltas: Array) -> Array:
        return super().epsilons(deltas) if self.many is None else self.many.epsilons(deltas)

    def epsilon(self, delta: float) -> float:
        return self.epsilon_bounds(delta)[1]

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        found = [_epsilon_bounds(*pair, delta) for pair in self.pairs]
        return max(lower for lower, _ in found), max(upper for _, upper in found)

    def by_direction(self, delta: float) -> Mapping[str, float]:
        return {pair[0].way: _epsilon_bounds(*pair, delta)[1] for pair in self.pairs}


def _epsilon_bounds(first: SampledPair, second: SampledPair, delta: float) -> tuple[float, float]:
    """Where the bounds cross ``delta``: found on coarse panels, certified on fine ones."""
    coarse = _Panels.coarse(first, _LEFT_OUT * delta)

    def excess(epsilon: float) -> float:
        return math.log(max(coarse.delta(second, epsilon)[1], 1e-300) / delta)

    if excess(0.0) <= 0.0:
        return 0.0, 0.0
    high = 1e-3
    while excess(high) > 0.0:
        high *= 4.0
    near = brent(excess, 0.0, high, xtol=1e-9, rtol=1e-9)
    slope = max((excess(near * 0.99) - excess(near)) / (near * 0.01), 1e-300)
    found = _certified(coarse.finer(first, second, near), second, delta, near, slope)
    if _WIDE < found[1] - found[0] < _ROUNDED * found[1]:
        panels = math.ceil(_PANELS * math.sqrt((found[1] - found[0]) / _WANTED))
        fine = coarse.finer(first, second, near, min(panels, _MOST_PANELS))
        found = _certified(fine, second, delta, found[1], slope, rounds=1)
    return found


def _certified(
    fine: _Panels, second: SampledPair, delta: float, near: float, slope: float, rounds: int = 3
) -> tuple[float, float]:
    """The same on fine panels, by the slope of the coarse ones: ends that bounds on delta confirm."""
    for _ in range(rounds):
        lower, upper = fine.delta(second, near)
        near = max(near + math.log(upper / delta) / slope, near / 2.0)
    gap = 1.1 * math.log(upper / max(lower, 1e-300)) / slope + 1e-14 * (1.0 + near)
    return _last(lambda step: fine.delta(second, near - step)[0] >= delta, near, -gap), _last(
        lambda step: fine.delta(second, near + step)[1] <= delta, near, gap
    )


def _last(holds: Callable[[float], bool], near: float, step: float) -> float:
    """``near`` moved by ``step``, doubled until the bound ``holds``; 0 or infinity where it never does."""
    for _ in range(_WIDEN):
        if near + step <= 0.0:
            return 0.0
        if holds(abs(step)):
            return near + step
        step *= 2.0
    return math.inf if step > 0.0 else 0.0
