"""What does every line of a certificate say, and how sure is it? The checklist, from the figures alone.

The sections follow what NIST SP 800-226 asks of a guarantee and what the registry of deployments (Dwork et
al., 2509.13509) lists: the claim, the unit, the relation, the scope, the mechanisms, the accounting, the
tuning, the trust, the implementation, the ledger, the utility, the validity, the data product."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tacit.events import (
    Adjacency,
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
from tacit.rounding import pair, round_up

Facts = Mapping[str, Any]
Line = tuple[str, str | None, str]  # name, value, grade

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

_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "with or without one {unit}: that one is in the data at all is protected",
    Adjacency.REPLACE_ONE: "one {unit} exchanged for another: what the records of one say is protected, that "
    "one is in the data is not",
    Adjacency.ZERO_OUT: "one {unit} blanked out: what the records of one say is protected",
}
_ELSEWHERE = {
    Adjacency.ADD_REMOVE: "if any one {unit} had been left out of the data, or put into them",
    Adjacency.REPLACE_ONE: "if any one {unit} had been another",
    Adjacency.ZERO_OUT: "if any one {unit} had been blank",
}
_SHOWN = 8  # mechanisms that get a separate line


def checklist(facts: Facts) -> list[dict[str, str | None]]:
    """All lines in order, each with ``section``, ``name``, ``value`` and ``grade``; a blank value is None.

    :param facts: a certificate without its ``lines``.
    """
    found = []
    for section, make in zip(SECTIONS, _MAKERS, strict=True):
        for name, value, grade in (*make(facts), *_stated(facts, section)):
            found.append({"section": section, "name": name, "value": value, "grade": grade})
    return found


def _stated(facts: Facts, section: str) -> Iterator[Line]:
    """The curator's statements; a blank one is shown as NOT STATED."""
    for key, (where, name, _) in STATEMENTS.items():
        if where == section:
            value = facts["statements"].get(key)
            unit = facts["policy"]["unit"]
            yield name.format(unit=unit), value, NOT_COVERED if value is None else ASSUMED


def _claim(facts: Facts) -> Iterator[Line]:
    policy, claim = facts["policy"], facts["guarantee"]
    unit, cap = policy["unit"], claim["cap"]
    adjacency = Adjacency.parse(policy["adjacency"])
    yield "Definition", f"({'ε, δ' if cap['delta'] else 'ε, 0'})-differential privacy, one {unit}", PROVED
    yield "Cap", f"{pair(cap)}, for all that is ever released through this ledger, however chosen", PROVED
    if claim["odds"] is not None:
        yield (
            "In odds",
            f"whatever anyone concludes or does after seeing the releases is at most "
            f"{round_up(claim['odds'], 3)} times as probable (e to the power ε), plus {cap['delta']:.12g} "
            "(δ), "
            f"as it would be {_ELSEWHERE[adjacency].format(unit=unit)}",
            PROVED,
        )
    yield "Spent today", f"{pair(claim['spent'])}: a balance; the promise is the cap", PROVED
    if facts["run"] is not None:
        run = facts["run"]
        yield f"Spent by run {run['id']}", f"{pair(run['spent'])}, within the cap of the data set", PROVED
    yield _against_count(policy, cap["delta"])


def _against_count(policy: Facts, delta: float) -> Line:
    name, n = "δ times the number", policy["public_records"]
    if delta == 0.0:
        return name, "δ is 0: there is no allowance for publishing anybody", PROVED
    count, grade = (policy["largest_table"], ASSUMED) if n is None else (n, PROVED)
    kind = "the largest table that is declared" if n is None else "the public number of records"
    verdict = (
        "below 1" if delta * count < 1.0 else "NOT below 1, so that publishing one of them in full would do"
    )
    return name, f"δ times {kind}, {count:,}, is {delta * count:.3g}: {verdict}", grade


def _unit(facts: Facts) -> Iterator[Line]:
    policy = facts["policy"]
    unit, column, rows = policy["unit"], policy["unit_column"], policy["rows_per_unit"]
    groups = policy["groups_per_unit"]
    if column is None:
        yield "Unit", f"one row, taken to be one {unit}; no column says to whom a row belongs", ASSUMED
        yield (
            "Bound on one unit's rows",
            "none is enforced: no person-level guarantee for whoever has several rows but as a group",
            NOT_COVERED,
        )
    else:
        yield "Unit", f"one {unit}; its column {column!r} says to whom a row belongs", ASSUMED
        reach = "" if groups is None else f", in at most {groups:,} groups"
        yield (
            "Bound on one unit's rows",
            f"in every query at most {rows:,} of one {unit}{reach}, picked by a rule that reads these "
            "rows alone; rows that name nobody are left out",
            ASSUMED,
        )
    if facts["kinds"].get("training"):
        yield "Training", f"one training record is taken to be one {unit}", ASSUMED
    if facts["kinds"].get("training by people"):
        yield (
            "Training by people",
            f"one {unit} with all rows, by {'a column' if column is None else f'the column {column!r}'}; "
            "a step clips the mean of some of them once, or pays for all",
            ASSUMED,
        )
    for size, figures in facts["guarantee"]["groups"].items():
        yield f"Groups of {size}", f"{pair(figures)}, for the cap", PROVED


def _neighbours(facts: Facts) -> Iterator[Line]:
    policy = facts["policy"]
    adjacency = Adjacency.parse(policy["adjacency"])
    yield "Relation", f"{adjacency}: {_NEIGHBOURS[adjacency].format(unit=policy['unit'])}", PROVED
    if policy["public_records"] is not None:
        yield "Number of records", f"public: {policy['public_records']:,}", ASSUMED
    elif adjacency is Adjacency.ADD_REMOVE:
        yield "Number of records", "secret: to tell it costs budget", PROVED
    else:
        yield "Number of records", "taken to be public", ASSUMED


def _scope(facts: Facts) -> Iterator[Line]:
    policy, subject = facts["policy"], facts["subject"]
    yield "Data set", f"{subject['dataset']!r} in ledger {subject['ledger']}", ASSUMED
    yield (
        "Other budgets",
        "the budget belongs to the people: releases about them outside this ledger add to it unnoticed",
        NOT_COVERED,
    )
    fingerprint = subject["fingerprint"]
    yield "Fingerprint", fingerprint, NOT_COVERED if fingerprint is None else ASSUMED
    known = subject["versions"]
    contents = (
        f"{known:,} {'fingerprint' if known == 1 else 'fingerprints'}, all on this budget: each file, and "
        "the rows of a file as a run reads them, has one"
        if known
        else "none had a fingerprint"
    )
    yield "Contents", contents, ASSUMED if known else NOT_COVERED
    if "checked" in subject:
        yield "Cells", _cells(subject["checked"], subject["versions"]), ASSUMED
    elif facts["kinds"].get("query"):
        yield "Cells", "no table was checked cell by cell before it was asked", NOT_COVERED
    parent = policy["parent"]
    derived = "no parent is declared" if parent is None else f"made from {parent!r}, which pays for it too"
    yield "Lineage", derived, ASSUMED if parent is None else PROVED
    if policy["blocks"]:
        blocks = ", ".join(map(str, policy["blocks"]))
        yield (
            "Blocks",
            f"no {policy['unit']} is in two of {blocks}; the block that costs most counts",
            ASSUMED,
        )
    settled = facts["ledger"]["charges"]["settled"]
    yield (
        "Covered",
        f"the answers and models of the charges that are settled, {settled:,}, all together",
        PROVED,
    )
    yield (
        "Outside the promise",
        "names, types, bounds and keys in the policy; the time that answers take; exact scores on test "
        "records, taken to be of another data set; what is true of many alike, which is meant to be learnt",
        NOT_COVERED,
    )


def _cells(checked: Facts, contents: int) -> str:
    """What the curator's checks accepted."""
    told = f"the curator checked every cell of {checked['versions']:,} of {contents:,} fingerprints"
    if not checked["missing"] and not checked["outside"]:
        return f"{told}; each cell is what its column declares"
    if checked["missing"]:
        columns = ", ".join(checked["missing"])
        told += f"; in {columns} cells that are missing or cannot be read count as missing"
    if checked["outside"]:
        columns = ", ".join(checked["outside"])
        told += f"; in {columns} values outside are moved to the nearest bound, or belong to no group"
    return told


def _mechanisms(facts: Facts) -> Iterator[Line]:
    groups = sorted(facts["mechanisms"], key=lambda group: -group["charges"] * max(group["cost"]))
    of_run = [group for group in groups if group["of_the_run"]]
    groups, of_it = (groups, "") if facts["run"] is None else (of_run, " of the run")
    for number, group in enumerate(groups[:_SHOWN], 1):
        words = in_words(read_event(group["event"]))
        block = "" if group["block"] is None else f", in block {group['block']}"
        yield f"Mechanism {number}{of_it}", f"{_counted(group['charges'])}{block}: {words}", PROVED
    if len(groups) > _SHOWN:
        rest = groups[_SHOWN:]
        count = sum(group["charges"] for group in rest)
        yield (
            "Further mechanisms",
            f"{_counted(count)} of {len(rest):,} kinds, listed in the JSON form",
            PROVED,
        )
    if not groups:
        yield "Mechanisms", "none yet: nothing has been charged", PROVED
        return
    yield (
        "Sensitivity",
        "of queries: from declared bounds and the bound on one unit's rows, in integers; of training: every "
        "record's contribution is clipped",
        ASSUMED,
    )
    yield "Sampling", "who takes part is drawn as the mechanism says, by the system's randomness", ASSUMED


def _accounting(facts: Facts) -> Iterator[Line]:
    method = facts["accounting"]
    yield "Method", method["method"], PROVED
    yield "Theorem", method["theorem"], PROVED
    yield "Software", f"tacit {facts['software']['tacit']}", ASSUMED
    yield "Rounding", "whole units of 1e-12 (1e-18 for δ); costs are rounded up, the cap down", PROVED
    figures = facts["guarantee"]["if_fixed_in_advance"]
    value = None
    if figures is not None and figures["epsilon"] is not None:
        value = (
            f"{pair(figures)} (privacy loss distributions): valid if all had been fixed in advance, which "
            "nobody checks; not the promise"
        )
    yield "If fixed in advance", value, NOT_COVERED


def _tuning(facts: Facts) -> Iterator[Line]:
    chosen = _charges_with(facts, PrivateSelection)
    if chosen:
        yield (
            "Private selection",
            f"{_counted(chosen)} for a choice among trials, by a formula of its own",
            PROVED,
        )
    yield (
        "Choices by looking",
        "settings chosen by looking at the records, or at answers that were not charged: unaccounted",
        NOT_COVERED,
    )


def _trust(facts: Facts) -> Iterator[Line]:
    spenders = facts["ledger"]["spenders"]
    yield (
        "Spenders",
        f"{spenders:,} by name; all share the one budget, so that pooling what they know gains nothing",
        PROVED,
    )


def _implementation(facts: Facts) -> Iterator[Line]:
    exact = _charges_with(facts, DiscreteLaplace, DiscreteGaussian)
    floats = _charges_with(facts, Gaussian, Laplace)
    if exact:
        yield (
            "Noise of queries",
            f"{_counted(exact)}: exact, on integers (2004.00010): low bits tell nothing",
            ASSUMED,
        )
        yield "NULL, NaN, infinity", "made numbers by a fixed rule before anything is added up", ASSUMED
    if floats:
        yield (
            "Noise of training",
            f"{_counted(floats)}: floating-point numbers, where the proofs speak of real ones",
            NOT_COVERED,
        )
    if fixed := facts["ledger"]["test_keys"]:
        yield (
            "NOT PRIVATE",
            f"{_counted(fixed)}: the noise came from a fixed test key, and can be subtracted",
            NOT_COVERED,
        )
    yield "Random numbers", "a key from the operating system for every other run and query", ASSUMED
    yield "Side channels", "time, memory, logs of the machine", NOT_COVERED


def _ledger(facts: Facts) -> Iterator[Line]:
    ledger = facts["ledger"]
    charges = ledger["charges"]
    yield "Engine", facts["engine"], ASSUMED
    yield "Entries", f"0 to {ledger['last']:,}, chained by SHA-256; head {ledger['head']}", PROVED
    yield "Anchor", ledger["anchor"], PROVED
    yield (
        "Old backups",
        "that no older copy of the ledger was put back shows only an anchor that was kept elsewhere",
        NOT_COVERED,
    )
    yield (
        "Charges",
        f"{charges['settled']:,} settled, {charges['reserved']:,} under way, {charges['forfeited']:,} "
        "forfeited; "
        "all of them are spent, nothing is paid back",
        PROVED,
    )
    yield "Refusals", f"{ledger['refusals']:,}", PROVED
    yield "Changes of the cap", "; ".join(ledger["cap_changes"]) or "none", PROVED
    yield "Recoveries from backup", "; ".join(ledger["recoveries"]) or "none", PROVED


def _utility(facts: Facts) -> Iterator[Line]:
    if facts["kinds"].get("query"):
        yield "Error of an answer", "every answer carries its 95 % interval, which is the noise's", ASSUMED
    yield "Error of the data", "what the records get wrong, no interval shows", NOT_COVERED


def _validity(facts: Facts) -> Iterator[Line]:
    yield "Issued", facts["issued"], ASSUMED
    yield "Data set opened", facts["ledger"]["opened"], ASSUMED
    note = facts["policy"]["note"] or None
    yield "Note in the policy", note, NOT_COVERED if note is None else ASSUMED


def _product(facts: Facts) -> Iterator[Line]:
    yield (
        "Deployment model",
        f"central: the program reads the records of every {facts['policy']['unit']} as they are, and adds "
        "the noise before anything leaves",
        ASSUMED,
    )


def _charges_with(facts: Facts, *kinds: type[Event]) -> int:
    """How many charges have a mechanism of these kinds somewhere in them."""
    return sum(
        group["charges"]
        for group in facts["mechanisms"]
        if any(isinstance(part, kinds) for part in parts(read_event(group["event"])))
    )


def _counted(charges: int) -> str:
    return "1 charge" if charges == 1 else f"{charges:,} charges"


def read_event(data: object) -> Event:
    """An event out of plain data."""
    return event_from_json(json.dumps(data))


_MAKERS: tuple[Callable[[Facts], Iterator[Line]], ...] = (
    _claim, _unit, _neighbours, _scope, _mechanisms, _accounting,
    _tuning, _trust, _implementation, _ledger, _utility, _validity, _product,
)  # fmt: skip


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
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}  # type: ignore[arg-type]
    shown = [f"{name} {value}" for name, value in fields.items() if not _holds_events(value)]
    made_of = [in_words(part) for value in fields.values() for part in _events(value)]
    return f"{type(event).__name__} ({', '.join(shown)})" + "".join(f" of {words}" for words in made_of)


def parts(event: Event) -> Iterator[Event]:
    """The event and all its parts, outermost first.

    >>> [type(part).__name__ for part in parts(Repeat(Gaussian(1.0), 3))]
    ['Repeat', 'Gaussian']
    """
    yield event
    for field in dataclasses.fields(event):  # type: ignore[arg-type]
        for inner in _events(getattr(event, field.name)):
            yield from parts(inner)


def _events(value: object) -> tuple[Event, ...]:
    if isinstance(value, Event):
        return (value,)
    return tuple(item for item in value if isinstance(item, Event)) if isinstance(value, tuple) else ()


def _holds_events(value: object) -> bool:
    return bool(_events(value))
