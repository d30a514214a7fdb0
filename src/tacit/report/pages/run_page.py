"""The report on what a run reveals, as one HTML page that needs no network, with its data and charts.

The data come from :mod:`tacit.report.findings`. The page has no section for data that are missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.files import write_atomically
from tacit.report.pages import document
from tacit.report.pages.canvas import BLUE, ORANGE, PALE, line_style, new_chart, to_svg
from tacit.report.pages.run_summary import epsilon_of, figures, planted, summary, verdict
from tacit.rounding import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

_PARTS = ("membership", "remembered", "audits")


def page(data: Data) -> str:
    """Write the whole page as HTML.

    Args:
        data: the findings, with the keys ``run``, ``risk`` and any of ``membership``, ``remembered`` and
            ``audits``.
    """
    return _page(data, charts_of(data))


def write_report(data: Data, folder: Path) -> Path:
    """Write ``report.html``, ``report.json`` and one SVG for each chart, and return the path of the page.

    Only the owner of the files can read them, as findings on membership are as confidential as the records.
    """
    charts = charts_of(data)
    return write_files(folder, data, _page(data, charts), charts)


def write_files(folder: Path, data: Data, text: str, charts: Mapping[str, Axes]) -> Path:
    """Write a page with its data and charts, and return its path."""
    files = {f"{name}.svg": to_svg(chart, alone=True) for name, chart in charts.items()}
    files["report.html"] = text
    files["report.json"] = json.dumps(finite(data), indent=1, allow_nan=False)
    for name, content in files.items():
        encoded = content.encode()
        write_atomically(folder / name, lambda file, encoded=encoded: file.write(encoded), mode=0o600)  # type: ignore[misc]
    return folder / "report.html"


def _page(data: Data, charts: Mapping[str, Axes]) -> str:
    return document.page("run.html", f"What {data['run']['name']} reveals", **facts_of(data, charts))


def facts_of(data: Data, charts: Mapping[str, Axes]) -> dict[str, Any]:
    """Return what the template of the page needs."""
    contradicted, words = verdict(data)
    return dict(
        **{**dict.fromkeys(_PARTS), **data},
        charts={name: to_svg(chart) for name, chart in charts.items()},
        summary=summary(data),
        figures=figures(data),
        verdict=words,
        contradicted=contradicted,
        epsilon=epsilon_of(data["risk"]),
    )


# --- the charts, drawn from plain data alone

_DASHED: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.4}


def charts_of(data: Data) -> dict[str, Axes]:
    """Draw the charts, and return them by name. Each can also be a separate file."""
    charts = {"two-worlds": _worlds(data["risk"])}
    if membership := data.get("membership"):
        charts["attacks"] = _roc(membership, data["risk"])
    if (remembered := data.get("remembered")) and remembered["canaries"]:
        for model in remembered["models"]:
            charts[f"exposure-{model['model'].replace(' ', '-').lower()}"] = _exposures(remembered, model)
    return charts


def _worlds(risk: Data) -> Axes:
    axes = new_chart("strength of the best evidence", "times in 100", title="Two worlds")
    draw_worlds(axes, risk["two_worlds"], risk["unit"])
    return axes


def draw_worlds(axes: Axes, worlds: Data, unit: str) -> None:
    """Draw histograms of the strength of the best evidence, without one unit and with it."""
    for kind, colour in (("without", BLUE), ("with", ORANGE)):
        heights = 100.0 * np.asarray(worlds[kind])
        axes.stairs(
            heights, worlds["evidence"], fill=True, alpha=0.3, color=colour, label=f"{kind} this {unit}"
        )
        axes.stairs(heights, worlds["evidence"], color=colour)
    axes.set(xlim=(-4.0, 8.0), ylim=(0.0, None))


def _roc(membership: Data, risk: Data) -> Axes:
    fewest = max(attack["non_members"] for model in membership["models"] for attack in model["attacks"])
    least = max(1e-5, 10.0 ** -(len(str(fewest)) - 1)) / 1.0001
    axes = new_chart(
        "false alarms (share of others)",
        "members found (share)",
        title="Members found against false alarms",
        shares="xy",
    )
    limit = risk["limit"]
    shut: dict[str, Any] = {"color": PALE, "alpha": 0.22, "linewidth": 0}
    axes.fill_between(limit["false_alarms"], limit["found"], 1.0, label="no attack gets here with DP", **shut)
    axes.plot(limit["false_alarms"], limit["found"], color=PALE)
    for model in membership["models"]:
        style = line_style(0 if model["private"] else 1)
        roc = next(one for one in model["attacks"] if one["attack"] == membership["headline"])["roc"]
        band = (roc["false_alarms"], roc["low"], roc["high"])
        axes.fill_between(*band, color=style["color"], alpha=0.22, linewidth=0)
        axes.plot(roc["false_alarms"], roc["found"], **style, label=model["model"])
    axes.plot([least, 1.0], [least, 1.0], **_DASHED, label="guessing")
    axes.set(xlim=(least, 1.0), ylim=(least, 1.0))
    return axes


def _exposures(remembered: Data, model: Data) -> Axes:
    """Draw the share of secrets with at least x bits of exposure, and the largest share that is allowed."""
    fewest = max([1, *(group["count"] for group in model["planted"])])
    low, end = min(0.01, 0.5 / fewest), remembered["most_bits"] + 0.4
    axes = new_chart(
        "exposure, bits",
        "share with at least this exposure (logarithmic)",
        title=f"Exposure of secrets, {model['model']}",
        shares="y",
    )
    if model["private"]:
        first = remembered["bounds"][0]
        copies = "one copy" if first["copies"] == 1 else f"{first['copies']} copies"
        bits, most = [*first["bits"], end], [*first["most"], first["most"][-1]]
        axes.fill_between(
            bits, most, 1.0, color=PALE, alpha=0.22, linewidth=0, label=f"ruled out for {copies}"
        )
        axes.plot(first["bits"], first["most"], color=PALE)
    axes.plot([0.0, -math.log2(low)], [1.0, low], **_DASHED, label="never seen")
    for group, number in zip(model["planted"], (0, 2, 1), strict=False):
        if count := group["count"]:
            shares = [1.0, *(1.0 - np.arange(1, count) / count), low]  # of secrets above each number of bits
            style = line_style(number) | {"drawstyle": "steps-post", "label": planted(group["copies"])}
            axes.plot([0.0, *group["exposures"]], shares, **style)
    axes.set(xlim=(0.0, end), ylim=(low, 1.0))
    return axes
