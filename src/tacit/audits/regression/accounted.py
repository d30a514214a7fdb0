"""Did a run do what was accounted for? L2: its releases against the event."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tacit.audits.laws import LawTest, sampler_law
from tacit.audits.regression.recorder import Release
from tacit.errors import PrivacyRefusal
from tacit.events import Compose, Event, Gaussian, PoissonSampled, Repeat


@dataclass(frozen=True, eq=False)
class AccountingFindings:
    """``differences`` in words, none if all is well; ``sampler`` is None for full batches."""

    differences: list[str] = field(default_factory=list)
    sampler: LawTest | None = None


def check_accounting(
    event: Event, releases: list[Release], *, records: int, level: float
) -> AccountingFindings:
    """Were there as many releases as ``event`` says, on samples of its distribution?

    :param event: a repetition of a Gaussian, Poisson-sampled or not; without what comes before it.
    :param records: N, how many records there really were.
    :param level: the probability of calling a right sampler wrong.

    :raises PrivacyRefusal: for another event.
    """
    rate, steps = _sampled(event)
    differences = []
    if len(releases) != steps:
        differences.append(f"{len(releases)} releases, {steps} accounted for")
    counts = np.zeros((len(releases), records))
    for row, release in zip(counts, releases, strict=True):
        np.add.at(row, np.array(release.taken, dtype=np.int64), 1.0)
    if rate == 1.0:
        if (counts != 1.0).any():
            differences.append("a record is not in every step exactly once")
        return AccountingFindings(differences)
    law = sampler_law(counts, sampling_rate=rate)
    if law.rejects(level):
        differences.append(f"samples are not Poisson at rate {rate:g}: {law.worst}")
    return AccountingFindings(differences, law)


def _sampled(event: Event) -> tuple[float, int]:
    match event:
        case Compose(events=(*_, last)):
            return _sampled(last)
        case Repeat(event=PoissonSampled(sampling_rate=rate, event=Gaussian()), count=count):
            return rate, count
        case Repeat(event=Gaussian(), count=count):
            return 1.0, count
    raise PrivacyRefusal(f"only repeated Gaussians, Poisson-sampled or not, can be checked; got {event!r}.")
