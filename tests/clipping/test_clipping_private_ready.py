"""make_private_ready: what it replaces, and that the original stays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tacit.clipping.isolation.model_checks import check_model
from tacit.errors import UnsupportedModel
from tacit.models.networks import make_private_ready, replacements


def network() -> nn.Sequential:
    shared = nn.BatchNorm2d(8)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), shared, nn.ReLU()),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        shared,
        nn.Flatten(),
        nn.LazyLinear(5),
        nn.SyncBatchNorm(5),
        nn.BatchNorm1d(5, affine=False),
    )


def test_batch_norm_becomes_group_norm_and_the_original_stays() -> None:
    model = network()
    model[4] = nn.Linear(8 * 16, 5)
    nn.init.normal_(model.get_parameter("2.weight"))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    layers = list(model.modules())
    with pytest.raises(UnsupportedModel, match=r"0\.1.*BatchNorm2d.*make_private_ready"):
        check_model(model)
    ready = make_private_ready(model)
    check_model(ready)
    assert ready is not model
    assert list(model.modules()) == layers
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert isinstance(ready, nn.Sequential)
    assert isinstance(ready[2], nn.GroupNorm)
    assert ready[2].num_groups == 2
    assert ready[2] is ready.get_submodule("0.1")  # a shared layer stays shared
    assert torch.equal(ready[2].weight, model.get_parameter("2.weight"))
    assert not any(p is q for p in model.parameters() for q in ready.parameters())
    assert not list(ready.buffers())
    assert ready(torch.randn(2, 3, 6, 6)).shape == (2, 5)


def test_a_lone_layer_and_flags() -> None:
    model = nn.BatchNorm2d(6).eval().requires_grad_(False)
    ready = make_private_ready(model)
    assert isinstance(ready, nn.GroupNorm)
    assert not ready.training
    assert not any(p.requires_grad for p in ready.parameters())


def test_a_model_without_such_layers_is_copied() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.InstanceNorm1d(3))
    model.register_module("none", None)
    ready = make_private_ready(model)
    assert repr(ready) == repr(copy.deepcopy(model))
    assert ready is not model
    assert list(replacements(model)) == []


def test_replacements_are_named() -> None:
    assert list(replacements(network()))[:2] == [("0.1", "GroupNorm"), ("1", "InstanceNorm2d")]
