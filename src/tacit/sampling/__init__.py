"""Samplers, which draw the records of each step and return the event that describes the draws."""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
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

if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(
        __name__,
        {
            "Indices": "tacit.sampling.base.Indices",
        },
    )
