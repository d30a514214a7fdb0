"""The cost of an event: lower and upper bounds on epsilon by accountant, and bounds on an attacker.

This file does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit import __version__
from tacit.accounting import METHODS, PrivacyCurve, account
from tacit.errors import InvalidInput, UnsupportedEvent, check_in
from tacit.events import Adjacency, Event, event_to_json

_RATES = (0.001, 0.01, 0.1)
_PRIORS = (0.01, 0.5)


@dataclass(frozen=True)
class Quote:
    """One accountant's answer: bounds on epsilon in nats, or the reason why there are none (``refusal``).

    ``directions`` has an upper bound for each direction of the adjacency, such as add and remove, if the
    accountant distinguishes them.
    """

    method: str
    lower: float
    upper: float
    directions: Mapping[str, float] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(frozen=True)
class Risk:
    """Upper bounds on what an attacker who sees the release can do, from one curve.

    ``success`` is the probability of a right guess if members and non-members are equally common.
    ``detected`` has pairs (false-positive rate, true-positive rate), and ``posteriors`` pairs of
    probabilities of membership, (before the release, after it). With probability delta, the second may be
    exceeded.
    """

    method: str
    advantage: float
    success: float
    detected: tuple[tuple[float, float], ...]
    posteriors: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Pricing:
    """An event and its cost at one delta, by one or several accountants."""

    event: Event
    adjacency: Adjacency
    delta: float
    quotes: tuple[Quote, ...]
    curves: tuple[PrivacyCurve, ...]
    risk: Risk

    @property
    def best(self) -> PrivacyCurve:
        """The curve with the smallest upper bound on epsilon."""
        return _best(self.quotes, self.curves)

    @property
    def epsilon(self) -> float:
        """The smallest upper bound on epsilon, in nats."""
        return min(quote.upper for quote in self.quotes if quote.refusal is None)

    def to_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        risk = self.risk
        return {
            "event": json.loads(event_to_json(self.event)),
            "adjacency": self.adjacency.value,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "methods": [_quote_data(quote) for quote in self.quotes],
            "risk": {
                "method": risk.method,
                "advantage": risk.advantage,
                "success_at_even_odds": risk.success,
                "true_positive_rate": [{"at_false_positive_rate": a, "at_most": t} for a, t in risk.detected],
                "posterior": [{"prior": before, "at_most": after} for before, after in risk.posteriors],
            },
            "version": __version__,
        }


def no_progress(title: str, done: int, total: int) -> None:
    """Ignore a report of progress."""


def _best(quotes: Sequence[Quote], curves: Sequence[PrivacyCurve]) -> PrivacyCurve:
    upper = {quote.method: quote.upper for quote in quotes if quote.refusal is None}
    return min(curves, key=lambda curve: upper[curve.method])


def _risk(curve: PrivacyCurve, delta: float) -> Risk:
    false_negatives = curve.false_negative_rate(np.array(_RATES))
    after = curve.posterior(np.array(_PRIORS), delta=delta)
    return Risk(
        method=curve.method,
        advantage=curve.advantage(),
        success=curve.success(0.5),
        detected=tuple(zip(_RATES, (1.0 - false_negatives).tolist(), strict=True)),
        posteriors=tuple(zip(_PRIORS, after.tolist(), strict=True)),
    )


def _quote_data(quote: Quote) -> dict[str, Any]:
    if quote.refusal is not None:
        return {"method": quote.method, "refused": quote.refusal}
    return {
        "method": quote.method,
        "epsilon": quote.upper,
        "epsilon_lower": quote.lower,
        "directions": dict(quote.directions),
    }


def price_event(
    event: Event,
    *,
    adjacency: Adjacency | str,
    delta: float,
    methods: Sequence[str],
    skip_refusals: bool = False,
    progress: Callable[[str, int, int], object] = no_progress,
) -> Pricing:
    """Compute the cost of ``event`` at ``delta`` by each of ``methods``.

    Args:
        progress: called with (title, done, total) as the accountants finish.

    **Guarantee**

    * Every ``upper`` is an upper bound on epsilon, and every figure of ``risk`` is an upper bound on what an
      attacker can do.
    """
    if not methods or len(set(methods)) < len(methods):
        raise InvalidInput(
            "methods must be accountants (ways to compute epsilon), each named once; got "
            f"{', '.join(methods)}."
        )
    for name in methods:
        check_in("method", name, (*METHODS, "best"))
    relation = Adjacency.parse(adjacency)
    quotes: list[Quote] = []
    curves: list[PrivacyCurve] = []
    for done, name in enumerate(methods):
        progress("pricing", done, len(methods) + 1)
        try:
            curve = account(event, adjacency=relation, method=name)
            lower, upper = curve.epsilon_bounds(delta)
        except UnsupportedEvent as problem:
            if not skip_refusals:
                raise
            quotes.append(Quote(name, math.nan, math.nan, refusal=str(problem)))
            continue
        curves.append(curve)
        quotes.append(Quote(name, lower, upper, curve.by_direction(delta)))
    if not curves:
        reasons = " ".join(dict.fromkeys(str(quote.refusal) for quote in quotes))
        names = ", ".join(methods)
        raise UnsupportedEvent(
            f"none of the accountants {names} can bound epsilon for this mechanism. {reasons}"
        )
    progress("pricing", len(methods), len(methods) + 1)
    risk = _risk(_best(quotes, curves), delta)
    progress("pricing", len(methods) + 1, len(methods) + 1)
    return Pricing(event, relation, delta, tuple(quotes), tuple(curves), risk)
