"""MobileNetV2 (Sandler et al., https://arxiv.org/abs/1801.04381), with torchvision's names of weights.

By these names, torchvision's published weights can be loaded without torchvision. There is no classifier.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Table 2 of the paper: expansion factor, channels, number of blocks, and stride of the first block."""
_FIRST, FEATURES = 32, 1280
HEAD = "classifier."
"""The prefix of the classifier's weights, which are not loaded."""


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


@final
class _Block(nn.Module):
    """An inverted residual block: expand, filter each channel, project; add the input if shapes fit."""

    def __init__(self, times: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = inputs * times
        widened = [_convolution(inputs, inner, size=1)] if times > 1 else []
        self.conv = nn.Sequential(
            *widened,
            _convolution(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.added = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.added else outputs


@final
class MobileNetV2(nn.Module):
    """The network up to its last feature map: (n, 3, h, w) to (n, 1280, h / 32, w / 32)."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [_convolution(3, _FIRST, stride=2)]
        channels = _FIRST
        for times, outputs, blocks, stride in _BLOCKS:
            for place in range(blocks):
                parts.append(_Block(times, channels, outputs, stride if place == 0 else 1))
                channels = outputs
        self.features = nn.Sequential(*parts, _convolution(channels, FEATURES, size=1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last feature map."""
        features: Tensor = self.features(inputs)
        return features
