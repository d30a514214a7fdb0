"""Events as multisets of base mechanisms, the same for every accountant."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    Compose,
    CyclicPoissonSampled,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    Shuffled,
    ShuffledReports,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)
from tacit.events.base import EVENTS

# The sensitivity to one record of a release with noise that is correlated over steps.
#
# The release is C g + Z with independent noise Z, so it is one Gaussian.  Its sensitivity is the largest norm
# of a change of C g, in units of Delta.  A record may take part at most k times, at steps at least b apart.
# Each time it adds any vector of norm at most 1.

_UP = 1.0 + 1e-12

_ROUNDING = 2.0**-53


def column_norm(event: MatrixFactorization) -> float:
    """Compute the largest norm of a column of C, rounded up."""
    # It is that of the first column, as the others are cut off at the last step.
    return math.hypot(*event.coefficients) * _UP


def matrix_sensitivity(event: MatrixFactorization) -> float:
    """Bound the norm of the change of C g, rounded up."""
    # * The bound is never below the largest norm over all patterns of participation and all vectors.
    # * It is exact for one participation, for at most b coefficients, and for nonnegative nonincreasing
    #   coefficients.
    #
    # With X = C^T C, X_ij = sum_{s < T-j} c_{s+j-i} c_s for i <= j.  For nonnegative coefficients the
    # change is largest if the record adds the same vector each time.  It is then the root of the sum of X
    # over all pairs of participations.  If the coefficients do not increase, X_ij only falls with j and
    # with j - i, so the worst steps are 0, b, 2b, ...  (Kalinin & Lampert 2024, 2405.13763).  Otherwise the
    # bound uses the least nonincreasing sequence above the absolute values of the coefficients.
    column = np.abs(np.array(event.coefficients, dtype=np.float64))
    times = min(event.participations, -(-event.steps // event.separation))
    if times == 1:
        return column_norm(event)
    if column.size > event.separation:
        column = np.maximum.accumulate(column[::-1])[::-1]
    whole = np.concatenate([column, np.zeros(event.steps - column.size)])
    change = sum_of_shifts(whole, times, event.separation)
    return float(np.linalg.norm(change)) * (_UP + (times + event.steps) * _ROUNDING)


def sum_of_shifts(column: NDArray[np.float64], times: int, separation: int) -> NDArray[np.float64]:
    """Apply C to a vector with ``times`` ones, at the steps 0, b, 2b, ...; ``column`` is C's first column."""
    steps = column.size
    if times * separation >= steps:  # ones in all steps 0, b, 2b, ...: cumulative sums
        rows = -(-steps // separation)
        table = np.zeros((rows, separation))
        table.ravel()[:steps] = column
        return table.cumsum(axis=0).ravel()[:steps]
    change: NDArray[np.float64] = np.zeros(steps)
    for start in range(0, times * separation, separation):
        change[start:] += column[: steps - start]
    return change


def tree_sensitivity(event: TreeAggregation) -> float:
    """Bound the norm of the change of all nodes of the tree, rounded up."""
    # * The bound is never below the largest norm over all patterns of participation and all vectors.
    # * It is exact for one participation, where it is the root of the number of levels.
    #
    # A node on level l covers 2^l steps, so it counts a record at most min(k, ceil(2^l / b)) times.  The
    # counts of a level's nodes add up to at most k, so their squares add up to at most k times that
    # maximum.
    times = min(event.participations, -(-event.leaves // event.separation))
    levels = range(event.leaves.bit_length())
    squares = sum(times * min(times, -(-(2**level) // event.separation)) for level in levels)
    return math.sqrt(squares) * _UP


# Events as multisets of base mechanisms.
#
# This file handles repetition and composition once for every accountant.  An event repeated n times and a
# list of n such events become the same multiset, so every accountant prices them alike.  The file also
# applies identities that hold for every accountant: correlated noise is one Gaussian, and a group of k
# records has k times the sensitivity.

Base: TypeAlias = Event
Sampled: TypeAlias = (
    PoissonSampled | TruncatedPoissonSampled | WithoutReplacement | WithReplacement | BallsInBins
)
Steps: TypeAlias = tuple[tuple[Base, int], ...]

_OF_PUBLIC_NUMBER = (Shuffled, ShuffledReports, WithoutReplacement, WithReplacement, RandomizedResponse)
_NOTHING = ApproximateDP(0.0, 0.0)
_LARGEST_GROUP = 1000  # for sampled records: a group of k records becomes a mixture of k + 1 Gaussians


def flatten(event: Event) -> Steps:
    """Return the base mechanisms in ``event`` with their counts, in order of first appearance.

    A base mechanism is one of :mod:`tacit.events.mechanisms`; a sampler of one that can leave records out;
    ``Partitioned`` or ``Shuffled`` of a base mechanism; ``PrivateSelection``; or ``GroupPrivacy`` of a base
    mechanism that has no simpler form for groups.  The result contains no ``Repeat``, ``Compose``, correlated
    noise or cyclic sampling.

    >>> flatten(Compose((Gaussian(1.0), Repeat(Gaussian(1.0), 2), PoissonSampled(1.0, Gaussian(3.0)))))
    ((Gaussian(noise_multiplier=1.0), 3), (Gaussian(noise_multiplier=3.0), 1))
    >>> flatten(GroupPrivacy(Repeat(Gaussian(6.0), 5), size=2))
    ((Gaussian(noise_multiplier=3.0), 5),)
    """
    # an output that depends on no record costs nothing
    return merged(
        (base, count)
        for base, count in _parts(event)
        if base != _NOTHING and not (isinstance(base, RandomizedResponse) and base.noise == 1.0)
    )


def merged(parts: Iterable[tuple[Base, int]], times: int = 1) -> Steps:
    """Add up the counts of equal mechanisms in ``parts``, and multiply them by ``times``."""
    counts: dict[Base, int] = {}
    for base, count in parts:
        counts[base] = counts.get(base, 0) + times * count
    return tuple(counts.items())


def _parts(event: Event) -> Steps:
    match event:
        case Repeat(inner, count):
            return merged(flatten(inner), count)
        case Compose(events):
            return tuple(part for inner in events for part in flatten(inner))
        case _ if isinstance(event, Sampled):
            return _sampled(event)
        case TreeAggregation(noise):
            return ((Gaussian(noise / tree_sensitivity(event)), 1),)
        case MatrixFactorization(noise):
            return ((Gaussian(noise / matrix_sensitivity(event)), 1),)
        case CyclicPoissonSampled(rate, cycle, MatrixFactorization(noise, _, steps) as inner):
            # Choquette-Choo et al. 2023 (2306.08153), Theorem 4: the columns of one part are orthogonal
            step = PoissonSampled(rate, Gaussian(noise / column_norm(inner)))
            return flatten(Repeat(step, -(-steps // cycle)))
        case Partitioned(batches, inner) | Shuffled(batches, inner):
            return tuple((type(event)(batches, base), count) for base, count in flatten(inner))
        case GroupPrivacy(inner, size):
            return tuple(part for base, count in flatten(inner) for part in merged(_group(base, size), count))
        case PrivateSelection(inner):
            return ((event, 1),) if flatten(inner) else ()
    if EVENTS.get(type(event).__name__) is not type(event):
        raise UnsupportedEvent(
            f"accounting does not support {event!r}. Describe the mechanism with the events "
            f"{', '.join(EVENTS)}; or do not run it on private records."
        )
    return ((event, 1),)


def _sampled(event: Sampled) -> Steps:
    inner = flatten(event.event)
    if isinstance(event, PoissonSampled | TruncatedPoissonSampled) and event.sampling_rate == 0.0:
        return ()
    passes = event.passes if isinstance(event, BallsInBins) else 1
    if _takes_all(event):
        return merged(inner, passes)
    match inner:
        case ():
            return ()
        case ((base, 1),):
            return ((_simplified(event, base), 1),)
    raise UnsupportedEvent(
        f"{event!r} computes several results from one random sample, and no bound is proven for that. Draw a "
        "new sample for each result: Repeat(PoissonSampled(rate, mechanism), count), or Compose of "
        "PoissonSampled events."
    )


def _takes_all(event: Sampled) -> bool:
    """Return whether every record is certain to take part exactly once."""
    match event:
        case PoissonSampled(rate):
            return rate == 1.0
        case TruncatedPoissonSampled(rate, records, largest):
            return rate == 1.0 and largest >= records
        case WithoutReplacement(records, batch_size):
            return batch_size == records
        case BallsInBins(bins):
            return bins == 1
        case WithReplacement():
            return False


def _simplified(event: Sampled, base: Base) -> Base:
    match event, base:
        case PoissonSampled(rate), PoissonSampled(inner_rate, inner):  # a sample of a sample is a sample
            return PoissonSampled(rate * inner_rate, inner)
        case PoissonSampled(rate), GaussianMixture(noise, shifts, shares):
            fewer = tuple(rate * share for share in shares)
            return GaussianMixture(noise, (0.0, *shifts), (1.0 - rate, *fewer))
        case TruncatedPoissonSampled(rate, records, largest), _ if largest >= records:
            return PoissonSampled(rate, base)
        case BallsInBins(bins, _, passes), Gaussian(noise):  # all passes see the same bins: one Gaussian
            return BallsInBins(bins, Gaussian(noise / math.sqrt(passes)))
    return replace(event, event=base)


def _group(base: Base, size: int) -> Steps:
    """Replace ``base`` for a group of ``size`` records by events that equal or dominate it."""
    # Ratios of probabilities multiply along a chain of neighbours.  Sources: Vadhan 2017, Lemma 2.2, for
    # (epsilon, delta); Bun & Steinke 2016 (1605.02065), Proposition 27, for zCDP; Ganesh 2024 (2401.10294),
    # Theorem 3.1, for samples.
    match base:
        case _ if size == 1:
            return ((base, 1),)
        case PoissonSampled(rate, Gaussian(noise)) if size <= _LARGEST_GROUP:
            return ((GaussianMixture(noise, tuple(map(float, range(size + 1))), _binomial(size, rate)), 1),)
        case DiscreteGaussian(scale, sensitivity) | DiscreteLaplace(scale, sensitivity):
            return ((type(base)(scale, size * sensitivity), 1),)
        case PrivateSelection(inner):
            return ((replace(base, event=GroupPrivacy(inner, size)), 1),)
        case RandomizedResponse():
            return ((base, size),)  # each member of the group reports separately
        case Partitioned(batches, inner) | Shuffled(batches, inner):
            together = _at_sensitivity(size, inner)  # worst case: how a group is spread over batches
            return ((type(base)(batches, together) if together else GroupPrivacy(base, size), 1),)
    return ((_at_sensitivity(size, base) or GroupPrivacy(base, size), 1),)


def _at_sensitivity(size: int, base: Base) -> Event | None:
    """Return ``base`` at ``size`` times the sensitivity, if that also dominates ``size`` copies of it."""
    # It does for Laplace noise: E min(P1 P2, e^{s+t} Q1 Q2) >= E min(P1, e^s Q1) E min(P2, e^t Q2), and the
    # overlap at shift s is e^{-(s/b - eps)/2}.  So overlaps multiply as shifts add up.
    match base:
        case Gaussian(noise) | Laplace(noise):
            return type(base)(noise / size)
        case ApproximateDP(epsilon, delta):
            # delta (e^{k eps} - 1) / (e^eps - 1), rounded up
            if delta == 0.0 or size * epsilon > 700.0:
                return ApproximateDP(size * epsilon, 0.0 if delta == 0.0 else 1.0)
            factor = size if epsilon == 0.0 else math.expm1(size * epsilon) / math.expm1(epsilon)
            return ApproximateDP(size * epsilon, min(1.0, delta * max(factor, size) * (1.0 + 1e-12)))
        case ExponentialMechanism(epsilon):
            return ExponentialMechanism(size * epsilon)
        case ZeroConcentratedDP(rho):
            return ZeroConcentratedDP(size * size * rho)
        case SparseVector(threshold, queries, hits, monotonic):
            return SparseVector(size * threshold, size * queries, hits, monotonic)
    return None


def _binomial(size: int, rate: float) -> tuple[float, ...]:
    """Compute P(Binomial(size, rate) = k) for k = 0..size, rounded up for k > 0 and down for k = 0."""
    below = np.arange(size)
    ratios = (size - below) / (below + 1.0) * (rate / (1.0 - rate))  # P(k+1) / P(k)
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    shares = np.exp(logs - logs.max())
    shares = shares / shares.sum() * (1.0 + 1e-15 * size * size)
    shares[0] = max(0.0, 1.0 - float(shares[1:].sum()))
    return tuple((shares / shares.sum()).tolist())


def in_units_of(adjacency: Adjacency, steps: Steps) -> Steps:
    """Divide the noise of mechanisms without sampling by the sensitivity that ``adjacency`` gives them."""
    # Neighbouring sums differ by at most Delta under add-remove and zero-out, by 2 Delta under replace-one.
    # Sampled mechanisms do not change, as their replace-one pair is not a rescaled add-remove pair.
    # ``Partitioned`` and ``Shuffled`` become ``event`` performed once, as a record is in one batch per epoch.
    return merged((_unit(base, adjacency), count) for base, count in steps)


def _unit(base: Base, adjacency: Adjacency) -> Base:
    if adjacency is Adjacency.ADD_REMOVE:
        _refuse_public_number(base)
    match base:
        case Partitioned(_, inner) | Shuffled(_, inner):
            return _unit(inner, adjacency)
        case Gaussian(noise) | Laplace(noise) if adjacency is Adjacency.REPLACE_ONE:
            return type(base)(noise / 2.0)
        case DiscreteGaussian(scale, sensitivity) | DiscreteLaplace(scale, sensitivity) if (
            adjacency is Adjacency.REPLACE_ONE
        ):
            return type(base)(scale, 2 * sensitivity)
        case SparseVector(threshold, queries, hits, monotonic) if adjacency is Adjacency.REPLACE_ONE:
            return SparseVector(2.0 * threshold, 2.0 * queries, hits, monotonic)
    return base


def _refuse_public_number(base: Base) -> None:
    """Refuse, under add-remove, a mechanism that needs a public number of records."""
    event: Event | None = base
    while event is not None:
        if isinstance(event, _OF_PUBLIC_NUMBER):
            raise UnsupportedEvent(
                f"{event!r} has no guarantee under adjacency 'add-remove': the mechanism depends on the "
                "number of records, which one added record changes. Use Poisson sampling; or, if the number "
                "of records is public, account under 'replace-one' or 'zero-out'."
            )
        event = None if isinstance(event, PrivateSelection) else getattr(event, "event", None)


def refuse_sampled_replacement(steps: Steps, adjacency: Adjacency, method: str) -> None:
    """Refuse sampled mechanisms under replace-one, for accountants without a proven bound for them."""
    for outer, _ in steps:
        base = outer.event if isinstance(outer, Partitioned | Shuffled) else outer
        if adjacency is Adjacency.REPLACE_ONE and isinstance(base, PoissonSampled | GaussianMixture):
            raise UnsupportedEvent(
                f"method {method!r} has no proven bound for {base!r} under adjacency 'replace-one'. Use "
                "method 'pld' if it samples Gaussian noise, or account under 'add-remove' or 'zero-out'."
            )


def total_mu(steps: Steps) -> float:
    """Compute mu of the composition of all unsampled Gaussians in ``steps``: mu^2 = sum of 1/sigma^2."""
    # See Dong, Roth & Su 2019 (1905.02383), Corollary 3.3.
    return math.hypot(
        *(math.sqrt(count) / base.noise_multiplier for base, count in steps if isinstance(base, Gaussian))
    )


# The range of noise that the accountants support.
#
# All accountants refuse the same noise on a sample, before they compute anything.  Very small noise protects
# nothing, and its cost takes very long to compute.  Very large noise has losses too small for floats.  Noise
# without sampling has closed forms, so it has a cost at every scale, though possibly an infinite one.

LEAST_NOISE, MOST_NOISE = 0.1, 1e6
"""The range of noise multipliers on a sample.  Below it, epsilon is in the hundreds and floats overflow."""

_LEAST_OF_MIXTURE = 0.01  # relative to the largest sensitivity of a mixture
_MOST_BIN_NOISE = 100.0  # beyond it, the accountant has no grid for balls in bins


class NoiseOutOfRange(UnsupportedEvent):
    """Raised for noise that no accountant supports: ``too_small``, or else too large."""

    def __init__(self, message: str, *, too_small: bool) -> None:
        super().__init__(message)
        self.too_small = too_small


def check_noise(steps: Steps, method: str) -> None:
    """Refuse noise that is too small or too large to be accounted for."""
    for base, _ in steps:
        check_scale(base, method)


def check_scale(base: Base, method: str) -> None:
    match base:
        case GaussianMixture(noise, sensitivities):
            _check(base, noise, LEAST_NOISE, MOST_NOISE, method, "noise multipliers on a sample")
            largest = max(sensitivities)
            if largest > 0.0:
                name = "noise per largest sensitivity of a mixture"
                _check(base, noise / largest, _LEAST_OF_MIXTURE, float("inf"), method, name)
        case _ if isinstance(base, Sampled):
            most = _MOST_BIN_NOISE if isinstance(base, BallsInBins) else MOST_NOISE
            match base.event:
                case Gaussian(noise) | Laplace(noise):
                    _check(base, noise, LEAST_NOISE, most, method, "noise multipliers on a sample")
                case DiscreteGaussian(scale, sensitivity) | DiscreteLaplace(scale, sensitivity):
                    name = "noise per sensitivity on a sample"
                    _check(base, scale / sensitivity, LEAST_NOISE, most, method, name)
        case Partitioned(_, inner) | Shuffled(_, inner) | GroupPrivacy(inner):
            check_scale(inner, method)
        case PrivateSelection(inner):
            steps = flatten(inner)
            check_noise(steps, method)
            for single, _ in steps:
                if isinstance(single, Gaussian | Laplace):
                    name = "noise multipliers of what is selected"
                    _check(base, single.noise_multiplier, 0.0, MOST_NOISE, method, name)


def _check(base: Base, noise: float, least: float, most: float, method: str, name: str) -> None:
    if noise < least:
        raise NoiseOutOfRange(
            f"method {method!r} supports {name} from {least:g}; got {noise:g} in {base!r}, which protects "
            "nothing. Use more noise.",
            too_small=True,
        )
    if noise > most:
        raise NoiseOutOfRange(
            f"method {method!r} supports {name} up to {most:g}, because privacy losses beyond underflow; "
            f"got {noise:g} in {base!r}. Use at most {most:g}.",
            too_small=False,
        )
