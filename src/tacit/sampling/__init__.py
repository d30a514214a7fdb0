"""Samplers, which draw the records of each step and return the event that describes the draws."""

from tacit.sampling.samplers import (
    BallsInBinsSampling,
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

__all__ = [
    "BallsInBinsSampling",
    "ByDate",
    "CyclicPoissonSampling",
    "FullBatch",
    "PoissonSampling",
    "Sampling",
    "ShuffledBatches",
    "TruncatedPoissonSampling",
]
