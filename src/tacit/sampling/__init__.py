"""Samplers, which draw the records of each step and describe the draws as an event."""

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
