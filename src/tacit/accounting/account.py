"""What does an event cost? From an event and the name of a method to a privacy curve."""

from __future__ import annotations

from tacit.accounting.curve import PrivacyCurve
from tacit.accounting.methods import price_of
from tacit.events import Adjacency, Event


def account(event: Event, *, adjacency: Adjacency | str, method: str = "pld") -> PrivacyCurve:
    """Say what ``event`` costs.

    :param event: any nesting of the events in :mod:`tacit.events`.
    :param adjacency: what neighbours are: ``add-remove``, ``replace-one`` or ``zero-out``; no default.
    :param method: ``pld`` (tight), ``rdp``, ``moments``, ``gaussian``, ``zcdp``, ``gdp``, ``optimal``,
        ``strong`` or ``basic``; or ``best``, the least that any of them proves
        (:meth:`PrivacyCurve.road` says which).
    :raises UnsupportedEvent: if the method has no proven bound for an event inside; it is named.
    :raises NoiseOutOfRange: an ``UnsupportedEvent``, if there is less noise, or more, than can be accounted
        for: on a sample, noise multipliers below 0.1 or above 1e6.
    :raises InvalidInput: if the adjacency or the method is unknown.

    Guarantee
    ---------
    * Every number on the curve is an upper bound, whatever the method.
    * An event n times, and a list of n such events, cost the same.

    >>> from tacit.events import Gaussian, PoissonSampled, Repeat
    >>> event = Repeat(PoissonSampled(0.01, Gaussian(noise_multiplier=4.0)), 10_000)
    >>> round(account(event, adjacency="add-remove").epsilon(delta=1e-5), 3)
    0.947
    """
    relation = Adjacency.parse(adjacency)
    return PrivacyCurve(method, relation, event, price_of(event, relation, method))
