"""The accountants by name, and the cost of an event by one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

from tacit.accounting.additive import pure_claim
from tacit.accounting.closed_form import gaussian
from tacit.accounting.composition import theorems
from tacit.accounting.flatten import Steps, flatten
from tacit.accounting.pld import accountant as pld
from tacit.accounting.price import BoundedPrice, LeastPrice, Price
from tacit.accounting.renyi import moments, rdp, zcdp
from tacit.accounting.scales import check_noise
from tacit.errors import InvalidInput, UnsupportedEvent, check_in
from tacit.events import Adjacency, Event, PrivateSelection

METHODS: MappingProxyType[str, Callable[[Steps, Adjacency], Price]] = MappingProxyType(
    {
        "pld": pld.price,
        "rdp": rdp.price,
        "moments": moments.price,
        "gaussian": gaussian.price,
        "zcdp": zcdp.price,
        "optimal": partial(theorems.price, theorems.OptimalPrice),
        "strong": partial(theorems.price, theorems.StrongPrice),
        "basic": partial(theorems.price, theorems.BasicPrice),
    }
)
"""The accountants by name.  Each one prices a flattened event under an adjacency."""


BEST = "best"
"""The method that returns the least of all proven bounds."""
_CANDIDATES = ("pld", "rdp", "optimal")  # one of these has the least bound; no other accountant proves less
_OF_CLAIMS = ("pld", "optimal", "strong", "basic")
_TOLERANCE = 1e-6  # of epsilon: methods closer than this count as equal, and the first one is used


def price_of(event: Event, adjacency: Adjacency, method: str) -> Price:
    """Compute the price of ``event`` by the accountant ``method``."""
    if method == "gdp":
        raise InvalidInput(
            "method 'gdp' is removed: the other methods prove as much or more, and the central limit "
            "theorem is no bound. Use method 'best'."
        )
    check_in("method", method, (*METHODS, BEST))
    steps = flatten(event)
    check_noise(steps, method)
    if not steps:  # nothing is released: exactly 0, whatever the method
        return gaussian.price(steps, adjacency)
    return _by(method, steps, adjacency) if method != BEST else _best(steps, adjacency)


def _by(method: str, steps: Steps, adjacency: Adjacency) -> Price:
    """Price ``steps`` by one accountant, and, if it composes pure claims, by their sum, which is exact."""
    price = METHODS[method](steps, adjacency)
    claim = pure_claim(steps, adjacency) if method in _OF_CLAIMS else None
    return price if claim is None else BoundedPrice(price, *claim)


def _best(steps: Steps, adjacency: Adjacency) -> Price:
    """Return the least of all proven bounds.  If there is none, raise the first accountant's refusal."""
    prices: dict[str, Price] = {}
    refusals: list[UnsupportedEvent] = []
    selects = any(isinstance(base, PrivateSelection) for base, _ in steps)  # pld's curve ends at about 1e-14
    for name in _CANDIDATES:
        if name == "optimal" and "pld" in prices and not selects:
            break  # "pld" composes the same pairs, to four digits at least
        try:
            prices[name] = _by(name, steps, adjacency)
        except UnsupportedEvent as refusal:
            refusals.append(refusal)
    if not prices:
        raise refusals[0]
    return LeastPrice(prices, alike=_TOLERANCE)
