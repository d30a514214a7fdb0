"""The charts of the report on a run, made of plain data alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tacit.report.pages.chart import Axis, Chart
from tacit.report.pages.run_summary import planted

Data = Mapping[str, Any]


def charts_of(data: Data) -> dict[str, Chart]:
    """The charts by name, each also good for a file of its own."""
    charts = {"two-worlds": _worlds(data["risk"])}
    if membership := data.get("membership"):
        charts["attacks"] = _roc(membership, data["risk"])
    if exposed := data.get("exposed"):
        charts["exposed"] = _sorted(exposed)
    if remembered := data.get("remembered"):
        charts |= remembered_charts(remembered)
    return charts


def _worlds(risk: Data) -> Chart:
    worlds = risk["two_worlds"]
    top = 100.0 * max(*worlds["without"], *worlds["with"])
    worlds_axis = Axis("strength of the evidence, at best", -4.0, 8.0)
    chart = Chart("Two worlds", worlds_axis, Axis("times of 100", 0.0, 1.1 * top), legend_above=True)
    for kind, colour in (("without", "one"), ("with", "two")):
        heights = [100.0 * height for height in worlds[kind]]
        chart.bars(worlds["evidence"], heights, colour, f"{kind} this {risk['unit']}")
    return chart


def _roc(membership: Data, risk: Data) -> Chart:
    fewest = max(attack["non_members"] for model in membership["models"] for attack in model["attacks"])
    least = max(1e-5, 10.0 ** -(len(str(fewest)) - 1)) / 1.0001
    chart = Chart(
        "Members found against false alarms",
        Axis("false alarms (share of others)", least, 1.0, log=True),
        Axis("members found (share)", least, 1.0, log=True),
    )
    limit = list(zip(risk["limit"]["false_alarms"], risk["limit"]["found"], strict=True))
    chart.area([*limit, (1.0, 1.0), (least, 1.0)], "shut", "no attack gets here with DP")
    chart.line(limit, "shut")
    for model in membership["models"]:
        colour = "one" if model["private"] else "two"
        attack = next(one for one in model["attacks"] if one["attack"] == membership["headline"])
        roc = attack["roc"]
        band = [*zip(roc["false_alarms"], roc["low"], strict=True)]
        band += reversed([*zip(roc["false_alarms"], roc["high"], strict=True)])
        chart.area(band, colour)
        chart.line(zip(roc["false_alarms"], roc["found"], strict=True), colour, model["model"])
    chart.line([(least, least), (1.0, 1.0)], "shut", "guessing", dashed=True)
    return chart


def _sorted(exposed: Data) -> Chart:
    curves = exposed["curves"]
    values = [value for curve in curves for value in curve["values"]]
    chart = Chart(
        "How exposed each record is",
        Axis("records, exposed most first (%)", 0.0, 100.0),
        Axis("exposed by (standard deviations)", min(-1.0, *values), max(3.0, *values)),
    )
    for curve in curves:
        colour = "one" if curve["private"] else "two"
        chart.line(zip(curve["percent"], curve["values"], strict=True), colour, curve["model"])
    chart.line([(0.0, 0.0), (100.0, 0.0)], "shut", dashed=True)
    return chart


def remembered_charts(found: Data) -> dict[str, Chart]:
    """A chart of exposures for each model; none if no secrets were planted."""
    if not found["canaries"]:
        return {}
    return {f"exposure-{_slug(model['model'])}": _chart(found, model) for model in found["models"]}


def _chart(found: Data, model: Data) -> Chart:
    """How many secrets have at least so much exposure, beside the most that the guarantee allows."""
    fewest = max([1, *(group["count"] for group in model["planted"])])
    low = min(0.01, 0.5 / fewest)
    chart = Chart(
        f"Exposure of secrets, {model['model']}",
        Axis("exposure, bits", 0.0, found["most_bits"] + 0.4),
        Axis("share with at least that (logarithmic)", low, 1.0, log=True),
    )
    first = found["bounds"][0]
    if model["private"]:
        copies = "one copy" if first["copies"] == 1 else f"{first['copies']} copies"
        limit = list(zip(first["bits"], first["most"], strict=True))
        end = found["most_bits"] + 0.4
        chart.area([*limit, (end, limit[-1][1]), (end, 1.0)], "shut", f"ruled out for {copies}")
        chart.line(limit, "shut")
    chart.line([(0.0, 1.0), (-math.log2(low), low)], "shut", "never seen", dashed=True)
    for group, colour in zip(model["planted"], ("one", "three", "two"), strict=False):
        if group["count"]:
            chart.line(_steps(group["exposures"], low), colour, planted(group["copies"]))
    return chart


def _steps(exposures: Sequence[float], low: float) -> Iterator[tuple[float, float]]:
    """The share of sorted exposures at or above each number of bits."""
    count = len(exposures)
    yield (0.0, 1.0)
    for place, value in enumerate(exposures):
        yield (value, 1.0 - place / count)
        yield (value, 1.0 - (place + 1) / count if place + 1 < count else low)


def _slug(name: str) -> str:
    return name.replace(" ", "-").lower()
