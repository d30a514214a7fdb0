"""Features of pictures, as rows of norm 1, by filters and statistics of public pictures alone.

The public pictures are those of CIFAR-100 without labels, if the files are found.  Otherwise they are dead
leaves, pictures from a random process that contain nobody's data.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.base import Request
from experiments.cached_rows import cached_rows
from experiments.public_features import PatchDictionary, in_chunks
from experiments.random_features import RandomCosines
from experiments.standard import load
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.models import PictureFeatures
from tacit.models.picture_features import (
    CHANNELS,
    NORM,
    PublicDirections,
    PublicWhitening,
    dead_leaves,
    mirror_average,
    scattering_features,
    shrinking,
)

_PUBLIC, _FOR_PATCHES = 4000, 3000
_CHUNK = 2000
_LIFTED, _LIFTED_FLOOR, _COSINES, _SCALE = 50, 20, 4096, 1.5  # coordinates per block for random cosines
_DIRECTIONS = 3000  # coordinates per block; an experiment uses only the strongest of them


def public_pictures() -> tuple[str, Tensor]:
    """Return the name of the public pictures, and the pictures (n, 3, 32, 32)."""
    try:
        pictures = load("cifar100").train.inputs
    except InvalidInput:
        return "dead leaves, a random process", dead_leaves(_PUBLIC, seed=0)
    return "CIFAR-100, training pictures without labels", pictures[:_PUBLIC]


def photo_rows(
    data: Dataset,
    public: Tensor,
    request: Request,
    *,
    directions: int,
    floor: int,
    power: float,
    cosines: float,
) -> Dataset:
    """Return the data set with joined blocks of features as inputs, each with an equal squared norm.

    The blocks are patches, patches of the picture at half its size, and scattering.  Each has the coordinates
    along the ``directions`` principal directions of public pictures, which are cached and then scaled by
    :func:`tacit.models.picture_features.shrinking`.  Random cosines of the strongest coordinates of all
    blocks get the share ``cosines`` of the squared norm.
    """
    blocks = [_coordinates(name, make, data, public, request) for name, make in _BLOCKS.items()]
    values = [value for value, _ in blocks]
    linear = [shrinking(value, floor=floor, power=power)[:directions] for value in values]
    strongest = [shrinking(value, floor=_LIFTED_FLOOR, power=power)[:_LIFTED] for value in values]
    lift = RandomCosines(_LIFTED * len(blocks), count=_COSINES, scale=_SCALE)

    def row(few: list[Tensor]) -> Tensor:
        parts = [math.sqrt(1 - cosines) * _side_by_side(few, linear)]
        if cosines:
            parts.append(math.sqrt(cosines) * lift(_side_by_side(few, strongest)))
        return torch.cat(parts, dim=1)

    train, test = (
        TensorPair(_by_rows(row, [pair.inputs for pair in pairs]), pairs[0].targets)
        for pairs in ([block.train for _, block in blocks], [block.test for _, block in blocks])
    )
    return replace(data, train=train, test=test)


def _by_rows(function: Callable[[list[Tensor]], Tensor], blocks: list[Tensor]) -> Tensor:
    """Apply ``function`` to a few rows of all blocks at a time; return (n, d) float16."""
    width = function([block[:1] for block in blocks]).shape[1]
    out = torch.empty(len(blocks[0]), width, dtype=torch.float16)
    for start in range(0, len(out), _CHUNK):
        out[start : start + _CHUNK] = function([block[start : start + _CHUNK] for block in blocks])
    return out


def _side_by_side(blocks: list[Tensor], factors: list[Tensor]) -> Tensor:
    """Scale the first coordinates of each block by factors, and join the blocks to (n, d) rows of norm 1."""
    parts = [
        F.normalize(block[:, : len(factor)] * factor, dim=1)
        for block, factor in zip(blocks, factors, strict=True)
    ]
    return torch.cat(parts, dim=1) / math.sqrt(len(blocks))


@dataclass(frozen=True)
class _Block:
    """Features of pictures, and the principal directions of these features on public pictures."""

    compressed: Callable[[Tensor], Tensor]
    directions: PublicDirections

    def __call__(self, pictures: Tensor) -> Tensor:
        """Map (n, c, h, w) pictures to (n, k) coordinates."""
        return self.directions(self.compressed(pictures))


def _block(compressed: Callable[[Tensor], Tensor], public: Tensor) -> _Block:
    rows = in_chunks(compressed, public)
    return _Block(compressed, PublicDirections(rows, directions=min(_DIRECTIONS, *rows.shape)))


def _patches(public: Tensor) -> _Block:
    dictionary = PatchDictionary(public[:_FOR_PATCHES], dtype=torch.bfloat16)
    return _block(lambda pictures: dictionary(pictures).sqrt(), public)


def _coarse_patches(public: Tensor) -> _Block:
    dictionary = PatchDictionary(_halved(public[:_FOR_PATCHES]), pool=(6, 5), dtype=torch.bfloat16)
    return _block(lambda pictures: dictionary(_halved(pictures)).sqrt(), public)


def _scattering(public: Tensor) -> _Block:
    return _block(_raw_scattering, public)


_BLOCKS = {"patches": _patches, "coarse patches": _coarse_patches, "scattering": _scattering}


def _halved(pictures: Tensor) -> Tensor:
    return F.avg_pool2d(pictures, 2)


def _coordinates(
    name: str, make: Callable[[Tensor], _Block], data: Dataset, public: Tensor, request: Request
) -> tuple[Tensor, Dataset]:
    """Return a block's eigenvalues (k,), and the data set with its cached coordinates (n, k) float16."""
    made = functools.cache(lambda: make(public))
    digest = hashlib.sha256(public.numpy().tobytes()).hexdigest()[:16]
    what = f"{name}, {_DIRECTIONS} directions, public pictures {digest}"

    def rows(part: str, pictures: Tensor) -> Tensor:
        progress = partial(request.listener, f"{name}, {part}")
        return cached_rows(what, pictures, lambda: in_chunks(made(), pictures, progress).half())

    values = cached_rows(f"{what}, eigenvalues", public, lambda: made().directions.values)
    return values, _mapped(data, rows)


def scattering_rows(data: Dataset, public: Tensor, request: Request) -> Dataset:
    """Return the data set with whitened square roots of scattering features as inputs, (n, 7776) float16.

    They are averaged with those of the mirror image."""
    whitening = PublicWhitening(in_chunks(_raw_scattering, public))

    def rows(part: str, pictures: Tensor) -> Tensor:
        progress = partial(request.listener, f"scattering, {part}")
        return in_chunks(lambda few: whitening(_raw_scattering(few)).half(), pictures, progress)

    return _mapped(data, rows)


def grey_rows(data: Dataset, request: Request) -> Dataset:
    """Return the data set with cached :class:`PictureFeatures` of norm 1 as inputs, (n, d) float16."""
    _, height, width = data.input_shape

    def rows(part: str, pictures: Tensor) -> Tensor:
        return cached_rows(
            f"picture features, {height} x {width}",
            pictures,
            lambda: made().rows(pictures, partial(request.listener, f"scattering, {part}")).div_(NORM).half(),
        )

    @functools.cache
    def made() -> PictureFeatures:
        return PictureFeatures(height, width)

    return _mapped(data, rows)


def _mapped(data: Dataset, rows: Callable[[str, Tensor], Tensor]) -> Dataset:
    train, test = (
        TensorPair(rows(part, pair.inputs), pair.targets)
        for part, pair in (("train", data.train), ("test", data.test))
    )
    return replace(data, train=train, test=test)


def _raw_scattering(pictures: Tensor) -> Tensor:
    """Return square roots of features averaged with the mirror image, (n, d); they balance S1 and S2 >= 0."""
    maps = mirror_average(scattering_features(pictures))
    wavelets = torch.arange(maps.shape[1]) % CHANNELS > 0
    maps[:, wavelets] = maps[:, wavelets].clamp_min(0).sqrt()
    return maps.flatten(1)
