"""The lines of a certificate, each with its grade, as plain text or as a page.

The sections follow NIST SP 800-226, which is about guarantees, and the registry of deployments (Dwork et al.,
2509.13509). They are the claim, the unit, the relation, the scope, the mechanisms, the accounting, the
tuning, the trust, the implementation, the ledger, the utility, the validity and the data product. The text
and the page show only the lines in these sections.
"""

from __future__ import annotations

import textwrap
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
)
from tacit.report.certificate.statements import STATEMENTS
from tacit.report.pages.document import page, render
from tacit.report.statement.reading import read_event
from tacit.rounding import pair

Facts = Mapping[str, Any]

NOT_STATED = "NOT STATED"
PROVED, ASSUMED, NOT_COVERED = GRADES = ("proved", "assumed", "not covered")
"""The grades of a line. A proved line follows from the entries of the ledger by a theorem, and a verifier
computes it again. For an assumed line, a reader has to trust a person or the program. A line that is not
covered is outside the promise."""

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

_SHOWN = 8  # the most mechanisms that have a separate line


def checklist(facts: Facts) -> list[dict[str, str | None]]:
    """Write all lines in order, each with ``section``, ``name``, ``value`` and ``grade``.

    A missing value is None. The template ``claims.txt`` passes each line to a function, so that text from a
    policy or a ledger cannot look like a line. Each section ends with the curator's statements.

    Args:
        facts: a certificate without its ``lines``.
    """
    lines_of: dict[str, list[dict[str, str | None]]] = {section: [] for section in SECTIONS}

    def line(section: str, name: str, grade: str, caller: Callable[[], str]) -> str:
        value = " ".join(caller().split()) or None
        lines_of[section].append({"section": section, "name": name, "value": value, "grade": grade})
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
        value, title = facts["statements"].get(key), name.format(unit=facts["policy"]["unit"])
        grade = NOT_COVERED if value is None else ASSUMED
        lines_of[section].append({"section": section, "name": title, "value": value, "grade": grade})
    return [each for lines in lines_of.values() for each in lines]


def _charges_with(groups: Sequence[Facts], *kinds: type[Event]) -> int:
    """Count the charges that contain a mechanism of one of these kinds."""
    return sum(
        group["charges"] for group in groups if any(isinstance(part, kinds) for part in parts(group["event"]))
    )


_ON_INTEGERS = "noise of scale {scale:.6g} on integers of sensitivity {sensitivity:,}"
_PHRASES: Mapping[type[Event], str] = {
    Gaussian: "Gaussian noise of {noise_multiplier:.6g} times the sensitivity",
    Laplace: "Laplace noise of {noise_multiplier:.6g} times the sensitivity",
    DiscreteGaussian: f"discrete Gaussian {_ON_INTEGERS}",
    DiscreteLaplace: f"discrete Laplace {_ON_INTEGERS}",
    ExponentialMechanism: "a choice by the exponential mechanism, ε = {epsilon:.6g} at δ = 0",
    ApproximateDP: "a mechanism of ε = {epsilon:.6g} at δ = {delta:.6g}",
    ZeroConcentratedDP: "a mechanism of zero-concentrated ρ = {rho:.6g}",
    PoissonSampled: "of each record with probability {sampling_rate:.6g}, {event}",
    Repeat: "{count:,} times: {event}",
    PrivateSelection: "the best of a secret number of trials ({distribution}, mean {mean:.6g}), each {event}",
}


def in_words(event: Event) -> str:
    """Describe a mechanism in one phrase. A mechanism without a phrase gets its name and fields.

    >>> in_words(Repeat(PoissonSampled(0.01, Gaussian(1.1)), 1000))
    '1,000 times: of each record with probability 0.01, Gaussian noise of 1.1 times the sensitivity'
    """
    if isinstance(event, Compose):
        return "; and ".join(map(in_words, event.events)) or "nothing that depends on a record"
    if phrase := _PHRASES.get(type(event)):
        words = {name: in_words(part) for name, value in vars(event).items() for part in _events(value)}
        return phrase.format(**(vars(event) | words))
    fields = [f"{name} {value}" for name, value in vars(event).items() if not _events(value)]
    parts_in_words = [in_words(part) for value in vars(event).values() for part in _events(value)]
    return f"{type(event).__name__} ({', '.join(fields)})" + "".join(
        f" of {words}" for words in parts_in_words
    )


def parts(event: Event) -> Iterator[Event]:
    """Yield the event and all events inside it, the outermost first.

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


_WIDTH = 100
_GRADE, _NAME = 13, 26
_LEGEND = (
    "Proved: it follows from the entries of the ledger, and `tacit verify` computes it again. Assumed: "
    "the reader has to trust a person or the program. Not covered: no part of the promise. "
    f"A line without a value says {NOT_STATED}."
)


def to_text(data: Mapping[str, Any]) -> str:
    """Write the certificate as plain text."""
    subject = data["subject"]
    title = f"PRIVACY CERTIFICATE of the data set {subject['dataset']!r}"
    lines = [title, "=" * len(title), "", *_wrap(headline(data)), "", *_wrap(_LEGEND)]
    for section, name in SECTIONS.items():
        lines += ["", f"{section}  {name}"]
        for line in data["lines"]:
            if line["section"] == section:
                lines += _line(line)
    return "\n".join([*lines, "", *_wrap(signature_line(data))]) + "\n"


def headline(data: Mapping[str, Any]) -> str:
    """Write the promise in a sentence or two."""
    claim, policy = data["guarantee"], data["policy"]
    run = data["run"]
    fixed = data["ledger"]["test_keys"]
    if fixed:
        return (
            f"NOT PRIVATE: a fixed test key gave the noise of {fixed:,} of the charges. Anyone who knows the "
            "key can subtract the noise, so nothing here holds. With keys from the operating system the "
            f"promise would be {pair(claim['cap'])}, for one {policy['unit']} ({policy['adjacency']})."
        )
    of_run = "" if run is None else f" The run {run['id']!r} spent {pair(run['spent'])} of that."
    return (
        f"All releases through this ledger, past and future, stay within {pair(claim['cap'])} for one "
        f"{policy['unit']} ({policy['adjacency']}). Spent up to now: {pair(claim['spent'])}.{of_run}"
    )


def signature_line(data: Mapping[str, Any]) -> str:
    """Write the public key of the signature, or that the certificate is not signed."""
    signature = data["signature"]
    if signature is None:
        return "NOT SIGNED."
    return f"Signed with {signature['algorithm']}; public key {signature['public_key']}."


def _line(line: Mapping[str, Any]) -> list[str]:
    value = NOT_STATED if line["value"] is None else line["value"]
    head = f"  {line['grade']:<{_GRADE}}{line['name']:<{_NAME}} "
    if len(line["name"]) > _NAME:
        return [head.rstrip(), *_wrap(value, " " * (_GRADE + _NAME + 3), " " * (_GRADE + _NAME + 3))]
    return _wrap(value, head, " " * (_GRADE + _NAME + 3))


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def to_html(data: Mapping[str, Any]) -> str:
    """Draw the certificate as an HTML page."""
    return page(
        "certificate.html",
        f"Privacy certificate of {data['subject']['dataset']}",
        **data,
        headline=headline(data),
        signed=signature_line(data),
        sections=SECTIONS,
        not_stated=NOT_STATED,
    )
