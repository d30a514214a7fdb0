"""Batches that are not random samples: all records, parts of a shuffled order, or the records of a date.

They do not amplify privacy.  A run costs as much as the steps in which one record takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedEvent, check_integer
from tacit.events import Adjacency, Event, Gaussian, MatrixFactorization, Repeat
from tacit.noise.generator import Generator, Purpose
from tacit.sampling.base import Indices, Sampling


@dataclass(frozen=True)
class FullBatch(Sampling):
    """All records in every step, which is a composition of unsampled mechanisms.

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
    """A new permutation in each epoch, cut into batches of ``batch_size``.  A last partial batch is left out.

    ``records`` is the public number of records.

    In an epoch every record is in at most one batch.  So, for any single record, an epoch is one unsampled
    mechanism, whatever the permutation, and all steps of an epoch together cost as much as one (parallel
    composition).  This sampler claims no amplification by shuffling, as no tight bound is proven.  Accounting
    for such batches as if they were Poisson samples is the best-known false claim of the field (Chua et al.,
    ICML 2024, "How private are DP-SGD implementations?").

    **Guarantee**

    * Under ``replace-one`` and ``zero-out``, T steps cost ``ceil(T / steps per epoch)`` unsampled mechanisms.
    * Under ``add-remove`` the sampler is refused, as one more record would move the others between batches.

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
        """The number of whole batches in one pass over the records."""
        return self.records // self.batch_size

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                ": shuffled batches have no guarantee under add-remove adjacency: one more record would move "
                "the others between batches",
                argument="sampling",
                fix="Use Poisson sampling, or state replace-one or zero-out adjacency with a public number "
                "of records.",
            )
        return Repeat(mechanism, -(-steps // self.steps_per_epoch))

    def expected_batch(self, records: int) -> float:
        return float(self.batch_size)

    def paid_together(self, steps: int) -> int:
        return self.steps_per_epoch

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        if records != self.records:
            raise InvalidInput(
                f"the plan is for {self.records} records but the data has {records}. Make the plan with "
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
    """Batches by date: step t takes the records of the days that belong to it.

    :class:`tacit.training.DatedRecords` assigns the days to the steps.

    Args:
        participations: the largest number of steps in which one record takes part: 1 if a record is a row,
            and the declared number if it is a person with rows of several dates.
        separation: the least distance between two of these steps, in steps.

    **Guarantee**

    * The steps of a record depend on its dates alone, not on other records.
    * A record takes part at most ``participations`` times, and any two of these are at least ``separation``
      steps apart.  The session refuses data that break this (:class:`tacit.training.DatedRecords`).
    * Under ``replace-one`` and ``zero-out`` the sampler is refused.  They need a number of records that is
      public beforehand, which a stream does not have.

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
                f": batches by date have no guarantee under {adjacency}: there the number of records is "
                "public, and that of a stream is unknown before it ends",
                argument="sampling",
                fix='Plan with `adjacency="add-remove"`.',
            )
        if not isinstance(mechanism, Gaussian):
            raise UnsupportedEvent(f"batches by date need a Gaussian mechanism; got {mechanism!r}.")
        times, apart = self.participations_in(steps)
        return MatrixFactorization(mechanism.noise_multiplier, (1.0,), steps, times, apart)

    def expected_batch(self, records: int) -> None:
        return None

    def paid_together(self, steps: int) -> int:
        return steps

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        raise InvalidInput(
            "a plan by date needs the date of each record. Give the session tacit.training.DatedRecords("
            "data, dates, first=...)."
        )

    def describe(self) -> str:
        times = f"{self.participations} time{'s' if self.participations > 1 else ''}"
        apart = f", {self.separation} steps apart" if self.participations > 1 else ""
        return f"all records of the step's dates, each at most {times}{apart}"
