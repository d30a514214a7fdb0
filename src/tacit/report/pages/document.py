"""One HTML page that needs no network: its head, its style, light and dark, wide and narrow; by Jinja2.

The templates lie in ``templates``; what they show is escaped.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

from tacit.errors import MissingExtra
from tacit.rounding import pair, round_up

if TYPE_CHECKING:
    from jinja2 import Environment


def page(template: str, title: str, /, **facts: Any) -> str:
    """A whole page by the template of that name.

    Raises:
        MissingExtra: without Jinja2.

    >>> page("base.html", "A & B").splitlines()[0]
    '<!DOCTYPE html>'
    """
    text = _environment().get_template(template).render(facts, title=title)
    body = re.sub(r"\s*\n\s*", " ", re.sub(r">\s*\n\s*(?=<)", ">", text.strip()))
    return f"<!DOCTYPE html>\n{body}\n"


@functools.cache
def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("jinja2", "cli", "a page") from None
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.report.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "answers": _answers,
        "figure": figure,
        "of_cap": lambda share: f"{100.0 * share:.3g}\N{NO-BREAK SPACE}%",
        "pair": pair,
        "percent": percent,
        "round_up": round_up,
        "share": _share,
        "tenths": tenths,
        "thousands": "{:,}".format,
    }
    return found


def figure(value: float | None, form: str = ".4f") -> str:
    """A number, or a dash where there is none.

    >>> figure(0.25), figure(None)
    ('0.2500', '–')
    """
    return "–" if value is None else f"{value:{form}}"


def percent(interval: Any) -> str:
    """A share with its interval, in percent.

    >>> percent({"value": 0.5, "low": 0.25, "high": 0.75})
    '50 % (25–75)'
    """
    value, low, high = (100 * interval[key] for key in ("value", "low", "high"))
    return f"{value:.3g} % ({low:.3g}–{high:.3g})"


def tenths(value: float) -> str:
    """One digit behind the point, with a true minus, and none before a nought.

    >>> tenths(-0.01), tenths(-1.25)
    ('0.0', '−1.2')
    """
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def _share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2g} %"


def _answers(queries: float | None) -> str:
    """How many random answers hold a secret."""
    if queries is None or not math.isfinite(queries):
        return "never"
    return f"{queries:,.0f}" if queries < 1e6 else "over a million"
