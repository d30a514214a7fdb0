"""How are events written as JSON, and read back exactly?

An event is an object: its class under ``event``, its fields by their names, the event or events that it
consists of under ``of``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events.base import Event, check_event
from tacit.events.composition import Compose, GroupPrivacy, PrivateSelection, Repeat
from tacit.events.correlated import MatrixFactorization, TreeAggregation
from tacit.events.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    RandomizedResponse,
    ShuffledReports,
    SparseVector,
    ZeroConcentratedDP,
)
from tacit.events.sampling import (
    BallsInBins,
    CyclicPoissonSampled,
    Partitioned,
    PoissonSampled,
    Shuffled,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
)

_ALL: tuple[type[Any], ...] = (
    Gaussian,
    Laplace,
    DiscreteGaussian,
    DiscreteLaplace,
    RandomizedResponse,
    ShuffledReports,
    ApproximateDP,
    ZeroConcentratedDP,
    ExponentialMechanism,
    SparseVector,
    GaussianMixture,
    PoissonSampled,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    BallsInBins,
    Partitioned,
    Shuffled,
    CyclicPoissonSampled,
    TreeAggregation,
    MatrixFactorization,
    Repeat,
    Compose,
    GroupPrivacy,
    PrivateSelection,
)

EVENTS: MappingProxyType[str, type[Any]] = MappingProxyType({event.__name__: event for event in _ALL})
"""All events, by name."""

_INNER = ("event", "events")  # the fields that hold events; in JSON they are called "of"


def _to_data(event: Event) -> dict[str, Any]:
    name = type(event).__name__
    if EVENTS.get(name) is not type(event):
        raise UnsupportedEvent(f"unknown event {event!r}; known: {', '.join(EVENTS)}.")
    fields = [field.name for field in dataclasses.fields(EVENTS[name])]
    data = {"event": name} | {field: getattr(event, field) for field in fields if field not in _INNER}
    match [getattr(event, field) for field in fields if field in _INNER]:
        case [tuple(inner)]:
            data["of"] = [_to_data(item) for item in inner]
        case [inner]:
            data["of"] = _to_data(inner)
    return data


def _from_data(data: object) -> Event:
    if not isinstance(data, Mapping) or "event" not in data:
        raise InvalidInput(f"an event must be an object with the key 'event'; got {data!r}.")
    name = data["event"]
    if not isinstance(name, str) or name not in EVENTS:
        raise UnsupportedEvent(f"unknown event {name!r}; known: {', '.join(EVENTS)}.")
    names = {
        "of" if field.name in _INNER else field.name: field.name for field in dataclasses.fields(EVENTS[name])
    }
    if set(data) - {"event"} != set(names):
        raise InvalidInput(
            f"event {name} takes exactly the fields {', '.join(sorted(names))}; "
            f"got {', '.join(sorted(set(data) - {'event'})) or 'none'}."
        )
    event: Event = EVENTS[name](**{field: _value(name, field, data[key]) for key, field in names.items()})
    return event


def _value(name: str, field: str, value: object) -> object:
    if field == "event":
        return _from_data(value)
    if field == "events":
        if not isinstance(value, list):
            raise InvalidInput(f"event {name} takes a list in 'of'; got {value!r}.")
        return tuple(_from_data(item) for item in value)
    return value


def event_to_json(event: Event) -> str:
    """Serialise an event; :func:`event_from_json` reads it back exactly.

    >>> event_to_json(Repeat(Gaussian(2.0), 3))
    '{"event": "Repeat", "count": 3, "of": {"event": "Gaussian", "noise_multiplier": 2.0}}'
    """
    check_event("event", event)
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
