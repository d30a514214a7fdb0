"""Who takes part in a step? Samplers say so, and each names the event that it really performs."""

from tacit.sampling.base import Indices, Sampling
from tacit.sampling.fixed import ByDate, FullBatch, ShuffledBatches
from tacit.sampling.poisson import CyclicPoissonSampling, PoissonSampling, TruncatedPoissonSampling

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
