"""What does a full batch cost? Every record takes part in every step; no amplification is claimed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.events import Adjacency, Event, Repeat
from tacit.noise.generator import Generator
from tacit.sampling.base import Indices, Sampling


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record in every step: the composition of unsampled mechanisms.

    >>> from tacit.noise.generator import Generator
    >>> FullBatch().indices(Generator.from_os(), step=0, records=3).tolist()
    [0, 1, 2]
    """

    def participations_in(self, steps: int) -> tuple[int, int]:
        return steps, 1

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        return Repeat(mechanism, steps)

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return np.arange(records, dtype=np.int64)

    def describe(self) -> str:
        return "full batch, every record in every step"
