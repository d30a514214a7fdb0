"""An encoder that mixes records, or draws, is refused before any data are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, UnsupportedModel
from tacit.pretrained.model import check_isolated

RECORDS = torch.zeros(4, 3)


def _norm() -> nn.Module:
    return nn.BatchNorm1d(3)


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (lambda x: x - x.mean(0), "depend on the other records"),
        (lambda x: x + torch.arange(len(x)).unsqueeze(1), "depend on the other records"),
        (_norm(), "fails on synthetic records of shape"),
        (nn.Dropout(0.5), "the encoder is not deterministic"),
        (lambda x: x + torch.rand(1), "the encoder is not deterministic"),
    ],
)
def test_features_of_a_record_are_its_own(encoder: Callable[[Tensor], Tensor], said: str) -> None:
    with pytest.raises((UnsupportedModel, InvalidInput), match=said):
        check_isolated(encoder, RECORDS)


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (lambda x: x.sum(1), r"must return features \(n, d\)"),
        (lambda x: x[:1], r"must return features \(n, d\)"),
        (lambda x: [x], "returned list"),
        (lambda x: x.long(), r"finite floats; it returned torch\.int64"),
        (lambda x: x / 0, "NaN or infinity"),
    ],
)
def test_features_are_finite_numbers_of_each_record(encoder: Callable[[Tensor], Tensor], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_isolated(encoder, RECORDS)


@pytest.mark.parametrize(
    ("encoder", "records"),
    [
        (nn.Linear(3, 2), RECORDS),
        (nn.Sequential(_norm(), nn.Dropout(0.5)).eval(), RECORDS),
        (nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), RECORDS.long()),
    ],
)
def test_others_pass_and_are_left_as_they_were(encoder: nn.Module, records: Tensor) -> None:
    before, drawn = {k: v.clone() for k, v in encoder.state_dict().items()}, torch.get_rng_state()
    check_isolated(encoder, records)
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_network_with_batch_statistics_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten())
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.raises(UnsupportedModel, match="batch norm in training mode"):
        check_isolated(network, torch.zeros(4, 3, 5, 5))
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
