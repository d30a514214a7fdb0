"""The check that a certificate's figures follow from its mechanisms, and its lines from its figures.

The check accounts for every mechanism again, adds up the costs, and writes every line again. If the ledger is
given, the check also replays the ledger's hash chain, makes a new certificate from the same entries, and
compares the two.
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
from tacit.report.statement.verification import of_other_version
from tacit.rounding import pair
from tacit.serial import parse_json

_ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation


@dataclass(frozen=True)
class CertificateCheck:
    """The findings of the check of a certificate.

    Attributes:
        problems: one sentence on each error. It is empty if the certificate agrees.
        remarks: sentences on limits of the check, which are not errors.
        checked: one sentence on each thing that was checked.
        other_version: the version of Tacit that wrote the certificate, if it is another one; else "".

    **Guarantee**

    * ``agrees`` is True only if every line is as this version of Tacit writes it from the figures.
    * ``agrees`` is True only if no charge costs more than the certificate says, and the sum is as stated.
    * With a ledger, ``agrees`` is True only if the ledger's hash chain is unbroken and its entries give this
      certificate.
    * With a public key, ``agrees`` is True only if the certificate is signed with that key.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    checked: tuple[str, ...]
    other_version: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the check found no problems, and compared the words of the certificate, too."""
        return not self.problems and not self.other_version

    @property
    def verdict(self) -> str:
        """The result in words: "agrees", "does not agree" or "not verified"."""
        if self.problems:
            return "does not agree"
        return "not verified" if self.other_version else "agrees"

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "verdict": self.verdict,
            "agrees": self.agrees,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "checked": list(self.checked),
            "other_version": self.other_version,
        }

    def in_words(self) -> list[str]:
        """Return the findings as text, with one paragraph for each."""
        return [*(f"Wrong: {text}" for text in self.problems), *self.checked, *self.remarks]


def is_certificate(path: Path | str) -> bool:
    """Return whether a file is marked as a certificate. The result is False if the file cannot be read."""
    try:
        data = parse_json(Path(path).read_text(encoding="utf-8"))
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
    """Check a certificate, and compare it with its ledger if the ledger is given.

    Args:
        data: the result of :func:`read_certificate`, or the ``data`` of a certificate.
        ledger: the ledger of the certificate.
        public_key: the public key of the expected signer, as 64 hexadecimal digits.

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
    'the mechanism of entry 1 costs [500000000000] units; only [250000000000] were charged.'
    """
    check_against(read_schema("certificate.schema.json"), data, what="the certificate")
    policy = Policy.from_data(data["policy"])
    problems = list(_prices(data, policy))
    if not problems:  # if a cost is wrong, the total means nothing
        problems += _figures(data, policy)
    problems += [*_lines(data), *_signature(data, public_key)]
    count = sum(group["charges"] for group in data["mechanisms"])
    charges = "1 charge" if count == 1 else f"{count:,} charges"
    checked = [
        f"The certificate promises {pair(data['guarantee']['cap'])} for one {policy.unit}. The sum of its "
        f"{charges}, computed again by tacit {__version__}, is {pair(data['guarantee']['spent'])}."
        if not problems
        else f"The sum of its {charges} was computed again by tacit {__version__}."
    ]
    remarks = list(_remarks(data, public_key))
    not_verified = [*_FREE, *(["lines"] if _other_version(data) else [])]
    if ledger is None:
        not_verified += _OF_LEDGER
        remarks.append(
            "Only its ledger shows that these mechanisms are all that was done: give it with --ledger."
        )
    else:
        differences, sentences = _against_ledger(data, ledger)
        problems += differences
        checked += sentences
    remarks.append(f"Not verified: {', '.join(not_verified)}.")
    return CertificateCheck(tuple(problems), tuple(remarks), tuple(checked), _other_version(data))


def _prices(data: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Check that every charge costs at least the price of its event."""
    slots = len(policy.budget.slots)
    if data["burned"] is not None and len(data["burned"]) != slots:
        yield f"the burned units have {len(data['burned'])} parts; this budget has {slots}."
    for group in data["mechanisms"]:
        first, last = group["first"], group["last"]
        where = f"entry {first}" if first == last else f"entries {first} to {last}"
        budget = policy.budget
        try:
            price = budget.price(read_event(group["event"]), policy.relation, delta=group["delta"])
        except TacitError as problem:
            yield f"the mechanism of {where} has no price: {problem}"
            continue
        if len(group["cost"]) != len(price):
            yield f"the costs of {where} have {len(group['cost'])} parts; this budget has {len(price)}."
        elif any(
            paid < due - math.ceil(_ROUNDING * due) for paid, due in zip(group["cost"], price, strict=True)
        ):
            yield f"the mechanism of {where} costs {list(price)} units; only {group['cost']} were charged."


def _figures(data: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Check that the charges add up to the stated sum, and stay within the cap."""
    mechanisms = data["mechanisms"]
    figures = guarantee_of(policy, mechanisms, data["burned"])
    yield from _differences(data["guarantee"], figures, "guarantee")
    yield from _differences(data["accounting"], method_of(policy.budget), "accounting")
    if data["burned"] is None and not policy.budget.admits(tuple(figures["spent"]["units"])):
        yield f"more is spent than the cap allows: {pair(figures['spent'])}, of {pair(figures['cap'])}."
    if data["run"] is not None:
        yield from _differences(data["run"], run_of(policy, mechanisms, data["run"]["id"]), "run")


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    """If this version wrote the certificate, check every word of its lines against figures and statements."""
    if _other_version(data):
        return
    lines = [json.dumps(line, sort_keys=True) for line in data["lines"]]
    expected = [json.dumps(line, sort_keys=True) for line in checklist(data)]
    for line in data["lines"]:
        if json.dumps(line, sort_keys=True) not in expected:
            yield f"its line {line['section']}, {line['name']!r}, does not follow from figures and texts."
    for text in expected:
        if text not in lines:
            line = json.loads(text)
            yield f"it lacks the line {line['section']}, {line['name']!r}, of its figures and texts."


_FREE = ("issued", "software", "engine", "statements")
"""The fields that no other field and no entry of the ledger determines."""
_OF_LEDGER = ("subject", "policy", "mechanisms", "burned", "kinds", "ledger")
"""The fields that only the ledger determines."""


def _other_version(data: Mapping[str, Any]) -> str:
    """Return the version that wrote the certificate if its words may differ from this one's, else ""."""
    version = str(data["software"]["tacit"])[:40]
    if data["format"] != FORMAT:
        return f"{version} in format {data['format']}"
    return "" if version == __version__ else version


def _signature(data: Mapping[str, Any], public_key: str | None) -> Iterator[str]:
    signature = data["signature"]
    if signature is None:
        if public_key is not None:
            yield "it is not signed."
        return
    if not signature_holds(data):
        yield "its signature is not valid: something was changed after it was signed."
    if public_key is not None and signature["public_key"] != public_key.lower():
        yield f"it is signed with the key {signature['public_key']}, not with {public_key.lower()}."


def _remarks(data: Mapping[str, Any], public_key: str | None) -> Iterator[str]:
    signature = data["signature"]
    if version := _other_version(data):
        yield of_other_version("certificate", version)
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
    """Return sentences on the differences from the ledger, and sentences on what was checked."""
    anchor = Anchor.parse(data["ledger"]["anchor"])
    if ledger.uuid != data["subject"]["ledger"]:
        return [f"it belongs to ledger {data['subject']['ledger']}; the given one is {ledger.uuid}."], []
    dataset = data["subject"]["dataset"]
    replay = ledger.verify(dataset, anchor=anchor)
    problems = [f"the ledger: {text}" for text in replay.problems]
    history = ledger.history(dataset)
    then, later = history[: data["ledger"]["last"] + 1], len(history) - data["ledger"]["last"] - 1
    run = None if data["run"] is None else data["run"]["id"]
    if later >= 0:
        problems += _differences_from(data, recorded(then, run))
    return problems, [
        f"The ledger's {len(history):,} entries were replayed, and the certificate was compared with the "
        f"first {len(then):,} of them; {max(0, later):,} came later.",
        *replay.notes,
    ]


def _differences_from(data: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    for name, expected in record.items():
        yield from (f"against the ledger, {text}" for text in _differences(data[name], expected, name))


def _differences(value: Any, expected: Any, where: str) -> Iterator[str]:
    """Describe each difference between two pieces of plain data in a sentence. Rounding is no difference."""
    match value, expected:
        case (dict(), dict()):
            for name in sorted({*value, *expected}):
                if name not in value or name not in expected:
                    yield f"{where}.{name} is {'not in the new result' if name in value else 'missing'}."
                else:
                    yield from _differences(value[name], expected[name], f"{where}.{name}")
        case (list(), list()) if len(value) == len(expected):
            for position, items in enumerate(zip(value, expected, strict=True)):
                yield from _differences(*items, f"{where}[{position}]")
        case (float(), float() | int()) | (int(), float()):
            if not math.isclose(value, expected, rel_tol=_ROUNDING):
                yield f"{where} is {value!r}; computed again it is {expected!r}."
        case _:
            if value != expected:
                text, again = json.dumps(value)[:80], json.dumps(expected)[:80]
                yield f"{where} is {text}; computed again it is {again}."
