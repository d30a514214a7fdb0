"""How are figures written? Without a window system, whole or not at all, and without importing torch."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# They differ in lightness, so that they are told apart in grey and without red or green; but GREY only by its
# dashes or markers: it is for what the others are held against, and for words.
BLUE, ORANGE, GREEN, GREY, PALE = "#103a78", "#c04c10", "#1f6139", "#666666", "#8b949e"

FORMATS = (".png", ".svg", ".pdf")
"""The kinds of file that a figure is written as, by the ending of its name."""


def figure_path(path: Path) -> Path:
    """``path``, if its name allows writing a figure there.

    >>> figure_path(Path("out/privacy.png")).name
    'privacy.png'
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput(
            f"a figure is written as {', '.join(FORMATS)}, by the ending of its name; got {str(path)!r}. "
            f"Name it {path.with_suffix('.png').name if path.name else 'figure.png'}, for example."
        )
    return path


MARKERS = "os^D"
_DASHES = ("-", "--", "-.", ":", (0, (8, 1)), (0, (1, 3)), (0, (4, 1, 1, 1, 1, 1)), (0, (10, 4)))


def line_style(number: int) -> dict[str, Any]:
    """Of the line of this number in its axes: the first eight differ in dashes, neighbours in colour too.

    >>> line_style(1)["linestyle"]
    '--'
    """
    return {"color": (BLUE, ORANGE, GREEN, PALE)[number % 4], "linestyle": _DASHES[number % len(_DASHES)]}


def empty_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "a plot") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=130)


def write_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` beside ``path``, then rename: a full disk leaves the old file unchanged."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=figure_path(path).suffix.lower().removeprefix("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(buffer.getvalue())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
