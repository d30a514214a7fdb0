"""What does a report folder hold? One page, its data, its charts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.files import write_atomically
from tacit.report.pages.run_charts import charts_of
from tacit.report.pages.run_page import page


def write_report(data: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.html``, ``report.json`` and one SVG for each chart; returns the path of the page.

    They are readable by their owner alone: findings on membership are as confidential as the records.
    """
    files = {"report.html": page(data), "report.json": json.dumps(_plain(data), indent=1, allow_nan=False)}
    files |= {f"{name}.svg": chart.to_svg(alone=True) for name, chart in charts_of(data).items()}
    for name, text in files.items():
        _write(folder / name, text)
    return folder / "report.html"


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()), mode=0o600)


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
