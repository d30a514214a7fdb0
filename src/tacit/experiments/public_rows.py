"""Rows of norm 1 from pictures, by filters and statistics that come from public pictures alone.

Public pictures are CIFAR-100's, without their labels, where they can be found, else dead leaves, which come
from a random process and are nobody's data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tacit.datasets import Dataset, TensorPair, load
from tacit.errors import InvalidInput
from tacit.experiments.base import Request
from tacit.experiments.cached_rows import cached_rows
from tacit.models import PictureFeatures, dead_leaves, scattering_features
from tacit.models.picture_features import NORM
from tacit.models.public_features import PublicFeatures
from tacit.models.public_whitening import PublicWhitening
from tacit.models.scattering import CHANNELS, mirror_average

__all__ = ["both_rows", "grey_rows", "patch_rows", "public_pictures", "scattering_rows"]

_FOR_PATCHES, _FOR_SCATTERING = 6000, 4000
_CHUNK = 2000


def public_pictures() -> tuple[str, Tensor]:
    """What they are, and (n, 3, 32, 32) of them."""
    try:
        pictures = load("cifar100").train.inputs
    except InvalidInput:
        return "dead leaves, a random process", dead_leaves(_FOR_PATCHES, seed=0)
    return "CIFAR-100, training pictures without labels", pictures[:_FOR_PATCHES]


def patch_rows(data: Dataset, public: Tensor, request: Request) -> Dataset:
    """The data set with rows of :class:`PublicFeatures` as inputs, (n, 8192) float16 for 32x32 pictures."""
    listener = request.listener
    features = PublicFeatures(public, dtype=torch.bfloat16, progress=partial(listener, "patches, public"))
    return _mapped(data, lambda part, x: features(x, progress=partial(listener, f"patches, {part}")).half())


def scattering_rows(data: Dataset, public: Tensor, request: Request) -> Dataset:
    """The data set with mirrored, square-rooted, whitened scattering features as inputs, (n, 7776)
    float16."""
    raw = _raw_scattering(public[:_FOR_SCATTERING], "public", request)
    whitening = PublicWhitening(raw.float())
    del raw

    def rows(part: str, pictures: Tensor) -> Tensor:
        raw = _raw_scattering(pictures, part, request)
        out = torch.empty(raw.shape, dtype=torch.float16)
        for start in range(0, len(raw), _CHUNK):
            out[start : start + _CHUNK] = whitening(raw[start : start + _CHUNK].float())
        return out

    return _mapped(data, rows)


def grey_rows(data: Dataset, request: Request) -> Dataset:
    """The data set with :class:`PictureFeatures` of norm 1 as inputs, (n, d) float16; cached."""
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


def both_rows(data: Dataset, public: Tensor, request: Request) -> Dataset:
    """Patches and scattering side by side, each with half of the squared norm."""
    first, second = patch_rows(data, public, request), scattering_rows(data, public, request)
    train, test = (
        TensorPair(torch.cat([one.inputs, two.inputs], dim=1).mul_(0.5**0.5), one.targets)
        for one, two in ((first.train, second.train), (first.test, second.test))
    )
    return replace(data, train=train, test=test)


def _mapped(data: Dataset, rows: Callable[[str, Tensor], Tensor]) -> Dataset:
    train, test = (
        TensorPair(rows(part, pair.inputs), pair.targets)
        for part, pair in (("train", data.train), ("test", data.test))
    )
    return replace(data, train=train, test=test)


def _raw_scattering(pictures: Tensor, part: str, request: Request) -> Tensor:
    """(n, d) float16: averaged with the mirror image; the square root evens out S1 and S2, which are >= 0."""
    title = f"scattering, {part}"
    maps = scattering_features(
        pictures.to(request.device), dtype=torch.float16, progress=partial(request.listener, title)
    ).cpu()
    wavelets = torch.arange(maps.shape[1]) % CHANNELS > 0
    out = []
    for chunk in torch.split(maps, _CHUNK):
        averaged = mirror_average(chunk.float())
        averaged[:, wavelets] = averaged[:, wavelets].clamp_min(0).sqrt()
        out.append(averaged.flatten(1).half())
    return torch.cat(out)
