"""HTML tables for Tacit's objects in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# No colour is set, so that the table has the notebook's colours and a dark theme stays readable.
_CELL = "text-align:left;vertical-align:top;padding:.15em .8em .15em 0"
_SOFT = "opacity:.75;margin:.3em 0 0;max-width:46em"


def facts(title: str, rows: Iterable[tuple[str, str]], notes: Sequence[str] = (), details: str = "") -> str:
    """Format named facts as an HTML table, one per row, with all texts escaped."""
    lines = [
        f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    ]
    folded = f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
    table = f"<table><tbody>{''.join(lines)}</tbody></table>"
    return f"<div><b>{escape(title)}</b>{table}{_paragraphs(notes)}{folded}</div>"


def grid(title: str, head: Sequence[str], body: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Format a table with a header row as HTML, with all texts escaped."""
    lines = "".join(_line("td", line) for line in body)
    table = f"<table><thead>{_line('th', head)}</thead><tbody>{lines}</tbody></table>"
    above = f"<b>{escape(title)}</b>" if title else ""
    return f"<div>{above}{table}{_paragraphs(notes)}</div>"


def _line(tag: str, cells: Sequence[str]) -> str:
    inside = "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


def _paragraphs(notes: Sequence[str]) -> str:
    return "".join(f'<p style="{_SOFT}">{escape(note)}</p>' for note in notes)
