"""The curator's view as one HTML page that needs no network: a bar, a table and a curve for each data set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tacit.report.pages.chart import Axis, Chart
from tacit.report.pages.document import page
from tacit.rounding import pair

Data = Mapping[str, Any]

_SPANS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def curator_page(view: Data) -> str:
    """The whole page.

    :param view: from :func:`tacit.report.spending.curator_view`.
    """
    return page(
        "curator.html",
        "Privacy budgets",
        **view,
        chart=lambda dataset: curator_chart(dataset).to_svg(),
        spent_in_words=spent_in_words,
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
