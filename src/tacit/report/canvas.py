"""Matplotlib figures without a window system. The module does not import torch.

A figure is either a separate file or a chart within a page. A chart is SVG in the colours of the page, which
are light or dark as the reader's browser is set.
"""

from __future__ import annotations

import io
import os
import re
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tacit.errors import InvalidInput, needed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _template(name: str) -> str:
    return resources.files("tacit.report").joinpath("templates", name).read_text(encoding="utf-8")


# The light colours of colours.css, which charts, pages, site and playground share. They differ in lightness,
# so that readers can tell them apart in greyscale and with colour blindness. GREY is an exception, as it is
# only for words, and for baselines, which also have dashes or markers.
_LIGHT = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6})", _template("colours.css")))
BLUE, ORANGE, GREEN, PALE = (_LIGHT[name] for name in ("one", "two", "three", "shut"))
GREY = "#666666"
_INK, _SOFT, _LINE, _PAPER = (_LIGHT[name] for name in ("ink", "soft", "line", "paper"))
THEME = {
    BLUE: "one", ORANGE: "two", GREEN: "three", PALE: "shut",
    _INK: "ink", _SOFT: "soft", _LINE: "line", _PAPER: "paper",
}  # fmt: skip

FORMATS = (".png", ".svg", ".pdf")
"""The endings of a figure's file name, one for each format."""

CHART_WIDTH = 5.6  # inches: a phone shows them without small print

_LOOK: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "font.size": 13.0,
    "grid.color": _LINE,
    "legend.edgecolor": "none",
    "legend.facecolor": _PAPER,
    "legend.fontsize": 12.0,
    "legend.labelcolor": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "tacit",
    "xtick.color": _SOFT,
    "xtick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.color": _SOFT,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
}


# Parts of matplotlib's SVG that a page does not need: comments, names of groups and fonts, white space.
_SHORTER = (
    (r"<!--.*?-->", ""),
    (r'<g id="[^"]*"', "<g"),
    (r"font-family: [^;\"]*; ", ""),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"xlink:href", "href"),
    (r">\s+<", "><"),
    (r"\s*\n\s*", " "),
    (r"<g/>", ""),
)


def figure_path(path: Path) -> Path:
    """Return ``path`` if its ending is a known format."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput(
            f"a figure's file name must end in {', '.join(FORMATS)}; got {str(path)!r}. Use "
            f"{path.with_suffix('.png').name if path.name else 'figure.png'}, for example."
        )
    return path


MARKERS = "os^D"
_DASHES = ("-", "--", "-.", ":", (0, (8, 1)), (0, (1, 3)), (0, (4, 1, 1, 1, 1, 1)), (0, (10, 4)))


def line_style(number: int) -> dict[str, Any]:
    """Return the style of the line with this number.

    The eight styles have different dashes. Consecutive styles also have different colours.
    """
    return {"color": (BLUE, ORANGE, GREEN, PALE)[number % 4], "linestyle": _DASHES[number % len(_DASHES)]}


def new_figure(width: float = 6.4, height: float = 4.0, *, dpi: int = 130) -> Figure:
    """Make an empty figure with the given width and height in inches."""
    module = needed("matplotlib.figure", "plots", "a plot")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained", dpi=dpi)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` to a temporary file, then rename it. A full disk leaves the old file unchanged."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=figure_path(path).suffix.lower().removeprefix("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        partial.write_bytes(buffer.getvalue())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def new_chart(
    x: str, y: str, *, title: str, shares: str = "", size: tuple[float, float] = (CHART_WIDTH, 4.6)
) -> Axes:
    """Make the axes of a chart within a page; ``size`` is in inches, at 72 pixels each.

    ``title`` is for readers who cannot see the chart. The axes named in ``shares``, such as "xy", are
    logarithmic, with per cent at the ticks.
    """
    figure = new_figure(*size, dpi=72)
    from matplotlib import rc_context

    with rc_context(_LOOK):
        axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
        axes.title.set_visible(False)
        axes.spines[["top", "right"]].set_visible(False)
        for name in shares:
            axes.set(**{f"{name}scale": "log"})
            getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{100 * value:g} %")
            getattr(axes, f"{name}axis").set_minor_formatter(lambda *_: "")
    return axes


def to_svg(axes: Axes, *, alone: bool = False) -> str:
    """Write a chart as SVG that keeps text as text. A chart that is a file ``alone`` includes its style."""
    from matplotlib import rc_context

    buffer, figure = io.StringIO(), cast("Figure", axes.figure)
    with rc_context(_LOOK):
        if axes.get_legend_handles_labels()[0] and not axes.get_legend():
            axes.legend()
        if legend := axes.get_legend():  # one that was made outside of this look
            legend.get_frame().set(facecolor=_PAPER, edgecolor="none")
            for words in legend.get_texts():
                words.set(color=_INK, fontsize=12)
        figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    group = text[text.index('<g id="figure_1"') :]
    group = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}", group)
    for long, short in (*_SHORTER, *((colour, f"var(--{name})") for colour, name in THEME.items())):
        group = re.sub(long, short, group)
    width, height = 72 * figure.get_size_inches()
    style = _template("colours.css") + _template("chart.css")
    back = f'<style>{style}</style><rect width="100%" height="100%" style="fill: var(--paper)"/>'
    title = escape(axes.get_title())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {width:g} '
        f'{height:g}" aria-label="{title}">{back if alone else ""}<title>{title}</title>{group.strip()}'
    )


def cut(name: str, most: int = 18) -> str:
    """Shorten a name to ``most`` characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def label_of(name: str, most: int = 18) -> str:
    """Shorten a name, and escape dollars, which would begin a formula in matplotlib."""
    return cut(name, most).replace("$", r"\$")
