"""What are batches by date? A record takes part in the step of its own date, as in data that arrive in time.

Nothing is random, so nothing is hidden by sampling; noise that is correlated in time makes up for it
(:mod:`tacit.correlation`).

Guarantee
---------
* The steps of a record are those of its own dates, whatever the other records are.
* A record takes part at most ``participations`` times, and any two of these are at least ``separation``
  steps apart: the session refuses data in which it does not (:class:`tacit.training.DatedRecords`).
* Under ``replace-one`` and ``zero-out`` the sampler is refused: there the number of records is public and
  known beforehand, which that of a stream is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedEvent, check_integer
from tacit.events import Adjacency, Event, Gaussian, MatrixFactorization
from tacit.noise.generator import Generator
from tacit.sampling.base import Indices, Sampling


@dataclass(frozen=True)
class ByDate(Sampling):
    """Step t takes the records of the days t; :class:`tacit.training.DatedRecords` says which days these are.

    Args:
        participations: in how many steps one record takes part, at most: a row once, a person with rows of
            several dates as often as declared here.
        separation: how many steps any two of them are apart, at least.

    >>> ByDate().participations_in(365), ByDate(participations=12, separation=30).participations_in(100)
    ((1, 1), (4, 30))
    """

    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        for field in ("participations", "separation"):
            object.__setattr__(self, field, check_integer(field, getattr(self, field), low=1))
        if self.participations == 1:  # there is nothing to separate, and the statement does not say it
            object.__setattr__(self, "separation", 1)

    def participations_in(self, steps: int) -> tuple[int, int]:
        return min(self.participations, -(-steps // self.separation)), self.separation

    def event(self, mechanism: Event, steps: int, adjacency: Adjacency) -> Event:
        if adjacency is not Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"batches by date have no guarantee under {adjacency}: there the number of records is "
                "public, and that of a stream is not known before it ends. Plan with "
                'adjacency="add-remove".'
            )
        if not isinstance(mechanism, Gaussian):
            raise UnsupportedEvent(f"batches by date are of Gaussian mechanisms; got {mechanism!r}.")
        times, apart = self.participations_in(steps)
        return MatrixFactorization(mechanism.noise_multiplier, (1.0,), steps, times, apart)

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        raise InvalidInput(
            "a plan by date needs the date of each record. Give the session tacit.training.DatedRecords("
            "data, dates, first=...)."
        )

    def describe(self) -> str:
        times = f"{self.participations} time{'s' if self.participations > 1 else ''}"
        apart = f", {self.separation} steps apart" if self.participations > 1 else ""
        return f"all records of the step's dates, each at most {times}{apart}"
