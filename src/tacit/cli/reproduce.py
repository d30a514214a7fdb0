"""``tacit reproduce``: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    name: Annotated[str, typer.Argument(help="Which experiment.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the figure and the JSON.")] = Path(
        "experiments/results"
    ),
) -> int:
    """Run an experiment of a paper."""
    del name, out
    return 0
