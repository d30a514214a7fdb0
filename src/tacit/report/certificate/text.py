"""How does a certificate look? As plain text, and as one HTML page; both from its lines alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from html import escape
from typing import Any

from tacit.report.certificate.lines import NOT_STATED, SECTIONS
from tacit.report.pages.document import document
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


_STYLE = """
dl.lines { margin: 0; font-size: .95rem; }
dl.lines > div { border-bottom: 1px solid var(--line); padding: .4rem 0; display: grid; column-gap: .5rem;
  grid-template-columns: 6.5rem 11.5rem 1fr; }
dl.lines dt { margin: 0; } dl.lines dd { overflow-wrap: anywhere; } dl.lines .grade { order: -1; }
.grade { font-size: .8rem; white-space: nowrap; } .grade::before { margin-right: .35rem; }
.proved { color: var(--three); } .assumed { color: var(--one); } .not-covered { color: var(--two); }
.proved::before { content: "●"; } .assumed::before { content: "◐"; } .not-covered::before { content: "○"; }
.blank { color: var(--two); font-weight: 700; letter-spacing: .03em; }
.promise { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
.promise b { font-size: 1.5rem; display: block; } .key { overflow-wrap: anywhere; }
@media (max-width: 34rem) { dl.lines > div { grid-template-columns: 1fr; } }
@media print { body { font-size: 11px; } main { max-width: none; } }
"""
_GRADES = (
    ("proved", "it follows from the entries of the ledger, and <code>tacit verify</code> computes it anew"),
    ("assumed", "a person has to be believed, or the program to do what it says"),
    ("not covered", "no part of the promise"),
)


def to_html(data: Mapping[str, Any]) -> str:
    """The certificate as a page."""
    subject, policy = data["subject"], data["policy"]
    warning = "NOT PRIVATE: " if data["ledger"]["test_keys"] else ""
    legend = "".join(f"<li>{_grade(grade)} {words}</li>" for grade, words in _GRADES)
    sections = "".join(
        f"<h2>{letter}. {escape(name)}</h2>{_lines(data, letter)}" for letter, name in SECTIONS.items()
    )
    body = (
        f"<h1>Privacy certificate of “{escape(subject['dataset'])}”</h1>"
        f'<p class="soft">Ledger {escape(subject["ledger"])}, issued {escape(data["issued"])}</p>'
        f'<div class="promise{warning and " bad"}"><b>{warning}{escape(pair(data["guarantee"]["cap"]))}</b>'
        f"for one {escape(policy['unit'])}, {escape(policy['adjacency'])}</div>"
        f'<p>{escape(headline(data))}</p><ul class="soft">{legend}'
        f'<li><span class="blank">{NOT_STATED}</span>: nobody filled it in</li></ul>{sections}'
        f'<h2>Signature</h2><p class="key">{escape(signature_line(data))}</p>'
    )
    return document(f"Privacy certificate of {subject['dataset']}", body, style=_STYLE)


def _lines(data: Mapping[str, Any], section: str) -> str:
    rows = []
    for line in data["lines"]:
        if line["section"] == section:
            blank = f'<span class="blank">{NOT_STATED}</span>'
            value = blank if line["value"] is None else escape(line["value"])
            grade = _grade(line["grade"], "dd")
            rows.append(f"<div><dt>{escape(line['name'])}</dt>{grade}<dd>{value}</dd></div>")
    return f'<dl class="lines">{"".join(rows)}</dl>'


def _grade(grade: str, tag: str = "span") -> str:
    return f'<{tag} class="grade {grade.replace(" ", "-")}">{grade}</{tag}>'
