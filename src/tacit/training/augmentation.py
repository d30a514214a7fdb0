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
from torch.func import vmap

from tacit.clipping.isolation.randomness import only_torch_draws
from tacit.clipping.isolation.reasons import NotCarried
from tacit.clipping.isolation.synthetic import made_up
from tacit.clipping.isolation.under_vmap import Pass, isolated
from tacit.clipping.memory import FAST
from tacit.clipping.per_example.use import Kept
from tacit.errors import InvalidInput, UnsupportedModel, check_integer, of_device


class Augmentation(ABC):
    """Makes views of a record from that record and uniform random numbers alone.

    A step calls ``views`` under :func:`torch.func.vmap`, which shows it one record: ``inputs`` has n = 1.  So
    it must not branch on values of its arguments (``if inputs.max() > 1``), and must draw no numbers.

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


def views_of(augmentation: Augmentation, inputs: Tensor, uniforms: Tensor) -> Tensor:
    """Make the views (n*K, ...) of ``inputs`` (n, ...), each record under vmap and so from itself alone.

    Args:
        augmentation: makes the views.
        inputs: the first tensor of each record.
        uniforms: (n, K, draws) numbers in [0, 1), on any device.
    """
    n, views = uniforms.shape[:2]
    if n == 0:
        one_of_zeros = uniforms.new_zeros(1, *uniforms.shape[1:])
        return views_of(augmentation, inputs.new_zeros(1, *inputs.shape[1:]), one_of_zeros)[:0]
    run = Pass((), n, views, {}, Kept, FAST)

    def one(record: Tensor, numbers: Tensor) -> Tensor:
        run.begin((record, numbers))
        with run:
            result = augmentation.views(record[None], numbers[None])
        run.returns(result)
        if len(result) != views:
            raise InvalidInput(f"{name}.views must return a tensor of n*K views, record after record.")
        return result

    name = type(augmentation).__name__
    try:
        with only_torch_draws(), isolated(run):
            results: Tensor = vmap(one)(inputs, uniforms.to(inputs.device, non_blocking=True))
    except InvalidInput:
        raise
    except (UnsupportedModel, NotCarried, RuntimeError) as reason:
        if of_device(reason):
            raise
        # The text of torch's errors may contain a value of a record. Tacit's goes on about models.
        own = isinstance(reason, UnsupportedModel | NotCarried)
        cause = str(reason).partition(": ")[0] if own else type(reason).__name__
        raise UnsupportedModel(
            f"{name}.views cannot run on each record alone, under torch.func.vmap ({cause}). It may use the "
            "record and its uniform numbers, but no if on their values, no item(), no tensor of an earlier "
            "batch, and no random numbers of its own. Use torch.where in place of if, or do this in the "
            "Dataset."
        ) from None
    return results.flatten(0, 1)


def check_by_record(augmentation: Augmentation, inputs: Tensor, views: int) -> None:
    """Refuse an augmentation that is meant to mix records, on synthetic ones of the shape of ``inputs``.

    Each record is augmented alone, so mixing would be private, but not what its author means.
    """
    (records,) = made_up((inputs,), 1)
    numbers = torch.rand(len(records), views, augmentation.draws, generator=torch.Generator().manual_seed(0))
    uniforms = numbers.to(inputs.device)
    of_each = views_of(augmentation, records, uniforms)
    of_batch = augmentation.views(records, uniforms)
    if of_each.shape != of_batch.shape or not torch.allclose(of_each, of_batch, rtol=1e-4, atol=1e-4):
        raise UnsupportedModel(
            f"{type(augmentation).__name__} makes views of a record from other records. The views change "
            "when other records of the batch change, as with mixup, cutmix and division by the largest value "
            "of a batch, so clipping cannot bound what a record adds. Make each view from its own record and "
            "its own uniform numbers."
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
