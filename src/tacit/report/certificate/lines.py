"""What does every line of a certificate say, and how sure is it? The checklist, from the figures alone.

The sections follow what NIST SP 800-226 asks of a guarantee and what the registry of deployments (Dwork et
al., 2509.13509) lists: the claim, the unit, the relation, the scope, the mechanisms, the accounting, the
tuning, the trust, the implementation, the ledger, the utility, the validity, the data product."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tacit.events import (
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    Repeat,
    ZeroConcentratedDP,
    event_from_json,
)
from tacit.report.certificate.statements import STATEMENTS
from tacit.report.pages.document import render

Facts = Mapping[str, Any]

NOT_STATED = "NOT STATED"
PROVED, ASSUMED, NOT_COVERED = GRADES = ("proved", "assumed", "not covered")
"""Proved: it follows from the entries of the ledger by a theorem, and a verifier computes it anew.  Assumed:
a reader has to believe a person, or the program to do what it says.  Not covered: no part of the promise."""

SECTIONS = {
    "A": "The claim",
    "B": "The unit of privacy",
    "C": "Neighbours",
    "D": "Scope",
    "E": "Mechanisms",
    "F": "Accounting",
    "G": "Tuning",
    "H": "Trust",
    "I": "Implementation",
    "J": "The ledger",
    "K": "Utility",
    "L": "Validity",
    "M": "The data product",
}

_SHOWN = 8  # mechanisms that get a separate line


def checklist(facts: Facts) -> list[dict[str, str | None]]:
    """All lines in order, each with ``section``, ``name``, ``value`` and ``grade``; a blank value is None.

    What they say stands in ``claims.txt``, which gives each line to a function, so that no text of a policy
    or a ledger can pass for a line; the curator's statements follow in each section.

    :param facts: a certificate without its ``lines``.
    """
    found: dict[str, list[dict[str, str | None]]] = {section: [] for section in SECTIONS}

    def line(section: str, name: str, grade: str, caller: Callable[[], str]) -> str:
        value = " ".join(caller().split()) or None
        found[section].append({"section": section, "name": name, "value": value, "grade": grade})
        return ""

    groups = [{**group, "event": read_event(group["event"])} for group in facts["mechanisms"]]
    groups.sort(key=lambda group: -group["charges"] * max(group["cost"]))
    mine = groups if facts["run"] is None else [group for group in groups if group["of_the_run"]]
    render(
        "claims.txt",
        **facts,
        line=line,
        PROVED=PROVED,
        ASSUMED=ASSUMED,
        NOT_COVERED=NOT_COVERED,
        shown=mine[:_SHOWN],
        further=mine[_SHOWN:],
        in_words=in_words,
        exact=_charges_with(groups, DiscreteLaplace, DiscreteGaussian),
        floats=_charges_with(groups, Gaussian, Laplace),
        selections=_charges_with(groups, PrivateSelection),
    )
    for key, (section, name, _) in STATEMENTS.items():
        value, named = facts["statements"].get(key), name.format(unit=facts["policy"]["unit"])
        grade = NOT_COVERED if value is None else ASSUMED
        found[section].append({"section": section, "name": named, "value": value, "grade": grade})
    return [each for lines in found.values() for each in lines]


def _charges_with(groups: Sequence[Facts], *kinds: type[Event]) -> int:
    """How many charges have a mechanism of these kinds somewhere in them."""
    return sum(
        group["charges"] for group in groups if any(isinstance(part, kinds) for part in parts(group["event"]))
    )


def read_event(data: object) -> Event:
    """An event out of plain data."""
    return event_from_json(json.dumps(data))


def in_words(event: Event) -> str:
    """What the mechanism does, in one phrase; an event without a phrase is shown by its name and fields.

    >>> in_words(Repeat(PoissonSampled(0.01, Gaussian(1.1)), 1000))
    '1,000 times: of each record with probability 0.01, Gaussian noise of 1.1 times the sensitivity'
    """
    match event:
        case Gaussian(sigma):
            return f"Gaussian noise of {sigma:.6g} times the sensitivity"
        case Laplace(scale):
            return f"Laplace noise of {scale:.6g} times the sensitivity"
        case DiscreteGaussian(scale, sensitivity):
            return f"discrete Gaussian noise of scale {scale:.6g} on integers of sensitivity {sensitivity:,}"
        case DiscreteLaplace(scale, sensitivity):
            return f"discrete Laplace noise of scale {scale:.6g} on integers of sensitivity {sensitivity:,}"
        case ExponentialMechanism(epsilon):
            return f"a choice by the exponential mechanism, ε = {epsilon:.6g} at δ = 0"
        case ApproximateDP(epsilon, delta):
            return f"a mechanism of ε = {epsilon:.6g} at δ = {delta:.6g}"
        case ZeroConcentratedDP(rho):
            return f"a mechanism of zero-concentrated ρ = {rho:.6g}"
        case PoissonSampled(rate, inner):
            return f"of each record with probability {rate:.6g}, {in_words(inner)}"
        case Repeat(inner, count):
            return f"{count:,} times: {in_words(inner)}"
        case Compose(events):
            return "; and ".join(map(in_words, events)) or "nothing that depends on a record"
        case PrivateSelection(inner, distribution, mean):
            trials = f"a secret number of trials ({distribution}, mean {mean:.6g})"
            return f"the best of {trials}, each {in_words(inner)}"
    return _by_name(event)


def _by_name(event: Event) -> str:
    shown = [f"{name} {value}" for name, value in vars(event).items() if not _events(value)]
    made_of = [in_words(part) for value in vars(event).values() for part in _events(value)]
    return f"{type(event).__name__} ({', '.join(shown)})" + "".join(f" of {words}" for words in made_of)


def parts(event: Event) -> Iterator[Event]:
    """The event and all its parts, outermost first.

    >>> [type(part).__name__ for part in parts(Repeat(Gaussian(1.0), 3))]
    ['Repeat', 'Gaussian']
    """
    yield event
    for value in vars(event).values():
        for inner in _events(value):
            yield from parts(inner)


def _events(value: object) -> tuple[Event, ...]:
    values = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in values if isinstance(item, Event))
