"""Events as JSON, which can be read back exactly.

An event is a JSON object.  It has the class name under ``event``, the fields under their names, and the event
or events that it consists of under ``of``.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from tacit.errors import UnsupportedEvent
from tacit.events import composition, correlated, mechanisms, sampling
from tacit.events.base import Event, check_event
from tacit.serial import Family, from_json, to_data

FAMILY = Family(
    "event",
    tuple(
        kind
        for file in (mechanisms, sampling, correlated, composition)
        for kind in vars(file).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind.__module__ == file.__name__
    ),
    unknown=UnsupportedEvent,
)

EVENTS: MappingProxyType[str, type[Any]] = MappingProxyType({event.__name__: event for event in FAMILY.kinds})
"""All events by class name; they are defined in the files of this package."""


def event_to_json(event: Event) -> str:
    """Serialise an event; :func:`event_from_json` reads it back exactly.

    >>> from tacit.events import Gaussian, Repeat
    >>> event_to_json(Repeat(Gaussian(2.0), 3))
    '{"event": "Repeat", "count": 3, "of": {"event": "Gaussian", "noise_multiplier": 2.0}}'
    """
    check_event("event", event)
    return json.dumps(to_data(event, [FAMILY]))


def event_from_json(text: str) -> Event:
    """Read an event that :func:`event_to_json` wrote.  Unknown events are refused by name.

    >>> event_from_json('{"event": "Gaussian", "noise_multiplier": 2.0}')
    Gaussian(noise_multiplier=2.0)
    """
    event: Event = from_json(text, [FAMILY])
    return event
