"""The curator's view as one HTML page that needs no network: a bar, a table and a curve for each data set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tacit.report.pages.canvas import BLUE, PALE, line_style, new_chart, to_svg
from tacit.report.pages.document import page
from tacit.rounding import pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        chart=lambda dataset: to_svg(curator_chart(dataset)),
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


def curator_chart(dataset: Data) -> Axes:
    """The balance over time, below its cap, with the refusals."""
    opened = datetime.fromisoformat(dataset["opened"])

    def since(time: str) -> float:
        return (datetime.fromisoformat(time) - opened).total_seconds()

    times = [since(point["time"]) for point in dataset["curve"]]
    refused = [since(time) for time in dataset["refusals"]]
    span = max([*times, *refused, 1.0])
    name, unit = next((name, unit) for name, unit in _SPANS if span >= 2.0 * unit or unit == 1.0)
    axes = new_chart(
        f"{name} since the data set was opened",
        "% of the cap",
        title=f"What of the budget of {dataset['name']} is spent, over time",
    )
    at = [*(time / unit for time in times), span / unit]
    shares = [100.0 * point["share"] for point in dataset["curve"]]
    axes.fill_between(at, [*shares, shares[-1]], step="post", color=BLUE, alpha=0.22, linewidth=0)
    axes.step(at, [*shares, shares[-1]], where="post", **line_style(0), label="spent")
    axes.axhline(100.0, **line_style(1), label="cap")
    if refused:
        axes.vlines(
            [time / unit for time in refused], 96.0, 104.0, color=PALE, clip_on=False, label="refused"
        )
    axes.set(xlim=(0.0, span / unit), ylim=(0.0, 1.35 * max(100.0, *shares)))
    return axes
