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
    """A sum of vectors with Gaussian noise: ``f(D) + N(0, (noise_multiplier * Delta)^2 I)``.

    Each record adds a vector of l2 norm at most Delta to the sum f(D).

    >>> Gaussian(noise_multiplier=1.5)
    Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float


@dataclass(frozen=True)
class Laplace(Event):
    """A sum of vectors with Laplace noise: ``f(D) + Lap(noise_multiplier * Delta)``.

    Each record adds a vector of l1 norm at most Delta to the sum f(D).

    >>> from tacit.accounting import account
    >>> round(account(Laplace(2.0), adjacency="add-remove").epsilon(1e-9), 3)
    0.5
    """

    noise_multiplier: float


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """A sum of integers with discrete Gaussian noise: ``f(D) + k``.

    Each record adds an integer of absolute value at most ``sensitivity`` to the sum f(D).  The noise k is an
    integer, with probability proportional to exp(-k^2 / (2 scale^2)) (Canonne, Kamath & Steinke 2020,
    2004.00010).  ``scale`` is in the units of the sum.  Unlike a noise multiplier, it is not relative to the
    sensitivity.

    >>> DiscreteGaussian(scale=3.0)
    DiscreteGaussian(scale=3.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """A sum of integers with discrete Laplace noise: ``f(D) + k``.

    Each record adds an integer of absolute value at most ``sensitivity`` to the sum f(D).  The noise k is an
    integer, with probability proportional to ``exp(-|k| / scale)``.  ``scale`` is in the units of the sum.
    This is the geometric mechanism (Ghosh, Roughgarden & Sundararajan 2009).

    >>> from tacit.accounting import account
    >>> round(account(DiscreteLaplace(2.0), adjacency="add-remove").epsilon(1e-9), 3)
    0.5
    """

    scale: float
    sensitivity: int = 1


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """Randomised response: each record reports either its true category or a random one.

    With probability ``noise``, the report is uniformly random among all ``categories``, possibly the true
    one. Otherwise it is the true category (Warner 1965; k-ary: Kairouz et al. 2014).  The number of reports
    is public.

    >>> from tacit.accounting import account
    >>> round(account(RandomizedResponse(0.5, 2), adjacency="replace-one").epsilon(1e-9), 3)
    1.099
    """

    noise: float
    categories: int


@dataclass(frozen=True)
class ShuffledReports(Event):
    """The reports of ``records`` people, in random order and without their senders.

    Each person first randomises their own report, so that it is ``epsilon``-DP by itself. A shuffler then
    removes the senders (Feldman, McMillan & Talwar 2021, 2012.12803). If you set ``categories``, each report
    is randomised response over that number of categories, which costs less. The number of people is public: a
    person who has no value randomises an empty answer.

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
    """Any mechanism that is proven to be (epsilon, delta)-DP. Its queries may depend on earlier answers.

    The proof must be for the adjacency that you pass to :func:`tacit.accounting.account`.

    >>> ApproximateDP(epsilon=1.0)  # pure: delta is 0
    ApproximateDP(epsilon=1.0, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0


@dataclass(frozen=True)
class ZeroConcentratedDP(Event):
    """Any mechanism that is proven to be rho-zCDP (zero-concentrated DP).

    The Renyi divergence of order a between the outputs of neighbouring datasets must be at most rho a, for
    every a > 1 (Bun & Steinke 2016, 1605.02065, Definition 1.1). The proof must be for the adjacency that you
    pass to :func:`tacit.accounting.account`.

    >>> from tacit.accounting import account
    >>> round(account(ZeroConcentratedDP(0.01), adjacency="add-remove", method="rdp").epsilon(1e-5), 3)
    0.546
    """

    rho: float


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """The random choice of one outcome, with probability proportional to exp(epsilon * score / (2 Delta)).

    One record changes each outcome's score by at most Delta. Choosing the largest score after adding Gumbel
    noise (report-noisy-max) is the same mechanism.

    The event also describes any other mechanism with ``epsilon``-bounded range. Between neighbouring
    datasets, the log probability of each outcome changes; for any two outcomes, the changes differ by at most
    ``epsilon`` (Durfee & Rogers 2019, 1905.04273, Definition 5). This must hold for the adjacency that you
    pass to :func:`tacit.accounting.account`.

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
    """The sparse vector technique: for each query, it tells only whether the value is above a threshold.

    It stops after ``hits`` answers "above" (Lyu, Su & Li 2017, 1603.01699, Algorithm 7). One record changes
    each query's true value by at most Delta. The threshold gets the noise Lap(Delta / epsilon_threshold),
    drawn once. Every query gets new noise, Lap(2 hits Delta / epsilon_queries).

    Set ``monotonic`` if one record moves all queries in the same direction, as for counts. The noise of a
    query is then only Lap(hits Delta / epsilon_queries).

    >>> SparseVector(epsilon_threshold=0.5, epsilon_queries=0.5, hits=3)
    SparseVector(epsilon_threshold=0.5, epsilon_queries=0.5, hits=3, monotonic=False)
    """

    epsilon_threshold: float
    epsilon_queries: float
    hits: int
    monotonic: bool = False


@dataclass(frozen=True)
class GaussianMixture(Event):
    """A sum of vectors with Gaussian noise, if the size of one record's (or user's) vector is random.

    The release is ``f(D) + N(0, (noise_multiplier * Delta)^2 I)``, where f(D) is the sum. With probability
    ``probabilities[i]``, the vector of a record or user has l2 norm at most ``sensitivities[i] * Delta``. The
    drawn i stays secret. For example, if a user's records are sampled independently, the sensitivities are 0,
    1, 2, ... and the probabilities are binomial (Ganesh 2024, 2401.10294).

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
    """The binary tree of DP-FTRL: noisy sums of the gradients of 1, 2, 4, ... successive steps.

    A run has ``leaves`` steps. The intervals of steps are [j 2^l, (j+1) 2^l) for all j and l, except those
    that end after the last step. Each sum has the independent noise N(0, (noise_multiplier Delta)^2 I) (Dwork
    et al. 2010; Chan, Shi & Song 2011; DP-FTRL: 2103.00039). A record takes part in at most
    ``participations`` steps, at least ``separation`` steps apart.

    >>> TreeAggregation(noise_multiplier=2.0, leaves=1024)
    TreeAggregation(noise_multiplier=2.0, leaves=1024, participations=1, separation=1)
    """

    noise_multiplier: float
    leaves: int
    participations: int = 1
    separation: int = 1


@dataclass(frozen=True)
class MatrixFactorization(Event):
    """All gradient sums of a run, with noise that is correlated between steps.

    The event releases ``C g + Z``. Row t of g is the gradient sum of step t. Z is independent noise, N(0,
    (noise_multiplier Delta)^2). The matrix C is lower triangular, and each diagonal has one value:
    ``coefficients`` lists them, the main diagonal first. Further diagonals are zero. From this release,
    training computes g + C^{-1} Z, at no additional privacy cost (DP-MF: Denisov et al. 2022, 2202.08312;
    banded: Choquette-Choo et al. 2023, 2306.08153).

    A record takes part in at most ``participations`` steps, at least ``separation`` steps apart. The columns
    of C are not normalised: if their norm is larger, the event costs more.

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
                "coefficients are so large that their norm overflows. Divide them and the noise by the same "
                "number."
            )
        if len(column) > self.steps:
            raise InvalidInput(
                f"coefficients must have at most one entry per step; got {len(column)} for {self.steps} "
                "steps."
            )


# Events that consist of other events: compositions, group privacy and private selection.


@dataclass(frozen=True)
class Repeat(Event):
    """``event``, performed ``count`` times, each time with new randomness.

    What each repetition computes may depend on the outputs of earlier ones.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> round(account(Repeat(Gaussian(10.0), 2), adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    event: Event
    count: int


@dataclass(frozen=True)
class Compose(Event):
    """All of ``events``, one after the other, on the same records.

    An event may use the outputs of earlier events. Its settings, such as the noise, are fixed before the
    first event. ``Compose(())`` releases nothing.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> both = Compose((Gaussian(10.0), Gaussian(10.0)))
    >>> round(account(both, adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class GroupPrivacy(Event):
    """``event``, with a guarantee for groups of ``size`` records, such as all rows of a person.

    Neighbouring datasets then differ in a whole group. Under add-remove and zero-out, one dataset has the
    group, and the other none of its records. Under replace-one, all of its records are replaced. Every record
    of the group is sampled independently.

    >>> from tacit.events import Gaussian
    >>> GroupPrivacy(Gaussian(8.0), size=4)
    GroupPrivacy(event=Gaussian(noise_multiplier=8.0), size=4)
    """

    event: Event
    size: int


@dataclass(frozen=True)
class PrivateSelection(Event):
    """The best outcome of several runs of ``event``, such as a hyperparameter search.

    Only the best outcome is released (Papernot & Steinke 2022, 2110.03620). The number of runs is secret, and
    drawn anew for each selection, from ``distribution``:

    * ``poisson``: ``mean`` > 0 is the expected number of runs. If the number is 0, a fixed outcome is
      released.
    * ``negative-binomial``, truncated to at least 1 run: ``mean`` > 1 is the expected number after
      truncation, and ``shape`` > -1 is a parameter. Shape 1 is the geometric distribution, shape 0 the
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
