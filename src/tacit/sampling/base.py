"""The interface of samplers: frozen data that draws the records of a step and returns its event."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from tacit.events import Adjacency, Event
from tacit.noise.generator import Generator

Indices = NDArray[np.int64]


class Sampling(ABC):
    """A sampler, which draws the records that take part in a step.

    A sampler is a frozen dataclass of public facts.  The number of records and the generator are arguments of
    its methods instead, as that number may be secret and the generator is secret.

    >>> from tacit.sampling import FullBatch
    >>> sampler = FullBatch()
    >>> isinstance(sampler, Sampling), sampler.indices(Generator.from_os(), step=0, records=3).tolist()
    (True, [0, 1, 2])
    """

    @abstractmethod
    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        """Return the event of ``steps`` steps of ``mechanism`` on the sampled records.

        Raises:
            PrivacyRefusal: if this sampler has no proven guarantee under this adjacency.
        """

    def participations_in(self, steps: int) -> tuple[int, int] | None:
        """Return in how many of ``steps`` steps a record takes part at most, and their least distance.

        The result is None if the sampler has no such bound."""
        return None

    def paid_together(self, steps: int) -> int:
        """Return how many of ``steps`` steps must be charged to a budget together."""
        return 1

    @abstractmethod
    def expected_batch(self, records: int) -> float | None:
        """Return the expected size of a batch from the public number of records.

        The result is None if this number does not determine the size.  Then the plan states it."""

    @abstractmethod
    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        """Draw the records of step ``step`` (counted from 0), as sorted positions in ``[0, records)``."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the sampler in one line, for the privacy statement."""
