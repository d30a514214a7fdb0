"""Augmentations: the views of a record come from that record alone, whatever the user's code does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from made import a_plan, a_session, network, one_step
from torch import Tensor, nn

from tacit.errors import UnsupportedModel
from tacit.training.by_record import Augmentation, FlipAndCrop, check_by_record, views_of

N = 60


class MixUp(Augmentation):
    """Makes each view half of the neighbour."""

    @property
    def draws(self) -> int:
        return 1

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        return (inputs + inputs.roll(1, 0)).repeat_interleave(uniforms.shape[1], 0)


@pytest.mark.parametrize("augmentation", [MixUp(), FlipAndCrop(1)], ids=["mixup", "crop"])
def test_views_that_mix_records_are_refused(augmentation: Augmentation) -> None:
    plan = a_plan(noise_multiplier=2.0, batch_size=30, steps=1, views=2)
    x = torch.randn(N, 1, 4, 4)
    net = nn.Sequential(nn.Flatten(), network(16, 3))
    run = a_session(net, (x, torch.arange(N) % 3), plan, augmentation=augmentation, generator=None)
    if isinstance(augmentation, FlipAndCrop):
        one_step(run)
    else:
        with pytest.raises(UnsupportedModel, match="MixUp mixes records"):
            one_step(run)


class SameDevice(FlipAndCrop):
    """Notes whether pictures and uniform numbers are on one device."""

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        assert uniforms.device == inputs.device
        return inputs.repeat_interleave(uniforms.shape[1], 0)


def test_records_on_a_device_are_augmented_with_uniform_numbers_there() -> None:
    """The numbers used to be on the CPU, so the first step on records on a GPU failed with torch's error."""
    views_of(SameDevice(), torch.zeros(3, 1, 4, 4, device="meta"), torch.rand(3, 2, 3))


@dataclass(frozen=True)
class Custom(Augmentation):
    """Makes views of pictures by a given function."""

    function: Callable[[Tensor, Tensor], Tensor]
    draws: int = 1

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        return self.function(inputs, uniforms).repeat_interleave(uniforms.shape[1], 0)


def divided_if_large(x: Tensor, _: Tensor) -> Tensor:
    return x / 255 if x.max() > 1 else x


OF_OTHER_RECORDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "largest": lambda x, _: x / x.abs().max(),
    "range": lambda x, _: (x - x.min()) / (x.max() - x.min()),
    "mean": lambda x, _: x - x.mean(0),
}
READING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "if": divided_if_large,
    "item": lambda x, _: x / x.max().item(),
    "print": lambda x, _: x * len(f"{x}"),
    "draws": lambda x, _: x + torch.rand(1),
    "Python draws": lambda x, _: x + random.random(),
}


@pytest.mark.parametrize("function", OF_OTHER_RECORDS.values(), ids=OF_OTHER_RECORDS)
def test_scaling_by_a_number_of_the_whole_batch_reaches_no_other_record_and_is_refused(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, numbers = torch.randn(6, 1, 4, 4), torch.rand(6, 2, 1)
    other = torch.cat([x[:5], 1e6 * x[5:]])
    views = views_of(Custom(function), x, numbers)
    assert torch.equal(views[:10], views_of(Custom(function), other, numbers)[:10])
    with pytest.raises(UnsupportedModel, match="mixes records"):
        check_by_record(Custom(function), x, 2)


@pytest.mark.parametrize("function", READING.values(), ids=READING)
def test_an_augmentation_that_reads_a_record_or_draws_is_refused(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    with pytest.raises(UnsupportedModel, match=r"cannot run under|draws random numbers from Python"):
        views_of(Custom(function), torch.randn(6, 1, 4, 4), torch.rand(6, 2, 1))


def test_a_tensor_that_an_augmentation_keeps_is_of_no_use_in_the_next_batch() -> None:
    kept: list[Tensor] = []

    def with_the_last(x: Tensor, _: Tensor) -> Tensor:
        kept.append(x)
        return x + kept[0]

    views_of(Custom(with_the_last), torch.randn(6, 1, 4, 4), torch.rand(6, 2, 1))
    with pytest.raises(UnsupportedModel, match="cannot run under"):
        views_of(Custom(with_the_last), torch.randn(6, 1, 4, 4), torch.rand(6, 2, 1))


def test_flips_and_crops_of_each_record_alone_are_those_of_the_batch() -> None:
    x, numbers = torch.randn(6, 3, 8, 8), torch.rand(6, 2, 3)
    assert torch.equal(views_of(FlipAndCrop(2), x, numbers), FlipAndCrop(2).views(x, numbers))
    assert views_of(FlipAndCrop(2), x[:0], numbers[:0]).shape == (0, 3, 8, 8)
