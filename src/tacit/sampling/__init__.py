"""Who takes part in a step? Samplers say so, and each names the event that it really performs."""

from tacit.sampling.base import Indices, Sampling
from tacit.sampling.cyclic import CyclicPoissonSampling
from tacit.sampling.dated import ByDate
from tacit.sampling.full import FullBatch
from tacit.sampling.poisson import PoissonSampling
from tacit.sampling.shuffled import ShuffledBatches
from tacit.sampling.truncated import TruncatedPoissonSampling

__all__ = [
    "ByDate",
    "CyclicPoissonSampling",
    "FullBatch",
    "Indices",
    "PoissonSampling",
    "Sampling",
    "ShuffledBatches",
    "TruncatedPoissonSampling",
]
