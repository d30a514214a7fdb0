"""Dominating pairs as lists of outcomes, for Renyi divergences.

A ``Law`` holds the log ratio y = log dP/dQ of every outcome and its mass under Q.  Every pair here is
symmetric: y under Q and -y under P have the same distribution.  A continuous pair is cut into cells, and the
mass of a cell is moved to its two ends without changing its P-mass and Q-mass ("connect the dots").  The true
pair is a post-processing of the result, so every divergence goes up, relatively by about (cell width)^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from tacit.accounting.closed_form.pure import pure_epsilon
from tacit.accounting.flatten import Base
from tacit.accounting.pld.pair import log_mixture, response_pair
from tacit.accounting.price import Array
from tacit.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    RandomizedResponse,
)

_UNIT = 2.0**-53
_DEVIATIONS = 12.0  # from the mode of any integrand; outcomes farther away weigh less than e^{-72}
_CELLS = 4000
_MOST_OUTCOMES = 200_000


@dataclass(frozen=True)
class Law:
    """A pair as ``log_ratios`` y and ``log_masses`` under Q, both of shape (outcomes,)."""

    log_ratios: Array
    log_masses: Array


def law_of(base: Base, adjacency: Adjacency, largest: float) -> Law | None:
    """Return the ``Law`` of ``base`` in units of ``adjacency``, up to the order ``largest``; None if unknown.

    >>> law = law_of(RandomizedResponse(0.5, 2), Adjacency.REPLACE_ONE, 2.0)
    >>> np.exp(law.log_masses).round(3).tolist(), np.exp(law.log_ratios).round(3).tolist()
    ([0.25, 0.75], [3.0, 0.333])
    """
    match base:
        case RandomizedResponse(noise, categories) if noise > 0.0:
            y, _, q = response_pair(noise, categories).atoms.T
            return Law(y[q > 0.0], np.log(q[q > 0.0]))
        case DiscreteLaplace(scale, sensitivity) if sensitivity <= _MOST_OUTCOMES:
            return _discrete_laplace(scale, sensitivity)
        case DiscreteGaussian(scale, sensitivity):
            return _discrete_gaussian(scale, sensitivity, largest)
        case Laplace(scale):
            return _laplace(1.0 / scale)
        case Gaussian(sigma):
            return _gaussian(sigma, largest)
    pure = pure_epsilon(base, adjacency)
    return None if pure is None else _coin(pure)


def _coin(epsilon: float) -> Law:
    """Return the pair that post-processes to every epsilon-DP pair (Kairouz et al. 2015, Theorem 3.2)."""
    light = -epsilon - math.log1p(math.exp(-epsilon))
    return Law(np.array([epsilon, -epsilon]), np.array([light, light + epsilon]))


def _discrete_laplace(scale: float, sensitivity: int) -> Law:
    """Return the pair Q(k) prop. to e^{-|k|/s} and P, the same around D; k <= 0 and k >= D are merged."""
    rest = -math.log1p(math.exp(-1.0 / scale))  # Q(k <= 0) = 1 / (1 + r)
    k = np.arange(sensitivity + 1.0)
    masses = rest + math.log(-math.expm1(-1.0 / scale)) - k / scale
    masses[0], masses[-1] = rest, rest - sensitivity / scale
    return Law((2.0 * k - sensitivity) / scale, masses)


def _discrete_gaussian(scale: float, sensitivity: int, largest: float) -> Law | None:
    """Return Q(k) prop. to e^{-k^2/(2 s^2)} and P, the same around D; integrands peak in [0, largest * D]."""
    low, high = math.ceil(_DEVIATIONS * scale) + 1, math.ceil(largest * sensitivity + _DEVIATIONS * scale) + 1
    if low + high > _MOST_OUTCOMES:
        return None
    k = np.arange(-float(low), high + 1.0)
    weights = -((k / scale) ** 2) / 2.0
    total = float(np.logaddexp.reduce(weights))
    return Law((2.0 * k - sensitivity) * sensitivity / (2.0 * scale * scale), weights - total)


def _laplace(top: float) -> Law:
    """Return y with atoms at both ends of [-1/b, 1/b] and Q-density e^{-(1/b + y)/2} / 4 in between.

    In the cell [y, y + h], Q has mass w = e^{-(1/b + y)/2} (1 - e^{-h/2}) / 2 and P has mass e^{y + h/2} w.
    """
    edges = np.linspace(-top, top, _CELLS + 1)
    half = top / _CELLS  # h/2
    cells = -(top + edges[:-1]) / 2.0 + math.log(-math.expm1(-half) / 2.0)
    right = cells - math.log1p(math.exp(half))
    atoms = np.array([math.log(0.5), math.log(0.5) - top])
    ratios = np.concatenate([[-top, top], edges[:-1], edges[1:]])
    return Law(ratios, np.concatenate([atoms, right + half, right]))


def _gaussian(sigma: float, largest: float) -> Law:
    """Return N(0, sigma^2) and N(1, sigma^2) on outcomes with ratio at least 1; no others are used."""
    x = np.linspace(0.5, largest + _DEVIATIONS * sigma, _CELLS + 1)
    y = (x - 0.5) / (sigma * sigma)
    q, p = _log_cells(x / sigma), _log_cells((x - 1.0) / sigma)
    right = np.clip(np.expm1(p - q - y[:-1]) / np.expm1(y[1] - y[0]), 1e-9, 1.0 - 1e-9)
    ratios = np.concatenate([y[:-1], y[1:]])
    return Law(ratios, np.concatenate([q + np.log1p(-right), q + np.log(right)]))


def _log_cells(z: Array) -> Array:
    """Compute the log of the standard normal mass between neighbours of ``z``."""
    above = log_ndtr(-z)
    return np.asarray(above[:-1] + np.log(-np.expm1(above[1:] - above[:-1])))


def log_moments_of_law(law: Law, rate: float, orders: Array, *, exchanged: bool = False) -> Array:
    """Compute log E_Q m^alpha, rounded up, at every order (shape (S,)), with m = 1 - q + q e^y.

    As E m = 1, it is log(1 + E g_alpha(m)) with g_s(m) = m^s - 1 - s (m - 1) >= 0.

    ``exchanged`` is for sampling without replacement under an exchange of a record.  Then delta at e^eps >= 1
    is that of ((1-q) Q + q P, Q), in either direction (Balle, Barthe & Gaboardi 2018, 1807.01647, Theorem 9),
    and the divergence, int alpha (alpha-1) t^{alpha-2} delta(log t) dt over t > 0, becomes
    E 1{m > 1} (g_alpha(m) + g_{1-alpha}(m)).
    """
    log_m = log_mixture(law.log_ratios, rate)
    log_masses = law.log_masses
    if exchanged:
        above = law.log_ratios > 0.0
        log_m, log_masses = log_m[above], log_masses[above]
    powers = orders[:, None]
    logs = log_masses + _log_gap(log_m, powers)
    if exchanged:
        logs = np.logaddexp(logs, log_masses + _log_gap(log_m, 1.0 - powers))
    total = np.logaddexp.reduce(np.concatenate([logs, np.full_like(powers, math.log(1e-25))], axis=1), axis=1)
    largest = np.abs(powers[:, 0]) * float(np.abs(log_m).max(initial=0.0)) + float(np.abs(log_masses).max())
    return np.asarray(np.logaddexp(0.0, total + 16.0 * _UNIT * (largest + 10.0)))


def _log_gap(log_m: Array, power: Array) -> Array:
    """Compute log(m^s - 1 - s (m - 1)), s > 1 or s < 0, rounded up; s < 0 requires m >= 1."""
    t = power * log_m
    small_m, small_t = np.minimum(log_m, 1.0), np.minimum(t, 1.0)
    grown, linear = np.expm1(small_t), power * np.expm1(small_m)
    near = np.maximum(grown - linear, 0.0) + 8.0 * _UNIT * (np.abs(grown) + np.abs(linear)) + 1e-300
    up, m = np.maximum(t, 1.0), np.maximum(log_m, 1.0)
    # s > 1: m^s (1 - s m^{1-s} + (s-1) m^{-s});  s < 0: m (-s + (m^s - 1 + s) / m)
    rising = up + np.log1p(
        np.maximum((power - 1.0) * np.exp(-up) - power * np.exp(np.minimum(log_m - up, 0.0)), _UNIT - 1.0)
    )
    falling = m + np.log(np.maximum(-power + (np.expm1(np.minimum(t, 0.0)) + power) * np.exp(-m), 1e-300))
    far = np.where(power > 0.0, rising, falling)
    return np.asarray(np.where(np.where(power > 0.0, t, log_m) <= 1.0, np.log(near), far))
