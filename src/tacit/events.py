"""What a run does to the data, as frozen data: the vocabulary that every part shares.

Training performs events, accounting prices them, audits test them, reports print them.  The class is
the definition of the mechanism.  A part that meets an event it does not know refuses it by name.

One convention for sensitivity holds throughout.  A mechanism releases ``sum_i f(x_i) + noise``, and one
record contributes a vector of norm at most Delta.  ``noise_multiplier`` is the scale of the noise divided
by *Delta*.  Under ``add-remove`` and ``zero-out`` two neighbouring sums differ by at most Delta; under
``replace-one`` by at most 2 Delta, and accountants take that factor into account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from tacit.errors import InvalidInput, UnsupportedEvent, check_integer, check_probability, check_real

__all__ = [
    "Adjacency",
    "Compose",
    "Event",
    "Gaussian",
    "Laplace",
    "PoissonSampled",
    "Repeat",
    "event_from_json",
    "event_to_json",
]


class Adjacency(StrEnum):
    """Which data sets count as neighbours, that is: what "one record's presence" means.

    * ``add-remove``: one data set has one record more than the other; the number of records is secret.
    * ``replace-one``: one record is exchanged for another; the number of records is public.
    * ``zero-out``: one record's contribution is replaced by nothing, its place is kept; the number of
      records is public (Kairouz et al., 2103.00039, section 2).
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    @classmethod
    def parse(cls, value: object) -> Adjacency:
        """Read an adjacency from its name.

        >>> Adjacency.parse("add-remove")
        <Adjacency.ADD_REMOVE: 'add-remove'>
        """
        try:
            return cls(str(value))
        except ValueError:
            names = ", ".join(member.value for member in cls)
            raise InvalidInput(f"adjacency must be one of {names}; got {value!r}.") from None


@dataclass(frozen=True)
class Gaussian:
    """``f(D) + N(0, (noise_multiplier * Delta)^2 I)``, f a sum of vectors of l2 norm at most Delta.

    >>> Gaussian(noise_multiplier=1.5)
    Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        value = check_real("noise_multiplier", self.noise_multiplier, low=0.0, open_low=True)
        object.__setattr__(self, "noise_multiplier", value)


@dataclass(frozen=True)
class Laplace:
    """``f(D) + Lap(noise_multiplier * Delta)``, f a sum of numbers (or vectors of l1 norm) at most Delta."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        value = check_real("noise_multiplier", self.noise_multiplier, low=0.0, open_low=True)
        object.__setattr__(self, "noise_multiplier", value)


@dataclass(frozen=True)
class PoissonSampled:
    """``event`` on a random subset: every record takes part with probability ``sampling_rate``,
    independently of all others and of every other step."""

    sampling_rate: float
    event: Event

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_rate", check_probability("sampling_rate", self.sampling_rate))
        _check_event("event", self.event)


@dataclass(frozen=True)
class Repeat:
    """``event`` performed ``count`` times, each time with fresh randomness, possibly adaptively."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _check_event("event", self.event)
        object.__setattr__(self, "count", check_integer("count", self.count, low=1))


@dataclass(frozen=True)
class Compose:
    """All of ``events``, one after the other, each possibly chosen in view of the earlier answers'
    values but with its own parameters fixed beforehand.  ``Compose(())`` releases nothing."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        for position, event in enumerate(self.events):
            _check_event(f"events[{position}]", event)


Event: TypeAlias = Gaussian | Laplace | PoissonSampled | Repeat | Compose


def _check_event(name: str, value: object) -> None:
    if not isinstance(value, Gaussian | Laplace | PoissonSampled | Repeat | Compose):
        known = "Gaussian, Laplace, PoissonSampled, Repeat, Compose"
        raise UnsupportedEvent(f"{name} must be an event ({known}); got {value!r}.")


def _to_data(event: Event) -> dict[str, Any]:
    match event:
        case Gaussian(noise_multiplier) | Laplace(noise_multiplier):
            return {"event": type(event).__name__, "noise_multiplier": noise_multiplier}
        case PoissonSampled(sampling_rate, inner):
            return {"event": "PoissonSampled", "sampling_rate": sampling_rate, "of": _to_data(inner)}
        case Repeat(inner, count):
            return {"event": "Repeat", "count": count, "of": _to_data(inner)}
        case Compose(events):
            return {"event": "Compose", "of": [_to_data(inner) for inner in events]}


_READERS: dict[str, tuple[frozenset[str], Callable[[Mapping[str, Any]], Event]]] = {
    "Gaussian": (frozenset({"noise_multiplier"}), lambda data: Gaussian(data["noise_multiplier"])),
    "Laplace": (frozenset({"noise_multiplier"}), lambda data: Laplace(data["noise_multiplier"])),
    "PoissonSampled": (
        frozenset({"sampling_rate", "of"}),
        lambda data: PoissonSampled(data["sampling_rate"], _from_data(data["of"])),
    ),
    "Repeat": (frozenset({"count", "of"}), lambda data: Repeat(_from_data(data["of"]), data["count"])),
    "Compose": (frozenset({"of"}), lambda data: Compose(tuple(_from_data(item) for item in data["of"]))),
}


def _from_data(data: object) -> Event:
    if not isinstance(data, Mapping) or "event" not in data:
        raise InvalidInput(f"an event must be an object with the key 'event'; got {data!r}.")
    name = data["event"]
    if not isinstance(name, str) or name not in _READERS:
        raise UnsupportedEvent(f"unknown event {name!r}; known: {', '.join(_READERS)}.")
    fields, read = _READERS[name]
    if set(data) - {"event"} != fields:
        raise InvalidInput(
            f"event {name} takes exactly the fields {', '.join(sorted(fields))}; "
            f"got {', '.join(sorted(set(data) - {'event'})) or 'none'}."
        )
    if name == "Compose" and not isinstance(data["of"], list | tuple):
        raise InvalidInput(f"event Compose takes a list in 'of'; got {data['of']!r}.")
    return read(data)


def event_to_json(event: Event) -> str:
    """Serialise an event; :func:`event_from_json` reads it back exactly.

    >>> event_to_json(Repeat(Gaussian(2.0), 3))
    '{"event": "Repeat", "count": 3, "of": {"event": "Gaussian", "noise_multiplier": 2.0}}'
    """
    _check_event("event", event)
    return json.dumps(_to_data(event))


def event_from_json(text: str) -> Event:
    """Read an event written by :func:`event_to_json`; unknown events are refused by name.

    >>> event_from_json('{"event": "Gaussian", "noise_multiplier": 2.0}')
    Gaussian(noise_multiplier=2.0)
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as problem:
        raise InvalidInput(f"not an event in JSON: {problem}.") from None
    return _from_data(data)
