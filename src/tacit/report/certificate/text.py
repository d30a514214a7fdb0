"""How does a certificate look? As plain text, and as one HTML page; both from its lines alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tacit.report.certificate.lines import NOT_STATED, SECTIONS
from tacit.report.pages.document import page
from tacit.rounding import pair

_WIDTH = 100
_GRADE, _NAME = 13, 26
_LEGEND = (
    "Proved: it follows from the entries of the ledger, and `tacit verify` computes it anew. Assumed: "
    "a person has to be believed, or the program to do what it says. Not covered: no part of the promise. "
    f"A line that nobody filled in says {NOT_STATED}."
)


def to_text(data: Mapping[str, Any]) -> str:
    """The certificate for people."""
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
    """The promise in a sentence or two."""
    claim, policy = data["guarantee"], data["policy"]
    run = data["run"]
    fixed = data["ledger"]["test_keys"]
    if fixed:
        return (
            f"NOT PRIVATE: {fixed:,} of the charges had their noise from a fixed test key. Whoever knows the "
            "key can subtract it, so nothing here holds. With keys from the operating system it would be "
            f"{pair(claim['cap'])}, for one {policy['unit']} ({policy['adjacency']})."
        )
    of_run = "" if run is None else f" Of that, the run {run['id']!r} has spent {pair(run['spent'])}."
    return (
        f"Everything released through this ledger, up to now and from now on, keeps to {pair(claim['cap'])}, "
        "for "
        f"one {policy['unit']} ({policy['adjacency']}). Spent up to now: {pair(claim['spent'])}.{of_run}"
    )


def signature_line(data: Mapping[str, Any]) -> str:
    """Who signed, or that the certificate is not signed."""
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
    """The certificate as a page."""
    return page(
        "certificate.html",
        f"Privacy certificate of {data['subject']['dataset']}",
        **data,
        headline=headline(data),
        signed=signature_line(data),
        sections=SECTIONS,
        not_stated=NOT_STATED,
    )
