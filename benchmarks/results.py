"""The file of a benchmark's results: JSON with the machine, versions and date."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from machine import installed, machine, versions

from tacit.files import write_atomically

__all__ = ["FOLDER", "installed", "write"]

FOLDER = Path(__file__).parent / "results"


def write(path: Path, benchmark: str, content: dict[str, Any], *, packages: tuple[str, ...] = ()) -> None:
    """Write ``content`` with the machine, the date and the versions, also of ``packages``."""
    head = {
        "benchmark": benchmark, "date": date.today().isoformat(), "machine": machine(),
        "versions": versions(*packages),
    }  # fmt: skip
    text = json.dumps(head | content, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
