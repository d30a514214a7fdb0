"""Conversion of events to and from Google's dp_accounting, and the epsilon that it computes."""

# An event of one library becomes the event of the other library that describes the same mechanism. If there
# is none, the conversion raises an error that names the event. Both libraries define a noise multiplier as
# the standard deviation of the noise over the bound on one record's contribution, under every adjacency, so
# nothing is rescaled.
#
# dp_accounting rounds privacy losses up to a grid (spacing 1e-4 by default). So it returns upper bounds,
# and no lower bounds. It does not allow for floating-point rounding: if the number of steps times 1e-16 is
# close to delta, its answer is too small. Two costs in its version 0.6.0 are known to be wrong, so this
# module never computes them. Under replace-one its Renyi accountant takes sensitivity 1 instead of 2
# (google/differential-privacy#378), and its PLD accountant counts a repeated randomised response once.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from tacit.errors import InvalidInput, UnsupportedEvent, check_real, needed
from tacit.events import (
    Adjacency,
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)
from tacit.events.base import check_event
from tacit.report.verification import Opinion

__all__ = ["from_dp_accounting", "to_dp_accounting"]

_INTERVAL = 1e-4  # the default spacing of privacy losses on dp_accounting's grid
_NOISE, _INNER = {"noise_multiplier": "noise_multiplier"}, {"event": "event"}
_SAMPLE = {"records": "source_dataset_size", "batch_size": "sample_size"} | _INNER
_SAME: Mapping[type[Any], tuple[str, Mapping[str, str]]] = {
    Gaussian: ("GaussianDpEvent", _NOISE),
    Laplace: ("LaplaceDpEvent", _NOISE),
    RandomizedResponse: (
        "RandomizedResponseDpEvent", {"noise": "noise_parameter", "categories": "num_buckets"},
    ),
    GaussianMixture: (
        "MixtureOfGaussiansDpEvent",
        {"noise_multiplier": "standard_deviation", "sensitivities": "sensitivities",
         "probabilities": "sampling_probs"},
    ),
    ZeroConcentratedDP: ("ZCDpEvent", {"rho": "rho"}),
    Repeat: ("SelfComposedDpEvent", _INNER | {"count": "count"}),
    PoissonSampled: ("PoissonSampledDpEvent", {"sampling_rate": "sampling_probability"} | _INNER),
    WithoutReplacement: ("SampledWithoutReplacementDpEvent", _SAMPLE),
    WithReplacement: ("SampledWithReplacementDpEvent", _SAMPLE),
}  # fmt: skip
"""Events that differ only in names: from our class to theirs, and from our fields to theirs."""
_NOISE_OF = {
    "DiscreteGaussianDpEvent": "sigma",
    "DiscreteLaplaceDpEvent": "noise_parameter",
    "MixtureOfGaussiansDpEvent": "standard_deviation",
}
_MOST_COPIES = 1000  # the most copies of a randomised response that a conversion writes out


def _google(purpose: str, part: str = "dp_accounting.dp_event") -> Any:
    return needed(part, "second-opinion", purpose, package="dp-accounting")


def to_dp_accounting(event: Event) -> Any:
    """Convert an event (the description of a mechanism) to a ``DpEvent`` of dp_accounting.

    **Guarantee**

    * The result costs the same as ``event`` under any correct accountant of dp_accounting.
    * :func:`from_dp_accounting` converts the result back to ``event``. Only the scale of a discrete Laplace
      is rounded once, because dp_accounting stores the inverse of the scale.

    Raises:
        UnsupportedEvent: if dp_accounting has no class for ``event`` or for an event inside it; the message
            names it.
        MissingExtra: if dp_accounting is not installed.

    >>> to_dp_accounting(Repeat(PoissonSampled(0.01, Gaussian(2.0)), 100))  # doctest: +NORMALIZE_WHITESPACE
    SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01,
        event=GaussianDpEvent(noise_multiplier=2.0)), count=100)
    """
    check_event("event", event)
    return _to(_google("conversion to dp_accounting's events"), event)


def _to(dp: Any, event: Event) -> Any:
    if type(event) in _SAME:
        name, fields = _SAME[type(event)]
        values = ((theirs, getattr(event, ours)) for ours, theirs in fields.items())
        return getattr(dp, name)(
            **{theirs: _to(dp, value) if isinstance(value, Event) else value for theirs, value in values}
        )
    match event:
        case Compose(events):
            return dp.ComposedDpEvent([_to(dp, inner) for inner in events])
        case DiscreteLaplace(scale, sensitivity):
            return dp.DiscreteLaplaceDpEvent(1.0 / scale, sensitivity)
        case TruncatedPoissonSampled(rate, records, largest, Gaussian(noise)):
            return dp.TruncatedSubsampledGaussianDpEvent(records, rate, largest, noise)
        case PrivateSelection(inner, _, mean, shape):
            return dp.RepeatAndSelectDpEvent(_to(dp, inner), mean, math.inf if shape is None else shape)
        case TreeAggregation(noise, leaves, 1, _):
            return dp.SingleEpochTreeAggregationDpEvent(noise, leaves)
    raise UnsupportedEvent(
        f"dp_accounting has no equivalent of {event!r}. Leave the event out of the conversion, or use "
        "Tacit's accountants."
    )


def from_dp_accounting(event: object) -> Event:
    """Convert a ``DpEvent`` of dp_accounting to the event (the description of a mechanism) of Tacit.

    Raises:
        UnsupportedEvent: if Tacit has no event for this mechanism, or if the mechanism guarantees nothing, as
            with noise 0.
        InvalidInput: if ``event`` is not a ``DpEvent``, or if a value in it is out of range.
        MissingExtra: if dp_accounting is not installed.

    >>> import dp_accounting
    >>> from_dp_accounting(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 3))
    Repeat(event=Gaussian(noise_multiplier=2.0), count=3)
    """
    dp = _google("conversion from dp_accounting's events")
    if not isinstance(event, dp.DpEvent):
        raise InvalidInput(f"event must be a DpEvent of dp_accounting; got {event!r}.")
    name = type(event).__name__
    if getattr(dp, name, None) is type(event):
        if name in ("NonPrivateDpEvent", "UnsupportedDpEvent"):
            raise UnsupportedEvent(
                f"{event!r} does not describe a mechanism with a guarantee. Replace or remove it."
            )
        if getattr(event, _NOISE_OF.get(name, "noise_multiplier"), 1) == 0:
            raise UnsupportedEvent(
                f"{event!r} adds no noise and guarantees nothing. Give it noise above 0, or remove it."
            )
        if (result := _from(name, event)) is not None:
            return result
    raise UnsupportedEvent(
        f"Tacit has no equivalent of {event!r}. Describe the mechanism with tacit.events, or remove it."
    )


def _from(name: str, event: Any) -> Event | None:
    if name in _FROM:
        return _FROM[name](event)
    match name:
        case "NoOpDpEvent":
            return Compose(())
        case "SelfComposedDpEvent" if event.count == 0:
            return Compose(())
        case "RandomizedResponseDpEvent" if event.num_buckets == 1:
            return Compose(())  # a constant answer reveals nothing
        case "ComposedDpEvent":
            return Compose(tuple(map(from_dp_accounting, event.events)))
        case "DiscreteLaplaceDpEvent":
            return DiscreteLaplace(1.0 / event.noise_parameter, event.sensitivity)
        case "ZCDpEvent" if event.xi != 0:
            raise UnsupportedEvent(
                f"Tacit has no equivalent of {event!r}: Tacit's ZeroConcentratedDP has a rho, but no xi. "
                "Describe the mechanism itself."
            )
        case "TruncatedSubsampledGaussianDpEvent":
            rate, largest = event.sampling_probability, event.truncated_batch_size
            return TruncatedPoissonSampled(
                rate, event.dataset_size, largest, Gaussian(event.noise_multiplier)
            )
        case "RepeatAndSelectDpEvent":
            poisson = event.shape == math.inf
            shape = () if poisson else (event.shape,)
            words = "poisson" if poisson else "negative-binomial"
            return PrivateSelection(from_dp_accounting(event.event), words, event.mean, *shape)
    for kind, (theirs, fields) in _SAME.items():
        if theirs == name:
            return kind(**{ours: _value(getattr(event, their)) for ours, their in fields.items()})  # type: ignore[no-any-return]
    return None


def _from_discrete_gaussian(event: Any) -> Event:
    if event.dimension != 1:
        raise UnsupportedEvent(
            f"Tacit has no equivalent of {event!r}, because Tacit's DiscreteGaussian adds noise to one "
            "integer. Use one event with dimension=1 per integer, or give the proven guarantee as "
            "ApproximateDP or ZeroConcentratedDP."
        )
    if event.sensitivity != int(event.sensitivity):
        raise UnsupportedEvent(
            f"Tacit has no equivalent of {event!r}: sensitivity must be an integer. Round it up."
        )
    return DiscreteGaussian(event.sigma, int(event.sensitivity))


def _value(value: Any) -> Any:
    """Return a field's value for Tacit: a number, a tuple of numbers, or a converted inner event."""
    if hasattr(value, "to_named_tuple"):
        return from_dp_accounting(value)
    return tuple(value) if hasattr(value, "__len__") else value


def _from_trees(event: Any) -> Event:
    counts = event.step_counts
    trees = list(counts) if isinstance(counts, list | tuple) else [counts]
    if len(trees) != 1:
        raise UnsupportedEvent(
            f"Tacit has no event for several trees, as in {event!r}. A record participates in one tree at "
            f"most, so use the largest: TreeAggregation({event.noise_multiplier!r}, {max(trees)!r})."
        )
    return TreeAggregation(event.noise_multiplier, trees[0])


_FROM: Mapping[str, Callable[[Any], Event]] = {
    "SingleEpochTreeAggregationDpEvent": _from_trees,
    # in the source of dp_accounting, but not yet in its version 0.6.0
    "DiscreteGaussianDpEvent": _from_discrete_gaussian,
    "EpsilonDeltaDpEvent": lambda event: ApproximateDP(event.epsilon, event.delta),
    "ExponentialMechanismDpEvent": lambda event: ExponentialMechanism(event.epsilon),
}


def google_epsilon(event: Event, adjacency: Adjacency | str, delta: float) -> Opinion:
    """Return the epsilon of ``event`` by dp_accounting, or why there is no reliable answer.

    It uses the PLD accountant on its default grid, or the Renyi accountant if PLD does not support the event.
    """
    relation = Adjacency.parse(adjacency)
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    dp = _google("a second opinion", "dp_accounting")
    source = f"dp_accounting {metadata.version('dp-accounting')}"
    try:
        converted = _to(dp.dp_event, _written_out(event))
    except UnsupportedEvent as problem:
        return Opinion(source, "none", None, str(problem))
    neighbours = {
        Adjacency.ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        Adjacency.REPLACE_ONE: dp.NeighboringRelation.REPLACE_ONE,
        Adjacency.ZERO_OUT: dp.NeighboringRelation.REPLACE_SPECIAL,
    }[relation]
    pld = _google("a second opinion", "dp_accounting.pld").PLDAccountant(neighbours, _INTERVAL)
    if pld.supports(converted):
        epsilon = float(pld.compose(converted).get_epsilon(delta))
        return Opinion(source, "PLD on a grid of 1e-4, an upper bound", epsilon, "")
    if relation is Adjacency.REPLACE_ONE:
        reason = (
            "its PLD accountant does not support the event, and its Renyi accountant is wrong under "
            "replace-one: it assumes sensitivity 1 instead of 2 (google/differential-privacy#378)."
        )
        return Opinion(source, "none", None, reason)
    rdp = _google("a second opinion", "dp_accounting.rdp").RdpAccountant(neighboring_relation=neighbours)
    if rdp.supports(converted):
        epsilon = float(rdp.compose(converted).get_epsilon(delta))
        return Opinion(source, "Renyi DP at its default orders, an upper bound", epsilon, "")
    return Opinion(source, "none", None, f"it has no bound for this event under {relation.value}.")


def _written_out(event: Event) -> Event:
    """Write out repeated randomised responses: the PLD accountant of dp_accounting ignores the count."""
    match event:
        case Repeat(inner, count) if _responds(inner):
            if count > _MOST_COPIES:
                raise UnsupportedEvent(
                    f"dp_accounting does not support {count} randomised responses: its PLD accountant "
                    f"ignores the count, and Tacit lists at most {_MOST_COPIES} one by one."
                )
            return Compose((_written_out(inner),) * count)
        case Compose(events):
            return Compose(tuple(_written_out(inner) for inner in events))
    return event


def _responds(event: Event) -> bool:
    match event:
        case RandomizedResponse():
            return True
        case Repeat(inner, _):
            return _responds(inner)
        case Compose(events):
            return any(_responds(inner) for inner in events)
    return False
