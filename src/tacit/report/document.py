"""Pages and cards from the Jinja2 templates in ``templates``, and the YAML at the head of a card.

A page is one self-contained HTML file. It suits light and dark themes, and wide and narrow screens.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tacit.errors import needed
from tacit.rounding import counted, pair, round_up, shown_epsilon

if TYPE_CHECKING:
    from jinja2 import Environment


def page(template: str, title: str, /, **facts: Any) -> str:
    """Write a complete HTML page from the template with this file name."""
    text = render(template, title=title, **facts)
    body = re.sub(r"\s*\n\s*", " ", re.sub(r">\s*\n\s*(?=<)", ">", text.strip()))
    return f"<!DOCTYPE html>\n{body}\n"


def render(template: str, /, **facts: Any) -> str:
    """Fill in a template with ``facts``, which are escaped in HTML and in Markdown."""
    return _environment(template.endswith(".md")).get_template(template).render(facts)


@functools.cache
def _environment(markdown: bool) -> Environment:
    jinja2 = needed("jinja2", "cli", "a page")
    settings: dict[str, Any] = {"finalize": _in_markdown} if markdown else {}
    environment: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.report"),
        autoescape=jinja2.select_autoescape(["html", "md"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **settings,
    )
    filters: dict[str, Callable[..., str]] = {
        "answers": _answers,
        "code": _code,
        "code_block": _code_block,
        "charges": lambda count: counted(count, "charge"),
        "epsilon": shown_epsilon,
        "figure": figure,
        "of_cap": lambda share: f"{100.0 * share:.3g}\N{NO-BREAK SPACE}%",
        "one_line": lambda text: " ".join(text.split()),
        "pair": pair,
        "repr": repr,
        "percent": percent,
        "round_up": round_up,
        "share": _share,
        "tenths": tenths,
        "thousands": "{:,}".format,
    }
    environment.filters |= filters
    return environment


_SPECIAL = re.compile(r"[\\`*\[\]<>&]")


def _in_markdown(value: Any) -> Any:
    """Escape a text, so that it is neither HTML nor Markdown, unless a template marks it as safe."""
    from markupsafe import Markup  # jinja2 brings it

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return Markup(_SPECIAL.sub(r"\\\g<0>", value))


def _code(text: str) -> Any:
    """Write a text as a code span: its fence is longer than any run of backticks in the text."""
    from markupsafe import Markup

    line = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return Markup(f"{fence}{space}{line}{space}{fence}")


def _code_block(text: str) -> Any:
    """Write a text of several lines as a block of indented code, which no text can end."""
    from markupsafe import Markup

    return Markup("\n".join(f"    {line}".rstrip() for line in text.splitlines()))


def yaml_text(data: Mapping[str, Any]) -> str:
    """Write data as YAML in the given order. A text of several lines becomes a literal block."""
    yaml = needed("yaml", "cli", "a file of YAML", package="pyyaml")

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})

    def text(writer: Any, value: str) -> Any:
        return writer.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper.add_representer(str, text)
    document: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return document


def figure(value: float | None, form: str = ".4f") -> str:
    """Write a number, or a dash for None."""
    return "–" if value is None else f"{value:{form}}"


def percent(interval: Any) -> str:
    """Write a share with its interval, in percent."""
    value, low, high = (100 * interval[key] for key in ("value", "low", "high"))
    return f"{value:.3g} % ({low:.3g}–{high:.3g})"


def tenths(value: float) -> str:
    """Write a number with one decimal and a typographic minus. A zero has no minus."""
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def _share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2g} %"


def _answers(queries: float | None) -> str:
    """Write the number of random answers that an attacker needs to find a secret."""
    if queries is None or not math.isfinite(queries):
        return "never"
    return f"{queries:,.0f}" if queries < 1e6 else "over a million"
