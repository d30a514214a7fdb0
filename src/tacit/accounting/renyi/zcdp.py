"""Zero-concentrated differential privacy: one number rho that adds up (Bun & Steinke 2016, 1605.02065).

rho-zCDP means eps_RDP(alpha) <= rho alpha at every order alpha > 1 (Definition 1.1).  It composes by addition
(Lemma 1.7).  The conversion to (epsilon, delta) uses the best order, and the best conversion of one order.
"""

from __future__ import annotations

from tacit.accounting.closed_form.pure import pure_epsilon
from tacit.accounting.flatten import Base, Steps, in_units_of
from tacit.accounting.price import Price
from tacit.accounting.renyi.rdp import RenyiPrice
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    GroupPrivacy,
    ZeroConcentratedDP,
)

_UP = 1.0 + 1e-12
_LARGEST = 1e9  # alpha - 1


def rho(base: Base, adjacency: Adjacency) -> float:
    """Compute rho of one mechanism, in units of ``adjacency``, rounded up.

    >>> [round(rho(base, Adjacency.ADD_REMOVE), 9) for base in (Gaussian(2.0), ExponentialMechanism(0.5))]
    [0.125, 0.03125]
    """
    match base:
        case Gaussian(sigma):  # Bun & Steinke 2016, Proposition 1.6
            return 0.5 / sigma / sigma * _UP
        case DiscreteGaussian(scale, sensitivity):  # Canonne, Kamath & Steinke 2020 (2004.00010), Theorem 4
            return 0.5 * (sensitivity / scale) * (sensitivity / scale) * _UP  # ** would raise, not overflow
        case ZeroConcentratedDP(value):
            return value
        case ExponentialMechanism(epsilon):  # Cesar & Rogers 2021 (2004.07223), Lemma 3.2
            return epsilon * epsilon / 8.0 * _UP
        case GroupPrivacy(inner, size):  # Bun & Steinke 2016, Proposition 1.9
            return size * size * rho(inner, adjacency) * _UP
    pure = pure_epsilon(base, adjacency)
    if pure is not None:  # Bun & Steinke 2016, Proposition 1.4
        return pure * pure / 2.0 * _UP
    raise UnsupportedEvent(
        f"method 'zcdp' has no rho for {base!r} under adjacency {adjacency.value!r}: none is known for a "
        "mechanism with a delta, or for a sampled one without a pure epsilon. Use method 'pld' or 'rdp'."
    )


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price by zero-concentrated differential privacy.  Of sampled mechanisms only pure ones are supported.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds.
    * ``epsilon`` is never above rho + 2 sqrt(rho log(1/delta)), the conversion of the paper.
    """
    units = in_units_of(adjacency, steps)
    return curve(sum(count * rho(base, adjacency) for base, count in units) * _UP)


def curve(rho: float) -> RenyiPrice:
    """Return the (epsilon, delta) curve of rho-zCDP.

    >>> round(curve(0.5).epsilon(1e-5), 4)  # rho + 2 sqrt(rho log(1/delta)) is 5.2985
    4.7284
    """
    return RenyiPrice(lambda orders: rho * orders, _LARGEST)
