"""Experiments give the published figures where they are arithmetic, and honest rows where they train."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import abadi_mnist, clipping, correlated_noise, scattering, tempered_sigmoids
from experiments.__main__ import main
from experiments.base import Request, Row, Setting
from experiments.linear_on_features import Recipe, repeat_linear
from experiments.registry import EXPERIMENTS, reproduce
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.events import Compose, Gaussian

ROOT = Path(__file__).parents[2]
FIELDS = {
    *("experiment", "dataset", "model", "epsilon", "delta", "accountant", "noise_multiplier"),
    *("accuracy_mean", "accuracy_std", "seeds", "wall_seconds", "selection"),
}


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def pictures(n: int, seed: int, colours: int = 1, side: int = 28) -> TensorPair:
    """Ten easy classes: a bright row of pixels whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 10
    inputs = 0.1 * torch.rand(n, colours, side, side, generator=generator)
    inputs[torch.arange(n), :, 2 * targets + 3] += 0.8
    return TensorPair(inputs, targets)


def toy(name: str, folder: Any = None) -> Dataset:
    colours, side = (3, 32) if name == "cifar10" else (1, 28)
    train, test = pictures(300, 0, colours, side), pictures(100, 1, colours, side)
    return Dataset(name, train, test, tuple("abcdefghij"), "made up", "image")


def short(setting: Setting) -> Setting:
    return replace(setting, steps=12, batch_size=None if setting.batch_size is None else 100)


def assert_rows(path: Path, rows: list[Row]) -> None:
    saved = json.loads(path.read_text())
    assert len(saved["rows"]) == len(rows)
    assert saved["machine"]["cores"]
    assert saved["versions"]["torch"]
    for row in saved["rows"]:
        assert set(row) >= FIELDS
    assert path.with_suffix(".png").stat().st_size > 5_000


def test_composition_gives_the_talks_rows(tmp_path: Path) -> None:
    rows = reproduce("abadi-composition", Request(tmp_path))
    by_name = {row.accountant: row for row in rows}
    basic, strong, amplified, _, moments, rdp, pld = rows
    assert (round(basic.epsilon, -1), basic.delta) == (12_000, 0.1)
    assert (round(strong.epsilon), strong.delta) == (360, 0.1)
    assert 9 < amplified.epsilon < 10.5
    assert 1.25 <= moments.epsilon <= 1.27
    assert 0.94 <= pld.epsilon <= 0.96 < rdp.epsilon < moments.epsilon
    assert sum("not a bound" in name for name in by_name) == 2
    assert all(row.seeds == 0 and row.accuracy_mean is None for row in rows)
    assert_rows(tmp_path / "abadi-composition.json", rows)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("name", ["abadi-mnist", "tempered-sigmoids", "scattering", "clipping"])
def test_training_experiments_run_end_to_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small made-up pictures and few steps: what is tested is the machinery, not the accuracy."""
    for module in (abadi_mnist, tempered_sigmoids, scattering, clipping):
        monkeypatch.setattr(module, "load", toy)
    recipes = tuple(replace(recipe, setting=short(recipe.setting)) for recipe in abadi_mnist._RECIPES)
    monkeypatch.setattr(abadi_mnist, "_RECIPES", recipes)
    monkeypatch.setattr(
        tempered_sigmoids,
        "_SETTINGS",
        {k: (e, short(s)) for k, (e, s) in tempered_sigmoids._SETTINGS.items()},
    )
    grey = tuple(replace(recipe, setting=short(recipe.setting)) for recipe in scattering.GREY_28)
    monkeypatch.setattr(scattering, "GREY_28", grey)
    monkeypatch.setattr("tacit.models.picture_features._PUBLIC", 500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(clipping, "_SETTING", short(clipping._SETTING))
    seen: list[str] = []
    request = Request(tmp_path, epsilons=(3.0,), seeds=2, listener=lambda title, *_: seen.append(title))
    rows = reproduce(name, request)
    assert seen
    for row in rows:
        assert 0 < row.epsilon <= 3.0
        assert row.seeds == 2
        assert row.accuracy_std is not None
        assert len(row.details["per_class"]) == 10
    assert_rows(tmp_path / ("scattering-mnist.json" if name == "scattering" else f"{name}.json"), rows)


def test_correlated_noise_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlated_noise, "load", toy)
    monkeypatch.setattr(correlated_noise, "_STEPS", 20)
    rows = reproduce("correlated-noise", Request(tmp_path, epsilons=(3.0,), seeds=2))
    kinds = [row.details["correlation"] for row in rows]
    assert kinds == ["NoneType", "Tree", "BandedInverse", "Banded", "NoneType"]
    assert all(row.epsilon <= 3.0 for row in rows)
    stream, samples = rows[0].noise_multiplier, rows[4].noise_multiplier
    assert stream is not None
    assert samples is not None
    assert samples < stream, "samples hide something, a stream nothing"
    assert_rows(tmp_path / "correlated-noise.json", rows)


def test_dp_pca_is_in_the_epsilon_of_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = short(abadi_mnist._RECIPES[0].setting).plan(toy("mnist"), 0.5, preparation=[Gaussian(16.0)])
    assert isinstance(plan.event, Compose)
    assert plan.event.events[0] == Gaussian(16.0)
    assert plan.epsilon <= 0.5


def rows_of_norm_1(n: int, seed: int) -> TensorPair:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 3
    inputs = torch.eye(3).repeat(1, 4)[targets] + 0.2 * torch.randn(n, 12, generator=generator) + 0.5
    return TensorPair(torch.nn.functional.normalize(inputs, dim=1), targets)


def test_linear_on_features_learns_and_pays_for_the_mean(tmp_path: Path) -> None:
    data = Dataset("toy", rows_of_norm_1(3000, 0), rows_of_norm_1(300, 1), ("a", "b", "c"), "made up", "row")
    recipe = Recipe(9.0, 20.0, Setting(None, 30, 1.0, 0.9, 1.0, 0.9))
    found = repeat_linear("toy", Request(tmp_path, seeds=2), data, recipe, 3.0)
    assert min(evaluation.score for evaluation in found.evaluations) > 0.95
    assert found.plan.preparation == (Gaussian(20.0),)
    assert found.plan.epsilon <= 3.0
    scores = {evaluation.loss for evaluation in found.evaluations}
    assert len(scores) == 2, "every repeat draws its own noise"


def test_requests_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="seeds"):
        Request(tmp_path, seeds=0)
    with pytest.raises(InvalidInput, match="mnist, fashion-mnist"):
        reproduce("abadi-mnist", Request(tmp_path, dataset="digits"))
    with pytest.raises(InvalidInput, match="abadi-composition"):
        reproduce("magic", Request(tmp_path))


def test_command_prints_json_and_leaves_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> object:
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        return done.value.code

    assert run("abadi-composition", "--out", str(tmp_path), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["experiment"] for row in rows} == {"abadi-composition"}
    assert run("magic", "--out", str(tmp_path)) == 2
    assert "must be one of" in capsys.readouterr().err
    assert run("clipping", "--epsilon", "-1") == 2
    assert run("clipping", "--epsilons", "1") == 2
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in EXPERIMENTS)


def test_results_page_is_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setattr(sys, "argv", ["build.py", "--check"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / "docs" / "build.py"), run_name="__main__")
    assert done.value.code == 0, "run `make results`"


def test_each_committed_row_says_on_which_records_its_settings_were_chosen() -> None:
    for path in (ROOT / "experiments" / "results").glob("*.json"):
        for row in json.loads(path.read_text())["rows"]:
            assert row["selection"] or row["seeds"] == 0, path.name


def test_activation_norms_are_those_of_the_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU(), torch.nn.Linear(4, 2), torch.nn.Tanh())
    x: Tensor = torch.tensor([[[-3.0, 3.0], [4.0, 0.0]]])
    first, second = tempered_sigmoids._activation_norms(model, x)
    assert first == pytest.approx(5.0)
    assert 0 <= second <= 2**0.5
