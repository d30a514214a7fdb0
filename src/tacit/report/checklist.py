"""The lines of a certificate, each with its grade, and the statements of the curator among them.

The sections follow NIST SP 800-226, which is about guarantees, and the registry of deployments (Dwork et al.,
2509.13509), whose fields are section M.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from tacit.errors import InvalidInput
from tacit.events import (
    ApproximateDP,
    BallsInBins,
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
from tacit.report.document import page, render
from tacit.report.verification import read_event
from tacit.rounding import counted, pair

CHOICES = {
    "product_type": (
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    "sector": ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
    "data_source": ("Static", "Dynamic"),
}
"""The words that the registry accepts, for each field that is not free text."""

STATEMENTS = {
    "several_ids": (
        "B",
        "Several ids of one {unit}",
        "whether one unit can have several ids, and what you did about it",
    ),
    "versions": ("D", "Versions of the data", "which extracts or dates the budget was used on"),
    "trials": ("G", "Trials", "how many trainings were tried, and whether all were charged"),
    "bounds": ("G", "Bounds and vocabulary", "where bounds, keys and vocabulary come from"),
    "early_stopping": (
        "G",
        "Early stopping",
        "which figures decided when runs stopped: public, noisy or exact ones",
    ),
    "public_data": ("G", "Public data", "which public data were also used, and their source"),
    "raw_access": ("H", "Who sees the records", "the people and machines"),
    "key_holders": ("H", "Who holds the keys", "who holds those of the ledger, the signature and the noise"),
    "cap_rights": ("H", "Who may raise the cap", "the people, and how they decide"),
    "commit": ("I", "Source", "the commit, or the digest of the package that ran"),
    "audit": ("I", "Audit", "a lower bound on epsilon from an experiment, with its confidence"),
    "small_groups": ("K", "Small groups", "the smallest group for which answers are useful"),
    "approved_by": ("L", "Approved by", "who chose epsilon and delta, and why"),
    "expires": ("L", "Expires", "when the promise or the permission ends"),
    "product": ("M", "Name", "one name for all the published answers and models"),
    "curator": ("M", "Curator", "the organisation that publishes them; separate several by semicolons"),
    "contact": ("M", "Contact", "where questions are answered: an office, not a private address"),
    "description": ("M", "Description", "what is published, in a sentence or two"),
    "intended_use": ("M", "Intended use", "what it is meant for, and what it must not be used for"),
    "product_type": ("M", "Kind", f"what it is: {', '.join(CHOICES['product_type'])}"),
    "region": ("M", "Region", "the region of the records, or of the law that applies"),
    "sector": ("M", "Sector", f"where the records come from: {', '.join(CHOICES['sector'])}"),
    "published": ("M", "Publication date", "the day of the first release, such as 2026-11-30"),
    "actors": ("M", "Who trusts whom", "who collects, computes and reads, and why each is trusted"),
    "data_source": (
        "M",
        "Source of the records",
        "Static: no new records arrive; Dynamic: new records arrive",
    ),
    "data_domain": ("M", "Data domain", "which tables might have been there instead of this one"),
    "post_processing": ("M", "After the noise", "what was done to answers or models after the noise"),
    "why_budget": ("M", "Why this budget", "why this epsilon and delta, and what you weighed against them"),
    "why_unit": ("M", "Why this unit", "why this unit and adjacency, and whom they leave out"),
    "why_model": ("M", "Why this deployment model", "why one organisation may see the records"),
    "why_mechanisms": ("M", "Why these mechanisms", "why these queries, models and settings"),
    "sources": ("M", "Sources", "papers, pages, or where the answers and models are"),
    "record_author": ("M", "Author of the record", "who fills in the registry's record"),
}
"""For each key, the section, the name of the line, and a hint on its contents."""

LICENSE = "license"
"""The key of the license. Only model cards have it, not certificates."""

_FORBIDDEN = "anonym"  # no (epsilon, delta) proves anonymity


def check_statements(statements: Mapping[str, str]) -> dict[str, str]:
    """Check that each key is in the checklist, and that no text claims too much. Return the statements."""
    for key, text in statements.items():
        if key not in STATEMENTS:
            raise InvalidInput(f"{key!r} is not a statement. Choose from: {', '.join(STATEMENTS)}.")
        if not str(text).strip() or not isinstance(text, str):
            raise InvalidInput(f"the statement {key!r} must be a string. Correct or remove it.")
        if claims_too_much(text):
            raise InvalidInput(
                f"the statement {key!r} calls data anonymous, which differential privacy cannot prove. "
                "Describe what was done."
            )
        _check_form(key, text)
    return dict(statements)


def check_card(statements: Mapping[str, str]) -> None:
    """Check the statements of a model card. They are those of a certificate, and a ``license``."""
    licensed: object = statements.get(LICENSE, "none")
    if not isinstance(licensed, str) or not licensed.strip():
        raise InvalidInput(f"the license must be a text such as 'apache-2.0'; got {licensed!r}.")
    check_statements({key: text for key, text in statements.items() if key != LICENSE})


def claims_too_much(text: str) -> bool:
    """Return whether a text calls data anonymous, which no epsilon and delta prove."""
    return _FORBIDDEN in text.lower()


def _check_form(key: str, text: str) -> None:
    """Check a statement that must be one of the registry's words, or a date."""
    if key in CHOICES and text not in CHOICES[key]:
        raise InvalidInput(
            f"the statement {key!r} must be one of {', '.join(CHOICES[key])}; got {text!r}. If none fits, "
            "remove it: the registry accepts no other value."
        )
    if key == "published":
        try:
            well_formed = date.fromisoformat(text).isoformat() == text
        except ValueError:
            well_formed = False
        if not well_formed:
            raise InvalidInput(f"the statement {key!r} must be a day such as 2026-11-30; got {text!r}.")


def ask_statements(
    known_texts: Mapping[str, str], ask: Callable[[str, str, str], str], *, unit: str
) -> dict[str, str]:
    """Ask for each statement that is not given, section M first, and return all statements.

    ``ask`` gets a key, a hint on the contents, and the problem with the last answer ("" at first). The answer
    "" leaves out a statement, and EOFError also all that follow.
    """
    statements = check_statements(known_texts)
    try:
        for key, (_, name, hint) in sorted(STATEMENTS.items(), key=lambda item: item[1][0] != "M"):
            problem = ""
            while key not in statements:
                answer = ask(key, f"{name.format(unit=unit)}: {hint}", problem).strip()
                if not answer:
                    break
                try:
                    statements |= check_statements({key: answer})
                except InvalidInput as refused:
                    problem = str(refused)
    except EOFError:
        pass
    return statements


def statements_text(statements: Mapping[str, str]) -> str:
    """Write the statements as the TOML file of ``--statements``, in the order of the checklist."""
    return "".join(f"{key} = {_quoted(statements[key])}\n" for key in STATEMENTS if key in statements)


def _quoted(text: str) -> str:
    """Write a TOML string, which is the JSON string with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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
        floats=_charges_with([group for group in groups if "claimed" not in group], Gaussian, Laplace),
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
    ExponentialMechanism: "a choice by the exponential mechanism, {of}",
    ApproximateDP: "a mechanism of {of}",
    ZeroConcentratedDP: "a mechanism of zero-concentrated ρ = {rho:.6g}",
    PoissonSampled: "of each record with probability {sampling_rate:.6g}, {event}",
    BallsInBins: "{bins:,} steps, with each record in one of them at random, each step {event}",
    Repeat: "{times}: {event}",
    PrivateSelection: "the best of a secret number of trials ({distribution}, mean {mean:.6g}), each {event}",
}


def in_words(event: Event) -> str:
    """Describe a mechanism in one phrase. A mechanism without a phrase gets its name and fields."""
    if isinstance(event, Compose):
        return "; and ".join(map(in_words, event.events)) or "nothing that depends on a record"
    if phrase := _PHRASES.get(type(event)):
        words = {name: in_words(part) for name, value in vars(event).items() for part in _events(value)}
        if isinstance(event, ExponentialMechanism | ApproximateDP):
            words["of"] = pair({"delta": 0.0} | vars(event))
        if isinstance(event, Repeat):
            words["times"] = counted(event.count, "time")
        return phrase.format(**(vars(event) | words))
    fields = [f"{name} {value}" for name, value in vars(event).items() if not _events(value)]
    parts_in_words = [in_words(part) for value in vars(event).values() for part in _events(value)]
    return f"{type(event).__name__} ({', '.join(fields)})" + "".join(
        f" of {words}" for words in parts_in_words
    )


def parts(event: Event) -> Iterator[Event]:
    """Yield the event and all events inside it, the outermost first."""
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
    if claimed := data["kinds"].get("claimed"):
        of_run += f" Claims of other tools, which Tacit did not check: {claimed:,} of the charges."
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
