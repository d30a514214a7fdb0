"""HTML tables for Tacit's objects in notebooks, and function signatures that list every setting."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeVar, cast, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

# No colour is set, so that the table has the notebook's colours and a dark theme stays readable.
_CELL = "text-align:left;vertical-align:top;padding:.15em .8em .15em 0"
_SOFT = "opacity:.75;margin:.3em 0 0;max-width:46em"


def facts(title: str, rows: Iterable[tuple[str, str]], notes: Sequence[str] = (), details: str = "") -> str:
    """Format named facts as an HTML table, one per row, with all texts escaped.

    Args:
        title: the title above the table, in bold.
        rows: pairs of a name and its text.
        notes: paragraphs below the table.
        details: a longer text that a click unfolds; its line breaks are kept.

    >>> facts("A & B", [("steps", "10")])
    '<div><b>A &amp; B</b><table><tbody><tr>...steps</th><td ...>10</td></tr></tbody></table></div>'
    """
    lines = [
        f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    ]
    folded = f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
    table = f"<table><tbody>{''.join(lines)}</tbody></table>"
    return f"<div><b>{escape(title)}</b>{table}{_paragraphs(notes)}{folded}</div>"


def grid(title: str, head: Sequence[str], body: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Format a table with a header row as HTML, with all texts escaped.

    >>> grid("", ["ward"], [["<east>"]])
    '<div><table>...<th ...>ward</th>...<td ...>&lt;east&gt;</td></tr></tbody></table></div>'
    """
    lines = "".join(_line("td", line) for line in body)
    table = f"<table><thead>{_line('th', head)}</thead><tbody>{lines}</tbody></table>"
    above = f"<b>{escape(title)}</b>" if title else ""
    return f"<div>{above}{table}{_paragraphs(notes)}</div>"


def _line(tag: str, cells: Sequence[str]) -> str:
    inside = "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


def _paragraphs(notes: Sequence[str]) -> str:
    return "".join(f'<p style="{_SOFT}">{escape(note)}</p>' for note in notes)


def listing(settings: Any, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """Return a decorator that replaces ``**settings`` in a function's signature by the individual settings.

    ``help()`` then lists the settings, and a call with an unknown setting raises an error that names it.

    Args:
        settings: the TypedDict of the keywords that the function accepts as ``**settings``.
        defaults: the default values of the optional settings.

    >>> from typing import TypedDict
    >>> @listing(TypedDict("Sizes", {"width": int, "height": int}), {"height": 1})
    ... def area(**sizes):
    ...     return sizes["width"] * sizes.get("height", 1)
    >>> area(width=3)
    3
    >>> area(width=3, hight=2)
    Traceback (most recent call last):
    TypeError: area() got an unexpected keyword argument 'hight'
    """

    def listed(function: F) -> F:
        own, empty = inspect.signature(function), inspect.Parameter.empty
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, empty), annotation=hint
            )
            for name, hint in get_type_hints(settings).items()
        ]
        first = [item for item in own.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = own.replace(parameters=[*first, *added])

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            try:
                signature.bind(*args, **keywords)
            except TypeError as problem:
                raise TypeError(f"{function.__qualname__}() {problem}") from None
            return function(*args, **keywords)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return cast(F, checked)

    return listed
