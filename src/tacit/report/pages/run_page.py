"""What does a run reveal? A report: one HTML page that needs no network, its data and its charts.

The data are those of :mod:`tacit.report.findings`; parts that are missing are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.files import write_atomically
from tacit.report.pages import document
from tacit.report.pages.canvas import to_svg
from tacit.report.pages.run_charts import charts_of
from tacit.report.pages.run_summary import epsilon_of, figures, summary, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

_PARTS = ("membership", "exposed", "remembered", "inversion", "audits")


def page(data: Data) -> str:
    """The whole page, as HTML.

    :param data: with ``run``, ``risk`` and any of ``membership``, ``exposed``, ``remembered``, ``inversion``,
        ``audits``.
    """
    return _page(data, charts_of(data))


def write_report(data: Data, folder: Path) -> Path:
    """Write ``report.html``, ``report.json`` and one SVG for each chart; returns the path of the page.

    They are readable by their owner alone: findings on membership are as confidential as the records.
    """
    charts = charts_of(data)
    files = {f"{name}.svg": to_svg(chart, alone=True) for name, chart in charts.items()}
    files["report.html"] = _page(data, charts)
    files["report.json"] = json.dumps(_plain(data), indent=1, allow_nan=False)
    for name, text in files.items():
        _write(folder / name, text.encode())
    return folder / "report.html"


def _write(path: Path, text: bytes) -> None:
    write_atomically(path, lambda file: file.write(text), mode=0o600)


def _page(data: Data, charts: Mapping[str, Axes]) -> str:
    contradicted, words = verdict(data)
    return document.page(
        "run.html",
        f"What {data['run']['name']} gives away",
        **{**dict.fromkeys(_PARTS), **data},
        charts={name: to_svg(chart) for name, chart in charts.items()},
        summary=summary(data),
        figures=figures(data),
        verdict=words,
        contradicted=contradicted,
        epsilon=epsilon_of(data["risk"]),
        stands_out=_stands_out(data["exposed"]["most"][0]) if data.get("exposed") else [],
    )


def _stands_out(record: Data) -> list[str]:
    """The models whose figure of a record is more than chance gives it."""
    kinds = ("without_dp", "with_dp")
    return [kind for kind in kinds if record[kind] is not None and record[kind] > record[f"chance_{kind}"]]


def _plain(value: Any) -> Any:
    """Numbers that JSON does not have become null."""
    match value:
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
