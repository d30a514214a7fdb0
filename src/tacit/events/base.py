"""What do all events share? The interface, the adjacency, and the check that only events nest."""

from __future__ import annotations

from enum import StrEnum

from tacit.errors import InvalidInput, UnsupportedEvent


class Adjacency(StrEnum):
    """Which data sets are neighbours, and so what "one record's presence" means.

    * ``add-remove``: one data set has one record more than the other; the number of records is secret.
    * ``replace-one``: one record is exchanged for another; the number of records is public.
    * ``zero-out``: one record's contribution is replaced by zero, and its place stays; the number of
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


class Event:
    """Something that is done to the data: the interface of all events, with nothing in it.

    Every event is a final frozen dataclass of public facts.  It has no behaviour: training performs it,
    accounting computes its cost, and a part that does not know a class refuses it by name.

    >>> from tacit.events import Gaussian
    >>> isinstance(Gaussian(1.0), Event)
    True
    """

    __slots__ = ()


def check_event(name: str, value: object) -> None:
    """Raise :class:`~tacit.errors.UnsupportedEvent` unless ``value`` is an event.

    >>> check_event("event", "Gaussian")
    Traceback (most recent call last):
    tacit.errors.UnsupportedEvent: event must be one of the events in tacit.events; got 'Gaussian'.
    """
    if not isinstance(value, Event):
        raise UnsupportedEvent(f"{name} must be one of the events in tacit.events; got {value!r}.")
