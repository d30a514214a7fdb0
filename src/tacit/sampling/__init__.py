"""Samplers, which draw the records of each step and return the event that describes the draws."""

from tacit.sampling.base import Sampling
from tacit.sampling.fixed import ByDate, FullBatch, ShuffledBatches
from tacit.sampling.poisson import CyclicPoissonSampling, PoissonSampling, TruncatedPoissonSampling

__all__ = [
    "ByDate",
    "CyclicPoissonSampling",
    "FullBatch",
    "PoissonSampling",
    "Sampling",
    "ShuffledBatches",
    "TruncatedPoissonSampling",
]
