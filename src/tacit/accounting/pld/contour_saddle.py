"""Where should the contour run? Estimates of the saddle point of F, which the bounds need not trust.

They decide how tight the bounds are, not whether they hold.

F and K are those of :mod:`tacit.accounting.pld.contour`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import ndtri_exp

from tacit.accounting.pld.transform import Mixture
from tacit.accounting.price import Array
from tacit.accounting.roots import brent

_LOG_ROUGH = math.log(1e-12)
_STRIDE = 0.2  # of the search for a saddle, in log tilt


@dataclass(frozen=True)
class Plain:
    """Gaussians without sampling: K(z) = mu^2 z (z+1) / 2, for a count of mu^2."""


Term: TypeAlias = Mixture | Plain


@dataclass(frozen=True)
class Saddle:
    """An estimate of a point of the curve and of the tilt at which F is flat there."""

    tilt: float
    epsilon: float
    log_delta: float


@lru_cache(maxsize=256)
def _samples(term: Mixture, tilt: float, log_tail: float | None) -> tuple[Array, Array]:
    """Losses and log masses for an estimate of K near ``tilt``: a coarse trapezoid rule.

    With ``log_tail``, of the law without what is rarer than e^log_tail: an estimate of another K, without the
    explosion that rare large losses bring.
    """
    if log_tail is None:
        low, high = term.reach(tilt, _LOG_ROUGH)
    else:
        high = far = -term.sigma * float(ndtri_exp(log_tail))
        low = -far
        if term.direction != "add":
            high = max(far, *(s - term.sigma * ndtri_exp(min(log_tail - w, -1.0)) for s, _, w in term.terms))
    width = min(term.sigma / 2.0, term.sigma**2 / term.shifts[-1])
    x = np.linspace(low, high, min(4000, 2 + math.ceil((high - low) / width)))
    logs = term.log_normal(x) + math.log(x[1] - x[0])
    if term.direction == "add":
        return -term.loss(x), logs
    return term.loss(x), logs + term.log_m(x)


def _cumulant(
    terms: tuple[Term, ...], counts: Array, z: float, log_tail: float | None
) -> tuple[float, float, float]:
    """An estimate of K and its first two derivatives."""
    value, slope, curvature = 0.0, 0.0, 0.0
    for term, count in zip(terms, counts.tolist(), strict=True):
        if isinstance(term, Plain):
            value += count * z * (z + 1.0) / 2.0
            slope += count * (z + 0.5)
            curvature += count
            continue
        losses, logs = _samples(term, z if log_tail is None else 0.0, log_tail)
        exponents = logs + z * losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ losses) / total
        value += count * (top + math.log(total))
        slope += count * mean
        curvature += count * float(weights @ np.square(losses - mean)) / total
    return value, slope, curvature


def _saddle(terms: tuple[Term, ...], counts: Array, tilt: float, log_tail: float | None = None) -> Saddle:
    """The saddle-point approximation (Alghamdi et al. 2022, 2208.09595): where F's exponent is flat."""
    value, slope, curvature = _cumulant(terms, counts, tilt, log_tail)
    epsilon = slope - 1.0 / tilt - 1.0 / (tilt + 1.0)
    spread = curvature + 1.0 / tilt**2 + 1.0 / (tilt + 1.0) ** 2
    log_share = -0.5 * math.log(2.0 * math.pi * spread) - math.log(tilt * (tilt + 1.0))
    return Saddle(tilt, epsilon, value - tilt * epsilon + log_share)


def saddle_at_delta(terms: tuple[Term, ...], counts: Array, log_delta: float) -> Saddle:
    """Where to look for delta: an estimate of epsilon, and the saddle there."""
    near = _estimate(terms, counts, log_delta)
    there = _saddle(terms, counts, near.tilt)
    if abs(there.epsilon - near.epsilon) > 1e-3 * abs(near.epsilon):
        there = saddle_at_epsilon(terms, counts, near.epsilon)
    return replace(there, epsilon=near.epsilon, log_delta=log_delta)


def estimate(terms: tuple[Term, ...], counts: Array, log_delta: float) -> float:
    """epsilon by the saddle point alone: a percent or so off on either side.  Not a bound."""
    return _estimate(terms, counts, log_delta).epsilon


def _estimate(terms: tuple[Term, ...], counts: Array, log_delta: float) -> Saddle:
    """The saddle without what is rarer than a part of delta, which does not move epsilon.

    It may make K explode, though, and move the saddle.
    """
    log_tail = log_delta - math.log(10.0 * max(1.0, float(counts.max())))
    variance = _cumulant(terms, counts, 0.0, log_tail)[2]
    tilt = math.sqrt(-2.0 * log_delta / variance)
    for _ in range(3):  # where the saddle would be, were the loss Gaussian
        share = math.log(2.0 * math.pi * (variance + 1.0 / tilt**2)) / 2.0 + math.log(tilt * (tilt + 1.0))
        tilt = math.sqrt(2.0 * max(1.0 - log_delta - share, 0.1) / variance)
    return _search(
        lambda tilt: _saddle(terms, counts, tilt, log_tail), lambda p: log_delta - p.log_delta, tilt
    )


def saddle_at_epsilon(terms: tuple[Term, ...], counts: Array, epsilon: float) -> Saddle:
    """The saddle of F at ``epsilon``."""
    _, mean, variance = _cumulant(terms, counts, 0.0, None)
    far = epsilon - mean  # if the loss is Gaussian, variance c^2 - far c = 2 for c << 1, = 1 for c >> 1
    tilt = (far + math.sqrt(far * far + 6.0 * variance)) / (2.0 * variance)
    found = _search(lambda tilt: _saddle(terms, counts, tilt), lambda point: point.epsilon - epsilon, tilt)
    return replace(found, epsilon=epsilon)


def _search(saddle: Callable[[float], Saddle], excess: Callable[[Saddle], float], start: float) -> Saddle:
    """The saddle at which ``excess``, increasing in the tilt, vanishes; or the nearest end of the range.

    Looked for from the tilt ``start`` on, in strides that double.
    """

    @cache
    def at(log_tilt: float) -> Saddle:
        return saddle(math.exp(log_tilt))

    least, most, stride = math.log(1e-3), math.log(1e6), _STRIDE
    here = min(max(math.log(start), least), most)
    sign = -1.0 if excess(at(here)) > 0.0 else 1.0
    while True:
        there = min(max(here + sign * stride, least), most)
        if there == here:
            return at(here)
        if (excess(at(there)) > 0.0) != (sign < 0.0):
            break
        here, stride = there, 2.0 * stride
    low, high = min(here, there), max(here, there)
    return at(brent(lambda log_tilt: excess(at(log_tilt)), low, high, xtol=1e-2))
