"""What are cyclic batches? Each record belongs to one part, and the steps take one part after another.

A record takes part once in a cycle, at steps that do not depend on any other record.  That is what noise
correlated over several steps needs (Choquette-Choo et al., 2306.08153).

Guarantee
---------
* 64 random bits of its own, the same in all steps, decide which part a record belongs to, each as likely
  within 2^-64.
* In a step, further 64 bits of its own decide whether a record of the part takes part, with probability
  ``floor(q 2^64) / 2^64``; at q = 1 all of them do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import UnsupportedEvent, check_integer
from tacit.events import (
    Adjacency,
    CyclicPoissonSampled,
    Event,
    Gaussian,
    MatrixFactorization,
    Partitioned,
    Repeat,
)
from tacit.noise.generator import Generator, Purpose
from tacit.sampling.base import Indices, Sampling
from tacit.sampling.poisson import PoissonSampling

_PARTS = 1  # the index under which parts are drawn: samples have index 0


@dataclass(frozen=True)
class CyclicPoissonSampling(Sampling):
    """Step t samples each record of part ``t mod cycle`` with probability ``sampling_rate`` q in (0, 1].

    At q = 1 the parts are the batches themselves, and nothing is claimed for sampling.

    >>> from tacit.noise.generator import Generator
    >>> sampling, generator = CyclicPoissonSampling(1.0, cycle=4), Generator.from_os()
    >>> sorted(i for t in range(4) for i in sampling.indices(generator, t, 9).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    sampling_rate: float
    cycle: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_rate", PoissonSampling(self.sampling_rate).sampling_rate)
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, low=1))

    @property
    def expected_share(self) -> float:
        """The expected part of the records that takes part in a step."""
        return self.sampling_rate / self.cycle

    def participations_in(self, steps: int) -> tuple[int, int]:
        return -(-steps // self.cycle), self.cycle

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if self.sampling_rate == 1.0:
            return Repeat(Partitioned(self.cycle, mechanism), -(-steps // self.cycle))
        if not isinstance(mechanism, Gaussian):
            raise UnsupportedEvent(f"cyclic samples are of Gaussian mechanisms; got {mechanism!r}.")
        alone = MatrixFactorization(mechanism.noise_multiplier, (1.0,), steps)
        return CyclicPoissonSampled(self.sampling_rate, self.cycle, alone)

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        words = generator.words(records, purpose=Purpose.SAMPLING, step=0, index=_PARTS)
        parts = (words >> np.uint64(32)) * np.uint64(self.cycle) >> np.uint64(32)
        mine = parts == np.uint64(step % self.cycle)
        if self.sampling_rate < 1.0:
            drawn = generator.words(records, purpose=Purpose.SAMPLING, step=step)
            mine &= drawn < np.uint64(int(self.sampling_rate * 2.0**64))
        return np.flatnonzero(mine).astype(np.int64)

    def describe(self) -> str:
        each = "all" if self.sampling_rate == 1.0 else f"samples, rate {self.sampling_rate:.6g},"
        return f"{each} of one of {self.cycle} parts of the records after another"
