"""Samplers, which draw the records of each step and return the event that describes the draws."""

from tacit.sampling.samplers import (
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

__all__ = [
    "ByDate",
    "CyclicPoissonSampling",
    "FullBatch",
    "PoissonSampling",
    "Sampling",
    "ShuffledBatches",
    "TruncatedPoissonSampling",
]
