"""The base of all events: their interface, the adjacency, a check for each field name, and their JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from functools import partial
from typing import Any

from tacit.errors import (
    InvalidInput,
    UnsupportedEvent,
    check_in,
    check_integer,
    check_probability,
    check_real,
)
from tacit.serial import Family, from_json, to_data


class Adjacency(StrEnum):
    """The relation between neighbouring datasets: two datasets that a guarantee makes hard to tell apart.

    * ``add-remove``: one dataset has one record more than the other. The number of records is secret.
    * ``replace-one``: both have the same size, and one record is different. The number of records is public.
    * ``zero-out``: in one dataset, one record is replaced by an empty one, which contributes zero. The number
      of records is public (Kairouz et al., 2103.00039, section 2).
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


EVENTS: dict[str, type[Any]] = {}
"""All events of this package, by class name."""


class Event:
    """The base class of all events, without fields or methods.

    An event describes what a run does to the data, such as "add Gaussian noise of this scale". It is a frozen
    dataclass, its fields are public, and its constructor checks them. Code that does not support an event
    raises an error that names the event.

    >>> from tacit.events import Gaussian
    >>> isinstance(Gaussian(1.0), Event)
    True
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("tacit.events."):
            EVENTS[cls.__name__] = cls

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # every event is a dataclass
            value, check = getattr(self, field.name), _CHECKS.get(field.name)
            if check is not None and value is not field.default:
                object.__setattr__(self, field.name, check(field.name, value))


def check_event(name: str, value: object) -> Event:
    """Raise :class:`~tacit.errors.UnsupportedEvent` unless ``value`` is an event.

    >>> check_event("event", "Gaussian")
    Traceback (most recent call last):
    tacit.errors.UnsupportedEvent: event must be an event in tacit.events; got 'Gaussian'.
    """
    if not isinstance(value, Event):
        raise UnsupportedEvent(f"{name} must be an event in tacit.events; got {value!r}.")
    return value


def _events(name: str, values: Any) -> tuple[Event, ...]:
    return tuple(check_event(f"{name}[{position}]", event) for position, event in enumerate(values))


def _reals(name: str, values: object, *, low: float = 0.0, high: float = math.inf) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InvalidInput(f"{name} must be a non-empty sequence of real numbers; got {values!r}.")
    return tuple(check_real(f"{name}[{i}]", value, low=low, high=high) for i, value in enumerate(values))


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False; got {value!r}.")
    return value


_POSITIVE = ("noise_multiplier", "scale", "epsilon_threshold", "epsilon_queries")
_COUNTS = (
    "sensitivity", "records", "hits", "batch_size", "largest_batch", "bins", "passes", "batches", "cycle",
    "leaves", "steps", "participations", "separation", "count", "size",
)  # fmt: skip
_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(_POSITIVE, partial(check_real, low=0.0, open_low=True)),
    **dict.fromkeys(("epsilon", "rho"), partial(check_real, low=0.0)),
    **dict.fromkeys(("sampling_rate", "noise", "delta"), check_probability),
    **dict.fromkeys(_COUNTS, partial(check_integer, low=1)),
    "categories": partial(check_integer, low=2),
    "monotonic": _boolean,
    "event": check_event,
    "events": _events,
    "sensitivities": _reals,
    "probabilities": partial(_reals, high=1.0),
    "coefficients": partial(_reals, low=-math.inf),
    "distribution": partial(check_in, allowed=("poisson", "negative-binomial")),
}
"""The check of each field, by its name.  Defaults are not checked, and rules about several fields are
checked by their class."""

# Events as JSON, which can be read back exactly.  An event is a JSON object.  It has the class name under
# ``event``, the fields under their names, and the event or events that it consists of under ``of``.

FAMILY = Family("event", EVENTS.values(), unknown=UnsupportedEvent)


def event_to_json(event: Event) -> str:
    """Write an event as JSON.  :func:`event_from_json` reads the same event back.

    >>> from tacit.events import Gaussian, Repeat
    >>> event_to_json(Repeat(Gaussian(2.0), 3))
    '{"event": "Repeat", "count": 3, "of": {"event": "Gaussian", "noise_multiplier": 2.0}}'
    """
    check_event("event", event)
    return json.dumps(to_data(event, [FAMILY]))


def event_from_json(text: str) -> Event:
    """Read an event that :func:`event_to_json` wrote.

    Raises:
        UnsupportedEvent: if the kind of event is unknown. The message names it.

    >>> event_from_json('{"event": "Gaussian", "noise_multiplier": 2.0}')
    Gaussian(noise_multiplier=2.0)
    """
    event: Event = from_json(text, [FAMILY])
    return event
