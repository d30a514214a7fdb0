"""Pictures drawn from a random process, on which features can be trained without any data.

Dead leaves (Lee, Mumford and Huang, IJCV 2001): opaque shapes of random size, position and colour fall on top
of each other.  With sizes from a power law, the pictures share edges, occlusion and scale invariance with
photographs.  That is enough to learn features from (Baradad et al., 2106.05963; for private training: Tang et
al., DP-RandP, 2306.06076).  Here each picture has a random palette, contrast and smallest leaf.  Leaves are
ellipses, boxes and triangles with sharp to soft edges, shaded or striped.  A little 1/f noise is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import check_integer

_CHUNK = 256  # pictures drawn together; another value gives other pictures for the same seed


def dead_leaves(count: int, *, seed: int, size: int = 32, leaves: int = 40) -> Tensor:
    """Draw dead-leaves pictures.

    With the same seed, a smaller count gives the first pictures of a larger count.

    Args:
        count: the number of pictures.
        seed: any number; it may be public, as the pictures contain no data.
        size: the number of pixels per side.
        leaves: the number of shapes in a picture; later ones lie on top.

    Returns:
        (count, 3, size, size) float32 in [0, 1].

    Raises:
        InvalidInput: a setting is out of range.

    >>> dead_leaves(2, seed=0).shape
    torch.Size([2, 3, 32, 32])
    """
    for name, value in (("count", count), ("size", size), ("leaves", leaves)):
        check_integer(name, value, low=1)
    check_integer("seed", seed, low=0, high=2**63 - 1)
    draw = _Draw(torch.Generator().manual_seed(seed), _CHUNK)
    pictures = torch.empty(count, 3, size, size)
    for begin in range(0, count, _CHUNK):
        pictures[begin : begin + _CHUNK] = _chunk(draw, size, leaves)[: count - begin]
    return pictures


@dataclass(frozen=True)
class _Draw:
    """Random numbers for each picture of a chunk, shaped to broadcast: (chunk, channels, 1, 1)."""

    generator: torch.Generator
    chunk: int

    def uniform(self, channels: int = 1) -> Tensor:
        """Draw uniform numbers in [0, 1)."""
        return torch.rand(self.chunk, channels, 1, 1, generator=self.generator)

    def normal(self, channels: int = 1, side: int = 1) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(self.chunk, channels, side, side, generator=self.generator)


def _chunk(draw: _Draw, size: int, leaves: int) -> Tensor:
    palette = 0.5 + 0.2 * draw.normal() + 0.06 * draw.normal(3)
    contrast, chroma = 0.05 + 0.3 * draw.uniform(), 0.02 + 0.15 * draw.uniform() ** 2
    smallest, texture = 2 + 5 * draw.uniform(), 0.25 * draw.uniform() ** 2
    axis = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    y, x = axis.view(1, 1, -1, 1), axis.view(1, 1, 1, -1)
    picture = palette.expand(-1, -1, size, size).clone()
    for _ in range(leaves):
        radius = _power_law(draw.uniform(), smallest, float(size))
        along, across = _turned(draw, x, y, size)
        cover = ((radius - _distance(draw, along, across)) / (0.3 + 1.2 * draw.uniform() ** 2) + 0.5).clamp(
            0, 1
        )
        colour = palette + contrast * draw.normal() + chroma * draw.normal(3)
        stripes = torch.sin(along * (0.1 + 2 * draw.uniform()) + 2 * math.pi * draw.uniform())
        shade = texture * draw.normal() * stripes + 0.25 * draw.normal() * across / size
        picture = torch.lerp(picture, colour + shade, cover)
    return (picture + 0.08 * draw.uniform() * _pink_noise(draw, size)).clamp(0, 1)


def _power_law(uniform: Tensor, low: Tensor, high: float) -> Tensor:
    """Map uniform numbers to radii of density proportional to r^-3 between ``low`` and ``high``."""
    return (low**-2 + uniform * (high**-2 - low**-2)).rsqrt()


def _turned(draw: _Draw, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return coordinates about a random centre, perhaps outside the picture, turned by a random angle."""
    centre, angle = (draw.uniform(2) - 0.5) * 1.3 * size, math.pi * draw.uniform()
    u, v = x - centre[:, :1], y - centre[:, 1:]
    return u * angle.cos() + v * angle.sin(), v * angle.cos() - u * angle.sin()


def _distance(draw: _Draw, along: Tensor, across: Tensor) -> Tensor:
    """Return each pixel's distance from the centre in the metric of an ellipse, a box or a triangle."""
    stretch = (0.5 * draw.normal()).exp()
    u, v = along.abs() / stretch, across.abs() * stretch
    triangle = torch.maximum(0.87 * u + 0.5 * across * stretch, -across * stretch)
    kind = draw.uniform()
    return torch.where(kind < 0.5, torch.hypot(u, v), torch.where(kind < 0.8, torch.maximum(u, v), triangle))


def _pink_noise(draw: _Draw, size: int) -> Tensor:
    """Draw noise with amplitude 1 / frequency and variance 1 per picture, mostly shared by the colours."""
    axis = torch.fft.fftfreq(size)
    frequency = torch.hypot(axis[:, None], axis[None, :]).clamp_min(1 / size)
    noise: Tensor = torch.fft.ifft2(torch.fft.fft2(draw.normal(3, size)) / frequency).real
    noise = 0.3 * noise + noise.mean(1, keepdim=True)
    return noise / noise.std((1, 2, 3), keepdim=True)
