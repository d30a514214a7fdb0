"""Pictures from a random process, to train features on without any data: they cost no privacy.

Dead leaves (Lee, Mumford and Huang, IJCV 2001): opaque shapes of random size, place and colour fall on top of
each other.  With sizes that follow a power law the pictures share edges, occlusion and scale invariance with
photographs, enough to learn features from (Baradad et al., 2106.05963; for private training: Tang et al.,
DP-RandP, 2306.06076).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real

__all__ = ["dead_leaves"]

_CHUNK = 256  # pictures drawn together; part of the definition of what a seed means


def dead_leaves(
    count: int,
    *,
    seed: int,
    size: int = 32,
    leaves: int = 160,
    exponent: float = 3.0,
    radii: tuple[float, float] = (2.0, 20.0),
    textured: bool = True,
) -> Tensor:
    """Draw dead-leaves pictures.

    * ``leaves``: shapes per picture, later ones on top;
    * ``exponent``, ``radii``: density of the radius r is proportional to r^-exponent on [low, high] pixels;
    * ``textured``: some leaves carry a sine grating of random direction, wavelength and strength.

    Leaves are ellipses with sharp to soft rims.  ``seed`` is public: the pictures hold no data.  The first
    m of n pictures are the m pictures of the same seed.  Shapes: (count, 3, size, size) float32 in [0, 1].

    Errors: :class:`InvalidInput` for settings out of range.

    >>> dead_leaves(2, seed=0).shape
    torch.Size([2, 3, 32, 32])
    """
    for name, value in (("count", count), ("size", size), ("leaves", leaves)):
        check_integer(name, value, low=1)
    check_integer("seed", seed, low=0, high=2**63 - 1)
    check_real("exponent", exponent, low=0.0)
    low, high = (check_real("radii", radius, low=0.0, open_low=True) for radius in radii)
    if low > high:
        raise InvalidInput(f"radii must be (smallest, largest); got {radii}.")
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.empty(count, 3, size, size)
    for begin in range(0, count, _CHUNK):
        drawn = _draw(generator, size, leaves, exponent, (low, high), textured)
        pictures[begin : begin + _CHUNK] = drawn[: count - begin]
    return pictures


def _draw(
    generator: torch.Generator,
    size: int,
    leaves: int,
    exponent: float,
    radii: tuple[float, float],
    textured: bool,
) -> Tensor:
    """A chunk of pictures, leaf by leaf."""
    canvas = _uniform(generator, 3).view(-1, 3, 1, 1).expand(-1, -1, size, size).clone()
    axis = torch.arange(size, dtype=torch.float32) + 0.5
    for _ in range(leaves):
        radius = _power_law(_uniform(generator, 1)[:, 0], exponent, radii).view(-1, 1, 1)
        place = _uniform(generator, 2) * (size + 2 * radii[1]) - radii[1]  # also beyond the border
        turn, stretch, softness = (_uniform(generator, 3) * torch.tensor([math.pi, 1.0, 1.0])).unbind(1)
        y, x = axis.view(1, -1, 1) - place[:, :1, None], axis.view(1, 1, -1) - place[:, 1:, None]
        cosine, sine = turn.cos().view(-1, 1, 1), turn.sin().view(-1, 1, 1)
        aspect = (0.5 + 0.5 * stretch).view(-1, 1, 1)
        distance = torch.hypot(cosine * x + sine * y, (cosine * y - sine * x) / aspect)
        rim = 0.5 + 1.5 * softness.square().view(-1, 1, 1)  # pixels over which a leaf fades
        cover = ((radius - distance) / rim + 0.5).clamp(0, 1).unsqueeze(1)
        colour = _uniform(generator, 3).view(-1, 3, 1, 1)
        if textured:
            colour = (colour + _grating(generator, x, y)).clamp(0, 1)
        canvas += cover * (colour - canvas)
    return canvas.clamp_(0, 1)


def _grating(generator: torch.Generator, x: Tensor, y: Tensor) -> Tensor:
    """A sine wave across the leaf, the same in all colours; on half of the leaves it is nothing."""
    turn, wavelength, phase, strength = _uniform(generator, 4).view(-1, 4, 1, 1).unbind(1)
    frequency = 2 * math.pi / (2.0 * 8.0**wavelength)  # wavelengths of 2 to 16 pixels
    along = torch.cos(math.pi * turn) * x + torch.sin(math.pi * turn) * y
    amplitude = 0.6 * (strength - 0.5).clamp(min=0)
    return (amplitude * torch.sin(frequency * along + 2 * math.pi * phase)).unsqueeze(1)


def _power_law(uniform: Tensor, exponent: float, radii: tuple[float, float]) -> Tensor:
    """Radii with density proportional to r^-exponent on the interval, by inverting the distribution."""
    low, high = radii
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        return low * torch.exp(math.log(high / low) * uniform)
    first, last = math.pow(low, power), math.pow(high, power)
    return (first + uniform * (last - first)).pow(1 / power)


def _uniform(generator: torch.Generator, numbers: int) -> Tensor:
    return torch.rand(_CHUNK, numbers, generator=generator)
