"""What is priced: an event, flattened to a multiset of base mechanisms.

Repetition and composition are handled here, once, for every accountant: an n-fold event and a list of
n events become the same multiset, so no accountant can price them differently.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from tacit.errors import UnsupportedEvent
from tacit.events import Adjacency, Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat

__all__ = ["Base", "Steps", "flatten", "in_units_of", "refuse_sampled_replacement", "total_mu"]

Base: TypeAlias = Gaussian | Laplace | PoissonSampled
Steps: TypeAlias = tuple[tuple[Base, int], ...]


def flatten(event: Event) -> Steps:
    """Return the base mechanisms in ``event`` with their counts, in order of first appearance.

    A base mechanism is ``Gaussian``, ``Laplace`` or ``PoissonSampled`` of one of them with a rate in (0, 1).

    >>> flatten(Compose((Gaussian(1.0), Repeat(Gaussian(1.0), 2), PoissonSampled(1.0, Gaussian(3.0)))))
    ((Gaussian(noise_multiplier=1.0), 3), (Gaussian(noise_multiplier=3.0), 1))
    """
    counts: dict[Base, int] = {}
    _count(event, 1, counts)
    return tuple(counts.items())


def _count(event: Event, times: int, counts: dict[Base, int]) -> None:
    match event:
        case Gaussian() | Laplace():
            counts[event] = counts.get(event, 0) + times
        case Repeat(inner, count):
            _count(inner, times * count, counts)
        case Compose(events):
            for inner in events:
                _count(inner, times, counts)
        case PoissonSampled(rate, inner):
            for base in _sampled(rate, inner):
                counts[base] = counts.get(base, 0) + times
        case _:
            raise UnsupportedEvent(
                f"accounting knows no price for {event!r}: it is none of Gaussian, Laplace, PoissonSampled, "
                "Repeat, Compose. Describe the mechanism with these, or leave it out of the private run."
            )


def _sampled(rate: float, inner: Event) -> list[Base]:
    """The base mechanisms that ``inner`` on a Poisson sample amounts to, with repetitions."""
    steps = flatten(inner)
    if rate == 0.0:
        return []
    if rate == 1.0:
        return [base for base, count in steps for _ in range(count)]
    match steps:
        case ():
            return []
        case ((PoissonSampled(inner_rate, base), 1),):  # a Poisson sample of a Poisson sample is one
            return [PoissonSampled(rate * inner_rate, base)]
        case ((base, 1),):
            return [PoissonSampled(rate, base)]
    raise UnsupportedEvent(
        f"PoissonSampled({rate!r}, {inner!r}): several releases on one and the same random subset have no "
        "proven price here. Sample anew for each release, that is, write "
        "Repeat(PoissonSampled(rate, mechanism), count) or Compose of PoissonSampled events."
    )


def in_units_of(adjacency: Adjacency, steps: Steps) -> Steps:
    """Divide the noise by the sensitivity that ``adjacency`` gives to mechanisms without sampling.

    Neighbouring sums differ by at most Delta under add-remove and zero-out, by 2 Delta under replace-one.
    Sampled mechanisms stay as they are: their replace-one pair is not a rescaled add-remove pair.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        return steps
    halved: dict[Base, int] = {}
    for base, count in steps:
        unit = base if isinstance(base, PoissonSampled) else type(base)(base.noise_multiplier / 2.0)
        halved[unit] = halved.get(unit, 0) + count
    return tuple(halved.items())


def refuse_sampled_replacement(steps: Steps, adjacency: Adjacency, method: str) -> None:
    """Refuse sampled mechanisms under replace-one, for accountants with no proven bound for them."""
    for base, _ in steps:
        if adjacency is Adjacency.REPLACE_ONE and isinstance(base, PoissonSampled):
            raise UnsupportedEvent(
                f"method {method!r} has no proven bound for {base!r} under adjacency 'replace-one'. Use "
                "method 'pld' for a sampled Gaussian, or account under 'add-remove' or 'zero-out'."
            )


def total_mu(steps: Steps) -> float:
    """mu of the composition of all Gaussians without sampling in ``steps``: mu^2 = sum of 1/sigma^2.

    Dong, Roth & Su 2019 (1905.02383), Corollary 3.3.
    """
    return math.hypot(
        *(math.sqrt(count) / base.noise_multiplier for base, count in steps if isinstance(base, Gaussian))
    )
