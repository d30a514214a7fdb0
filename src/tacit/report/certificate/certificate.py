"""The certificate of a data set: the promise for all its releases, and the reasons for the promise.

The certificate sums up the entries of the ledger, and adds the curator's statements. Every line has a grade,
and a line without a value says NOT STATED. ``docs/certificate.md`` explains the certificate, and shows one.
"""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.accounting import account
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import ApproximateDP, Compose, DiscreteLaplace, Event, Repeat
from tacit.ledger import Anchor, Budget, Ledger, Policy
from tacit.ledger.budgets import Cost, budget_from_data
from tacit.ledger.chain import Entry
from tacit.report.certificate.lines import checklist, to_html, to_text
from tacit.report.certificate.signing import sign
from tacit.report.certificate.statements import check_statements, claims_too_much
from tacit.report.spending import Spending, burned, dearest, spendings, totals
from tacit.report.statement.reading import read_event
from tacit.rounding import finite, pair

FORMAT = 2  # Tacit 0.2.0 wrote format 1; the check does not compare the words of a format 1 certificate
_GROUPS = (2, 5)
_NO_PROMISE = 500.0  # an epsilon beyond this promises nothing
_KINDS = 60  # with more distinct mechanisms, the tight accountant would take too long
_TEST_KEY = "NOT PRIVATE"  # in the label of a charge whose noise came from a fixed key


@dataclass(frozen=True)
class Certificate:
    """A certificate. ``data`` follows the published schema, and :meth:`to_json` writes it.

    **Guarantee**

    * Every figure follows from the entries of the ledger, and every line from the figures and statements.
    * Every epsilon has its delta, and no text calls data anonymous.
    * A line without a value is printed too, and says NOT STATED.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> certificate = make_certificate(ledger, "visits")
    >>> certificate.to_text().splitlines()[0]
    "PRIVACY CERTIFICATE of the data set 'visits'"
    """

    data: dict[str, Any]

    def to_json(self) -> str:
        """Write the certificate as JSON. It includes the mechanisms from which its figures are computed."""
        return json.dumps(self.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_text(self) -> str:
        """Write the certificate as one page of plain text."""
        return to_text(self.data)

    def to_html(self) -> str:
        """Draw the certificate as one HTML page that needs no network."""
        return to_html(self.data)

    def signed(self, key: Path) -> Certificate:
        """Return the certificate with an Ed25519 signature by the private key in the file ``key``."""
        return Certificate(sign(self.data, key))


def make_certificate(
    ledger: Ledger, dataset: str, *, run: str | None = None, statements: Mapping[str, str] | None = None
) -> Certificate:
    """Make the certificate of a data set as it is now, or of one training run on it.

    Args:
        ledger: the ledger.
        dataset: the name of the data set.
        run: the id of a training run. The certificate then also shows what this run spent.
        statements: the curator's statements. Their keys are those of
            :data:`~tacit.report.certificate.statements.STATEMENTS`.

    Raises:
        InvalidInput: there is no such data set or run, or a statement calls data anonymous.

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
            f"no charge of {opened['dataset']!r} belongs to run {run!r}. Its runs are: {runs}."
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
        }
        key = json.dumps(kind, sort_keys=True)
        group = groups.setdefault(key, {**kind, "charges": 0, "first": spent.seq, "last": spent.seq})
        group["charges"] += 1
        group["last"] = spent.seq
    return list(groups.values())


def guarantee_of(
    policy: Policy, mechanisms: Sequence[Mapping[str, Any]], burnt: Sequence[int] | None
) -> dict[str, Any]:
    """Compute the figures of the promise from the policy and the mechanisms of a certificate.

    Args:
        policy: the policy of the data set.
        mechanisms: the charges, with equal charges combined.
        burnt: the budget units burned on the whole data set after an old backup was restored, or None if
            no units were burned.
    """
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

    >>> group_of(0.5, 0.0, 2)
    {'epsilon': 1.0, 'delta': 0.0}
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
        "recoveries": [_recovered(entry) for entry in entries if entry.kind == "burn"],
    }


def _raised(entry: Entry) -> str:
    epsilon, delta = budget_from_data(entry.body["budget"]).limit
    return (
        f"entry {entry.seq}, {entry.time:%Y-%m-%d}: raised to {pair({'epsilon': epsilon, 'delta': delta})} "
        f"by {_without_claim(entry.body['by'])!r}: {_without_claim(entry.body['reason'])!r}; what was "
        "promised "
        "before is void"
    )


def _recovered(entry: Entry) -> str:
    return (
        f"entry {entry.seq}, {entry.time:%Y-%m-%d}: an old copy had been put back, and what was left of the "
        "budget was burned"
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


# The check of an older certificate compares its words with these, and with those of _raised and _recovered.
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
        "its part of δ (proof in docs/ledger.md)",
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
