"""Costs that add up from release to release, so that a ledger can keep a running total.

If a total decides, in view of earlier answers, whether the next release may happen, it must be a sum of costs
that are each fixed before their release (Rogers et al. 2016, 1605.08294).  This file computes three such
costs for any event: a pure epsilon, rho of zero-concentrated privacy, and Renyi divergences at fixed orders.
A delta is split off as a *leak*: for any two neighbours, an (epsilon, delta)-DP mechanism is epsilon-DP with
probability 1 - delta, and arbitrary otherwise (Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 3.2).

Numbers that state a guarantee, such as 0.1 in ``ApproximateDP(0.1)``, count as the decimals that they print
as.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tacit.accounting.closed_form import amplified, is_amplified, pure_epsilon
from tacit.accounting.flatten import Base, Steps, check_scale, flatten, in_units_of, merged
from tacit.accounting.price import Array, decimal
from tacit.accounting.renyi.divergences import largest_order, renyi, summed
from tacit.accounting.renyi.rdp import rho
from tacit.errors import UnsupportedEvent, check_real
from tacit.events import (
    Adjacency,
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    SparseVector,
    ZeroConcentratedDP,
)

_UP = 1.0 + 1e-9  # rounding goes towards more delta
_FEW_LEAKS = 64  # so few deltas are multiplied exactly
_LEAST_NOISE = 1e-4  # relative to the sensitivity: less noise has an epsilon above 1e4, or 1e8 at order 2


def pure_cost(event: Event, adjacency: Adjacency | str) -> tuple[Fraction, Fraction] | None:
    """Compute (epsilon, delta) of ``event`` as sums over its mechanisms.

    The sums are exact for mechanisms with a rational epsilon.  The result is None if a mechanism inside has
    no pure epsilon, like Gaussian noise.

    >>> from tacit.events import Repeat
    >>> pure_cost(Repeat(DiscreteLaplace(scale=10.0), 3), "add-remove")
    (Fraction(3, 10), Fraction(0, 1))
    """
    relation = Adjacency.parse(adjacency)
    steps, leaks = _without_leaks(flatten(event), relation)
    leak = sum((count * chance for chance, count in leaks), Fraction(0))
    parts = [(_exactly_pure(base, relation), count) for base, count in steps]
    if any(epsilon is None for epsilon, _ in parts):
        return None
    return sum((count * epsilon for epsilon, count in parts if epsilon is not None), Fraction(0)), leak


def pure_claim(steps: Steps, adjacency: Adjacency) -> tuple[Fraction, Fraction] | None:
    """Compute the (epsilon, delta) of ``steps`` at the largest finite privacy loss; None if it is unbounded.

    Epsilons add up.  No delta leaks with the product of the chances that each does not (Kairouz, Oh &
    Viswanath 2015, 1311.0776, Theorem 3.3), so this delta is less than that of :func:`pure_cost`.
    """
    pure, leaks = _without_leaks(steps, adjacency)
    total = Fraction(0)
    for base, count in pure:
        epsilon = _exactly_pure(base, adjacency)
        if epsilon is None:
            return None
        total += count * epsilon
    if sum(count for _, count in leaks) <= _FEW_LEAKS:
        no_leak = math.prod(((1 - chance) ** count for chance, count in leaks), start=Fraction(1))
        return total, 1 - no_leak
    log_kept = sum(count * math.log1p(-float(chance)) for chance, count in leaks if chance < 1)
    leaked = -math.expm1(log_kept) * _UP if all(chance < 1 for chance, _ in leaks) else 1.0
    return total, Fraction(min(1.0, leaked))


def zcdp_cost(event: Event, adjacency: Adjacency | str) -> tuple[Fraction, Fraction]:
    """Compute (rho, leak) of ``event``, rounded up: the event is rho-zCDP except with probability ``leak``.

    Raises:
        UnsupportedEvent: if no rho is known, as for sampled Gaussians.

    >>> from tacit.events import Gaussian
    >>> round(float(zcdp_cost(Gaussian(2.0), "add-remove")[0]), 9)
    0.125
    """
    relation = Adjacency.parse(adjacency)
    steps, leaks = _without_leaks(flatten(event), relation)
    leak = sum((count * chance for chance, count in leaks), Fraction(0))
    return sum((count * _rho(base, relation) for base, count in steps), Fraction(0)), leak


def _rho(base: Base, adjacency: Adjacency) -> Fraction:
    """Compute rho of ``base``.  Pure mechanisms have epsilon^2 / 2 (Bun & Steinke 2016, Proposition 1.4)."""
    if isinstance(base, ZeroConcentratedDP):
        return decimal(base.rho)
    cost, pure = rho(base, adjacency), _exactly_pure(base, adjacency)
    exact = None if pure is None else pure * pure / 2
    if not math.isfinite(cost):
        if exact is None:
            raise UnsupportedEvent(f"{base!r} has no finite rho, and protects nothing. Use more noise.")
        return exact
    return Fraction(cost) if exact is None else min(Fraction(cost), exact)  # some are below epsilon^2 / 2


def renyi_cost(event: Event, orders: Sequence[float], adjacency: Adjacency | str) -> tuple[Array, Fraction]:
    """Compute the Renyi divergences of ``event`` at ``orders`` and its leak, both rounded up.

    A divergence is infinite if no finite one is known.

    Args:
        orders: orders > 1.  The divergences have the same shape.

    Raises:
        UnsupportedEvent: if a mechanism inside has no proven Renyi divergence, or its noise is out of range.

    **Guarantee**

    * For neighbours D, D' and every order, except with probability ``leak``, the Renyi divergence of the
      outputs is at most the result, in both directions.  It adds up over adaptively chosen releases.

    >>> divergences, leak = renyi_cost(ApproximateDP(1.0, 1e-6), (8.0,), "add-remove")
    >>> divergences.round(6).tolist(), float(leak)
    ([0.955248], 1e-06)
    """
    relation = Adjacency.parse(adjacency)
    at = np.array([check_real("order", order, low=1.0, open_low=True) for order in orders])
    steps, leaks = _without_leaks(flatten(event), relation)
    leak = sum((count * chance for chance, count in leaks), Fraction(0))
    for base, _ in steps:
        if not _reveals(base, relation):
            check_scale(base, "rdp")
            renyi(base, np.array([2.0]), relation)  # raises for mechanisms without a divergence
    most = min((largest_order(base, relation) for base, _ in steps), default=1e9)
    divergences = np.full(at.shape, np.inf)
    near = at - 1.0 <= most
    if near.any() and not any(_reveals(base, relation) for base, _ in steps):
        divergences[near] = summed(steps, at[near], relation)
    if (
        np.isnan(divergences).any() or (divergences < 0.0).any()
    ):  # pragma: no cover - a defect, never let through
        raise ArithmeticError(f"a Renyi divergence of {event!r} came out as {divergences}; please report it.")
    return divergences, leak


def _reveals(base: Base, adjacency: Adjacency) -> bool:
    """Return whether the noise is so small that it gives no privacy and floats overflow."""
    match base:
        case Gaussian(sigma) | PoissonSampled(_, Gaussian(sigma)) | GaussianMixture(sigma):
            return sigma < _LEAST_NOISE
        case DiscreteGaussian(scale, sensitivity):
            return scale < _LEAST_NOISE * sensitivity
    pure = pure_epsilon(base, adjacency)
    return pure is not None and pure > 1.0 / _LEAST_NOISE


def _without_leaks(steps: Steps, adjacency: Adjacency) -> tuple[Steps, list[tuple[Fraction, int]]]:
    """Return ``steps`` without deltas, in units of ``adjacency``, and each delta with its count."""
    split = [(*_split(base, adjacency), count) for base, count in in_units_of(adjacency, steps)]
    leaks = [(chance, count) for _, chance, count in split if chance > 0]
    return merged((part, count) for part, _, count in split), leaks


def _split(base: Base, adjacency: Adjacency) -> tuple[Base, Fraction]:
    match base:
        case ApproximateDP(epsilon, delta) if delta > 0.0:
            return ApproximateDP(epsilon), decimal(delta)
        case PoissonSampled(rate, ApproximateDP(epsilon, delta)) if delta > 0.0 and is_amplified(
            base.event, adjacency
        ):  # Balle, Barthe & Gaboardi 2018 (1807.01647), Theorem 8
            return ApproximateDP(amplified(epsilon, rate)), Fraction(rate) * decimal(delta)
    return base, Fraction(0)


def _exactly_pure(base: Base, adjacency: Adjacency) -> Fraction | None:
    match base:
        case Laplace(scale):
            return 1 / Fraction(scale)
        case DiscreteLaplace(scale, sensitivity):
            return sensitivity / Fraction(scale)
        case ApproximateDP(epsilon, 0.0) | ExponentialMechanism(epsilon):
            return decimal(epsilon)
        case SparseVector(threshold, queries):
            return decimal(threshold) + decimal(queries)
    bound = pure_epsilon(base, adjacency)
    if bound is None:
        return None
    if not np.isfinite(bound):
        raise UnsupportedEvent(f"{base!r} has no finite epsilon, and protects nothing. Use more noise.")
    return Fraction(bound)
