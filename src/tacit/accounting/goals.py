"""Goals of a search for noise: a quantity of a plan's privacy curve, such as epsilon, and its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tacit.accounting.account import PrivacyCurve, account
from tacit.accounting.closed_form.gaussian import GaussianPrice
from tacit.accounting.closed_form.single import SinglePrice
from tacit.accounting.flatten import Steps, flatten
from tacit.accounting.methods import BEST, price_of
from tacit.accounting.pld.accountant import estimate
from tacit.accounting.pld.inversion import ContourPrice
from tacit.accounting.pld.truncated import TruncatedPrice, uncut
from tacit.accounting.price import BoundedPrice, LeastPrice
from tacit.errors import InvalidInput, check_real
from tacit.events import (
    Adjacency,
    BallsInBins,
    Compose,
    DiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampled,
    Repeat,
)

TOLERANCE = 8e-5  # relative, of the noise multiplier, if the goal is an epsilon
FINE = 8e-7  # relative, of the noise multiplier, if the goal limits an attack
_TINY = 1e-15


@dataclass(frozen=True)
class Goal:
    """A quantity of a plan's curve, such as epsilon, which falls as noise grows, and its ``limit``.

    ``figure`` computes a certified bound on it; ``near`` and ``rough`` are cheaper estimates.  ``least`` is
    its value for a plan that reveals nothing.  ``tolerance`` is the relative tolerance of the noise.
    """

    words: str  # a format string, with {} for the value
    limit: float
    figure: Callable[[Event], float]
    near: Callable[[Event], float]
    rough: Callable[[Event], float]
    least: float = 0.0
    tolerance: float = TOLERANCE

    def excess(self, value: float) -> float:
        """Return the log of the ratio of ``value`` to the limit, after subtracting ``least`` from both."""
        return math.log(max(_TINY, value - self.least) / (self.limit - self.least))

    def says(self, excess: float = 0.0, digits: str = "g") -> str:
        """Format the value that has this excess, in words."""
        value = self.least + (self.limit - self.least) * math.exp(excess)
        return self.words.format(format(value, digits))


def check_budget(epsilon: object) -> float:
    """Check an epsilon that a run may cost; if it is infinite, say how to train without privacy.

    >>> check_budget(3)
    3.0
    """
    why = ""
    if epsilon == math.inf:
        why = (
            "An infinite epsilon promises nothing. To train the same loop without privacy, take batches from "
            "a torch DataLoader, and replace session.step(step) by loss.backward() and optimizer.step()."
        )
    return check_real("epsilon", epsilon, low=0.0, open_low=True, why=why)


def goal_of(arguments: Mapping[str, float | None], adjacency: Adjacency, method: str) -> Goal:
    """Make the goal from the arguments of :func:`tacit.accounting.calibrate`; None means not given."""

    def risk(words: str, limit: float, figure: Callable[[PrivacyCurve], float], least: float = 0.0) -> Goal:
        def of(event: Event) -> float:
            return figure(account(event, adjacency=adjacency, method=method))

        return Goal(words, limit, of, of, of, least=least, tolerance=FINE)

    goals = {name: value for name, value in arguments.items() if value is not None}
    match tuple(goals):
        case ("epsilon", "delta"):
            delta = goals["delta"]
            return Goal(
                f"epsilon {{}} at delta {delta:g}",
                check_budget(goals["epsilon"]),
                lambda event: account(event, adjacency=adjacency, method=method).epsilon(delta),
                lambda event: price_of(event, adjacency, method).near(delta),
                rough_epsilon(delta, adjacency, method),
            )
        case ("advantage",):
            limit = check_real(
                "advantage", goals["advantage"], low=0.0, high=1.0, open_low=True, open_high=True
            )
            return risk("an advantage of {}", limit, PrivacyCurve.advantage)
        case ("true_positive_rate", "false_positive_rate"):
            false = check_real("false_positive_rate", goals["false_positive_rate"], low=0.0, high=1.0)
            limit = check_real(
                "true_positive_rate", goals["true_positive_rate"], low=false, high=1.0, open_low=True
            )
            words = f"a true-positive rate of {{}} at a false-positive rate of {false:g}"
            return risk(words, limit, lambda curve: 1.0 - curve.false_negative_rate(false), false)
    raise InvalidInput(
        "calibrate takes one goal: epsilon and delta, or advantage, or true_positive_rate and "
        f"false_positive_rate; got {', '.join(goals) or 'none'}."
    )


def rough_epsilon(delta: float, adjacency: Adjacency, method: str) -> Callable[[Event], float]:
    """Return a function that estimates epsilon cheaply, to start a search."""
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    if method in ("pld", BEST):
        return lambda event: _rough_best(event, adjacency, method, delta)
    return lambda event: account(event, adjacency=adjacency, method=method).epsilon(delta)


def _gaussians(steps: Steps, *, sampled: bool) -> Event:
    """Replace mechanisms that take seconds by Gaussians that cost about as much.

    Balls in bins cost about as much as Poisson samples if noise is large, as known bins if it is small."""
    events = list[Event]()
    for base, count in steps:
        match base:
            case DiscreteGaussian(scale, sensitivity):
                events.append(Repeat(Gaussian(scale / sensitivity), count))
            case BallsInBins(bins, inner) if sampled:
                events.append(Repeat(PoissonSampled(1.0 / bins, inner), count * bins))
            case BallsInBins(_, inner):
                events.append(Repeat(inner, count))
            case _:
                events.append(Repeat(base, count))
    return Compose(tuple(events))


def _rough_best(event: Event, adjacency: Adjacency, method: str, delta: float) -> float:
    price, steps = price_of(event, adjacency, method), flatten(event)
    if any(isinstance(base, BallsInBins | DiscreteGaussian) for base, _ in steps):
        sampled, plain = (_gaussians(steps, sampled=sampled) for sampled in (True, False))
        return min(_rough_best(event, adjacency, method, delta) for event in (sampled, plain))
    if isinstance(price, BoundedPrice):
        price = price.inner
    if isinstance(price, LeastPrice):
        if not isinstance(price.first, ContourPrice):
            return price.near(delta)
        price = price.first
    if isinstance(price, TruncatedPrice) and price.is_enough(delta):
        price, steps = price.whole, uncut(steps)
    match price:
        case ContourPrice():
            return price.estimate(delta)
        case GaussianPrice() | SinglePrice():
            return price.epsilon(delta)
    return estimate(steps, adjacency, delta)
