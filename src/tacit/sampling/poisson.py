"""What is Poisson sampling? Every record takes part with probability q, independently of all others.

The amplification theorems of the moments accountant and of privacy loss distributions are about this sampler
(Abadi et al., CCS 2016, section 3.1; Zhu, Dong and Wang, AISTATS 2022).

Guarantee
---------
* 64 random bits of its own decide each record's participation: probability ``floor(q 2^64) / 2^64``,
  at most q, independent over records and steps.
* The batch has a random size, possibly zero, and is never cut, filled up or skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import check_real
from tacit.events import Adjacency, Event, PoissonSampled, Repeat
from tacit.noise.generator import Generator, Purpose
from tacit.sampling.base import Indices, Sampling


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Poisson sampling at ``sampling_rate`` q in (0, 1].

    >>> from tacit.noise.generator import Generator
    >>> len(PoissonSampling(1.0).indices(Generator.from_os(), step=0, records=5))
    5
    """

    sampling_rate: float

    def __post_init__(self) -> None:
        rate = check_real("sampling_rate", self.sampling_rate, low=0.0, high=1.0, open_low=True)
        object.__setattr__(self, "sampling_rate", rate)

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        return Repeat(PoissonSampled(self.sampling_rate, mechanism), steps)

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        if self.sampling_rate == 1.0:
            return np.arange(records, dtype=np.int64)
        words = generator.words(records, purpose=Purpose.SAMPLING, step=step)
        # A float times 2^64 is exact, so this is the largest threshold that does not exceed q.
        threshold = np.uint64(int(self.sampling_rate * 2.0**64))
        return np.flatnonzero(words < threshold).astype(np.int64)

    def describe(self) -> str:
        return f"Poisson sampling, rate {self.sampling_rate:.6g} per step"
