"""What is truncated Poisson sampling? A Poisson sample, of which at most L records are kept.

Batches of at most L records fit a memory and shapes that are known before the run, at hardly any cost where L
is a few standard deviations above the expected size (Chua et al. 2024, 2411.04205).

What is sampled are N slots, N the public number of records.  Slot i is record i; slots beyond the last record
are empty, take part in the draw and are left out of the batch.  Were only the records drawn from, and fewer
than N, each would be kept more often than the price says: at L = 1 and q = 1/2, a record alone is kept with
probability 1/2, and one of 100 with 1/100.

Guarantee
---------
* Whatever the records, the sample is that of ``TruncatedPoissonSampled(q, N, L)``: 64 random bits of its own
  decide whether a slot is sampled, with probability ``floor(q 2^64) / 2^64``; of more than L sampled slots,
  those L are kept whose second 64 bits are least.  Slots are alike, so every set of L is as likely.
* More than N records are refused before any is read.
* Two slots have equal second bits with probability below ``N^2 / 2^65``; then the first one is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import PrivacyRefusal, check_integer
from tacit.events import Adjacency, Event, Repeat, TruncatedPoissonSampled
from tacit.noise.generator import Generator, Purpose
from tacit.sampling.base import Indices, Sampling
from tacit.sampling.poisson import PoissonSampling


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling at ``sampling_rate`` q in (0, 1] of ``records`` N, cut at ``largest_batch`` L.

    ``records`` is the public number of records; there may be fewer, but not more.

    >>> from tacit.noise.generator import Generator
    >>> sampling = TruncatedPoissonSampling(sampling_rate=0.5, records=100, largest_batch=20)
    >>> len(sampling.indices(Generator.from_os(), step=0, records=100))
    20
    """

    sampling_rate: float
    records: int
    largest_batch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_rate", PoissonSampling(self.sampling_rate).sampling_rate)
        records = check_integer("records", self.records, low=1)
        object.__setattr__(self, "records", records)
        largest = check_integer("largest_batch", self.largest_batch, low=1, high=records)
        object.__setattr__(self, "largest_batch", largest)

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        step = TruncatedPoissonSampled(self.sampling_rate, self.records, self.largest_batch, mechanism)
        return Repeat(step, steps)

    def check_records(self, records: int) -> None:
        """Refuse more ``records``, of which the true number is secret, than the price is for."""
        if records > self.records:
            raise PrivacyRefusal(
                f"there are more records than the public number, {self.records}, that truncated Poisson "
                "sampling was priced for: every one of them would be paid for too little. Make the plan with "
                "a larger number for records, which is public and not read from the data."
            )

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        self.check_records(records)
        chosen = PoissonSampling(self.sampling_rate).indices(generator, step, self.records)
        if len(chosen) > self.largest_batch:
            order = generator.words(self.records, purpose=Purpose.TRUNCATION, step=step)[chosen]
            chosen = np.sort(chosen[np.argsort(order, kind="stable")[: self.largest_batch]])
        return chosen[chosen < records]

    def describe(self) -> str:
        return (
            f"truncated Poisson sampling, rate {self.sampling_rate:.6g} per step, at most "
            f"{self.largest_batch} of {self.records} records"
        )
