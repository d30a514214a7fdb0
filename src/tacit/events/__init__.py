"""Events: frozen data classes that describe what a run does to the data.

Training performs events, accounting computes their cost, audits test them and reports print them. The class
defines the mechanism. Code that does not support an event refuses it by name.

All events share one convention for sensitivity. A mechanism releases ``sum_i f(x_i) + noise``, and one record
contributes a vector of norm at most Delta. ``noise_multiplier`` is the noise scale divided by *Delta*. Two
neighbouring sums differ by at most Delta under ``add-remove`` and ``zero-out``, and by at most 2 Delta under
``replace-one``; the accountants apply that factor of 2.
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
