"""How is a mechanism described to readers of a certificate? In words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tacit.events import (
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    Repeat,
    ZeroConcentratedDP,
)


def in_words(event: Event) -> str:
    """What the mechanism does, in one phrase; an event without a phrase is shown by its name and fields.

    >>> in_words(Repeat(PoissonSampled(0.01, Gaussian(1.1)), 1000))
    '1,000 times: of each record with probability 0.01, Gaussian noise of 1.1 times the sensitivity'
    """
    match event:
        case Gaussian(sigma):
            return f"Gaussian noise of {sigma:.6g} times the sensitivity"
        case Laplace(scale):
            return f"Laplace noise of {scale:.6g} times the sensitivity"
        case DiscreteGaussian(scale, sensitivity):
            return f"discrete Gaussian noise of scale {scale:.6g} on integers of sensitivity {sensitivity:,}"
        case DiscreteLaplace(scale, sensitivity):
            return f"discrete Laplace noise of scale {scale:.6g} on integers of sensitivity {sensitivity:,}"
        case ExponentialMechanism(epsilon):
            return f"a choice by the exponential mechanism, ε = {epsilon:.6g} at δ = 0"
        case ApproximateDP(epsilon, delta):
            return f"a mechanism of ε = {epsilon:.6g} at δ = {delta:.6g}"
        case ZeroConcentratedDP(rho):
            return f"a mechanism of zero-concentrated ρ = {rho:.6g}"
        case PoissonSampled(rate, inner):
            return f"of each record with probability {rate:.6g}, {in_words(inner)}"
        case Repeat(inner, count):
            return f"{count:,} times: {in_words(inner)}"
        case Compose(events):
            return "; and ".join(map(in_words, events)) or "nothing that depends on a record"
        case PrivateSelection(inner, distribution, mean):
            trials = f"a secret number of trials ({distribution}, mean {mean:.6g})"
            return f"the best of {trials}, each {in_words(inner)}"
    return _by_name(event)


def _by_name(event: Event) -> str:
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}  # type: ignore[arg-type]
    shown = [f"{name} {value}" for name, value in fields.items() if not _holds_events(value)]
    made_of = [in_words(part) for value in fields.values() for part in _events(value)]
    return f"{type(event).__name__} ({', '.join(shown)})" + "".join(f" of {words}" for words in made_of)


def parts(event: Event) -> Iterator[Event]:
    """The event and all its parts, outermost first.

    >>> [type(part).__name__ for part in parts(Repeat(Gaussian(1.0), 3))]
    ['Repeat', 'Gaussian']
    """
    yield event
    for field in dataclasses.fields(event):  # type: ignore[arg-type]
        for inner in _events(getattr(event, field.name)):
            yield from parts(inner)


def _events(value: object) -> tuple[Event, ...]:
    if isinstance(value, Event):
        return (value,)
    return tuple(item for item in value if isinstance(item, Event)) if isinstance(value, tuple) else ()


def _holds_events(value: object) -> bool:
    return bool(_events(value))
