"""The loss of the best of a random number of runs, from the (epsilon, delta) curve of one run.

Let K have the generating function f, and break ties between runs at random, so that the outcomes y of a run
are ordered.  Let v(y), v'(y) be the probabilities under neighbours that a run is better than y, and
g(v) = f'(1 - v).  The best of K is y with density g(v) p(y) against g(v') p'(y), and K = 0 has the same
probability on both sides.  If a run is (e, d(e))-DP for every e, in both directions, then

    v' <= V(v) = min over e of  e^e v + d(e)  and  1 - e^{-e} (1 - v - d(e)),

and g decreases, so that with L the loss of one run, for every epsilon >= 0,

    delta(epsilon) <= E max over v of  (g(v) - e^{epsilon - L} g(V(v)))_+ = E H(e^{epsilon - L}).

H is convex and decreasing, H(0) = f'(1) = E K.  If H is piecewise linear with kinks at z_i, it is a sum of
w_i (1 - z / z_i)_+, and so delta(epsilon) <= sum_i w_i d(epsilon - log z_i).  Koskela, Redberg & Wang 2024
(2402.06701) use one kink z, a bound on g(v) / g(v') for all v together: E K d(epsilon - log z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.accounting.pld.pair import Loss
from tacit.accounting.price import Array, Price
from tacit.accounting.roots import brent
from tacit.events import Event, PrivateSelection

NOTHING = Loss((), np.array([[0.0, 1.0]]), 0.0, 0.0, 0.0)
"""The loss of an output that does not depend on the records; every loss dominates it."""

_UP, UNIT = 1.0 + 1e-12, 2.0**-53
_LEVELS = np.geomspace(1e-24, 0.5, 48)  # of delta: the curve ends at the first one with a finite epsilon
_POINTS, _PLACES, _FINER = 1024, 1500, 2  # epsilons of a run; values of v; times as many of the selection
_LEAST_PLACE = 1e-8  # of v, times E K
_FARTHEST = 300.0  # the largest epsilon of a run, and the most that selection adds to it, in nats


@dataclass(frozen=True, eq=False)
class KnownCurve(Event):
    """A mechanism of which only the curve is known, which is the same in both directions."""

    name: str
    loss: Loss

    def __repr__(self) -> str:
        return self.name


def selected(run: Price, event: PrivateSelection) -> KnownCurve:
    """Compute the curve of the best of K runs.

    **Guarantee**

    * The loss dominates that of the selection, for any outcomes and any order of them with which a run has
      its curve.
    """
    reach = next((e for level in _LEVELS if (e := run.epsilon(float(level))) < math.inf), 0.0) + 1e-9
    epsilons = np.linspace(0.0, min(reach, _FARTHEST), _POINTS)
    d_run = np.minimum(run.deltas(epsilons), 1.0)
    a, b = _lines(event, epsilons, d_run)
    top = min(math.log(float((a / np.maximum(b, 1e-300)).max())), _FARTHEST)
    h = (float(epsilons[-1]) + top) / _FINER / _POINTS
    right, count = math.ceil(top / h) + 1, _FINER * _POINTS + 3  # some more, for weights up to ``right``
    weights, left = _kinks(a, b, np.exp(h * np.arange(-count, right + 1.0)))
    # d at -right h, ..., 2 count h: below its chords in e^epsilon, and after the last at most its last value
    d = np.interp(np.exp(np.minimum(h * np.arange(2.0 * count + 1.0), _FARTHEST)), np.exp(epsilons), d_run)
    x = np.exp(h * np.arange(-right, 0.0))
    d = np.concatenate([1.0 - x * (1.0 - d[right:0:-1]), d])
    deltas = (np.convolve(d, weights, "valid") + left) * _UP + 8.0 * UNIT * event.mean
    return KnownCurve(repr(event), _loss(h * np.arange(count + 1.0), np.minimum(deltas, 1.0)))


def _lines(event: PrivateSelection, epsilons: Array, d: Array) -> tuple[Array, Array]:
    """Return a and b with H(z) <= max_j (a_j - b_j z)_+.

    Between two values of v, g lies below its chord.  g(V), which is convex as V is concave, lies above its
    tangent in the middle.  The difference of these two lines is linear, so it is largest at an end.
    """
    ends = np.concatenate([[0.0], np.geomspace(_LEAST_PLACE / max(event.mean, 1.0), 1.0, _PLACES)])
    middles = (ends[1:] + ends[:-1]) / 2.0
    slopes = np.concatenate([np.exp(np.minimum(epsilons, _FARTHEST)), np.exp(-epsilons), [0.0]])
    starts = np.concatenate([d, 1.0 - slopes[d.size : -1] * (1.0 - d), [1.0]])
    best = np.array([int((starts + slopes * v).argmin()) for v in middles])
    b, steep = _weight(event, starts[best] + slopes[best] * middles)
    rise = -steep * slopes[best] * np.diff(ends) / 2.0
    (a, _), least = _weight(event, ends), float(_weight(event, np.ones(1))[0][0])
    return np.concatenate([a[:-1], a[1:]]), np.concatenate([b + rise, np.maximum(b - rise, least)])


def _weight(event: PrivateSelection, v: Array) -> tuple[Array, Array]:
    """Return g(v) = f'(1 - v) and its slope: m e^{-m v}, or m (1 + (1/gamma - 1) v)^{-(1 + eta)}; m = E K."""
    m = event.mean
    if event.shape is None:
        g = m * np.exp(-m * v)
        return g, -m * g
    more = math.expm1(log_one_over_gamma(m, event.shape))
    g = m * np.exp(-(1.0 + event.shape) * np.log1p(more * v))
    return g, -(1.0 + event.shape) * more / (1.0 + more * v) * g


def _kinks(a: Array, b: Array, z: Array) -> tuple[Array, float]:
    """Return weights w_i of a piecewise linear function above H with kinks at ``z``, and its last value."""
    values = np.array([max(0.0, float((a - b * each).max())) for each in z])
    slopes = np.diff(values, prepend=a.max()) / np.diff(z, prepend=0.0)
    return np.maximum(np.diff(slopes, append=0.0), 0.0) * z, float(values[-1])


def _loss(epsilons: Array, deltas: Array) -> Loss:
    """Make the loss of a symmetric pair with at least ``deltas`` at ``epsilons``, which increase from 0.

    delta is convex in x = e^epsilon, and linear between atoms, where its slope is minus the Q-mass of all
    larger losses.  The mirror image of a point (x, delta) is (1/x, 1 - (1 - delta) / x), and the chord
    between both has the slope -(1 - delta) / (1 + x).  The lowest of all these chords comes first.
    """
    x = np.exp(epsilons)
    first = int((deltas + (1.0 - deltas) * np.tanh(epsilons / 2.0)).argmin())
    x, deltas = x[first:], deltas[first:]
    falls = np.concatenate([[(1.0 - deltas[0]) / (1.0 + x[0])], -np.diff(deltas) / np.diff(x), [0.0]])
    q = -np.diff(np.maximum.accumulate(falls[::-1])[::-1])
    losses, masses = np.concatenate([-epsilons[first:][::-1], epsilons[first:]]), np.append(q[::-1], x * q)
    atoms = np.stack([losses, masses * _UP], axis=1)[masses > 0.0] if q.any() else np.zeros((1, 2))
    return Loss((), atoms, float(deltas[-1]), 0.0, float(atoms[-1, 0]), under=lambda: NOTHING)


def log_one_over_gamma(mean: float, shape: float) -> float:
    """Compute log(1/gamma) of the truncated negative binomial with E K = ``mean`` > 1, rounded up.

    E K is eta (1 - gamma) / (gamma (1 - gamma^eta)), or, at eta = 0, (1/gamma - 1) / log(1/gamma)
    (Definition 1).

    >>> round(log_one_over_gamma(10.0, 1.0), 6)  # geometric: E K = 1/gamma
    2.302585
    """

    def excess(cost: float) -> float:
        """Compute log E K - log mean, which increases with ``cost`` = log(1/gamma)."""
        grown = cost + math.log(-math.expm1(-cost))  # log(1/gamma - 1)
        if abs(shape) * cost < 1e-8:
            return grown - math.log(cost) - math.log(mean)
        return grown + math.log(shape / -math.expm1(-shape * cost)) - math.log(mean)

    low, high = 1e-12, 1.0
    while excess(high) < 0.0:
        high *= 2.0
    return brent(excess, low, high, xtol=1e-13) * _UP + 1e-12
