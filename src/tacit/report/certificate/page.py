"""How does a certificate look in a browser? One HTML page that needs no network, from its lines alone."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from tacit.report.certificate.lines import NOT_STATED, SECTIONS
from tacit.report.certificate.text import headline, signature_line
from tacit.report.pages.document import document
from tacit.report.rounding import pair

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
_LEGEND = (
    ("proved", "it follows from the entries of the ledger, and <code>tacit verify</code> computes it anew"),
    ("assumed", "a person has to be believed, or the program to do what it says"),
    ("not covered", "no part of the promise"),
)


def to_html(data: Mapping[str, Any]) -> str:
    """The certificate as a page."""
    subject, policy = data["subject"], data["policy"]
    warning = "NOT PRIVATE: " if data["ledger"]["test_keys"] else ""
    legend = "".join(f"<li>{_grade(grade)} {words}</li>" for grade, words in _LEGEND)
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
