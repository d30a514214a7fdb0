"""Which accountants are there? By name, with the cost of an event by one of them."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tacit.accounting.closed_form import gaussian, gdp
from tacit.accounting.composition import basic, optimal, strong
from tacit.accounting.flatten import Steps, flatten
from tacit.accounting.pld import accountant as pld
from tacit.accounting.price import Price
from tacit.accounting.renyi import moments, rdp, zcdp
from tacit.accounting.scales import check_noise
from tacit.errors import check_in
from tacit.events import Adjacency, Event

__all__ = ["METHODS", "price_of"]

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


def price_of(event: Event, adjacency: Adjacency, method: str) -> Price:
    """What the accountant ``method`` knows of ``event``."""
    accountant = METHODS[check_in("method", method, tuple(METHODS))]
    steps = flatten(event)
    check_noise(steps, method)
    if not steps:  # nothing is released: exactly 0, whatever the method
        accountant = gaussian.price
    return accountant(steps, adjacency)
