"""The check of a certificate: its figures follow from its mechanisms, and its lines from its figures.

The check accounts for every mechanism again, adds up the costs, and writes every line again. Given the
ledger, it also replays the ledger's chain, and compares the certificate with one of the same entries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.errors import TacitError
from tacit.ledger import Anchor, Ledger, Policy
from tacit.report.certificate.certificate import FORMAT, guarantee_of, method_of, recorded, run_of
from tacit.report.certificate.lines import checklist
from tacit.report.certificate.signing import signature_holds
from tacit.report.schema import check_against, read_json, read_schema
from tacit.report.statement.reading import read_event
from tacit.rounding import pair

_ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation


@dataclass(frozen=True)
class CertificateCheck:
    """The findings of the check of a certificate.

    Attributes:
        problems: one sentence on each error; none if the certificate agrees.
        remarks: sentences on limits of the check that are not errors.
        checked: one sentence on each thing that was checked.

    **Guarantee**

    * ``agrees`` holds only if no charge costs more than the certificate says, and their sum is as stated.
    * Given a ledger, it holds only if the ledger's chain is whole and its entries give this certificate.
    * Given a public key, it holds only if the certificate is signed with it.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    checked: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """The result in words: "agrees" or "does not agree"."""
        return "agrees" if self.agrees else "does not agree"

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "verdict": self.verdict,
            "agrees": self.agrees,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "checked": list(self.checked),
        }

    def in_words(self) -> list[str]:
        """Write the findings for people, one paragraph each."""
        return [*(f"Wrong: {text}" for text in self.problems), *self.checked, *self.remarks]


def is_certificate(path: Path | str) -> bool:
    """Return whether a file says that it is a certificate; False if it cannot be read."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "certificate" in data


def read_certificate(path: Path | str) -> dict[str, Any]:
    """Read a certificate, and check it against its schema.

    Raises:
        InvalidInput: the file cannot be read, or is not a certificate.
    """
    data: dict[str, Any] = read_json(path, "certificate", "the JSON form of one")
    check_against(read_schema("certificate.schema.json"), data, what="the certificate")
    return data


def check_certificate(
    data: Mapping[str, Any], *, ledger: Ledger | None = None, public_key: str | None = None
) -> CertificateCheck:
    """Check a certificate alone, and against its ledger if that is given.

    Args:
        data: from :func:`read_certificate`, or the ``data`` of a certificate.
        ledger: the ledger of the certificate.
        public_key: the key that must have signed the certificate, 64 hexadecimal digits.

    Raises:
        InvalidInput: the certificate does not fit its schema, or its policy or a mechanism cannot be read.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> from tacit.report import make_certificate
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> charge = ledger.reserve("visits", DiscreteLaplace(scale=4.0), key="1", request={})
    >>> data = make_certificate(ledger, "visits").data
    >>> check_certificate(data, ledger=ledger).verdict
    'agrees'
    >>> data["mechanisms"][0]["event"]["scale"] = 2.0
    >>> check_certificate(data).problems[0]
    'the mechanism of entries 1 to 1 costs [500000000000] units; only [250000000000] were charged.'
    """
    check_against(read_schema("certificate.schema.json"), data, what="the certificate")
    policy = Policy.from_data(data["policy"])
    problems = list(_prices(data, policy))
    if not problems:  # a total of wrong costs would mean nothing
        problems += _figures(data, policy)
    problems += [*_lines(data), *_signature(data, public_key)]
    count = sum(group["charges"] for group in data["mechanisms"])
    checked = [
        f"The certificate promises {pair(data['guarantee']['cap'])} for one {policy.unit}. Its {count:,} "
        "charges, "
        f"accounted for anew by tacit {__version__} and added up, give {pair(data['guarantee']['spent'])}."
        if not problems
        else f"Its {count:,} charges were accounted for anew by tacit {__version__} and added up."
    ]
    remarks = list(_remarks(data, public_key))
    if ledger is None:
        remarks.append(
            "That the mechanisms are all that was done, only its ledger shows: give it with --ledger."
        )
    else:
        found, said = _against_ledger(data, ledger)
        problems += found
        checked += said
    return CertificateCheck(tuple(problems), tuple(remarks), tuple(checked))


def _prices(data: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Check that every charge costs at least the price of its event."""
    slots = len(policy.budget.slots)
    if data["burned"] is not None and len(data["burned"]) != slots:
        yield f"what was burned has {len(data['burned'])} parts; this budget counts {slots}."
    for group in data["mechanisms"]:
        where = f"entries {group['first']} to {group['last']}"
        budget = policy.budget
        try:
            price = budget.price(read_event(group["event"]), policy.relation, delta=group["delta"])
        except TacitError as problem:
            yield f"the mechanism of {where} has no price: {problem}"
            continue
        if len(group["cost"]) != len(price):
            yield f"the costs of {where} have {len(group['cost'])} parts; this budget counts {len(price)}."
        elif any(
            paid < due - math.ceil(_ROUNDING * due) for paid, due in zip(group["cost"], price, strict=True)
        ):
            yield f"the mechanism of {where} costs {list(price)} units; only {group['cost']} were charged."


def _figures(data: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Check that the charges add up to the stated sum, and stay within the cap."""
    mechanisms = data["mechanisms"]
    anew = guarantee_of(policy, mechanisms, data["burned"])
    yield from _differences(data["guarantee"], anew, "guarantee")
    yield from _differences(data["accounting"], method_of(policy.budget), "accounting")
    if data["burned"] is None and not policy.budget.admits(tuple(anew["spent"]["units"])):
        yield f"more is spent than the cap allows: {pair(anew['spent'])}, of {pair(anew['cap'])}."
    if data["run"] is not None:
        yield from _differences(data["run"], run_of(policy, mechanisms, data["run"]["id"]), "run")


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Check that every line follows word by word from figures and statements, if this version wrote it."""
    if not _same_words(data):
        return
    stated = [json.dumps(line, sort_keys=True) for line in data["lines"]]
    anew = [json.dumps(line, sort_keys=True) for line in checklist(data)]
    for line in data["lines"]:
        if json.dumps(line, sort_keys=True) not in anew:
            yield f"its line {line['section']}, {line['name']!r}, does not follow from what it is made of."
    for text in anew:
        if text not in stated:
            line = json.loads(text)
            yield f"it lacks the line {line['section']}, {line['name']!r}, as what it is made of gives it."


def _same_words(data: Mapping[str, Any]) -> bool:
    return (data["software"]["tacit"], data["format"]) == (__version__, FORMAT)


def _signature(data: Mapping[str, Any], public_key: str | None) -> Iterator[str]:
    signature = data["signature"]
    if signature is None:
        if public_key is not None:
            yield "it is not signed."
        return
    if not signature_holds(data):
        yield "its signature does not hold: something was changed after it was signed."
    if public_key is not None and signature["public_key"] != public_key.lower():
        yield f"it is signed with the key {signature['public_key']}, not with {public_key.lower()}."


def _remarks(data: Mapping[str, Any], public_key: str | None) -> Iterator[str]:
    version, signature = data["software"]["tacit"], data["signature"]
    if not _same_words(data):
        yield f"It was written by tacit {version}; this is {__version__}: its words were not compared."
    if signature is None:
        yield "It is not signed, so it does not show who issued it."
    elif public_key is None:
        yield (
            f"It is signed with the key {signature['public_key']}. It does not show who holds that key: "
            "compare it with one that you have from the signer, with --public-key."
        )
    blanks = [line["name"] for line in data["lines"] if line["value"] is None]
    if blanks:
        yield f"Not stated: {', '.join(blanks)}."


def _against_ledger(data: Mapping[str, Any], ledger: Ledger) -> tuple[list[str], list[str]]:
    """Return the differences from the ledger, and what was checked there."""
    anchor = Anchor.parse(data["ledger"]["anchor"])
    if ledger.uuid != data["subject"]["ledger"]:
        return [f"it is of ledger {data['subject']['ledger']}; the one given is {ledger.uuid}."], []
    dataset = data["subject"]["dataset"]
    found = ledger.verify(dataset, anchor=anchor)
    problems = [f"the ledger: {text}" for text in found.problems]
    history = ledger.history(dataset)
    then, later = history[: data["ledger"]["last"] + 1], len(history) - data["ledger"]["last"] - 1
    run = None if data["run"] is None else data["run"]["id"]
    if later >= 0:
        problems += _differences_from(data, recorded(then, run))
    return problems, [
        f"The ledger's {len(history):,} entries were replayed, and the certificate compared with the first "
        f"{len(then):,} of them; {max(0, later):,} came later.",
        *found.notes,
    ]


def _differences_from(data: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    for name, anew in record.items():
        yield from (f"against the ledger, {text}" for text in _differences(data[name], anew, name))


def _differences(stated: Any, anew: Any, where: str) -> Iterator[str]:
    """Describe each difference of two pieces of plain data, except rounding, in a sentence."""
    match stated, anew:
        case (dict(), dict()):
            for name in sorted({*stated, *anew}):
                if name not in stated or name not in anew:
                    yield f"{where}.{name} is {'not found anew' if name in stated else 'missing'}."
                else:
                    yield from _differences(stated[name], anew[name], f"{where}.{name}")
        case (list(), list()) if len(stated) == len(anew):
            for position, items in enumerate(zip(stated, anew, strict=True)):
                yield from _differences(*items, f"{where}[{position}]")
        case (float(), float() | int()) | (int(), float()):
            if not math.isclose(stated, anew, rel_tol=_ROUNDING):
                yield f"{where} is {stated!r}; computed anew it is {anew!r}."
        case _:
            if stated != anew:
                yield f"{where} is {json.dumps(stated)[:80]}; computed anew it is {json.dumps(anew)[:80]}."
