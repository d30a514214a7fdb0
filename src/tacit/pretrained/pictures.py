"""Networks trained on public images, without their heads, that map an image to features.

Letters: n images of c channels and h by w pixels; s by s pixels after scaling; d features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer
from tacit.pretrained.base import Pretrained, parameters_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The channel means and standard deviations of ImageNet."""


@final
class PretrainedPictures(Pretrained):
    """A network that maps images of any size, with values in [0, 1], to features.

    Grey images are repeated in three channels. All images are scaled to ``image_size`` and normalised as in
    the network's training.

    Attributes:
        image_size: s, the side in pixels of the scaled images.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        what: str,
        image_size: int,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        decides: Mapping[str, Any],
        files: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> None:
        """Wrap a body as a model; see :func:`tacit.pretrained.load_pretrained`.

        Args:
            body: a network from (n, 3, s, s) images to a last feature map, features, or a transformers
                output.
            what: a description of the body, for the model's name and for errors.
            image_size: s.
            mean: the mean of each channel over the training images of the body.
            std: the standard deviation of each channel.
            decides: all other facts that change the features.
            files: the files that the body was loaded from.
            settings: the arguments of ``load_pretrained`` that load this model again.
        """
        self.image_size = check_integer("image_size", image_size, low=1)
        looks = {"image_size": self.image_size, "mean": list(mean), "std": list(std)}
        super().__init__(
            body,
            features=_features(body, self.image_size, what),
            name=f"{what}, {parameters_of(body):,} parameters",
            decides={**decides, **looks},
            files=files,
            settings={**settings, "image_size": self.image_size},
        )
        self.register_buffer("_mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)
        self._mean: Tensor
        self._std: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, c, h, w) images; c is 1 or 3."""
        if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
            raise InvalidInput(
                f"pictures must have shape (n, c, height, width); got {tuple(inputs.shape)}. c is 3, or 1 "
                "for grey. Move the axis of the colours to the second place."
            )
        pixels = scaled(inputs.float(), self.image_size).expand(-1, 3, -1, -1)
        return _pooled(self.body((pixels - self._mean) / self._std))


def scaled(pictures: Tensor, size: int) -> Tensor:
    """Scale images to ``size`` by ``size`` pixels.

    The result equals that of bilinear ``interpolate`` with antialias. It is computed by two matrix products,
    which work in every export format and under vmap.
    """
    high, wide = (_weights(side, size, pictures) for side in pictures.shape[-2:])
    return high @ pictures @ wide.T


def _weights(source: int, target: int, like: Tensor) -> Tensor:
    """Return the weights (target, source) of the pixels of an image row in the scaled row."""
    ratio = source / target
    places = (torch.arange(target, device=like.device).to(like.dtype) + 0.5) * ratio - 0.5
    pixels = torch.arange(source, device=like.device).to(like.dtype)
    weights = (1 - (pixels - places.unsqueeze(1)).abs() / max(ratio, 1.0)).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def _pooled(output: Any) -> Tensor:
    """Return (n, d) features from features, a last feature map, or an output of transformers."""
    if not isinstance(output, Tensor):
        pooler = getattr(output, "pooler_output", None)
        output = output.last_hidden_state if pooler is None else pooler.flatten(1)
    features: Tensor = output
    if features.dim() == 4:
        return features.mean(dim=(2, 3))
    return features[:, 0] if features.dim() == 3 else features  # the first token represents the whole image


def _features(body: nn.Module, size: int, kind: str) -> int:
    """Return d, which one black image shows."""
    try:
        with torch.no_grad():
            features = _pooled(body(torch.zeros((1, 3, size, size))))
    except Exception as problem:  # noqa: BLE001  # a network may raise any exception for a wrong size
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"{kind} fails on pictures of {size} by {size} pixels: {type(problem).__name__}: "
            f"{reason}. Take the image_size that it was trained with, or a model of pictures."
        ) from None
    if features.dim() != 2:
        raise InvalidInput(f"{kind} must return features (n, d); it returned shape {tuple(features.shape)}.")
    return int(features.shape[1])
