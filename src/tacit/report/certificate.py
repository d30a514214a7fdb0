"""The certificate of a data set: the promise for all its releases, its signature, and its check.

The certificate sums up the entries of the ledger, and adds the curator's statements. Every line has a grade,
and a line without a value says NOT STATED. ``docs/how-to/share-and-prove.md`` explains the certificate, and
shows one.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import __version__
from tacit.accounting import account
from tacit.errors import InvalidInput, TacitError, UnsupportedEvent, needed
from tacit.events import ApproximateDP, Compose, DiscreteLaplace, Event, Repeat
from tacit.ledger import Anchor, Budget, Ledger, Policy
from tacit.ledger.policy import Cost, budget_from_data
from tacit.ledger.records import Entry
from tacit.report.checklist import check_statements, checklist, claims_too_much, to_html, to_text
from tacit.report.spending import Spending, burned, dearest, spendings, totals
from tacit.report.verification import check_against, other_version, read_event, read_json, read_schema
from tacit.rounding import counted, finite, pair
from tacit.serial import parse_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


FORMAT = 2
_GROUPS = (2, 5)
_NO_PROMISE = 500.0  # an epsilon beyond this promises nothing
_KINDS = 60  # with more distinct mechanisms, the tight accountant would take too long
_TEST_KEY = "NOT PRIVATE"  # in the label of a charge whose noise came from a fixed key


@dataclass(frozen=True)
class Certificate:
    """The certificate of a dataset: its privacy guarantee, and how much of its budget is spent.

    ``data`` follows the published JSON schema.

    **Guarantee**

    * Every figure is computed from the entries of the ledger. Every line of text follows from these figures
      and from statements by the curator, who answers for the data.
    * Every epsilon has its delta, and no text calls data anonymous.
    * A line without a value is not left out: it says NOT STATED.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> certificate = make_certificate(ledger, "visits")
    >>> certificate.to_text().splitlines()[0]
    "PRIVACY CERTIFICATE of the data set 'visits'"
    """

    data: dict[str, Any]

    def to_json(self) -> str:
        """Return the certificate as JSON, with the mechanisms that spent the budget."""
        return json.dumps(self.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_text(self) -> str:
        """Return the certificate as one page of plain text."""
        return to_text(self.data)

    def to_html(self) -> str:
        """Return the certificate as one HTML page, which loads nothing from the network."""
        return to_html(self.data)

    def signed(self, key: Path) -> Certificate:
        """Return a copy of the certificate, signed with the Ed25519 private key in the file ``key``."""
        return Certificate(sign(self.data, key))


def make_certificate(
    ledger: Ledger, dataset: str, *, run: str | None = None, statements: Mapping[str, str] | None = None
) -> Certificate:
    """Make the certificate of a dataset as it is now, or of one training run on it.

    Args:
        ledger: the ledger that records the spending on the dataset.
        dataset: the name of the dataset in the ledger.
        run: the id of a training run. The certificate then also shows what this run spent.
        statements: statements by the curator, who answers for the data. The keys are those of
            :data:`~tacit.report.checklist.STATEMENTS`.

    Raises:
        InvalidInput: if there is no such dataset or run, or if a statement calls data anonymous.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> charge = ledger.reserve("visits", DiscreteLaplace(scale=4.0), key="1", request={})
    >>> certificate = make_certificate(ledger, "visits")
    >>> certificate.data["guarantee"]["cap"]["epsilon"], certificate.data["guarantee"]["spent"]["epsilon"]
    (1.0, 0.25)
    """
    return certificate_of(
        ledger.history(dataset),
        engine=ledger.engine,
        run=run,
        statements=statements,
        issued=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def certificate_of(
    entries: Sequence[Entry],
    *,
    engine: str,
    run: str | None,
    statements: Mapping[str, str] | None,
    issued: str,
) -> Certificate:
    """Make a certificate from these entries of one data set; see :func:`make_certificate`."""
    record = recorded(entries, run)
    policy = Policy.from_data(record["policy"])
    facts: dict[str, Any] = {
        "certificate": "tacit certificate",
        "format": FORMAT,
        "issued": issued,
        "software": {"tacit": __version__, "python": platform.python_version()},
        **record,
        "guarantee": guarantee_of(policy, record["mechanisms"], record["burned"]),
        "run": None if run is None else run_of(policy, record["mechanisms"], run),
        "accounting": method_of(policy.budget),
        "engine": engine,
        "statements": check_statements(statements or {}),
    }
    return Certificate({**facts, "lines": checklist(facts), "signature": None})


def recorded(entries: Sequence[Entry], run: str | None) -> dict[str, Any]:
    """Sum up a data set's entries as the fields of a certificate that a ledger can confirm."""
    opened = entries[0].body
    charges = spendings(entries)
    if run is not None and all(spent.run != run for spent in charges):
        runs = ", ".join(sorted({spent.run for spent in charges if spent.run is not None})) or "none"
        raise InvalidInput(
            f"run {run!r} has no charge in data set {opened['dataset']!r}. The runs with charges are: {runs}."
        )
    return {
        "subject": {
            "dataset": opened["dataset"],
            "ledger": opened["ledger"],
            **_content(entries),
        },
        "policy": _policy(entries),
        "mechanisms": _mechanisms(charges, run),
        "burned": None if (burnt := burned(entries)) is None else list(burnt),
        "kinds": dict(Counter(spent.kind for spent in charges)),
        "ledger": _ledger(entries, charges),
    }


def in_advance(policy: Policy, mechanisms: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compute epsilon of all charges together at the cap's delta.

    This epsilon is valid if all charges were fixed before the first answer. The accountant uses privacy loss
    distributions, or Renyi divergences if there are more than 60 distinct mechanisms. The result is None if
    the cap's delta is 0, if the epsilon spent is over 500, or if no accountant has a bound.
    """
    delta = policy.budget.limit[1]
    spent = dearest(policy.budget, totals(policy, _charged(mechanisms)).values())
    if delta == 0.0 or policy.budget.epsilon_of(spent)[0] > _NO_PROMISE:
        return None
    epsilon, method = 0.0, "pld"
    for blocks in totals(policy, ()):
        charges = [group for group in mechanisms if group["block"] in (None, *blocks)]
        event = Compose(tuple(Repeat(_quickly_priced(read_event(g["event"])), g["charges"]) for g in charges))
        method = "pld" if len(event.events) <= _KINDS else "rdp"
        try:
            epsilon = max(epsilon, account(event, adjacency=policy.relation, method=method).epsilon(delta))
        except UnsupportedEvent:
            return None
    return {"epsilon": finite(epsilon), "delta": delta, "method": method}


def _quickly_priced(event: Event) -> Event:
    """Replace Laplace noise on a fine grid by its pure epsilon: fast to compose, and hardly looser."""
    match event:
        case DiscreteLaplace(scale, sensitivity) if sensitivity > 100:
            return ApproximateDP(math.nextafter(sensitivity / scale, math.inf))
        case Compose(events):
            return Compose(tuple(_quickly_priced(inner) for inner in events))
        case Repeat(inner, count):
            return Repeat(_quickly_priced(inner), count)
    return event


def _mechanisms(spendings: Sequence[Spending], run: str | None) -> list[dict[str, Any]]:
    """Combine equal charges into groups, in the order of each group's first charge."""
    groups: dict[str, dict[str, Any]] = {}
    for spent in spendings:
        kind = {
            "event": spent.event,
            "cost": list(spent.cost),
            "block": spent.block,
            "delta": spent.delta,
            "of_the_run": run is not None and spent.run == run,
            **({"claimed": _without_claim(spent.label)} if spent.is_claim else {}),
        }
        key = json.dumps(kind, sort_keys=True)
        group = groups.setdefault(key, {**kind, "charges": 0, "first": spent.seq, "last": spent.seq})
        group["charges"] += 1
        group["last"] = spent.seq
    return list(groups.values())


def guarantee_of(
    policy: Policy, mechanisms: Sequence[Mapping[str, Any]], burnt: Sequence[int] | None
) -> dict[str, Any]:
    """Compute the figures of the promise; ``burnt`` are units that went after an old backup was restored."""
    epsilon, delta = policy.budget.limit
    sums = totals(policy, [*_charged(mechanisms), *(() if burnt is None else ((None, tuple(burnt)),))])
    blocks = {" + ".join(names): _figures(policy.budget, cost) for names, cost in sums.items()}
    return {
        "cap": {"epsilon": epsilon, "delta": delta, "units": list(policy.budget.cap)},
        "odds": finite(math.exp(epsilon)) if epsilon <= _NO_PROMISE else None,
        "spent": _figures(policy.budget, dearest(policy.budget, sums.values())),
        "blocks": blocks if policy.blocks else {},
        "groups": {str(size): group_of(epsilon, delta, size) for size in _GROUPS},
        "if_fixed_in_advance": in_advance(policy, mechanisms),
    }


def run_of(policy: Policy, mechanisms: Sequence[Mapping[str, Any]], run: str) -> dict[str, Any]:
    """Return the id of this run and what the run alone spent."""
    charges = [group for group in mechanisms if group["of_the_run"]]
    cost = dearest(policy.budget, totals(policy, _charged(charges)).values())
    return {"id": run, "spent": _figures(policy.budget, cost)}


def _charged(mechanisms: Sequence[Mapping[str, Any]]) -> list[tuple[str | None, Cost]]:
    return [
        (group["block"], tuple(group["charges"] * part for part in group["cost"])) for group in mechanisms
    ]


def _figures(budget: Budget, spent: Cost) -> dict[str, Any]:
    epsilon, delta = budget.epsilon_of(spent)
    return {"epsilon": finite(epsilon), "delta": delta, "units": list(spent)}


def group_of(epsilon: float, delta: float, size: int) -> dict[str, float | None]:
    """Compute the guarantee of a group of k = ``size`` units from the guarantee of one unit.

    With e for epsilon and d for delta, the group has (k e, d (e^{k e} - 1) / (e^e - 1)); see Vadhan, "The
    complexity of differential privacy", lemma 2.2. If the group's delta reaches 1, its epsilon is None.
    """
    if delta == 0.0:
        return {"epsilon": size * epsilon, "delta": 0.0}
    factor = math.expm1(size * epsilon) / math.expm1(epsilon) if size * epsilon <= _NO_PROMISE else math.inf
    grown = math.nextafter(delta * factor, math.inf)
    return {"epsilon": size * epsilon if grown < 1.0 else None, "delta": min(1.0, grown)}


def _ledger(entries: Sequence[Entry], spendings: Sequence[Spending]) -> dict[str, Any]:
    first, last = entries[0], entries[-1]
    states = Counter(spent.state for spent in spendings)
    return {
        "opened": first.time.isoformat(timespec="seconds"),
        "last": last.seq,
        "head": last.hash,
        "anchor": str(Anchor(first.body["ledger"], first.body["dataset"], last.seq, last.hash)),
        "charges": {state.lower(): states[state] for state in ("SETTLED", "RESERVED", "FORFEITED")},
        "spenders": len({spent.by for spent in spendings}),
        "test_keys": sum(_TEST_KEY in spent.label for spent in spendings),
        "refusals": sum(entry.kind == "refuse" for entry in entries),
        "cap_changes": [_raised(entry) for entry in entries if entry.kind == "raise-cap"],
        "recoveries": [
            f"entry {entry.seq}, {entry.time:%Y-%m-%d}: an old copy had been put back, and what was left of "
            "the budget was burned"
            for entry in entries
            if entry.kind == "burn"
        ],
    }


def _raised(entry: Entry) -> str:
    epsilon, delta = budget_from_data(entry.body["budget"]).limit
    return (
        f"entry {entry.seq}, {entry.time:%Y-%m-%d}: raised to {pair({'epsilon': epsilon, 'delta': delta})} "
        f"by {_without_claim(entry.body['by'])!r}: {_without_claim(entry.body['reason'])!r}; what was "
        "promised "
        "before is void"
    )


def _content(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the newest fingerprint, the number of versions of the data, and the results of their checks."""
    contents = [entry.body for entry in entries if entry.kind == "content"]
    fingerprints = [body["fingerprint"] for body in contents]
    verdicts = [(body["fingerprint"], body["verdict"]) for body in contents if "verdict" in body]
    facts: dict[str, Any] = {
        "fingerprint": fingerprints[-1] if fingerprints else None,
        "versions": len(set(fingerprints)),
    }
    if verdicts:
        accepted = {
            kind: sorted({column for _, verdict in verdicts for column in verdict[kind]})
            for kind in ("missing", "outside")
        }
        facts["checked"] = {"versions": len({fingerprint for fingerprint, _ in verdicts}), **accepted}
    return facts


def _policy(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the policy with which the data set was opened, with today's budget in it."""
    raised = [entry.body["budget"] for entry in entries if entry.kind == "raise-cap"]
    policy = entries[0].body["policy"]
    budget = raised[-1] if raised else policy["budget"]
    return {**policy, "budget": budget, "note": _without_claim(policy["note"])}


def _without_claim(text: str) -> str:
    """Return ``text`` unchanged, or a remark in its place if it calls data anonymous."""
    return "(left out: it claims what no epsilon and delta prove)" if claims_too_much(text) else text


_METHODS = {
    "pure": (
        "sums of pure epsilons",
        "Rogers et al. 2016, 1605.08294: valid with parameters chosen on the way",
    ),
    "approximate": (
        "sums of epsilons and sums of deltas",
        "Haney et al. 2023, 2309.05901: valid with parameters chosen on the way, and for releases that "
        "overlap",
    ),
    "zcdp": (
        "sums of rho (zero-concentrated), tight conversion to (ε, δ)",
        "Feldman and Zrnic 2021, 2008.11193: valid with parameters chosen on the way",
    ),
    "renyi": (
        "sums of Rényi divergences over orders fixed at opening; one order has to stay under its cap",
        "Feldman and Zrnic 2021, 2008.11193, theorem 4.3, for every order, and a union over the orders, each "
        "with "
        "its part of δ (proof in docs/how-to/ledger.md)",
    ),
}


def method_of(budget: Budget) -> dict[str, str]:
    """Return the method by which the budget composes charges, and the theorem that proves it."""
    method, theorem = _METHODS[budget.mode]
    settings = {
        name: value for name, value in budget.to_data().items() if name in ("orders", "threshold_delta")
    }
    details = ", ".join(f"{name.replace('_', ' ')} {_written(value)}" for name, value in settings.items())
    return {"method": f"{method}; {details}" if details else method, "theorem": theorem}


def _written(value: object) -> str:
    return ", ".join(f"{item:g}" for item in value) if isinstance(value, list | tuple) else f"{value:g}"


_PURPOSE = b"tacit certificate, format 1\n"
_ALGORITHM = "Ed25519"


def canonical(data: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: everything but ``signature``."""
    rest = {name: value for name, value in data.items() if name != "signature"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _PURPOSE + text.encode()


def make_key(path: Path) -> str:
    """Write a new private key to a file, and return the public key as 64 hexadecimal digits.

    Only the owner of the file can read it.
    """
    needed("cryptography", "torch", "signing")
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"the file {path} exists already. Tacit overwrites no key, because the key's signatures could no "
            "longer be checked. Choose another name."
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return private.public_key().public_bytes_raw().hex()


def public_key_of(path: Path) -> str:
    """Return the public key of the private key in the file ``path``."""
    return _read_key(path).public_key().public_bytes_raw().hex()


def sign(data: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """Return ``data`` with a ``signature`` by the private key in the file ``key``."""
    private = _read_key(key)
    signature = {
        "algorithm": _ALGORITHM,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "value": private.sign(canonical(data)).hex(),
    }
    return {**data, "signature": signature}


def signature_holds(data: Mapping[str, Any]) -> bool:
    """Return whether the holder of the key in ``signature`` signed these ``data``.

    **Guarantee**

    * The result is False if any value of ``data`` differs from the value that was signed.
    * The result does not show who owns the key. Compare ``public_key`` with one that the signer gave you.
    """
    needed("cryptography", "torch", "signing")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = data["signature"]
    if signature["algorithm"] != _ALGORITHM:
        raise InvalidInput(f"a signature must be {_ALGORITHM}; got {signature['algorithm']!r}.")
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        public.verify(bytes.fromhex(signature["value"]), canonical(data))
    except (InvalidSignature, ValueError):
        return False
    return True


def _read_key(path: Path) -> Ed25519PrivateKey:
    needed("cryptography", "torch", "signing")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as problem:
        raise InvalidInput(f"the key {path} cannot be read: {problem.strerror}. Check the path.") from None
    except (ValueError, TypeError):
        key = None  # not a key, or a key with a password
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(
            f"{path} is not a private Ed25519 key. Give a PEM file without a password; `tacit ledger key "
            "FILE` makes one."
        )
    return key


_ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation


@dataclass(frozen=True)
class CertificateCheck:
    """The result of checking a certificate.

    Attributes:
        problems: one sentence per error; empty if the certificate agrees.
        remarks: sentences on limits of the check; not errors.
        checked: one sentence per check that was made.

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

    @property
    def agrees(self) -> bool:
        """Whether the check found no problems."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """The result in words: "agrees" or "does not agree"."""
        return "does not agree" if self.problems else "agrees"

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
    """Read a certificate, and check it against its schema."""
    data: dict[str, Any] = read_json(path, "certificate", "the JSON form of one")
    _check_form(data)
    return data


def check_certificate(
    data: Mapping[str, Any], *, ledger: Ledger | None = None, public_key: str | None = None
) -> CertificateCheck:
    """Check a certificate, and compare it with its ledger if the ledger is given.

    Args:
        data: the ``data`` of a certificate, or the result of
            :func:`~tacit.report.certificate.read_certificate`.
        ledger: the ledger from which the certificate was made.
        public_key: the public key of the signer that you expect, as 64 hexadecimal digits.

    Returns:
        The findings: ``agrees`` (True or False), ``verdict`` (the same in words) and ``problems`` (one
        sentence each).

    Raises:
        InvalidInput: if the certificate does not fit its schema, or its policy or a mechanism cannot be read.
        OtherVersion: if another version of Tacit wrote the certificate; then nothing is verified.

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
    _check_form(data)
    policy = Policy.from_data(data["policy"])
    problems = list(_prices(data, policy))
    if not problems:  # if a cost is wrong, the total means nothing
        problems += _check_figures(data, policy)
    problems += [*_lines(data), *_signature(data, public_key)]
    count = sum(group["charges"] for group in data["mechanisms"])
    charges = counted(count, "charge")
    checked = [
        f"The certificate promises {pair(data['guarantee']['cap'])} for one {policy.unit}. The sum of its "
        f"{charges}, computed again by tacit {__version__}, is {pair(data['guarantee']['spent'])}."
        if not problems
        else f"The sum of its {charges} was computed again by tacit {__version__}."
    ]
    remarks = list(_remarks(data, public_key))
    not_verified = [*_FREE]
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
    return CertificateCheck(tuple(problems), tuple(remarks), tuple(checked))


def _check_form(data: Any) -> None:
    """Check that this version wrote the certificate, and that it fits its schema."""
    software = data.get("software") if isinstance(data, Mapping) else None
    version = software.get("tacit") if isinstance(software, Mapping) else None
    if isinstance(version, str) and (version != __version__ or data.get("format") != FORMAT):
        raise other_version("certificate", version[:40], data.get("format"), FORMAT)
    check_against(read_schema("certificate.schema.json"), data, what="the certificate")


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


def _check_figures(data: Mapping[str, Any], policy: Policy) -> Iterator[str]:
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
    """Check every word of the lines against figures and statements."""
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
        for name, expected in recorded(then, run).items():
            problems += [f"against the ledger, {text}" for text in _differences(data[name], expected, name)]
    return problems, [
        f"{counted(len(history), 'entry', 'entries')} of the ledger replayed; the certificate was compared "
        f"with the first {len(then):,} of them; {max(0, later):,} came later.",
        *replay.notes,
    ]


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
