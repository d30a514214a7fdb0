"""What is the strongest evidence of a leak? The record and the secret exposed most, with DP and without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Data = Mapping[str, Any]

_MODELS = {"without_dp": "without DP", "with_dp": "with DP"}
_COLOURS = {"without_dp": "two", "with_dp": "one"}
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
    kinds = [key for key in ("without_dp", "with_dp") if first[key] is not None]
    above = [key for key in kinds if stands_out(first, key)]
    if not above:
        return f'<div class="evidence"><div><p>{escape(_nobody(first, kinds, unit))}</p></div></div>'
    said = [f"the model {_MODELS[key]} exposes it by {_moved(first, key)}" for key in kinds]
    top = max(_PLAIN, *(first[key] for key in above))
    bars = "".join(bar(_MODELS[key], first[key], top, _COLOURS[key], digits=1) for key in above)
    most = "exposed most" if "without_dp" in above else "ranked first"
    sentence = f"The {unit} {most} without DP is record {first['record']:,}, “{first['label']}”: "
    return (
        f'<div class="evidence">{picture}<div><p>{escape(sentence + ", ".join(said))}. By 3, almost anyone '
        f"can tell that it took part.{strays(data)}</p>{bars}</div></div>"
    )


def stands_out(card: Data, kind: str) -> bool:
    """Whether a record's figure, "with_dp" or "without_dp", is more than chance gives it."""
    return card[kind] is not None and card[kind] > card[f"chance_{kind}"]


def _nobody(card: Data, kinds: Sequence[str], unit: str) -> str:
    """The sentence where the record that is ranked first has no figure above chance."""
    moved = " and ".join(
        f"{tenths(card[key])} {_MODELS[key]} (chance alone gives up to {tenths(card[f'chance_{key}'])})"
        for key in kinds
    )
    return (
        f"No {unit} stands out. Half of the shadow models ranked all records; the other half moves the "
        f"record that came first, {card['record']:,}, no further than chance does, in standard deviations: "
        f"{moved}. So these attacks can name no {unit} that took part. More shadow models see more."
    )


def _moved(card: Data, kind: str) -> str:
    """By how much one model exposes the record, in words."""
    if stands_out(card, kind):
        return f"{tenths(card[kind])} standard deviations"
    chance = tenths(card[f"chance_{kind}"])
    return f"no more than chance does ({tenths(card[kind])}, where it gives up to {chance})"


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
