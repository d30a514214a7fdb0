"""Tables and searches: rows of every kind on made-up records, and tries that are not made twice."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import tables
from experiments.base import Request
from experiments.cached_rows import cached_rows
from experiments.registry import reproduce
from experiments.tries import Tries
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput

ROOT = Path(__file__).parents[2]


def toy(bins: bool = False) -> Dataset:
    generator = torch.Generator().manual_seed(int(bins))

    def pair(n: int) -> TensorPair:
        x = torch.rand(n, 5, generator=generator) * 2 - 1
        return TensorPair(x, (x[:, 0] + 0.3 * x[:, 1] > 0).long())

    return Dataset("adult", pair(1200), pair(600), ("no", "yes"), "made up", "person")


def test_rows_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "load_adult", toy)
    for name in ("TACIT_DIFFPRIVLIB", "TACIT_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    rows = reproduce("tables", Request(tmp_path, epsilons=(3.0,), seeds=2))
    kinds = [row.model for row in rows]
    assert kinds[:2] == ["logistic regression, without DP", "logistic regression, bins, without DP"]
    assert {"least squares, bins", "MLP 16, DP-SGD, bins", "linear, DP-SGD, bins, replace-one"} < set(kinds)
    for row in rows:
        assert all(auc > 0.8 for auc in row.details["aucs"]), row.model
        assert row.selection == tables.SELECTION
        assert row.epsilon > 2.9
    assert json.loads((tmp_path / "tables.json").read_text())["rows"][0]["selection"]
    with pytest.raises(InvalidInput, match=r"0\.5, 1 and 3"):
        reproduce("tables", Request(tmp_path, epsilons=(2.0,)))


def stand_in(folder: Path, scores: str) -> str:
    """A stand-in for a peer's interpreter, which gives these ``scores`` of the rows d["t"]."""
    script = folder / "python"
    script.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys, numpy as np; "
        f'd = np.load(sys.argv[3]); np.save(sys.argv[3] + ".npy", {scores})\' "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def test_rows_beside_a_peer_of_another_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose scores are the first feature."""
    monkeypatch.setenv("TACIT_DIFFPRIVLIB", stand_in(tmp_path, 'np.stack([d["t"][:, 0]] * 2)'))
    found = tables.peer_scores(toy(), 1.0, 1.0, 2)
    assert [len(scores) for scores in found] == [600, 600]
    assert tables.auc_of(found[0], toy()) > 0.9


def test_validation_records_are_training_records_alone() -> None:
    data = toy()
    part = tables.validation_part(data)
    rows = {tuple(row) for row in data.train.inputs.tolist()}
    kept = [tuple(row) for row in part.train.inputs.tolist()]
    held = [tuple(row) for row in part.test.inputs.tolist()]
    assert (len(kept), len(held)) == (900, 300)
    assert set(kept) | set(held) == rows
    assert not set(kept) & set(held)
    assert tables.validation_part(data).test.targets.equal(part.test.targets)


def test_the_committed_settings_are_those_that_the_search_preferred() -> None:
    tries = Tries(ROOT / "experiments" / "searches" / "tables.jsonl")
    for epsilon, candidates in tables.CHOSEN.items():
        for candidate in candidates:
            best = tries.best({"epsilon": epsilon, "model": candidate.label})
            setting: Any = None if candidate.setting is None else vars(candidate.setting)
            assert best["setting"] == setting
            assert best["ridge"] == candidate.ridge
    for epsilon, (rounds, rate) in tables.BOOSTED.items():  # the peer gets its best too
        best = tries.best({"epsilon": epsilon, "model": "DP-EBM"})
        assert (best["rounds"], best["learning_rate"]) == (rounds, rate)


def test_a_peer_on_whole_columns_gets_numbers_and_places_of_categories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = torch.tensor(tables.WIDTHS)
    numbers, places = torch.rand(40, 12), torch.randint(0, 1000, (40, 12)) % widths
    parts = [
        numbers[:, [i]] if width == 1 else torch.nn.functional.one_hot(places[:, i], width).float()
        for i, width in enumerate(tables.WIDTHS)
    ]
    pair = TensorPair(torch.cat(parts, 1), torch.arange(40) % 2)
    monkeypatch.setenv("TACIT_INTERPRET", stand_in(tmp_path, 'd["t"].T'))
    found = tables.boosted_scores(replace(toy(), train=pair, test=pair), 1.0, 10, 0.1, 1)
    for i, width in enumerate(tables.WIDTHS):
        assert found[i] == pytest.approx((numbers if width == 1 else places)[:, i].numpy())


def test_a_search_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    tries, made = Tries(tmp_path / "a" / "tries.jsonl"), []

    def measure() -> list[float]:
        made.append(1)
        return [0.25, 0.75]

    assert tries.make({"rate": 1.0}, measure) == 0.5
    with tries.path.open("a") as file:
        file.write('{"settings": {"rate": 2.0}, "sco')  # cut off
    again = Tries(tries.path)
    assert again.make({"rate": 1.0}, measure) == 0.5
    assert len(made) == 1
    with pytest.raises(InvalidInput, match="no try"):
        again.best({"rate": 2.0})
    again.make({"rate": 2.0}, lambda: [0.9])
    assert Tries(tries.path).best({}) == {"rate": 2.0}


def test_features_are_computed_once_for_these_pictures(tmp_path: Path) -> None:
    one, other, made = torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8), []

    def rows(pictures: torch.Tensor) -> torch.Tensor:
        made.append(1)
        return pictures.flatten(1)

    for pictures in (one, other, one, other):
        assert cached_rows("pixels", pictures, lambda: rows(pictures), tmp_path).equal(pictures.flatten(1))  # noqa: B023
    assert len(made) == 2
    cached_rows("others", one, lambda: rows(one), tmp_path)
    assert len(made) == 3
