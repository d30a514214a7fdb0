"""What is the strongest evidence of a leak? The record and the secret exposed most, with DP and without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["bar", "strays", "strongest_evidence", "tenths"]

Data = Mapping[str, Any]

_PLAIN = 4.0  # standard deviations that fill at least the width of the page


def strongest_evidence(data: Data) -> str:
    """The section as HTML; nothing without shadow models and planted secrets."""
    parts = [_record(data), _secret(data)]
    return "<h2>The strongest evidence</h2>" + "".join(parts) if any(parts) else ""


def _record(data: Data) -> str:
    """The record that is exposed most, by how many standard deviations."""
    found = data.get("exposed")
    if not found:
        return ""
    first, unit = found["most"][0], data["run"]["unit"]
    picture = f'<img alt="the record" src="{first["picture"]}">' if first["picture"] else ""
    top = max(_PLAIN, first["without_dp"], first["with_dp"] or 0.0)
    sentence = (
        f"The {unit} exposed most without DP is record {first['record']:,}, “{first['label']}”: the model "
        f"without DP exposes it by {tenths(first['without_dp'])} standard deviations"
    )
    bars = bar("without DP", first["without_dp"], top, "two", digits=1)
    if first["with_dp"] is not None:
        sentence += f", the model with DP by {tenths(first['with_dp'])}"
        bars += bar("with DP", first["with_dp"], top, "one", digits=1)
    return (
        f'<div class="evidence">{picture}<div><p>{escape(sentence)}. By 3, almost anyone can tell that it '
        f"took part.{strays(data)}</p>{bars}</div></div>"
    )


def strays(data: Data) -> str:
    """How exact such a figure is, as two standard deviations: it is of K / 4 shadow models with the record
    and of as many without it, so that one standard deviation is sqrt(8 / K).
    """
    shadows = data.get("membership", {}).get("shadows", 0)
    if not shadows:
        return ""
    return (
        f" With {shadows} shadow models, such a figure is right to about ± {2 * math.sqrt(8 / shadows):.1f}."
    )


def _secret(data: Data) -> str:
    """The planted secret of the largest exposure, in bits."""
    remembered = data.get("remembered", {})
    found = remembered.get("most_exposed")
    if not found:
        return ""
    most = remembered["most_bits"]
    parts, bars = [], ""
    for model in sorted(found["models"], key=lambda model: bool(model["private"])):
        came = "writes it out" if model["completed"] else "does not write it out"
        parts.append(f"the model {model['model']} {came} (exposure {model['exposure']:.1f} bits)")
        colour = "one" if model["private"] else "two"
        bars += bar(f"exposure {model['model']}, bits", model["exposure"], most, colour, digits=1)
    times = "once" if found["copies"] == 1 else f"{found['copies']} times"
    sentence = (
        f"The planted secret of the largest exposure without DP follows “{found['prefix']}” and was planted "
        f"{times}: {'; '.join(parts)}. {most:.1f} bits are the most."
    )
    return f'<div class="evidence"><div><p>{escape(sentence)}</p>{bars}</div></div>'


def bar(words: str, value: float, top: float, colour: str, *, digits: int = 2) -> str:
    """A bar of ``value`` against ``top``, its words and figure above it."""
    width = 100.0 * min(1.0, max(0.0, value / top))
    return (
        f"<div>{escape(words)}: <b>{f'{value:.{digits}f}'.replace('-', '−')}</b></div>"
        f'<div class="bar"><i style="width: {width:.1f}%; background: var(--{colour})"></i></div>'
    )


def tenths(value: float) -> str:
    """One digit behind the point, with a true minus, and none before a nought.

    >>> tenths(-0.01), tenths(-1.25)
    ('0.0', '−1.2')
    """
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")
