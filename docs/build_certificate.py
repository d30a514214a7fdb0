"""Write the example certificate and its chart from the code: ``python docs/build_certificate.py``.

With ``--check`` nothing is written, and the exit code is 1 if the page does not match the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tacit.events import Compose, DiscreteLaplace, Gaussian, PoissonSampled, Repeat
from tacit.ledger import Column, DatasetStatus, Ledger, Policy, Refused, RenyiBudget
from tacit.ledger.charges import Verdict, added
from tacit.ledger.ledger import charge_key
from tacit.ledger.records import GENESIS, Entry, canonical, entry_hash
from tacit.report.canvas import to_svg
from tacit.report.certificate import Certificate, certificate_of, check_certificate
from tacit.report.checklist import SECTIONS, STATEMENTS
from tacit.report.spending import curator_chart, dataset_view

PAGE = Path(__file__).parent / "reference" / "certificate-example.md"
CHART = Path(__file__).parent / "pictures" / "budget.svg"
_LEDGER = "00000000-0000-4000-8000-000000000000"  # fixed: the example never changes
_OPENED = datetime(2026, 10, 1, 8, 0, tzinfo=UTC)
_DAYS = (0, 1, 6, 6, 9, 9, 13, 13, 20, 20, 27, 27, 34, 34, 41)  # days after the opening, for each entry
_STATEMENTS = {
    "bounds": "from the hospital's published forms, not from the records",
    "trials": "one training; its settings are those of an earlier study on public data",
    "raw_access": "the two data managers of the registry",
    "approved_by": "the data protection board, on 2026-09-28",
    "expires": "2027-10-01",
    "product": "Waiting times in hospital wards",
    "curator": "Registry of Hospital Visits",
    "contact": "the registry's data office",
    "description": "Counts and means of visits by ward and month, and a model of waiting times.",
    "intended_use": "to plan wards; not to decide on single patients",
    "product_type": "Summary statistics",
    "region": "one country of the EU",
    "sector": "Healthcare",
    "published": "2026-11-12",
    "actors": "wards report visits; two data managers hold them; analysts see answers alone",
    "data_source": "Static",
    "why_budget": "the board weighed the error of monthly counts against odds of 20 for one patient",
    "sources": "https://example.org/waiting-times",
    "record_author": "the data office",
}


_GRAIN = 10**6


def example() -> tuple[DatasetStatus, list[Entry]]:
    """Return an example after some weeks: a run charged in two parts, four queries and a refusal."""
    ledger = Ledger.create("sqlite://")
    policy = Policy(
        unit="patient",
        unit_column="patient_id",
        rows_per_unit=4,
        adjacency="add-remove",
        budget=RenyiBudget(3.0, 1e-6),
        largest_table=200_000,
        columns={"age": Column(kind="integer", lower=0, upper=120)},
        note="For the study of waiting times; nothing else.",
    )
    ledger.open_dataset("visits", policy)
    content = hashlib.sha256(b"an extract of the registry").hexdigest()
    ledger.register_content("visits", content, verdict=Verdict(missing=("age",)))
    steps = Repeat(PoissonSampled(0.01, Gaussian(1.1)), 150)
    count = DiscreteLaplace(scale=40.0, sensitivity=4)
    charges = [
        (steps, charge_key("a1", 0, 150), "grace", "training"),
        (count, "visits-per-ward", "ada", "visits per ward"),
        (count, "over-65", "ada", "visits of over 65"),
        (steps, charge_key("a1", 150, 300), "grace", "training"),
        (Compose((count, DiscreteLaplace(scale=2400.0, sensitivity=480))), "mean-age", "bob", "mean age"),
        (count, "per-month", "bob", "visits per month"),
    ]
    for event, key, by, label in charges:
        ledger.settle(ledger.reserve("visits", event, key=key, request={}, by=by, label=label), 0)
    try:
        ledger.reserve("visits", DiscreteLaplace(scale=1.0, sensitivity=4), key="no", request={}, by="bob")
    except Refused:
        return ledger.status("visits"), _always_the_same(ledger.history("visits"))
    raise AssertionError("the example's last question should not fit")


def _always_the_same(entries: list[Entry]) -> list[Entry]:
    """Return the entries with fixed ids and times, and with new hashes of the chain."""
    made: list[Entry] = []
    spent: dict[str, tuple[int, ...]] = {}
    for entry, days in zip(entries, _DAYS, strict=True):
        at = _OPENED + timedelta(days=days, minutes=entry.seq)
        body = {**entry.body, "ledger": _LEDGER, "time": int(at.timestamp() * 1e6)}
        body |= {name: "0" * 64 for name in ("secret", "request", "token_hash") if name in body}
        body |= {name: body["time"] for name in ("opened", "lease_ends") if name in body}
        if entry.kind == "reserve":  # rounded up, so that hashes do not depend on the machine's last digits
            body["cost"] = [-(-part // _GRAIN) * _GRAIN for part in body["cost"]]
            spent = added(spent, body["block"], tuple(body["cost"]))
        body["spent"] = {block: list(cost) for block, cost in spent.items()}
        text, previous = canonical(body), made[-1].hash if made else GENESIS
        made.append(
            dataclasses.replace(
                entry,
                body=body,
                text=text,
                time=at,
                prev_hash=previous,
                hash=entry_hash(previous, text),
            )
        )
    return made


def certificate() -> Certificate:
    """Return the certificate of the example."""
    made = certificate_of(
        example()[1],
        engine="PostgreSQL 15.14: row locks, synchronous_commit on, fsync on",
        run=None,
        statements=_STATEMENTS,
        issued="2026-11-12T09:00:00+00:00",
    )
    assert check_certificate(made.data).agrees
    return made


def chart() -> str:
    """Return the chart of the example's budget over time, as the text of a file."""
    return to_svg(curator_chart(dataset_view(*example())), alone=True)


def page() -> str:
    """Return the text of the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    made = certificate()
    yield INTRODUCTION
    yield "```text"
    yield made.to_text().rstrip()
    yield "```\n"
    yield "## Sections and lines\n"
    yield "| | section | lines |"
    yield "|---|---|---|"
    for letter, name in SECTIONS.items():
        lines = [line["name"] for line in made.data["lines"] if line["section"] == letter]
        lines = list(dict.fromkeys(re.sub(r" \d+$", " n", line) for line in lines))
        yield f"| {letter} | {name} | {', '.join(lines)} |"
    yield ""
    yield "## Keys of `--statements`\n"
    yield "| key | line | what to write |"
    yield "|---|---|---|"
    for key, (letter, name, what) in STATEMENTS.items():
        yield f"| `{key}` | {letter}: {name.format(unit='unit')} | {what} |"
    yield ""
    yield "The file of the example:\n"
    yield "```toml"
    yield from (f'{key} = "{text}"' for key, text in _STATEMENTS.items())
    yield "```\n"
    yield JSON_HEAD
    yield "```json"
    yield _excerpt(made.data)
    yield "```"


def _excerpt(data: dict[str, Any]) -> str:
    shown = {name: data[name] for name in ("certificate", "format", "guarantee")}
    shown["mechanisms"] = data["mechanisms"][1:2]
    text = json.dumps(_short(shown), indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def _short(value: Any) -> Any:
    """Round floats in JSON data to six digits."""
    match value:
        case dict():
            return {name: _short(item) for name, item in value.items()}
        case list():
            return [_short(item) for item in value]
        case float():
            return float(f"{value:.6g}")
    return value


INTRODUCTION = """\
# An example certificate

The certificate of a registry of hospital visits after a training run, four queries, and a query that the
ledger refused because it exceeded the budget. [Share and
prove](../how-to/share-and-prove.md#certificates) explains it. (`python docs/build_certificate.py` writes
this page.)
"""
JSON_HEAD = """\
## As JSON

`tacit verify` reads this form, whose schema is `tacit/report/certificate.schema.json`. A part of the
example, with amounts in units of 1e-12 (1e-18 for delta):
"""


def main() -> int:
    """Write or check the page and its chart."""
    made = {PAGE: page(), CHART: chart()}
    if "--check" in sys.argv[1:]:
        same = all(path.exists() and path.read_text(encoding="utf-8") == text for path, text in made.items())
        return 0 if same else 1
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
