"""Features of photographs from public pictures: of norm 1, of one picture each, and computed once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments import abadi_cifar10, public_rows
from experiments.base import Request
from experiments.registry import reproduce
from tacit.datasets import Dataset, TensorPair
from tacit.models.picture_features import dead_leaves


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all tests, as the rows of the same pictures take seconds to compute."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Tensor:
    monkeypatch.setattr(public_rows, "_PUBLIC", 150)
    monkeypatch.setattr(public_rows, "_DIRECTIONS", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return dead_leaves(150, seed=0)


def photographs(n: int, seed: int) -> TensorPair:
    """Ten easy classes: a bright row of pixels whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 10
    inputs = 0.3 * torch.rand(n, 3, 32, 32, generator=generator)
    inputs[torch.arange(n), :, 3 * targets + 1] += 0.6
    return TensorPair(inputs, targets)


def toy(name: str = "cifar10") -> Dataset:
    return Dataset(name, photographs(80, 0), photographs(30, 1), tuple("abcdefghij"), "made up", "image")


def test_rows_are_blocks_of_equal_norm_of_one_picture_each(few: Tensor, tmp_path: Path) -> None:
    data = toy()
    photo_rows = partial(public_rows.photo_rows, directions=40, floor=10, power=0.5, cosines=0.0)
    found = photo_rows(data, few, Request(tmp_path))
    rows = found.test.inputs.float()
    assert rows.shape == (30, 3 * 40)
    for block in torch.split(rows, 40, dim=1):
        assert torch.allclose(block.norm(dim=1), torch.full((30,), 3**-0.5), atol=2e-3)
    assert torch.equal(found.test.targets, data.test.targets)
    alone = replace(data, test=TensorPair(data.test.inputs[7:8], data.test.targets[7:8]))
    again = photo_rows(alone, few, Request(tmp_path)).test.inputs.float()
    assert torch.allclose(again[0], rows[7], atol=1e-2)


def test_cosines_take_their_part_of_the_norm_and_are_of_one_picture(few: Tensor, tmp_path: Path) -> None:
    data = toy()
    photo_rows = partial(public_rows.photo_rows, directions=40, floor=10, power=0.5, cosines=0.36)
    rows = photo_rows(data, few, Request(tmp_path)).test.inputs.float()
    plain = photo_rows(data, few, Request(tmp_path), cosines=0.0).test.inputs.float()
    assert torch.allclose(rows[:, :120], 0.8 * plain, atol=2e-3)
    assert torch.allclose(rows[:, 120:].norm(dim=1), torch.full((30,), 0.6), atol=2e-3)
    alone = replace(data, test=TensorPair(data.test.inputs[7:8], data.test.targets[7:8]))
    assert torch.allclose(
        photo_rows(alone, few, Request(tmp_path)).test.inputs.float()[0], rows[7], atol=1e-2
    )


def test_shrinking_does_what_it_says_to_the_cached_coordinates(few: Tensor, tmp_path: Path) -> None:
    """A power of 0 leaves coordinates as they are; with a larger one the strong lose against the weak."""
    data, request = toy(), Request(tmp_path)
    none, much = (
        public_rows.photo_rows(
            data, few, request, directions=40, floor=5, power=power, cosines=0.0
        ).test.inputs.float()
        for power in (0.0, 0.5)
    )
    for block in range(3):
        first, last = 40 * block, 40 * block + 39
        ratio = (much[:, first] / much[:, last]) / (none[:, first] / none[:, last])
        values, _ = public_rows._coordinates(list(public_rows._BLOCKS)[block], _fails, data, few, request)
        wanted = ((values[39] + values[5]) / (values[0] + values[5])).sqrt()
        assert float(ratio.median()) == pytest.approx(float(wanted), rel=0.05)


def _fails(public: Tensor) -> public_rows._Block:
    raise AssertionError("computed a second time, not read from the cache")


def test_photographs_are_as_their_mirror_images(few: Tensor) -> None:
    pictures = photographs(4, 2).inputs
    pictures[:, :, :, :9] += 0.3
    for make in public_rows._BLOCKS.values():
        block = make(few)
        apart = (block(pictures) - block(pictures.flip(-1))).norm() / block(pictures).norm()
        assert float(apart) < 0.15


def test_cifar10_runs_end_to_end_and_pays_for_the_mean(
    few: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abadi_cifar10, "load", toy)
    monkeypatch.setattr(abadi_cifar10, "public_pictures", lambda: ("dead leaves", few))
    chosen = tuple(replace(one, steps=5, directions=40, floor=10) for one in abadi_cifar10.CHOSEN)
    monkeypatch.setattr(abadi_cifar10, "CHOSEN", chosen)
    rows = reproduce("abadi-cifar10", Request(tmp_path, seeds=2))
    assert [round(row.epsilon, 3) for row in rows] == [1.0, 2.0, 3.0, 8.0]
    assert all(row.details["preparation"] == ["Gaussian(noise_multiplier=20.0)"] for row in rows)
    assert all("5,000 training images" in row.selection for row in rows)
    assert (tmp_path / "abadi-cifar10.png").stat().st_size > 5_000
