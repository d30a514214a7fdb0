"""Image features that need no data: scattering maps, whitened by synthetic "dead leaves" images.

Letters: n images; c colours; h height and w width; p and r, the padded height and width; d features;
k directions; s_i eigenvalues, decreasing; lam = s_floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import InvalidInput, check_integer

_SCALES, _ANGLES = 2, 8  # J, L
_STRIDE = 2**_SCALES
_PAD = 4  # reflected pixels on each side: one position of the output
CHANNELS = 1 + _SCALES * _ANGLES + _ANGLES**2 * _SCALES * (_SCALES - 1) // 2
"""Channels per colour: 81."""


class Scattering(nn.Module):
    """The scattering transform for images of one size, as a layer without weights.

    Shapes: (n, c, height, width) float32 to (n, 81 c, height / 4, width / 4).  The channels of a colour are
    adjacent, in the order S0, S1 (scale, angle), S2 (first angle, second angle).

    **Guarantee**

    * The output for an image depends only on that image, and on no dataset.
    """

    fine: Tensor
    coarse: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        for name, size in (("height", height), ("width", width)):
            if check_integer(name, size, low=8) % _STRIDE:
                raise InvalidInput(f"{name} must be a multiple of {_STRIDE}; got {size}.")
        self.size = (height, width)
        padded = (height + 2 * _PAD, width + 2 * _PAD)
        # Real spectra, each value twice: once for the real and once for the imaginary part of the input.
        bank = torch.from_numpy(_wavelets(padded)).to(torch.float32).repeat_interleave(2, dim=-1)
        self.register_buffer("fine", bank[0], persistent=False)  # (8, p, 2 r)
        self.register_buffer("coarse", bank[1], persistent=False)
        for step in (1, 2):
            self.register_buffer(f"low_rows_{step}", _low_pass(padded[0], step), persistent=False)
            self.register_buffer(f"low_columns_{step}", _low_pass(padded[1], step), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of a batch (n, c, height, width)."""
        if images.ndim != 4 or tuple(images.shape[2:]) != self.size or not images.is_floating_point():
            raise InvalidInput(
                f"images must be floats of shape (n, c, {self.size[0]}, {self.size[1]}); "
                f"got {images.dtype} {tuple(images.shape)}."
            )
        count, colours = images.shape[:2]
        x = functional.pad(images, (_PAD,) * 4, mode="reflect").flatten(0, 1)  # (n c, p, r)
        fine = _modulus(x, self.fine, halve=False)  # |x * psi_1|, (n c, 8, p, r)
        coarse = _modulus(x, self.coarse, halve=True)  # (n c, 8, p/2, r/2)
        both = _modulus(fine, self.coarse, halve=True).flatten(1, 2)  # (n c, 64, p/2, r/2)
        low = self._average(torch.cat([x.unsqueeze(1), fine], dim=1), 1)
        features = torch.cat([low, self._average(torch.cat([coarse, both], dim=1), 2)], dim=1)
        return features.reshape(count, colours * CHANNELS, *features.shape[2:])

    def _average(self, maps: Tensor, step: int) -> Tensor:
        """Return ``maps * phi`` at the centre of each 4x4 cell, for ``maps`` of every ``step``-th pixel."""
        rows, columns = self.get_buffer(f"low_rows_{step}"), self.get_buffer(f"low_columns_{step}")
        return rows @ maps @ columns.T


def scattering_features(
    images: Tensor,
    *,
    chunk: int = 32,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Compute the scattering features of many images, about 1,500 of 28x28 pixels per core-second."""
    # Shapes: (n, c, h, w) to (n, 81 c, h / 4, w / 4).
    check_integer("chunk", chunk, low=1)
    if images.ndim != 4 or len(images) == 0:
        raise InvalidInput(f"images must have shape (n >= 1, c, h, w); got {tuple(images.shape)}.")
    count, colours, height, width = images.shape
    transform = Scattering(height, width).to(images.device)
    shape = (count, colours * CHANNELS, height // _STRIDE, width // _STRIDE)
    features = torch.empty(shape, dtype=dtype, device=images.device)
    with torch.no_grad():
        for begin in range(0, count, chunk):
            part = images[begin : begin + chunk]
            features[begin : begin + len(part)] = transform(part.to(torch.float32))
            if progress is not None:
                progress(begin + len(part), count)
    return features


def mirror_average(features: Tensor) -> Tensor:
    """Average features with those of the mirrored image, and return the left half."""
    # The right half is the mirror image of the left, so it adds nothing. Mirroring a picture mirrors its maps
    # and exchanges the directions of the wavelets, so no second transform is needed. This is exact for S0 and
    # the first scale. For the others it is exact up to the aliasing of halved maps. Shapes: (n, 81 c, h, w)
    # to (n, 81 c, h, ceil(w / 2)).
    if features.ndim != 4 or features.shape[1] % CHANNELS:
        raise InvalidInput(f"features must have shape (n, 81 * channels, h, w); got {tuple(features.shape)}.")
    count, channels, height, width = features.shape
    order = torch.tensor(_mirrored_channels(), device=features.device)
    by_colour = features.reshape(count, channels // CHANNELS, CHANNELS, height, width)
    mirrored = by_colour[:, :, order].flip(-1)
    average = (by_colour + mirrored)[..., : (width + 1) // 2] / 2
    return average.reshape(count, channels, height, -1)


def _mirrored_channels() -> list[int]:
    """Return, for each channel of a mirrored image, the index of the channel that it mirrors."""
    turned = [(_ANGLES - 2 - angle) % _ANGLES for angle in range(_ANGLES)]
    first = [1 + scale * _ANGLES + angle for scale in range(_SCALES) for angle in turned]
    start = 1 + _SCALES * _ANGLES
    return [0, *first, *(start + a * _ANGLES + b for a in turned for b in turned)]


def _modulus(maps: Tensor, filters: Tensor, *, halve: bool) -> Tensor:
    """Return ``|maps * psi|`` for the 8 filters: (..., p, r) to (..., 8, p, r), or to (..., 8, p/2, r/2)."""
    # To keep every second pixel, the four quarters of the spectrum are averaged. The product of a complex
    # spectrum and a real filter is computed on real numbers, quarter by quarter. This is many times faster
    # than complex arithmetic.
    parts = 2 if halve else 1
    height, width = maps.shape[-2] // parts, maps.shape[-1] // parts
    spectrum = torch.view_as_real(torch.fft.fft2(maps)).flatten(-2)  # (..., p, 2 r)
    total: Tensor | None = None
    for row in range(0, maps.shape[-2], height):
        for column in range(0, spectrum.shape[-1], 2 * width):
            quarter = (..., slice(row, row + height), slice(column, column + 2 * width))
            values = spectrum[quarter].contiguous().unsqueeze(-3)
            weights = filters[quarter].contiguous()
            total = values * weights if total is None else total.addcmul_(values, weights)
    assert total is not None
    product = torch.view_as_complex(total.reshape(*total.shape[:-1], width, 2))
    waves: Tensor = torch.fft.ifft2(product)
    return waves.abs() / parts**2


def _wavelets(size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the spectra of the Morlet wavelets, (2, 8, p, r), which are real by symmetry."""
    bank = np.empty((_SCALES, _ANGLES, *size))
    for scale in range(_SCALES):
        for angle in range(_ANGLES):
            direction = (_ANGLES // 2 - 1 - angle) * math.pi / _ANGLES
            bank[scale, angle] = np.fft.fft2(_morlet(size, scale, direction)).real
    return bank


def _morlet(size: tuple[int, int], scale: int, direction: float) -> NDArray[np.complex128]:
    """Return (exp(i k.u) - beta) times a Gaussian window, periodic on ``size``; beta makes the sum 0."""
    spread, slant = 0.8 * 2**scale, 4 / _ANGLES
    frequency = 0.75 * math.pi / 2**scale
    wave = np.zeros(size, dtype=np.complex128)
    window = np.zeros(size)
    for row in range(-2, 3):  # copies that reach in from the neighbouring periods
        for column in range(-2, 3):
            y, x = np.mgrid[row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]]
            along = y * math.cos(direction) + x * math.sin(direction)
            across = x * math.cos(direction) - y * math.sin(direction)
            copy = np.exp(-(along**2 + (slant * across) ** 2) / (2 * spread**2))
            window += copy
            wave += copy * np.exp(1j * frequency * along)
    morlet: NDArray[np.complex128] = wave - window * (wave.sum() / window.sum())
    morlet *= slant / (2 * math.pi * spread**2)
    return morlet


def _low_pass(size: int, step: int) -> Tensor:
    """Return the Gaussian phi along one axis, as a matrix (size/4 - 2, size/step) of rows that sum to 1."""
    # phi is a product of two such Gaussians. Therefore one small matrix product per axis averages, keeps one
    # position in four and cuts off the padding.
    spread = 0.8 * 2 ** (_SCALES - 1)
    # Centres of cells of four pixels, so that a mirrored picture has mirrored features.
    centres = np.arange(_PAD, size - _PAD, _STRIDE)[:, None] + (_STRIDE - 1) / 2
    places = np.arange(0, size, step)[None, :]
    weights = sum(np.exp(-((places - centres + turn * size) ** 2) / (2 * spread**2)) for turn in range(-2, 3))
    return torch.from_numpy(weights / np.sum(weights, axis=1, keepdims=True)).to(torch.float32)


_DRAWN_AT_ONCE = 256  # pictures drawn together; another value gives other pictures for the same seed


def dead_leaves(count: int, *, seed: int, size: int = 32, leaves: int = 40) -> Tensor:
    """Draw dead-leaves images."""
    # With the same seed, a smaller count gives the first pictures of a larger count.
    for name, value in (("count", count), ("size", size), ("leaves", leaves)):
        check_integer(name, value, low=1)
    check_integer("seed", seed, low=0, high=2**63 - 1)
    draw = _Draw(torch.Generator().manual_seed(seed), _DRAWN_AT_ONCE)
    pictures = torch.empty(count, 3, size, size)
    for begin in range(0, count, _DRAWN_AT_ONCE):
        pictures[begin : begin + _DRAWN_AT_ONCE] = _chunk(draw, size, leaves)[: count - begin]
    return pictures


@dataclass(frozen=True)
class _Draw:
    """Random numbers for each image of a chunk, shaped to broadcast: (chunk, channels, 1, 1)."""

    generator: torch.Generator
    chunk: int

    def uniform(self, channels: int = 1) -> Tensor:
        return torch.rand(self.chunk, channels, 1, 1, generator=self.generator)

    def normal(self, channels: int = 1, side: int = 1) -> Tensor:
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
    """Return coordinates about a random centre, perhaps outside the image, rotated by a random angle."""
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
    """Draw noise with amplitude 1 / frequency and variance 1 per image, mostly shared by the colours."""
    axis = torch.fft.fftfreq(size)
    frequency = torch.hypot(axis[:, None], axis[None, :]).clamp_min(1 / size)
    noise: Tensor = torch.fft.ifft2(torch.fft.fft2(draw.normal(3, size)) / frequency).real
    noise = 0.3 * noise + noise.mean(1, keepdim=True)
    return noise / noise.std((1, 2, 3), keepdim=True)


class PublicDirections:
    """The k principal directions of standardised public rows, and coordinates of other rows along them."""

    # ``values`` (k,) are the mean squared coordinates of the public rows, in decreasing order.
    def __init__(self, public: Tensor, *, directions: int) -> None:
        if public.ndim != 2 or len(public) < 2:
            raise InvalidInput(f"public rows must have shape (n, d), n >= 2; got {tuple(public.shape)}.")
        check_integer("directions", directions, low=1, high=min(public.shape))
        self._mean, deviation = public.mean(0), public.std(0)
        self._scale = deviation + 0.1 * deviation.mean()
        rows = self.standardise(public)
        # There are often fewer public rows than features, so the n x n Gram matrix is the smaller one.
        values, left = torch.linalg.eigh(rows @ rows.T / len(rows))
        self.values, left = values[-directions:].flip(0).clamp_min(1e-12), left[:, -directions:].flip(1)
        self.vectors = (rows.T @ left) / (self.values * len(rows)).sqrt()

    def standardise(self, rows: Tensor) -> Tensor:
        """Standardise (n, d) rows by public means and deviations, then scale each to norm 1."""
        return F.normalize((rows - self._mean) / self._scale, dim=1)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (n, k) coordinates of (n, d) rows, each computed from its own row."""
        coordinates: Tensor = self.standardise(rows) @ self.vectors
        return coordinates


def shrinking(values: Tensor, *, floor: int, power: float = 0.5) -> Tensor:
    """Return factors (lam / (s_i + lam))^power, (k,), for eigenvalues ``values`` and lam = values[floor]."""
    check_integer("floor", floor, low=0, high=len(values) - 1)
    factors: Tensor = (values[floor] / (values + values[floor])) ** power
    return factors


class PublicWhitening:
    """Standardises features, shrinks strong directions by public statistics, and returns rows of norm 1."""

    # Each of the strongest ``directions`` is scaled by sqrt(lam / (s_i + lam)). The others do not change.
    def __init__(self, public: Tensor, *, directions: int = 1000, floor: int = 400) -> None:
        self._directions = PublicDirections(public, directions=directions)
        self._shrink = shrinking(self._directions.values, floor=floor) - 1

    def __call__(self, rows: Tensor) -> Tensor:
        """Return whitened (n, d) rows of norm 1, each computed from its own row."""
        standard, vectors = self._directions.standardise(rows), self._directions.vectors
        return F.normalize(standard + ((standard @ vectors) * self._shrink) @ vectors.T, dim=1)


NORM = 10.0
"""The norm of each row of features."""

_LARGEST = 32  # pixels of a side; larger pictures are averaged down
_DIRECTIONS = 1000
_PUBLIC = 4000
_PICTURES_AT_ONCE = 2000
_PROCESS = 32  # pixels of a side of dead leaves, before they are resized to the pictures' size


class PictureFeatures(nn.Module):
    """Features of images that need no training: maps each image to a row of norm 10.

    The features are fixed filters (a scattering transform), whitened with synthetic images. All images must
    have the same size and values in [0, 1]. Train a linear model with a bias on the rows, by DP-SGD with
    clipping norm 1, momentum 0.9 and a learning rate of about 0.3.

    Args:
        height, width: the size of the images in pixels, at least 8. Larger images are first averaged down to
            sides of at most 32.
        colours: the number c of colour channels, 1 or 3.
        mirror: whether to average the features of each image and of its mirror image. This suits photographs
            but not letters. Default: only for colour images.
        floor: how many of the strongest directions whitening mainly shrinks. Default: 400, or a third of the
            number of features if that is less.

    Shapes: maps images (n, c, height, width), or flattened images (n, c * height * width), to features (n,
    ``width_out``) in float32.

    **Guarantee**

    * An image's features depend only on that image and on these arguments.

    Raises:
        InvalidInput: if the size is too small, or if images have another size than ``height`` and ``width``.

    >>> features = PictureFeatures(8, 8)
    >>> rows = features(torch.rand(3, 1, 8, 8))
    >>> rows.shape, torch.allclose(rows.norm(dim=1), torch.tensor(10.0))
    (torch.Size([3, 324]), True)
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        colours: int = 1,
        mirror: bool | None = None,
        floor: int | None = None,
    ) -> None:
        super().__init__()
        check_integer("height", height, low=8)
        check_integer("width", width, low=8)
        check_integer("colours", colours, low=1, high=3)
        self.shape, self.mirror = (colours, height, width), colours == 3 if mirror is None else mirror
        self.size = _inner_size(height, width)
        width_of_maps = self.size[1] // 4
        places = self.size[0] // 4 * ((width_of_maps + 1) // 2 if self.mirror else width_of_maps)
        self.width_out = CHANNELS * colours * places
        public = min(_PUBLIC, 3 * self.width_out)
        directions = min(_DIRECTIONS, public - 1, self.width_out)
        self.floor = min(400, self.width_out // 3) if floor is None else floor
        pictures = _public(public, colours, self.size)
        self._whitening = PublicWhitening(self._compressed(pictures), directions=directions, floor=self.floor)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the features (n, ``width_out``) of n images; each row has norm 10."""
        return self.rows(pictures)

    def rows(self, pictures: Tensor, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Return the result of :meth:`forward`, and report ``progress(done, total)`` in numbers of images."""
        pictures = pictures.reshape(-1, *self.shape) if pictures.ndim == 2 else pictures
        if pictures.ndim != 4 or tuple(pictures.shape[1:]) != self.shape:
            raise InvalidInput(
                f"pictures must have shape (n, {', '.join(map(str, self.shape))}); got "
                f"{tuple(pictures.shape)}."
            )
        out = torch.empty(len(pictures), self.width_out)
        with torch.no_grad():
            for start in range(0, len(pictures), _PICTURES_AT_ONCE):
                part = pictures[start : start + _PICTURES_AT_ONCE]
                out[start : start + len(part)] = self._whitening(self._compressed(part)) * NORM
                if progress is not None:
                    progress(start + len(part), len(pictures))
        return out

    def _compressed(self, pictures: Tensor) -> Tensor:
        pictures = pictures.float()
        if tuple(pictures.shape[2:]) != self.size:
            pictures = F.interpolate(pictures, size=self.size, mode="area")
        maps = scattering_features(pictures)
        maps = mirror_average(maps) if self.mirror else maps
        moduli = torch.arange(maps.shape[1]) % CHANNELS > 0
        maps[:, moduli] = maps[:, moduli].clamp_min(0).sqrt()
        return maps.flatten(1)


def _inner_size(height: int, width: int) -> tuple[int, int]:
    """Return the size to which images are resized: multiples of 4, at least 8 and at most 32."""
    shrink = max(1.0, max(height, width) / _LARGEST)
    return max(8, 4 * int(height / shrink / 4)), max(8, 4 * int(width / shrink / 4))


def _public(count: int, colours: int, size: tuple[int, int]) -> Tensor:
    pictures = dead_leaves(count, seed=0, size=_PROCESS)
    pictures = pictures if colours == 3 else pictures.mean(1, keepdim=True).expand(-1, colours, -1, -1)
    return F.interpolate(pictures, size=size, mode="area")
