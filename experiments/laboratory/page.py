"""The report of the laboratory: that of ``tacit attack``, with a section for each further attack."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import needed
from tacit.report import document, run_page
from tacit.report.canvas import PALE, line_style, new_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

_PARTS = ("exposed", "inversion", "recitation")
_TEMPLATES = Path(__file__).parent / "templates"
_DASHED: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.4}


def charts_of(data: Data) -> dict[str, Axes]:
    """Draw the charts, and return them by name."""
    charts = run_page.charts_of(data)
    return charts | ({"exposed": _sorted(data["exposed"])} if data.get("exposed") else {})


def page(data: Data) -> str:
    """Write the whole page as HTML."""
    return _page(data, charts_of(data))


def write_report(data: Data, folder: Path) -> Path:
    """Write the page, its data and its charts, and return the path of the page."""
    charts = charts_of(data)
    return run_page.write_files(folder, data, _page(data, charts), charts)


def _page(data: Data, charts: Mapping[str, Axes]) -> str:
    theirs = document._environment(False)
    loaders = [jinja2.FileSystemLoader(_TEMPLATES), theirs.loader]
    ours = theirs.overlay(loader=jinja2.ChoiceLoader([loader for loader in loaders if loader is not None]))
    facts = dict.fromkeys(_PARTS) | run_page.facts_of(data, charts)
    text = ours.get_template("laboratory.html").render(
        **facts,
        title=f"What {data['run']['name']} reveals",
        stands_out=_stands_out(data["exposed"]["most"][0]) if data.get("exposed") else [],
    )
    body = re.sub(r"\s*\n\s*", " ", re.sub(r">\s*\n\s*(?=<)", ">", text.strip()))
    return f"<!DOCTYPE html>\n{body}\n"


def _stands_out(record: Data) -> list[str]:
    """Return the kinds of model (with and without DP) that expose a record more than chance does."""
    kinds = ("without_dp", "with_dp")
    return [kind for kind in kinds if record[kind] is not None and record[kind] > record[f"chance_{kind}"]]


def _sorted(exposed: Data) -> Axes:
    axes = new_chart(
        "records, the most exposed first (%)",
        "exposed by (standard deviations)",
        title="How exposed each record is",
    )
    for curve in exposed["curves"]:
        style = line_style(0 if curve["private"] else 1)
        axes.plot(curve["percent"], curve["values"], **style, label=curve["model"])
    axes.axhline(0.0, **_DASHED)
    values = [value for curve in exposed["curves"] for value in curve["values"]]
    axes.set(xlim=(0.0, 100.0), ylim=(min(-1.0, *values), max(3.0, *values)))
    return axes


def grey_picture(values: ArrayLike) -> str:
    """Write a picture (h, w) or (channels, h, w) as a data URL. Its values are scaled to the full range."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 3:
        array = np.moveaxis(array, 0, -1) if array.shape[0] == 3 else array.mean(axis=0)
    low, high = float(array.min()), float(array.max())
    pixels = np.round(255.0 * (array - low) / max(high - low, 1e-12)).astype(np.uint8)
    buffer = io.BytesIO()
    image = needed("PIL.Image", "images", "a picture", package="pillow")
    image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
