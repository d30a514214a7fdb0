"""What do shuffled batches of a fixed size cost? What is proven for them, which is less than for Poisson.

In an epoch every record is in at most one batch.  Whatever the permutation, one epoch is therefore one
unsampled mechanism on any single record, by parallel composition, and the steps of an epoch cost what
one step costs.  This sampler claims no amplification by shuffling: no tight one is proven.  Accounting for
such batches as if they were Poisson samples is the best known false claim of the field
(Chua et al., ICML 2024, "How private are DP-SGD implementations?").

Guarantee
---------
* Under ``replace-one`` and ``zero-out``, T steps cost ``ceil(T / steps per epoch)`` unsampled mechanisms.
* Under ``add-remove`` the sampler is refused: one more record moves all others between batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Adjacency, Event, Repeat
from tacit.noise.generator import Generator, Purpose
from tacit.sampling.base import Indices, Sampling


@dataclass(frozen=True)
class ShuffledBatches(Sampling):
    """A new permutation each epoch, cut into batches of ``batch_size``; a last partial batch is left out.

    ``records`` is the public number of records.

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
        """Whole batches in one pass over the records."""
        return self.records // self.batch_size

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                "Shuffled batches of a fixed size have no guarantee under add-remove adjacency: one record "
                "more moves the others between batches. Use Poisson sampling, or state replace-one or "
                "zero-out adjacency with a public number of records."
            )
        return Repeat(mechanism, -(-steps // self.steps_per_epoch))

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        if records != self.records:
            raise InvalidInput(
                f"the sampler was planned for {self.records} records, the data has {records}. Make the plan "
                f"with records={records}."
            )
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = generator.numpy(purpose=Purpose.SAMPLING, step=epoch).permutation(records)
        chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return np.sort(chosen).astype(np.int64)

    def describe(self) -> str:
        return f"shuffled batches of {self.batch_size}, each record once per epoch, no amplification claimed"
