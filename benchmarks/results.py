"""Where the figures of a benchmark go: one JSON file with the machine, the versions and the date."""

from __future__ import annotations

import json
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from machine import machine, versions

__all__ = ["FOLDER", "installed", "write"]

FOLDER = Path(__file__).parent / "results"


def write(path: Path, benchmark: str, content: dict[str, Any], *, packages: tuple[str, ...] = ()) -> None:
    """Write ``content`` with what it was measured on; ``packages`` are those whose versions matter."""
    found = versions() | {name: metadata.version(name) for name in packages if installed(name)}
    head = {"benchmark": benchmark, "date": date.today().isoformat(), "machine": machine(), "versions": found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head | content, indent=1) + "\n", encoding="utf-8")


def installed(name: str) -> bool:
    """Whether the package is there."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
