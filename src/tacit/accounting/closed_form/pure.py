"""The pure epsilon of one mechanism, and how sampling amplifies an epsilon."""

from __future__ import annotations

import math

from tacit.accounting.flatten import Base, in_units_of
from tacit.events import (
    Adjacency,
    ApproximateDP,
    DiscreteLaplace,
    ExponentialMechanism,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SparseVector,
    WithoutReplacement,
    ZeroConcentratedDP,
)

_UP = 1.0 + 1e-12


def pure_epsilon(base: Base, adjacency: Adjacency) -> float | None:
    """Return the epsilon at delta = 0 of ``base``, in units of ``adjacency``, rounded up; None if unknown.

    >>> from tacit.events import Gaussian
    >>> pure_epsilon(Laplace(2.0), Adjacency.ADD_REMOVE), pure_epsilon(Gaussian(1.0), Adjacency.ADD_REMOVE)
    (0.5000000000005, None)
    """
    match base:
        case Laplace(scale):
            return 1.0 / scale * _UP
        case DiscreteLaplace(scale, sensitivity):
            return sensitivity / scale * _UP
        case RandomizedResponse(noise, categories):  # (1 - p + p/k) / (p/k)
            return math.log1p((1.0 - noise) / noise * categories) * _UP if noise > 0.0 else None
        case ApproximateDP(epsilon, 0.0) | ExponentialMechanism(epsilon):
            return epsilon
        case SparseVector(threshold, queries):  # Lyu, Su & Li 2017 (1603.01699), Theorem 4
            return (threshold + queries) * _UP
        case GroupPrivacy(inner, size):
            pure = pure_epsilon(inner, adjacency)
            return None if pure is None else size * pure * _UP
        case PoissonSampled(rate, inner) if is_amplified(inner, adjacency):
            pure = pure_epsilon(inner, adjacency)
            return None if pure is None else amplified(pure, rate)
        case WithoutReplacement(records, batch, inner):
            unit = exchanged(inner, adjacency)
            pure = None if unit is None else pure_epsilon(unit, Adjacency.REPLACE_ONE)
            return None if pure is None else amplified(pure, batch / records)
    return None


def is_amplified(inner: Base, adjacency: Adjacency) -> bool:
    """Return whether a theorem proves that Poisson sampling amplifies ``inner``.

    The theorems are about a record that may be absent, so they do not cover replace-one.  They do not cover
    randomised response either: it shows who does not report.

    >>> is_amplified(Laplace(1.0), Adjacency.ADD_REMOVE), is_amplified(Laplace(1.0), Adjacency.REPLACE_ONE)
    (True, False)
    """
    return adjacency is not Adjacency.REPLACE_ONE and not isinstance(inner, RandomizedResponse)


def exchanged(inner: Base, adjacency: Adjacency) -> Base | None:
    """Return ``inner`` for an exchange of one record for another, as in batches of fixed size.

    Blanking a record is also an exchange.  The result is None for randomised response, whose reports show
    their senders, and for a guarantee that was not stated under replace-one.

    >>> exchanged(Laplace(4.0), Adjacency.ZERO_OUT)
    Laplace(noise_multiplier=2.0)
    """
    abstract = isinstance(inner, ApproximateDP | ExponentialMechanism | ZeroConcentratedDP)
    if isinstance(inner, RandomizedResponse) or (abstract and adjacency is not Adjacency.REPLACE_ONE):
        return None
    ((unit, _),) = in_units_of(Adjacency.REPLACE_ONE, ((inner, 1),))
    return unit


def amplified(epsilon: float, rate: float, up: float = _UP) -> float:
    """Return log(1 + q (e^eps - 1)), rounded up: at rate q, (eps, delta) becomes (this epsilon, q delta).

    This holds for Poisson sampling under add-remove, and for sampling without replacement under replace-one
    (Balle, Barthe & Gaboardi 2018, 1807.01647, Theorems 8 and 9).

    >>> round(amplified(1.0, 0.01), 6)
    0.017037
    """
    grown = epsilon + math.log(rate) if epsilon > 700.0 else math.log1p(rate * math.expm1(epsilon))
    return grown * up
