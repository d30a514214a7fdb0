"""What must a sampler do? It is frozen data, draws the participants of a step, and names its event."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from tacit.events import Adjacency, Event
from tacit.noise.generator import Generator

Indices = NDArray[np.int64]


class Sampling(ABC):
    """Who takes part in a step.

    An implementation is a frozen dataclass of public facts.  The number of records and the generator
    are arguments: the first may be secret, the second is.

    >>> from tacit.sampling import FullBatch
    >>> sampler = FullBatch()
    >>> isinstance(sampler, Sampling), sampler.indices(Generator.from_os(), step=0, records=3).tolist()
    (True, [0, 1, 2])
    """

    @abstractmethod
    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        """The event of ``steps`` steps of ``mechanism`` on the sampled records.

        Raises:
            PrivacyRefusal: this sampler has no proven guarantee under this adjacency.
        """

    def participations_in(self, steps: int) -> tuple[int, int] | None:
        """In how many of ``steps`` steps a record takes part, at most, and how far apart any two of them are,
        at least; None where the sampler leaves it open."""
        return None

    def paid_together(self, steps: int) -> int:
        """How many of ``steps`` steps can only be paid for together."""
        return 1

    @abstractmethod
    def expected_batch(self, records: int) -> float | None:
        """The expected records of a step, of the public number; None where that is a figure by itself."""

    @abstractmethod
    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        """The participants of step ``step`` (from 0), as sorted positions in ``[0, records)``."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the privacy statement."""
