"""Augmentation multiplicity: the gradients of several views of a record are averaged, then clipped once.

Because a record's gradient is clipped only once, the views cost no privacy (De et al., 2204.13650, section
3.2).  The step draws the random numbers of all records before it cuts the batch into microbatches, so the
result does not depend on the cut.

Letters: n records; K views per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import InvalidInput, UnsupportedModel, check_integer


class Augmentation(ABC):
    """Makes views of a record from that record and uniform random numbers alone.

    >>> @dataclass(frozen=True)
    ... class Brighter(Augmentation):
    ...     draws = 1  # one uniform number a view
    ...     def views(self, inputs, uniforms):
    ...         return inputs.repeat_interleave(uniforms.shape[1], 0) + uniforms.reshape(-1, 1)
    >>> Brighter().views(torch.zeros(1, 2), torch.tensor([[[0.25], [0.5]]]))
    tensor([[0.2500, 0.2500],
            [0.5000, 0.5000]])
    """

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of uniform numbers that one view needs."""

    @abstractmethod
    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        """Turn ``inputs`` (n, ...) and ``uniforms`` (n, K, draws) into views (n*K, ...), record after record.

        The uniform numbers are in [0, 1).  Both tensors are on the model's device.
        """


def check_by_record(augmentation: Augmentation, inputs: Tensor, views: int) -> None:
    """Test the augmentation on ``inputs`` (n, ...), and refuse it if it mixes records.

    Raises:
        UnsupportedModel: a record's views depend on other records, as in mixup, so clipping cannot bound a
            record's influence.
    """
    n, zeros = len(inputs), torch.zeros_like(inputs)
    numbers = torch.rand(2 * n, views, augmentation.draws, generator=torch.Generator().manual_seed(0))
    uniforms = numbers.to(inputs.device)
    both, first, second = (
        augmentation.views(torch.cat(pair), uniforms)
        for pair in ((inputs, inputs), (inputs, zeros), (zeros, inputs))
    )
    cut = n * views
    if not (torch.equal(both[:cut], first[:cut]) and torch.equal(both[cut:], second[cut:])):
        raise UnsupportedModel(
            f"{type(augmentation).__name__} makes views of a record from other records. The views change "
            "when other records of the batch change, as with mixup and cutmix, so clipping cannot bound "
            "what a record adds. Make each view from its own record and its own uniform numbers."
        )


@dataclass(frozen=True)
class FlipAndCrop(Augmentation):
    """Reflect-pads by ``pad`` pixels, crops at random to the original size, and mirrors half of the views.

    Inputs are pictures (n, channels, height, width).

    >>> augmentation = FlipAndCrop(pad=2)
    >>> augmentation.views(torch.zeros(3, 1, 8, 8), torch.rand(3, 1, augmentation.draws)).shape
    torch.Size([3, 1, 8, 8])
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_integer("pad", self.pad, low=0)

    @property
    def draws(self) -> int:
        return 3

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        if inputs.dim() != 4:
            raise InvalidInput(
                f"flips and crops need pictures (n, channels, height, width); got {tuple(inputs.shape)}. "
                "Pass an augmentation for records of this shape."
            )
        height, width = inputs.shape[2:]
        views = uniforms.shape[1]
        pictures = inputs.repeat_interleave(views, dim=0)
        draws = uniforms.reshape(-1, 3)
        offsets = (draws[:, :2] * (2 * self.pad + 1)).long()
        padded = F.pad(pictures, [self.pad] * 4, mode="reflect") if self.pad else pictures
        device = inputs.device
        rows = offsets[:, 0, None] + torch.arange(height, device=device)
        columns = offsets[:, 1, None] + torch.arange(width, device=device)
        if self.flip:
            columns = torch.where(draws[:, 2, None] < 0.5, columns.flip(1), columns)
        each = torch.arange(len(padded), device=device)[:, None, None]
        cropped = padded[each, :, rows[:, :, None], columns[:, None, :]]
        return cropped.permute(0, 3, 1, 2).contiguous()
