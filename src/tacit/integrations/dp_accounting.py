"""What does Google's dp_accounting say of an event? Its events from ours and back, and its answer.

An event of the one library becomes an event of the other that describes the same mechanism; where there is
none, the conversion refuses by name.  Both define a noise multiplier as noise over the bound on one record's
contribution, under every adjacency, so nothing is rescaled.

dp_accounting computes upper bounds on a grid of losses (1e-4 apart by default), without a lower bound, and
does not allow for floating-point rounding: where the number of steps times 1e-16 comes near delta, its answer
is below the truth.  Two costs of version 0.6.0 are known to be wrong, and this file does not ask for them:
under replace-one its Renyi accountant takes sensitivity 1 instead of 2 (google/differential-privacy#378), and
its PLD accountant counts a repeated randomised response once.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from tacit.errors import InvalidInput, MissingExtra, UnsupportedEvent, check_real
from tacit.events import (
    Adjacency,
    Compose,
    DiscreteLaplace,
    Event,
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
    check_event,
)
from tacit.report.statement.verification import Opinion

__all__ = ["from_dp_accounting", "google_epsilon", "to_dp_accounting"]

_INTERVAL = 1e-4  # dp_accounting's default distance of losses on its grid
_MOST_COPIES = 1000  # of a randomised response, written out one by one


def _google(purpose: str, part: str = "dp_accounting.dp_event") -> ModuleType:
    try:
        return importlib.import_module(part)
    except ImportError:
        raise MissingExtra("dp-accounting", "second-opinion", purpose) from None


def to_dp_accounting(event: Event) -> Any:
    """The ``DpEvent`` of dp_accounting that describes the same mechanism.

    **Guarantee**

    * The result costs what ``event`` costs, by any accountant of dp_accounting that is right about it.
    * Nothing is left out or rounded: :func:`from_dp_accounting` gives ``event`` again (a discrete Laplace's
      scale, of which dp_accounting stores the inverse, up to one rounding).

    :raises UnsupportedEvent: if dp_accounting has no class for an event inside; it is named.
    :raises MissingExtra: if dp_accounting is not installed.

    >>> to_dp_accounting(Repeat(PoissonSampled(0.01, Gaussian(2.0)), 100))  # doctest: +NORMALIZE_WHITESPACE
    SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01,
        event=GaussianDpEvent(noise_multiplier=2.0)), count=100)
    """
    check_event("event", event)
    return _to(_google("conversion to dp_accounting's events"), event)


def _to(dp: ModuleType, event: Event) -> Any:
    match event:
        case Repeat(inner, count):
            return dp.SelfComposedDpEvent(_to(dp, inner), count)
        case Compose(events):
            return dp.ComposedDpEvent([_to(dp, inner) for inner in events])
        case PoissonSampled(rate, inner):
            return dp.PoissonSampledDpEvent(rate, _to(dp, inner))
        case WithoutReplacement(records, batch_size, inner):
            return dp.SampledWithoutReplacementDpEvent(records, batch_size, _to(dp, inner))
        case WithReplacement(records, batch_size, inner):
            return dp.SampledWithReplacementDpEvent(records, batch_size, _to(dp, inner))
        case TruncatedPoissonSampled(rate, records, largest, Gaussian(noise)):
            return dp.TruncatedSubsampledGaussianDpEvent(records, rate, largest, noise)
        case PrivateSelection(inner, _, mean, shape):
            return dp.RepeatAndSelectDpEvent(_to(dp, inner), mean, math.inf if shape is None else shape)
    return _mechanism(dp, event)


def _mechanism(dp: ModuleType, event: Event) -> Any:
    """A mechanism that holds no other."""
    match event:
        case Gaussian(noise):
            return dp.GaussianDpEvent(noise)
        case Laplace(noise):
            return dp.LaplaceDpEvent(noise)
        case DiscreteLaplace(scale, sensitivity):
            return dp.DiscreteLaplaceDpEvent(1.0 / scale, sensitivity)
        case RandomizedResponse(noise, categories):
            return dp.RandomizedResponseDpEvent(noise, categories)
        case GaussianMixture(noise, sensitivities, probabilities):
            return dp.MixtureOfGaussiansDpEvent(noise, sensitivities, probabilities)
        case ZeroConcentratedDP(rho):
            return dp.ZCDpEvent(rho)
        case TreeAggregation(noise, leaves, 1, _):
            return dp.SingleEpochTreeAggregationDpEvent(noise, leaves)
    raise UnsupportedEvent(
        f"dp_accounting has no event for {event!r}: its classes describe other mechanisms, and another one "
        "would have another cost. Leave it out of the conversion, or use Tacit's accountants alone."
    )


def from_dp_accounting(event: object) -> Event:
    """The event that describes the same mechanism as a ``DpEvent`` of dp_accounting.

    :raises UnsupportedEvent: if it has no counterpart, or guarantees nothing (noise 0, no privacy).
    :raises InvalidInput: if ``event`` is not a ``DpEvent``, or holds a value out of range.
    :raises MissingExtra: if dp_accounting is not installed.

    >>> import dp_accounting
    >>> from_dp_accounting(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 3))
    Repeat(event=Gaussian(noise_multiplier=2.0), count=3)
    """
    dp = _google("conversion from dp_accounting's events")
    if not isinstance(event, dp.DpEvent):
        raise InvalidInput(f"event must be a DpEvent of dp_accounting; got {event!r}.")
    name = type(event).__name__
    if getattr(dp, name, None) is not type(event) or name not in _READERS:
        raise UnsupportedEvent(
            f"Tacit has no event for {event!r} of dp_accounting. Describe the mechanism with the "
            "events in tacit.events, or leave it out."
        )
    return _READERS[name](event)


def _private(read: Callable[[float], Event], noise: float, event: object) -> Event:
    if noise == 0:
        raise UnsupportedEvent(
            f"{event!r} adds no noise and guarantees nothing. Give it noise above 0, or leave it out."
        )
    return read(noise)


def _read_repeated(event: Any) -> Event:
    inner = from_dp_accounting(event.event)
    return Compose(()) if event.count == 0 else Repeat(inner, event.count)


def _read_response(event: Any) -> Event:
    if event.num_buckets == 1:
        return Compose(())  # a constant answer reveals nothing
    return RandomizedResponse(event.noise_parameter, event.num_buckets)


def _read_zcdp(event: Any) -> Event:
    if event.xi != 0:
        raise UnsupportedEvent(
            f"{event!r}: Tacit's event has rho alone, and xi is not 0. State the mechanism itself instead."
        )
    return ZeroConcentratedDP(event.rho)


def _read_trees(event: Any) -> Event:
    counts = event.step_counts
    trees = list(counts) if isinstance(counts, list | tuple) else [counts]
    if len(trees) != 1:
        raise UnsupportedEvent(
            f"{event!r}: several trees, in all of which a record takes part at most once, have no event in "
            f"Tacit. Their cost is that of the largest, TreeAggregation({event.noise_multiplier!r}, "
            f"{max(trees)!r})."
        )
    return _private(lambda noise: TreeAggregation(noise, trees[0]), event.noise_multiplier, event)


def _read_selection(event: Any) -> Event:
    inner = from_dp_accounting(event.event)
    if event.shape == math.inf:
        return PrivateSelection(inner, "poisson", event.mean)
    return PrivateSelection(inner, "negative-binomial", event.mean, event.shape)


def _read_nothing(event: Any) -> Event:
    raise UnsupportedEvent(
        f"{event!r} stands for a mechanism without a guarantee, or without a description. Leave it out, or "
        "describe what is really done."
    )


_READERS: Mapping[str, Callable[[Any], Event]] = {
    "NoOpDpEvent": lambda _: Compose(()),
    "NonPrivateDpEvent": _read_nothing,
    "UnsupportedDpEvent": _read_nothing,
    "GaussianDpEvent": lambda e: _private(Gaussian, e.noise_multiplier, e),
    "LaplaceDpEvent": lambda e: _private(Laplace, e.noise_multiplier, e),
    "DiscreteLaplaceDpEvent": lambda e: _private(
        lambda a: DiscreteLaplace(1.0 / a, e.sensitivity), e.noise_parameter, e
    ),
    "RandomizedResponseDpEvent": _read_response,
    "MixtureOfGaussiansDpEvent": lambda e: _private(
        lambda noise: GaussianMixture(noise, tuple(e.sensitivities), tuple(e.sampling_probs)),
        e.standard_deviation,
        e,
    ),
    "ZCDpEvent": _read_zcdp,
    "SingleEpochTreeAggregationDpEvent": _read_trees,
    "SelfComposedDpEvent": _read_repeated,
    "ComposedDpEvent": lambda e: Compose(tuple(from_dp_accounting(inner) for inner in e.events)),
    "PoissonSampledDpEvent": lambda e: PoissonSampled(e.sampling_probability, from_dp_accounting(e.event)),
    "SampledWithoutReplacementDpEvent": lambda e: WithoutReplacement(
        e.source_dataset_size, e.sample_size, from_dp_accounting(e.event)
    ),
    "SampledWithReplacementDpEvent": lambda e: WithReplacement(
        e.source_dataset_size, e.sample_size, from_dp_accounting(e.event)
    ),
    "TruncatedSubsampledGaussianDpEvent": lambda e: TruncatedPoissonSampled(
        e.sampling_probability,
        e.dataset_size,
        e.truncated_batch_size,
        _private(Gaussian, e.noise_multiplier, e),
    ),
    "RepeatAndSelectDpEvent": _read_selection,
}


def google_epsilon(event: Event, adjacency: Adjacency | str, delta: float) -> Opinion:
    """What ``event`` costs by dp_accounting; without an answer, and with the reason, where it is unreliable.

    Its PLD accountant is asked, at its default grid; where that does not know the event, its Renyi
    accountant.

    :param delta: in (0, 1).
    :raises MissingExtra: if dp_accounting is not installed.

    >>> opinion = google_epsilon(Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000), "add-remove", 1e-5)
    >>> round(opinion.epsilon, 3), opinion.method
    (0.947, 'PLD on a grid of 1e-4, an upper bound')
    """
    relation = Adjacency.parse(adjacency)
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    dp = _google("a second opinion", "dp_accounting")
    source = f"dp_accounting {metadata.version('dp-accounting')}"
    try:
        asked = _to(dp.dp_event, _written_out(event))
    except UnsupportedEvent as problem:
        return Opinion(source, "none", None, str(problem))
    neighbours = {
        Adjacency.ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        Adjacency.REPLACE_ONE: dp.NeighboringRelation.REPLACE_ONE,
        Adjacency.ZERO_OUT: dp.NeighboringRelation.REPLACE_SPECIAL,
    }[relation]
    pld = importlib.import_module("dp_accounting.pld").PLDAccountant(neighbours, _INTERVAL)
    if pld.supports(asked):
        epsilon = float(pld.compose(asked).get_epsilon(delta))
        return Opinion(source, "PLD on a grid of 1e-4, an upper bound", epsilon, "")
    if relation is Adjacency.REPLACE_ONE:
        why = (
            "its PLD accountant does not know the event, and its Renyi accountant takes sensitivity 1 "
            "instead of 2 under replace-one (google/differential-privacy#378), so it is not asked."
        )
        return Opinion(source, "none", None, why)
    rdp = importlib.import_module("dp_accounting.rdp").RdpAccountant(neighboring_relation=neighbours)
    if rdp.supports(asked):
        epsilon = float(rdp.compose(asked).get_epsilon(delta))
        return Opinion(source, "Renyi DP at its default orders, an upper bound", epsilon, "")
    return Opinion(source, "none", None, f"it has no price for this event under {relation.value}.")


def _written_out(event: Event) -> Event:
    """``event`` with repeated randomised responses one by one: dp_accounting's PLD ignores their number."""
    match event:
        case Repeat(inner, count) if _responds(inner):
            if count > _MOST_COPIES:
                raise UnsupportedEvent(
                    f"its PLD accountant counts {count} randomised responses as one, and so many are not "
                    "written out one by one."
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
