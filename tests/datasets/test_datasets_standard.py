"""The bundled sets as :func:`tacit.datasets.load` gives them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tacit import datasets
from tacit.datasets import Dataset, TensorPair, load
from tacit.errors import InvalidInput

DATA = Path(os.environ.get("TACIT_DATA", "/nowhere"))


def test_public_names_can_be_imported() -> None:
    assert sorted(datasets.__all__) == datasets.__all__
    assert all(getattr(datasets, name) is not None for name in datasets.__all__)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidInput, match=r"digits, breast-cancer.*got 'minst'"):
        load("minst")


def test_digits() -> None:
    data = load("digits")
    assert data.train.inputs.shape == (1437, 1, 8, 8)
    assert data.test.inputs.shape == (360, 1, 8, 8)
    levels = data.train.inputs * 16
    assert torch.equal(levels, levels.round())
    assert (float(levels.min()), float(levels.max())) == (0.0, 16.0)
    counts = torch.bincount(data.test.targets)
    assert int(counts.min()) >= 34  # stratified
    assert int(counts.max()) <= 37
    assert data.unit == "image"


def test_the_split_is_the_same_every_time() -> None:
    first, second = load("digits"), load("digits")
    assert torch.equal(first.test.inputs, second.test.inputs)
    assert torch.equal(first.train.targets, second.train.targets)


@pytest.mark.parametrize("name", ["breast-cancer", "wine", "iris", "diabetes"])
def test_bundled_tables_lie_within_their_declared_bounds(name: str) -> None:
    data = load(name)
    inputs = torch.cat([data.train.inputs, data.test.inputs])
    assert float(inputs.min()) >= -1.0
    assert float(inputs.max()) <= 1.0
    # Bounds that clamp more than a few values would be wrong ones (sex is 1 or 2, so it sits on them).
    assert float((inputs.abs() == 1.0).float().mean()) < (0.11 if name == "diabetes" else 0.01)
    assert len(data.features) == inputs.shape[1]
    assert bool(data.classes) == (name != "diabetes")


def test_regression_targets_are_scaled_by_declared_bounds() -> None:
    data = load("diabetes")
    (low, high), *rest = data.target_bounds
    assert not rest
    progression = (torch.cat([data.train.targets, data.test.targets]) + 1) / 2 * (high - low) + low
    assert float(progression.min()) == pytest.approx(25.0, abs=1e-3)  # the known extremes of the data
    assert float(progression.max()) == pytest.approx(346.0, abs=1e-3)


def test_dataset_refuses_parts_that_do_not_fit() -> None:
    good = TensorPair(torch.zeros(3, 2), torch.tensor([0, 1, 1]))

    def make(train: TensorPair, classes: tuple[str, ...] = ("a", "b")) -> Dataset:
        return Dataset("toy", train, good, classes, source="made up", unit="row")

    with pytest.raises(InvalidInput, match="float32"):
        make(TensorPair(torch.zeros(3, 2, dtype=torch.float64), good.targets))
    with pytest.raises(InvalidInput, match="3 inputs and 2 targets"):
        make(TensorPair(good.inputs, good.targets[:2]))
    with pytest.raises(InvalidInput, match="at least one"):
        make(TensorPair(good.inputs[:0], good.targets[:0]))
    with pytest.raises(InvalidInput, match=r"0\.\.1.*; 1 of them are not"):
        make(TensorPair(good.inputs, torch.tensor([0, 1, 2])))
    with pytest.raises(InvalidInput, match=r"float32 \(n, k\)"):
        make(good, classes=())
    with pytest.raises(InvalidInput, match="same shape"):
        make(TensorPair(torch.zeros(3, 5), good.targets))
