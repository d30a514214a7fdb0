"""Features are computed once, in files that say nothing wrong and that only their owner reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import write_bert
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.pretrained import load_pretrained
from tacit.pretrained import model as of_models
from tacit.pretrained.model import FeatureCache, Pretrained

RECORDS = 1_200


@pytest.fixture
def model(tmp_path: Path) -> Pretrained:
    return load_pretrained(write_bert(tmp_path / "bert"))


@pytest.fixture
def inputs() -> Tensor:
    return torch.randint(257, (RECORDS, 6), generator=torch.Generator().manual_seed(2)).float()


@pytest.fixture
def counted(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of records that go through the model, call by call."""
    calls: list[int] = []
    embed = model.embed

    def embedded(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return embed(rows)

    monkeypatch.setattr(model, "embed", embedded)
    return calls


def test_features_are_computed_once(
    model: Pretrained, inputs: Tensor, tmp_path: Path, counted: list[int]
) -> None:
    done: list[int] = []
    found = FeatureCache(model, tmp_path / "a")(inputs, done.append)
    torch.testing.assert_close(found, model(inputs), rtol=1e-4, atol=1e-5)
    assert counted == [512, 512, 176]
    assert done == [512, 1024, 1200]
    again = FeatureCache(model, tmp_path / "b", also_in=[tmp_path / "a"])(inputs)
    assert torch.equal(again, found)
    assert sum(counted) == RECORDS
    assert not (tmp_path / "b").exists()


def test_only_their_owner_reads_them(model: Pretrained, inputs: Tensor, tmp_path: Path) -> None:
    FeatureCache(model, tmp_path / "a")(inputs[:3])
    (file,) = (tmp_path / "a").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_other_records_and_other_models_have_other_features(
    model: Pretrained, inputs: Tensor, tmp_path: Path, counted: list[int]
) -> None:
    kept = FeatureCache(model, tmp_path / "a")
    kept(inputs[:3])
    kept(inputs[3:6])
    kept(inputs[:3, :5])
    assert len(counted) == 3
    other = load_pretrained(tmp_path / "bert", length=6)
    FeatureCache(other, tmp_path / "a")(inputs[:3])
    assert len(list((tmp_path / "a").iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_computed_anew(
    model: Pretrained, inputs: Tensor, tmp_path: Path, counted: list[int], damage: str
) -> None:
    kept = FeatureCache(model, tmp_path / "a")
    found = kept(inputs[:3])
    (file,) = (tmp_path / "a").iterdir()
    data = bytearray(file.read_bytes())
    data[-60] ^= 1
    file.write_bytes({"cut": bytes(data[:-20]), "changed": bytes(data), "empty": b""}[damage])
    assert torch.equal(kept(inputs[:3]), found)
    assert counted == [3, 3]
    assert torch.equal(kept(inputs[:3]), found)
    assert counted == [3, 3]


def test_a_stopped_run_goes_on_where_it_ended(
    model: Pretrained, inputs: Tensor, tmp_path: Path, counted: list[int]
) -> None:
    kept = FeatureCache(model, tmp_path / "a")

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(inputs, stop)
    kept(inputs)
    assert counted == [512, 512, 176]


def test_a_full_disk_is_named_with_what_is_missing(
    model: Pretrained, inputs: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(of_models, "write_atomically", full)
    with pytest.raises(InvalidInput, match=r"1,200 more records need 0\.0 MB.*run the same command again"):
        FeatureCache(model, tmp_path / "a")(inputs)


def test_features_of_a_model_in_training_are_not_kept(
    model: Pretrained, inputs: Tensor, tmp_path: Path
) -> None:
    next(model.body.parameters()).requires_grad_()
    with pytest.raises(InvalidInput, match="the encoder must be frozen"):
        FeatureCache(model, tmp_path / "a")(inputs)
