"""Events: frozen dataclasses that describe what a run does to the data.

For example, ``Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000)`` describes 1000 steps of DP-SGD. Training
performs events, accounting computes their cost, audits test them, and reports print them. Code that does not
support an event raises an error that names the event.

All events define noise multipliers in the same way. A mechanism releases ``sum_i f(x_i) + noise``, and Delta
is the largest norm of one record's vector f(x_i). ``noise_multiplier`` is the scale of the noise divided by
*Delta*. The sums of two neighbouring datasets differ by at most Delta under ``add-remove`` and ``zero-out``,
but by up to 2 Delta under ``replace-one``. The accountants apply this factor of 2.
"""

from tacit.events.base import Adjacency, Event, event_from_json, event_to_json
from tacit.events.mechanisms import (
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    ShuffledReports,
    SparseVector,
    TreeAggregation,
    ZeroConcentratedDP,
)
from tacit.events.sampling import (
    BallsInBins,
    CyclicPoissonSampled,
    Partitioned,
    PoissonSampled,
    Shuffled,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
)

__all__ = [
    "Adjacency",
    "ApproximateDP",
    "BallsInBins",
    "Compose",
    "CyclicPoissonSampled",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "ExponentialMechanism",
    "Gaussian",
    "GaussianMixture",
    "GroupPrivacy",
    "Laplace",
    "MatrixFactorization",
    "Partitioned",
    "PoissonSampled",
    "PrivateSelection",
    "RandomizedResponse",
    "Repeat",
    "Shuffled",
    "ShuffledReports",
    "SparseVector",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "WithReplacement",
    "WithoutReplacement",
    "ZeroConcentratedDP",
    "event_from_json",
    "event_to_json",
]
