"""From an event and the name of a method to a privacy curve."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tacit.accounting.closed_form import gaussian, gdp
from tacit.accounting.composition import basic, optimal, strong
from tacit.accounting.curve import Price, PrivacyCurve
from tacit.accounting.flatten import Steps, flatten
from tacit.accounting.pld import accountant as pld
from tacit.accounting.renyi import moments, rdp, zcdp
from tacit.accounting.scales import check_noise
from tacit.errors import check_in
from tacit.events import Adjacency, Event

__all__ = ["METHODS", "account", "price_of"]

METHODS: MappingProxyType[str, Callable[[Steps, Adjacency], Price]] = MappingProxyType(
    {
        "pld": pld.price,
        "rdp": rdp.price,
        "moments": moments.price,
        "gaussian": gaussian.price,
        "zcdp": zcdp.price,
        "gdp": gdp.price,
        "optimal": optimal.price,
        "strong": strong.price,
        "basic": basic.price,
    }
)
"""The accountants by name: each prices a flattened event under an adjacency."""


def account(event: Event, *, adjacency: Adjacency | str, method: str = "pld") -> PrivacyCurve:
    """Say what ``event`` costs.

    :param event: any nesting of the events in :mod:`tacit.events`.
    :param adjacency: what neighbours are: ``add-remove``, ``replace-one`` or ``zero-out``; no default.
    :param method: ``pld`` (tight), ``rdp``, ``moments``, ``gaussian``, ``zcdp``, ``gdp``, ``optimal``,
        ``strong`` or ``basic``.
    :raises UnsupportedEvent: if the method has no proven bound for an event inside; it is named.
    :raises NoiseOutOfRange: an ``UnsupportedEvent``, if there is less noise, or more, than is priced: on a
        sample, noise multipliers below 0.1 or above 1e6.
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


def price_of(event: Event, adjacency: Adjacency, method: str) -> Price:
    """What the accountant ``method`` knows of ``event``."""
    accountant = METHODS[check_in("method", method, tuple(METHODS))]
    steps = flatten(event)
    check_noise(steps, method)
    if not steps:  # nothing is released: exactly 0, whatever the method
        accountant = gaussian.price
    return accountant(steps, adjacency)
