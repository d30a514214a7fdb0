"""The experiments with attacks on membership, end to end, on small made-up records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from experiments import membership, shokri
from experiments.base import Request
from experiments.registry import reproduce
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.testing import seeded_generator


def noise(n: int, seed: int) -> TensorPair:
    generator = torch.Generator().manual_seed(seed)
    return TensorPair(torch.rand(n, 1, 28, 28, generator=generator), torch.arange(n) % 10)


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the operating system's: what an attack finds is the same in each run."""
    keys = itertools.count()
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(next(keys)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset("mnist", noise(1400, 0), noise(100, 1), tuple("abcdefghij"), "made up", "image")
    monkeypatch.setattr(membership, "load", lambda name: data)
    for name, value in (("_RECORDS", 600), ("_MISLABELLED", 60), ("_TESTED", 100), ("_HIDDEN", 16)):
        monkeypatch.setattr(membership, name, value)
    monkeypatch.setattr(membership, "_PLAIN", membership._PLAIN | {"epochs": 25})
    monkeypatch.setattr(membership, "_EPOCHS", 20)  # a number of steps with a quick price
    monkeypatch.setattr(membership, "_SHADOWS", 8)


@pytest.mark.usefixtures("small")
def test_membership_experiment_goes_on_after_an_interruption(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def interrupt(title: str, done: int, total: int) -> None:
        seen.append((title, done, total))
        if title.startswith("models, ε") and done == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("membership", Request(tmp_path, epsilons=(2.0,), seeds=2, listener=interrupt))
    assert [path.name for path in tmp_path.iterdir()] == ["membership-shadows-plain.npz"]
    with pytest.raises(InvalidInput, match="made with other data, models or settings"):
        reproduce("membership", Request(tmp_path, epsilons=(2.0,), seeds=3))
    seen.clear()
    rows = reproduce(
        "membership",
        Request(tmp_path, epsilons=(2.0,), seeds=2, listener=lambda *at: seen.append(at)),
    )
    assert seen[0] == ("models, without DP", 10, 10)
    saved = json.loads((tmp_path / "membership.json").read_text())
    assert [row["epsilon"] for row in saved["rows"]] == [None, pytest.approx(2.0, abs=0.01)]
    assert (tmp_path / "membership.png").stat().st_size > 20_000
    assert len(list(tmp_path.iterdir())) == 2, "stores are removed when all is done"
    plain, private = ({a["attack"]: a for a in row.details["attacks"]} for row in rows)
    assert plain["BaVarIA-t"]["auc"] > 0.75 > private["BaVarIA-t"]["auc"]
    assert not any(attack["contradicted"] for attack in private.values())
    assert rows[0].details["most_exposed"] > 1.0
    assert rows[1].details["bound_found"] < 0.1


def adult(n: int) -> Dataset:
    """Rows in which nothing tells the occupation, so that it can only be learnt by heart."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 14, (n,), generator=generator)
    inputs = torch.cat([torch.randn(n, 20, generator=generator), torch.eye(15)[kinds]], dim=1)
    names = (*(f"column {i}" for i in range(20)), *(f"occupation={i}" for i in range(15)))
    rows = TensorPair(inputs, (inputs[:, 0] > 1.0).long())
    return Dataset("adult", rows, rows, ("no", "yes"), "made up", "person", names)


def test_shokri_experiment_leaks_more_with_more_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shokri, "load_adult", lambda: adult(1200))
    for name, value in (("_TRAINED", (150, 500)), ("_TESTED", 200), ("_SHADOWS", 4)):
        monkeypatch.setattr(shokri, name, value)
    rows = reproduce("shokri", Request(tmp_path, dataset="adult", seeds=4))
    saved = json.loads((tmp_path / "shokri.json").read_text())
    assert len(saved["rows"]) == len(rows) == 8
    assert (tmp_path / "shokri.png").stat().st_size > 10_000
    leak = {(r.details["task"], r.details["classes"], r.details["trained"]): r.details for r in rows}
    many, few = leak["occupation", 12, 500], leak["income", 2, 500]
    assert many["gap"] > 0.8 > 0.2 > few["gap"], "all is learnt by heart, or nearly nothing"
    assert many["attack_accuracy"] > 0.9 > 0.7 > few["attack_accuracy"]
    with pytest.raises(InvalidInput, match="without privacy"):
        reproduce("shokri", Request(tmp_path, epsilons=(1.0,)))
