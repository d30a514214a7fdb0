"""The privacy loss of each base mechanism, from its dominating pair.

``pair`` has the pairs of noise mechanisms and the effect of sampling on them, ``pairs_mixture`` those of
Gaussians of random sensitivity.  A mechanism without a proven pair is refused by name.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tacit.accounting.closed_form.pure import exchanged
from tacit.accounting.flatten import Base
from tacit.accounting.pld.pair import (
    Loss,
    Pair,
    bounded_range_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    gaussian_pair,
    laplace_pair,
    poisson_sampled,
    private_pair,
    response_pair,
    sampled_without_replacement,
    unsampled,
)
from tacit.accounting.pld.pairs_bins import LEAST_BIN_NOISE, balls_in_bins, coarse_tail
from tacit.accounting.pld.pairs_mixture import (
    gaussian_mixture,
    gaussian_replaced,
    laplace_replaced,
    truncated,
)
from tacit.accounting.pld.pairs_selection import KnownCurve
from tacit.accounting.pld.pairs_shuffle import shuffled_reports
from tacit.accounting.price import Direction
from tacit.accounting.scales import LEAST_NOISE, NoiseOutOfRange
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    ShuffledReports,
    SparseVector,
    TruncatedPoissonSampled,
    WithoutReplacement,
)

_LARGEST_SHIFT = 1 << 20  # the most outcomes of discrete noise


def loss_of(base: Base, direction: Direction, tail: float) -> Loss:
    """Return the loss of ``base``.  Mechanisms without sampling are already in units of the adjacency.

    Args:
        tail: the P-mass that may be cut off on either side, if outcomes are unbounded.

    Raises:
        UnsupportedEvent: if there is no proven dominating pair.
    """
    if isinstance(base, BallsInBins):
        return _loss_of_bins(base, direction, coarse_tail(tail))
    if isinstance(base, KnownCurve):
        return base.loss
    return _loss_of(base, direction, tail)


def check_loss(base: Base, direction: Direction, tail: float) -> None:
    """Refuse what :func:`loss_of` refuses, without the slow computation for balls in bins."""
    match base:
        case BallsInBins(_, Gaussian(sigma)):
            _check_bins(base, sigma, direction)
        case _:
            loss_of(base, direction, tail)


@lru_cache(maxsize=12)  # megabytes each
def _loss_of_bins(base: BallsInBins, direction: Direction, tail: float) -> Loss:
    match base:
        case BallsInBins(bins, Gaussian(sigma)):
            _check_bins(base, sigma, direction)
            return balls_in_bins(bins, sigma, remove=direction == "remove", tail=tail)
    raise _no_pair(base)


@lru_cache(maxsize=256)
def _loss_of(base: Base, direction: Direction, tail: float) -> Loss:
    match base:
        case PoissonSampled(rate, inner):
            _check_noise(base, inner)
            return _poisson(base, rate, inner, direction, tail)
        case TruncatedPoissonSampled(rate, records, largest, Gaussian(sigma) as inner):
            _check_noise(base, inner)

            def step(q: float, noise: float) -> Loss:
                return _poisson(base, q, Gaussian(noise), direction, tail)

            return truncated(rate, records, largest, sigma, step, tail)
        case WithoutReplacement(records, batch_size, inner):
            # blanking a record is one way of replacing it, so the pair covers zero-out too
            unit = exchanged(inner, Adjacency.REPLACE_ONE if direction == "replace" else Adjacency.ZERO_OUT)
            pair = None if unit is None else pair_of(unit, tail)
            if pair is not None:
                return sampled_without_replacement(pair, batch_size / records)
        case ShuffledReports(records, epsilon, categories):
            return shuffled_reports(records, epsilon, categories)
        case GaussianMixture(sigma, sensitivities, probabilities):
            return gaussian_mixture(sigma, sensitivities, probabilities, direction, tail)
        case _:
            pair = pair_of(base, tail)
            if pair is not None:
                return unsampled(pair)
    raise _no_pair(base)


def _no_pair(base: Base) -> UnsupportedEvent:
    return UnsupportedEvent(
        f"method 'pld' has no proven dominating pair for {base!r}. Use method 'rdp', or state its proven "
        "guarantee as ApproximateDP."
    )


def _poisson(base: Base, rate: float, inner: Event, direction: Direction, tail: float) -> Loss:
    """Return the loss of ``inner`` on a Poisson sample at ``rate``."""
    match inner:
        case Gaussian(sigma) if direction == "replace":
            return gaussian_replaced(rate, sigma, tail)
        case Laplace(scale) if direction == "replace":
            return laplace_replaced(rate, scale)
        case RandomizedResponse():
            pair = None  # who does not report is visible, so the sample is not secret
        case _:
            pair = pair_of(inner, tail)
    if pair is None or direction == "replace":
        raise UnsupportedEvent(
            f"method 'pld' has no proven dominating pair for {base!r} in direction {direction!r}. Adjacency "
            "'replace-one' has the direction 'replace'. Sample only Gaussian or Laplace noise, or account "
            "under 'add-remove' or 'zero-out', or do not sample."
        )
    return poisson_sampled(pair, rate, direction)


def pair_of(base: Event, tail: float) -> Pair | None:
    """Return the symmetric pair of a mechanism without sampling; None if no pair is known."""
    match base:
        case Gaussian(sigma):
            _check_noise(base, base)
            return gaussian_pair(sigma, tail)
        case Laplace(scale):
            _check_noise(base, base)
            return laplace_pair(scale)
        case DiscreteGaussian(scale, shift) | DiscreteLaplace(scale, shift):
            _check_outcomes(base, scale, shift, tail)
            if isinstance(base, DiscreteGaussian):
                return discrete_gaussian_pair(scale, shift, tail)
            return discrete_laplace_pair(scale, shift)
        case RandomizedResponse(noise, categories):
            return response_pair(noise, categories)
        case ApproximateDP(epsilon, delta):
            return private_pair(epsilon, delta)
        case SparseVector(threshold, queries):  # Lyu, Su & Li 2017 (1603.01699), Theorem 4
            return private_pair((threshold + queries) * (1.0 + 1e-15), 0.0)
        case ExponentialMechanism(epsilon):
            return bounded_range_pair(epsilon)
    return None


def _check_noise(base: Base, inner: Event) -> None:
    if isinstance(inner, Gaussian | Laplace) and inner.noise_multiplier < LEAST_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' prices noise multipliers from {LEAST_NOISE:g} upwards in a mixed or sampled "
            f"composition; got {base!r}, which protects nothing. Use more noise.",
            too_small=True,
        )


def _check_bins(base: Base, sigma: float, direction: Direction) -> None:
    if direction == "replace":
        raise UnsupportedEvent(
            f"method 'pld' has no proven dominating pair for {base!r} under adjacency 'replace-one'. Account "
            "under 'add-remove' or 'zero-out', or use Poisson sampling."
        )
    if sigma < LEAST_BIN_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' prices balls in bins from noise multiplier {LEAST_BIN_NOISE:g} upwards (with less "
            f"noise, the likelihood ratio has too long a tail); got {base!r}. Use method 'best' or 'rdp', or "
            "more noise.",
            too_small=True,
        )


def _check_outcomes(base: Event, scale: float, shift: int, tail: float) -> None:
    reach = scale * math.sqrt(-2.0 * math.log(tail)) if isinstance(base, DiscreteGaussian) else 0.0
    if shift + 2.0 * reach > _LARGEST_SHIFT:
        problem = (
            f"method 'pld' counts at most {_LARGEST_SHIFT} outcomes of discrete noise; {base!r} has more. "
            "Use method 'rdp', or round to a coarser unit."
        )
        if shift > _LARGEST_SHIFT:
            raise UnsupportedEvent(problem)
        raise NoiseOutOfRange(problem, too_small=False)
    if shift / scale > 10.0 / LEAST_NOISE:
        raise NoiseOutOfRange(
            f"method 'pld' prices noise from a hundredth of the sensitivity upwards; got {base!r}, which "
            "protects nothing. Use more noise.",
            too_small=True,
        )
