"""Shadow models that are trained at once are those that sessions of their own would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import run_file
from torch import nn

from experiments.laboratory import shadow_ensembles
from experiments.laboratory.ensembles import MLPEnsemble
from experiments.laboratory.shadow_ensembles import at_once, perceptron_of
from tacit import models
from tacit.correlation import Tree
from tacit.datasets import TensorPair
from tacit.noise.generator import Generator
from tacit.runs import prepare
from tacit.runs.attack import FinishedRun, open_run, outputs_of, scaled_plan, train_plainly, train_privately

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='name = "digits"',
    model="{model}",
    privacy='noise_multiplier = {noise}; unit = "image"; adjacency = "{adjacency}"; records = 1437',
    optimizer="{optimizer}",
    training="steps = 12",
)
SGD = "learning_rate = 0.3\nmomentum = 0.9"


@pytest.fixture(autouse=True)
def next_to_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs have so little noise that another one is the same; a private session refuses that."""
    monkeypatch.setattr("tacit.training.run.LEAST_NOISE", 0.0)


def finished(
    folder: Path,
    model: str = 'name = "logistic"\nnormalise = true',
    *,
    noise: float = 1e-5,
    optimizer: str = SGD,
    adjacency: str = "add-remove",
) -> FinishedRun:
    """A run whose noise is next to none, and whose batches are full: another one of it is the same."""
    path = folder / "run.toml"
    text = CONFIG.format(model=model, noise=noise, optimizer=optimizer, adjacency=adjacency)
    path.write_text(text + ("[run]\n"))
    assert prepare(path, out=folder / "run").start() is not None
    return open_run(folder / "run")


def trained_at_once(run: FinishedRun, design: np.ndarray[Any, Any], *, private: bool) -> Any:
    plan = scaled_plan(run.plan, int(design.sum(axis=1)[0]))
    found = at_once(run.config, run.data, plan, run.pool, private=private)
    return None if found is None else found.train(design)


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
def test_they_are_those_of_sessions_of_their_own(tmp_path: Path, private: bool) -> None:
    run = finished(tmp_path)
    rng = np.random.default_rng(0)
    design = np.stack([rng.permutation(len(run.pool.inputs)) < 800 for _ in range(3)])
    together = trained_at_once(run, design, private=private)
    for row, logits in zip(design, together, strict=True):
        chosen = np.flatnonzero(row)
        rows = TensorPair(run.pool.inputs[chosen], run.pool.targets[chosen])
        alone = outputs_of(run, (train_privately if private else train_plainly)(run, rows))
        assert np.abs(logits - alone).max() < 0.01 * np.abs(alone).max()
    assert np.abs(together[0] - together[1]).max() > 0.05 * np.abs(together).max(), "other records matter"


def test_the_noise_is_that_of_the_run_with_a_loss_beside_it(tmp_path: Path) -> None:
    run = finished(tmp_path, noise=2.0)
    assert run.plan.loss_report is not None
    alone = shadow_ensembles._gradients_alone(run.plan)
    assert alone.noise_multiplier == run.plan.gradient_noise_multiplier > run.plan.noise_multiplier
    assert alone.gradient_noise_multiplier == alone.noise_multiplier


@pytest.mark.parametrize("name", ["logistic", "perceptron"])
def test_parts_of_a_perceptron_are_put_together_again(name: str) -> None:
    torch.manual_seed(0)
    net: nn.Module = (
        models.Logistic(64, 10, normalise=True)
        if name == "logistic"
        else models.MLP(64, 10, hidden=(32, 16), activation="relu")
    )
    found = perceptron_of(net)
    assert found is not None
    stacked = MLPEnsemble(found.sizes, found.activation, [Generator.from_os()])
    weights = [part for layer in found.layers for part in (layer.weight, layer.bias)]
    for own, weight in zip(stacked.parameters, weights, strict=True):
        own[0] = weight.detach()
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(stacked.logits(found.before(x)))[0], net(x), atol=1e-5)


def test_what_is_no_perceptron_is_trained_one_by_one(tmp_path: Path) -> None:
    tempered = models.MLP(64, 10, activation="tempered-sigmoid", temper=(1.0, 2.0, 0.5))
    mixed = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    shared = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    last = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    scaled = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    frozen = nn.Sequential(nn.Linear(4, 2).requires_grad_(False))
    bare = nn.Sequential(nn.Linear(4, 2, bias=False))
    assert not any(map(perceptron_of, (tempered, mixed, shared, last, scaled, frozen, bare, nn.Linear(4, 2))))
    decayed = finished(tmp_path, optimizer=f"{SGD}\nweight_decay = 0.01")
    design = np.arange(len(decayed.pool.inputs))[None] % 2 == 0
    assert trained_at_once(decayed, design, private=True) is None


@pytest.mark.thorough(instead="test_they_are_those_of_sessions_of_their_own")
def test_noise_in_time_is_drawn_by_a_session_of_its_own(tmp_path: Path) -> None:
    run = finished(tmp_path)
    half = scaled_plan(run.plan, len(run.pool.inputs) // 2)
    plan = replace(half, correlation=Tree(), loss_report=None)
    assert at_once(run.config, run.data, half, run.pool, private=True) is not None
    assert at_once(run.config, run.data, plan, run.pool, private=True) is None
    assert at_once(run.config, run.data, plan, run.pool, private=False) is not None


@pytest.mark.thorough(instead="test_they_are_those_of_sessions_of_their_own")
def test_halves_of_an_odd_number_are_not_alike(tmp_path: Path) -> None:
    run = finished(tmp_path, adjacency="zero-out")
    assert len(run.pool.inputs) % 2 == 1
    plan = scaled_plan(run.plan, len(run.pool.inputs) // 2)
    assert at_once(run.config, run.data, plan, run.pool, private=True) is None
    assert at_once(run.config, run.data, plan, run.pool, private=False) is not None
