"""The curator's view as one HTML page that needs no network: a bar, a table and a curve for each data set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Any

from tacit.report.pages.chart import Axis, Chart
from tacit.report.pages.document import document
from tacit.rounding import pair

Data = Mapping[str, Any]

_COLOURS = ("one", "two", "three")  # of the largest spenders; the others share "shut"
_STYLE = """
.stack { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; background: var(--line);
  margin: .5rem 0; } .stack i { display: block; min-width: 1px; }
.dot { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .4rem; }
.anchor { overflow-wrap: anywhere; font-size: .85rem; }
td:first-child { white-space: nowrap; } td.left { text-align: left; }
@media (max-width: 34rem) { .last { display: none; } }
"""
_SPANS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def curator_page(view: Data) -> str:
    """The whole page.

    :param view: from :func:`tacit.report.spending.curator_view`.
    """
    parts = "".join(map(_dataset, view["datasets"])) or "<p>No data set is open in this ledger.</p>"
    return document(
        "Privacy budgets",
        f'<h1>Privacy budgets</h1><p class="soft">Ledger {escape(view["ledger"])}. What is spent stays '
        "spent: a budget is for everything that is ever released from the data, and never fills up again.</p>"
        + parts,
        style=_STYLE,
    )


NOT_ADDED = (
    "The ε of single releases do not add up to the ε that is spent: the ledger adds up what they are "
    "computed from, and the part of the budget is counted in that."
)
"""Said where an ε and a part of the budget stand side by side."""


def counts_epsilon(mode: str) -> bool:
    """Whether a budget of this mode adds up the ε of its releases."""
    return mode in ("pure", "approximate")


def spent_in_words(dataset: Data) -> str:
    """How much is gone and what still fits, in a few sentences."""
    counted = "" if counts_epsilon(dataset["mode"]) else f" {NOT_ADDED}"
    return (
        f"Spent: {100.0 * dataset['share']:.3g} % of the budget. All of it together has "
        f"{pair(dataset['spent'])}, of {pair(dataset['cap'])}, for one {dataset['unit']} "
        f"({dataset['adjacency']}).{counted} One more release of at most "
        f"ε = {dataset['remaining_epsilon']:.4g} at δ = 0 would fit."
    )


def curator_chart(dataset: Data) -> Chart:
    """The balance over time, below its cap, with the refusals."""
    opened = datetime.fromisoformat(dataset["opened"])

    def since(time: str) -> float:
        return (datetime.fromisoformat(time) - opened).total_seconds()

    times = [since(point["time"]) for point in dataset["curve"]]
    refused = [since(time) for time in dataset["refusals"]]
    span = max([*times, *refused, 1.0])
    name, unit = next((name, unit) for name, unit in _SPANS if span >= 2.0 * unit or unit == 1.0)
    end = span / unit
    top = 135.0 * max(1.0, *(point["share"] for point in dataset["curve"]))
    chart = Chart(
        f"What of the budget of {dataset['name']} is spent, over time",
        Axis(f"{name} since the data set was opened", 0.0, end),
        Axis("% of the cap", 0.0, top),
        legend_above=True,
    )
    steps: list[tuple[float, float]] = []
    for time, point in zip(times, dataset["curve"], strict=True):
        if steps:
            steps.append((time / unit, steps[-1][1]))
        steps.append((time / unit, 100.0 * point["share"]))
    steps.append((end, steps[-1][1]))
    chart.area([(0.0, 0.0), *steps, (end, 0.0)], "one")
    chart.line(steps, "one", "spent")
    chart.line([(0.0, 100.0), (end, 100.0)], "two", "cap")
    for number, time in enumerate(refused):
        chart.line([(time / unit, 96.0), (time / unit, 104.0)], "shut", "" if number else "refused")
    return chart


def _dataset(data: Data) -> str:
    colours = [*_COLOURS[: len(data["spenders"])], *["shut"] * (len(data["spenders"]) - len(_COLOURS))]
    people = list(zip(data["spenders"], colours, strict=True))
    bar = "".join(
        f'<i style="width: {100.0 * person["share"]:.2f}%; background: var(--{colour})" '
        f'title="{escape(person["by"], quote=True)}"></i>'
        for person, colour in people
    )
    rows = "".join(_row(person, colour) for person, colour in people)
    charges, refusals = data["charges"], len(data["refusals"])
    table = (
        '<div class="wide" tabindex="0"><table><tr><th>spent by</th><th>of the cap</th><th>charges</th>'
        f'<th class="last">last</th><th style="text-align: left">for</th></tr>{rows}</table></div>'
    )
    return (
        f"<h2>{escape(data['name'])}</h2><p>{escape(spent_in_words(data))}</p>"
        f'<div class="stack" role="img" aria-label="{100.0 * data["share"]:.3g} % spent">{bar}</div>'
        f"{_burned(data)}{table if rows else '<p>Nobody has spent anything yet.</p>'}"
        f"<figure>{curator_chart(data).to_svg()}</figure>"
        f'<p class="soft">{_counted(charges)}; {refusals:,} refused.</p>'
        f'<p class="soft anchor">Anchor, to keep elsewhere: {escape(data["anchor"])}</p>'
    )


def _burned(data: Data) -> str:
    if not data["burned_share"]:
        return ""
    return (
        f'<p class="bad">{_percent(data["burned_share"])} of the cap was burned, because an old copy of the '
        "ledger had been put back.</p>"
    )


def _counted(charges: Data) -> str:
    return ", ".join(
        f"{charges.get(state, 0):,} {state.lower()}" for state in ("SETTLED", "RESERVED", "FORFEITED")
    )


def _row(person: Data, colour: str) -> str:
    labels = sorted(person["labels"].items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} ({_percent(share)})" if len(labels) > 1 else name for name, share in labels[:4])
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return (
        f'<tr><td><span class="dot" style="background: var(--{colour})"></span>{escape(person["by"])}</td>'
        f"<td>{_percent(person['share'])}</td><td>{person['charges']:,}</td>"
        f'<td class="last">{escape(person["last"][:16].replace("T", " "))}</td>'
        f'<td class="left">{escape(told + more)}</td></tr>'
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g}\N{NO-BREAK SPACE}%"
