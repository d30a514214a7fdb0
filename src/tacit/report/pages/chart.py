"""How are charts drawn? As SVG text, light and dark by the reader's setting; without a plotting library.

A chart is part of a page, which gives its style, or a separate file, which contains :data:`STYLE`.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

Points: TypeAlias = Iterable[tuple[float, float]]

_WIDTH, _HEIGHT = 520.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 24.0, 12.0, 52.0

# The four colours differ in lightness, so that they are told apart in grey and without red or green.
STYLE = (Path(__file__).parent / "templates" / "chart.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Axis:
    """The quantity on an axis, from ``low`` to ``high``, in logarithms if ``log``."""

    name: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """The position of ``value``: 0 at ``low``, 1 at ``high``; clamped outside.

        >>> Axis("share", 0.01, 1.0, log=True).place(0.1)
        0.5
        """
        v, low, high = (
            (math.log(max(x, 1e-300)) for x in (value, self.low, self.high))
            if self.log
            else (value, self.low, self.high)
        )
        return min(1.0, max(0.0, (v - low) / (high - low)))

    def ticks(self) -> list[float]:
        """Powers of ten, or about five round numbers."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**k for k in range(first, last + 1)]
        raw = (self.high - self.low) / 5.0
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]

    def label(self, value: float) -> str:
        """A tick in words.

        >>> Axis("share", 0.01, 1.0, log=True).label(0.01), Axis("mu", 0.0, 4.0).label(2.0)
        ('1 %', '2')
        """
        return f"{100 * value:g} %" if self.log else f"{value:.6g}"


@final
@dataclass
class Chart:
    """Axes with lines, areas and bars; ``title`` is for readers who cannot see the chart."""

    title: str
    x: Axis
    y: Axis
    legend_above: bool = False
    _parts: list[str] = field(default_factory=list, init=False)
    _legend: list[tuple[str, str]] = field(default_factory=list, init=False)

    def line(self, points: Points, colour: str, label: str = "", *, dashed: bool = False) -> None:
        """A line through ``points``; ``colour`` is one, two, three or shut."""
        style = f"line {colour}{' dashed' if dashed else ''}"
        self._parts.append(f'<polyline class="{style}" points="{self._path(points)}"/>')
        if label:
            self._legend.append((style, label))

    def area(self, points: Points, colour: str, label: str = "") -> None:
        """The inside of a closed path."""
        self._parts.append(f'<polygon class="area fill-{colour}" points="{self._path(points)}"/>')
        if label:
            self._legend.append((f"area fill-{colour}", label))

    def bars(self, edges: Sequence[float], heights: Sequence[float], colour: str, label: str = "") -> None:
        """A histogram: ``heights`` (n,) over ``edges`` (n + 1,)."""
        path = [(edges[0], self.y.low)]
        for i, height in enumerate(heights):
            path += [(edges[i], height), (edges[i + 1], height)]
        self.area([*path, (edges[-1], self.y.low)], colour, label)
        self.line(path, colour)

    def to_svg(self, *, alone: bool = False) -> str:
        """The chart as SVG; with its style inside if it stands ``alone``."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {_WIDTH:g} '
        style = f"<style>{STYLE}</style>" if alone else ""
        back = '<rect width="100%" height="100%" style="fill: var(--paper)"/>' if alone else ""
        return (
            f'{head}{_HEIGHT:g}" aria-label="{escape(self.title, quote=True)}">{style}{back}'
            f"<title>{escape(self.title)}</title>{self._axes()}{''.join(self._parts)}{self._key()}</svg>"
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + across * self.x.place(x), _TOP + down * (1.0 - self.y.place(y))

    def _path(self, points: Points) -> str:
        return " ".join("{:.1f},{:.1f}".format(*self._at(x, y)) for x, y in points)

    def _axes(self) -> str:
        found = []
        for value in self.x.ticks():
            (x, bottom), (_, top) = self._at(value, self.y.low), self._at(value, self.y.high)
            found.append(f'<line class="grid" x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{top:.1f}"/>')
            found.append(_text(x, bottom + 18, self.x.label(value), "middle", "soft"))
        for value in self.y.ticks():
            (left, y), (right, _) = self._at(self.x.low, value), self._at(self.x.high, value)
            found.append(f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>')
            found.append(_text(left - 7, y + 4, self.y.label(value), "end", "soft"))
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2.0
        found.append(_text((_LEFT + _WIDTH - _RIGHT) / 2.0, _HEIGHT - 10, self.x.name, "middle"))
        turned = f'<g transform="rotate(-90 14 {middle:g})">{_text(14, middle, self.y.name, "middle")}</g>'
        return "".join(found) + turned

    def _key(self) -> str:
        if not self._legend:
            return ""
        found = [self._behind_key()]
        for i, (style, label) in enumerate(self._legend):
            y = _TOP + 14 + 19 * i
            if not self.legend_above:
                y = _HEIGHT - _BOTTOM - 14 - 19 * (len(self._legend) - 1 - i)
            found.append(_text(_WIDTH - _RIGHT - 34, y + 4, label, "end"))
            x = _WIDTH - _RIGHT - 28
            if style.startswith("area"):
                found.append(f'<rect class="{style}" x="{x}" y="{y - 6}" width="22" height="12"/>')
            else:
                found.append(f'<line class="{style}" x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}"/>')
        return "".join(found)

    def _behind_key(self) -> str:
        """A background, so that lines behind the words do not make them hard to read."""
        height = 19 * len(self._legend) + 4
        width = 44 + 7.5 * max(len(label) for _, label in self._legend)
        y = _TOP + 2 if self.legend_above else _HEIGHT - _BOTTOM - 2 - height
        return (
            f'<rect class="key" x="{_WIDTH - _RIGHT - width - 2:.0f}" y="{y:.0f}" width="{width:.0f}" '
            f'height="{height}"/>'
        )


def _text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def grey_picture(values: ArrayLike) -> str:
    """A picture (h, w) or (channels, h, w), stretched from its least to its largest value, as a data URL.

    >>> grey_picture([[0.0, 1.0]])[:22]
    'data:image/png;base64,'
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 3:
        array = np.moveaxis(array, 0, -1) if array.shape[0] == 3 else array.mean(axis=0)
    low, high = float(array.min()), float(array.max())
    pixels = np.round(255.0 * (array - low) / max(high - low, 1e-12)).astype(np.uint8)
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
