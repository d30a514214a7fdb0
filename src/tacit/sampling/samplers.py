"""Samplers: frozen data that draws the records of a step and returns its event.

Poisson samplers draw each record independently, as the amplification theorems assume (Abadi et al., CCS 2016,
section 3.1; Zhu, Dong and Wang, AISTATS 2022).  Balls in bins, with each record once per epoch, amplify a
little more.  The others do not amplify privacy: a run costs as much as the steps in which one record
participates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedEvent, check_integer, check_real
from tacit.events import (
    Adjacency,
    BallsInBins,
    CyclicPoissonSampled,
    Event,
    Gaussian,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    Repeat,
    TruncatedPoissonSampled,
)
from tacit.noise.generator import Generator, Purpose

Indices = NDArray[np.int64]


class Sampling(ABC):
    """The base class of all samplers. A sampler draws the batch of each step.

    A sampler is a frozen dataclass, and its fields are public. Its methods take what may be secret: the
    number of records, and the random number generator.

    >>> from tacit.sampling import FullBatch
    >>> sampler = FullBatch()
    >>> isinstance(sampler, Sampling), sampler.indices(Generator.from_os(), step=0, records=3).tolist()
    (True, [0, 1, 2])
    """

    @abstractmethod
    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        """Return the event of a run, which an accountant turns into epsilon.

        In each of the ``steps`` steps, ``mechanism`` (the noise) is applied to a new batch.

        Raises:
            PrivacyRefusal: if this sampler has no proven guarantee under this adjacency.
        """

    def participations_in(self, steps: int) -> tuple[int, int] | None:
        """Return in how many of ``steps`` steps a record is used at most, and the least distance between two.

        None means that a record can be used in every step.
        """
        return None

    def paid_together(self, steps: int) -> int:
        """Return how many successive steps are paid for together, such as an epoch, in a run of ``steps``."""
        return 1

    @abstractmethod
    def expected_batch(self, records: int) -> float | None:
        """Return the mean size of a batch of ``records`` records; None if the sampler does not fix it."""

    @abstractmethod
    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        """Draw the batch of ``step`` (counted from 0), as sorted indices in ``[0, records)``."""

    def indices_within(self, generator: Generator, step: int, records: int, own: range) -> Indices:
        """Draw the same batch as :meth:`indices`, and return only the indices in the range ``own``.

        ``own`` are the records of this process.
        """
        drawn = self.indices(generator, step, records)
        return drawn[np.searchsorted(drawn, own.start) : np.searchsorted(drawn, own.stop)]

    @abstractmethod
    def describe(self) -> str:
        """Describe the sampler in one line."""


_MOST_BINS = 2**31  # so that the products in a throw fit 64 bits
_AT_ONCE = 2**16  # records that are drawn at once; it bounds the memory
_PARTS = 1  # the index of the draws for the parts of a cycle; the draws for samples have index 0


def _at_once(own: range) -> Iterator[range]:
    for start in range(own.start, own.stop, _AT_ONCE):
        yield range(start, min(start + _AT_ONCE, own.stop))


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Poisson sampling: each record is sampled independently with probability ``sampling_rate`` q in (0, 1].

    **Guarantee**

    * Each record is sampled with probability ``floor(q 2^64) / 2^64``, which is at most q.  64 separate
      random bits decide for each record and each step, so all these decisions are independent.
    * The batch has a random size, possibly zero.  No batch is truncated, padded or skipped.

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

    def expected_batch(self, records: int) -> float:
        return self.sampling_rate * records

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return self.indices_within(generator, step, records, range(records))

    def indices_within(self, generator: Generator, step: int, records: int, own: range) -> Indices:
        if self.sampling_rate == 1.0:
            return np.arange(own.start, own.stop, dtype=np.int64)
        # A float times 2^64 is exact, so this is the largest threshold that does not exceed q.
        threshold = np.uint64(int(self.sampling_rate * 2.0**64))
        drawn = [np.empty(0, np.int64)]
        for part in _at_once(own):
            words = generator.words(len(part), purpose=Purpose.SAMPLING, step=step, first=part.start)
            drawn.append(np.flatnonzero(words < threshold) + part.start)
        return np.concatenate(drawn)

    def describe(self) -> str:
        return f"Poisson sampling, rate {self.sampling_rate:.6g} per step"


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling with a limit on the batch size.

    A batch has at most ``largest_batch`` records, so memory and shapes are known before the run. The limit
    costs almost no privacy if it is a few standard deviations above the expected size (Chua et al. 2024,
    2411.04205).

    Args:
        sampling_rate: the probability q, in (0, 1], with which each record is sampled.
        records: a public upper bound N on the number of records.
        largest_batch: the limit L. If more than L records are sampled, a random subset of L remains.

    If there are fewer than N records, the sampler also draws the missing ones, and then leaves them out of
    the batch. Otherwise each record would be used more often than the accounting assumes. For instance, with
    L = 1 and q = 1/2, a single record would be used with probability 1/2, but one of 100 records only with
    about 1/100.

    **Guarantee**

    * The batch is distributed as in ``TruncatedPoissonSampled(q, N, L)``, whatever the records are.
    * Each of the N (possibly missing) records is sampled with probability ``floor(q 2^64) / 2^64``, by 64
      separate random bits.
    * Each record also gets a random 64-bit number. If more than L are sampled, the L with the smallest
      numbers remain, so every set of L is equally likely. Two records draw the same number with probability
      below ``N^2 / 2^65``; then the first one remains.
    * If there are more than N records, the run is refused before any of them is read.

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
        """Raise an error if there are more ``records`` than the plan assumes.

        The message does not contain the true number, which is secret.
        """
        if records > self.records:
            raise PrivacyRefusal(
                f"there are more records than the plan's public number, {self.records}. Truncated Poisson "
                "sampling would then cost more than the plan states. Plan with a larger number, from public "
                "knowledge."
            )

    def expected_batch(self, records: int) -> float:
        return self.sampling_rate * records

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        self.check_records(records)
        slots = PoissonSampling(self.sampling_rate).indices(generator, step, self.records)
        if len(slots) > self.largest_batch:
            order = generator.words(self.records, purpose=Purpose.TRUNCATION, step=step)[slots]
            slots = np.sort(slots[np.argsort(order, kind="stable")[: self.largest_batch]])
        return slots[slots < records]

    def describe(self) -> str:
        return (
            f"truncated Poisson sampling, rate {self.sampling_rate:.6g} per step, at most "
            f"{self.largest_batch} of {self.records} records"
        )


@dataclass(frozen=True)
class BallsInBinsSampling(Sampling):
    """Uses each record once per epoch, in one of ``bins`` batches, chosen at random.

    A plan with ``sampling="epochs"`` uses this sampler. ``bins`` is then ``records / batch_size``, rounded.
    At the same epsilon, it needs less noise than Poisson sampling.

    **Guarantee**

    * In each epoch, 64 new random bits decide the batch of each record, independently of other records and
      epochs. Each of the b = ``bins`` batches has probability 1/b, with an error of at most 2^-64. The error
      adds at most ``T 2^-64`` to the epsilon of T steps, less than the rounding of epsilon.
    * An epoch is paid for when it begins. So T steps cost as much as ``ceil(T / b)`` epochs. This is exact
      for whole epochs, and a plan has no others.
    * Under ``replace-one``, this sampler raises an error, because no bound is proven.

    >>> from tacit.noise.generator import Generator
    >>> sampling, generator = BallsInBinsSampling(bins=4), Generator.from_os()
    >>> sorted(i for step in range(4) for i in sampling.indices(generator, step, records=9).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    bins: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, low=1, high=_MOST_BINS))

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is Adjacency.REPLACE_ONE:
            raise PrivacyRefusal(
                ": using each record once per epoch has no proven privacy cost under replace-one adjacency",
                argument="sampling",
                fix="Use Poisson sampling, or add-remove or zero-out adjacency.",
            )
        return Repeat(BallsInBins(self.bins, mechanism), -(-steps // self.bins))

    def check_steps(self, steps: int) -> None:
        """Raise an error unless ``steps`` are whole epochs: part of an epoch costs as much as all of it."""
        epochs, rest = divmod(steps, self.bins)
        if rest == 0:
            return
        fewer = f"{epochs * self.bins} or " if epochs else ""
        raise InvalidInput(
            f": {steps} is not a whole number of epochs of {self.bins} steps",
            argument="steps",
            why="Each record is used once per epoch, so a part of an epoch costs as much as all of it.",
            fix=f"Take {fewer}{(epochs + 1) * self.bins} steps, or whole epochs.",
        )

    def expected_batch(self, records: int) -> float:
        return records / self.bins

    def paid_together(self, steps: int) -> int:
        return self.bins

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return self.indices_within(generator, step, records, range(records))

    def indices_within(self, generator: Generator, step: int, records: int, own: range) -> Indices:
        epoch, batch = divmod(step, self.bins)
        return np.flatnonzero(self.batches(generator, epoch, own) == batch) + own.start

    def batches(self, generator: Generator, epoch: int, own: range) -> NDArray[np.uint32]:
        """Return the number of the batch, from 0, of each record in the range ``own`` in this ``epoch``."""
        return generator.kept((self.bins, epoch, own), lambda: self._throw(generator, epoch, own))

    def _throw(self, generator: Generator, epoch: int, own: range) -> NDArray[np.uint32]:
        """Return the batch of each record of ``own`` in an epoch."""
        thrown = np.empty(len(own), np.uint32)
        for part in _at_once(own):
            words = generator.words(len(part), purpose=Purpose.BINS, step=epoch, first=part.start)
            # floor(words * bins / 2^64), by halves of the words
            low = (words & np.uint64(0xFFFFFFFF)) * np.uint64(self.bins) >> np.uint64(32)
            high = (words >> np.uint64(32)) * np.uint64(self.bins)
            thrown[part.start - own.start : part.stop - own.start] = (high + low) >> np.uint64(32)
        return thrown

    def describe(self) -> str:
        return f"each record once an epoch, in one of its {self.bins} batches at random, anew in each epoch"


@dataclass(frozen=True)
class CyclicPoissonSampling(Sampling):
    """Cyclic sampling: the records are divided into ``cycle`` parts, and each step samples from the next one.

    Step t samples each record of part ``t mod cycle`` with probability ``sampling_rate`` q, in (0, 1]. At q =
    1, sampling does not lower the cost.

    So a record is used at most once in ``cycle`` successive steps, and its part does not depend on other
    records. Correlated noise requires both (Choquette-Choo et al., 2306.08153).

    **Guarantee**

    * 32 separate random bits, drawn once for the run, decide the part of a record. All parts are equally
      likely, with an error of at most 2^-32.
    * In each step, 64 further bits decide whether a record of the part is sampled, with probability ``floor(q
      2^64) / 2^64``. At q = 1, all records of the part are used.

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

    def participations_in(self, steps: int) -> tuple[int, int]:
        return -(-steps // self.cycle), self.cycle

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if self.sampling_rate == 1.0:
            return Repeat(Partitioned(self.cycle, mechanism), -(-steps // self.cycle))
        if not isinstance(mechanism, Gaussian):
            raise UnsupportedEvent(f"sampling in a cycle supports only Gaussian noise; got {mechanism!r}.")
        alone = MatrixFactorization(mechanism.noise_multiplier, (1.0,), steps)
        return CyclicPoissonSampled(self.sampling_rate, self.cycle, alone)

    def expected_batch(self, records: int) -> float:
        return self.sampling_rate * records / self.cycle

    def paid_together(self, steps: int) -> int:
        return self.cycle

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        words = generator.words(records, purpose=Purpose.SAMPLING, step=0, index=_PARTS)
        parts = (words >> np.uint64(32)) * np.uint64(self.cycle) >> np.uint64(32)
        mine = parts == np.uint64(step % self.cycle)
        if self.sampling_rate < 1.0:
            draws = generator.words(records, purpose=Purpose.SAMPLING, step=step)
            mine &= draws < np.uint64(int(self.sampling_rate * 2.0**64))
        return np.flatnonzero(mine).astype(np.int64)

    def describe(self) -> str:
        each = "all" if self.sampling_rate == 1.0 else f"samples, rate {self.sampling_rate:.6g},"
        return f"{each} of one of {self.cycle} parts of the records after another"


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Uses all records in every step, without sampling.

    >>> from tacit.noise.generator import Generator
    >>> FullBatch().indices(Generator.from_os(), step=0, records=3).tolist()
    [0, 1, 2]
    """

    def participations_in(self, steps: int) -> tuple[int, int]:
        return steps, 1

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        return Repeat(mechanism, steps)

    def expected_batch(self, records: int) -> float:
        return float(records)

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return np.arange(records, dtype=np.int64)

    def describe(self) -> str:
        return "full batch, every record in every step"


@dataclass(frozen=True)
class ShuffledBatches(Sampling):
    """Shuffles the records in each epoch, and splits them into batches of ``batch_size``.

    A smaller last batch is dropped. ``records`` is the public number of records.

    In an epoch, every record is in at most one batch. So all steps of an epoch together cost as much as one
    step on all records (parallel composition). Shuffling does not lower the cost further, because no tight
    bound is proven. Many implementations account for such batches as Poisson samples, which is wrong (Chua et
    al., ICML 2024, "How private are DP-SGD implementations?").

    **Guarantee**

    * Under ``replace-one`` and ``zero-out``, T steps cost as much as ``ceil(T / steps per epoch)`` steps on
      all records.
    * Under ``add-remove``, this sampler raises an error, because one more record would move the others
      between batches.

    >>> from tacit.events import Adjacency, Gaussian
    >>> ShuffledBatches(batch_size=10, records=100).event(Gaussian(1.0), 15, Adjacency.REPLACE_ONE)
    Repeat(event=Gaussian(noise_multiplier=1.0), count=2)
    """

    batch_size: int
    records: int

    def __post_init__(self) -> None:
        records = check_integer("records", self.records, low=1)
        object.__setattr__(self, "records", records)
        object.__setattr__(
            self, "batch_size", check_integer("batch_size", self.batch_size, low=1, high=records)
        )

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch. A smaller last batch does not count."""
        return self.records // self.batch_size

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                ": shuffled batches have no guarantee under add-remove adjacency, because one more record "
                "would move others to other batches",
                argument="sampling",
                fix="Use Poisson sampling, or replace-one or zero-out adjacency with a public number of "
                "records.",
            )
        return Repeat(mechanism, -(-steps // self.steps_per_epoch))

    def expected_batch(self, records: int) -> float:
        return float(self.batch_size)

    def paid_together(self, steps: int) -> int:
        return self.steps_per_epoch

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        if records != self.records:
            raise InvalidInput(
                f"the plan is for {self.records} records but the data has {records}. Plan with "
                f"records={records}."
            )
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = generator.numpy(purpose=Purpose.SAMPLING, step=epoch).permutation(records)
        positions = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return np.sort(positions).astype(np.int64)

    def describe(self) -> str:
        return f"shuffled batches of {self.batch_size}, each record once per epoch, no amplification claimed"


@dataclass(frozen=True)
class ByDate(Sampling):
    """Batches by date: each step uses the records of certain days.

    :class:`tacit.training.DatedRecords` contains the dates, and defines which days belong to which step.

    Args:
        participations: the largest number of steps that use one record: 1 if a record is one row. If a record
            is a person with rows of several dates, give the largest number of steps for a person.
        separation: the smallest distance between two of these steps, in steps.

    **Guarantee**

    * The steps that use a record depend only on the record's own dates, not on other records.
    * A record is used in at most ``participations`` steps, at least ``separation`` steps apart. The session
      raises an error if the data break this.
    * Under ``replace-one`` and ``zero-out``, this sampler raises an error: they need a public number of
      records, which a stream does not have beforehand.

    >>> ByDate().participations_in(365), ByDate(participations=12, separation=30).participations_in(100)
    ((1, 1), (4, 30))
    """

    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        for field in ("participations", "separation"):
            object.__setattr__(self, field, check_integer(field, getattr(self, field), low=1))
        if self.participations == 1:  # nothing to separate, and the statement does not mention it
            object.__setattr__(self, "separation", 1)

    def participations_in(self, steps: int) -> tuple[int, int]:
        return min(self.participations, -(-steps // self.separation)), self.separation

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is not Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f": batches by date have no guarantee under {adjacency}, which needs the number of "
                "records beforehand; for a stream it is unknown",
                argument="sampling",
                fix='Plan with `adjacency="add-remove"`.',
            )
        if not isinstance(mechanism, Gaussian):
            raise UnsupportedEvent(f"batches by date support only Gaussian noise; got {mechanism!r}.")
        times, apart = self.participations_in(steps)
        return MatrixFactorization(mechanism.noise_multiplier, (1.0,), steps, times, apart)

    def expected_batch(self, records: int) -> None:
        return None

    def paid_together(self, steps: int) -> int:
        return steps

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        raise InvalidInput(
            "a plan by date needs the date of each record. Pass "
            "data=tacit.training.DatedRecords(data, dates, first=...)."
        )

    def describe(self) -> str:
        times = f"{self.participations} time{'s' if self.participations > 1 else ''}"
        apart = f", {self.separation} steps apart" if self.participations > 1 else ""
        return f"all records of the step's dates, each at most {times}{apart}"
