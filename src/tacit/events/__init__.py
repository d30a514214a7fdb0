"""What does a run do to the data? Events describe it as frozen data, in the vocabulary that all parts share.

Training performs events, accounting prices them, audits test them, reports print them.  The class is
the definition of the mechanism.  A part that meets an event it does not know refuses it by name.

One convention for sensitivity holds throughout.  A mechanism releases ``sum_i f(x_i) + noise``, and one
record contributes a vector of norm at most Delta.  ``noise_multiplier`` is the scale of the noise divided
by *Delta*.  Under ``add-remove`` and ``zero-out`` two neighbouring sums differ by at most Delta; under
``replace-one`` by at most 2 Delta, and accountants take that factor into account.
"""

from tacit.events.base import Adjacency, Event, check_event
from tacit.events.composition import Compose, GroupPrivacy, PrivateSelection, Repeat
from tacit.events.correlated import MatrixFactorization, TreeAggregation
from tacit.events.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    RandomizedResponse,
    ShuffledReports,
    SparseVector,
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
from tacit.events.serial import EVENTS, event_from_json, event_to_json

__all__ = [
    "EVENTS",
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
    "check_event",
    "event_from_json",
    "event_to_json",
]
