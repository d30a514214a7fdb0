"""Events that are base mechanisms: noise on a sum, randomised answers, and stated guarantees.

One record contributes a vector (or number) of norm at most Delta to the sum that a mechanism releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InvalidInput, check_real
from tacit.events.base import Event


@dataclass(frozen=True)
class Gaussian(Event):
    """``f(D) + N(0, (noise_multiplier * Delta)^2 I)``, with f a sum of vectors of l2 norm at most Delta.

    >>> Gaussian(noise_multiplier=1.5)
    Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float


@dataclass(frozen=True)
class Laplace(Event):
    """``f(D) + Lap(noise_multiplier * Delta)``, with f a sum of vectors of l1 norm at most Delta.

    >>> from tacit.accounting import account
    >>> round(account(Laplace(2.0), adjacency="add-remove").epsilon(1e-9), 3)
    0.5
    """

    noise_multiplier: float


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """``f(D) + k``, with f a sum of integers of absolute value at most ``sensitivity``.

    k is an integer with probability proportional to exp(-k^2 / (2 scale^2)) (Canonne, Kamath & Steinke
    2020, 2004.00010).  Unlike a noise multiplier, ``scale`` is in the units of f.

    >>> DiscreteGaussian(scale=3.0)
    DiscreteGaussian(scale=3.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """``f(D) + k``, with f a sum of integers of absolute value at most ``sensitivity``.

    k is an integer with probability proportional to ``exp(-|k| / scale)``.  This is the geometric mechanism
    (Ghosh, Roughgarden & Sundararajan 2009).  ``scale`` is in the units of f.

    >>> from tacit.accounting import account
    >>> round(account(DiscreteLaplace(2.0), adjacency="add-remove").epsilon(1e-9), 3)
    0.5
    """

    scale: float
    sensitivity: int = 1


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """Randomised response: each record reports one of ``categories``.

    The report is a uniformly random category (possibly the true one) with probability ``noise``, and the
    true category otherwise (Warner 1965; k-ary: Kairouz et al. 2014).  The number of reports is public.

    >>> from tacit.accounting import account
    >>> round(account(RandomizedResponse(0.5, 2), adjacency="replace-one").epsilon(1e-9), 3)
    1.099
    """

    noise: float
    categories: int


@dataclass(frozen=True)
class ShuffledReports(Event):
    """Shuffled reports of ``records`` people, each from an ``epsilon``-DP local randomiser.

    The shuffler removes the senders, so that only the multiset of reports is seen (Feldman, McMillan & Talwar
    2021, 2012.12803).  With ``categories``, the randomiser is randomised response with that number of
    possible answers and this ``epsilon``, which costs less.  The number of people is public: a person without
    a value randomises an empty answer.

    >>> from tacit.accounting import account
    >>> round(account(ShuffledReports(10_000, 2.0), adjacency="replace-one").epsilon(1e-6), 3)
    0.155
    """

    records: int
    epsilon: float
    categories: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real("epsilon", self.epsilon, low=0.0, high=100.0, open_low=True)


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any mechanism proven (epsilon, delta)-DP, adaptive or not, under the adjacency used in accounting.

    >>> ApproximateDP(epsilon=1.0)  # pure: delta is 0
    ApproximateDP(epsilon=1.0, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0


@dataclass(frozen=True)
class ZeroConcentratedDP(Event):
    """Any mechanism proven rho-zCDP under the adjacency used in accounting.

    For every order a > 1 the Renyi divergence between neighbours is at most rho a (Bun & Steinke 2016,
    1605.02065, Definition 1.1).

    >>> from tacit.accounting import account
    >>> round(account(ZeroConcentratedDP(0.01), adjacency="add-remove", method="rdp").epsilon(1e-5), 3)
    0.546
    """

    rho: float


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """An outcome chosen with probability proportional to exp(epsilon * score / (2 Delta_score)).

    The event stands for any mechanism with ``epsilon``-bounded range: for any two neighbours the log ratio
    of the probabilities of an outcome varies by at most epsilon over the outcomes (Durfee & Rogers 2019,
    1905.04273, Definition 5).  ``epsilon`` is the range under the adjacency used in accounting.
    Report-noisy-max with Gumbel noise is the same mechanism.

    >>> from tacit.accounting import account
    >>> round(account(ExponentialMechanism(0.5), adjacency="add-remove").epsilon(1e-9), 3)
    0.5
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real("epsilon", self.epsilon, low=0.0, open_low=True)


@dataclass(frozen=True)
class SparseVector(Event):
    """The sparse vector technique, which answers each query with "above" or "below" a threshold.

    It stops after ``hits`` answers "above".  The threshold gets the noise Lap(Delta / epsilon_threshold)
    once.  Every query gets fresh noise Lap(2 hits Delta / epsilon_queries), or Lap(hits Delta /
    epsilon_queries) if ``monotonic``: then one record never increases one query's answer and decreases
    another's.  One record changes each query by at most Delta.  No numbers are released (Lyu, Su & Li 2017,
    1603.01699, Algorithm 7).

    >>> SparseVector(epsilon_threshold=0.5, epsilon_queries=0.5, hits=3)
    SparseVector(epsilon_threshold=0.5, epsilon_queries=0.5, hits=3, monotonic=False)
    """

    epsilon_threshold: float
    epsilon_queries: float
    hits: int
    monotonic: bool = False


@dataclass(frozen=True)
class GaussianMixture(Event):
    """``f(D) + N(0, (noise_multiplier * Delta)^2 I)``, with a random sensitivity of f.

    The contribution of a record (or user) to f has norm at most ``sensitivities[i] * Delta`` with probability
    ``probabilities[i]``.  The value of i stays secret.  If the records of a user are sampled independently,
    the probabilities are binomial and the sensitivities 0, 1, 2, ... (Ganesh 2024, 2401.10294).

    >>> GaussianMixture(2.0, sensitivities=(0, 1, 2), probabilities=(0.81, 0.18, 0.01))
    GaussianMixture(noise_multiplier=2.0, sensitivities=(0.0, 1.0, 2.0), probabilities=(0.81, 0.18, 0.01))
    """

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sensitivities) != len(self.probabilities):
            raise InvalidInput(
                f"sensitivities and probabilities must have the same length; got {len(self.sensitivities)} "
                f"and {len(self.probabilities)}."
            )
        if abs((total := math.fsum(self.probabilities)) - 1.0) > 1e-9:
            raise InvalidInput(f"probabilities must add up to 1; got {total!r}.")


# Events with noise that is correlated over steps: tree aggregation and matrix factorization.
#
# A record takes part in at most ``participations`` of the steps, and any two of these are at least
# ``separation`` apart.  Which steps these are depends only on the record's public name (see ``Partitioned``),
# not on the value of any record.  In each of them it contributes a vector of l2 norm at most Delta.


@dataclass(frozen=True)
class TreeAggregation(Event):
    """Sums over all dyadic intervals of ``leaves`` steps, each with noise N(0, (noise_multiplier Delta)^2 I).

    This is the binary tree of Dwork et al. (2010) and Chan, Shi & Song (2011), which DP-FTRL uses
    (2103.00039).  The intervals are [j 2^l, (j+1) 2^l).  Incomplete intervals are left out.

    >>> TreeAggregation(noise_multiplier=2.0, leaves=1024)
    TreeAggregation(noise_multiplier=2.0, leaves=1024, participations=1, separation=1)
    """

    noise_multiplier: float
    leaves: int
    participations: int = 1
    separation: int = 1


@dataclass(frozen=True)
class MatrixFactorization(Event):
    """``C g + Z`` for the ``steps`` sums g of a run.

    Z has independent entries N(0, (noise_multiplier Delta)^2).  C is the lower triangular Toeplitz matrix
    whose first column is ``coefficients`` followed by zeros (DP-MF: Denisov et al. 2022, 2202.08312; banded:
    Choquette-Choo et al. 2023, 2306.08153).  The run uses g + C^{-1} Z, a function of this event's output.
    The noise multiplier is that of Z.  C's columns are not normalised, so their norm is part of the cost.

    >>> MatrixFactorization(1.0, coefficients=(1.0, 0.5), steps=100).participations
    1
    """

    noise_multiplier: float
    coefficients: tuple[float, ...]
    steps: int
    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        column = self.coefficients
        if column[0] == 0.0:
            raise InvalidInput("coefficients[0] must not be 0: the matrix would have no inverse.")
        if not math.isfinite(math.hypot(*column)):
            raise InvalidInput(
                "coefficients are too large: their norm overflows. Divide them and the noise by the same "
                "number."
            )
        if len(column) > self.steps:
            raise InvalidInput(
                f"coefficients must be at most one per step; got {len(column)} for {self.steps} steps."
            )


# Events that consist of other events: compositions, group privacy and private selection.


@dataclass(frozen=True)
class Repeat(Event):
    """``event``, performed ``count`` times with fresh randomness, possibly adaptively.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> round(account(Repeat(Gaussian(10.0), 2), adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    event: Event
    count: int


@dataclass(frozen=True)
class Compose(Event):
    """All of ``events``, one after the other.

    The query of each event may depend on the earlier answers.  The parameters of the events are fixed
    beforehand.  ``Compose(())`` releases nothing.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> both = Compose((Gaussian(10.0), Gaussian(10.0)))
    >>> round(account(both, adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class GroupPrivacy(Event):
    """``event``, accounted for neighbours that differ in a group of ``size`` records.

    Under add-remove and zero-out, one data set has all records of the group and the other has none.  Under
    replace-one, all of them are exchanged.  Every record of the group is sampled independently.

    >>> from tacit.events import Gaussian
    >>> GroupPrivacy(Gaussian(8.0), size=4)
    GroupPrivacy(event=Gaussian(noise_multiplier=8.0), size=4)
    """

    event: Event
    size: int


@dataclass(frozen=True)
class PrivateSelection(Event):
    """The best outcome of a random, secret number of runs of ``event``.

    Only the best outcome is released (Papernot & Steinke 2022, 2110.03620).  Each selection draws its number
    of runs.  If ``distribution`` is ``poisson``, the number has the mean ``mean`` > 0, and 0 runs release a
    fixed outcome.  If it is ``negative-binomial``, the number is conditioned on at least 1 run, with the
    conditional mean ``mean`` > 1 and ``shape`` > -1.  Shape 1 is the geometric distribution, and shape 0 the
    logarithmic one.

    >>> from tacit.events import Gaussian
    >>> PrivateSelection(Gaussian(8.0), distribution="poisson", mean=10)
    PrivateSelection(event=Gaussian(noise_multiplier=8.0), distribution='poisson', mean=10.0, shape=None)
    """

    event: Event
    distribution: str
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        poisson = self.distribution == "poisson"
        mean = check_real("mean", self.mean, low=0.0 if poisson else 1.0, open_low=True)
        object.__setattr__(self, "mean", mean)
        if poisson and self.shape is not None:
            raise InvalidInput(
                f"shape is not allowed with distribution 'poisson'; got {self.shape!r}. Leave it out."
            )
        if not poisson:
            shape = check_real("shape", self.shape, low=-1.0, open_low=True)
            object.__setattr__(self, "shape", shape)
